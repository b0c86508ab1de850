//! Cached operands: matrices that an engine remembers between products, and their names.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Where the tokens of a cached operand stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Axis {
    /// The matrix is (d, tokens): the product has a column for every token.
    Columns,
    /// The matrix is (tokens, d): the product sums over tokens.
    Rows,
}

/// The contents of a cached operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum OperandKind {
    /// Keys of the KV cache, for scores.
    Keys,
    /// Values of the KV cache, which attention mixes.
    Values,
    /// One digest for each cluster of keys, for scores of clusters.
    Digests,
    /// Keys and values of clusters side by side, for gathering.
    Clusters,
}

impl OperandKind {
    /// Where the tokens stand. Scores have a column for every token; mixes and gathered rows are sums over tokens.
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
    /// Index of the model's layer.
    pub layer: usize,
    /// The contents of the matrix.
    pub kind: OperandKind,
    /// How many times the matrix's rows were replaced before.
    pub generation: usize,
    /// Index of the part of the layer's heads, where the heads are divided into parts that hold different tokens.
    /// Part 0 is not serialised, so an undivided layer keeps the name that it had before there were parts.
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

/// The engine's memory of a cached matrix between products, beyond the matrix itself.
///
/// It cannot be copied, because a mask that served two matrices would show how they differ.
pub trait CachedOperand: Send + Sized {
    /// An operand before its first product. A matrix whose rows change needs a new operand, of the next
    /// [generation](OperandId::generation).
    fn new(id: OperandId) -> Self;

    /// Takes note, before the first product, that the matrix will have up to `tokens` tokens. Both parties know the
    /// number. The matrix may have more, but products with it may then cost more than they had to.
    fn expect(&mut self, tokens: usize);

    /// Takes note that the matrix was cut back to its first `tokens` tokens, or fewer. Other tokens may take the
    /// places of those it lost. Both parties know how many are left.
    fn roll_back(&mut self, tokens: usize);

    /// A copy of this operand for a plan that continues in another way, or `None` if the operand holds more than
    /// sizes.
    fn fork(&self) -> Option<Self>;
}

/// Nothing: products in the clear are not prepared.
impl CachedOperand for () {
    fn new(_: OperandId) -> Self {}

    fn expect(&mut self, _: usize) {}

    fn roll_back(&mut self, _: usize) {}

    fn fork(&self) -> Option<Self> {
        Some(())
    }
}
