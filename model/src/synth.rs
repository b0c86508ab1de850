//! Models with random weights, to time shapes whose trained weights are not at hand.

use std::io::Write;
use std::path::Path;

use half::f16;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Map, Value, json};

use crate::{Error, ModelSpec, Replacement, TensorSpec};

/// Type of the weights in a file that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DType {
    /// 32 bits.
    F32,
    /// 16 bits.
    F16,
}

impl DType {
    fn name(self) -> &'static str {
        match self {
            DType::F32 => "F32",
            DType::F16 => "F16",
        }
    }

    fn bytes(self) -> u64 {
        match self {
            DType::F32 => 4,
            DType::F16 => 2,
        }
    }
}

/// Standard deviation of a matrix at the start of training, in GPT-2 and LLaMA alike (`initializer_range`).
const SPREAD: f32 = 0.02;

/// Writes a Hugging Face directory `dir` with random weights of the shape that `config` (the text of a `config.json`)
/// describes, with `layers` layers if given.
///
/// As at the start of training, matrices are N(0, 0.02^2), those that write to the residual stream smaller by
/// sqrt(2 layers), gains 1 and biases 0. Equal seeds give equal files; the seed exists for repeatable timings, such
/// weights are no secret. One tensor at a time is in memory.
pub fn synthesize(
    config: &[u8],
    dir: &Path,
    layers: Option<usize>,
    dtype: DType,
    seed: u64,
) -> Result<ModelSpec, Error> {
    ModelSpec::from_config_json(config)?;
    let mut keys: Map<String, Value> =
        serde_json::from_slice(config).map_err(|e| crate::ConfigError::Json(e.to_string()))?;
    if let Some(layers) = layers {
        let names = ["n_layer", "num_hidden_layers"];
        let present = names.into_iter().filter(|name| keys.contains_key(*name)).collect::<Vec<_>>();
        for name in if present.is_empty() { names.to_vec() } else { present } {
            keys.insert(name.into(), json!(layers));
        }
    }
    // The files say how they are stored; both spellings are in use.
    for name in ["torch_dtype", "dtype"] {
        if keys.contains_key(name) {
            keys.insert(name.into(), json!(if dtype == DType::F32 { "float32" } else { "float16" }));
        }
    }
    let text = serde_json::to_vec_pretty(&keys).map_err(|e| crate::ConfigError::Json(e.to_string()))?;
    let spec = ModelSpec::from_config_json(&text)?;
    std::fs::create_dir_all(dir).map_err(|source| Error::File { path: dir.into(), source })?;
    let file = dir.join("config.json");
    let failed = |source| Error::File { path: file.clone(), source };
    let mut config = Replacement::create(&file).map_err(failed)?;
    config.write_all(&text).map_err(failed)?;
    let residual = SPREAD / (2.0 * spec.layers() as f32).sqrt();
    let mut rng = StdRng::seed_from_u64(seed);
    write_safetensors(&dir.join("model.safetensors"), &spec.tensors(), dtype, |tensor, values| {
        let len = tensor.shape.iter().product();
        match initial(tensor, residual) {
            Initial::All(value) => values.resize(len, value),
            Initial::Normal(spread) => {
                while values.len() < len {
                    let (a, b) = normal_pair(&mut rng);
                    values.extend([a * spread, b * spread]);
                }
                values.truncate(len);
            }
        }
        Ok(())
    })?;
    // The configuration last: without one a directory is no model.
    config.commit().map_err(failed)?;
    Ok(spec)
}

enum Initial {
    All(f32),
    Normal(f32),
}

fn initial(tensor: &TensorSpec, residual: f32) -> Initial {
    match (&tensor.shape[..], tensor.name.as_str()) {
        ([_], name) if name.ends_with(".bias") => Initial::All(0.0),
        ([_], _) => Initial::All(1.0),
        (_, name) if name.contains("c_proj") || name.contains("o_proj") || name.contains("down_proj") => {
            Initial::Normal(residual)
        }
        _ => Initial::Normal(SPREAD),
    }
}

/// Two independent standard normal numbers (Box and Muller, 1958).
fn normal_pair(rng: &mut StdRng) -> (f32, f32) {
    // 1 - u lies in (0, 1], where the logarithm is finite.
    let radius = (-2.0 * (1.0 - rng.random::<f32>()).ln()).sqrt();
    let (sin, cos) = (std::f32::consts::TAU * rng.random::<f32>()).sin_cos();
    (radius * cos, radius * sin)
}

/// Writes the safetensors file `path` with the tensors of `layout`, in order. `fill` appends the values of a tensor
/// to an empty vector; only one tensor is in memory at a time. A file that is there already stays until the new one
/// is complete.
pub fn write_safetensors(
    path: &Path,
    layout: &[TensorSpec],
    dtype: DType,
    mut fill: impl FnMut(&TensorSpec, &mut Vec<f32>) -> Result<(), Error>,
) -> Result<(), Error> {
    let io = |source| Error::File { path: path.into(), source };
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({"format": "pt"}));
    let mut at = 0;
    for TensorSpec { name, shape } in layout {
        let end = at + shape.iter().product::<usize>() as u64 * dtype.bytes();
        header.insert(name.clone(), json!({"dtype": dtype.name(), "shape": shape, "data_offsets": [at, end]}));
        at = end;
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    // The data begins at a multiple of eight.
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut out = Replacement::create(path).map_err(io)?;
    out.write_all(&(header.len() as u64).to_le_bytes()).map_err(io)?;
    out.write_all(&header).map_err(io)?;
    let mut values = Vec::new();
    for tensor in layout {
        values.clear();
        fill(tensor, &mut values)?;
        assert_eq!(values.len(), tensor.shape.iter().product::<usize>(), "values of `{}`", tensor.name);
        for &value in &values {
            match dtype {
                DType::F32 => out.write_all(&value.to_le_bytes()),
                DType::F16 => out.write_all(&f16::from_f32(value).to_le_bytes()),
            }
            .map_err(io)?;
        }
    }
    out.commit().map_err(io)
}
