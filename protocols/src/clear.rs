//! The arithmetic black box in the clear: one process, exact integers, every range checked.
//!
//! [`Clear`] is the naive reference against which the protocols are tested. It also shows where a model leaves the
//! ranges of its functions: between two parties an overflow is invisible, while here it is an
//! [`waggle_engine::Error::Range`] that gives the operation's path.

use std::time::Duration;

use ndarray::{ArrayD, Dimension, IxDyn, Zip};
use waggle_net::Role;

use crate::abb::{Abb, given};
use crate::error::of_words;
use crate::form::Values;
use crate::operation::Operation;
use crate::reference::Reference;
use crate::{DEFAULT_LINK, Error, Evaluation, Options};

/// Computes exactly on visible values: runs the reference of every operation.
///
/// A word is the value itself, sign-extended to 64 bits from the width of the operation that made it. Multiplications
/// compute over the integers and refuse a result that is not a signed `width`-bit value. Truncations and comparisons
/// refuse inputs outside their ranges. Truncation rounds to nearest.
#[derive(Debug, Default)]
pub struct Clear {
    reference: Reference,
    evaluation: Evaluation,
    options: Options,
}

type W = ArrayD<u64>;

/// A link for the choices that depend on one. A box in the clear then makes the same choices as the parties of a
/// two-phase session.
const LINK_OF_REFERENCES: waggle_net::LinkShape =
    waggle_net::LinkShape { round_trip: Duration::from_millis(4), ..DEFAULT_LINK };

impl Clear {
    /// A box at the root of the operation path.
    pub fn new() -> Self {
        Self::default()
    }

    /// The reference of boxes that evaluate functions by `evaluation`.
    pub fn evaluating(evaluation: Evaluation) -> Self {
        let preprocess = evaluation == Evaluation::Masked;
        let link = if preprocess { LINK_OF_REFERENCES } else { DEFAULT_LINK };
        Clear { evaluation, options: Options { preprocess, link, ..Options::default() }, ..Self::default() }
    }
}

impl Abb for Clear {
    type Form = Values;
    type Words = W;
    type Bits = ArrayD<u8>;
    const CLEAR: bool = true;

    fn enter(&mut self, name: &str) {
        self.reference.path.push(name.to_owned());
    }

    fn leave(&mut self) {
        self.reference.path.pop();
    }

    fn apply<O: Operation>(&mut self, operation: O, input: O::Input<'_, Values>) -> Result<O::Output<Values>, Error> {
        // This checks the shapes.
        operation.size(&input);
        operation.reference(&mut self.reference, input)
    }

    fn public(&mut self, shape: &[usize], value: impl Fn(&[usize]) -> u64) -> W {
        ArrayD::from_shape_fn(IxDyn(shape), |at| value(at.slice()))
    }

    fn constant(&mut self, shape: &[usize], value: u64) -> W {
        ArrayD::from_elem(IxDyn(shape), value)
    }

    fn add_public(&mut self, x: &W, value: u64) -> W {
        x.mapv(|v| v.wrapping_add(value))
    }

    fn input(&mut self, owner: Role, shape: &[usize], values: Option<&W>) -> Result<W, Error> {
        given(owner, shape, values).cloned()
    }

    fn not(&mut self, bits: &ArrayD<u8>) -> ArrayD<u8> {
        bits.mapv(|b| b ^ 1)
    }

    fn xor(&mut self, a: &ArrayD<u8>, b: &ArrayD<u8>) -> ArrayD<u8> {
        assert_eq!(a.shape(), b.shape(), "shapes of an exclusive or");
        Zip::from(a).and(b).map_collect(|a, b| a ^ b)
    }

    fn low_bit(&mut self, x: &W) -> ArrayD<u8> {
        x.mapv(|v| (v & 1) as u8)
    }

    fn options(&self) -> &Options {
        &self.options
    }

    fn evaluation(&self) -> Evaluation {
        self.evaluation
    }

    fn expect_below(&mut self, x: &W, bound: i128, frac: u32) -> Result<(), Error> {
        match x.iter().map(|&x| i128::from(x as i64)).find(|v| v.abs() >= bound) {
            Some(v) => Err(of_words(frac)(self.reference.out_of_range("range", v, 1 - bound, bound - 1))),
            None => Ok(()),
        }
    }

    fn visible(&self, x: &W) -> Option<W> {
        Some(x.clone())
    }
}
