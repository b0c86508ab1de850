//! The ring of a parameter set with its tables, and the conversions between `Z_{2^b}`, the residues and the torus.
//!
//! A polynomial modulo q is kept as its residues modulo the primes of q, its *limbs* (a residue number system). The
//! *torus* is `x / q mod 1`, held as a fraction of 128 bits: there ciphertexts of different moduli can be rounded and
//! compared.

use crate::error::HeError;
use crate::modulus::{Modulus, Shoup};
use crate::ntt::{self, NttBackend};
use crate::set::{ParamSet, SECURITY_TABLE};
use std::sync::OnceLock;

impl ParamSet {
    /// The tables of this set, built on first use and kept.
    pub fn params(self) -> &'static Params {
        static BUILT: [OnceLock<Params>; ParamSet::ALL.len()] = [const { OnceLock::new() }; ParamSet::ALL.len()];
        BUILT[self as usize].get_or_init(|| {
            // The sets are constants, and a test builds every one.
            Params::new(self.degree(), self.primes()).expect("a standard parameter set is valid")
        })
    }

    /// The tables of this set, for a key of the set `got`. Errors: [`HeError::KeySet`] if they differ.
    pub(crate) fn check(self, got: ParamSet) -> Result<&'static Params, HeError> {
        if self == got { Ok(self.params()) } else { Err(HeError::KeySet { needed: self, got }) }
    }
}

/// One prime of the modulus with its transform.
#[derive(Debug)]
pub struct Limb {
    ntt: Box<dyn NttBackend>,
    /// A copy of the backend's modulus. Loops over coefficients reach it without a virtual call.
    modulus: Modulus,
    /// `(q / p)^-1 mod p`.
    cofactor_inverse: Shoup,
    /// `floor(2^128 / p)`, and the next 64 bits of `2^128 / p`.
    torus: (u128, u64),
}

impl Limb {
    /// The transform and the pointwise arithmetic of this prime.
    pub fn ntt(&self) -> &dyn NttBackend {
        self.ntt.as_ref()
    }

    /// The prime.
    pub fn modulus(&self) -> &Modulus {
        &self.modulus
    }
}

/// Ring `Z_q[X] / (X^N + 1)` with `q` a product of primes, each with its transform tables.
#[derive(Debug)]
pub struct Params {
    n: usize,
    limbs: Vec<Limb>,
    /// `q mod 2^128`.
    q_low: u128,
}

impl Params {
    /// Builds tables for any degree and primes that [`SECURITY_TABLE`] covers, and refuses all others.
    pub fn new(n: usize, primes: &[u64]) -> Result<Self, HeError> {
        let (_, max_log_q) = *SECURITY_TABLE.iter().find(|row| row.0 == n).ok_or(HeError::Degree { n })?;
        let log_q = primes.iter().map(|p| 64 - p.leading_zeros()).sum();
        if log_q == 0 || log_q > max_log_q {
            return Err(HeError::Insecure { n, log_q, max_log_q });
        }
        Self::plaintext(n, primes)
    }

    /// Builds tables for plaintexts, which need no security.
    pub(crate) fn plaintext(n: usize, primes: &[u64]) -> Result<Self, HeError> {
        let mut limbs = Vec::with_capacity(primes.len());
        for (i, &p) in primes.iter().enumerate() {
            if primes[..i].contains(&p) {
                return Err(HeError::Modulus { n, modulus: p });
            }
            let ntt = ntt::best(n, p)?;
            let m = *ntt.modulus();
            let cofactor = primes.iter().filter(|&&o| o != p).fold(1, |acc, &o| m.mul(acc, m.reduce(o)));
            let p = u128::from(p);
            // p is odd, hence floor((2^128 - 1) / p) = floor(2^128 / p).
            let rest = (u128::MAX % p + 1) % p;
            let torus = (u128::MAX / p, ((rest << 64) / p) as u64);
            limbs.push(Limb { modulus: m, cofactor_inverse: m.shoup(m.inverse(cofactor)), torus, ntt });
        }
        let q_low = primes.iter().fold(1u128, |acc, &p| acc.wrapping_mul(u128::from(p)));
        Ok(Self { n, limbs, q_low })
    }

    /// Ring degree N.
    pub fn degree(&self) -> usize {
        self.n
    }

