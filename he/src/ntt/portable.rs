//! The backend of last resort. Only transforms are taken from `tfhe-ntt`: its `mul_accumulate` may leave values above
//! p.

use super::backend::NttBackend;
use crate::error::HeError;
use crate::modulus::{MAX_MODULUS_BITS, Modulus};

/// The portable backend: transforms of the crate `tfhe-ntt`, which chooses its own instructions, and portable code
/// for the rest.
#[derive(Debug)]
pub struct TfheNtt {
    modulus: Modulus,
    plan: tfhe_ntt::prime64::Plan,
}

impl TfheNtt {
    /// Transforms of degree n modulo p. Errors: [`HeError::Modulus`] for a modulus that is not a prime `= 1 mod 2n`
    /// of at most 50 bits.
    pub fn new(n: usize, p: u64) -> Result<Self, HeError> {
        let refused = HeError::Modulus { n, modulus: p };
        if p < 3 || p.is_multiple_of(2) || p >> MAX_MODULUS_BITS != 0 {
            return Err(refused);
        }
        let plan = tfhe_ntt::prime64::Plan::try_new(n, p).ok_or(refused)?;
        Ok(Self { modulus: Modulus::new(p), plan })
    }

    /// The prime.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn prime(&self) -> u64 {
        self.modulus.value()
    }
}

impl NttBackend for TfheNtt {
    fn modulus(&self) -> &Modulus {
        &self.modulus
    }

    fn degree(&self) -> usize {
        self.plan.ntt_size()
    }

    fn fwd(&self, poly: &mut [u64]) {
        self.plan.fwd(poly);
    }

    fn inv(&self, poly: &mut [u64]) {
        self.plan.inv(poly);
        self.plan.normalize(poly);
    }
}
