//! Ciphertexts and their forms on the wire.
//!
//! An upload carries one seed, from which the uniform halves of all its ciphertexts are expanded, and then the other
//! halves ([`split_upload`]). A response carries both halves, rounded to fewer bits ([`write_switched`],
//! [`read_lifted`]).

use crate::error::HeError;
use crate::params::{Lift, Params, round_torus};
use crate::poly::Poly;
use crate::sampling::{SEED_BYTES, split_seed};
use waggle_bits::{Reader, Writer};

/// An RLWE ciphertext `(c0, c1)` with the phase `c0 + c1 s`. Both halves are transformed unless a function says
/// otherwise.
pub(crate) struct Ciphertext {
    pub(crate) c0: Poly,
    pub(crate) c1: Poly,
}

impl Ciphertext {
    /// A ciphertext with both halves zero.
    pub(crate) fn zero(params: &Params) -> Self {
        Self { c0: vec![0; params.words()], c1: vec![0; params.words()] }
    }

    /// Multiplies by `2^exponent`; a negative exponent divides.
    pub(crate) fn shift(&mut self, params: &Params, exponent: i32) {
        params.shift(&mut self.c0, exponent);
        params.shift(&mut self.c1, exponent);
    }

    /// Turns both halves, which are transformed, into factors ([`Params::factor`]).
    pub(crate) fn factor(&mut self, params: &Params) {
        params.factor(&mut self.c0);
        params.factor(&mut self.c1);
    }
}

/// How many ciphertexts the two parties of a plan send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ciphertexts {
    /// From the key holder to the evaluator.
    pub up: usize,
    /// From the evaluator to the key holder.
    pub down: usize,
}

/// What a party gets from one step: a message for the peer, and this party's own part of the result. The step is the
/// evaluation of a product, or a seeded request of the key holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    /// The message for the peer.
    pub message: Vec<u8>,
    /// This party's share of the product. For a [`SeededPlan::request`](crate::SeededPlan::request), the random
    /// operand.
    pub share: Vec<u64>,
}

/// Rounds every coefficient of `c` to `bits` bits of the torus (modulus switching) and appends them packed.
pub(crate) fn write_switched(params: &Params, c: &[u64], bits: u32, out: &mut Vec<u8>) {
    let n = params.degree();
    let mut writer = Writer::new(out);
    for i in 0..n {
        let t = params.torus((0..params.limbs().len()).map(|l| c[l * n + i]));
        writer.push_wide(round_torus(t, bits), bits);
    }
    writer.finish();
}

/// Reads what [`write_switched`] wrote and scales it back up to `Z_q`. The caller must check the length before.
/// Errors: padding that is not zero.
pub(crate) fn read_lifted(
    params: &Params,
    lift: &Lift,
    bits: u32,
    bytes: &[u8],
    message: &'static str,
) -> Result<Poly, HeError> {
    let n = params.degree();
    let mut poly = vec![0; params.words()];
    let mut reader = Reader::new(bytes);
    for i in 0..n {
        let d = lift.remainder(reader.take_wide(bits));
        for (l, limb) in params.limbs().iter().enumerate() {
            poly[l * n + i] = lift.residue(l, limb.modulus(), d);
        }
    }
    reader.finish(message)?;
    Ok(poly)
}

/// Splits an upload into the seed of its uniform halves and the bytes of the other halves. Errors: a length other
/// than `expected`.
pub(crate) fn split_upload<'a>(
    upload: &'a [u8],
    expected: usize,
    message: &'static str,
) -> Result<([u8; SEED_BYTES], &'a [u8]), HeError> {
    HeError::check_length(message, expected, upload.len())?;
    split_seed(upload, message)
}
