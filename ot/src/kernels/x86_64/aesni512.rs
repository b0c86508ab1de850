//! The kernels for AES-NI beside AVX-512: one block an instruction.

use std::arch::x86_64::*;

use super::aesni::one_block;
pub(super) use super::avx2::{encrypt, expand_key};
use super::avx2::{load, store, store_bytes};
pub(super) use super::avx512::transpose;
use super::avx512::{add_at, add_code_word};
use super::driver;
use super::lanes::Wide;
use crate::Block;

one_block!("aes,pclmulqdq,avx512f,avx512vl");

#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
fn xor_where(x: __m128i, mask: __m128i, y: __m128i) -> __m128i {
    _mm_ternarylogic_epi64::<0x78>(x, mask, y)
}

#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
fn cut(x: __m128i, y: __m128i, mask: __m128i) -> __m128i {
    _mm_ternarylogic_epi64::<0x28>(x, y, mask)
}

#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
fn sigma(x: __m128i) -> __m128i {
    // swapped ^ (x & high).
    let high = _mm_set_epi64x(-1, 0);
    _mm_ternarylogic_epi64::<0x78>(_mm_shuffle_epi32::<0b01_00_11_10>(x), x, high)
}

// Sixteen counters at once would not leave a register for the key. Ten blocks of indices keep the cipher busy and
// leave the rest of the window to the loads for the previous outputs.
driver::kernels!(
    One, "aes,pclmulqdq,avx512f,avx512bw,avx512dq,avx512vl", counters: 8, group: 8, drawn: 10, rows: [8, 8]
);
