//! The interface of choices: what cache policies compute with beyond a transformer.

use crate::ceiling::{Ceiling, Origin};
use crate::engine::{Engine, Right};
use crate::error::Error;
use crate::top_k::Ranking;

/// The largest and the smallest entries along an axis, of one shape.
#[derive(Clone, Debug)]
pub struct Extrema<T> {
    /// The largest.
    pub max: T,
    /// The smallest.
    pub min: T,
}

/// The operations of policies that rank tokens and choose among them.
pub trait Select: Engine {
    /// Which k of the n entries of each row, in an order of their own, where the engine knows them: (rows, k, n).
    type Selection: Clone + Send + Sync + 'static;

    /// (..., n) -> (...): sums over the last axis. Free.
    fn sum_last(&mut self, x: &Self::Tensor) -> Result<Self::Tensor, Error>;

    /// -x. Free.
    fn negate(&mut self, x: &Self::Tensor) -> Result<Self::Tensor, Error>;

    /// (..., n) -> (...): sums of squares over the last axis, which stay below 2^20.
    fn sum_squares(&mut self, x: &Self::Tensor) -> Result<Self::Tensor, Error>;

    /// |x| entrywise.
    fn abs(&mut self, x: &Self::Tensor) -> Result<Self::Tensor, Error>;

    /// (..., n) -> (...): maximum and minimum over the last axis.
    fn extrema(&mut self, x: &Self::Tensor) -> Result<Extrema<Self::Tensor>, Error>;

    /// A bound on the entries that the operation `origin` returns, whatever it was given: for [`Ranking::ceiling`].
    ///
    /// # Errors
    /// If the engine does not support such an operation, for its magnitude.
    fn ceiling(&self, origin: Origin) -> Result<Ceiling, Error>;

    /// The `how.k` largest entries of each row of (rows, n). What it reveals depends on `how.method`.
    fn top_k(&mut self, x: &Self::Tensor, how: &Ranking) -> Result<Self::Selection, Error>;

    /// `selection` as one-hot rows that no party knows, so that gathering is a matrix product.
    fn one_hot(&mut self, selection: &Self::Selection) -> Result<Self::Selection, Error>;

    /// `second` chooses among the `fan_out` parts of each entry that `first` chose, (rows, k1, n) and
    /// (rows, k2, k1 fan_out): the selection of parts of all entries, (rows, k2, n fan_out).
    fn compose(
        &mut self,
        first: &Self::Selection,
        fan_out: usize,
        second: &Self::Selection,
    ) -> Result<Self::Selection, Error>;

    /// The chosen entries of `from`, (shared rows, n, w): (rows, k, w). Each row of `from` serves rows / shared rows
    /// consecutive rows of the selection. Entries are below 2^`magnitude`, at most 2^24: fewer bits cost less; an
    /// engine in floating point does not need it. The entries of a cached operand are its tokens.
    fn gather(
        &mut self,
        selection: &Self::Selection,
        from: Right<Self>,
        magnitude: u32,
    ) -> Result<Self::Tensor, Error>;

    /// The entries (rows, k, w), |x| < 2^`magnitude`, back where they were chosen: (rows, n, w), zeros elsewhere.
    fn scatter(
        &mut self,
        selection: &Self::Selection,
        x: &Self::Tensor,
        magnitude: u32,
    ) -> Result<Self::Tensor, Error>;

    /// `selection` in the order in which the chosen entries stand: gathering by it is a stable compaction. No index
    /// is revealed.
    fn in_order(&mut self, selection: &Self::Selection) -> Result<Self::Selection, Error>;

    /// The chosen positions of each row, where the engine [sees its values](Engine::CLEAR).
    fn chosen(&self, selection: &Self::Selection) -> Option<Vec<Vec<usize>>>;
}
