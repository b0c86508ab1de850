//! What can go wrong in an operation.

use thiserror::Error;

use crate::ops::growing::{Form, OperandId};

/// A failure of an engine or a protocol.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The channel failed.
    #[error(transparent)]
    Net(#[from] net::NetError),
    /// An oblivious transfer failed.
    #[error(transparent)]
    Ot(#[from] ot::OtError),
    /// An encrypted operation failed.
    #[error(transparent)]
    He(#[from] he::HeError),
    /// Prepared correlations cannot be kept.
    #[error(transparent)]
    Stock(#[from] crate::stock::StockError),
    /// A weight holds a value that is not a finite number.
    #[error("tensor `{tensor}` holds {value} at position {position}")]
    NotFinite {
        /// Published name of the tensor.
        tensor: String,
        /// The value.
        value: f32,
        /// Row-major position.
        position: usize,
    },
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
    /// Data of another shape than its specification.
    #[error("tensor `{tensor}` has shape {got:?}, expected {expected:?}")]
    Shape {
        /// Name of the tensor or operation.
        tensor: String,
        /// Shape expected.
        expected: Vec<usize>,
        /// Shape found.
        got: Vec<usize>,
    },
    /// An operation needs the values of a weight that this party does not have.
    #[error("the values of tensor `{tensor}` are needed but not known here")]
    NoValues {
        /// Published name of the tensor.
        tensor: String,
    },
    /// A number of fractional bits that no weight has.
    #[error("a weight with {got} fractional bits, expected {low}..={high}")]
    Scale {
        /// Fewest.
        low: u32,
        /// Most.
        high: u32,
        /// Announced.
        got: u32,
    },
    /// A position that was opened to this party lies outside its vector: the peer departed from the protocol.
    #[error("the index opened is {index}, but the vector has {len} entries")]
    Index {
        /// The index.
        index: u64,
        /// Length of the vector.
        len: usize,
    },
    /// An operation that needs an engine which sees its values.
    #[error("{operation} works only where values are seen, not between two parties or as a plan")]
    NotInTheClear {
        /// The operation.
        operation: &'static str,
    },
    /// Destinations that were opened are not those of a permutation: the mask they came from was invalid, or the peer
    /// departed from the protocol.
    #[error("the destinations opened for row {row} are not a permutation of its {len} items")]
    Destinations {
        /// Row of the batch.
        row: usize,
        /// Items of a row.
        len: usize,
    },
    /// A growing matrix has another form than the masks that were made under its name.
    #[error("the operand `{operand}` has {got}, but its masks were made for {expected}")]
    OperandForm {
        /// Its name.
        operand: OperandId,
        /// Form of its masks.
        expected: Form,
        /// Form of the product.
        got: Form,
    },
    /// Two growing matrices of one session have the same name: one mask must not serve both.
    #[error("the operand `{operand}` begins a second time in this session")]
    OperandTwice {
        /// The name.
        operand: OperandId,
    },
    /// A growing matrix has fewer tokens than in the product before.
    #[error("the operand `{operand}` had {expected} tokens before and has {got} now")]
    OperandShrinks {
        /// Its name.
        operand: OperandId,
        /// Tokens before: fewest expected.
        expected: usize,
        /// Tokens now.
        got: usize,
    },
    /// An operation over more entries than it is built for.
    #[error("{operation} over {got} entries, at most {limit} are supported")]
    TooMany {
        /// The operation.
        operation: &'static str,
        /// Most entries supported.
        limit: usize,
        /// Entries asked for.
        got: usize,
    },
    /// An operation on words of a size that needs a wider ring than there is.
    #[error("{operation} on words of this size needs a ring of {got} bits, at most {limit} are supported")]
    Width {
        /// The operation.
        operation: &'static str,
        /// Most bits supported.
        limit: u32,
        /// Bits needed.
        got: u32,
    },
    /// Comparisons that were opened make no ranking: a party departed from the protocol.
    #[error("the comparisons opened for row {row} choose {got} entries, expected {expected}")]
    Winners {
        /// Row of the batch.
        row: usize,
        /// Entries asked for.
        expected: usize,
        /// Entries chosen.
        got: usize,
    },
    /// A token id outside the vocabulary.
    #[error("token id {id} is outside the vocabulary of {vocabulary}")]
    Token {
        /// The id.
        id: u32,
        /// Size of the vocabulary.
        vocabulary: usize,
    },
    /// A value left the range that the operation supports (found by the engine that computes in the clear).
    #[error("{path}: value {value} is outside [{low}, {high}]")]
    Range {
        /// Operation path.
        path: String,
        /// Offending value.
        value: f64,
        /// Smallest value supported.
        low: f64,
        /// Largest value supported.
        high: f64,
    },
}

/// Packed bits that a peer sent, as the transfer that carried them reports them.
impl From<bits::Error> for Error {
    fn from(error: bits::Error) -> Self {
        Error::Ot(error.into())
    }
}
