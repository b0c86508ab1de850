//! The kernels for VAES beside AVX2: two blocks an instruction.

use std::arch::x86_64::*;

use super::avx2::{add_at, add_code_word, load, load2, store, store2};
pub(super) use super::avx2::{encrypt, expand_key, transpose};
use super::driver;
use super::lanes::Wide;
use crate::Block;

/// Two blocks. A value proves VAES, VPCLMULQDQ and AVX2.
#[derive(Clone, Copy)]
struct Two(());

impl Two {
    #[inline]
    #[target_feature(enable = "vaes,vpclmulqdq,avx2")]
    fn new() -> Self {
        Two(())
    }
}

impl Wide for Two {
    type Vector = __m256i;
    const BLOCKS: usize = 2;

    driver::methods! {
        fn zero(self) -> __m256i { _mm256_setzero_si256() }
        fn splat(self, block: &Block) -> __m256i { _mm256_broadcastsi128_si256(load(block)) }
        fn load(self, from: &[Block]) -> __m256i { load2(&from.as_chunks().0[0]) }
        fn store(self, to: &mut [Block], x: __m256i) -> () { store2(&mut to.as_chunks_mut().0[0], x) }
        fn load_some(self, from: &[Block]) -> __m256i {
            match from {
                [block] => _mm256_zextsi128_si256(load(block)),
                _ => load2(&from.as_chunks().0[0]),
            }
        }
        fn store_some(self, to: &mut [Block], x: __m256i) -> () {
            match to {
                [block] => store(block, _mm256_castsi256_si128(x)),
                _ => store2(&mut to.as_chunks_mut().0[0], x),
            }
        }
        fn count(self, first: u64, high: u64) -> __m256i {
            _mm256_set_epi64x(high as i64, first.wrapping_add(1) as i64, high as i64, first as i64)
        }
        fn low(self, by: u64) -> __m256i { _mm256_set_epi64x(0, by as i64, 0, by as i64) }
        fn tweaks(self, first: u64) -> __m256i {
            _mm256_set_epi64x(first.wrapping_add(1) as i64, 0, first as i64, 0)
        }
        fn high(self, by: u64) -> __m256i { _mm256_set_epi64x(by as i64, 0, by as i64, 0) }
        fn add(self, x: __m256i, y: __m256i) -> __m256i { _mm256_add_epi64(x, y) }
        fn add32(self, x: __m256i, y: __m256i) -> __m256i { _mm256_add_epi32(x, y) }
        fn sub(self, x: __m256i, y: __m256i) -> __m256i { _mm256_sub_epi64(x, y) }
        fn sub32(self, x: __m256i, y: __m256i) -> __m256i { _mm256_sub_epi32(x, y) }
        fn xor(self, x: __m256i, y: __m256i) -> __m256i { _mm256_xor_si256(x, y) }
        fn xor_where(self, x: __m256i, mask: __m256i, y: __m256i) -> __m256i {
            _mm256_xor_si256(x, _mm256_and_si256(mask, y))
        }
        fn control(self, x: __m256i) -> __m256i {
            _mm256_srai_epi32::<31>(_mm256_slli_epi32::<31>(_mm256_shuffle_epi32::<0>(x)))
        }
        fn zip(self, x: __m256i, y: __m256i) -> [__m256i; 2] {
            [_mm256_permute2x128_si256::<0x20>(x, y), _mm256_permute2x128_si256::<0x31>(x, y)]
        }
        fn store_bytes(self, to: &mut [[u8; 16]], x: __m256i) -> () { store_bytes(&mut to.as_chunks_mut().0[0], x) }
        fn cut(self, x: __m256i, y: __m256i, mask: __m256i) -> __m256i {
            _mm256_and_si256(_mm256_xor_si256(x, y), mask)
        }
        fn xor_some(self, sum: __m256i, x: __m256i, blocks: usize) -> __m256i {
            match blocks {
                1 => _mm256_xor_si256(sum, _mm256_zextsi128_si256(_mm256_castsi256_si128(x))),
                _ => _mm256_xor_si256(sum, x),
            }
        }
        fn sum(self, x: __m256i) -> Block {
            let mut total = Block::ZERO;
            store(&mut total, _mm_xor_si128(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x)));
            total
        }
        fn sigma(self, x: __m256i) -> __m256i { sigma(x) }
        fn product(self, x: __m256i, y: __m256i) -> [__m256i; 3] {
            let cross =
                _mm256_xor_si256(_mm256_clmulepi64_epi128::<0x01>(x, y), _mm256_clmulepi64_epi128::<0x10>(x, y));
            [_mm256_clmulepi64_epi128::<0x00>(x, y), cross, _mm256_clmulepi64_epi128::<0x11>(x, y)]
        }
        fn round(self, x: __m256i, key: __m256i) -> __m256i { _mm256_aesenc_epi128(x, key) }
        fn last_round(self, x: __m256i, key: __m256i) -> __m256i { _mm256_aesenclast_epi128(x, key) }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store_bytes(to: &mut [[u8; 16]; 2], x: __m256i) {
    // SAFETY: there is room for 32 bytes; the store needs no alignment.
    unsafe { _mm256_storeu_si256(std::ptr::from_mut(to).cast(), x) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn sigma(x: __m256i) -> __m256i {
    // swapped ^ (x & high).
    let high = _mm256_set_epi64x(-1, 0, -1, 0);
    _mm256_xor_si256(_mm256_shuffle_epi32::<0b01_00_11_10>(x), _mm256_and_si256(x, high))
}

driver::kernels!(Two, "aes,vaes,vpclmulqdq,avx2", counters: 8, group: 16, drawn: 10, rows: [8, 4]);
