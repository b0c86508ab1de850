//! Key pairs and what they encrypt: the holder's messages, and the other party's encryptions of zero.

use crate::ciphertext::Ciphertext;
use crate::error::HeError;
use crate::poly::{Poly, SMALL_BITS};
use crate::sampling::{Expander, Label, SEED_BYTES, fresh_seed, split_seed};
use crate::set::ParamSet;
use rand::CryptoRng;
use std::fmt;
use zeroize::Zeroizing;

/// A ternary RLWE secret; wiped when dropped.
pub struct SecretKey {
    set: ParamSet,
    /// The secret s, transformed.
    s: Zeroizing<Poly>,
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretKey").field("set", &self.set).finish_non_exhaustive()
    }
}

/// A public key `(b, a) = (e - a s, a)`, with which the other party encrypts zero. Only a 32-byte seed of `a`
/// travels.
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey {
    set: ParamSet,
    seed: [u8; SEED_BYTES],
    /// Both halves, transformed.
    b: Poly,
    a: Poly,
    /// Both halves as factors.
    factors: [Poly; 2],
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublicKey").field("set", &self.set).field("seed", &self.seed).finish_non_exhaustive()
    }
}

impl SecretKey {
    /// A fresh key pair.
    pub fn generate(set: ParamSet, rng: &mut (impl CryptoRng + ?Sized)) -> (Self, PublicKey) {
        let params = set.params();
        let mut stream = Expander::new(&fresh_seed(rng), Label::KeyPair, 0);
        let mut small = Zeroizing::new(vec![0; params.degree()]);
        stream.ternary(&mut small);
        let key = Self { set, s: Zeroizing::new(params.transform_signed(&small, SMALL_BITS)) };
        stream.errors(&mut small);
        // The seed of `a` is public, so it is drawn apart from the secret seed above.
        let seed = *fresh_seed(rng);
        let a = params.uniform(&seed, Label::PublicKey, 0);
        let mut b = Zeroizing::new(params.transform_signed(&small, SMALL_BITS));
        key.sub_mask(&a, &mut b);
        (key, PublicKey::new(set, seed, std::mem::take(&mut *b), a))
    }

    /// The parameter set of this key.
    pub fn set(&self) -> ParamSet {
        self.set
    }

    /// The secret, transformed.
    pub(crate) fn transformed(&self) -> &[u64] {
        &self.s
    }

    /// `x -= a s`, all transformed.
    pub(crate) fn sub_mask(&self, a: &[u64], x: &mut [u64]) {
        let params = self.set.params();
        let mut product = Zeroizing::new(a.to_vec());
        params.pointwise(&mut product, &self.s);
        params.sub_from(&mut product, x);
        x.copy_from_slice(&product);
    }

    /// Turns the scaled message (coefficients) into the transformed `c0 = NTT(m + e) - a s`, where `a` is the
    /// polynomial `index` of the public seed. No index may be used twice with one seed.
    pub(crate) fn encrypt(&self, a_seed: &[u8; SEED_BYTES], index: u64, errors: &mut Expander, message: &mut [u64]) {
        let params = self.set.params();
        let mut e = Zeroizing::new(vec![0; params.degree()]);
        errors.errors(&mut e);
        params.add_small(message, &e);
        params.fwd(message);
        self.sub_mask(&params.uniform(a_seed, Label::Upload, index), message);
    }

    /// `c1 s`; coefficients in and out.
    pub(crate) fn mul(&self, c1: &mut [u64]) {
        let params = self.set.params();
        params.fwd(c1);
        params.pointwise(c1, &self.s);
        params.inv(c1);
    }
}

impl PublicKey {
    fn new(set: ParamSet, seed: [u8; SEED_BYTES], b: Poly, a: Poly) -> Self {
        let mut factors = [b.clone(), a.clone()];
        factors.iter_mut().for_each(|half| set.params().factor(half));
        Self { set, seed, b, a, factors }
    }

    /// The parameter set of this key.
    pub fn set(&self) -> ParamSet {
        self.set
    }

    /// Exact length of [`Self::to_bytes`] in bytes.
    pub fn bytes(set: ParamSet) -> usize {
        SEED_BYTES + set.degree() / 8 * set.log_q() as usize
    }

