//! Products of words with integers on vectors.

use std::arch::x86_64::*;

use waggle_engine::{Narrow, Stored};

use super::{BESIDE, DEPTH};
use crate::matrix::{HALF, MOST};

/// Entries of a vector of AVX2, and of one of AVX-512.
const EIGHT: usize = 8;
const SIXTEEN: usize = 16;

/// How many bytes ahead of the entries of a stored line that are being multiplied others are prefetched. Lines follow
/// one another in memory.
const AHEAD: usize = 8192;

/// For each line, the inner product of the words (low, high) and the line, without up to seven entries at the end.
#[target_feature(enable = "avx2")]
pub(super) fn inner_avx2(low: &[i32], high: &[u32], lines: [&[i32]; BESIDE]) -> [u64; BESIDE] {
    let [a, b, c, d] = lines.map(|line| &line.as_chunks::<EIGHT>().0[..low.len() / EIGHT]);
    // There are registers for the sums of two lines.
    let [[a, b], [c, d]] = [[a, b], [c, d]].map(|lines| {
        // SAFETY: the array has the 32 bytes of a vector; the load needs no alignment.
        sums_avx2(low, high, |line, i| unsafe { _mm256_loadu_si256(lines[line][i].as_ptr().cast()) })
    });
    [a, b, c, d]
}

/// [`inner_avx2`] sixteen entries at a time; up to fifteen at the end are left out.
#[target_feature(enable = "avx512f")]
pub(super) fn inner_avx512(low: &[i32], high: &[u32], lines: [&[i32]; BESIDE]) -> [u64; BESIDE] {
    let lines = lines.map(|line| &line.as_chunks::<SIXTEEN>().0[..low.len() / SIXTEEN]);
    // SAFETY: the array has the 64 bytes of a vector; the load needs no alignment.
    sums_avx512(low, high, |line, i| unsafe { _mm512_loadu_si512(lines[line][i].as_ptr().cast()) })
}

/// The number of entries of a stored line that make whole vectors, and the inner product of the words (low, high)
/// with them.
#[target_feature(enable = "avx2,f16c")]
pub(super) fn inner_stored_avx2(low: &[i32], high: &[u32], line: &Stored) -> (usize, u64) {
    let [sum] = sums_avx2(low, high, |_, i| eight::<AHEAD>(line, i));
    (low.len() / EIGHT * EIGHT, sum)
}

/// [`inner_stored_avx2`] for vectors of sixteen.
#[target_feature(enable = "avx512f")]
pub(super) fn inner_stored_avx512(low: &[i32], high: &[u32], line: &Stored) -> (usize, u64) {
    let [sum] = sums_avx512(low, high, |_, i| sixteen::<AHEAD>(line, i));
    (low.len() / SIXTEEN * SIXTEEN, sum)
}

/// Rounds the entries of a stored line that make whole vectors, and returns how many.
#[target_feature(enable = "avx2,f16c")]
pub(super) fn round_stored_avx2(line: &Stored, out: &mut [i32]) -> usize {
    let (out, _) = out.as_chunks_mut::<EIGHT>();
    for (i, out) in out.iter_mut().enumerate() {
        // SAFETY: the array has the 32 bytes of a vector; the store needs no alignment.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), eight::<0>(line, i)) };
    }
    EIGHT * out.len()
}

/// [`round_stored_avx2`] for vectors of sixteen.
#[target_feature(enable = "avx512f")]
pub(super) fn round_stored_avx512(line: &Stored, out: &mut [i32]) -> usize {
    let (out, _) = out.as_chunks_mut::<SIXTEEN>();
    for (i, out) in out.iter_mut().enumerate() {
        // SAFETY: the array has the 64 bytes of a vector; the store needs no alignment.
        unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), sixteen::<0>(line, i)) };
    }
    SIXTEEN * out.len()
}

