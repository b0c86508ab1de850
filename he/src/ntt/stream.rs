//! Stores past the caches, for what is read much later.
//!
//! A plain store reads the line that it changes. These write whole lines, a vector of 64 bytes at a time or two of 32
//! one after the other, and leave the caches to what is read again soon.

use super::backend::Lanes;
use std::arch::x86_64::*;

/// Stores past the caches. When it is dropped, other threads see what was stored.
pub(super) struct Stream(());

impl Stream {
    /// Begins. The instruction set is that of [`Drop`], which cannot ask for any.
    #[target_feature(enable = "sse")]
    pub(super) fn new() -> Self {
        Stream(())
    }

    /// Stores eight words; past the caches if they are aligned.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn store(&self, to: &mut Lanes, x: __m512i) {
        let to: *mut __m512i = std::ptr::from_mut(to).cast();
        // SAFETY: eight words are 64 bytes, all writable through the reference, and aligned where that is asked for.
        // Dropping `self` puts the fence that the first instruction wants before other accesses.
        unsafe { if to.is_aligned() { _mm512_stream_si512(to, x) } else { _mm512_storeu_si512(to, x) } }
    }

    /// Stores four words; past the caches if they are aligned.
    #[inline]
    #[target_feature(enable = "avx")]
    pub(super) fn store_half(&self, to: &mut [u64; 4], x: __m256d) {
        let to: *mut f64 = std::ptr::from_mut(to).cast();
        // SAFETY: four words are 32 bytes, all writable through the reference, and aligned where that is asked for.
        // Dropping `self` puts the fence that the first instruction wants before other accesses.
        unsafe { if to.cast::<__m256d>().is_aligned() { _mm256_stream_pd(to, x) } else { _mm256_storeu_pd(to, x) } }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: `new` was called on a processor with SSE.
        unsafe { _mm_sfence() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bits::cpu::{Cpu, Feature};

    /// Nine words from an aligned one on, so that both ways are taken.
    #[repr(align(64))]
    struct Words([u64; 9]);

    #[test]
    fn words_arrive_wherever_they_go() {
        #[target_feature(enable = "avx512f")]
        fn lanes(to: &mut Lanes) {
            Stream::new().store(to, _mm512_set_epi64(8, 7, 6, 5, 4, 3, 2, 1));
        }
        #[target_feature(enable = "avx")]
        fn half(to: &mut [u64; 4]) {
            Stream::new().store_half(to, _mm256_castsi256_pd(_mm256_set_epi64x(4, 3, 2, 1)));
        }
        for at in [0, 1] {
            let mut words = Words([0; 9]);
            if Cpu::get().has(Feature::Avx2) {
                // SAFETY: a processor with AVX2 has AVX.
                unsafe { half(words.0[at..].first_chunk_mut().unwrap()) }
                assert_eq!(words.0[at..at + 5], [1, 2, 3, 4, 0]);
            }
            if Cpu::get().has(Feature::Avx512) {
                // SAFETY: the processor has AVX-512 F.
                unsafe { lanes(words.0[at..].first_chunk_mut().unwrap()) }
                assert_eq!(words.0[at..at + 8], [1, 2, 3, 4, 5, 6, 7, 8]);
            }
        }
    }
}
