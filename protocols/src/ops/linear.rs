//! Linear layers: x W + b with the server's W and b, or with those that both parties have.
//!
//! **Functionality.** Shares of x, the server's W and b -> shares of x W + b modulo 2^w for the weight's
//! [`width`](FixedWeight::width) w, with the fractional bits of x plus those of the weight. **Source.** [`private`];
//! the server adds b.
//!
//! With a [public](waggle_engine::WeightSpec::public) W each party multiplies its own share by it, because
//! (x_c + x_s) W = x_c W + x_s W. Nothing is sent or prepared, and the product is exact.
//!
//! **Range.** |x W + b| < 2^(w - 1). **Error.** The error of [`private`], or none with a public W. **Revealed.**
//! Nothing.

use crate::operation::prelude::*;
use crate::ops::private::{self, MaskedRow};
use crate::reference::{integers, times_matrix};
use crate::weight::FixedWeight;

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
        let prepares = options.preprocess && !self.weight.spec.public;
        prepares.then(|| Need::new(MaskedRow::of(self.weight, self.weight.width()), Self::rows(shape)))
    }

    fn matrix(&self) -> Option<&FixedMatrix> {
        self.weight.values.as_ref().map(|values| &values.matrix)
    }

    fn cost(&self, shape: &Vec<usize>, prepared: bool, plans: &mut Plans) -> Result<Cost, Error> {
        if self.weight.spec.public {
            return Ok(private::own_cost(
                Cost::free(),
                &[Role::Client, Role::Server],
                self.weight,
                Self::rows(shape),
            ));
        }
        private::cost(plans, self.weight, Self::rows(shape), self.weight.width(), prepared)
    }

    fn run(&self, s: &mut Session, x: &ArrayD<u64>, masks: Option<&[u64]>) -> Result<ArrayD<u64>, Error> {
        let rows = Self::rows(x.shape());
        let mut share = match self.weight.spec.public {
            true => self.weight.known()?.matrix.times(&flat(x))?,
            false => private::product(s, self.weight, rows, self.weight.width(), Some(&flat(x)), masks)?,
        };
        if let Some(values) = self.weight.values.as_ref().filter(|_| s.is_server()) {
            for row in share.chunks_exact_mut(values.bias.len().max(1)) {
                row.iter_mut().zip(&values.bias).for_each(|(y, b)| *y = y.wrapping_add(*b as u64));
            }
        }
        Ok(shaped(&self.result(x.shape()), share))
    }

    fn reference(&self, reference: &mut Reference, x: &ArrayD<u64>) -> Result<ArrayD<u64>, Error> {
        let values = self.weight.known()?;
        let outputs = self.weight.spec.outputs;
        let y = times_matrix(&integers(x, self.weight.width()), &values.matrix)?;
        // The product must fit the ring, and so must its sum with the bias.
        let product = reference.fitted("linear", shaped(&self.result(x.shape()), y), self.weight.width())?;
        let biases = (0..outputs).cycle().map(|j| i128::from(values.bias[j]));
        let sums = product.iter().zip(biases).map(|(&y, bias)| i128::from(y as i64) + bias).collect();
        let sums = shaped(&self.result(x.shape()), sums);
        reference.fitted("linear", sums, self.weight.width())
    }

    fn planned(&self, shape: Vec<usize>) -> Shape {
        Shape(self.result(&shape))
    }
}
