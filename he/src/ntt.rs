//! Negacyclic number-theoretic transforms behind a small trait, so that another kernel can take their place.

use crate::error::HeError;
use crate::modulus::{MAX_MODULUS_BITS, Modulus};
use std::fmt::Debug;

/// Products of two residues that a lazy accumulator holds: `2^28 (2^50)^2 = 2^128`.
pub const MAX_LAZY_TERMS: usize = 1 << 28;

/// Arithmetic in `Z_p[X] / (X^N + 1)` for one prime. The order of the transformed coefficients is the backend's own.
pub trait NttBackend: Send + Sync + Debug {
    /// The prime p.
    fn modulus(&self) -> &Modulus;

    /// Coefficients in `[0, p)` to their transform in `[0, p)`, in place.
    fn fwd(&self, poly: &mut [u64]);

    /// The inverse of [`Self::fwd`], division by N included; `[0, p) -> [0, p)`.
    fn inv(&self, poly: &mut [u64]);

    /// `acc[i] += a[i] b[i]` without reduction; safe for [`MAX_LAZY_TERMS`] calls on one accumulator.
    fn mul_acc(&self, acc: &mut [u128], a: &[u64], b: &[u64]) {
        for ((acc, &a), &b) in acc.iter_mut().zip(a).zip(b) {
            *acc += u128::from(a) * u128::from(b);
        }
    }

    /// `out[i] = acc[i] mod p`.
    fn reduce_acc(&self, out: &mut [u64], acc: &[u128]) {
        let p = self.modulus();
        for (out, &acc) in out.iter_mut().zip(acc) {
            *out = p.reduce_wide(acc);
        }
    }

    /// `a[i] = a[i] b[i] mod p`.
    fn pointwise(&self, a: &mut [u64], b: &[u64]) {
        let p = self.modulus();
        for (a, &b) in a.iter_mut().zip(b) {
            *a = p.mul(*a, b);
        }
    }
}

/// Transforms of the crate `tfhe-ntt`; only these are taken from it. Its `mul_accumulate` may leave values above p.
#[derive(Debug)]
pub struct TfheNtt {
    modulus: Modulus,
    plan: tfhe_ntt::prime64::Plan,
}

impl TfheNtt {
    /// Refuses a modulus that is not a prime `= 1 mod 2n` of at most 50 bits.
    pub fn new(n: usize, p: u64) -> Result<Self, HeError> {
        let refused = HeError::Modulus { n, modulus: p };
        if p < 3 || p.is_multiple_of(2) || p >> MAX_MODULUS_BITS != 0 {
            return Err(refused);
        }
        let plan = tfhe_ntt::prime64::Plan::try_new(n, p).ok_or(refused)?;
        Ok(Self { modulus: Modulus::new(p), plan })
    }
}

impl NttBackend for TfheNtt {
    fn modulus(&self) -> &Modulus {
        &self.modulus
    }

    fn fwd(&self, poly: &mut [u64]) {
        self.plan.fwd(poly);
    }

    fn inv(&self, poly: &mut [u64]) {
        self.plan.inv(poly);
        self.plan.normalize(poly);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Schoolbook product in `Z_p[X] / (X^N + 1)`.
    fn negacyclic(p: u64, a: &[u64], b: &[u64]) -> Vec<u64> {
        let n = a.len();
        let mut out = vec![0i128; n];
        for (i, &x) in a.iter().enumerate() {
            for (j, &y) in b.iter().enumerate() {
                let term = (u128::from(x) * u128::from(y) % u128::from(p)) as i128;
                out[(i + j) % n] += if i + j < n { term } else { -term };
            }
        }
        out.into_iter().map(|c| c.rem_euclid(i128::from(p)) as u64).collect()
    }

    #[test]
    fn products_match_schoolbook() {
        for p in [0x3ffffff70001, 0x3ffffffdf0001] {
            let n = 256;
            let ntt = TfheNtt::new(n, p).unwrap();
            let random = |seed: u64| -> Vec<u64> {
                (0..n as u64).map(|i| (i + seed).wrapping_mul(0x9e3779b97f4a7c15).rotate_left(17) % p).collect()
            };
            for (a, b) in [(random(1), random(77)), (vec![p - 1; n], vec![p - 1; n]), (vec![0; n], random(5))] {
                let expected = negacyclic(p, &a, &b);
                let (mut fa, mut fb) = (a, b);
                ntt.fwd(&mut fa);
                ntt.fwd(&mut fb);
                assert!(fa.iter().chain(&fb).all(|&x| x < p));
                let mut acc = vec![0u128; n];
                ntt.mul_acc(&mut acc, &fa, &fb);
                let mut lazy = vec![0; n];
                ntt.reduce_acc(&mut lazy, &acc);
                ntt.pointwise(&mut fa, &fb);
                assert_eq!(fa, lazy);
                ntt.inv(&mut lazy);
                assert_eq!(lazy, expected);
            }
        }
    }

    #[test]
    fn unsuitable_moduli_are_refused() {
        for p in [0, 1, 2, 4096, 0x3ffffff70001 + 2, (1 << 51) - 129, 0x3ffffff70001 * 3] {
            assert_eq!(TfheNtt::new(4096, p).unwrap_err(), HeError::Modulus { n: 4096, modulus: p });
        }
    }
}
