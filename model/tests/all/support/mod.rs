//! Support that the tests of models, sessions and studies share.
#![allow(dead_code, reason = "every crate's tests use a part")]

pub(crate) mod naive;
pub(crate) mod tiny;

use std::path::Path;

use naive::{Published, Weights};
use ndarray::Array2;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value;
use waggle_engine::{Float, FloatLoader, FloatWeight, LogitBits};
use waggle_model::{
    Error, GenerateOptions, Generation, Input, Model, ModelFiles, ModelSpec, Next, NoHooks, Sampler, TensorSpec,
    generate,
};

/// A model on the plaintext engine.
pub(crate) type FloatModel = Model<FloatWeight>;

/// Options for texts that are compared. The logits have so many bits that rounding does not choose between two words
/// that a small model finds nearly equal.
pub(crate) fn fine() -> GenerateOptions {
    GenerateOptions { logit_bits: LogitBits::FINEST, ..GenerateOptions::default() }
}

/// Prepares `files` for [`Float`].
pub(crate) fn load(files: ModelFiles) -> FloatModel {
    Model::load(&mut FloatLoader, &files.spec, Some(&files.checkpoint)).unwrap()
}

/// A generation in f32 after `prompt`, by `sampler`.
pub(crate) fn sampled(
    model: &FloatModel,
    prompt: &[u32],
    options: &GenerateOptions,
    sampler: &mut Sampler,
) -> Result<Generation, Error> {
    let input = Input::known(prompt);
    generate(&mut Float::default(), model, input, options, Next::Pick(sampler), &mut NoHooks)
}

/// Greedy generation with the logits of all positions.
pub(crate) fn greedy(model: &FloatModel, prompt: &[u32], tokens: usize) -> Generation {
    let options = GenerateOptions { tokens, all_positions: true, ..Default::default() };
    sampled(model, prompt, &options, &mut Sampler::greedy()).unwrap()
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

/// Weights of the model `spec`, with values that every 16-bit format holds exactly.
pub(crate) fn patterned(spec: &ModelSpec) -> Weights {
    let tensor = |TensorSpec { name, shape }: TensorSpec| {
        let data = (0..shape.iter().product()).map(|i: usize| pattern(&name, i)).collect();
        (name, Published { shape, data })
    };
    spec.tensors().into_iter().map(tensor).collect()
}

/// Entry `i` of the tensor `name` of [`patterned`] weights.
pub(crate) fn pattern(name: &str, i: usize) -> f32 {
    ((i * 7 + name.len()) % 13) as f32 / 8.0 - 0.75
}

/// The shape in the text of a `config.json`.
pub(crate) fn spec(config: &Value) -> ModelSpec {
    ModelSpec::from_config_json(config.to_string().as_bytes()).unwrap()
}

/// Writes a model's directory.
pub(crate) fn write_dir(dir: &Path, config: &Value, weights: &Weights) {
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    write_checkpoint(&dir.join("model.safetensors"), weights);
}
