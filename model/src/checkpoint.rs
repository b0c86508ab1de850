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
    /// Tensors that the architecture does not have: without them the model is not the published one.
    #[error(
        "the architecture of config.json has no tensor {}; the model is not computed without what {} for",
        listed(.tensors), if .tensors.len() == 1 { "it stands" } else { "they stand" }
    )]
    Unread {
        /// Their names, sorted.
        tensors: Vec<String>,
    },
    /// A tensor that is not what its name says.
    #[error("tensor `{tensor}` is not {what}")]
    Buffer {
        /// Published name.
        tensor: String,
        /// What it must be.
        what: &'static str,
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

/// Most names in one message.
const MAX_LISTED: usize = 4;

/// Names in a message: the first few.
fn listed(names: &[String]) -> String {
    let shown: Vec<_> = names.iter().take(MAX_LISTED).map(|name| format!("`{name}`")).collect();
    match names.len().saturating_sub(MAX_LISTED) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
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

    /// Checks that every tensor of `layout` is there with its shape; others are ignored, see
    /// [`Checkpoint::check_all`].
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
            let entry = Entry { shard, dtype, shape, start: data + start, bytes: end - start };
            if self.tensors.contains_key(&name) {
                return Err(malformed(format!("tensor `{name}` is in another file, too")));
            }
            self.tensors.insert(name, entry);
        }
        self.shards.push(Shard { file, source });
        Ok(())
    }

    /// The name in the files of the tensor called `name`: with or without the prefix of the language-model class.
    pub(crate) fn stored_name<'a>(&self, name: &'a str) -> Option<&'a str> {
        let bare = ["transformer.", "model."].iter().find_map(|prefix| name.strip_prefix(prefix));
        [Some(name), bare].into_iter().flatten().find(|name| self.tensors.contains_key(*name))
    }

    fn find(&self, name: &str) -> Result<&Entry, CheckpointError> {
        self.stored_name(name)
            .and_then(|stored| self.tensors.get(stored))
            .ok_or_else(|| CheckpointError::Missing { tensor: name.into() })
    }

    fn read(&mut self, name: &str) -> Result<(Vec<usize>, Vec<f32>), CheckpointError> {
        let entry = self.find(name)?;
        // Numbers of one byte are masks, not weights.
        if entry.element().is_none_or(|(size, _)| size == 1) {
            return Err(CheckpointError::Type { tensor: name.into(), dtype: entry.dtype.clone() });
        }
        self.numbers(name)
    }

    /// Shape and values of a tensor that may be a mask.
    pub(crate) fn numbers(&mut self, name: &str) -> Result<(Vec<usize>, Vec<f32>), CheckpointError> {
        let entry = self.find(name)?;
        let Some((size, decode)) = entry.element() else {
            return Err(CheckpointError::Type { tensor: name.into(), dtype: entry.dtype.clone() });
        };
        let &Entry { shard, ref shape, start, bytes, .. } = entry;
        let shape = shape.clone();
        let bytes = bytes as usize;
        let mut values = Vec::with_capacity(bytes / size);
        let mut chunk = vec![0; CHUNK_BYTES.min(bytes)];
        for at in (0..bytes).step_by(CHUNK_BYTES) {
            let part = &mut chunk[..CHUNK_BYTES.min(bytes - at)];
            self.shards[shard].read_at(start + at as u64, part)?;
            values.extend(part.chunks_exact(size).map(decode));
        }
        if let Some(position) = values.iter().position(|v: &f32| !v.is_finite()) {
            return Err(CheckpointError::NotFinite { tensor: name.into(), value: values[position], position });
        }
        Ok((shape, values))
    }

    /// Whether two tensors have the same shape, type and bytes.
    pub(crate) fn equal(&mut self, a: &str, b: &str) -> Result<bool, CheckpointError> {
        let (a, b) = (self.find(a)?, self.find(b)?);
        if (&a.dtype, &a.shape, a.bytes) != (&b.dtype, &b.shape, b.bytes) {
            return Ok(false);
        }
        let (a, b, bytes) = ((a.shard, a.start), (b.shard, b.start), a.bytes as usize);
        let mut parts = [vec![0; CHUNK_BYTES.min(bytes)], vec![0; CHUNK_BYTES.min(bytes)]];
        for at in (0..bytes).step_by(CHUNK_BYTES) {
            for ((shard, start), part) in [a, b].into_iter().zip(&mut parts) {
                part.truncate(bytes - at);
                self.shards[shard].read_at(start + at as u64, part)?;
            }
            if parts[0] != parts[1] {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Reads an element from its bytes.
type Decoder = fn(&[u8]) -> f32;

impl Entry {
    /// Bytes of an element, and how to read one.
    fn element(&self) -> Option<(usize, Decoder)> {
        let size = element_bytes(&self.dtype)?;
        Some((size, decoder(size, self.dtype == "BF16")))
    }
}

impl Shard {
    fn read_at(&mut self, position: u64, out: &mut [u8]) -> Result<(), CheckpointError> {
        self.source.read_at(position, out).map_err(|source| CheckpointError::Io { file: self.file.clone(), source })
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
        "U8" | "BOOL" => Some(1),
        _ => None,
    }
}

/// Reads one little-endian element of `size` bytes, as [`element_bytes`] gives them.
fn decoder(size: usize, bfloat: bool) -> fn(&[u8]) -> f32 {
    match (size, bfloat) {
        (4, _) => |b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        (1, _) => |b| f32::from(b[0]),
        (_, true) => |b| bf16::from_le_bytes([b[0], b[1]]).to_f32(),
        (_, false) => |b| f16::from_le_bytes([b[0], b[1]]).to_f32(),
    }
}
