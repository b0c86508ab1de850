//! Inner products modulo 2^64.

#[cfg(target_arch = "x86_64")]
use bits::cpu::{Cpu, Feature};

/// The inner product of `a` and `b`.
pub(super) fn dot(a: &[u64], b: &[u64]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        let cpu = Cpu::get();
        if cpu.has(Feature::Avx512) {
            // SAFETY: the processor has AVX-512 F and DQ.
            return unsafe { avx512(a, b) };
        }
        if cpu.has(Feature::Avx2) {
            // SAFETY: the processor has AVX2.
            return unsafe { avx2(a, b) };
        }
    }
    portable(a, b)
}

/// The portable code, compiled for wider registers.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq")]
fn avx512(a: &[u64], b: &[u64]) -> u64 {
    portable(a, b)
}

/// The portable code, compiled for wider registers.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn avx2(a: &[u64], b: &[u64]) -> u64 {
    portable(a, b)
}

#[inline(always)]
fn portable(a: &[u64], b: &[u64]) -> u64 {
    a.iter().zip(b).fold(0, |sum, (a, b)| sum.wrapping_add(a.wrapping_mul(*b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All kernels agree with a sum of wide products.
    #[test]
    fn every_kernel_gives_the_inner_product() {
        for n in [0usize, 1, 7, 16, 33, 1024] {
            let word = |i: usize, k: u64| (i as u64 + 1).wrapping_mul(k).rotate_left(17) ^ k;
            let (a, b): (Vec<u64>, Vec<u64>) =
                (0..n).map(|i| (word(i, 0x9E37_79B9_7F4A_7C15), word(i, 0xD1B5_4A32_D192_ED03))).unzip();
            let want = a.iter().zip(&b).fold(0u128, |sum, (&a, &b)| sum.wrapping_add(u128::from(a) * u128::from(b)));
            assert_eq!((dot(&a, &b), portable(&a, &b)), (want as u64, want as u64));
            #[cfg(target_arch = "x86_64")]
            if Cpu::get().has(Feature::Avx2) {
                // SAFETY: the processor has AVX2.
                assert_eq!(unsafe { avx2(&a, &b) }, want as u64);
            }
        }
    }
}
