//! Names of the matrices that an engine remembers between products.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Where the tokens of a cached operand stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Axis {
    /// (d, tokens): the product has a column for every token.
    Columns,
    /// (tokens, d): the product sums over tokens.
    Rows,
}

/// The contents of a cached operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum OperandKind {
    /// Keys of the cache, for scores.
    Keys,
    /// Values of the cache, for their mix.
    Values,
    /// Digests of clusters of keys, for scores of clusters.
    Digests,
    /// Keys and values of clusters side by side, for gathering.
    Clusters,
}

impl OperandKind {
    /// Where the tokens stand: scores have a column for every token, mixes and gathered rows are sums over tokens.
    pub fn axis(self) -> Axis {
        match self {
            OperandKind::Keys | OperandKind::Digests => Axis::Columns,
            OperandKind::Values | OperandKind::Clusters => Axis::Rows,
        }
    }
}

/// Names a cached operand of a session. No two operands of a session have the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OperandId {
    /// Layer of the model.
    pub layer: usize,
    /// The contents of the matrix.
    pub kind: OperandKind,
    /// The number of times that its rows were replaced before.
    pub generation: usize,
    /// Which heads of the layer, where these are divided into parts that hold different tokens. The first or only
    /// part is not written out, so that a layer that is not divided has the name that it had before there were parts.
    #[serde(default, skip_serializing_if = "is_first")]
    pub part: usize,
}

fn is_first(part: &usize) -> bool {
    *part == 0
}

impl fmt::Display for OperandId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OperandId { layer, kind, generation, part } = self;
        let kind = match kind {
            OperandKind::Keys => "keys",
            OperandKind::Values => "values",
            OperandKind::Digests => "digests",
            OperandKind::Clusters => "clusters",
        };
        write!(f, "{kind} of layer {layer}, generation {generation}")?;
        // Most layers are not divided.
        if *part > 0 { write!(f, ", part {part}") } else { Ok(()) }
    }
}

/// The engine's memory of a matrix of the cache between products, beyond the matrix itself.
///
/// It cannot be copied: a mask that served two matrices would show how they differ.
pub trait CachedOperand: Send + Sized {
    /// An operand without products so far. Matrices whose rows change take one of the next
    /// [generation](OperandId::generation).
    fn new(id: OperandId) -> Self;

    /// The matrix has lost its last tokens and has `tokens` or fewer: others may come in their places. Both parties
    /// know how many are left.
    fn roll_back(&mut self, tokens: usize);

    /// A copy of this operand for a plan that goes on in another way; `None` if it holds anything but sizes.
    fn fork(&self) -> Option<Self>;
}

/// Nothing: products in the clear are not prepared.
impl CachedOperand for () {
    fn new(_: OperandId) -> Self {}

    fn roll_back(&mut self, _: usize) {}

    fn fork(&self) -> Option<Self> {
        Some(())
    }
}
