//! The kernels for AES-NI beside AVX-512: one block an instruction.

use std::arch::x86_64::*;

use super::super::code::{CODE_WEIGHT, TABLE};
use super::super::leaves::{Sums, Words};
use super::super::planes::{self, Shape};
use super::super::transpose::{BATCH, TILES};
use super::avx2::{encrypt, load, store, store_bytes};
use super::avx512::{add_at, add_code_word};
use super::driver::{self, Wide};
use super::{Key, points};
use crate::Block;
use crate::ggm::half;

/// One block. A value proves AES-NI and AVX-512 F and VL.
#[derive(Clone, Copy)]
struct One(());

impl One {
    #[inline]
    #[target_feature(enable = "aes,avx512f,avx512vl")]
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
        fn xor_where(self, x: __m128i, mask: __m128i, y: __m128i) -> __m128i {
            _mm_ternarylogic_epi64::<0x78>(x, mask, y)
        }
        fn control(self, x: __m128i) -> __m128i {
            _mm_srai_epi32::<31>(_mm_slli_epi32::<31>(_mm_shuffle_epi32::<0>(x)))
        }
        fn store_bytes(self, to: &mut [[u8; 16]], x: __m128i) -> () { store_bytes(&mut to[0], x) }
        fn cut(self, x: __m128i, y: __m128i, mask: __m128i) -> __m128i {
            _mm_ternarylogic_epi64::<0x28>(x, y, mask)
        }
        fn xor_some(self, sum: __m128i, x: __m128i, _blocks: usize) -> __m128i { _mm_xor_si128(sum, x) }
        fn sum(self, x: __m128i) -> Block {
            let mut total = Block::ZERO;
            store(&mut total, x);
            total
        }
        fn sigma(self, x: __m128i) -> __m128i { sigma(x) }
        fn round(self, x: __m128i, key: __m128i) -> __m128i { _mm_aesenc_si128(x, key) }
        fn last_round(self, x: __m128i, key: __m128i) -> __m128i { _mm_aesenclast_si128(x, key) }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
fn sigma(x: __m128i) -> __m128i {
    // swapped ^ (x & high).
    let high = _mm_set_epi64x(-1, 0);
    _mm_ternarylogic_epi64::<0x78>(_mm_shuffle_epi32::<0b01_00_11_10>(x), x, high)
}

// Sixteen counters at once would not leave a register for the key. Ten blocks of indices keep the cipher busy and
// leave the rest of the window to the loads of the outputs before.
driver::kernels!(One, "aes,avx512f,avx512bw,avx512dq,avx512vl", counters: 8, group: 8, drawn: 10);
