//! Vectors of eight words on AVX-512, for the backends in floating point and in integers.

use super::backend::Lanes;
use std::arch::x86_64::*;

/// Loads eight words.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load(lanes: &Lanes) -> __m512i {
    // SAFETY: eight words are 64 bytes, all readable through the reference; the load needs no alignment.
    unsafe { _mm512_loadu_si512(std::ptr::from_ref(lanes).cast()) }
}

/// The reverse of [`load`].
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store(lanes: &mut Lanes, x: __m512i) {
    // SAFETY: eight words are 64 bytes, all writable through the reference; the store needs no alignment.
    unsafe { _mm512_storeu_si512(std::ptr::from_mut(lanes).cast(), x) }
}

/// The word `x` in every lane.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn every(x: u64) -> __m512i {
    _mm512_set1_epi64(x as i64)
}

/// The eight doubles whose bits are the words `x`.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn doubles(x: __m512i) -> __m512d {
    _mm512_castsi512_pd(x)
}

/// The bits of eight doubles.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn words(x: __m512d) -> __m512i {
    _mm512_castpd_si512(x)
}

/// Transposes an 8 x 8 matrix of doubles: rows become columns.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
pub(super) fn transpose([v0, v1, v2, v3, v4, v5, v6, v7]: [__m512d; 8]) -> [__m512d; 8] {
    // Per 128-bit lane i: column 2i (even) or 2i + 1 (odd) of a pair of rows.
    let even = [
        _mm512_unpacklo_pd(v0, v1),
        _mm512_unpacklo_pd(v2, v3),
        _mm512_unpacklo_pd(v4, v5),
        _mm512_unpacklo_pd(v6, v7),
    ];
    let odd = [
        _mm512_unpackhi_pd(v0, v1),
        _mm512_unpackhi_pd(v2, v3),
        _mm512_unpackhi_pd(v4, v5),
        _mm512_unpackhi_pd(v6, v7),
    ];
    let ([c0, c2, c4, c6], [c1, c3, c5, c7]) = (transpose_lanes(even), transpose_lanes(odd));
    [c0, c1, c2, c3, c4, c5, c6, c7]
}

/// As [`transpose`], for a matrix of words.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
pub(super) fn transpose_words([v0, v1, v2, v3, v4, v5, v6, v7]: [__m512i; 8]) -> [__m512i; 8] {
    let [v0, v1, v2, v3] = [doubles(v0), doubles(v1), doubles(v2), doubles(v3)];
    let [v4, v5, v6, v7] = [doubles(v4), doubles(v5), doubles(v6), doubles(v7)];
    let [v0, v1, v2, v3, v4, v5, v6, v7] = transpose([v0, v1, v2, v3, v4, v5, v6, v7]);
    let [v0, v1, v2, v3] = [words(v0), words(v1), words(v2), words(v3)];
    [v0, v1, v2, v3, words(v4), words(v5), words(v6), words(v7)]
}

/// Transposes a 4 x 4 matrix of 128-bit lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn transpose_lanes([r0, r1, r2, r3]: [__m512d; 4]) -> [__m512d; 4] {
    // Lanes 0, 2 and lanes 1, 3 of two rows each.
    let (even01, even23) = (_mm512_shuffle_f64x2::<0x88>(r0, r1), _mm512_shuffle_f64x2::<0x88>(r2, r3));
    let (odd01, odd23) = (_mm512_shuffle_f64x2::<0xdd>(r0, r1), _mm512_shuffle_f64x2::<0xdd>(r2, r3));
    [
        _mm512_shuffle_f64x2::<0x88>(even01, even23),
        _mm512_shuffle_f64x2::<0x88>(odd01, odd23),
        _mm512_shuffle_f64x2::<0xdd>(even01, even23),
        _mm512_shuffle_f64x2::<0xdd>(odd01, odd23),
    ]
}
