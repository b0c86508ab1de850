//! Key pairs and fresh ciphertexts.

use crate::bits::{BitReader, BitWriter, check_len};
use crate::error::HeError;
use crate::galois::GaloisKeys;
use crate::params::{Limb, ParamSet, Params};
use crate::sampling::{Expander, Label, SEED_BYTES, fresh_seed};
use rand::CryptoRng;
use std::fmt;
use zeroize::Zeroizing;

/// A polynomial of `Z_q[X] / (X^N + 1)`: N residues per limb, limb after limb.
pub(crate) type Poly = Vec<u64>;

/// Bits of secrets and errors: both are at most 21 in absolute value.
pub(crate) const SMALL_BITS: u32 = 5;

impl Limb {
    /// [`crate::NttBackend::fwd_factor`] of coefficients of at most `bits` bits and a sign.
    pub(crate) fn factor_signed(&self, signed: &[i64], bits: u32, out: &mut [u64]) {
        let p = self.modulus();
        if bits < p.bits() {
            self.ntt().fwd_factor(out, signed);
        } else {
            let residues: Zeroizing<Vec<i64>> =
                Zeroizing::new(signed.iter().map(|&s| p.reduce_signed(s) as i64).collect());
            self.ntt().fwd_factor(out, &residues);
        }
    }
}

impl Params {
    /// Words of one polynomial.
    pub(crate) fn words(&self) -> usize {
        self.degree() * self.limbs().len()
    }

    /// Forward transform of every limb.
    pub(crate) fn fwd(&self, poly: &mut [u64]) {
        for (l, x) in self.limbs().iter().zip(poly.chunks_exact_mut(self.degree())) {
            l.ntt().fwd(x);
        }
    }

    /// Inverse transform of every limb.
    pub(crate) fn inv(&self, poly: &mut [u64]) {
        for (l, x) in self.limbs().iter().zip(poly.chunks_exact_mut(self.degree())) {
            l.ntt().inv(x);
        }
    }

    /// `poly += signed`, coefficients below every prime in absolute value.
    pub(crate) fn add_small(&self, poly: &mut [u64], signed: &[i64]) {
        for (l, x) in self.limbs().iter().zip(poly.chunks_exact_mut(self.degree())) {
            let p = l.modulus();
            x.iter_mut().zip(signed).for_each(|(x, &e)| *x = p.add(*x, p.lift_small(e)));
        }
    }

    /// `x = x y` in the transformed domain.
    pub(crate) fn pointwise(&self, x: &mut [u64], y: &[u64]) {
        let n = self.degree();
        for ((l, x), y) in self.limbs().iter().zip(x.chunks_exact_mut(n)).zip(y.chunks_exact(n)) {
            l.ntt().pointwise(x, y);
        }
    }

    /// `x = x 2^exponent`; a negative exponent divides.
    pub(crate) fn shift(&self, x: &mut [u64], exponent: i32) {
        for (l, x) in self.limbs().iter().zip(x.chunks_exact_mut(self.degree())) {
            let p = l.modulus();
            let power = p.pow(2, u64::from(exponent.unsigned_abs()));
            l.ntt().scale(x, if exponent < 0 { p.inverse(power) } else { power });
        }
    }

    /// `x += y`.
    pub(crate) fn add(&self, x: &mut [u64], y: &[u64]) {
        let n = self.degree();
        for ((l, x), y) in self.limbs().iter().zip(x.chunks_exact_mut(n)).zip(y.chunks_exact(n)) {
            let p = *l.modulus();
            x.iter_mut().zip(y).for_each(|(x, &y)| *x = p.add(*x, y));
        }
    }

    /// `x = y - x`.
    pub(crate) fn sub_from(&self, x: &mut [u64], y: &[u64]) {
        let n = self.degree();
        for ((l, x), y) in self.limbs().iter().zip(x.chunks_exact_mut(n)).zip(y.chunks_exact(n)) {
            let p = *l.modulus();
            x.iter_mut().zip(y).for_each(|(x, &y)| *x = p.sub(y, *x));
        }
    }

