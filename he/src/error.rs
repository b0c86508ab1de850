//! Errors, by cause: parameters, operands, keys, messages.

use crate::set::ParamSet;
use thiserror::Error;

/// Why this crate refuses its input. Errors that a peer can cause ([`Self::Length`], [`Self::Residue`],
/// [`Self::Correction`], [`Self::Padding`]) name the message and carry expected and received values.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HeError {
    // Parameters of the ring.
    /// Parameters that the 128-bit table for ternary secrets does not cover.
    #[error("ring degree {n} allows at most {max_log_q} modulus bits at 128-bit security, got {log_q}")]
    Insecure {
        /// Ring degree N.
        n: usize,
        /// Bits of the requested modulus.
        log_q: u32,
        /// Bits that the table allows for this degree.
        max_log_q: u32,
    },
    /// A ring degree that the 128-bit table does not list.
    #[error("ring degree {n} is not one of 2048, 4096, 8192, 16384")]
    Degree {
        /// Ring degree N.
        n: usize,
    },
    /// A modulus that is not a prime `p = 1 mod 2N` of at most 50 bits, or that repeats the prime of another limb.
    #[error("modulus {modulus:#x} does not suit ring degree {n}: need distinct primes = 1 mod 2N, at most 50 bits")]
    Modulus {
        /// Ring degree N.
        n: usize,
        /// The modulus refused.
        modulus: u64,
    },

    // Errors in the request for a plan.
    /// A shape with an empty dimension or with more than 2^32 entries in an operand.
    #[error("shape of {step} is empty or too large")]
    Shape {
        /// The operation refused.
        step: &'static str,
    },
    /// A bit width outside its legal range.
    #[error("{what} must lie in {min}..={max}, got {got}")]
    Width {
        /// Name of the width.
        what: &'static str,
        /// Smallest legal value.
        min: u32,
        /// Largest legal value.
        max: u32,
        /// Value given.
        got: u32,
    },
    /// No parameter set keeps the error within the tolerated bound.
    #[error("no parameter set multiplies {width}-bit shares by {weight_bits}-bit weights within {max_lsb_error} LSB")]
    Noise {
        /// Ring width l.
        width: u32,
        /// Bits of the plaintext operand.
        weight_bits: u32,
        /// Tolerated error in units of the lowest bit.
        max_lsb_error: u64,
    },

    // Errors in the caller's inputs to a plan.
    /// An operand with the wrong number of entries.
    #[error("{what} has {got} entries, expected {expected}")]
    Operand {
        /// Name of the operand.
        what: &'static str,
        /// Entries expected.
        expected: usize,
        /// Entries given.
        got: usize,
    },
    /// A plaintext operand with an entry outside `|w| < 2^weight_bits`.
    #[error("a weight exceeds the declared {weight_bits} bits")]
    WeightRange {
        /// Declared bits of a weight.
        weight_bits: u32,
    },
    /// A key was made for a parameter set that the operation does not use.
    #[error("the operation uses parameter set {needed:?}, the key has {got:?}")]
    KeySet {
        /// Set of the plan.
        needed: ParamSet,
        /// Set of the key.
        got: ParamSet,
    },
    /// A plan that packs its responses was evaluated without Galois keys.
    #[error("the plan packs its responses, which takes Galois keys of {set:?}")]
    NoGaloisKeys {
        /// Set of the plan.
        set: ParamSet,
    },

    // Errors in the peer's messages.
    /// A message of the wrong length.
    #[error("{message}: got {got} bytes, expected {expected}")]
    Length {
        /// The message refused.
        message: &'static str,
        /// Bytes expected.
        expected: usize,
        /// Bytes received.
        got: usize,
    },
    /// A residue that is not below its modulus.
    #[error("{message}: residue {got} is not below the modulus {modulus}")]
    Residue {
        /// The message refused.
        message: &'static str,
        /// The modulus that the residue must be below.
        modulus: u64,
        /// The residue received.
        got: u64,
    },
    /// A correction of a seeded request that is not below the number of legal corrections.
    #[error("{message}: correction {got} is not below {limit}")]
    Correction {
        /// The message refused.
        message: &'static str,
        /// Number of legal corrections.
        limit: u128,
        /// The correction received.
        got: u128,
    },
    /// Padding bits that are not zero.
    #[error("{message}: padding bits are not zero")]
    Padding {
        /// The message refused.
        message: &'static str,
    },
    /// Packed bits that are wrong in another way.
    #[error(transparent)]
    Packed(waggle_bits::Error),
}

impl HeError {
    /// Fails unless a message has the expected number of bytes.
    pub(crate) fn check_length(message: &'static str, expected: usize, got: usize) -> Result<(), Self> {
        if got == expected { Ok(()) } else { Err(Self::Length { message, expected, got }) }
    }

    /// Fails unless an operand has the expected number of entries.
    pub(crate) fn check_entries(what: &'static str, expected: usize, got: usize) -> Result<(), Self> {
        if got == expected { Ok(()) } else { Err(Self::Operand { what, expected, got }) }
    }

    /// Fails unless `1 <= got <= max`.
    pub(crate) fn check_width(what: &'static str, max: u32, got: u32) -> Result<(), Self> {
        if (1..=max).contains(&got) { Ok(()) } else { Err(Self::Width { what, min: 1, max, got }) }
    }
}

impl From<waggle_bits::Error> for HeError {
    fn from(error: waggle_bits::Error) -> Self {
        match error {
            waggle_bits::Error::Length { what, expected, got } => Self::Length { message: what, expected, got },
            waggle_bits::Error::Padding { what } => Self::Padding { message: what },
            other => Self::Packed(other),
        }
    }
}