/// Returns `numbers`. Before, prefetches what lies `AHEAD` bytes behind them, unless `AHEAD` is 0.
#[inline(always)]
fn fetch<T, const AHEAD: usize>(numbers: &T) -> &T {
    if AHEAD > 0 {
        let there = std::ptr::from_ref(numbers).cast::<i8>().wrapping_add(AHEAD);
        // SAFETY: every processor of this architecture has the instruction, and no address makes it fail.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(there) };
    }
    numbers
}

/// The entries 8 i to 8 i + 7 of a line: round(w factor) for each stored number w, as in [`crate::matrix`].
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn eight<const AHEAD: usize>(line: &Stored, i: usize) -> __m256i {
    let load = |numbers: &[[u8; 2]]| {
        let bytes = fetch::<_, AHEAD>(&numbers.as_chunks::<EIGHT>().0[i]);
        // SAFETY: the array has the 16 bytes of a vector; the load needs no alignment.
        unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
    };
    let mut w = match line.numbers {
        Narrow::F16(numbers) => _mm256_cvtph_ps(load(numbers)),
        Narrow::Bf16(numbers) => _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(load(numbers)))),
        Narrow::I8(numbers, scale) => {
            let bytes = fetch::<_, AHEAD>(&numbers.as_chunks::<EIGHT>().0[i]);
            // SAFETY: the array has the 8 bytes that are loaded; the load needs no alignment.
            let bytes = unsafe { _mm_loadl_epi64(bytes.as_ptr().cast()) };
            _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), _mm256_set1_ps(scale))
        }
    };
    if let Some(gains) = line.gains {
        // SAFETY: the array has the 32 bytes of a vector; the load needs no alignment.
        w = _mm256_mul_ps(w, unsafe { _mm256_loadu_ps(gains.as_chunks::<EIGHT>().0[i].as_ptr()) });
    }
    w = _mm256_mul_ps(w, _mm256_set1_ps(line.factor));
    // Where one operand is no number, the result is the second.
    w = _mm256_min_ps(_mm256_max_ps(w, _mm256_set1_ps(-MOST)), _mm256_set1_ps(MOST));
    let half = _mm256_or_ps(_mm256_and_ps(w, _mm256_set1_ps(-0.0)), _mm256_set1_ps(HALF));
    _mm256_cvttps_epi32(_mm256_add_ps(w, half))
}

/// [`eight`] for sixteen entries.
#[inline]
#[target_feature(enable = "avx512f")]
fn sixteen<const AHEAD: usize>(line: &Stored, i: usize) -> __m512i {
    let load = |numbers: &[[u8; 2]]| {
        let bytes = fetch::<_, AHEAD>(&numbers.as_chunks::<SIXTEEN>().0[i]);
        // SAFETY: the array has the 32 bytes of a vector; the load needs no alignment.
        unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
    };
    let mut w = match line.numbers {
        Narrow::F16(numbers) => _mm512_cvtph_ps(load(numbers)),
        Narrow::Bf16(numbers) => _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(load(numbers)))),
        Narrow::I8(numbers, scale) => {
            let bytes = fetch::<_, AHEAD>(&numbers.as_chunks::<SIXTEEN>().0[i]);
            // SAFETY: the array has the 16 bytes of a vector; the load needs no alignment.
            let bytes = unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) };
            _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)), _mm512_set1_ps(scale))
        }
    };
    if let Some(gains) = line.gains {
        // SAFETY: the array has the 64 bytes of a vector; the load needs no alignment.
        w = _mm512_mul_ps(w, unsafe { _mm512_loadu_ps(gains.as_chunks::<SIXTEEN>().0[i].as_ptr()) });
    }
    w = _mm512_mul_ps(w, _mm512_set1_ps(line.factor));
    w = _mm512_min_ps(_mm512_max_ps(w, _mm512_set1_ps(-MOST)), _mm512_set1_ps(MOST));
    let [bits, half, sign] = [w, _mm512_set1_ps(HALF), _mm512_set1_ps(-0.0)].map(|x| _mm512_castps_si512(x));
    // half | (bits & sign)
    let half = _mm512_ternarylogic_epi32::<0xf8>(half, bits, sign);
    _mm512_cvttps_epi32(_mm512_add_ps(w, _mm512_castsi512_ps(half)))
}

