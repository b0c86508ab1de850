//! The portable backend. Whole transforms are those of `tfhe-ntt`, whose `mul_accumulate` is not used because it may
//! leave values above p. Transforms in subrings and of few coefficients are code of this file.

use super::backend::NttBackend;
use crate::error::HeError;
use crate::modulus::{MAX_MODULUS_BITS, Modulus, Shoup};

/// Layers that only copy are left out if the degree is at least this number of times the number of given
/// coefficients.
const FEW: usize = 32;

/// The portable backend: transforms of the crate `tfhe-ntt`, which chooses its own instructions, and portable code
/// for the rest.
#[derive(Debug)]
pub(super) struct TfheNtt {
    modulus: Modulus,
    plan: tfhe_ntt::prime64::Plan,
    /// The root of group i in the layer of m groups is at index `m + i`.
    roots: Vec<Shoup>,
}

impl TfheNtt {
    /// Transforms of degree n modulo p. Errors: [`HeError::Modulus`] for a modulus that is not a prime `= 1 mod 2n`
    /// of at most 50 bits.
    pub(super) fn new(n: usize, p: u64) -> Result<Self, HeError> {
        let refused = HeError::Modulus { n, modulus: p };
        if p < 3 || p.is_multiple_of(2) || p >> MAX_MODULUS_BITS != 0 {
            return Err(refused);
        }
        let plan = tfhe_ntt::prime64::Plan::try_new(n, p).ok_or(refused)?;
        let modulus = Modulus::new(p);
        // The transform of X begins with the root at which entry 0 of a transform evaluates.
        let mut x = vec![0; n];
        x[1] = 1;
        plan.fwd(&mut x);
        let roots = bit_reversed_powers(&modulus, n, x[0]).into_iter().map(|w| modulus.shoup(w)).collect();
        Ok(Self { modulus, plan, roots })
    }

    /// The prime.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn prime(&self) -> u64 {
        self.modulus.value()
    }

    /// The roots of all layers. The root of group i in the layer of m groups is at index `m + i`.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn roots(&self) -> Vec<u64> {
        self.roots.iter().map(Shoup::value).collect()
    }

    /// The transform of the given coefficients in the subring whose degree is the length of `out`. Its roots are the
    /// first ones of the table. A layer adds at most 2 p to a value. So without correction values stay below `2^6 p`
    /// in all of up to 14 layers.
    fn transform(&self, out: &mut [u64], signed: &[i64]) {
        let (p, n) = (&self.modulus, out.len());
        out.iter_mut().zip(signed).for_each(|(x, &s)| *x = p.lift_small(s));
        // A layer maps (u, 0) to (u, u).
        let mut groups = 1;
        while n / (2 * groups) >= signed.len().max(1) {
            groups *= 2;
        }
        out[signed.len()..n / groups].fill(0);
        for copy in 1..groups {
            out.copy_within(..n / groups, copy * n / groups);
        }
        while groups < n {
            for (group, &w) in out.chunks_exact_mut(n / groups).zip(&self.roots[groups..]) {
                let (top, bottom) = group.split_at_mut(n / groups / 2);
                for (u, v) in top.iter_mut().zip(bottom) {
                    let r = p.mul_shoup_lazy(*v, w);
                    (*u, *v) = (*u + r, *u + 2 * p.value() - r);
                }
            }
            groups *= 2;
        }
        out.iter_mut().for_each(|x| *x = p.reduce(*x));
    }
}

impl NttBackend for TfheNtt {
    fn name(&self) -> &'static str {
        "tfhe-ntt"
    }

    fn modulus(&self) -> &Modulus {
        &self.modulus
    }

    fn fwd(&self, poly: &mut [u64]) {
        self.plan.fwd(poly);
    }

    fn fwd_signed(&self, out: &mut [u64], signed: &[i64]) {
        if out.len() / FEW >= signed.len() {
            return self.transform(out, signed);
        }
        out.iter_mut().zip(signed).for_each(|(x, &s)| *x = self.modulus.lift_small(s));
        out[signed.len()..].fill(0);
        self.fwd(out);
    }

    /// Residues are already factors, so this is a plain transform.
    fn fwd_factor(&self, out: &mut [u64], signed: &[i64]) {
        if out.len() == self.plan.ntt_size() { self.fwd_signed(out, signed) } else { self.transform(out, signed) }
    }

    fn inv(&self, poly: &mut [u64]) {
        self.plan.inv(poly);
        self.plan.normalize(poly);
    }
}

/// The roots of all layers. The root of group i in the layer of m groups is at index `m + i`. Entry 0 of a transform
/// is the value at `first`.
fn bit_reversed_powers(modulus: &Modulus, n: usize, first: u64) -> Vec<u64> {
    let (log, mut powers) = (n.trailing_zeros(), vec![1; n]);
    (1..n).for_each(|i| powers[i] = modulus.mul(powers[i - 1], first));
    (0..n).map(|i| powers[i.reverse_bits() >> (usize::BITS - log)]).collect()
}
