//! From published tensors to the weights that an engine computes with.

use engine::{WeightData, WeightLoader, WeightSpec};
use ndarray::{Array1, Array2, Axis, s};

use crate::{Checkpoint, CheckpointError, Error};

/// Builds the weights of a model one after another. Without a checkpoint (on the client, for a plan, to list the
/// specifications) it builds the same weights without values.
pub(crate) struct Builder<'a, W> {
    pub(crate) checkpoint: Option<&'a mut Checkpoint>,
    pub(crate) loader: &'a mut dyn WeightLoader<Weight = W>,
}

impl<W> Builder<'_, W> {
    /// One weight of shape (inputs, outputs), whose values come from `read`.
    pub(crate) fn weight(
        &mut self,
        name: &str,
        (inputs, outputs): (usize, usize),
        read: impl FnOnce(&mut Checkpoint) -> Result<WeightData, CheckpointError>,
    ) -> Result<W, Error> {
        let data = self.checkpoint.as_deref_mut().map(read).transpose()?;
        Ok(self.loader.load(&WeightSpec { name: name.into(), inputs, outputs }, data)?)
    }

    /// A table of `rows` rows, as published.
    pub(crate) fn table(&mut self, name: &str, shape: (usize, usize)) -> Result<W, Error> {
        self.weight(name, shape, |c| Ok(WeightData { matrix: c.matrix(name)?, bias: None }))
    }
}

/// The weight after a norm with `gain` g and `shift` beta: for x' = g x + beta,
/// x' W + b = x (diag(g) W) + (beta W + b).
pub(crate) fn fold_norm(weight: WeightData, gain: &Array1<f32>, shift: Option<&Array1<f32>>) -> WeightData {
    let WeightData { mut matrix, mut bias } = weight;
    if let Some(shift) = shift {
        // Sums over whole columns, taken row by row: kept in f64, as this happens once.
        let mut shifted = Array1::<f64>::zeros(matrix.ncols());
        for (row, &s) in matrix.rows().into_iter().zip(shift) {
            shifted.zip_mut_with(&row, |sum, &w| *sum += f64::from(w) * f64::from(s));
        }
        let shifted = shifted.mapv(|sum| sum as f32);
        bias = Some(match bias {
            Some(bias) => bias + shifted,
            None => shifted,
        });
    }
    matrix *= &gain.view().insert_axis(Axis(1));
    WeightData { matrix, bias }
}

/// Multiplies the first `columns` outputs by `factor`.
pub(crate) fn scale_outputs(weight: &mut WeightData, columns: usize, factor: f32) {
    weight.matrix.slice_mut(s![.., ..columns]).mapv_inplace(|w| w * factor);
    if let Some(bias) = &mut weight.bias {
        bias.slice_mut(s![..columns]).mapv_inplace(|b| b * factor);
    }
}

/// Published linear layers (outputs, inputs), with or without biases, side by side as one matrix (inputs, outputs).
pub(crate) fn fuse_linear(
    checkpoint: &mut Checkpoint,
    names: &[String],
    shape: (usize, usize),
    biased: bool,
) -> Result<WeightData, CheckpointError> {
    let mut matrix = Array2::zeros(shape);
    let mut bias = biased.then(|| Array1::zeros(shape.1));
    let mut column = 0;
    for name in names {
        let part = checkpoint.matrix(&format!("{name}.weight"))?;
        let columns = column..column + part.nrows();
        matrix.slice_mut(s![.., columns.clone()]).assign(&part.t());
        if let Some(bias) = &mut bias {
            bias.slice_mut(s![columns.clone()]).assign(&checkpoint.vector(&format!("{name}.bias"))?);
        }
        column = columns.end;
    }
    Ok(WeightData { matrix, bias })
}