    /// Transform of a polynomial with coefficients of at most `bits` bits and a sign.
    pub(crate) fn transform_signed(&self, signed: &[i64], bits: u32) -> Poly {
        let mut poly = vec![0; self.words()];
        for (l, x) in self.limbs().iter().zip(poly.chunks_exact_mut(self.degree())) {
            if bits < l.modulus().bits() {
                l.ntt().fwd_signed(x, signed);
            } else {
                l.modulus().reduce_all(x, signed);
                l.ntt().fwd(x);
            }
        }
        poly
    }

    /// [`Self::transform_signed`] into `out`, in the form of [`Self::factor`]. Coefficients that are not given are zero; the
    /// number of the others is a multiple of 64.
    pub(crate) fn factor_signed(&self, signed: &[i64], bits: u32, out: &mut [u64]) {
        for (l, x) in self.limbs().iter().zip(out.chunks_exact_mut(self.degree())) {
            l.factor_signed(signed, bits, x);
        }
    }

    /// A transformed polynomial to the form of [`Self::dot`]; see [`crate::NttBackend::factor`].
    pub(crate) fn factor(&self, poly: &mut [u64]) {
        for (l, x) in self.limbs().iter().zip(poly.chunks_exact_mut(self.degree())) {
            l.ntt().factor(x);
        }
    }

    /// `sum += a_0 b_0 + a_1 b_1 + ...`, all transformed, the operands in the form of [`Self::factor`].
    pub(crate) fn dot(&self, sum: &mut [u64], a: &[&[u64]], b: &[&[u64]]) {
        let n = self.degree();
        for (i, (l, sum)) in self.limbs().iter().zip(sum.chunks_exact_mut(n)).enumerate() {
            let a: Vec<&[u64]> = a.iter().map(|x| &x[i * n..(i + 1) * n]).collect();
            let b: Vec<&[u64]> = b.iter().map(|x| &x[i * n..(i + 1) * n]).collect();
            l.ntt().dot(sum, &a, &b);
        }
    }

    /// The public uniform polynomial of a seed, taken as already transformed.
    pub(crate) fn uniform(&self, seed: &[u8; SEED_BYTES], label: Label, index: u64) -> Poly {
        let mut stream = Expander::new(seed, label, index);
        let mut poly = vec![0; self.words()];
        for (l, x) in self.limbs().iter().zip(poly.chunks_exact_mut(self.degree())) {
            stream.uniform(l.modulus(), x);
        }
        poly
    }

    /// Appends `poly` at the exact sizes of the primes: [`Params::poly_bytes`] bytes.
    pub(crate) fn pack(&self, poly: &[u64], out: &mut Vec<u8>) {
        for (l, x) in self.limbs().iter().zip(poly.chunks_exact(self.degree())) {
            let mut writer = BitWriter::new(out);
            x.iter().for_each(|&x| writer.push(x, l.modulus().bits()));
            writer.finish();
        }
    }

    /// Reads [`Params::poly_bytes`] bytes; refuses residues that are not below their prime.
    pub(crate) fn unpack(&self, bytes: &[u8], message: &'static str) -> Result<Poly, HeError> {
        check_len(message, bytes, self.poly_bytes())?;
        let mut poly = Vec::with_capacity(self.words());
        let mut rest = bytes;
        for l in self.limbs() {
            let p = l.modulus();
            let (limb, tail) = rest.split_at(self.degree() / 8 * p.bits() as usize);
            rest = tail;
            let mut reader = BitReader::new(limb);
            for _ in 0..self.degree() {
                let x = reader.take(p.bits());
                if x >= p.value() {
                    return Err(HeError::Residue { message, modulus: p.value(), got: x });
                }
                poly.push(x);
            }
        }
        Ok(poly)
    }
}

/// What an evaluator holds of the key holder. A public key alone converts into it.
#[derive(Debug, Clone, Copy)]
pub struct EvaluationKeys<'a> {
    /// For encryptions of zero.
    pub public: &'a PublicKey,
    /// For responses that are packed.
    pub galois: Option<&'a GaloisKeys>,
}

impl<'a> From<&'a PublicKey> for EvaluationKeys<'a> {
    fn from(public: &'a PublicKey) -> Self {
        Self { public, galois: None }
    }
}

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

