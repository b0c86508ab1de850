//! Inner products modulo 2^32 and 2^64.

use ot::dpf::Lane;

/// A lane that inner products are taken in.
pub(super) trait Dot: Lane + Into<u64> {
    /// The inner product modulo the lane's range, as a word.
    fn dot(a: &[Self], b: &[Self]) -> u64;
}

macro_rules! dot {
    ($lane:ty, $portable:ident, $avx2:ident, $avx512:ident) => {
        impl Dot for $lane {
            fn dot(a: &[$lane], b: &[$lane]) -> u64 {
                #[cfg(target_arch = "x86_64")]
                {
                    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512dq") {
                        // SAFETY: the features were detected just now.
                        return unsafe { $avx512(a, b) }.into();
                    }
                    if is_x86_feature_detected!("avx2") {
                        // SAFETY: the feature was detected just now.
                        return unsafe { $avx2(a, b) }.into();
                    }
                }
                $portable(a, b).into()
            }
        }

        /// The portable code, compiled for wider registers.
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512dq")]
        fn $avx512(a: &[$lane], b: &[$lane]) -> $lane {
            $portable(a, b)
        }

        /// The portable code, compiled for wider registers.
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2")]
        fn $avx2(a: &[$lane], b: &[$lane]) -> $lane {
            $portable(a, b)
        }

        #[inline(always)]
        fn $portable(a: &[$lane], b: &[$lane]) -> $lane {
            a.iter().zip(b).fold(0, |sum, (a, b)| sum.wrapping_add(a.wrapping_mul(*b)))
        }
    };
}

dot!(u32, portable32, avx2_32, avx512_32);
dot!(u64, portable64, avx2_64, avx512_64);

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
            let narrow = |x: &[u64]| -> Vec<u32> { x.iter().map(|&x| x as u32).collect() };
            let (a32, b32) = (narrow(&a), narrow(&b));
            assert_eq!((u64::dot(&a, &b), portable64(&a, &b)), (want as u64, want as u64));
            assert_eq!((u32::dot(&a32, &b32), portable32(&a32, &b32)), (u64::from(want as u32), want as u32));
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") {
                // SAFETY: the feature was detected just now.
                let got = unsafe { (avx2_64(&a, &b), avx2_32(&a32, &b32)) };
                assert_eq!(got, (want as u64, want as u32));
            }
        }
    }
}