/// For each of N lines, the inner product of the words (low, high) and the line, without up to seven entries at the
/// end. `entries` gives eight entries of a line.
#[inline]
#[target_feature(enable = "avx2")]
fn sums_avx2<const N: usize>(low: &[i32], high: &[u32], entries: impl Fn(usize, usize) -> __m256i) -> [u64; N] {
    let zero = _mm256_setzero_si256();
    let (mut even, mut odd, mut top) = ([zero; N], [zero; N], [zero; N]);
    let low = low.as_chunks::<EIGHT>().0;
    let high = &high.as_chunks::<EIGHT>().0[..low.len()];
    for i in 0..low.len() {
        let (low, high) = (&low[i], &high[i]);
        // SAFETY: each array has the 32 bytes of a vector; the loads need no alignment.
        let (l, h) = unsafe { (_mm256_loadu_si256(low.as_ptr().cast()), _mm256_loadu_si256(high.as_ptr().cast())) };
        let l_odd = _mm256_shuffle_epi32::<0xf5>(l);
        for j in 0..N {
            let w = entries(j, i);
            even[j] = _mm256_add_epi64(even[j], _mm256_mul_epi32(l, w));
            odd[j] = _mm256_add_epi64(odd[j], _mm256_mul_epi32(l_odd, _mm256_shuffle_epi32::<0xf5>(w)));
            top[j] = _mm256_add_epi32(top[j], _mm256_mullo_epi32(h, w));
        }
    }
    std::array::from_fn(|j| {
        let (mut sums, mut tops) = ([0u64; 4], [0u32; 8]);
        // SAFETY: both arrays have the 32 bytes of a vector; the stores need no alignment.
        unsafe {
            _mm256_storeu_si256(sums.as_mut_ptr().cast(), _mm256_add_epi64(even[j], odd[j]));
            _mm256_storeu_si256(tops.as_mut_ptr().cast(), top[j]);
        }
        let top = tops.into_iter().fold(0, u32::wrapping_add);
        sums.into_iter().fold(u64::from(top) << 32, u64::wrapping_add)
    })
}

/// [`sums_avx2`] for vectors of sixteen entries; up to fifteen at the end are left out.
#[inline]
#[target_feature(enable = "avx512f")]
fn sums_avx512<const N: usize>(low: &[i32], high: &[u32], entries: impl Fn(usize, usize) -> __m512i) -> [u64; N] {
    let zero = _mm512_setzero_si512();
    let (mut even, mut odd, mut top) = ([zero; N], [zero; N], [zero; N]);
    let low = low.as_chunks::<SIXTEEN>().0;
    let high = &high.as_chunks::<SIXTEEN>().0[..low.len()];
    for i in 0..low.len() {
        let (low, high) = (&low[i], &high[i]);
        // SAFETY: each array has the 64 bytes of a vector; the loads need no alignment.
        let (l, h) = unsafe { (_mm512_loadu_si512(low.as_ptr().cast()), _mm512_loadu_si512(high.as_ptr().cast())) };
        let l_odd = _mm512_srli_epi64::<32>(l);
        for j in 0..N {
            let w = entries(j, i);
            even[j] = _mm512_add_epi64(even[j], _mm512_mul_epi32(l, w));
            odd[j] = _mm512_add_epi64(odd[j], _mm512_mul_epi32(l_odd, _mm512_srli_epi64::<32>(w)));
            top[j] = _mm512_add_epi32(top[j], _mm512_mullo_epi32(h, w));
        }
    }
    std::array::from_fn(|j| {
        let sum = _mm512_reduce_add_epi64(_mm512_add_epi64(even[j], odd[j])) as u64;
        sum.wrapping_add(u64::from(_mm512_reduce_add_epi32(top[j]) as u32) << 32)
    })
}

/// In the first columns, adds `low[i] lines[i]` to `low_sums` and `high[i] lines[i]` to `high_sums`. All lines and
/// sums have the same length. Returns the number of these columns: all but up to seven.
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
