//! The arithmetic black box: the interface over which all composite functions are written.
//!
//! A box holds words of Z_2^64 and bits that the caller cannot see. It computes linear functions of them for free and
//! applies [`Operation`]s to them. Composite functions ([`crate::functions`]) and the fixed-point engine are written
//! once over [`Abb`], and run by three boxes: `Clear`, `TwoParty` and `waggle_planner::Planner`.
//!
//! # Words and widths
//! A word is always stored modulo 2^64. An operation that takes a `width` w looks only at the low w bits of each
//! share, so narrowing a word is free. Its result is defined modulo 2^w (the bits above are arbitrary) unless it says
//! otherwise. "Signed w-bit value" is the representative in [-2^(w-1), 2^(w-1)).

use std::any::Any;

use ndarray::ArrayD;
use waggle_engine::Layer;
use waggle_net::Role;

use crate::form::Form;
use crate::operation::Operation;
use crate::plans::Plans;
use crate::words::Words;
use crate::{Error, Evaluation, FixedWeight, Options, Tensor};

/// Hidden words and bits, and operations on them. Functions over this trait run in every box.
pub trait Abb: 'static {
    /// The form of hidden tensors.
    type Form: Form<Words = Self::Words, Bits = Self::Bits>;
    /// Hidden words.
    type Words: Words + 'static;
    /// Hidden bits.
    type Bits: Tensor + 'static;

    /// Whether [`visible`](Abb::visible) shows the values.
    const CLEAR: bool = false;
    /// Whether the box books costs instead of computing.
    const PLAN: bool = false;

    /// Opens the scope `name` of the operation path.
    fn enter(&mut self, name: &str);

    /// Closes the innermost scope.
    fn leave(&mut self);

    /// Runs `steps` inside the scope `name`, which is closed on failure too.
    fn scope<T>(&mut self, name: &str, steps: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error>
    where
        Self: Sized,
    {
        self.enter(name);
        let result = steps(self);
        self.leave();
        result
    }

    /// Tells the box that a layer of a model begins. A box that only books costs may skip the layer: it books the
    /// cost of the first layer of the same class, and returns the output that the first layer passed to
    /// [`end_layer`](Abb::end_layer).
    fn begin_layer(&mut self, layer: &Layer<FixedWeight>) -> Result<Option<&dyn Any>, Error> {
        let _ = layer;
        Ok(None)
    }

    /// Tells the box that the layer which began last has ended, and hands over the layer's output.
    fn end_layer(&mut self, output: Box<dyn Any + Send>) {
        let _ = output;
    }

    /// Applies `operation` to `input`.
    fn apply<O: Operation>(
        &mut self,
        operation: O,
        input: O::Input<'_, Self::Form>,
    ) -> Result<O::Output<Self::Form>, Error>;

    /// Words with public values. The entry at each index is `value` of this index.
    fn public(&mut self, shape: &[usize], value: impl Fn(&[usize]) -> u64) -> Self::Words;

    /// Words that all have the public value `value`.
    fn constant(&mut self, shape: &[usize], value: u64) -> Self::Words;

    /// x + `value` in every entry.
    fn add_public(&mut self, x: &Self::Words, value: u64) -> Self::Words;

    /// Words that `owner` knows and passes as `Some`; the other party passes `None`. Free: they are the owner's
    /// share.
    fn input(&mut self, owner: Role, shape: &[usize], values: Option<&ArrayD<u64>>) -> Result<Self::Words, Error>;

    /// Complement of bits, free.
    fn not(&mut self, bits: &Self::Bits) -> Self::Bits;

    /// Exclusive or of bits of one shape, free.
    fn xor(&mut self, a: &Self::Bits, b: &Self::Bits) -> Self::Bits;

    /// The lowest bit of every word, free: shares modulo 2 are XOR shares.
    fn low_bit(&mut self, x: &Self::Words) -> Self::Bits;

    /// The public choices of the session that this box runs or stands for.
    fn options(&self) -> &Options;

    /// The plans by which both parties of the session choose between forms of a protocol. `None` in a box whose
    /// choices cost nothing.
    fn plans(&mut self) -> Option<&mut Plans> {
        None
    }

    /// Which kind of table [`Evaluate`](crate::ops::evaluate::Evaluate) uses in this box.
    fn evaluation(&self) -> Evaluation {
        self.options().evaluation()
    }

    /// States that |x| < `bound` for words modulo 2^64 with `frac` fractional bits. A box that sees its values checks
    /// it.
    fn expect_below(&mut self, x: &Self::Words, bound: i128, frac: u32) -> Result<(), Error> {
        let _ = (x, bound, frac);
        Ok(())
    }

    /// The values of the words, if the box sees values, and `None` otherwise. For studies in the clear.
    fn visible(&self, x: &Self::Words) -> Option<ArrayD<u64>> {
        let _ = x;
        None
    }
}

/// The values that `owner` passes, if they have this shape.
pub(crate) fn given<'v>(
    owner: Role,
    shape: &[usize],
    values: Option<&'v ArrayD<u64>>,
) -> Result<&'v ArrayD<u64>, Error> {
    values.filter(|values| values.shape() == shape).ok_or_else(|| {
        let got = values.map(|values| values.shape().to_vec()).unwrap_or_default();
        waggle_engine::Error::Shape { tensor: format!("input of the {owner:?}"), expected: shape.to_vec(), got }
            .into()
    })
}
