//! Weights as they are published, before an engine computes with them.

use std::sync::Arc;

use ndarray::{Array1, Array2};

use crate::error::Error;
use crate::matrix::{self, MatrixSource};

/// Name and shape of a weight. Both parties know them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightSpec {
    /// Published name, which messages quote.
    pub name: String,
    /// Length of the input vectors, which is the number of rows of the matrix. For a table, its number of rows.
    pub inputs: usize,
    /// Length of the output vectors, which is the number of columns of the matrix.
    pub outputs: usize,
    /// Whether the matrix is published as integers of 8 bits times scales, so that few fractional bits lose little.
    pub narrow: bool,
    /// Whether both parties have the values of the weight. Otherwise the server alone has them.
    pub public: bool,
    /// Equal blocks on the diagonal of the matrix, beside which it is zero. One block is the matrix itself.
    pub blocks: usize,
}

impl WeightSpec {
    /// A weight that is published in floating point and whose values the server alone has.
    pub fn new(name: impl Into<String>, inputs: usize, outputs: usize) -> Self {
        WeightSpec { name: name.into(), inputs, outputs, narrow: false, public: false, blocks: 1 }
    }
}

/// Values of a weight: y = x W + b with W of shape (inputs, outputs). Only the server has them, unless the weight is
/// [public](WeightSpec::public).
#[derive(Clone, Debug)]
pub struct WeightData {
    /// W.
    pub matrix: Arc<dyn MatrixSource>,
    /// b of length `outputs`; `None` stands for zeros.
    pub bias: Option<Array1<f32>>,
}

impl WeightData {
    /// A weight in memory.
    pub fn new(matrix: Array2<f32>, bias: Option<Array1<f32>>) -> Self {
        WeightData { matrix: Arc::new(matrix), bias }
    }

    /// Checks that the values fit `spec` and are finite, and returns the largest magnitude in W. W is read once.
    ///
    /// # Errors
    /// [`Error::Shape`] and [`Error::NotFinite`], with the tensor's name.
    pub fn check(&self, spec: &WeightSpec) -> Result<f32, Error> {
        self.check_by(spec, |matrix| Ok(matrix::largest(&**matrix)))
    }

    /// [`WeightData::check`] with a function `largest` that finds the largest magnitude in W, called once the shapes
    /// are checked. It returns infinity or NaN if an entry is not finite, and only then W is read here, to find the
    /// entry.
    ///
    /// # Errors
    /// The errors of [`WeightData::check`] and of `largest`.
    pub fn check_by<E: From<Error>>(
        &self,
        spec: &WeightSpec,
        largest: impl FnOnce(&Arc<dyn MatrixSource>) -> Result<f32, E>,
    ) -> Result<f32, E> {
        let shape_error = |expected: &[usize], got: &[usize]| Error::Shape {
            tensor: spec.name.clone(),
            expected: expected.to_vec(),
            got: got.to_vec(),
        };
        let WeightData { matrix, bias } = self;
        let (inputs, outputs) = matrix.shape();
        if (inputs, outputs) != (spec.inputs, spec.outputs) {
            return Err(shape_error(&[spec.inputs, spec.outputs], &[inputs, outputs]).into());
        }
        if let Some(bias) = bias.as_ref().filter(|bias| bias.len() != spec.outputs) {
            return Err(shape_error(&[spec.outputs], &[bias.len()]).into());
        }
        let largest = largest(matrix)?;
        let not_finite = |value: &f32| !value.is_finite();
        let in_matrix = if largest.is_finite() { None } else { self.find(|value| not_finite(&value)) };
        let in_bias = || {
            let bad = bias.iter().flatten().copied().enumerate().find(|(_, value)| not_finite(value));
            bad.map(|(i, value)| (inputs * outputs + i, value))
        };
        match in_matrix.or_else(in_bias) {
            Some((position, value)) => Err(Error::NotFinite { tensor: spec.name.clone(), value, position }.into()),
            None => Ok(largest),
        }
    }

    /// The position and the value of the first entry of W, in row-major order, for which `holds` is true.
    pub fn find(&self, holds: impl Fn(f32) -> bool) -> Option<(usize, f32)> {
        matrix::find(&*self.matrix, holds)
    }

    /// W in memory.
    pub fn array(&self) -> Array2<f32> {
        matrix::array(&*self.matrix)
    }
}

/// Turns published weights into the form that an engine computes with.
///
/// A model asks its loader for one weight after another, in an order that is the same for both parties.
pub trait WeightLoader {
    /// The engine's [`Engine::Weight`](crate::Engine::Weight).
    type Weight;

    /// Loads the weight `spec`. `data` is `None` where the values are not known: on the client and in a plan.
    ///
    /// # Errors
    /// All name the tensor: [`Error::Shape`] if the values do not fit `spec`, [`Error::NotFinite`] if one is not
    /// finite, [`Error::NoValues`] if they are needed and missing, and an error if the engine's format cannot hold a
    /// value.
    fn load(&mut self, spec: &WeightSpec, data: Option<WeightData>) -> Result<Self::Weight, Error>;
}
