//! Inner products modulo 2^64.

use waggle_bits::cpu::Family;

use crate::kernel::{at_level, family};

/// The inner product of `a` and `b`.
pub(super) fn dot(a: &[u64], b: &[u64]) -> u64 {
    dot_on(family(), a, b)
}

fn dot_on(family: Family, a: &[u64], b: &[u64]) -> u64 {
    at_level!(family, |a: &[u64], b: &[u64]| -> u64 {
        a.iter().zip(b).fold(0, |sum, (a, b)| sum.wrapping_add(a.wrapping_mul(*b)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::families;

    /// All kernels agree with a sum of wide products.
    #[test]
    fn every_kernel_gives_the_inner_product() {
        for n in [0usize, 1, 7, 16, 33, 1024] {
            let word = |i: usize, k: u64| (i as u64 + 1).wrapping_mul(k).rotate_left(17) ^ k;
            let (a, b): (Vec<u64>, Vec<u64>) =
                (0..n).map(|i| (word(i, 0x9E37_79B9_7F4A_7C15), word(i, 0xD1B5_4A32_D192_ED03))).unzip();
            let want = a.iter().zip(&b).fold(0u128, |sum, (&a, &b)| sum.wrapping_add(u128::from(a) * u128::from(b)));
            families().for_each(|family| assert_eq!(dot_on(family, &a, &b), want as u64, "{family:?}"));
        }
    }
}
