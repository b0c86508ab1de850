//! An operation as a value: what it computes, what it costs, how two parties carry it out.
//!
//! A type that implements [`Operation`] is all that a box knows of an operation. [`TwoParty`](crate::TwoParty) runs
//! it, `planner::Planner` books it, and [`Clear`](crate::Clear) runs its twin:
//!
//! ```text
//! apply(operation, input):
//!     size = operation.size(input)
//!     correlations = operation.correlations(size, options)      nothing in one phase
//!     TwoParty: take them from the stock, then operation.run(...)
//!     Planner:  book taking them, then operation.cost(...)
//!     Clear:    operation.twin(...)
//! ```
//!
//! So one method, `correlations`, decides whether an operation is prepared. A plan books what a session does because
//! both follow the same steps.

use ndarray::{ArrayD, IxDyn};

use crate::Error;
use crate::correlation::Need;
use crate::cost::Cost;
use crate::form::{Form, Shapes, Values};
use crate::matrix::FixedMatrix;
use crate::options::Options;
use crate::plans::Plans;
use crate::session::Session;
use crate::twin::Twin;

/// An operation on hidden words and bits. Public parameters are its fields; hidden operands come as
/// [`Input`](Operation::Input).
///
/// # Laws
/// 1. Both parties call it with equal parameters and with shares of equal shapes.
/// 2. [`run`](Operation::run) returns shares of what [`twin`](Operation::twin) returns, within the stated error.
/// 3. `run` sends exactly the messages, and takes exactly the OTs, of [`cost`](Operation::cost).
/// 4. `run` opens nothing but what the documentation of the operation says.
///
/// Operands of wrong shapes are bugs of the caller: the operation panics.
pub trait Operation {
    /// Hidden operands.
    type Input<'a, F: Form>;
    /// Hidden results.
    type Output<F: Form>;
    /// The public sizes that cost and correlations depend on.
    type Size;

    /// The sizes of `input`.
    fn size<F: Form>(&self, input: &Self::Input<'_, F>) -> Self::Size;

    /// The correlations that the prepared form takes. `None` chooses the direct form.
    fn correlations(&self, size: &Self::Size, options: &Options) -> Option<Need> {
        let _ = (size, options);
        None
    }

    /// The server's matrix on which its correlations depend.
    fn matrix(&self) -> Option<&FixedMatrix> {
        None
    }

    /// Messages and OTs of [`run`](Operation::run), in the prepared form or in the direct one.
    fn cost(&self, size: &Self::Size, prepared: bool, plans: &mut Plans) -> Result<Cost, Error>;

    /// This party's part of the protocol: from its shares of `input` to its shares of the result. `correlations` are
    /// the words of the correlations that [`correlations`](Operation::correlations) asked for.
    fn run(
        &self,
        session: &mut Session,
        input: Self::Input<'_, Values>,
        correlations: Option<&[u64]>,
    ) -> Result<Self::Output<Values>, Error>;

    /// The same on values in the clear, exactly. Values outside the stated range are refused.
    fn twin(&self, twin: &mut Twin, input: Self::Input<'_, Values>) -> Result<Self::Output<Values>, Error>;

    /// The shape of the result.
    fn planned(&self, size: Self::Size) -> Self::Output<Shapes>;
}

/// The entries in row-major order.
pub fn flat<A: Clone>(x: &ArrayD<A>) -> Vec<A> {
    x.iter().cloned().collect()
}

/// Entries in row-major order as a tensor of `shape`, whose number of entries they have.
pub fn shaped<A>(shape: &[usize], entries: Vec<A>) -> ArrayD<A> {
    ArrayD::from_shape_vec(IxDyn(shape), entries).expect("as many entries as the shape says")
}

/// `shape` with the axis `n` after its last.
pub fn appended(shape: &[usize], n: usize) -> Vec<usize> {
    shape.iter().copied().chain([n]).collect()
}

/// What the file of an operation imports.
pub mod prelude {
    pub use ndarray::ArrayD;

    pub use super::{Operation, appended, flat, shaped};
    pub use crate::correlation::{Correlation, Need};
    pub use crate::cost::Cost;
    pub use crate::form::{Form, Shapes, Values};
    pub use crate::matrix::FixedMatrix;
    pub use crate::options::Options;
    pub use crate::plans::Plans;
    pub use crate::session::Session;
    pub use crate::twin::Twin;
    pub use crate::work::Kernel;
    pub use crate::{Error, Tensor};
}
