//! The kernels for AES-NI beside AVX2: one block an instruction.

use std::arch::x86_64::*;

use super::avx2::{add_at, add_code_word, load, store, store_bytes};
pub(super) use super::avx2::{encrypt, expand_key, transpose};
use super::driver;
use super::lanes::Wide;
use crate::Block;

/// Vectors of one block for the instructions `$features`. The module that uses the macro must have functions
/// `xor_where`, `cut` and `sigma`. They are the methods of [`Wide`] with these names, in these instructions.
macro_rules! one_block {
    ($features:literal) => {
        /// One block. A value proves the features.
        #[derive(Clone, Copy)]
        struct One(());

        impl One {
            #[inline]
            #[target_feature(enable = $features)]
            fn new() -> Self {
                One(())
            }
        }

        impl Wide for One {
            type Vector = __m128i;
            const BLOCKS: usize = 1;

            #[inline(always)]
            fn zip(self, x: __m128i, y: __m128i) -> [__m128i; 2] {
                [x, y]
            }

            driver::methods! {
                fn zero(self) -> __m128i { _mm_setzero_si128() }
                fn splat(self, block: &Block) -> __m128i { load(block) }
                fn load(self, from: &[Block]) -> __m128i { load(&from[0]) }
                fn store(self, to: &mut [Block], x: __m128i) -> () { store(&mut to[0], x) }
                fn load_some(self, from: &[Block]) -> __m128i { load(&from[0]) }
                fn store_some(self, to: &mut [Block], x: __m128i) -> () { store(&mut to[0], x) }
                fn count(self, first: u64, high: u64) -> __m128i { _mm_set_epi64x(high as i64, first as i64) }
                fn low(self, by: u64) -> __m128i { _mm_set_epi64x(0, by as i64) }
                fn tweaks(self, first: u64) -> __m128i { _mm_set_epi64x(first as i64, 0) }
                fn high(self, by: u64) -> __m128i { _mm_set_epi64x(by as i64, 0) }
                fn add(self, x: __m128i, y: __m128i) -> __m128i { _mm_add_epi64(x, y) }
                fn add32(self, x: __m128i, y: __m128i) -> __m128i { _mm_add_epi32(x, y) }
                fn sub(self, x: __m128i, y: __m128i) -> __m128i { _mm_sub_epi64(x, y) }
                fn sub32(self, x: __m128i, y: __m128i) -> __m128i { _mm_sub_epi32(x, y) }
                fn xor(self, x: __m128i, y: __m128i) -> __m128i { _mm_xor_si128(x, y) }
                fn xor_where(self, x: __m128i, mask: __m128i, y: __m128i) -> __m128i { xor_where(x, mask, y) }
                fn control(self, x: __m128i) -> __m128i {
                    _mm_srai_epi32::<31>(_mm_slli_epi32::<31>(_mm_shuffle_epi32::<0>(x)))
                }
                fn store_bytes(self, to: &mut [[u8; 16]], x: __m128i) -> () { store_bytes(&mut to[0], x) }
                fn cut(self, x: __m128i, y: __m128i, mask: __m128i) -> __m128i { cut(x, y, mask) }
                fn xor_some(self, sum: __m128i, x: __m128i, _blocks: usize) -> __m128i { _mm_xor_si128(sum, x) }
                fn sum(self, x: __m128i) -> Block {
                    let mut total = Block::ZERO;
                    store(&mut total, x);
                    total
                }
                fn sigma(self, x: __m128i) -> __m128i { sigma(x) }
                fn product(self, x: __m128i, y: __m128i) -> [__m128i; 3] {
                    let cross = _mm_xor_si128(_mm_clmulepi64_si128::<0x01>(x, y), _mm_clmulepi64_si128::<0x10>(x, y));
                    [_mm_clmulepi64_si128::<0x00>(x, y), cross, _mm_clmulepi64_si128::<0x11>(x, y)]
                }
                fn round(self, x: __m128i, key: __m128i) -> __m128i { _mm_aesenc_si128(x, key) }
                fn last_round(self, x: __m128i, key: __m128i) -> __m128i { _mm_aesenclast_si128(x, key) }
            }
        }
    };
}
pub(super) use one_block;

one_block!("aes,pclmulqdq,avx2");

#[inline]
#[target_feature(enable = "avx2")]
fn xor_where(x: __m128i, mask: __m128i, y: __m128i) -> __m128i {
    _mm_xor_si128(x, _mm_and_si128(mask, y))
}

#[inline]
#[target_feature(enable = "avx2")]
fn cut(x: __m128i, y: __m128i, mask: __m128i) -> __m128i {
    _mm_and_si128(_mm_xor_si128(x, y), mask)
}

#[inline]
#[target_feature(enable = "avx2")]
fn sigma(x: __m128i) -> __m128i {
    // swapped ^ (x & high).
    let high = _mm_set_epi64x(-1, 0);
    _mm_xor_si128(_mm_shuffle_epi32::<0b01_00_11_10>(x), _mm_and_si128(x, high))
}

// Sixteen counters at once would not leave a register for the key. Ten blocks of indices keep the cipher busy and
// leave the rest of the window to the loads for the previous outputs.
driver::kernels!(One, "aes,pclmulqdq,avx2", counters: 8, group: 8, drawn: 10, rows: [8, 8]);
