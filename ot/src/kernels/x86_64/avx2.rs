//! Code that all sets of kernels share, and kernels for AVX2 alone.

use std::arch::x86_64::*;

use super::super::code::TABLE;
use super::super::transpose::{BATCH, TILES};
use super::{INDEX_BYTES, Key, index_words};
use crate::Block;

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load(block: &Block) -> __m128i {
    // SAFETY: a Block is 16 bytes, aligned to 16.
    unsafe { _mm_load_si128(std::ptr::from_ref(block).cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn store(block: &mut Block, value: __m128i) {
    // SAFETY: a Block is 16 bytes, aligned to 16, and any bytes are a Block.
    unsafe { _mm_store_si128(std::ptr::from_mut(block).cast(), value) }
}

/// The key schedule of FIPS 197.
#[target_feature(enable = "aes,avx2")]
pub(super) fn expand_key(key: Block) -> Key {
    #[inline]
    #[target_feature(enable = "aes,avx2")]
    fn next<const RCON: i32>(k: __m128i) -> __m128i {
        let g = _mm_shuffle_epi32::<0xff>(_mm_aeskeygenassist_si128::<RCON>(k));
        let k = _mm_xor_si128(k, _mm_slli_si128::<4>(k));
        let k = _mm_xor_si128(k, _mm_slli_si128::<8>(k));
        _mm_xor_si128(k, g)
    }
    let mut keys = Key::default();
    let mut k = load(&key);
    store(&mut keys.0[0], k);
    macro_rules! rounds {
        ($($i:literal: $rcon:literal),*) => { $(k = next::<$rcon>(k); store(&mut keys.0[$i], k);)* };
    }
    rounds!(1: 0x01, 2: 0x02, 3: 0x04, 4: 0x08, 5: 0x10, 6: 0x20, 7: 0x40, 8: 0x80, 9: 0x1b, 10: 0x36);
    keys
}

/// AES of one block.
#[target_feature(enable = "aes,avx2")]
pub(super) fn encrypt(key: &Key, block: Block) -> Block {
    let mut x = _mm_xor_si128(load(&block), load(&key.0[0]));
    for round in &key.0[1..10] {
        x = _mm_aesenc_si128(x, load(round));
    }
    let mut out = Block::ZERO;
    store(&mut out, _mm_aesenclast_si128(x, load(&key.0[10])));
    out
}

/// Stores sixteen bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn store_bytes(to: &mut [u8; 16], value: __m128i) {
    // SAFETY: there is room for 16 bytes; the store needs no alignment.
    unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), value) }
}

