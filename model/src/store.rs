//! Writing of checkpoints: safetensors, as one file or as several with an index.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use half::{bf16, f16};
use rayon::prelude::*;
use serde_json::{Map, Value, json};

use crate::{Error, TensorSpec};

/// The number of values that are encoded at a time.
const PIECE: usize = 1 << 16;

/// The type of the weights in a file that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DType {
    /// 32 bits.
    F32,
    /// 16 bits, IEEE.
    F16,
    /// 16 bits, the upper half of 32.
    Bf16,
    /// Integers of 8 bits.
    I8,
}

/// A tensor with its type.
pub(crate) type Typed = (TensorSpec, DType);

impl DType {
    /// The name of the type in safetensors files.
    fn name(self) -> &'static str {
        match self {
            DType::F32 => "F32",
            DType::F16 => "F16",
            DType::Bf16 => "BF16",
            DType::I8 => "I8",
        }
    }

    /// The name of the type in `config.json`.
    pub(crate) fn torch_name(self) -> &'static str {
        match self {
            DType::F32 => "float32",
            DType::F16 => "float16",
            DType::Bf16 => "bfloat16",
            DType::I8 => "int8",
        }
    }

    fn bytes(self) -> u64 {
        match self {
            DType::F32 => 4,
            DType::F16 | DType::Bf16 => 2,
            DType::I8 => 1,
        }
    }

    /// The bytes of `values`, rounded to nearest.
    fn encode(self, values: &[f32]) -> Vec<u8> {
        match self {
            DType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            DType::F16 => values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
            DType::Bf16 => values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
            DType::I8 => values.iter().map(|v| v.round() as i8 as u8).collect(),
        }
    }
}

/// The number of bytes of a tensor.
fn stored((tensor, dtype): &Typed) -> u64 {
    tensor.shape.iter().product::<usize>() as u64 * dtype.bytes()
}

fn typed(layout: &[TensorSpec], dtype: DType) -> Vec<Typed> {
    layout.iter().map(|tensor| (tensor.clone(), dtype)).collect()
}

/// Writes the tensors of `layout` into `dir`: as `model.safetensors`, or, if they take more than `shard_bytes`, as
/// several files with `model.safetensors.index.json`. Each file has at most `shard_bytes` bytes of weights, and a
/// larger tensor has a file of its own. `fill` is used as in [`write_safetensors`].
///
/// # Errors
/// If a file cannot be written, or if the directory holds a model in the other of the two forms, because programs
/// read one form and ignore the other.
pub fn write_shards(
    dir: &Path,
    layout: &[TensorSpec],
    dtype: DType,
    shard_bytes: Option<u64>,
    fill: impl FnMut(&TensorSpec, &mut Vec<f32>) -> Result<(), Error>,
) -> Result<(), Error> {
    write_typed_shards(dir, &typed(layout, dtype), shard_bytes, fill)
}

/// [`write_shards`] for tensors of several types.
pub(crate) fn write_typed_shards(
    dir: &Path,
    layout: &[Typed],
    shard_bytes: Option<u64>,
    mut fill: impl FnMut(&TensorSpec, &mut Vec<f32>) -> Result<(), Error>,
) -> Result<(), Error> {
    let (single, index) = (dir.join("model.safetensors"), dir.join("model.safetensors.index.json"));
    let total: u64 = layout.iter().map(stored).sum();
    let most = shard_bytes.unwrap_or(u64::MAX);
    let other = if total <= most { &index } else { &single };
    if other.exists() {
        return Err(Error::File { path: other.clone(), source: std::io::ErrorKind::AlreadyExists.into() });
    }
    if total <= most {
        return write_typed(&single, layout, fill);
    }
    let mut shards: Vec<&[Typed]> = Vec::new();
    let mut rest = layout;
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = rest.iter().take_while(|tensor| {
            bytes += stored(tensor);
            bytes <= most
        });
        let (shard, after) = rest.split_at(fits.count().max(1));
        shards.push(shard);
        rest = after;
    }
    let mut map = BTreeMap::new();
    for (i, shard) in shards.iter().enumerate() {
        let name = format!("model-{:05}-of-{:05}.safetensors", i + 1, shards.len());
        write_typed(&dir.join(&name), shard, &mut fill)?;
        map.extend(shard.iter().map(|(tensor, _)| (tensor.name.clone(), name.clone())));
    }
    let text = json!({"metadata": {"total_size": total}, "weight_map": map}).to_string();
    let io = |source| Error::File { path: index.clone(), source };
    let mut out = waggle_files::Replacement::create(&index).map_err(io)?;
    out.write_all(text.as_bytes()).map_err(io)?;
    out.commit().map_err(io)
}

/// Writes the safetensors file `path` with the tensors of `layout`, in order. `fill` appends the values of a tensor
/// to an empty vector; only one tensor is in memory at a time. An existing file stays until the new one is complete.
pub fn write_safetensors(
    path: &Path,
    layout: &[TensorSpec],
    dtype: DType,
    fill: impl FnMut(&TensorSpec, &mut Vec<f32>) -> Result<(), Error>,
) -> Result<(), Error> {
    write_typed(path, &typed(layout, dtype), fill)
}

fn write_typed(
    path: &Path,
    layout: &[Typed],
    mut fill: impl FnMut(&TensorSpec, &mut Vec<f32>) -> Result<(), Error>,
) -> Result<(), Error> {
    let io = |source| Error::File { path: path.into(), source };
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({"format": "pt"}));
    let mut at = 0;
    for tensor @ (TensorSpec { name, shape }, dtype) in layout {
        let end = at + stored(tensor);
        header.insert(name.clone(), json!({"dtype": dtype.name(), "shape": shape, "data_offsets": [at, end]}));
        at = end;
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    // The data begins at a multiple of eight.
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut out = waggle_files::Replacement::create(path).map_err(io)?;
    out.write_all(&(header.len() as u64).to_le_bytes()).map_err(io)?;
    out.write_all(&header).map_err(io)?;
    let mut values = Vec::new();
    for (tensor, dtype) in layout {
        values.clear();
        fill(tensor, &mut values)?;
        assert_eq!(values.len(), tensor.shape.iter().product::<usize>(), "values of `{}`", tensor.name);
        for values in values.chunks(8 * PIECE) {
            let pieces: Vec<Vec<u8>> = values.par_chunks(PIECE).map(|piece| dtype.encode(piece)).collect();
            pieces.iter().try_for_each(|piece| out.write_all(piece)).map_err(io)?;
        }
    }
    out.commit().map_err(io)
}