/// `(b, a) = (e - a s, a)`: lets the other party encrypt zero. Only a 32-byte seed of `a` travels.
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey {
    set: ParamSet,
    seed: [u8; SEED_BYTES],
    /// Both halves, transformed.
    b: Poly,
    a: Poly,
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
        // The seed of `a` is public; drawn apart from the secret seed above.
        let seed = *fresh_seed(rng);
        let a = params.uniform(&seed, Label::PublicKey, 0);
        let mut b = Zeroizing::new(params.transform_signed(&small, SMALL_BITS));
        key.sub_mask(&a, &mut b);
        (key, PublicKey { set, seed, b: std::mem::take(&mut *b), a })
    }

    /// The parameter set of this key.
    pub fn set(&self) -> ParamSet {
        self.set
    }

    pub(crate) fn check(&self, needed: ParamSet) -> Result<&'static Params, HeError> {
        check_set(needed, self.set)
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
    /// The parameter set of this key.
    pub fn set(&self) -> ParamSet {
        self.set
    }

    /// Exact length of [`Self::to_bytes`].
    pub fn bytes(set: ParamSet) -> usize {
        SEED_BYTES + set.degree() / 8 * set.log_q() as usize
    }

    /// The seed of `a`, then `b` at the exact sizes of the primes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::bytes(self.set));
        out.extend_from_slice(&self.seed);
        self.set.params().pack(&self.b, &mut out);
        out
    }

    /// Reads [`Self::to_bytes`]; refuses a wrong length and residues that are not below their prime.
    pub fn from_bytes(set: ParamSet, bytes: &[u8]) -> Result<Self, HeError> {
        const MESSAGE: &str = "public key";
        check_len(MESSAGE, bytes, Self::bytes(set))?;
        let params = set.params();
        let (seed, rest) = split_seed(bytes, MESSAGE)?;
        let b = params.unpack(rest, MESSAGE)?;
        Ok(Self { set, seed, b, a: params.uniform(&seed, Label::PublicKey, 0) })
    }

    pub(crate) fn check(&self, needed: ParamSet) -> Result<&'static Params, HeError> {
        check_set(needed, self.set)
    }

    /// Adds a fresh encryption of zero to a transformed ciphertext and returns it to coefficients:
    /// `c0 + b u + e1`, `c1 + a u + e2` with u ternary. Every call draws new u, e1, e2 from `stream`.
    pub(crate) fn rerandomize(&self, c0: &mut [u64], c1: &mut [u64], stream: &mut Expander) {
        let params = self.set.params();
        let mut small = Zeroizing::new(vec![0; params.degree()]);
        stream.ternary(&mut small);
        let u = Zeroizing::new(params.transform_signed(&small, SMALL_BITS));
        for (c, key) in [(c0, &self.b), (c1, &self.a)] {
            let mut product = Zeroizing::new(u.to_vec());
            params.pointwise(&mut product, key);
            params.add(c, &product);
            params.inv(c);
            stream.errors(&mut small);
            params.add_small(c, &small);
        }
    }
}

pub(crate) fn check_set(needed: ParamSet, got: ParamSet) -> Result<&'static Params, HeError> {
    if needed == got { Ok(needed.params()) } else { Err(HeError::KeySet { needed, got }) }
}

/// The leading seed of a message and the rest.
pub(crate) fn split_seed<'a>(
    bytes: &'a [u8],
    message: &'static str,
) -> Result<([u8; SEED_BYTES], &'a [u8]), HeError> {
    let short = HeError::Length { message, expected: SEED_BYTES, got: bytes.len() };
    let (seed, rest) = bytes.split_first_chunk::<SEED_BYTES>().ok_or(short)?;
    Ok((*seed, rest))
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

    /// Phase of the public key and of two rerandomized trivial encryptions: small, and different each time.
    #[test]
    fn zero_encryptions_decrypt_to_small_noise_and_differ() {
        for set in ParamSet::ALL {
            let params = set.params();
            let (sk, pk) = SecretKey::generate(set, &mut rand::rng());
            let mut stream = Expander::new(&fresh_seed(&mut rand::rng()), Label::Response, 0);
            let mut seen = Vec::new();
            for _ in 0..2 {
                let (mut c0, mut c1) = (vec![0; params.words()], vec![0; params.words()]);
                pk.rerandomize(&mut c0, &mut c1, &mut stream);
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
