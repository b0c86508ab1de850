//! Weights of a Hugging Face directory: safetensors, one file or several with an index.
//!
//! Only headers are kept in memory; a tensor is read from its file when asked for, so loading a model never holds
//! more than one copy of what it is working on. The format (<https://github.com/huggingface/safetensors>): eight
//! bytes of header length (little endian), a JSON object from tensor name to `{dtype, shape, data_offsets}`, then
//! the data. Nothing in a file is trusted: lengths are checked before anything is allocated.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{Cursor, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use ndarray::{Array1, Array2};
use serde::Deserialize;
use thiserror::Error;

/// A checkpoint that cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The directory holds neither `model.safetensors` nor `model.safetensors.index.json`.
    #[error("{} holds no model.safetensors and no model.safetensors.index.json", .0.display())]
    NoWeights(PathBuf),
    /// A file cannot be read.
    #[error("{file}: {source}")]
    Io {
        /// The file.
        file: String,
        /// The cause.
        source: std::io::Error,
    },
    /// A header or index that is not what the format prescribes.
    #[error("{file}: {what}")]
    Malformed {
        /// The file.
        file: String,
        /// What is wrong.
        what: String,
    },
    /// A tensor that the configuration calls for is not there.
    #[error("tensor `{tensor}` is missing")]
    Missing {
        /// Published name.
        tensor: String,
    },
    /// A tensor of another shape than the configuration says.
    #[error("tensor `{tensor}` has shape {got:?}, the configuration says {expected:?}")]
    Shape {
        /// Published name.
        tensor: String,
        /// Shape that follows from the configuration.
        expected: Vec<usize>,
        /// Shape in the file.
        got: Vec<usize>,
    },
    /// A tensor whose bytes lie outside the file or do not match its shape.
    #[error(
        "tensor `{tensor}`: bytes {start}..{end} do not hold shape {shape:?} in a file with {available} data bytes"
    )]
    Bytes {
        /// Published name.
        tensor: String,
        /// First byte after the header.
        start: u64,
        /// Byte after the last.
        end: u64,
        /// Shape in the header.
        shape: Vec<usize>,
        /// Bytes after the header.
        available: u64,
    },
    /// A tensor of a type that is not a 16 or 32 bit float.
    #[error("tensor `{tensor}` has type {dtype}; F32, F16 and BF16 are supported")]
    Type {
        /// Published name.
        tensor: String,
        /// Its type.
        dtype: String,
    },
    /// A weight that is not a finite number.
    #[error("tensor `{tensor}` holds {value} at position {position}")]
    NotFinite {
        /// Published name.
        tensor: String,
        /// The value.
        value: f32,
        /// Row-major position.
        position: usize,
    },
}

/// Name and shape of a tensor as published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Published name.
    pub name: String,
    /// Published shape.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// A tensor called `name` of shape `shape`.
    pub fn new(name: impl Into<String>, shape: impl Into<Vec<usize>>) -> Self {
        TensorSpec { name: name.into(), shape: shape.into() }
    }
}

/// Longest header that is read; the format's own limit.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Bytes that are read and converted at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// Tensors of one model, read on demand.
pub struct Checkpoint {
    shards: Vec<Shard>,
    tensors: HashMap<String, Entry>,
}

struct Shard {
    file: String,
    source: Source,
}

enum Source {
    File(File),
    Bytes(Cursor<&'static [u8]>),
}

struct Entry {
    shard: usize,
    dtype: String,
    shape: Vec<usize>,
    /// Position in the file.
    start: u64,
    bytes: u64,
}

#[derive(Deserialize)]
struct Header {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Checkpoint {
    /// Opens `model.safetensors` of the directory `dir`, or the shards that its index names.
    pub fn open(dir: &Path) -> Result<Self, CheckpointError> {
        let mut checkpoint = Checkpoint { shards: Vec::new(), tensors: HashMap::new() };
        let (single, index) = (dir.join("model.safetensors"), dir.join("model.safetensors.index.json"));
        if single.is_file() {
            checkpoint.add_file(&single)?;
        } else if index.is_file() {
            checkpoint.add_shards(dir, &index)?;
        } else {
            return Err(CheckpointError::NoWeights(dir.to_owned()));
        }
        Ok(checkpoint)
    }