    /// The primes of the modulus.
    pub fn limbs(&self) -> &[Limb] {
        &self.limbs
    }

    /// Bits of q: the sum of the sizes of its primes.
    pub fn log_q(&self) -> u32 {
        self.limbs.iter().map(|l| l.modulus().bits()).sum()
    }

    /// Bytes of one polynomial on the wire. Each residue takes as many bits as its prime.
    pub fn poly_bytes(&self) -> usize {
        // N is a multiple of 8, so every limb fills whole bytes.
        self.n / 8 * self.log_q() as usize
    }

    /// The scale-up from `Z_{2^bits}` to `Z_q`, `1 <= bits <= 120`.
    pub(crate) fn lift(&self, bits: u32) -> Lift {
        debug_assert!((1..=120).contains(&bits));
        let limb = |l: &Limb| {
            let p = l.modulus();
            let half = p.pow(2, u64::from(bits) - 1);
            (half, p.shoup(p.inverse(p.pow(2, u64::from(bits)))))
        };
        Lift { bits, q_low: self.q_low, limbs: self.limbs.iter().map(limb).collect() }
    }

    /// `x / q mod 1` as a 128-bit fraction, from the residues of `x` (one per limb). The result is too small by less
    /// than [`torus_error`].
    #[inline(always)]
    pub(crate) fn torus(&self, residues: impl Iterator<Item = u64>) -> u128 {
        let mut sum = 0u128;
        for (l, x) in self.limbs.iter().zip(residues) {
            // x / q = sum_i z_i / p_i mod 1 with z_i = x (q / p_i)^-1 mod p_i (Chinese remainders).
            let z = l.modulus().mul_shoup(x, l.cofactor_inverse);
            let tail = (u128::from(z) * u128::from(l.torus.1)) >> 64;
            sum = sum.wrapping_add(u128::from(z).wrapping_mul(l.torus.0).wrapping_add(tail));
        }
        sum
    }
}

/// Bound on the error of [`Params::torus`] with `limbs` limbs: per limb, one unit of `2^-128` for the part of the
/// tail that is cut off, and less than one unit for the bits of `1 / p` beyond the tail.
pub(crate) fn torus_error(limbs: usize) -> f64 {
    2.0 * limbs as f64 * (-128f64).exp2()
}

/// The scale-up `x -> round(q x / 2^bits)`, with results as residues.
#[derive(Debug)]
pub(crate) struct Lift {
    bits: u32,
    q_low: u128,
    /// For each limb, `2^(bits-1) mod p` and `2^-bits mod p` for its prime p.
    limbs: Vec<(u64, Shoup)>,
}

impl Lift {
    /// The part of the computation that all limbs share: `d = (q x + 2^(bits-1)) mod 2^bits`.
    ///
    /// `round(q x / 2^bits) = (q x + 2^(bits-1) - d) / 2^bits` is an exact division, and modulo a prime factor of q
    /// the first term vanishes. `x` is taken modulo `2^bits`.
    #[inline(always)]
    pub(crate) fn remainder(&self, x: u128) -> u128 {
        let half = 1u128 << (self.bits - 1);
        self.q_low.wrapping_mul(x).wrapping_add(half) & (u128::MAX >> (128 - self.bits))
    }

    /// Whether the step from `round(q x / 2^bits)` to the result for x + 1 is long, as 1 or 0, from
    /// `d = remainder(x)`. A short step is `floor(q / 2^bits)`, and a long one is larger by 1.
    #[inline(always)]
    pub(crate) fn long_step(&self, d: u128) -> u128 {
        // The step is (q - remainder(x + 1) + remainder(x)) / 2^bits, and the next remainder d + q mod 2^bits.
        (d + (self.q_low & (u128::MAX >> (128 - self.bits)))) >> self.bits
    }

    /// The residue of `round(q x / 2^bits)` for limb `i`, from `d = remainder(x)`; in `[0, p)`.
    #[inline(always)]
    pub(crate) fn residue(&self, i: usize, p: &Modulus, d: u128) -> u64 {
        let (half, inverse) = self.limbs[i];
        // Shares of one word take half the work.
        let d = if self.bits <= u64::BITS { p.reduce(d as u64) } else { p.reduce_wide(d) };
        p.mul_shoup(p.sub(half, d), inverse)
    }
}

