//! Random polynomials from 32-byte seeds: BLAKE3 in extendable-output mode, one label per use.
//!
//! Secret distributions are sampled without secret-dependent branches or addresses. The rejection loop of
//! [`Expander::uniform`] branches only on words that it throws away, which are independent of those it keeps.

use crate::error::HeError;
use crate::modulus::Modulus;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// Bytes of a seed.
pub const SEED_BYTES: usize = 32;

/// A seed; wiped when dropped.
pub(crate) type Seed = Zeroizing<[u8; SEED_BYTES]>;

/// Number of bits in each of the two sums whose difference is a centred binomial error. Its standard deviation is
/// `sqrt(21 / 2) = 3.24`.
pub(crate) const ERROR_ETA: u32 = 21;

/// Variance of the centred binomial error.
pub(crate) const ERROR_VARIANCE: f64 = 10.5;

/// The use of a stream. Equal seeds with different labels give independent streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Label {
    /// The uniform half of a public key.
    PublicKey,
    /// The uniform halves of fresh ciphertexts.
    Upload,
    /// Secret key and errors of a key pair.
    KeyPair,
    /// Errors of fresh ciphertexts.
    UploadErrors,
    /// Encryption of zero and mask of a returned ciphertext.
    Response,
    /// Public seeds of the ciphertexts of a seeded request.
    RequestSeeds,
    /// The uniform half of a ciphertext of a seeded request.
    Request,
    /// Errors of the ciphertexts of a seeded request.
    RequestErrors,
    /// Output coefficients of a seeded response, expanded from a public seed.
    ResponseBody,
    /// The uniform halves of Galois keys.
    GaloisKey,
    /// Errors of Galois keys.
    GaloisErrors,
}

impl Label {
    fn context(self) -> &'static str {
        match self {
            Self::PublicKey => "waggle he v1 public key",
            Self::Upload => "waggle he v1 upload",
            Self::KeyPair => "waggle he v1 key pair",
            Self::UploadErrors => "waggle he v1 upload errors",
            Self::Response => "waggle he v1 response",
            Self::RequestSeeds => "waggle he v1 request seeds",
            Self::Request => "waggle he v1 request",
            Self::RequestErrors => "waggle he v1 request errors",
            Self::ResponseBody => "waggle he v1 response body",
            Self::GaloisKey => "waggle he v1 Galois key",
            Self::GaloisErrors => "waggle he v1 Galois key errors",
        }
    }
}

/// A fresh seed from the caller's generator.
pub(crate) fn fresh_seed(rng: &mut (impl rand::CryptoRng + ?Sized)) -> Seed {
    let mut seed = Zeroizing::new([0; SEED_BYTES]);
    rng.fill_bytes(seed.as_mut());
    seed
}

/// Splits a message into its leading seed and the rest. Errors: [`HeError::Length`] if there is no whole seed.
pub(crate) fn split_seed<'a>(
    bytes: &'a [u8],
    message: &'static str,
) -> Result<([u8; SEED_BYTES], &'a [u8]), HeError> {
    let short = HeError::Length { message, expected: SEED_BYTES, got: bytes.len() };
    let (seed, rest) = bytes.split_first_chunk::<SEED_BYTES>().ok_or(short)?;
    Ok((*seed, rest))
}

/// Bytes drawn from BLAKE3 at a time.
const BUFFER_BYTES: usize = 4096;

/// A stream of pseudorandom words; its state is wiped when dropped.
#[derive(Zeroize, ZeroizeOnDrop)]
pub(crate) struct Expander {
    output: blake3::OutputReader,
    buffer: Box<[u8; BUFFER_BYTES]>,
    used: usize,
}