    /// A checkpoint in memory, one safetensors file.
    pub fn from_bytes(name: &str, bytes: &'static [u8]) -> Result<Self, CheckpointError> {
        let mut checkpoint = Checkpoint { shards: Vec::new(), tensors: HashMap::new() };
        checkpoint.add(name.to_owned(), Source::Bytes(Cursor::new(bytes)), bytes.len() as u64)?;
        Ok(checkpoint)
    }

    /// Names and shapes of all tensors.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.tensors.iter().map(|(name, entry)| (name.as_str(), entry.shape.as_slice()))
    }

    /// Checks that every tensor of `layout` is there with its shape; others are ignored.
    pub fn check(&self, layout: &[TensorSpec]) -> Result<(), CheckpointError> {
        for TensorSpec { name, shape } in layout {
            let entry = self.find(name)?;
            if entry.shape != *shape {
                let (expected, got) = (shape.clone(), entry.shape.clone());
                return Err(CheckpointError::Shape { tensor: name.clone(), expected, got });
            }
        }
        Ok(())
    }

    /// The tensor `name`, which must have one axis.
    pub fn vector(&mut self, name: &str) -> Result<Array1<f32>, CheckpointError> {
        let (shape, values) = self.read(name)?;
        match shape[..] {
            [_] => Ok(Array1::from_vec(values)),
            _ => Err(CheckpointError::Shape { tensor: name.into(), expected: vec![values.len()], got: shape }),
        }
    }

    /// The tensor `name`, which must have two axes.
    pub fn matrix(&mut self, name: &str) -> Result<Array2<f32>, CheckpointError> {
        let (shape, values) = self.read(name)?;
        let wrong = |got| CheckpointError::Shape { tensor: name.into(), expected: vec![0, 0], got };
        match shape[..] {
            [rows, columns] => Array2::from_shape_vec((rows, columns), values).map_err(|_| wrong(shape)),
            _ => Err(wrong(shape)),
        }
    }