    /// The seed of `a`, then `b`, in which each residue takes as many bits as its prime.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::bytes(self.set));
        out.extend_from_slice(&self.seed);
        self.set.params().pack(&self.b, 1, &mut out);
        out
    }

    /// Reads [`Self::to_bytes`]; refuses a wrong length and residues that are not below their prime.
    pub fn from_bytes(set: ParamSet, bytes: &[u8]) -> Result<Self, HeError> {
        const MESSAGE: &str = "public key";
        HeError::check_length(MESSAGE, Self::bytes(set), bytes.len())?;
        let params = set.params();
        let (seed, rest) = split_seed(bytes, MESSAGE)?;
        let b = params.unpack(rest, 1, MESSAGE)?;
        Ok(Self::new(set, seed, b, params.uniform(&seed, Label::PublicKey, 0)))
    }

    /// Adds a fresh encryption of zero to a transformed ciphertext and transforms the sum back to coefficients: `c0 +
    /// b u + e1`, `c1 + a u + e2` with u ternary. Every call draws new u, e1, e2 from `stream`.
    pub(crate) fn rerandomize(&self, ciphertext: &mut Ciphertext, stream: &mut Expander) {
        let params = self.set.params();
        let mut small = Zeroizing::new(vec![0; params.degree()]);
        stream.ternary(&mut small);
        let mut u = Zeroizing::new(vec![0; params.words()]);
        params.factor_signed(&small, SMALL_BITS, &mut u);
        for (c, key) in [&mut ciphertext.c0, &mut ciphertext.c1].into_iter().zip(&self.factors) {
            params.dot(c, &[&u], &[key]);
            params.inv(c);
            stream.errors(&mut small);
            params.add_small(c, &small);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::round_torus;

    #[test]
    fn public_key_round_trips_and_refuses_bad_bytes() {
        for set in ParamSet::ALL {
            let (_, pk) = SecretKey::generate(set, &mut rand::rng());
            let bytes = pk.to_bytes();
            assert_eq!(bytes.len(), PublicKey::bytes(set));
            assert_eq!(PublicKey::from_bytes(set, &bytes).unwrap(), pk);
            let mut long = bytes.clone();
            long.push(0);
            for wrong in [&bytes[..bytes.len() - 1], &bytes[..5], &[][..], &long] {
                assert!(matches!(PublicKey::from_bytes(set, wrong), Err(HeError::Length { .. })));
            }
            let mut large = bytes;
            large[SEED_BYTES..SEED_BYTES + 8].fill(0xff);
            assert!(matches!(PublicKey::from_bytes(set, &large), Err(HeError::Residue { .. })));
        }
    }

    /// The phases of the public key and of two rerandomized encryptions of zero are small, and different each time.
    #[test]
    fn zero_encryptions_decrypt_to_small_noise_and_differ() {
        for set in ParamSet::ALL {
            let params = set.params();
            let (sk, pk) = SecretKey::generate(set, &mut rand::rng());
            let mut stream = Expander::new(&fresh_seed(&mut rand::rng()), Label::Response, 0);
            let mut seen = Vec::new();
            for _ in 0..2 {
                let mut zero = Ciphertext::zero(params);
                pk.rerandomize(&mut zero, &mut stream);
                let Ciphertext { mut c0, mut c1 } = zero;
                seen.push((c0.clone(), c1.clone()));
                sk.mul(&mut c1);
                params.add(&mut c0, &c1);
                let n = params.degree();
                // |noise| < 2^12, so the top bits of the torus fraction round to zero.
                for i in 0..n {
                    let t = params.torus((0..params.limbs().len()).map(|l| c0[l * n + i]));
                    assert_eq!(round_torus(t, (set.log_q() - 14).min(100)), 0);
                }
            }
            assert_ne!(seen[0].0, seen[1].0);
            assert_ne!(seen[0].1, seen[1].1);
        }
    }

    #[test]
    fn debug_output_hides_the_secret() {
        let (sk, _) = SecretKey::generate(ParamSet::Narrow, &mut rand::rng());
        assert_eq!(format!("{sk:?}"), "SecretKey { set: Narrow, .. }");
    }
}
