//! Errors of an oblivious transfer, by cause: the link and the peer, or the caller.

use thiserror::Error;
use waggle_net::{NetError, Role};

/// Why an oblivious transfer failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OtError {
    // Errors that the link or the peer can cause.
    /// The channel failed, or the peer's message has the wrong length, tag or content.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The check of `step` failed: the sender of that message deviates from the protocol, or this message or an
    /// earlier one was changed on its way. Nothing that depends on the checked message has been sent, and the pools
    /// give nothing more.
    #[error("the check of `{step}` failed: the {} deviates from the protocol, or a message was changed", name(party))]
    Deviates {
        /// The step of the message that was checked.
        step: &'static str,
        /// The party that sent it.
        party: Role,
    },
    /// Bytes or values handed to `step` do not fit the shape of the transfer.
    #[error("`{step}` got {got} {unit}, expected {expected}")]
    Length {
        /// The step under way.
        step: &'static str,
        /// Name of the things counted.
        unit: &'static str,
        /// Count that the shape prescribes.
        expected: usize,
        /// Count received.
        got: usize,
    },

    // Errors that the caller can cause.
    /// More OTs are asked for than the pool holds; call `ensure` first.
    #[error("{needed} OTs needed, {available} in the pool")]
    Short {
        /// OTs asked for.
        needed: usize,
        /// OTs in the pool.
        available: usize,
    },
    /// A parameter lies outside its range.
    #[error("{what} is {got}, allowed are {allowed}")]
    Parameter {
        /// Name of the parameter.
        what: &'static str,
        /// Range of the parameter.
        allowed: &'static str,
        /// Value of the parameter.
        got: usize,
    },
}

impl OtError {
    /// The peer's message for `step` has the right length but means nothing.
    pub(crate) fn malformed(step: &'static str, what: impl Into<String>) -> Self {
        OtError::Net(NetError::Malformed { step, what: what.into() })
    }

    /// Fails unless a count is the one that the shape of the transfer prescribes.
    pub(crate) fn expect(step: &'static str, unit: &'static str, expected: usize, got: usize) -> Result<(), OtError> {
        if expected == got { Ok(()) } else { Err(OtError::Length { step, unit, expected, got }) }
    }
}

fn name(party: &Role) -> &'static str {
    match party {
        Role::Client => "client",
        Role::Server => "server",
    }
}

impl From<waggle_bits::Error> for OtError {
    fn from(error: waggle_bits::Error) -> Self {
        match error {
            waggle_bits::Error::Length { what, expected, got } => {
                OtError::Length { step: what, unit: "bytes", expected, got }
            }
            other => OtError::malformed(other.what(), other.to_string()),
        }
    }
}
