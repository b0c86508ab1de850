//! Galois keys: automorphisms of ciphertexts, and the merging of two ciphertexts into one.
//!
//! # Merging
//! For a power of two h < N let `tau` be the automorphism `X -> X^(N/h + 1)`. On `X^i` with h | i it acts as the sign
//! `(-1)^(i/h)`, as `X^N = -1`. If all coefficients of interest of two ciphertexts E, O lie at multiples of 2h, then
//! `E + X^h O + tau(E - X^h O)` has twice those of E where they were and twice those of O h places further: the
//! coefficients of E at odd multiples of h, and those of `X^h O` at even ones, cancel. Other coefficients stay where
//! they are. (Chen, Dai, Kim, Song: Efficient homomorphic conversion, ACNS 2021, section 3.2; "interleaving" in
//! BumbleBee, NDSS 2025.) Ciphertexts are divided by these factors of two beforehand. The division is modulo q, which
//! is odd, so errors are not doubled either.
//!
//! # Key switching
//! `tau` of a ciphertext under s is one under `tau(s)`. For each prime `p_i` let `G_i` be 1 modulo `p_i` and 0 modulo
//! the others. The residues of `c1` modulo `p_i`, centred, are cut into two signed digits of
//! `w = ceil(log2(p_i) / 2)` bits: `c1 = sum_i (u_i0 + 2^w u_i1) G_i mod q`. The key holds for each digit an
//! encryption of `2^(w k) G_i tau(s)` under s, with a fresh uniform half and a fresh error. No special prime is
//! spent: the degrees 2048 and 4096 leave no room for one.
//!
//! The inner product with the digits adds the noise `sum_d u_d e_d`. Digits are at most `2^(w-1)` in absolute value,
//! so whatever their distribution, this noise is sub-Gaussian with variance at most `D N 2^(2w-2) 10.5`, D being the
//! number of digits ([`switch_variance`]). Digits depend on the uniform halves of keys but never on their errors.
//!
//! # Security
//! The keys encrypt functions of s under s: besides RLWE they rest on circular security, as in every scheme with
//! rotations. They are the holder's public values; the evaluator learns nothing of plaintexts from them.

use crate::ciphertext::Ciphertext;
use crate::error::HeError;
use crate::keys::{PublicKey, SecretKey};
use crate::params::Params;
use crate::poly::{Poly, SMALL_BITS};
use crate::sampling::{ERROR_VARIANCE, Expander, Label, SEED_BYTES, fresh_seed, split_seed};
use crate::set::ParamSet;
use rand::CryptoRng;
use rayon::prelude::*;
use std::cell::RefCell;
use std::fmt;
use zeroize::Zeroizing;

/// Number of digits into which a residue modulo one prime is cut.
const DIGITS: usize = 2;

/// The key holder's public keys that an evaluator needs. A [`PublicKey`] alone converts into this type.
#[derive(Debug, Clone, Copy)]
pub struct EvaluationKeys<'a> {
    /// The public key, for encryptions of zero.
    pub public: &'a PublicKey,
    /// The Galois keys, which only packed responses need.
    pub galois: Option<&'a GaloisKeys>,
}

impl<'a> From<&'a PublicKey> for EvaluationKeys<'a> {
    fn from(public: &'a PublicKey) -> Self {
        Self { public, galois: None }
    }
}

/// Bits of the lower digit, where residues modulo a prime of `bits` bits are cut.
const fn digit_bits(bits: u32) -> u32 {
    bits.div_ceil(2)
}

/// Number of digit polynomials into which a polynomial modulo q is cut.
fn digits(set: ParamSet) -> usize {
    DIGITS * set.primes().len()
}

/// Bound on the variance of the error that one key switch adds to a coefficient.
pub(crate) fn switch_variance(set: ParamSet) -> f64 {
    let variance = |p: &u64| {
        let w = digit_bits(64 - p.leading_zeros());
        DIGITS as f64 * set.degree() as f64 * f64::from(2 * w - 2).exp2() * ERROR_VARIANCE
    };
    set.primes().iter().map(variance).sum()
}

/// Keys for all merges of ciphertexts under one secret. The uniform halves of the keys travel as a seed of 32 bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct GaloisKeys {
    set: ParamSet,
    /// One step for each h = 1, 2, 4, ..., N / 2.
    steps: Vec<Step>,
}