/// Loads two blocks.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load2(blocks: &[Block; 2]) -> __m256i {
    // SAFETY: two Blocks are 32 bytes; the load needs no alignment.
    unsafe { _mm256_loadu_si256(std::ptr::from_ref(blocks).cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn store2(blocks: &mut [Block; 2], value: __m256i) {
    // SAFETY: two Blocks are 32 bytes, and any bytes are Blocks; the store needs no alignment.
    unsafe { _mm256_storeu_si256(std::ptr::from_mut(blocks).cast(), value) }
}

/// Both layers of the butterfly that the portable code goes through one swap after the other: rows at distances 1, 2
/// and 4, then those at distances 64, 8, 16 and 32, in eight registers each time.
#[target_feature(enable = "avx2")]
pub(super) fn transpose(rows: &mut [Block; BATCH]) {
    let (pairs, _) = rows.as_chunks_mut::<2>();
    // The two tiles at q of row r are pairs[r * STRIDE + q].
    const STRIDE: usize = TILES / 2;
    for r in (0..128).step_by(8) {
        for q in 0..STRIDE {
            let mut x = [_mm256_setzero_si256(); 8];
            for (i, x) in x.iter_mut().enumerate() {
                *x = load2(&pairs[(r + i) * STRIDE + q]);
            }
            swap::<1, 1>(&mut x, 0x5555_5555_5555_5555);
            swap::<2, 2>(&mut x, 0x3333_3333_3333_3333);
            swap::<4, 4>(&mut x, 0x0f0f_0f0f_0f0f_0f0f);
            for (i, x) in x.into_iter().enumerate() {
                store2(&mut pairs[(r + i) * STRIDE + q], x);
            }
        }
    }
    for r in 0..8 {
        for q in 0..STRIDE {
            let (mut low, mut high) = ([_mm256_setzero_si256(); 8], [_mm256_setzero_si256(); 8]);
            for i in 0..8 {
                let (a, b) = (load2(&pairs[(r + 8 * i) * STRIDE + q]), load2(&pairs[(r + 8 * i + 64) * STRIDE + q]));
                low[i] = _mm256_unpacklo_epi64(a, b);
                high[i] = _mm256_unpackhi_epi64(a, b);
            }
            for (mut x, first) in [(low, r), (high, r + 64)] {
                swap::<1, 8>(&mut x, 0x00ff_00ff_00ff_00ff);
                // Words of 16 and 32 bits are exchanged by a shift and a choice.
                for i in [0, 1, 4, 5] {
                    let (a, b) = (x[i], x[i + 2]);
                    x[i] = _mm256_blend_epi16::<0b1010_1010>(a, _mm256_slli_epi64::<16>(b));
                    x[i + 2] = _mm256_blend_epi16::<0b1010_1010>(_mm256_srli_epi64::<16>(a), b);
                }
                for i in 0..4 {
                    let (a, b) = (x[i], x[i + 4]);
                    x[i] = _mm256_blend_epi32::<0b1010_1010>(a, _mm256_slli_epi64::<32>(b));
                    x[i + 4] = _mm256_blend_epi32::<0b1010_1010>(_mm256_srli_epi64::<32>(a), b);
                }
                for (i, x) in x.into_iter().enumerate() {
                    store2(&mut pairs[(first + 8 * i) * STRIDE + q], x);
                }
            }
        }
    }
}

/// Swaps bit `i + SHIFT` of register `r` with bit `i` of register `r + S`, for all `i` in `mask` and all `r` with bit
/// S clear.
#[inline]
#[target_feature(enable = "avx2")]
fn swap<const S: usize, const SHIFT: i32>(x: &mut [__m256i; 8], mask: u64) {
    let mask = _mm256_set1_epi64x(mask as i64);
    for r in 0..8 {
        if r & S == 0 {
            let (a, b) = (x[r], x[r + S]);
            let t = _mm256_and_si256(_mm256_xor_si256(_mm256_srli_epi64::<SHIFT>(a), b), mask);
            x[r + S] = _mm256_xor_si256(b, t);
            x[r] = _mm256_xor_si256(a, _mm256_slli_epi64::<SHIFT>(t));
        }
    }
}

/// [`crate::ggm::half::add_at`].
#[target_feature(enable = "avx2")]
pub(super) fn add_at(nodes: &mut [Block], at: u64, by: Block) {
    let (at, by) = (_mm_set1_epi64x(at as i64), load(&by));
    let mut index = _mm_setzero_si128();
    for node in nodes {
        let there = _mm_and_si128(_mm_cmpeq_epi64(index, at), by);
        store(node, _mm_xor_si128(load(node), there));
        index = _mm_add_epi64(index, _mm_set1_epi64x(1));
    }
}

/// Adds to `out` the entries of `table` whose indices `stream` holds.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn add_code_word(table: &[Block; TABLE], stream: &[u8; INDEX_BYTES], out: &mut Block) {
    let entry = |index: u64| load(&table[usize::from(index as u16)]);
    let [a, b, c] = index_words(stream);
    let mut x = _mm_xor_si128(load(out), entry(a));
    let mut y = entry(a >> 16);
    for (word, shift) in [(a, 32), (b, 0), (b, 32), (c, 0)] {
        x = _mm_xor_si128(x, entry(word >> shift));
        y = _mm_xor_si128(y, entry(word >> (shift + 16)));
    }
    store(out, _mm_xor_si128(x, y));
}