    fn add_file(&mut self, path: &Path) -> Result<(), CheckpointError> {
        let name = path.display().to_string();
        let io = |source| CheckpointError::Io { file: name.clone(), source };
        let file = File::open(path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        self.add(name, Source::File(file), length)
    }

    fn add_shards(&mut self, dir: &Path, index: &Path) -> Result<(), CheckpointError> {
        let file = index.display().to_string();
        let text = std::fs::read(index).map_err(|source| CheckpointError::Io { file: file.clone(), source })?;
        let malformed = |what: String| CheckpointError::Malformed { file: file.clone(), what };
        let Index { weight_map } = serde_json::from_slice(&text).map_err(|e| malformed(e.to_string()))?;
        let mut shards: Vec<&String> = weight_map.values().collect();
        shards.sort();
        shards.dedup();
        for shard in shards {
            // A plain file name: an index must not reach outside its directory.
            if Path::new(shard).file_name() != Some(shard.as_ref()) {
                return Err(malformed(format!("shard `{shard}` is not the name of a file in this directory")));
            }
            self.add_file(&dir.join(shard))?;
        }
        match weight_map.into_keys().find(|name| !self.tensors.contains_key(name)) {
            Some(tensor) => Err(CheckpointError::Missing { tensor }),
            None => Ok(()),
        }
    }

    fn add(&mut self, file: String, mut source: Source, length: u64) -> Result<(), CheckpointError> {
        let malformed = |what: String| CheckpointError::Malformed { file: file.clone(), what };
        let io = |e| CheckpointError::Io { file: file.clone(), source: e };
        let mut prefix = [0; 8];
        if length < 8 {
            return Err(malformed(format!("{length} bytes are no safetensors file")));
        }
        source.read_at(0, &mut prefix).map_err(io)?;
        let header_bytes = u64::from_le_bytes(prefix);
        if header_bytes > MAX_HEADER_BYTES || header_bytes > length - 8 {
            return Err(malformed(format!("a header of {header_bytes} bytes in a file of {length}")));
        }
        let mut text = vec![0; header_bytes as usize];
        source.read_at(8, &mut text).map_err(io)?;
        let mut header: HashMap<String, serde_json::Value> =
            serde_json::from_slice(&text).map_err(|e| malformed(format!("header: {e}")))?;
        header.remove("__metadata__");
        let (data, available) = (8 + header_bytes, length - 8 - header_bytes);
        let shard = self.shards.len();
        for (name, value) in header {
            let Header { dtype, shape, data_offsets: (start, end) } =
                serde_json::from_value(value).map_err(|e| malformed(format!("header of tensor `{name}`: {e}")))?;
            let entries = shape.iter().try_fold(1u64, |n, &s| n.checked_mul(s as u64));
            let fits = start <= end
                && end <= available
                && match element_bytes(&dtype) {
                    Some(size) => entries.and_then(|n| n.checked_mul(size as u64)) == Some(end - start),
                    None => true,
                };
            if !fits {
                return Err(CheckpointError::Bytes { tensor: name, start, end, shape, available });
            }
            self.tensors.insert(name, Entry { shard, dtype, shape, start: data + start, bytes: end - start });
        }
        self.shards.push(Shard { file, source });
        Ok(())
    }

    /// The tensor called `name`, with or without the prefix of the language-model class.
    fn find(&self, name: &str) -> Result<&Entry, CheckpointError> {
        let bare = ["transformer.", "model."].iter().find_map(|prefix| name.strip_prefix(prefix));
        self.tensors
            .get(name)
            .or_else(|| self.tensors.get(bare?))
            .ok_or_else(|| CheckpointError::Missing { tensor: name.into() })
    }

    fn read(&mut self, name: &str) -> Result<(Vec<usize>, Vec<f32>), CheckpointError> {
        let &Entry { shard, ref dtype, ref shape, start, bytes } = self.find(name)?;
        let Some(size) = element_bytes(dtype) else {
            return Err(CheckpointError::Type { tensor: name.into(), dtype: dtype.clone() });
        };
        let (shape, decode) = (shape.clone(), decoder(size, dtype == "BF16"));
        let Shard { file, source } = &mut self.shards[shard];
        let bytes = bytes as usize;
        let mut values = Vec::with_capacity(bytes / size);
        let mut chunk = vec![0; CHUNK_BYTES.min(bytes)];
        for at in (0..bytes).step_by(CHUNK_BYTES) {
            let part = &mut chunk[..CHUNK_BYTES.min(bytes - at)];
            source
                .read_at(start + at as u64, part)
                .map_err(|source| CheckpointError::Io { file: file.clone(), source })?;
            values.extend(part.chunks_exact(size).map(decode));
        }
        if let Some(position) = values.iter().position(|v: &f32| !v.is_finite()) {
            return Err(CheckpointError::NotFinite { tensor: name.into(), value: values[position], position });
        }
        Ok((shape, values))
    }
}

impl Source {
    fn read_at(&mut self, position: u64, out: &mut [u8]) -> std::io::Result<()> {
        match self {
            Source::File(file) => {
                file.seek(SeekFrom::Start(position))?;
                file.read_exact(out)
            }
            Source::Bytes(bytes) => {
                bytes.set_position(position);
                bytes.read_exact(out)
            }
        }
    }
}

fn element_bytes(dtype: &str) -> Option<usize> {
    match dtype {
        "F32" => Some(4),
        "F16" | "BF16" => Some(2),
        _ => None,
    }
}

/// Reads one little-endian element of `size` bytes, as [`element_bytes`] gives them.
fn decoder(size: usize, bfloat: bool) -> fn(&[u8]) -> f32 {
    match (size, bfloat) {
        (4, _) => |b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        (_, true) => |b| bf16::from_le_bytes([b[0], b[1]]).to_f32(),
        (_, false) => |b| f16::from_le_bytes([b[0], b[1]]).to_f32(),
    }
}
