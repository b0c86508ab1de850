//! Secure two-party operations on additive shares, each with its cost, and the engines that run a model on them.
//!
//! # Terms
//!
//! - A *box* ([`Abb`]) holds hidden words and bits and applies operations to them: in the clear, between two parties,
//!   or on shapes alone.
//! - A *correlation* ([`Correlation`]) is a set of secret random words, some for each party, that stand in a known
//!   relation. It does not depend on the data. Kinds are counted in *units*: a row, for instance.
//! - The *direct* form of an operation takes no correlations. Its *prepared* form takes them from the *stock*
//!   ([`Stock`]).
//! - The *reference* of an operation computes the same on values in the clear, exactly.
//! - A *flow* is a maximal run of messages in one direction.
//! - A *cached operand* ([`Operand`]) is a matrix that grows from product to product, as keys and values do.
#![deny(missing_docs)]

mod abb;
#[cfg(any(test, feature = "audit"))]
pub mod audit;
pub mod cached;
mod clear;
pub mod correlation;
pub mod cost;
pub mod deal;
mod error;
mod fixed_point;
pub mod form;
pub mod functions;
pub mod halves;
mod indices;
mod kernel;
pub mod lengths;
pub mod local;
mod masked_row;
mod matrix;
pub mod operation;
pub mod ops;
mod options;
mod plans;
pub mod preparation;
pub mod reference;
mod session;
pub(crate) mod spill;
pub mod spread;
pub mod stock;
#[cfg(test)]
mod tests;
mod times;
mod two_party;
mod weight;
pub mod wire;
pub mod words;
mod work;

pub use abb::Abb;
pub use cached::{CachedMatmul, CachedProduct, Operand};
pub use clear::Clear;
pub use correlation::{Correlation, CorrelationKind, Pipeline};
// Types of the engine that appear in signatures of this crate.
pub use error::Error;
pub use fixed_point::{Fixed, FixedPoint, Secure};
pub use form::Form;
pub use indices::Indices;
pub use lengths::Lengths;
pub use matrix::{FixedMatrix, WEIGHT_BITS};
pub use operation::Operation;
pub use options::{Cores, DEFAULT_LINK, Evaluation, HelperDeals, MAX_CORES, Masks, Options, ParseCoresError};
#[cfg(any(test, feature = "audit"))]
pub use options::{DEALER, TWO_PHASES};
pub use plans::Plans;
pub use preparation::Made;
pub use session::{PeerKeys, Session};
pub use spill::{StockError, check_space};
pub use spread::Spread;
pub use stock::{MAX_PARTS, Needs, Part, PartError, Stock, Uses};
pub use two_party::TwoParty;
pub use waggle_engine::{Axis, Ceiling, Gelu, OperandId, OperandKind, Ranking, Shape, Tensor, WeightSpec};
pub use waggle_he::{DEFAULT_CORES, Packing, WeightCache};
pub use weight::{
    DEFAULT_WEIGHT_FRAC, FixedLoader, FixedValues, FixedWeight, MIN_WEIGHT_FRAC, NARROW_BITS, quantise,
};
pub use words::Words;
pub use work::{Kernel, Rates, Work};

/// Fractional bits of activations.
pub const FRAC: u32 = 18;

/// Bits of the ring of products with weights. A product y has the fractional bits of both factors together, and |y| <
/// 2^(LINEAR_WIDTH - 2) in units of its last place. Weights of 8 bits have a narrower ring ([`FixedWeight::width`]).
pub const LINEAR_WIDTH: u32 = 56;

/// Fractional bits of embedded rows before they are rounded to [`FRAC`].
pub const EMBED_FRAC: u32 = 20;

/// Bits of the ring of embedded rows: entries are below 2^(EMBED_WIDTH - 2 - EMBED_FRAC) = 1024 in magnitude.
pub const EMBED_WIDTH: u32 = 32;