/// The permutation and the keys of a merge with one h.
#[derive(Clone, PartialEq, Eq)]
struct Step {
    /// `tau(x)[i] = x[permutation[i]]` on transformed polynomials.
    permutation: Vec<u32>,
    /// `X^h`, transformed, as a factor.
    monomial: Poly,
    /// For each digit, `tau^-1` of both halves of its key, as transformed factors. The digits themselves then need no
    /// automorphism.
    keys: Vec<[Poly; 2]>,
}

impl fmt::Debug for GaloisKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GaloisKeys").field("set", &self.set).finish_non_exhaustive()
    }
}

/// The indices of [`Step::permutation`] for `X -> X^(N/h + 1)`.
fn permutation(n: usize, h: usize) -> Vec<u32> {
    let log = n.trailing_zeros();
    let reverse = |i: usize| i.reverse_bits() >> (usize::BITS - log);
    // Entry i of a transform is the value at the power 2 reverse(i) + 1 of the root.
    (0..n).map(|i| reverse(((2 * reverse(i) + 1) * (n / h + 1) % (2 * n)) / 2) as u32).collect()
}

/// `tau(x)` for a transformed polynomial of any number of limbs.
fn permute(permutation: &[u32], x: &[u64]) -> Poly {
    let limbs = x.chunks_exact(permutation.len());
    limbs.flat_map(|limb| permutation.iter().map(|&i| limb[i as usize])).collect()
}

fn inverse(permutation: &[u32]) -> Vec<u32> {
    let mut out = vec![0; permutation.len()];
    permutation.iter().enumerate().for_each(|(i, &from)| out[from as usize] = i as u32);
    out
}

/// Powers of two below N.
fn step_sizes(set: ParamSet) -> impl Iterator<Item = usize> {
    (0..set.degree().trailing_zeros()).map(|log| 1 << log)
}

impl GaloisKeys {
    /// Fresh keys of the holder of `sk`, as the message that the evaluator reads with [`Self::from_bytes`]: the seed
    /// of the uniform halves, then the other halves, in which each residue takes as many bits as its prime.
    pub fn message(sk: &SecretKey, rng: &mut (impl CryptoRng + ?Sized)) -> Vec<u8> {
        let (set, params) = (sk.set(), sk.set().params());
        let (seed, errors) = (fresh_seed(rng), fresh_seed(rng));
        let n = params.degree();
        let mut out = Vec::with_capacity(Self::bytes(set));
        out.extend_from_slice(seed.as_ref());
        for (step, h) in step_sizes(set).enumerate() {
            let rotated = Zeroizing::new(permute(&permutation(n, h), sk.transformed()));
            for digit in 0..digits(set) {
                let index = (step * digits(set) + digit) as u64;
                let mut small = Zeroizing::new(vec![0; n]);
                Expander::new(&errors, Label::GaloisErrors, index).errors(&mut small);
                let mut b = Zeroizing::new(params.transform_signed(&small, SMALL_BITS));
                sk.sub_mask(&params.uniform(&seed, Label::GaloisKey, index), &mut b);
                // The gadget is a power of two in one limb and zero in the others.
                let (i, k) = (digit / DIGITS, digit % DIGITS);
                let p = params.limbs()[i].modulus();
                let gadget = p.shoup(p.pow(2, k as u64 * u64::from(digit_bits(p.bits()))));
                let limb = i * n..(i + 1) * n;
                for (b, &s) in b[limb.clone()].iter_mut().zip(&rotated[limb]) {
                    *b = p.add(*b, p.mul_shoup(s, gadget));
                }
                params.pack(&b, 1, &mut out);
            }
        }
        debug_assert_eq!(out.len(), Self::bytes(set));
        out
    }

    /// Assembles keys from their seed and from the halves that travel, step by step and digit by digit.
    fn assemble(set: ParamSet, seed: &[u8; SEED_BYTES], bodies: &[Poly]) -> Self {
        let params = set.params();
        let n = params.degree();
        let step = |(step, h): (usize, usize)| {
            let permutation = permutation(n, h);
            let back = inverse(&permutation);
            let mut signed = vec![0; n];
            signed[h] = 1;
            let key = |digit: usize| {
                let index = step * digits(set) + digit;
                let a = params.uniform(seed, Label::GaloisKey, index as u64);
                [&bodies[index], &a].map(|half| {
                    let mut half = permute(&back, half);
                    params.factor(&mut half);
                    half
                })
            };
            let keys = (0..digits(set)).map(key).collect();
            let mut monomial = vec![0; params.words()];
            params.factor_signed(&signed, 1, &mut monomial);
            Step { permutation, monomial, keys }
        };
        let sizes: Vec<_> = step_sizes(set).enumerate().collect();
        Self { set, steps: sizes.into_par_iter().map(step).collect() }
    }

