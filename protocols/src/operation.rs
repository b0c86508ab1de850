//! An operation as a value: what it computes, what it costs, how two parties carry it out.
//!
//! A type that implements [`Operation`] is all that a box knows of an operation. [`TwoParty`](crate::TwoParty) runs
//! it, `waggle_planner::Planner` books it, and [`Clear`](crate::Clear) runs its reference:
//!
//! ```text
//! apply(operation, input):
//!     operands = operation.operands(input, stock, options)      of cached products alone
//!     size = operation.size(input)
//!     correlations = operation.correlations(size, options)      nothing in one phase
//!     TwoParty: take masks and correlations from the stock, then operation.run(...)
//!     Planner:  book taking them, then operation.cost(...)
//!     Clear:    operation.reference(...)
//! ```
//!
//! So `operands` and `correlations` decide whether an operation takes its prepared form. A plan follows the same
//! steps.

use ndarray::{ArrayD, IxDyn};

use crate::Error;
use crate::cached::{PreparedMasks, ReadyOperand};
use crate::correlation::Need;
use crate::cost::Cost;
use crate::form::{Form, Shapes, Values};
use crate::matrix::FixedMatrix;
use crate::options::Options;
use crate::plans::Plans;
use crate::reference::Reference;
use crate::session::Session;

/// An operation on hidden words and bits. Public parameters are its fields; hidden operands come as
/// [`Input`](Operation::Input).
///
/// # Laws
/// 1. Both parties call it with equal parameters and with shares of equal shapes.
/// 2. [`run`](Operation::run) returns shares of what [`reference`](Operation::reference) returns, within the stated
///    error.
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

    /// The cached operands of `input`, ready for this product. The box takes their masks before all else. Operations
    /// other than [`CachedMatmul`](crate::CachedMatmul) have none.
    fn operands<'i, F: Form>(
        &self,
        input: &'i mut Self::Input<'_, F>,
        prepared: &mut PreparedMasks,
        options: &Options,
    ) -> Result<Vec<ReadyOperand<'i>>, Error> {
        let _ = (input, prepared, options);
        Ok(Vec::new())
    }

    /// The sizes of `input`.
    fn size<F: Form>(&self, input: &Self::Input<'_, F>) -> Self::Size;

    /// The correlations that the prepared form takes. `None` chooses the direct form.
    fn correlations(&self, size: &Self::Size, options: &Options) -> Option<Need> {
        let _ = (size, options);
        None
    }

    /// The server's matrix, if the correlations depend on one.
    fn matrix(&self) -> Option<&FixedMatrix> {
        None
    }

    /// Messages and OTs of [`run`](Operation::run), in the prepared form or in the direct one.
    fn cost(&self, size: &Self::Size, prepared: bool, plans: &mut Plans) -> Result<Cost, Error>;

    /// This party's part of the protocol: from its shares of `input` to its shares of the result. `correlations` are
    /// the words of the correlations that [`correlations`](Operation::correlations) asked for, or the masks of the
    /// products with [`operands`](Operation::operands).
    fn run(
        &self,
        session: &mut Session,
        input: Self::Input<'_, Values>,
        correlations: Option<&[u64]>,
    ) -> Result<Self::Output<Values>, Error>;

    /// Computes the operation on values in the clear, exactly. Values outside the stated range are refused.
    fn reference(
        &self,
        reference: &mut Reference,
        input: Self::Input<'_, Values>,
    ) -> Result<Self::Output<Values>, Error>;

    /// The shape of the result.
    fn planned(&self, size: Self::Size) -> Self::Output<Shapes>;
}

/// The types of an operation on every entry: `entrywise!(Words -> Bits)` takes a tensor of words and gives bits of
/// the same shape, `entrywise!(Bits, Words -> Words)` takes two tensors of one shape. `entrywise!(Words)` says
/// nothing of the result, and `opened` is a result that a party learns.
macro_rules! entrywise {
    ($from:ident) => {
        type Input<'a, F: Form> = &'a F::$from;
        type Size = Vec<usize>;

        fn size<F: Form>(&self, x: &&F::$from) -> Vec<usize> {
            x.shape()
        }
    };
    ($from:ident -> opened) => {
        type Output<F: Form> = Option<ArrayD<u64>>;
        entrywise!($from);

        fn planned(&self, _: Vec<usize>) -> Option<ArrayD<u64>> {
            None
        }
    };
    ($from:ident -> $to:ident) => {
        type Output<F: Form> = F::$to;
        entrywise!($from);

        fn planned(&self, shape: Vec<usize>) -> crate::Shape {
            crate::Shape(shape)
        }
    };
    ($first:ident, $second:ident -> $to:ident) => {
        type Input<'a, F: Form> = (&'a F::$first, &'a F::$second);
        type Output<F: Form> = F::$to;
        type Size = Vec<usize>;

        fn size<F: Form>(&self, (a, b): &(&F::$first, &F::$second)) -> Vec<usize> {
            assert_eq!(a.shape(), b.shape(), "tensors of one shape");
            a.shape()
        }

        fn planned(&self, shape: Vec<usize>) -> crate::Shape {
            crate::Shape(shape)
        }
    };
}
pub(crate) use entrywise;

/// The entries of `x` in row-major order.
pub fn flat<A: Clone>(x: &ArrayD<A>) -> Vec<A> {
    x.iter().cloned().collect()
}

/// A tensor of `shape` with `entries` in row-major order. `shape` must have as many entries.
pub fn shaped<A>(shape: &[usize], entries: Vec<A>) -> ArrayD<A> {
    ArrayD::from_shape_vec(IxDyn(shape), entries).expect("as many entries as the shape says")
}

/// `shape` with one more axis at the end, of length `n`.
pub fn appended(shape: &[usize], n: usize) -> Vec<usize> {
    shape.iter().copied().chain([n]).collect()
}

/// The imports that a file with an operation needs.
pub mod prelude {
    pub use ndarray::ArrayD;
    pub use waggle_net::Role;

    pub(crate) use super::entrywise;
    pub use super::{Operation, appended, flat, shaped};
    pub use crate::correlation::{Correlation, Need, Pipeline};
    pub use crate::cost::Cost;
    pub use crate::form::{Form, Shapes, Values};
    pub use crate::matrix::FixedMatrix;
    pub use crate::options::Options;
    pub use crate::plans::Plans;
    pub use crate::reference::Reference;
    pub use crate::session::Session;
    pub use crate::words::{mask, signed};
    pub use crate::work::Kernel;
    pub use crate::{Error, Shape, Tensor};
}
