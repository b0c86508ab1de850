//! Models with random weights, to time shapes whose trained weights are not at hand.

use std::io::Write;
use std::path::Path;

use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use rayon::prelude::*;
use serde_json::json;

use crate::config::{object, text_model};
use crate::store::{DType, write_shards};
use crate::style::Norm;
use crate::{Error, ModelSpec, TensorSpec};

/// The number of random values that are drawn from one seed. The pieces of a tensor are drawn in parallel.
const PIECE: usize = 1 << 18;

/// Standard deviation of a matrix at the start of training, in GPT-2 and LLaMA alike (`initializer_range`).
const SPREAD: f32 = 0.02;

/// Writes a Hugging Face directory `dir` with random weights of the shape that `config` (the text of a `config.json`)
/// describes, with `layers` layers if the number is given. All layers then have keys and values of their own.
///
/// As at the start of training, matrices are N(0, 0.02^2), divided by sqrt(2 layers) if they write to the residual
/// stream. Gains are 1, biases and sinks 0. Equal seeds give equal files, for repeatable timings; such weights are no
/// secret. Only one tensor at a time is in memory. More than `shard_bytes` bytes of weights become several files with
/// an index, unless `shard_bytes` is `None`.
pub fn synthesize(
    config: &[u8],
    dir: &Path,
    layers: Option<usize>,
    dtype: DType,
    shard_bytes: Option<u64>,
    seed: u64,
) -> Result<ModelSpec, Error> {
    ModelSpec::from_config_json(config)?;
    let (mut keys, _) = text_model(object(config)?)?;
    if let Some(layers) = layers {
        let names = ["n_layer", "num_hidden_layers"];
        let present = names.into_iter().filter(|name| keys.contains_key(*name)).collect::<Vec<_>>();
        for name in if present.is_empty() { names.to_vec() } else { present } {
            keys.insert(name.into(), json!(layers));
        }
        // With fewer layers, a layer whose keys others read may be missing.
        if keys.contains_key("num_kv_shared_layers") {
            keys.insert("num_kv_shared_layers".into(), json!(0));
        }
    }
    // The new files are not in few bits, and state their own type, under both keys that are in use.
    for name in ["quantization_config", "compression_config"] {
        keys.remove(name);
    }
    for name in ["torch_dtype", "dtype"] {
        if keys.contains_key(name) {
            keys.insert(name.into(), json!(dtype.torch_name()));
        }
    }
    let text = serde_json::to_vec_pretty(&keys).map_err(|e| crate::ConfigError::Json(e.to_string()))?;
    let spec = ModelSpec::from_config_json(&text)?;
    std::fs::create_dir_all(dir).map_err(|source| Error::File { path: dir.into(), source })?;
    let file = dir.join("config.json");
    let failed = |source| Error::File { path: file.clone(), source };
    let mut config = waggle_files::Replacement::create(&file).map_err(failed)?;
    config.write_all(&text).map_err(failed)?;
    if let Some(image) = spec.image() {
        let size = json!({ "height": image.side, "width": image.side });
        let text = json!({ "image_processor_type": "ViTImageProcessor", "size": size }).to_string();
        let file = dir.join("preprocessor_config.json");
        std::fs::write(&file, text).map_err(|source| Error::File { path: file, source })?;
    }
    let residual = SPREAD / (2.0 * spec.layers() as f32).sqrt();
    let mut rng = StdRng::seed_from_u64(seed);
    // The published number that stands for a gain of 1.
    let unit_gain = if spec.style().norm == Norm::RmsLessOne { 0.0 } else { 1.0 };
    write_shards(dir, &spec.tensors(), dtype, shard_bytes, |tensor, values| {
        let len = tensor.shape.iter().product();
        match initial(tensor, residual, unit_gain) {
            Initial::All(value) => values.resize(len, value),
            Initial::Normal(spread) => {
                values.resize(len, 0.0);
                let pieces: Vec<_> = values.chunks_mut(PIECE).map(|piece| (rng.next_u64(), piece)).collect();
                pieces.into_par_iter().for_each(|(seed, piece)| normals(seed, spread, piece));
            }
        }
        Ok(())
    })?;
    // The configuration comes last: a directory without one is no model.
    config.commit().map_err(failed)?;
    Ok(spec)
}

enum Initial {
    All(f32),
    Normal(f32),
}

/// Matrices that write to the residual stream, by the last parts of their names.
const RESIDUAL: [&str; 8] =
    ["c_proj", "o_proj", "down_proj", "dense", "dense_4h_to_h", "out_proj", "fc2", "per_layer_projection"];

fn initial(tensor: &TensorSpec, residual: f32, unit_gain: f32) -> Initial {
    let module = tensor.name.strip_suffix(".weight").and_then(|name| name.rsplit('.').next());
    match &tensor.shape[..] {
        [_] if [".bias", ".sinks"].iter().any(|end| tensor.name.ends_with(end)) => Initial::All(0.0),
        [_] => Initial::All(unit_gain),
        _ if module.is_some_and(|module| RESIDUAL.contains(&module)) => Initial::Normal(residual),
        _ => Initial::Normal(SPREAD),
    }
}

/// Fills `out` with numbers of N(0, spread^2).
fn normals(seed: u64, spread: f32, out: &mut [f32]) {
    let mut rng = StdRng::seed_from_u64(seed);
    for pair in out.chunks_mut(2) {
        // Two independent numbers (Box and Muller, 1958). 1 - u lies in (0, 1], where the logarithm is finite.
        let radius = (-2.0 * (1.0 - rng.random::<f32>()).ln()).sqrt();
        let (sin, cos) = (std::f32::consts::TAU * rng.random::<f32>()).sin_cos();
        pair.iter_mut().zip([radius * cos, radius * sin]).for_each(|(out, x)| *out = x * spread);
    }
}
