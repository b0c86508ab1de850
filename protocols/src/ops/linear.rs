//! Linear layers: x W + b with the server's W and b.
//!
//! **Functionality.** Shares of x, the server's W and b -> shares of x W + b modulo 2^[`LINEAR_WIDTH`], with the
//! fractional bits of x plus those of the weight. **Source.** [`private`], direct or prepared; the server adds b to
//! its share.
//!
//! **Range.** |x W + b| < 2^([`LINEAR_WIDTH`] - 1). **Error.** That of [`private`], a few units in the last
//! place. **Revealed.** Nothing.

use ndarray::{Array2, Array3, IxDyn};

use crate::operation::prelude::*;
use crate::ops::private::{self, MaskedRow};
use crate::twin::integers;
use crate::weight::FixedWeight;
use crate::{LINEAR_WIDTH, Shape, WeightSpec};

/// x W + b: (..., inputs) -> (..., outputs).
#[derive(Clone, Copy, Debug)]
pub struct Linear<'w> {
    /// W and b.
    pub weight: &'w FixedWeight,
}

impl Linear<'_> {
    fn rows(shape: &[usize]) -> usize {
        shape[..shape.len() - 1].iter().product()
    }

    fn result(&self, shape: &[usize]) -> Vec<usize> {
        appended(&shape[..shape.len() - 1], self.weight.spec.outputs)
    }
}

impl Operation for Linear<'_> {
    type Input<'a, F: Form> = &'a F::Words;
    type Output<F: Form> = F::Words;
    /// The shape of x.
    type Size = Vec<usize>;

    fn size<F: Form>(&self, x: &&F::Words) -> Vec<usize> {
        let shape = x.shape();
        assert_eq!(shape.last(), Some(&self.weight.spec.inputs), "inputs of `{}`", self.weight.spec.name);
        shape
    }

    fn correlations(&self, shape: &Vec<usize>, options: &Options) -> Option<Need> {
        options.preprocess.then(|| Need::new(MaskedRow::of(self.weight, LINEAR_WIDTH), Self::rows(shape)))
    }

    fn matrix(&self) -> Option<&[i32]> {
        self.weight.values.as_ref().map(|values| &*values.matrix)
    }

    fn cost(&self, shape: &Vec<usize>, prepared: bool, plans: &mut Plans) -> Result<Cost, Error> {
        private::cost(plans, self.weight, Self::rows(shape), LINEAR_WIDTH, prepared)
    }

    fn run(&self, s: &mut Session, x: &ArrayD<u64>, masks: Option<&[u64]>) -> Result<ArrayD<u64>, Error> {
        let rows = Self::rows(x.shape());
        let mut share = private::product(s, self.weight, rows, LINEAR_WIDTH, Some(&flat(x)), masks)?;
        if let Some(values) = self.weight.values.as_ref().filter(|_| s.is_server()) {
            for row in share.chunks_exact_mut(values.bias.len().max(1)) {
                row.iter_mut().zip(&values.bias).for_each(|(y, b)| *y = y.wrapping_add(*b as u64));
            }
        }
        Ok(shaped(&self.result(x.shape()), share))
    }

    fn twin(&self, twin: &mut Twin, x: &ArrayD<u64>) -> Result<ArrayD<u64>, Error> {
        let WeightSpec { inputs, outputs, .. } = self.weight.spec;
        let values = self.weight.known()?;
        let rows = Self::rows(x.shape());
        let a =
            integers(x, LINEAR_WIDTH).into_shape_with_order((1, rows, inputs)).expect("activations are row-major");
        let w = values.matrix.iter().map(|&v| i64::from(v)).collect();
        let w = Array3::from_shape_vec((1, inputs, outputs), w).expect("a row-major matrix");
        let y = twin.products("linear", &a, &w, LINEAR_WIDTH)?;
        let y = y.into_shape_with_order((rows, outputs)).expect("as many entries");
        let sums = Array2::from_shape_fn((rows, outputs), |(i, j)| {
            i128::from(y[[i, j]] as i64) + i128::from(values.bias[j])
        });
        let sums = sums.into_shape_with_order(IxDyn(&self.result(x.shape()))).expect("as many entries");
        twin.fitted("linear", sums, LINEAR_WIDTH)
    }

    fn planned(&self, shape: Vec<usize>) -> Shape {
        Shape(self.result(&shape))
    }
}
