//! An elementwise product cut into blocks and pieces: how many, where they lie in the messages, and how well masks
//! hide them.

use super::primes::plaintext_primes;
use crate::error::HeError;
use crate::params::torus_error;
use crate::sampling::{ERROR_VARIANCE, SEED_BYTES};
use crate::set::ParamSet;
use waggle_bits::packed_bytes;

/// Statistical distance between the key holder's view and its simulation: at most `2^-60` for a whole message, so
/// that a session of `10^6` messages stays at `2^-40`.
pub(crate) const STATISTICAL_BITS: f64 = 60.0;

/// Smallest number of slots of a block.
const MIN_SLOTS: usize = 64;

/// Longest vector of one plan.
const MAX_LEN: usize = 1 << 32;

/// A block of a vector: the elements `start .. start + count`. They are held in `slots` slots, in the subring of
/// polynomials in `X^stride`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) index: usize,
    pub(crate) start: usize,
    pub(crate) count: usize,
    pub(crate) slots: usize,
    pub(crate) stride: usize,
}

/// The parameters of `len` products modulo `2^width`: the parameter set, the plaintext primes and the sizes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Layout {
    pub(crate) len: usize,
    pub(crate) width: u32,
    /// Products may be off by `2^error_bits`.
    pub(crate) error_bits: u32,
    pub(crate) set: ParamSet,
    /// Plaintext primes, all of the same size. Their product is at least `2^(2 width - error_bits)`.
    pub(crate) primes: Vec<u64>,
}

impl Layout {
    /// The layout that sends the fewest bytes both ways.
    pub(crate) fn search(len: usize, width: u32, error_bits: u32, operands: usize) -> Result<Self, HeError> {
        HeError::check_width("ring width", 64, width)?;
        HeError::check_width("bits above an error", width, width.saturating_sub(error_bits))?;
        if !(1..MAX_LEN).contains(&len) {
            return Err(HeError::Shape { step: "OLE" });
        }
        let mut best: Option<Self> = None;
        for set in ParamSet::ALL {
            for count in 1..=5 {
                let Some(primes) = plaintext_primes(set, 2 * width - error_bits, count) else { continue };
                let layout = Self { len, width, error_bits, set, primes };
                let bytes = |l: &Self| l.upload_bytes(operands) + l.download_bytes();
                if layout.hides(operands) && best.as_ref().is_none_or(|b| bytes(&layout) < bytes(b)) {
                    best = Some(layout);
                }
            }
        }
        best.ok_or(HeError::Noise { width, weight_bits: width, max_lsb_error: 1 })
    }

    /// Bound on the standard deviation of the noise of a response, for any operands of the evaluator. A plaintext has
    /// at most `slots` coefficients of up to t / 2, and each multiplies a fresh error (variance 10.5, and 1 for the
    /// rounding of the message). The encryption of zero adds its own noise.
    pub(crate) fn noise(&self, operands: usize) -> f64 {
        let n = self.set.degree() as f64;
        let t = self.primes.iter().copied().fold(0, u64::max) as f64;
        let product = (ERROR_VARIANCE + 1.0) * operands as f64 * self.block(0).slots as f64 * (t / 2.0).powi(2);
        (product + ERROR_VARIANCE * (1.0 + 2.0 * n)).sqrt()
    }

    /// Bound on the statistical distance of the whole message from its simulation (see the module documentation).
    pub(crate) fn distance(&self, operands: usize) -> f64 {
        let q: f64 = self.set.primes().iter().map(|&p| p as f64).product();
        let t = self.primes.iter().copied().fold(0, u64::max) as f64;
        let slots: f64 = (0..self.blocks()).map(|b| self.block(b).slots as f64).sum();
        // The mean of |e| is at most its standard deviation.
        let coefficient = 2.0 * t * (self.noise(operands) / q + 2.0 * torus_error(self.set.primes().len()));
        coefficient * slots * self.primes.len() as f64
    }

    /// Whether the masks hide the noise of the whole message well enough.
    fn hides(&self, operands: usize) -> bool {
        let log_q: f64 = self.set.primes().iter().map(|&p| (p as f64).log2()).sum();
        f64::from(self.c1_bits()) < log_q && self.distance(operands) <= (-STATISTICAL_BITS).exp2()
    }

    fn prime_bits(&self) -> u32 {
        self.primes.iter().map(|t| 64 - t.leading_zeros()).max().unwrap_or(0)
    }

    /// Bits to which c0 is rounded. For a plaintext prime t, the rounding moves `t c0 / q` by at most 1/16.
    pub(crate) fn c0_bits(&self) -> u32 {
        self.prime_bits() + 3
    }

    /// Bits b1 to which c1 is rounded. For a plaintext prime t and the secret s, the rounding moves `t c1 s / q` by
    /// at most 1/8: the rounding error times s is subgaussian with parameter at most `sqrt(N / 12) 2^-b1`, so
    /// `b1 = log t + 11` puts 1/8 at 9.8 (N = 8192) deviations or more. The probability of more is below `2^-68`.
    pub(crate) fn c1_bits(&self) -> u32 {
        self.prime_bits() + 11
    }

