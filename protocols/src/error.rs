//! Errors of an operation.

use thiserror::Error;

use waggle_engine::OperandId;

use crate::cached::OperandForm;

/// A failure of a protocol, or of an engine over one.
///
/// It becomes an [`waggle_engine::Error`] and back without loss. A cause that any engine may have is
/// [`Error::Engine`] here. A cause that only protocols have is [`waggle_engine::Error::Backend`] there.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A kind of correlation that no helper deals.
    #[error("no helper deals correlations of `{scope}`")]
    NotDealt {
        /// The scope in which the kind is booked.
        scope: &'static str,
    },
    /// A cause that any engine may have.
    #[error(transparent)]
    Engine(waggle_engine::Error),
    /// The channel failed.
    #[error(transparent)]
    Net(#[from] waggle_net::NetError),
    /// An oblivious transfer failed.
    #[error(transparent)]
    Ot(#[from] waggle_ot::OtError),
    /// An encrypted operation failed.
    #[error(transparent)]
    He(#[from] waggle_he::HeError),
    /// Prepared correlations cannot be kept.
    #[error(transparent)]
    Stock(#[from] crate::spill::StockError),
    /// The options of the session name a helper, but the session has no link to one.
    #[error("the correlations of this session come from a helper, who is not there")]
    NoHelper,
    /// A product with a weight for which this party or the helper has no half of the matrix.
    #[error("no half of `{weight}` is there")]
    NoHalf {
        /// Published name of the matrix.
        weight: String,
    },
    /// A demand that no helper serves.
    #[error(transparent)]
    Demand(#[from] crate::deal::DemandError),
    /// The helper of the session failed, or the link to the helper.
    #[error("the helper: {0}")]
    Helper(Box<Error>),
    /// Another process that has some columns of the matrices cannot multiply by them.
    #[error(transparent)]
    Spread(Box<dyn std::error::Error + Send + Sync>),
    /// A weight is too large for the fixed-point format.
    #[error("tensor `{tensor}` holds {value}, beyond the largest magnitude {limit} that fits the fixed point")]
    TooLarge {
        /// Published name of the tensor.
        tensor: String,
        /// The value.
        value: f32,
        /// Largest magnitude that fits.
        limit: f32,
    },
    /// A number of fractional bits was announced that no weight can have.
    #[error("a weight with {got} fractional bits, expected {low}..={high}")]
    Scale {
        /// Fewest fractional bits.
        low: u32,
        /// Most fractional bits.
        high: u32,
        /// Fractional bits that were announced.
        got: u32,
    },
    /// The peer announced another number of fractional bits for a weight than this party's values of it have.
    #[error("`{tensor}` has {own} fractional bits here, and {announced} at the peer")]
    OtherScale {
        /// Name of the weight.
        tensor: String,
        /// Fractional bits that the peer announced.
        announced: u32,
        /// Fractional bits of this party's values.
        own: u32,
    },
    /// A position that was opened to this party lies outside its vector: the peer departed from the protocol.
    #[error("the index opened is {index}, but the vector has {len} entries")]
    Index {
        /// The index.
        index: u64,
        /// Length of the vector.
        len: usize,
    },
    /// The opened destinations are no permutation: the mask was invalid, or the peer departed from the protocol.
    #[error("the destinations opened for row {row} are not a permutation of its {len} items")]
    Destinations {
        /// Row of the batch.
        row: usize,
        /// Items of a row.
        len: usize,
    },
    /// A cached operand has another form than the masks that were made under its name.
    #[error("the operand `{operand}` has {got}, but its masks were made for {expected}")]
    OperandForm {
        /// The name of the operand.
        operand: OperandId,
        /// Form of its masks.
        expected: OperandForm,
        /// Form of the product.
        got: OperandForm,
    },
    /// Two cached operands of one session have the same name. One mask must not serve both.
    #[error("the operand `{operand}` begins a second time in this session")]
    OperandTwice {
        /// The name.
        operand: OperandId,
    },
    /// A cached operand has fewer tokens than in the previous product, and none were cut off.
    #[error("the operand `{operand}` had {expected} tokens before and has {got} now")]
    OperandShrinks {
        /// The name of the operand.
        operand: OperandId,
        /// Tokens before: fewest expected.
        expected: usize,
        /// Tokens now.
        got: usize,
    },
    /// A mask served a second time. Only builds for tests check this.
    #[cfg(any(test, feature = "audit"))]
    #[error("a mask that served under `{before}` serves again under `{path}`")]
    MaskTwice {
        /// Path of the operation where the mask serves now.
        path: String,
        /// Path of the operation where the mask served before.
        before: String,
    },
    /// An operation over more entries than it supports.
    #[error("{operation} over {got} entries, at most {limit} are supported")]
    TooMany {
        /// The operation.
        operation: &'static str,
        /// Most entries supported.
        limit: usize,
        /// Entries asked for.
        got: usize,
    },
    /// An operation on words so large that it needs a wider ring than there is.
    #[error("{operation} on words of this size needs a ring of {got} bits, at most {limit} are supported")]
    Width {
        /// The operation.
        operation: &'static str,
        /// Most bits supported.
        limit: u32,
        /// Bits needed.
        got: u32,
    },
    /// The opened comparisons are not those of a ranking: a party departed from the protocol.
    #[error("the comparisons opened for row {row} choose {got} entries, expected {expected}")]
    Winners {
        /// Row of the batch.
        row: usize,
        /// Entries asked for.
        expected: usize,
        /// Entries chosen.
        got: usize,
    },
}

impl Error {
    /// The failure of a link that caused this error, if one did.
    pub fn net(&self) -> Option<&waggle_net::NetError> {
        match self {
            Error::Net(error) | Error::Ot(waggle_ot::OtError::Net(error)) => Some(error),
            _ => None,
        }
    }
}

impl From<waggle_engine::Error> for Error {
    fn from(error: waggle_engine::Error) -> Self {
        match error {
            waggle_engine::Error::Backend(source) => match source.downcast() {
                Ok(error) => *error,
                Err(source) => Error::Engine(waggle_engine::Error::Backend(source)),
            },
            cause => Error::Engine(cause),
        }
    }
}

/// For words with `frac` fractional bits: restates a range error in the numbers that the words stand for.
pub(crate) fn of_words(frac: u32) -> impl Fn(Error) -> Error {
    let unit = f64::from(frac).exp2();
    move |error| match error {
        Error::Engine(waggle_engine::Error::Range { path, value, low, high }) => {
            Error::Engine(waggle_engine::Error::Range {
                path,
                value: value / unit,
                low: low / unit,
                high: high / unit,
            })
        }
        other => other,
    }
}

impl From<Error> for waggle_engine::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Engine(cause) => cause,
            error => waggle_engine::Error::Backend(Box::new(error)),
        }
    }
}

/// Malformed packed bits from a peer, reported as a failure of the transfer that carried them.
impl From<waggle_bits::Error> for Error {
    fn from(error: waggle_bits::Error) -> Self {
        Error::Ot(error.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_engines_and_protocols_become_each_other_without_loss() {
        let token = || waggle_engine::Error::Token { id: 3, vocabulary: 2 };
        assert!(matches!(
            waggle_engine::Error::from(Error::from(token())),
            waggle_engine::Error::Token { id: 3, vocabulary: 2 }
        ));
        let down = || Error::Net(waggle_net::NetError::Malformed { step: "step", what: "nonsense".into() });
        let outside = waggle_engine::Error::from(down());
        assert_eq!(outside.to_string(), down().to_string());
        assert!(outside.backend::<Error>().and_then(Error::net).is_some());
        assert!(matches!(Error::from(outside), Error::Net(waggle_net::NetError::Malformed { step: "step", .. })));
    }
}
