//! Support that the tests of models, sessions and studies share.
#![allow(dead_code, reason = "every crate's tests use a part")]

pub(crate) mod naive;
pub(crate) mod tiny;

use std::path::Path;

use engine::{Float, FloatLoader, FloatWeight, LogitBits};
use model::{GenerateOptions, Generation, Input, Model, ModelFiles, Next, NoHooks, Sampler, generate};
use naive::Weights;
use ndarray::Array2;
use safetensors::tensor::{Dtype, TensorView};

/// A model on the plaintext engine.
pub(crate) type FloatModel = Model<FloatWeight>;

/// For texts that are compared: logits so fine that rounding does not choose between two words that a small model
/// finds nearly alike.
pub(crate) fn fine() -> GenerateOptions {
    GenerateOptions { logit_bits: LogitBits::FINEST, ..GenerateOptions::default() }
}

/// Prepares `files` for [`Float`].
pub(crate) fn load(files: ModelFiles) -> FloatModel {
    Model::load(&mut FloatLoader, &files.spec, Some(&files.checkpoint)).unwrap()
}

/// Greedy generation with the logits of all positions.
pub(crate) fn greedy(model: &FloatModel, prompt: &[u32], tokens: usize) -> Generation {
    let options = GenerateOptions { tokens, all_positions: true, ..Default::default() };
    let input = Input { ids: Some(prompt), count: prompt.len() };
    let mut sampler = Sampler::greedy();
    generate(&mut Float::default(), model, input, &options, Next::Pick(&mut sampler), &mut NoHooks).unwrap()
}

/// Logits of every position of `ids` in one pass.
pub(crate) fn logits(model: &FloatModel, ids: &[u32]) -> Array2<f32> {
    greedy(model, ids, 1).logits.unwrap()
}

/// Writes `weights` as f32 by the format's own library.
pub(crate) fn write_checkpoint(path: &Path, weights: &Weights) {
    let bytes: Vec<(&String, Vec<u8>)> =
        weights.iter().map(|(name, t)| (name, t.data.iter().flat_map(|v| v.to_le_bytes()).collect())).collect();
    let views = bytes.iter().map(|(name, data)| {
        (name.as_str(), TensorView::new(Dtype::F32, weights[*name].shape.clone(), data).unwrap())
    });
    safetensors::serialize_to_file(views, None, path).unwrap();
}
