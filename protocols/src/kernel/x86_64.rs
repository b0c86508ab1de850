//! Products of words with integers on vectors.

use std::arch::x86_64::*;

use super::DEPTH;

/// Entries of a vector of AVX2, and of one of AVX-512.
const EIGHT: usize = 8;
const SIXTEEN: usize = 16;

/// The sums of `low[i] line[i]` modulo 2^64 and of `high[i] line[i]` modulo 2^32, without up to seven at the end.
#[target_feature(enable = "avx2")]
pub(super) fn inner_avx2(low: &[i32], high: &[u32], line: &[i32]) -> (u64, u32) {
    let (mut even, mut odd, mut top) = (_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256());
    let parts = low.as_chunks::<EIGHT>().0.iter().zip(high.as_chunks::<EIGHT>().0).zip(line.as_chunks::<EIGHT>().0);
    for ((low, high), line) in parts {
        // SAFETY: each array has the 32 bytes of a vector; the loads need no alignment.
        let (l, h, w) = unsafe {
            (
                _mm256_loadu_si256(low.as_ptr().cast()),
                _mm256_loadu_si256(high.as_ptr().cast()),
                _mm256_loadu_si256(line.as_ptr().cast()),
            )
        };
        even = _mm256_add_epi64(even, _mm256_mul_epi32(l, w));
        odd = _mm256_add_epi64(odd, _mm256_mul_epi32(_mm256_srli_epi64::<32>(l), _mm256_srli_epi64::<32>(w)));
        top = _mm256_add_epi32(top, _mm256_mullo_epi32(h, w));
    }
    let (mut sums, mut tops) = ([0u64; 4], [0u32; 8]);
    // SAFETY: both arrays have the 32 bytes of a vector; the stores need no alignment.
    unsafe {
        _mm256_storeu_si256(sums.as_mut_ptr().cast(), _mm256_add_epi64(even, odd));
        _mm256_storeu_si256(tops.as_mut_ptr().cast(), top);
    }
    (sums.into_iter().fold(0, u64::wrapping_add), tops.into_iter().fold(0, u32::wrapping_add))
}

/// [`inner_avx2`] sixteen entries at a time; up to fifteen at the end are left out.
#[target_feature(enable = "avx512f")]
pub(super) fn inner_avx512(low: &[i32], high: &[u32], line: &[i32]) -> (u64, u32) {
    let (mut even, mut odd, mut top) = (_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512());
    let parts =
        low.as_chunks::<SIXTEEN>().0.iter().zip(high.as_chunks::<SIXTEEN>().0).zip(line.as_chunks::<SIXTEEN>().0);
    for ((low, high), line) in parts {
        // SAFETY: each array has the 64 bytes of a vector; the loads need no alignment.
        let (l, h, w) = unsafe {
            (
                _mm512_loadu_si512(low.as_ptr().cast()),
                _mm512_loadu_si512(high.as_ptr().cast()),
                _mm512_loadu_si512(line.as_ptr().cast()),
            )
        };
        even = _mm512_add_epi64(even, _mm512_mul_epi32(l, w));
        odd = _mm512_add_epi64(odd, _mm512_mul_epi32(_mm512_srli_epi64::<32>(l), _mm512_srli_epi64::<32>(w)));
        top = _mm512_add_epi32(top, _mm512_mullo_epi32(h, w));
    }
    let sum = _mm512_reduce_add_epi64(_mm512_add_epi64(even, odd)) as u64;
    (sum, _mm512_reduce_add_epi32(top) as u32)
}

/// Adds `low[i] lines[i]` to `low_sums` and `high[i] lines[i]` to `high_sums`, which are as long as every line, in
/// the first columns. Returns how many: all but up to seven.
#[target_feature(enable = "avx2")]
pub(super) fn scale_lines_avx2(
    low: &[i32; DEPTH],
    high: &[u32; DEPTH],
    lines: &[&[i32]; DEPTH],
    low_sums: &mut [u64],
    high_sums: &mut [u32],
) -> usize {
    let lows = low.map(|l| _mm256_set1_epi64x(i64::from(l)));
    let highs = high.map(|h| _mm256_set1_epi32(h as i32));
    let lines = lines.map(|line| line.as_chunks::<EIGHT>().0);
    let (low_sums, _) = low_sums.as_chunks_mut::<EIGHT>();
    let (high_sums, _) = high_sums.as_chunks_mut::<EIGHT>();
    let count = low_sums.len();
    for (c, (low_sums, high_sums)) in low_sums.iter_mut().zip(high_sums).enumerate() {
        // SAFETY: the array has the 32 bytes of a vector; the load needs no alignment.
        let mut top = unsafe { _mm256_loadu_si256(high_sums.as_ptr().cast()) };
        let (mut even, mut odd) = (_mm256_setzero_si256(), _mm256_setzero_si256());
        for i in 0..DEPTH {
            // SAFETY: the same.
            let w = unsafe { _mm256_loadu_si256(lines[i][c].as_ptr().cast()) };
            even = _mm256_add_epi64(even, _mm256_mul_epi32(w, lows[i]));
            odd = _mm256_add_epi64(odd, _mm256_mul_epi32(_mm256_srli_epi64::<32>(w), lows[i]));
            top = _mm256_add_epi32(top, _mm256_mullo_epi32(w, highs[i]));
        }
        // Columns 0, 1, 4, 5 and 2, 3, 6, 7; then in order.
        let (outer, inner) = (_mm256_unpacklo_epi64(even, odd), _mm256_unpackhi_epi64(even, odd));
        let first = _mm256_permute2x128_si256::<0x20>(outer, inner);
        let second = _mm256_permute2x128_si256::<0x31>(outer, inner);
        // SAFETY: the arrays have the bytes of one and of two vectors; loads and stores need no alignment.
        unsafe {
            _mm256_storeu_si256(high_sums.as_mut_ptr().cast(), top);
            let sums: *mut __m256i = low_sums.as_mut_ptr().cast();
            _mm256_storeu_si256(sums, _mm256_add_epi64(_mm256_loadu_si256(sums), first));
            let sums = sums.add(1);
            _mm256_storeu_si256(sums, _mm256_add_epi64(_mm256_loadu_si256(sums), second));
        }
    }
    count * EIGHT
}