    pub(crate) fn blocks(&self) -> usize {
        self.len.div_ceil(self.set.degree())
    }

    /// Number of ciphertexts per operand.
    pub(crate) fn pieces(&self) -> usize {
        self.blocks() * self.primes.len()
    }

    pub(crate) fn block(&self, index: usize) -> Block {
        let n = self.set.degree();
        let start = index * n;
        let count = (self.len - start).min(n);
        let slots = count.next_power_of_two().max(MIN_SLOTS);
        Block { index, start, count, slots, stride: n / slots }
    }

    /// Bytes of one uploaded ciphertext of a block. The number of slots is a multiple of 8.
    pub(crate) fn body_bytes(&self, block: &Block) -> usize {
        block.slots / 8 * self.set.log_q() as usize
    }

    fn operand_bytes(&self) -> usize {
        let full = self.block(0);
        let tail = self.block(self.blocks() - 1);
        self.primes.len() * ((self.blocks() - 1) * self.body_bytes(&full) + self.body_bytes(&tail))
    }

    /// Index of the byte of the upload at which a ciphertext begins. The seed of the upload comes first.
    pub(crate) fn upload_offset(&self, operand: usize, block: &Block, prime: usize) -> usize {
        // All blocks before this one are full.
        let before = self.primes.len() * block.index * self.body_bytes(&self.block(0));
        operand * self.operand_bytes() + before + prime * self.body_bytes(block)
    }

    pub(crate) fn upload_bytes(&self, operands: usize) -> usize {
        SEED_BYTES + operands * self.operand_bytes()
    }

    /// Bytes of the response to one block, for one plaintext prime.
    pub(crate) fn response_bytes(&self, block: &Block) -> usize {
        packed_bytes(self.set.degree(), &[self.c1_bits()]) + packed_bytes(block.slots, &[self.c0_bits()])
    }

    pub(crate) fn download_offset(&self, block: &Block, prime: usize) -> usize {
        self.primes.len() * block.index * self.response_bytes(&self.block(0)) + prime * self.response_bytes(block)
    }

    pub(crate) fn download_bytes(&self) -> usize {
        self.download_offset(&self.block(self.blocks() - 1), self.primes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every width, every number of operands, and vectors from one entry to 2^24: what the planner can choose. A plan
    /// for a length between two of the list has fewer slots than a plan for the next power of two.
    #[test]
    fn a_million_messages_of_any_plan_stay_within_the_bound() {
        const MESSAGES: f64 = 1e6;
        let (mut worst, mut sum, mut plans) = (0f64, 0f64, 0);
        for width in 1..=64 {
            for (operands, error_bits) in [(1, 0), (2, 0), (2, width / 4)] {
                let lens = (0..=24).flat_map(|log| [1 << log, (1 << log) + 1, (3 << log) / 2]);
                for len in lens {
                    let layout = Layout::search(len, width, error_bits, operands).unwrap();
                    let distance = layout.distance(operands);
                    assert!(distance <= (-60f64).exp2(), "{len} of {width} bits: 2^{}", distance.log2());
                    (worst, sum, plans) = (worst.max(distance), sum + distance, plans + 1);
                }
            }
        }
        // One session sends the worst of all messages each time, another goes through all of them in turn.
        assert!(MESSAGES * worst <= (-40f64).exp2(), "2^{}", (MESSAGES * worst).log2());
        assert!(MESSAGES / f64::from(plans) * sum <= (-42f64).exp2(), "2^{}", (sum / f64::from(plans)).log2());
    }

    /// The bytes both ways that the example `he_costs` of `bench` measures.
    #[test]
    fn hiding_costs_what_the_results_say() {
        for (len, width, operands, kilobytes) in
            [(768, 64, 1, 251), (8192, 64, 1, 848), (8192, 64, 2, 1389), (768, 44, 1, 172), (8192, 44, 2, 934)]
        {
            let layout = Layout::search(len, width, 0, operands).unwrap();
            let bytes = layout.upload_bytes(operands) + layout.download_bytes();
            assert_eq!((bytes + 500) / 1000, kilobytes, "{len} of {width} bits: {layout:?}");
        }
    }

    /// A product of 50 bits with twelve bits of error costs what an exact product of 44 bits costs.
    #[test]
    fn errors_save_bytes() {
        let [coarse, exact] = [(50, 12), (44, 0)].map(|(width, error_bits)| {
            let layout = Layout::search(1 << 16, width, error_bits, 2).unwrap();
            layout.upload_bytes(2) + layout.download_bytes()
        });
        assert_eq!(coarse, exact);
        assert!(matches!(Layout::search(1, 12, 12, 1), Err(HeError::Width { .. })));
    }

    #[test]
    fn long_vectors_get_a_larger_modulus() {
        let set = |len| Layout::search(len, 64, 0, 1).unwrap().set;
        assert_eq!(set(8192), ParamSet::Widest);
        assert_eq!(set(1 << 20), ParamSet::Wide);
    }
}
