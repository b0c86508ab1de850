//! Errors of packed bits.

use thiserror::Error;

/// Why bytes are not a valid message of packed bits. Each case names the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// The number of bytes is not the one that the shape prescribes.
    #[error("{what}: got {got} bytes, expected {expected}")]
    Length {
        /// The name of the malformed message, or of the step that reads it.
        what: &'static str,
        /// Number of bytes that the shape prescribes.
        expected: usize,
        /// Number of bytes received.
        got: usize,
    },
    /// The last byte has bits beyond the last value, and one of them is set.
    #[error("{what}: padding bits are not zero")]
    Padding {
        /// The name of the malformed message, or of the step that reads it.
        what: &'static str,
    },
}

impl Error {
    /// The name of the malformed message, or of the step that reads it.
    pub fn what(&self) -> &'static str {
        match self {
            Error::Length { what, .. } | Error::Padding { what } => what,
        }
    }
}