    /// The parameter set of these keys.
    pub fn set(&self) -> ParamSet {
        self.set
    }

    /// Exact length of [`Self::message`] in bytes.
    pub fn bytes(set: ParamSet) -> usize {
        let bodies = step_sizes(set).count() * digits(set);
        SEED_BYTES + bodies * (set.degree() / 8 * set.log_q() as usize)
    }

    /// Reads [`Self::message`]; refuses a wrong length and residues that are not below their prime.
    pub fn from_bytes(set: ParamSet, bytes: &[u8]) -> Result<Self, HeError> {
        const MESSAGE: &str = "Galois keys";
        HeError::check_length(MESSAGE, Self::bytes(set), bytes.len())?;
        let params = set.params();
        let (seed, rest) = split_seed(bytes, MESSAGE)?;
        let bodies = rest.par_chunks_exact(params.poly_bytes()).map(|body| params.unpack(body, 1, MESSAGE));
        Ok(Self::assemble(set, &seed, &bodies.collect::<Result<Vec<_>, _>>()?))
    }

    /// `E + X^h O + tau(E - X^h O)`, see the module documentation; h is a power of two below N.
    pub(crate) fn merge(&self, h: usize, even: Ciphertext, odd: Ciphertext) -> Ciphertext {
        let (params, step) = (self.set.params(), &self.steps[h.trailing_zeros() as usize]);
        let (mut sum0, mut difference0) = (even.c0, odd.c0);
        let (mut sum1, mut difference1) = (even.c1, odd.c1);
        params.butterfly(&mut sum0, &mut difference0, &step.monomial);
        params.butterfly(&mut sum1, &mut difference1, &step.monomial);
        SCRATCH.with_borrow_mut(|scratch| {
            params.inv(&mut difference1);
            params.split_digits(&difference1, &mut scratch.signed);
            difference1.fill(0);
            self.switch(step, scratch, &mut difference0, &mut difference1);
        });
        params.add_permuted(&mut sum0, &difference0, &step.permutation);
        params.add_permuted(&mut sum1, &difference1, &step.permutation);
        Ciphertext { c0: sum0, c1: sum1 }
    }

    /// Adds the inner products of the digits in `scratch` with both halves of the keys of `step` to `c0` and `c1`.
    fn switch(&self, step: &Step, scratch: &mut Scratch, c0: &mut [u64], c1: &mut [u64]) {
        let params = self.set.params();
        let n = params.degree();
        scratch.transformed.resize(step.keys.len() * n, 0);
        for (i, l) in params.limbs().iter().enumerate() {
            for (out, digit) in scratch.transformed.chunks_exact_mut(n).zip(scratch.signed.chunks_exact(n)) {
                l.ntt().fwd_factor(out, digit);
            }
            let digits: Vec<&[u64]> = scratch.transformed.chunks_exact(n).collect();
            let limb = i * n..(i + 1) * n;
            for (half, sum) in [&mut *c0, &mut *c1].into_iter().enumerate() {
                let keys: Vec<&[u64]> = step.keys.iter().map(|key| &key[half][limb.clone()]).collect();
                l.ntt().dot(&mut sum[limb.clone()], &digits, &keys);
            }
        }
    }
}