impl Expander {
    /// The stream number `index` that `seed` gives under `label`.
    pub(crate) fn new(seed: &[u8; SEED_BYTES], label: Label, index: u64) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key(label.context());
        hasher.update(seed).update(&index.to_le_bytes());
        let output = hasher.finalize_xof();
        hasher.zeroize();
        Self { output, buffer: Box::new([0; BUFFER_BYTES]), used: BUFFER_BYTES }
    }

    #[inline(always)]
    fn word(&mut self) -> u64 {
        if self.used == BUFFER_BYTES {
            self.output.fill(self.buffer.as_mut());
            self.used = 0;
        }
        let mut word = [0; 8];
        word.copy_from_slice(&self.buffer[self.used..self.used + 8]);
        self.used += 8;
        u64::from_le_bytes(word)
    }

    /// Draws the seed of another stream.
    pub(crate) fn seed(&mut self) -> [u8; SEED_BYTES] {
        let mut seed = [0; SEED_BYTES];
        seed.chunks_exact_mut(8).for_each(|bytes| bytes.copy_from_slice(&self.word().to_le_bytes()));
        seed
    }

    /// Draws a residue that is exactly uniform below p.
    #[inline(always)]
    pub(crate) fn residue(&mut self, p: &Modulus) -> u64 {
        let mask = waggle_bits::mask(p.bits());
        loop {
            let candidate = self.word() & mask;
            if candidate < p.value() {
                return candidate;
            }
        }
    }

    /// Fills `out` with residues that are exactly uniform below p.
    pub(crate) fn uniform(&mut self, p: &Modulus, out: &mut [u64]) {
        out.iter_mut().for_each(|x| *x = self.residue(p));
    }

    /// Fills `out` with centred binomial errors, each the difference of two sums of [`ERROR_ETA`] bits.
    pub(crate) fn errors(&mut self, out: &mut [i64]) {
        let mask = waggle_bits::mask(ERROR_ETA);
        for x in out {
            let word = self.word();
            *x = i64::from((word & mask).count_ones()) - i64::from(((word >> ERROR_ETA) & mask).count_ones());
        }
    }

    /// Fills `out` with coefficients uniform in {-1, 0, 1}, up to a statistical distance below `2^-112` per ten
    /// coefficients.
    pub(crate) fn ternary(&mut self, out: &mut [i64]) {
        for chunk in out.chunks_mut(10) {
            // The leading base-3 digits of a 128-bit fraction; ten of them use up 15.9 of its 128 bits.
            let (mut high, mut low) = (self.word(), self.word());
            for x in chunk {
                let carry = u128::from(low) * 3;
                let top = u128::from(high) * 3 + (carry >> 64);
                (high, low) = (top as u64, carry as u64);
                *x = (top >> 64) as i64 - 1;
            }
            high.zeroize();
            low.zeroize();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: usize = 1 << 20;

    #[test]
    fn errors_have_the_stated_variance_and_range() {
        let mut e = vec![0; COUNT];
        Expander::new(&[3; 32], Label::UploadErrors, 0).errors(&mut e);
        let (mean, square) = e.iter().fold((0, 0), |(m, s), &x| (m + x, s + x * x));
        assert!(e.iter().all(|x| x.unsigned_abs() <= u64::from(ERROR_ETA)));
        // Standard deviations: mean 3.2e-3, variance about 1.5e-2.
        assert!((mean as f64 / COUNT as f64).abs() < 0.02);
        assert!((square as f64 / COUNT as f64 - 10.5).abs() < 0.1);
    }

    #[test]
    fn ternary_is_balanced_in_every_digit_place() {
        let mut t = vec![0; 10 * (COUNT / 10)];
        Expander::new(&[3; 32], Label::KeyPair, 0).ternary(&mut t);
        for place in 0..10 {
            let mut counts = [0usize; 3];
            t.iter().skip(place).step_by(10).for_each(|&x| counts[(x + 1) as usize] += 1);
            let expected = (COUNT / 30) as f64;
            // Standard deviation 152 on 34952; 6 sigma.
            assert!(counts.iter().all(|&c| (c as f64 - expected).abs() < 6.0 * 153.0), "{counts:?}");
        }
    }

    #[test]
    fn residues_are_uniform_and_streams_differ() {
        let p = Modulus::new(0x3ffffff70001);
        let draw = |label, index| {
            let mut x = vec![0; COUNT / 16];
            Expander::new(&[9; 32], label, index).uniform(&p, &mut x);
            x
        };
        let x = draw(Label::Upload, 0);
        assert!(x.iter().all(|&x| x < p.value()));
        let mut buckets = [0usize; 64];
        x.iter().for_each(|&x| buckets[(u128::from(x) * 64 / u128::from(p.value())) as usize] += 1);
        // 1024 expected, standard deviation 32.
        assert!(buckets.iter().all(|&b| (844..1204).contains(&b)), "{buckets:?}");
        assert_ne!(x, draw(Label::Upload, 1));
        assert_ne!(x, draw(Label::PublicKey, 0));
        assert_eq!(x, draw(Label::Upload, 0));
    }
}
