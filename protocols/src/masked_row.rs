//! Products with a weight, by a name that is the same on all machines.

use serde::{Deserialize, Serialize};

/// Shares of r W for a random row r of the client and the matrix W of a weight. Unit: a row. The client keeps r next
/// to its share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MaskedRow {
    /// Published name of the matrix.
    pub weight: String,
    /// Rows of the matrix.
    pub inputs: usize,
    /// Columns of the matrix.
    pub outputs: usize,
    /// Bits of the ring.
    pub width: u32,
    /// Entries of the matrix are below 2^bits in magnitude.
    pub bits: u32,
    /// Equal blocks on the diagonal of the matrix, beside which it is zero. No helper deals products with more than
    /// one, and none is told.
    #[serde(skip, default = "one")]
    pub blocks: usize,
}

fn one() -> usize {
    1
}
