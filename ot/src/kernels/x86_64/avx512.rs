//! Code that the sets of kernels for AVX-512 share.

use std::arch::x86_64::*;

use super::super::code::TABLE;
use super::super::transpose::{BATCH, TILES};
use super::avx2::{load, store};
use super::{INDEX_BYTES, index_words};
use crate::Block;
use crate::ggm::half;

/// Loads four blocks.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load4(blocks: &[Block; 4]) -> __m512i {
    // SAFETY: four Blocks are 64 bytes; the load needs no alignment.
    unsafe { _mm512_loadu_si512(std::ptr::from_ref(blocks).cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store4(blocks: &mut [Block; 4], value: __m512i) {
    // SAFETY: four Blocks are 64 bytes, and any bytes are Blocks; the store needs no alignment.
    unsafe { _mm512_storeu_si512(std::ptr::from_mut(blocks).cast(), value) }
}

/// Both layers of the butterfly that the portable code goes through one swap after the other: rows at distances 1, 2
/// and 4 in eight registers, then those at distances 8 to 64 in sixteen.
#[target_feature(enable = "avx512f")]
pub(super) fn transpose(rows: &mut [Block; BATCH]) {
    let (quads, _) = rows.as_chunks_mut::<4>();
    // The four tiles at q of row r are quads[r * STRIDE + q].
    const STRIDE: usize = TILES / 4;
    for r in (0..128).step_by(8) {
        for q in 0..STRIDE {
            let mut x = [_mm512_setzero_si512(); 8];
            for (i, x) in x.iter_mut().enumerate() {
                *x = load4(&quads[(r + i) * STRIDE + q]);
            }
            swap::<8, 1, 1>(&mut x, 0x5555_5555_5555_5555);
            swap::<8, 2, 2>(&mut x, 0x3333_3333_3333_3333);
            swap::<8, 4, 4>(&mut x, 0x0f0f_0f0f_0f0f_0f0f);
            for (i, x) in x.into_iter().enumerate() {
                store4(&mut quads[(r + i) * STRIDE + q], x);
            }
        }
    }
    for r in 0..8 {
        for q in 0..STRIDE {
            let mut x = [_mm512_setzero_si512(); 16];
            for (i, x) in x.iter_mut().enumerate() {
                *x = load4(&quads[(r + 8 * i) * STRIDE + q]);
            }
            swap::<16, 1, 8>(&mut x, 0x00ff_00ff_00ff_00ff);
            swap::<16, 2, 16>(&mut x, 0x0000_ffff_0000_ffff);
            swap::<16, 4, 32>(&mut x, 0x0000_0000_ffff_ffff);
            for i in 0..8 {
                let (a, b) = (x[i], x[i + 8]);
                x[i] = _mm512_unpacklo_epi64(a, b);
                x[i + 8] = _mm512_unpackhi_epi64(a, b);
            }
            for (i, x) in x.into_iter().enumerate() {
                store4(&mut quads[(r + 8 * i) * STRIDE + q], x);
            }
        }
    }
}

/// Swaps bit `i + SHIFT` of register `r` with bit `i` of register `r + S`, for all `i` in `mask` and all `r` with bit
/// S clear.
#[inline]
#[target_feature(enable = "avx512f")]
fn swap<const N: usize, const S: usize, const SHIFT: u32>(x: &mut [__m512i; N], mask: u64) {
    let mask = _mm512_set1_epi64(mask as i64);
    for r in 0..N {
        if r & S == 0 {
            let (a, b) = (x[r], x[r + S]);
            // (a >> SHIFT ^ b) & mask.
            let t = _mm512_ternarylogic_epi64::<0x28>(_mm512_srli_epi64::<SHIFT>(a), b, mask);
            x[r + S] = _mm512_xor_si512(b, t);
            x[r] = _mm512_xor_si512(a, _mm512_slli_epi64::<SHIFT>(t));
        }
    }
}

/// [`half::add_at`].
#[target_feature(enable = "avx512f")]
pub(super) fn add_at(nodes: &mut [Block], at: u64, by: Block) {
    let (quads, rest) = nodes.as_chunks_mut::<4>();
    if !rest.is_empty() {
        return half::add_at(rest, at, by);
    }
    let (at, by) = (_mm512_set1_epi64(at as i64), _mm512_broadcast_i32x4(load(&by)));
    let mut index = _mm512_set_epi64(3, 3, 2, 2, 1, 1, 0, 0);
    for quad in quads {
        let x = load4(quad);
        store4(quad, _mm512_mask_xor_epi64(x, _mm512_cmpeq_epi64_mask(index, at), x, by));
        index = _mm512_add_epi64(index, _mm512_set1_epi64(4));
    }
}

/// Adds to `out` the entries of `table` whose indices `stream` holds.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
pub(super) fn add_code_word(table: &[Block; TABLE], stream: &[u8; INDEX_BYTES], out: &mut Block) {
    let entry = |index: u64| load(&table[usize::from(index as u16)]);
    let [i, j, k] = index_words(stream);
    let a = _mm_ternarylogic_epi64::<0x96>(load(out), entry(i), entry(i >> 16));
    let b = _mm_ternarylogic_epi64::<0x96>(entry(i >> 32), entry(i >> 48), entry(j));
    let c = _mm_ternarylogic_epi64::<0x96>(entry(j >> 16), entry(j >> 32), entry(j >> 48));
    let d = _mm_ternarylogic_epi64::<0x96>(entry(k), entry(k >> 16), a);
    store(out, _mm_ternarylogic_epi64::<0x96>(b, c, d));
}
