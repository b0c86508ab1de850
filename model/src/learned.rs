//! Learned scores of tokens: further columns of the matrix of query, key and value, from a file beside the
//! checkpoint.
//!
//! A policy such as `kvzap` ranks tokens by a linear function of the hidden state. The columns of this function stand
//! in the matrix that gives query, key and value, so that they cost no exchange. They are read from [`LEARNED_FILE`]
//! in the model's directory: for every layer i a tensor `layers.{i}.weight` of shape (key/value heads, width), to be
//! applied to the hidden state as its norm returns it, before gain and shift. Where attention reads a state without a
//! norm (OLMo 2), a norm is computed for the scores alone. The tensor `checkpoint` holds the 32 bytes of a hash of
//! the checkpoint to which the columns were fitted.

use std::path::Path;

use ndarray::{Array2, ArrayView2};
use waggle_mpcache::{HEAD_MAGNITUDE, HeadShape};

use crate::checkpoint::{Beside, LEARNED_FILE};
use crate::store::{DType, write_safetensors};
use crate::{Checkpoint, CheckpointError, Error, ModelSpec, TensorSpec};

/// The context of the hash of a checkpoint, which makes it differ from every other hash of the same bytes.
const CONTEXT: &str = "waggle learned columns 1, checkpoint";

/// The name of the tensor with the hash of the checkpoint.
const HASH: &str = "checkpoint";

/// The columns of learned scores that a model has beside those of query, key and value.
#[derive(Clone, Debug, Default)]
pub(crate) enum Columns {
    /// None.
    #[default]
    None,
    /// One column for every key/value head, with values that this party does not know.
    Shape,
    /// One column for every key/value head, with these values, (width, kv_heads) for each layer.
    Known(Vec<Array2<f32>>),
}

impl Columns {
    /// The number of these columns in a layer of `kv_heads` key/value heads.
    pub(crate) fn count(&self, kv_heads: usize) -> usize {
        if matches!(self, Columns::None) { 0 } else { kv_heads }
    }

    /// The columns of layer `layer`, if their values are known.
    pub(crate) fn of(&self, layer: usize) -> Option<Array2<f32>> {
        match self {
            Columns::Known(layers) => layers.get(layer).cloned(),
            Columns::None | Columns::Shape => None,
        }
    }
}

/// The tensors of a file of learned columns for the model `spec`.
fn layout(spec: &ModelSpec) -> Vec<TensorSpec> {
    let (width, heads) = (spec.hidden(), spec.heads());
    let shape = |(layer, heads): (usize, HeadShape)| {
        TensorSpec::new(format!("layers.{layer}.weight"), [heads.kv_heads, width])
    };
    let layers = heads.into_iter().enumerate().map(shape);
    layers.chain([TensorSpec::new(HASH, [32])]).collect()
}

/// The largest score that `columns` (width, kv_heads) can give. The squares of a hidden state that a norm returns
/// have a mean of at most 1, so the bound follows by Cauchy's inequality.
pub fn most(columns: ArrayView2<f32>) -> f64 {
    let width = columns.nrows() as f64;
    let squares = columns.columns().into_iter().map(|w| w.iter().map(|w| f64::from(*w).powi(2)).sum::<f64>());
    squares.fold(0.0, f64::max).sqrt() * width.sqrt()
}

impl Checkpoint {
    /// The file with learned columns, if there is one.
    ///
    /// # Errors
    /// If the file is no safetensors file.
    pub(crate) fn beside(&self) -> Result<Option<Checkpoint>, CheckpointError> {
        match &self.beside {
            Beside::Static(bytes) => Checkpoint::from_bytes(LEARNED_FILE, bytes).map(Some),
            Beside::File(path) if path.is_file() => {
                let mut file = Checkpoint::empty();
                file.add_file(path)?;
                Ok(Some(file))
            }
            Beside::File(_) | Beside::Nothing => Ok(None),
        }
    }

    /// Whether there is a file with learned columns.
    pub fn has_learned(&self) -> bool {
        match &self.beside {
            Beside::Nothing => false,
            Beside::File(path) => path.is_file(),
            Beside::Static(_) => true,
        }
    }

    /// The learned columns of this checkpoint of the model `spec`.
    ///
    /// # Errors
    /// [`CheckpointError::NoLearned`] without a file, and [`CheckpointError::OtherLearned`] for columns that were
    /// fitted to another checkpoint. Other errors name a tensor that is missing or unknown, has another shape, is not
    /// finite, or gives larger scores than policies take.
    pub(crate) fn learned(&self, spec: &ModelSpec) -> Result<Vec<Array2<f32>>, CheckpointError> {
        let Some(file) = self.beside()? else {
            let file = match &self.beside {
                Beside::File(path) => path.display().to_string(),
                Beside::Nothing | Beside::Static(_) => LEARNED_FILE.to_owned(),
            };
            return Err(CheckpointError::NoLearned(file));
        };
        let layout = layout(spec);
        file.check(&layout)?;
        let known = |name: &str| layout.iter().any(|tensor| tensor.name == name);
        let unread: Vec<String> =
            file.tensors().map(|(name, _)| name.to_owned()).filter(|name| !known(name)).collect();
        if !unread.is_empty() {
            return Err(CheckpointError::Unread { tensors: unread });
        }
        let expected = self.hash().map(f32::from);
        if file.vector(HASH)?.as_slice() != Some(&expected[..]) {
            return Err(CheckpointError::OtherLearned);
        }
        let layer = |layer: usize| {
            let tensor = format!("layers.{layer}.weight");
            // The file has a row for each head, as linear layers are published.
            let columns = file.matrix(&tensor)?.reversed_axes();
            let (most, limit) = (most(columns.view()), f64::from(1u32 << HEAD_MAGNITUDE));
            if most > limit { Err(CheckpointError::LargeLearned { tensor, most, limit }) } else { Ok(columns) }
        };
        (0..spec.layers()).map(layer).collect()
    }

    fn hash(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
        self.sample(&mut hasher);
        hasher.finalize().into()
    }

    /// Writes learned columns, (width, kv_heads) for each layer, for this checkpoint of the model `spec` to `path`.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be written.
    pub fn write_learned(&self, spec: &ModelSpec, columns: &[Array2<f32>], path: &Path) -> Result<(), Error> {
        let mut layers = columns.iter();
        write_safetensors(path, &layout(spec), DType::F32, |tensor, values| {
            match layers.next().filter(|_| tensor.name != HASH) {
                Some(columns) => values.extend(columns.t().iter()),
                None => values.extend(self.hash().map(f32::from)),
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_hidden_state_has_a_larger_score() {
        let columns = Array2::from_shape_fn((4, 2), |(i, j)| if j == 0 { 0.5 } else { i as f32 });
        // The state with the largest score is a multiple of a column, scaled so that its squares have the mean 1.
        assert!((most(columns.view()) - 14f64.sqrt() * 2.0).abs() < 1e-9);
    }
}
