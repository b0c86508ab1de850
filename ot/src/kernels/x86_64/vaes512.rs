//! The kernels for VAES beside AVX-512: four blocks an instruction.

use std::arch::x86_64::*;

pub(super) use super::avx2::{encrypt, expand_key};
use super::avx2::{load, store};
pub(super) use super::avx512::transpose;
use super::avx512::{add_at, add_code_word, load4, store4};
use super::driver;
use super::lanes::Wide;
use crate::Block;

/// Four blocks. A value proves VAES, VPCLMULQDQ and AVX-512 F, DQ and VL.
#[derive(Clone, Copy)]
struct Four(());

impl Four {
    #[inline]
    #[target_feature(enable = "vaes,vpclmulqdq,avx512f,avx512dq,avx512vl")]
    fn new() -> Self {
        Four(())
    }
}

impl Wide for Four {
    type Vector = __m512i;
    const BLOCKS: usize = 4;

    driver::methods! {
        fn zero(self) -> __m512i { _mm512_setzero_si512() }
        fn splat(self, block: &Block) -> __m512i { _mm512_broadcast_i32x4(load(block)) }
        fn load(self, from: &[Block]) -> __m512i { load4(&from.as_chunks().0[0]) }
        fn store(self, to: &mut [Block], x: __m512i) -> () { store4(&mut to.as_chunks_mut().0[0], x) }
        fn load_some(self, from: &[Block]) -> __m512i { load_some(from) }
        fn store_some(self, to: &mut [Block], x: __m512i) -> () { store_some(to, x) }
        fn count(self, first: u64, high: u64) -> __m512i {
            let start = _mm512_mask_set1_epi64(_mm512_set1_epi64(high as i64), 0b0101_0101, first as i64);
            _mm512_add_epi64(start, _mm512_set_epi64(0, 3, 0, 2, 0, 1, 0, 0))
        }
        fn low(self, by: u64) -> __m512i { _mm512_maskz_set1_epi64(0b0101_0101, by as i64) }
        fn tweaks(self, first: u64) -> __m512i {
            let start = _mm512_maskz_set1_epi64(0b1010_1010, first as i64);
            _mm512_add_epi64(start, _mm512_set_epi64(3, 0, 2, 0, 1, 0, 0, 0))
        }
        fn high(self, by: u64) -> __m512i { _mm512_maskz_set1_epi64(0b1010_1010, by as i64) }
        fn add(self, x: __m512i, y: __m512i) -> __m512i { _mm512_add_epi64(x, y) }
        fn add32(self, x: __m512i, y: __m512i) -> __m512i { _mm512_add_epi32(x, y) }
        fn sub(self, x: __m512i, y: __m512i) -> __m512i { _mm512_sub_epi64(x, y) }
        fn sub32(self, x: __m512i, y: __m512i) -> __m512i { _mm512_sub_epi32(x, y) }
        fn xor(self, x: __m512i, y: __m512i) -> __m512i { _mm512_xor_si512(x, y) }
        fn xor_where(self, x: __m512i, mask: __m512i, y: __m512i) -> __m512i {
            _mm512_ternarylogic_epi64::<0x78>(x, mask, y)
        }
        fn control(self, x: __m512i) -> __m512i {
            _mm512_srai_epi32::<31>(_mm512_slli_epi32::<31>(_mm512_shuffle_epi32::<0>(x)))
        }
        fn zip(self, x: __m512i, y: __m512i) -> [__m512i; 2] { zip(x, y) }
        fn store_bytes(self, to: &mut [[u8; 16]], x: __m512i) -> () { store_bytes(&mut to.as_chunks_mut().0[0], x) }
        fn cut(self, x: __m512i, y: __m512i, mask: __m512i) -> __m512i {
            _mm512_ternarylogic_epi64::<0x28>(x, y, mask)
        }
        fn xor_some(self, sum: __m512i, x: __m512i, blocks: usize) -> __m512i {
            _mm512_mask_xor_epi64(sum, words(blocks), sum, x)
        }
        fn sum(self, x: __m512i) -> Block { sum(x) }
        fn sigma(self, x: __m512i) -> __m512i { sigma(x) }
        fn product(self, x: __m512i, y: __m512i) -> [__m512i; 3] {
            let cross =
                _mm512_xor_si512(_mm512_clmulepi64_epi128::<0x01>(x, y), _mm512_clmulepi64_epi128::<0x10>(x, y));
            [_mm512_clmulepi64_epi128::<0x00>(x, y), cross, _mm512_clmulepi64_epi128::<0x11>(x, y)]
        }
        fn round(self, x: __m512i, key: __m512i) -> __m512i { _mm512_aesenc_epi128(x, key) }
        fn last_round(self, x: __m512i, key: __m512i) -> __m512i { _mm512_aesenclast_epi128(x, key) }
    }
}

/// Mask of the 64-bit words of the first `blocks` blocks of a vector, for at most four blocks.
#[inline]
fn words(blocks: usize) -> __mmask8 {
    debug_assert!(blocks <= 4);
    ((1_u32 << (2 * blocks)) - 1) as __mmask8
}

/// Loads up to four blocks, and zeros in the other places.
#[inline]
#[target_feature(enable = "avx512f")]
fn load_some(blocks: &[Block]) -> __m512i {
    assert!(blocks.len() <= 4);
    // SAFETY: the load touches the words of the mask alone: those of `blocks`.
    unsafe { _mm512_maskz_loadu_epi64(words(blocks.len()), blocks.as_ptr().cast()) }
}

/// Stores the first blocks of `value`, as many as `blocks` has room for, at most four.
#[inline]
#[target_feature(enable = "avx512f")]
fn store_some(blocks: &mut [Block], value: __m512i) {
    assert!(blocks.len() <= 4);
    // SAFETY: the store touches the words of the mask alone: those of `blocks`. Any bytes are Blocks.
    unsafe { _mm512_mask_storeu_epi64(blocks.as_mut_ptr().cast(), words(blocks.len()), value) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512vl")]
fn sum(x: __m512i) -> Block {
    let sum = _mm256_xor_si256(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64::<1>(x));
    let mut total = Block::ZERO;
    store(&mut total, _mm_xor_si128(_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum)));
    total
}

#[inline]
#[target_feature(enable = "avx512f")]
fn zip(x: __m512i, y: __m512i) -> [__m512i; 2] {
    let low = _mm512_permutex2var_epi64(x, _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0), y);
    let high = _mm512_permutex2var_epi64(x, _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4), y);
    [low, high]
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store_bytes(to: &mut [[u8; 16]; 4], x: __m512i) {
    // SAFETY: there is room for 64 bytes; the store needs no alignment.
    unsafe { _mm512_storeu_si512(std::ptr::from_mut(to).cast(), x) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn sigma(x: __m512i) -> __m512i {
    // swapped ^ (x & high).
    let high = _mm512_set_epi64(-1, 0, -1, 0, -1, 0, -1, 0);
    _mm512_ternarylogic_epi64::<0x78>(_mm512_shuffle_epi32::<0b01_00_11_10>(x), x, high)
}

// All counters of a leaf are four vectors. The counters of the next leaf, which does not depend on this one, are in
// flight at the same time.
driver::kernels!(
    Four, "aes,vaes,vpclmulqdq,avx512f,avx512bw,avx512dq,avx512vl", counters: 4, group: 16, drawn: 5, rows: [8, 2]
);
