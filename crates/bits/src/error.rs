//! Errors of packed bits.

use thiserror::Error;

/// Bytes that are not the packed bits they should be. Each case names the message that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// Another number of bytes than the shape prescribes.
    #[error("{what}: got {got} bytes, expected {expected}")]
    Length {
        /// The message, or the step that reads it.
        what: &'static str,
        /// Bytes that the shape prescribes.
        expected: usize,
        /// Bytes received.
        got: usize,
    },
    /// The last byte has bits beyond the last value, and one of them is set.
    #[error("{what}: padding bits are not zero")]
    Padding {
        /// The message, or the step that reads it.
        what: &'static str,
    },
}

impl Error {
    /// The message, or the step that reads it.
    pub fn what(&self) -> &'static str {
        match self {
            Error::Length { what, .. } | Error::Padding { what } => what,
        }
    }
}
