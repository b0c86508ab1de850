//! Matrices of 8 bits: what `waggle quantize` writes.
//!
//! Every matrix of the architecture, which is every tensor of two axes (linear layers, tables of embeddings and of
//! positions, the head), becomes two tensors: integers from -127 to 127 (`I8`) under its name, and scales (`F32`)
//! under its name with `_scale` at the end. There is a scale for every stored *line*, and an entry is its integer
//! times the scale of its line, in f32. A line holds the weights of one output if matrices are published as (outputs,
//! inputs). In the files of GPT-2 it holds the weights of one input. Norms and biases stay as published.
//! `quantization_config` in `config.json` names the scheme, which is public; integers and scales are as secret as the
//! weights.

use std::io::Write;
use std::path::Path;

use rayon::prelude::*;
use serde_json::json;

use crate::checkpoint::{Beside, SCALE};
use crate::config::{Quantization, object, text_model, unsupported};
use crate::store::{DType, Typed, write_typed_shards};
use crate::{Checkpoint, ConfigError, Error, ModelFiles, ModelSpec, TensorSpec, learned_file};

/// The largest magnitude of an integer.
const MOST: f32 = 127.0;

/// Files for the tokenizer and the chat template, which are copied if they exist.
const BESIDE: [&str; 3] = ["tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"];

/// Writes the model `files` to the directory `to`, with its matrices rounded to 8 bits. Each line has a scale with
/// which its largest entry is 127 in magnitude. Only one tensor at a time is in memory. More than `shard_bytes` bytes
/// of weights become several files with an index, unless `shard_bytes` is `None`. Learned columns for cache policies
/// are copied and bound to the new weights.
///
/// # Errors
/// [`Error::Config`] and [`Error::Checkpoint`] for a model that cannot be used, or has 8 bits already, and
/// [`Error::File`] for files that cannot be written. [`Error::File`] is also the answer if both directories are the
/// same, because the original would be lost.
pub fn quantize(files: &ModelFiles, to: &Path, shard_bytes: Option<u64>) -> Result<ModelSpec, Error> {
    let ModelFiles { spec, checkpoint, config, tokenizer, .. } = files;
    checkpoint.check_all(spec)?;
    if spec.is_encoder() {
        return Err(Error::Encoder { what: "matrices of 8 bits" });
    }
    if spec.style().quantized {
        return Err(unsupported("quantization_config", "waggle-int8", "the weights have 8 bits already").into());
    }
    let failed = |path: &Path, source| Error::File { path: path.into(), source };
    std::fs::create_dir_all(to).map_err(|source| failed(to, source))?;
    let from = match &checkpoint.beside {
        Beside::Dir(dir) => Some(dir.as_path()),
        Beside::Static(_) => None,
    };
    if from.and_then(|from| from.canonicalize().ok()).is_some_and(|from| to.canonicalize().is_ok_and(|to| to == from))
    {
        return Err(failed(to, std::io::ErrorKind::AlreadyExists.into()));
    }
    let json = |e: serde_json::Error| ConfigError::Json(e.to_string());
    let (mut keys, _) = text_model(object(config)?)?;
    keys.remove("compression_config");
    keys.insert("quantization_config".into(), json!(Quantization::Int8));
    let text = serde_json::to_vec_pretty(&keys).map_err(json)?;
    let spec = ModelSpec::from_config_json(&text)?;
    let written = |name: &str, text: &[u8]| {
        let path = to.join(name);
        let write = || {
            let mut file = waggle_files::Replacement::create(&path)?;
            file.write_all(text).map(|()| file)
        };
        write().map_err(|source| failed(&path, source))
    };
    // This comes first, before anything that takes long.
    let config = written("config.json", &text)?;

    let mut layout: Vec<Typed> = Vec::new();
    for tensor in spec.tensors() {
        if let &[lines, _] = &tensor.shape[..] {
            let scales = TensorSpec::new(format!("{}{SCALE}", tensor.name), [lines]);
            layout.extend([(tensor, DType::I8), (scales, DType::F32)]);
        } else {
            let dtype = checkpoint.dtype(&tensor.name)?;
            layout.push((tensor, dtype));
        }
    }
    write_typed_shards(to, &layout, shard_bytes, |tensor, out| {
        let matrix = tensor.name.strip_suffix(SCALE);
        let (shape, mut values) = checkpoint.values(matrix.unwrap_or(&tensor.name))?;
        match (&shape[..], matrix) {
            ([_, length], Some(_)) => out.par_extend(values.par_chunks(*length).map(scale)),
            ([_, length], None) => {
                values.par_chunks_mut(*length).for_each(round);
                out.append(&mut values);
            }
            _ => out.append(&mut values),
        }
        Ok(())
    })?;
    if let Some(tokenizer) = tokenizer {
        let name = "tokenizer.json";
        written(name, tokenizer)?.commit().map_err(|source| failed(&to.join(name), source))?;
    }
    for (from, name) in BESIDE.into_iter().filter_map(|name| Some((from?.join(name), name))) {
        if from.is_file() {
            std::fs::copy(&from, to.join(name)).map_err(|source| failed(&to.join(name), source))?;
        }
    }
    for head in checkpoint.learned_heads() {
        let columns = checkpoint.learned(&spec, head)?;
        Checkpoint::open(to)?.write_learned(&spec, &columns, &to.join(learned_file(head)))?;
    }
    // The configuration comes last: a directory without one is no model.
    config.commit().map_err(|source| failed(&to.join("config.json"), source))?;
    Ok(spec)
}

/// The scale of a line. If the entries are too small for a scale of their own, any scale will do, as they become 0.
fn scale(line: &[f32]) -> f32 {
    let scale = line.iter().fold(0f32, |most, w| most.max(w.abs())) / MOST;
    if scale.is_normal() { scale } else { 1.0 }
}

/// Replaces the entries of a line by their integers.
fn round(line: &mut [f32]) {
    let scale = scale(line);
    line.iter_mut().for_each(|w| *w = (*w / scale).round());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_entry_of_a_line_has_the_largest_integer() {
        for line in [[0.5, -1.0, 0.004], [3.0e38, -1.0e38, 1.0], [1.5e-36, -1.5e-36, 0.0], [0.1, 0.1, -0.1]] {
            let (scale, mut integers) = (scale(&line), line);
            round(&mut integers);
            assert_eq!(integers.iter().fold(0f32, |most, q| most.max(q.abs())), MOST, "{line:?}");
            for (q, w) in integers.iter().zip(line) {
                assert!((q * scale - w).abs() <= 0.5001 * scale, "{q} for {w}");
            }
        }
        for mut line in [[0.0, -0.0], [1.0e-40, -1.0e-40]] {
            assert_eq!(scale(&line), 1.0);
            round(&mut line);
            assert_eq!(line, [0.0, 0.0]);
        }
    }
}