/// Buffers of a key switch. They hold digits of ciphertexts, but no plain values of the evaluator.
#[derive(Default)]
struct Scratch {
    signed: Vec<i64>,
    transformed: Vec<u64>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl Params {
    /// Splits every coefficient of `x` into digits and writes them to `out`, digit polynomial after digit polynomial.
    fn split_digits(&self, x: &[u64], out: &mut Vec<i64>) {
        let n = self.degree();
        out.resize(DIGITS * x.len(), 0);
        let limbs = x.chunks_exact(n).zip(out.chunks_exact_mut(DIGITS * n));
        for (l, (x, out)) in self.limbs().iter().zip(limbs) {
            let p = *l.modulus();
            let w = digit_bits(p.bits());
            let (low, high) = out.split_at_mut(n);
            for ((&x, low), high) in x.iter().zip(low).zip(high) {
                // Minus p if x > p / 2.
                let above = ((p.value() / 2) as i64 - x as i64) >> 63;
                let x = x as i64 - (p.value() as i64 & above);
                *low = (x << (64 - w)) >> (64 - w);
                *high = (x - *low) >> w;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_keys::{galois_keys, keys};

    #[test]
    fn malformed_keys_are_refused() {
        for set in [ParamSet::Narrow, ParamSet::SmallExact] {
            let bytes = GaloisKeys::message(&keys(set).0, &mut rand::rng());
            assert_eq!(bytes.len(), GaloisKeys::bytes(set));
            assert!(GaloisKeys::from_bytes(set, &bytes).is_ok());
            let long = [bytes.as_slice(), &[0]].concat();
            for wrong in [&bytes[..bytes.len() - 1], &bytes[..5], &[], &long] {
                assert!(matches!(GaloisKeys::from_bytes(set, wrong), Err(HeError::Length { .. })));
            }
            let mut large = bytes.clone();
            large[SEED_BYTES + 1..][..16].fill(0xff);
            assert!(matches!(GaloisKeys::from_bytes(set, &large), Err(HeError::Residue { .. })));
            // Two messages of one holder have nothing in common.
            let other = GaloisKeys::message(&keys(set).0, &mut rand::rng());
            assert_ne!(bytes[..SEED_BYTES], other[..SEED_BYTES]);
            assert_ne!(bytes[SEED_BYTES..][..64], other[SEED_BYTES..][..64]);
        }
    }

    /// A ciphertext of small coefficients without an error.
    fn exact_ciphertext(set: ParamSet, message: &[i64], index: u64) -> Ciphertext {
        let params = set.params();
        let c1 = params.uniform(&[7; SEED_BYTES], Label::Upload, index);
        let mut c0 = params.transform_signed(message, 20);
        keys(set).0.sub_mask(&c1, &mut c0);
        Ciphertext { c0, c1 }
    }

    /// Checks both messages exactly and the error of a merge, coefficient by coefficient, for every h.
    #[test]
    fn merges_interleave_with_errors_of_the_stated_size() {
        for set in [ParamSet::Narrow, ParamSet::Small, ParamSet::SmallExact, ParamSet::Full] {
            let (params, n) = (set.params(), set.degree());
            let sk = &keys(set).0;
            for h in step_sizes(set) {
                let message =
                    |sign: i64| -> Vec<i64> { (0..n as i64).map(|i| sign * (i * i % 1009 - 500)).collect() };
                let (even, odd) = (message(1), message(-3));
                let merged =
                    galois_keys(set).merge(h, exact_ciphertext(set, &even, 0), exact_ciphertext(set, &odd, 1));
                let (mut phase, mut product) = (merged.c0, merged.c1);
                params.inv(&mut phase);
                params.inv(&mut product);
                sk.mul(&mut product);
                params.add(&mut phase, &product);
                let limb = params.limbs()[0].modulus();
                let mut squares = 0.0;
                for i in (0..n).step_by(h) {
                    let wanted = 2 * if i % (2 * h) == 0 { even[i] } else { odd[i - h] };
                    // The error is the same in every limb.
                    let error = limb.sub(phase[i], limb.reduce_signed(wanted)) as i64;
                    let error = if error > limb.value() as i64 / 2 { error - limb.value() as i64 } else { error };
                    for (l, other) in params.limbs().iter().enumerate() {
                        let p = other.modulus();
                        assert_eq!(phase[l * n + i], p.reduce_signed(wanted + error), "{set:?}, h = {h}");
                    }
                    assert!((error as f64).abs() < 8.5 * switch_variance(set).sqrt(), "{set:?}, h = {h}: {error}");
                    squares += (error as f64).powi(2);
                }
                // Digits are uniform, which is a third of their bound.
                if n / h >= 256 {
                    let variance = squares / (n / h) as f64 * 3.0 / switch_variance(set);
                    assert!((0.6..1.5).contains(&variance), "{set:?}, h = {h}: {variance} of what is expected");
                }
            }
        }
    }
}
