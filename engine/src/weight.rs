//! Weights as they are published, before an engine computes with them.

use ndarray::{Array1, Array2};

use crate::error::Error;

/// Name and shape of a weight, public; both parties have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightSpec {
    /// Published name, for messages.
    pub name: String,
    /// Length of the input vectors (rows); for a table the number of rows.
    pub inputs: usize,
    /// Length of the output vectors (columns).
    pub outputs: usize,
}

/// Values of a weight: y = x W + b with W of shape (inputs, outputs). Only the server has them.
#[derive(Clone, Debug)]
pub struct WeightData {
    /// W, row-major (inputs, outputs).
    pub matrix: Array2<f32>,
    /// b of length `outputs`; `None` stands for zeros.
    pub bias: Option<Array1<f32>>,
}

impl WeightData {
    /// Checks that the values fit `spec` and are finite.
    ///
    /// # Errors
    /// By the tensor's name: [`Error::Shape`] and [`Error::NotFinite`].
    pub fn check(&self, spec: &WeightSpec) -> Result<(), Error> {
        let shape_error = |expected: &[usize], got: &[usize]| Error::Shape {
            tensor: spec.name.clone(),
            expected: expected.to_vec(),
            got: got.to_vec(),
        };
        let WeightData { matrix, bias } = self;
        if matrix.dim() != (spec.inputs, spec.outputs) {
            return Err(shape_error(&[spec.inputs, spec.outputs], matrix.shape()));
        }
        if let Some(bias) = bias.as_ref().filter(|bias| bias.len() != spec.outputs) {
            return Err(shape_error(&[spec.outputs], &[bias.len()]));
        }
        if matrix.iter().all(|value| value.is_finite()) && bias.iter().flatten().all(|value| value.is_finite()) {
            return Ok(());
        }
        let mut values = matrix.iter().chain(bias.iter().flatten()).copied().enumerate();
        match values.find(|(_, value)| !value.is_finite()) {
            Some((position, value)) => Err(Error::NotFinite { tensor: spec.name.clone(), value, position }),
            None => Ok(()),
        }
    }
}

/// Turns published weights into those that an engine computes with.
///
/// A model asks its loader for one weight after another, in an order that is the same for both parties.
pub trait WeightLoader {
    /// The weights of the engine: its [`Engine::Weight`](crate::Engine::Weight).
    type Weight;

    /// The weight `spec`. `data` is `None` where its values are not known (on the client, in a plan).
    ///
    /// # Errors
    /// By the tensor's name: values that do not fit `spec` ([`Error::Shape`]), are not finite ([`Error::NotFinite`])
    /// or are needed and not there ([`Error::NoValues`]); values that the engine's format cannot hold.
    fn load(&mut self, spec: &WeightSpec, data: Option<WeightData>) -> Result<Self::Weight, Error>;
}