/// Rounds a 128-bit fraction to `bits` bits: `round(2^bits t) mod 2^bits`, `1 <= bits <= 127`.
#[inline(always)]
pub(crate) fn round_torus(t: u128, bits: u32) -> u128 {
    debug_assert!((1..=127).contains(&bits));
    t.wrapping_add(1 << (127 - bits)) >> (128 - bits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::set::{PRIMES_46, PRIMES_50};
    use proptest::prelude::*;

    #[test]
    fn standard_sets_build_and_stay_within_the_table() {
        for set in ParamSet::ALL {
            let params = set.params();
            assert_eq!((params.degree(), params.log_q()), (set.degree(), set.log_q()));
            assert_eq!(params.limbs().len(), set.primes().len());
        }
    }

    #[test]
    fn insecure_or_malformed_sets_are_refused() {
        let insecure = |n, log_q, max_log_q| HeError::Insecure { n, log_q, max_log_q };
        assert_eq!(Params::new(2048, &PRIMES_46[..2]).unwrap_err(), insecure(2048, 92, 54));
        assert_eq!(Params::new(4096, &PRIMES_46[..3]).unwrap_err(), insecure(4096, 138, 109));
        assert_eq!(Params::new(4096, &[]).unwrap_err(), insecure(4096, 0, 109));
        let five = [&PRIMES_46[..3], &PRIMES_50[..2]].concat();
        assert_eq!(Params::new(8192, &five).unwrap_err(), insecure(8192, 238, 218));
        assert_eq!(Params::new(1024, &PRIMES_46[..1]).unwrap_err(), HeError::Degree { n: 1024 });
        let twice = [PRIMES_46[0]; 2];
        assert_eq!(Params::new(8192, &twice).unwrap_err(), HeError::Modulus { n: 8192, modulus: twice[0] });
        let composite = [PRIMES_46[0] - 2];
        assert_eq!(Params::new(4096, &composite).unwrap_err(), HeError::Modulus { n: 4096, modulus: composite[0] });
    }

    /// The property that defines the lift: as a fraction of the torus, a lifted x is `x / 2^bits` up to half a unit
    /// of `1 / q`.
    fn check_lift(set: ParamSet, bits: u32, x: u128) {
        let params = set.params();
        let lift = params.lift(bits);
        let d = lift.remainder(x);
        let t = params.torus(params.limbs().iter().enumerate().map(|(i, l)| lift.residue(i, l.modulus(), d)));
        let exact = x << (128 - bits);
        let error = (t.wrapping_sub(exact) as i128).unsigned_abs();
        let unit = if set.log_q() >= 128 { 0 } else { 1u128 << (128 - set.log_q()) };
        assert!(error <= unit + 8, "{set:?} bits {bits} x {x}: {error} > {unit}");
        if bits < set.log_q() - 1 && bits < 120 {
            assert_eq!(round_torus(t, bits), x & (u128::MAX >> (128 - bits)));
        }
    }

    #[test]
    fn lift_at_the_edges() {
        for set in ParamSet::ALL {
            for bits in 1..=set.log_q().min(120) - 2 {
                for x in [0, 1, 1 << (bits - 1), (1 << bits) - 1] {
                    check_lift(set, bits, x);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn lift_then_round_is_identity(x: u128, bits in 1u32..=45) {
            for set in ParamSet::ALL {
                check_lift(set, bits, x);
                if set != ParamSet::Narrow {
                    check_lift(set, bits + 45, x);
                }
            }
        }

        #[test]
        fn torus_is_additive(xs in prop::collection::vec(any::<u64>(), 6)) {
            let params = ParamSet::Full.params();
            let moduli: Vec<_> = params.limbs().iter().map(|l| *l.modulus()).collect();
            let a: Vec<u64> = moduli.iter().zip(&xs[..3]).map(|(p, x)| x % p.value()).collect();
            let b: Vec<u64> = moduli.iter().zip(&xs[3..]).map(|(p, x)| x % p.value()).collect();
            let sum = (0..3).map(|i| moduli[i].add(a[i], b[i]));
            let lhs = params.torus(sum);
            let rhs = params.torus(a.iter().copied()).wrapping_add(params.torus(b.iter().copied()));
            prop_assert!((lhs.wrapping_sub(rhs) as i128).abs() <= 24);
        }
    }
}
