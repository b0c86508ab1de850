//! The operations that cache policies need beyond those of a transformer: ranking and choosing.

use crate::ceiling::{Ceiling, Origin};
use crate::engine::{Engine, Right};
use crate::error::Error;
use crate::top_k::Ranking;

/// The largest and the smallest entries along an axis. Both tensors have the same shape.
#[derive(Clone, Debug)]
pub struct Extrema<T> {
    /// The largest entries.
    pub max: T,
    /// The smallest entries.
    pub min: T,
}

/// The operations of policies that rank tokens and choose among them.
pub trait Select: Engine {
    /// A choice of k of the n entries of each row, in some order: (rows, k, n). Only a clear engine knows which ones.
    type Selection: Clone + Send + Sync + 'static;

    /// Sums over the last axis, at no cost: (..., n) -> (...).
    fn sum_last(&mut self, x: &Self::Tensor) -> Result<Self::Tensor, Error>;

    /// The negated tensor -x, at no cost.
    fn negate(&mut self, x: &Self::Tensor) -> Result<Self::Tensor, Error>;

    /// Sums of squares over the last axis: (..., n) -> (...). The sums must stay below 2^20.
    fn sum_squares(&mut self, x: &Self::Tensor) -> Result<Self::Tensor, Error>;

    /// |x| entrywise.
    fn abs(&mut self, x: &Self::Tensor) -> Result<Self::Tensor, Error>;

    /// The maximum and the minimum over the last axis: (..., n) -> (...).
    fn extrema(&mut self, x: &Self::Tensor) -> Result<Extrema<Self::Tensor>, Error>;

    /// A bound on the entries that the operation `origin` returns for any input. It serves [`Ranking::ceiling`].
    ///
    /// # Errors
    /// If the engine does not support the magnitude of `origin`.
    fn ceiling(&self, origin: Origin) -> Result<Ceiling, Error>;

    /// The `how.k` largest entries of each row of `x` (rows, n). What is revealed depends on `how.method`.
    fn top_k(&mut self, x: &Self::Tensor, how: &Ranking) -> Result<Self::Selection, Error>;

    /// `selection` as one-hot rows that no party knows, so that gathering is a matrix product.
    fn one_hot(&mut self, selection: &Self::Selection) -> Result<Self::Selection, Error>;

    /// Combines two selections into one. `first` (rows, k1, n) chooses entries, each of which has `fan_out` parts;
    /// `second` (rows, k2, k1 fan_out) chooses among the parts of the chosen entries. The result (rows, k2, n
    /// fan_out) chooses among the parts of all entries.
    fn compose(
        &mut self,
        first: &Self::Selection,
        fan_out: usize,
        second: &Self::Selection,
    ) -> Result<Self::Selection, Error>;

    /// The chosen entries of `from` (shared, n, w): (rows, k, w). Each of the `shared` matrices of `from` serves rows
    /// / shared consecutive rows of the selection. Entries satisfy |x| < 2^`magnitude`, with a magnitude of at most
    /// 24; a smaller one costs less, and an engine in floating point ignores it. The entries of a cached operand are
    /// its tokens.
    fn gather(
        &mut self,
        selection: &Self::Selection,
        from: Right<Self>,
        magnitude: u32,
    ) -> Result<Self::Tensor, Error>;

    /// Puts the entries `x` (rows, k, w), |x| < 2^`magnitude`, back to the positions that were chosen: (rows, n, w),
    /// with zeros elsewhere.
    fn scatter(
        &mut self,
        selection: &Self::Selection,
        x: &Self::Tensor,
        magnitude: u32,
    ) -> Result<Self::Tensor, Error>;

    /// `selection` with its entries in the order of their positions, so that gathering by it is a stable compaction.
    /// No index is revealed.
    fn in_order(&mut self, selection: &Self::Selection) -> Result<Self::Selection, Error>;

    /// The chosen positions of each row if the engine [sees its values](Engine::CLEAR), otherwise `None`.
    fn chosen(&self, selection: &Self::Selection) -> Option<Vec<Vec<usize>>>;
}
