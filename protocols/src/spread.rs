//! Products with a matrix of which several processes have some columns each.
//!
//! Only the products of integers are spread, those of [`FixedMatrix::times`](crate::FixedMatrix::times): the online
//! phase takes no others, and neither does the run in the clear before a model is served. Columns are independent and
//! exact modulo 2^64, so the words are those of one process. Products under encryption take place in one process.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use engine::{ColumnRange, MatrixSource, largest};

use crate::Error;

/// X' W' modulo 2^64 for row-major X' and the columns W' of a matrix that this process has.
pub type OwnProduct = Arc<dyn Fn(&[u64]) -> Vec<u64> + Send + Sync>;

/// Processes that multiply by the same matrices together. Each has a range of the columns of every matrix.
///
/// A matrix is known by its number, which counts the weights as they are loaded, in one order everywhere.
pub trait Spread: Debug + Send + Sync {
    /// The columns of this process, for a matrix with `outputs` of them.
    fn columns(&self, outputs: usize) -> Range<usize>;

    /// The largest of what all processes say of their columns of the next matrix. All call this once a matrix.
    ///
    /// # Errors
    /// [`Error::Spread`] if a process cannot answer.
    fn largest(&self, own: f32) -> Result<f32, Error>;

    /// X W modulo 2^64 for row-major X, with the matrix W of number `number` and of shape `shape` (inputs, outputs).
    /// `own` multiplies by the columns of W that this process has, for any number of rows.
    ///
    /// # Errors
    /// [`Error::Spread`] if a process cannot answer.
    fn times(&self, number: usize, shape: (usize, usize), own: OwnProduct, x: &[u64]) -> Result<Vec<u64>, Error>;
}

/// The largest magnitude of `matrix`, of which every process reads its columns. Where they hold what is no finite
/// number, that is returned at once, and the others are not asked.
pub(crate) fn largest_of_all(spread: &dyn Spread, matrix: &Arc<dyn MatrixSource>) -> Result<f32, Error> {
    let own = ColumnRange::new(matrix.clone(), spread.columns(matrix.shape().1));
    let own = largest(&own);
    if own.is_finite() { spread.largest(own) } else { Ok(own) }
}
