//! Learned scores of tokens: further columns of the matrix of query, key and value, from a file beside the
//! checkpoint.
//!
//! A policy such as `kvzap` ranks tokens by a linear function of the hidden state. The columns of this function stand
//! in the matrix that gives query, key and value, so that they cost no exchange. They are read from the
//! [`learned_file`] of the policy in the model's directory: for every layer i a tensor `layers.{i}.weight` of shape
//! (key/value heads, width), to be applied to the hidden state as its norm returns it, before gain and shift. Where
//! attention reads a state without a norm (OLMo 2), a norm is computed for the scores alone. The tensor `checkpoint`
//! holds the 32 bytes of a hash of the checkpoint to which the columns were fitted.

use std::path::Path;

use ndarray::{Array2, ArrayView2};
use waggle_mpcache::{HEAD_MAGNITUDE, HeadShape, PolicySpec};

use crate::checkpoint::{Beside, learned_file};
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
    /// One column for every key/value head, of the scoring head of this name, with values that this party does not
    /// know.
    Shape(&'static str),
    /// One column for every key/value head, with these values, (width, kv_heads) for each layer.
    Known(&'static str, Vec<Array2<f32>>),
}

impl Columns {
    /// The number of these columns in a layer of `kv_heads` key/value heads.
    pub(crate) fn count(&self, kv_heads: usize) -> usize {
        if matches!(self, Columns::None) { 0 } else { kv_heads }
    }

    /// The columns of layer `layer`, if their values are known.
    pub(crate) fn of(&self, layer: usize) -> Option<Array2<f32>> {
        match self {
            Columns::Known(_, layers) => layers.get(layer).cloned(),
            Columns::None | Columns::Shape(_) => None,
        }
    }

    /// The name of the scoring head.
    pub(crate) fn name(&self) -> Option<&'static str> {
        match self {
            Columns::Known(name, _) | Columns::Shape(name) => Some(name),
            Columns::None => None,
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
    /// The file with the columns of the scoring head `name`.
    ///
    /// # Errors
    /// [`CheckpointError::NoLearned`] if there is none, or if the file is no safetensors file.
    pub(crate) fn beside(&self, name: &str) -> Result<Checkpoint, CheckpointError> {
        match &self.beside {
            Beside::Static(files) => {
                let bytes = files.iter().find(|(of, _)| *of == name).map(|(_, bytes)| *bytes);
                let missing = || CheckpointError::NoLearned { head: name.into(), file: learned_file(name).into() };
                Checkpoint::from_bytes(&learned_file(name), bytes.ok_or_else(missing)?)
            }
            Beside::Dir(dir) => {
                let path = dir.join(learned_file(name));
                if !path.is_file() {
                    return Err(CheckpointError::NoLearned { head: name.into(), file: path });
                }
                let mut file = Checkpoint::empty();
                file.add_file(&path)?;
                Ok(file)
            }
        }
    }

    /// Whether there is a file with the columns of the scoring head `name`.
    pub fn has_learned(&self, name: &str) -> bool {
        match &self.beside {
            Beside::Dir(dir) => dir.join(learned_file(name)).is_file(),
            Beside::Static(files) => files.iter().any(|(of, _)| *of == name),
        }
    }

    /// The scoring heads of known policies for which there is a file.
    pub(crate) fn learned_heads(&self) -> impl Iterator<Item = &'static str> {
        PolicySpec::examples().filter_map(|policy| policy.scoring_head()).filter(|head| self.has_learned(head))
    }

    /// The columns of the scoring head `name` of this checkpoint of the model `spec`.
    ///
    /// # Errors
    /// [`CheckpointError::NoLearned`] without a file, and [`CheckpointError::OtherLearned`] for columns that were
    /// fitted to another checkpoint. Other errors name a tensor that is missing or unknown, has another shape, is not
    /// finite, or gives larger scores than policies take.
    pub(crate) fn learned(&self, spec: &ModelSpec, name: &str) -> Result<Vec<Array2<f32>>, CheckpointError> {
        let file = self.beside(name)?;
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
            return Err(CheckpointError::OtherLearned { head: name.into() });
        }
        let layer = |layer: usize| {
            let tensor = format!("layers.{layer}.weight");
            // The file has a row for each head, as linear layers are published.
            let columns = file.matrix(&tensor)?.reversed_axes();
            let (most, limit) = (most(columns.view()), f64::from(1u32 << HEAD_MAGNITUDE));
            if most > limit {
                return Err(CheckpointError::LargeLearned { head: name.into(), tensor, most, limit });
            }
            Ok(columns)
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
