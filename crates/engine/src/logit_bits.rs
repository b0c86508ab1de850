//! The precision to which logits are opened.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Fractional bits of the logits that a client learns: 0..=[`LogitBits::MAX`], 8 by default. More bits reveal more
/// about the weights and hardly improve sampling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct LogitBits(u32);

/// The error for a text or a number that is not a valid number of fractional bits of a logit.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("`{got}` is no number of fractional bits of a logit: expected 0..={}", LogitBits::MAX)]
pub struct LogitBitsError {
    /// The value that was given.
    pub got: String,
}

impl LogitBits {
    /// The largest value. Products with weights have at least 22 fractional bits, so at least 8 of them are rounded
    /// away at random.
    pub const MAX: u32 = 14;

    /// The largest value: logits at their finest.
    pub const FINEST: LogitBits = LogitBits(Self::MAX);

    /// The number of fractional bits.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl Default for LogitBits {
    fn default() -> Self {
        LogitBits(8)
    }
}

impl TryFrom<u32> for LogitBits {
    type Error = LogitBitsError;

    fn try_from(bits: u32) -> Result<Self, LogitBitsError> {
        if bits <= Self::MAX { Ok(LogitBits(bits)) } else { Err(LogitBitsError { got: bits.to_string() }) }
    }
}

impl From<LogitBits> for u32 {
    fn from(bits: LogitBits) -> u32 {
        bits.0
    }
}

impl FromStr for LogitBits {
    type Err = LogitBitsError;

    fn from_str(text: &str) -> Result<Self, LogitBitsError> {
        let bits: u32 = text.parse().map_err(|_| LogitBitsError { got: text.chars().take(40).collect() })?;
        bits.try_into()
    }
}

impl fmt::Display for LogitBits {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_is_checked() {
        for bits in 0..=LogitBits::MAX {
            assert_eq!(bits.to_string().parse(), Ok(LogitBits(bits)));
        }
        for text in ["15", "-1", "", "8.0", "4294967304"] {
            assert!(text.parse::<LogitBits>().is_err(), "{text}");
        }
        assert_eq!(LogitBits::default().get(), 8);
    }
}
