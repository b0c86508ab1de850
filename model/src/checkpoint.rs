//! Weights of a Hugging Face directory: safetensors, one file or several with an index.
//!
//! Only headers are kept in memory. Files are mapped, so that their numbers stay in the page cache and are read when
//! they are used. The format (<https://github.com/huggingface/safetensors>): eight bytes of header length (little
//! endian), then the header, which the crate `safetensors` parses, then the data. Nothing in a file is trusted:
//! lengths are checked here, before anything is allocated.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ndarray::{Array1, Array2};
use safetensors::Dtype;
use safetensors::tensor::Metadata;
use serde::Deserialize;
use thiserror::Error;

use crate::config::{Place, Wrapper};
use crate::forms::Form;
use crate::hints;
use crate::mapping::{Bytes, Number, Numbers, Packed, Piece};
use crate::store::DType;
use crate::tensor::{TensorSpec, take};

/// Why a checkpoint cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The directory holds neither `model.safetensors` nor `model.safetensors.index.json`.
    #[error("{} holds no model.safetensors and no model.safetensors.index.json{hint}", dir.display())]
    NoWeights {
        /// The directory.
        dir: PathBuf,
        /// Advice on the files that the directory holds, or nothing.
        hint: &'static str,
    },
    /// A file cannot be read.
    #[error("{file}: {source}")]
    Io {
        /// The file.
        file: String,
        /// The cause.
        source: std::io::Error,
    },
    /// A header or index that violates its format.
    #[error("{file}: {what}")]
    Malformed {
        /// The file.
        file: String,
        /// The fault.
        what: String,
    },
    /// A tensor that follows from the configuration is missing.
    #[error("tensor `{tensor}` is missing{hint}")]
    Missing {
        /// Published name.
        tensor: String,
        /// Advice on the tensors that are there, or nothing.
        hint: String,
    },
    /// A tensor has another shape than the configuration says.
    #[error("tensor `{tensor}` has shape {got:?}, the configuration says {expected:?}")]
    Shape {
        /// Published name.
        tensor: String,
        /// Shape that follows from the configuration.
        expected: Vec<usize>,
        /// Shape in the file.
        got: Vec<usize>,
    },
    /// The bytes of a tensor lie outside the file or do not match its shape.
    #[error(
        "tensor `{tensor}`: bytes {start}..{end} do not hold shape {shape:?} in a file with {available} data bytes"
    )]
    Bytes {
        /// Published name.
        tensor: String,
        /// First byte of the tensor, counted from the end of the header.
        start: u64,
        /// Byte after the last one of the tensor, counted from the end of the header.
        end: u64,
        /// Shape in the header.
        shape: Vec<usize>,
        /// The number of bytes after the header.
        available: u64,
    },
    /// A tensor has a type that is not supported, or another type than the configuration says.
    #[error("tensor `{tensor}` has type {dtype}; {expected}")]
    Type {
        /// Published name.
        tensor: String,
        /// The type of the tensor.
        dtype: String,
        /// The types that the tensor may have.
        expected: &'static str,
    },
    /// The checkpoint has tensors that the architecture does not have. If they were ignored, the model would not be
    /// the published one.
    #[error(
        "the architecture of config.json has no tensor {}; the model is not computed without what {} for",
        listed(.tensors), if .tensors.len() == 1 { "it stands" } else { "they stand" }
    )]
    Unread {
        /// The names of the tensors, sorted.
        tensors: Vec<String>,
    },
    /// A tensor does not have the content that its name says.
    #[error("tensor `{tensor}` is not {what}")]
    Buffer {
        /// Published name.
        tensor: String,
        /// The content that the tensor must have.
        what: &'static str,
    },
    /// Two tensors of one name, which should be equal, are not.
    #[error("tensor `{tensor}` is there twice, in two files or under two names, and not with the same numbers")]
    Twice {
        /// The name of both tensors.
        tensor: String,
    },
    /// There is no file with learned columns.
    #[error("there is no {}, which the cache policy `{head}` needs", file.display())]
    NoLearned {
        /// The scoring head, which has the name of its policy.
        head: String,
        /// The file.
        file: PathBuf,
    },
    /// The learned columns were fitted to another model.
    #[error("{} was fitted to another checkpoint", learned_file(head))]
    OtherLearned {
        /// The scoring head.
        head: String,
    },
    /// Learned columns may give scores beyond the range of the policies.
    #[error("{}: tensor `{tensor}` gives scores up to {most}, beyond {limit}", learned_file(head))]
    LargeLearned {
        /// The scoring head.
        head: String,
        /// The tensor.
        tensor: String,
        /// The largest score that any hidden state may have.
        most: f64,
        /// The largest score that is allowed.
        limit: f64,
    },
    /// A weight is not a finite number.
    #[error("tensor `{tensor}` holds {value} at position {position}")]
    NotFinite {
        /// Published name.
        tensor: String,
        /// The value.
        value: f32,
        /// The position of the value in the tensor, row-major.
        position: usize,
    },
}

impl CheckpointError {
    /// The error for a missing tensor about which nothing else is known.
    pub(crate) fn missing(tensor: impl Into<String>) -> Self {
        CheckpointError::Missing { tensor: tensor.into(), hint: String::new() }
    }
}

/// The floating-point types that weights may have, as messages name them.
const FLOATS: &str = "F32, F16 and BF16 are supported";

/// The suffix that turns the name of a matrix into that of its tensor of scales.
pub(crate) const SCALE: &str = "_scale";

/// The largest number of tensors that one message names.
const MAX_LISTED: usize = 4;

/// How a message shows a list of names: the first few of them.
fn listed(names: &[String]) -> String {
    let shown: Vec<_> = names.iter().take(MAX_LISTED).map(|name| format!("`{name}`")).collect();
    match names.len().saturating_sub(MAX_LISTED) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// The current name of a tensor. The first programs called the gain and the shift of a layer norm gamma and beta.
fn renamed(name: String) -> String {
    for (old, new) in [("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")] {
        if let Some(norm) = name.strip_suffix(old) {
            return format!("{norm}{new}");
        }
    }
    name
}

/// The name of the file with the columns of the scoring head `name`, in the directory of a model.
pub fn learned_file(name: &str) -> String {
    format!("{name}.safetensors")
}

/// Where the files with learned columns are.
#[derive(Clone, Debug)]
pub(crate) enum Beside {
    /// In this directory, as far as they exist.
    Dir(PathBuf),
    /// Their bytes in this program, by the name of the scoring head.
    Static(&'static [(&'static str, &'static [u8])]),
}

/// Longest header that is read; the format's own limit.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// The number of bytes that are hashed at each sampled place of a large tensor, to tell tensors apart.
const SAMPLE: usize = 512;

/// Tensors of one model, read on demand.
pub struct Checkpoint {
    tensors: HashMap<String, Entry>,
    left_out: Vec<LeftOut>,
    /// The place of the learned columns.
    pub(crate) beside: Beside,
    /// The adapter that is added to the matrices, if there is one.
    pub(crate) adapter: Option<Box<crate::adapter::Adapter>>,
}

/// A tensor.
pub(crate) struct Entry {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    /// The bytes of the tensor. Empty if it was put together from several tensors of the files.
    pub(crate) piece: Piece,
    /// The numbers of the tensor; `None` for an unknown type.
    numbers: Option<Numbers>,
}

/// How a model is published, if its names or its storage differ from those of its family's program.
#[derive(Debug, Default)]
pub(crate) struct Wrapping {
    /// The kind of model that the text model is a part of.
    pub(crate) wrapper: Option<&'static Wrapper>,
    /// The form of matrices that are stored in few bits.
    pub(crate) form: Option<Box<dyn Form>>,
}

/// Tensors that are no part of the text model, and are not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The beginning of their names.
    pub prefix: String,
    /// The number of these tensors.
    pub tensors: usize,
}

impl Entry {
    /// Whether two tensors have the same shape and the same numbers, whatever their types.
    fn equals(&self, other: &Entry) -> bool {
        let (Some(a), Some(b)) = (&self.numbers, &other.numbers) else {
            return (self.dtype, &self.shape, self.piece.get()) == (other.dtype, &other.shape, other.piece.get());
        };
        let same = self.dtype == other.dtype && a.stored() == b.stored();
        // Integers mean nothing without their scales.
        let plain = self.dtype != Dtype::I8 && other.dtype != Dtype::I8;
        self.shape == other.shape && a.len() == b.len() && (same || (plain && a.equal(b)))
    }

    fn refused(&self, name: &str) -> CheckpointError {
        CheckpointError::Type { tensor: name.into(), dtype: self.dtype.to_string(), expected: FLOATS }
    }
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Checkpoint {
    /// Opens `model.safetensors` of the directory `dir`, or the shards that its index names.
    pub fn open(dir: &Path) -> Result<Self, CheckpointError> {
        Checkpoint::published(dir, &Wrapping::default())
    }

    /// [`Checkpoint::open`] for a model that is published as `wrapping` says.
    pub(crate) fn published(dir: &Path, wrapping: &Wrapping) -> Result<Self, CheckpointError> {
        let mut checkpoint = Checkpoint { beside: Beside::Dir(dir.to_owned()), ..Checkpoint::empty() };
        let (single, index) = (dir.join("model.safetensors"), dir.join("model.safetensors.index.json"));
        if single.is_file() {
            checkpoint.add_file(&single)?;
        } else if index.is_file() {
            checkpoint.add_shards(dir, &index)?;
        } else {
            return Err(CheckpointError::NoWeights { dir: dir.to_owned(), hint: hints::of_directory(dir) });
        }
        if let Some(wrapper) = wrapping.wrapper {
            checkpoint.unwrap_text(wrapper)?;
        }
        if let Some(form) = &wrapping.form {
            checkpoint.unpack(form.as_ref())?;
        }
        checkpoint.scale()?;
        Ok(checkpoint)
    }

    /// A checkpoint from the bytes of one safetensors file. Errors call the file `name`.
    pub fn from_bytes(name: &str, bytes: &'static [u8]) -> Result<Self, CheckpointError> {
        let mut checkpoint = Checkpoint::empty();
        checkpoint.add(name.to_owned(), Bytes::Static(bytes))?;
        checkpoint.scale()?;
        Ok(checkpoint)
    }

    /// A checkpoint without tensors.
    pub(crate) fn empty() -> Self {
        Checkpoint { tensors: HashMap::new(), left_out: Vec::new(), beside: Beside::Static(&[]), adapter: None }
    }

    /// Renames the tensors of the text model, which the model `wrapper` contains, to the names that the text model
    /// has for them. Leaves out the tensors of the wrapper's other parts.
    fn unwrap_text(&mut self, wrapper: &Wrapper) -> Result<(), CheckpointError> {
        let mut left_out = BTreeMap::new();
        for (name, entry) in std::mem::take(&mut self.tensors) {
            match wrapper.place(&name) {
                Place::Outside(prefix) => *left_out.entry(prefix.to_owned()).or_default() += 1,
                Place::Text(tensor) => self.insert(tensor, entry)?,
            }
        }
        self.left_out = left_out.into_iter().map(|(prefix, tensors)| LeftOut { prefix, tensors }).collect();
        Ok(())
    }

    /// The tensors that were left out because they are no part of a text model, grouped by the beginnings of their
    /// names.
    pub fn left_out(&self) -> &[LeftOut] {
        &self.left_out
    }

    /// Inserts a tensor. A second tensor of the same name must have the same numbers.
    fn insert(&mut self, tensor: String, entry: Entry) -> Result<(), CheckpointError> {
        match self.tensors.get(&tensor) {
            Some(known) if known.equals(&entry) => Ok(()),
            Some(_) => Err(CheckpointError::Twice { tensor }),
            None => {
                self.tensors.insert(tensor, entry);
                Ok(())
            }
        }
    }

    /// Removes a tensor and returns it, if it exists.
    pub(crate) fn take(&mut self, name: &str) -> Option<Entry> {
        self.tensors.remove(name)
    }

    /// Removes the tensors whose names `names` accepts.
    pub(crate) fn leave(&mut self, names: impl Fn(&str) -> bool) {
        self.tensors.retain(|name, _| !names(name));
    }

    /// Inserts a matrix that is stored in few bits.
    pub(crate) fn insert_packed(&mut self, name: String, matrix: Arc<dyn Packed>) -> Result<(), CheckpointError> {
        let (dtype, shape) = (matrix.number().dtype(), matrix.shape().to_vec());
        self.insert(name, Entry { dtype, shape, piece: Piece::default(), numbers: Some(Numbers::Packed(matrix)) })
    }

    /// Names and shapes of all tensors.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.tensors.iter().map(|(name, entry)| (name.as_str(), entry.shape.as_slice()))
    }

    /// Checks that every tensor of `layout` is there with its shape. Other tensors are ignored;
    /// [`Checkpoint::check_all`] refuses them.
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
    pub fn vector(&self, name: &str) -> Result<Array1<f32>, CheckpointError> {
        let (shape, values) = self.read(name)?;
        match shape[..] {
            [_] => Ok(Array1::from_vec(values)),
            _ => Err(CheckpointError::Shape { tensor: name.into(), expected: vec![values.len()], got: shape }),
        }
    }

    /// The tensor `name`, which must have two axes.
    pub fn matrix(&self, name: &str) -> Result<Array2<f32>, CheckpointError> {
        let (shape, values) = self.read(name)?;
        let wrong = |got| CheckpointError::Shape { tensor: name.into(), expected: vec![0, 0], got };
        match shape[..] {
            [rows, columns] => Array2::from_shape_vec((rows, columns), values).map_err(|_| wrong(shape)),
            _ => Err(wrong(shape)),
        }
    }

    pub(crate) fn add_file(&mut self, path: &Path) -> Result<(), CheckpointError> {
        let name = path.display().to_string();
        let io = |source| CheckpointError::Io { file: name.clone(), source };
        let bytes = waggle_files::open(path).and_then(|file| Bytes::map(&file)).map_err(io)?;
        self.add(name, bytes)
    }

    fn add_shards(&mut self, dir: &Path, index: &Path) -> Result<(), CheckpointError> {
        let file = index.display().to_string();
        let text = waggle_files::read(index, MAX_HEADER_BYTES)
            .map_err(|source| CheckpointError::Io { file: file.clone(), source })?;
        let malformed = |what: String| CheckpointError::Malformed { file: file.clone(), what };
        let Index { weight_map } = serde_json::from_slice(&text).map_err(|e| malformed(hints::of_json(&text, &e)))?;
        let mut shards: Vec<&String> = weight_map.values().collect();
        shards.sort();
        shards.dedup();
        for shard in shards {
            // The shard must be a plain file name: an index must not reach outside its directory.
            if Path::new(shard).file_name() != Some(shard.as_ref()) {
                return Err(malformed(format!("shard `{shard}` is not the name of a file in this directory")));
            }
            self.add_file(&dir.join(shard))?;
        }
        match weight_map.into_keys().map(renamed).find(|name| !self.tensors.contains_key(name)) {
            Some(tensor) => Err(CheckpointError::missing(tensor)),
            None => Ok(()),
        }
    }

    fn add(&mut self, file: String, bytes: Bytes) -> Result<(), CheckpointError> {
        let malformed = |what: String| CheckpointError::Malformed { file: file.clone(), what };
        let length = bytes.get().len() as u64;
        if hints::is_lfs(bytes.get()) {
            return Err(malformed(hints::LFS.to_owned()));
        }
        let Some((prefix, rest)) = bytes.get().split_first_chunk() else {
            return Err(malformed(format!("{length} bytes are no safetensors file")));
        };
        let header_bytes = u64::from_le_bytes(*prefix);
        if header_bytes > MAX_HEADER_BYTES || header_bytes > length - 8 {
            return Err(malformed(format!("a header of {header_bytes} bytes in a file of {length}")));
        }
        let text = &rest[..header_bytes as usize];
        let header: Metadata = serde_json::from_slice(text).map_err(|e| malformed(format!("header: {e}")))?;
        let (data, available) = (8 + text.len(), rest.len() - text.len());
        for (name, info) in header.tensors() {
            let (dtype, shape, (start, end)) = (info.dtype, info.shape.clone(), info.data_offsets);
            let entries = shape.iter().try_fold(1usize, |n, &s| n.checked_mul(s));
            let bits = entries.and_then(|n| n.checked_mul(dtype.bitsize()));
            let fits = start <= end && end <= available && bits.is_some_and(|bits| bits == (end - start) * 8);
            // Both ends lie within the file, whose length fits into memory addresses.
            let range = data.saturating_add(start)..data.saturating_add(end);
            let (true, Some(piece)) = (fits, Piece::new(bytes.clone(), range)) else {
                let (start, end, available) = (start as u64, end as u64, available as u64);
                return Err(CheckpointError::Bytes { tensor: name, start, end, shape, available });
            };
            let numbers = Number::of(dtype).map(|number| Numbers::new(piece.clone(), number));
            let entry = Entry { dtype, shape, piece, numbers };
            self.insert(renamed(name), entry)?;
        }
        Ok(())
    }

    /// Joins every matrix of 8-bit integers with the tensor of its scales, which has one scale for every line. A
    /// matrix without scales has no numbers that can be read.
    fn scale(&mut self) -> Result<(), CheckpointError> {
        let integers = |entry: &Entry| entry.numbers.is_some() && entry.dtype == Dtype::I8;
        let mut names: Vec<_> =
            self.tensors.iter().filter(|(_, entry)| integers(entry)).map(|(name, _)| name.clone()).collect();
        names.sort();
        for name in names {
            let tensor = format!("{name}{SCALE}");
            let scales = match self.tensors.get(&tensor) {
                Some(Entry { dtype: Dtype::F32, .. }) => Some(self.vector(&tensor)?),
                Some(Entry { dtype, .. }) => {
                    return Err(CheckpointError::Type {
                        tensor,
                        dtype: dtype.to_string(),
                        expected: "scales are F32",
                    });
                }
                None => None,
            };
            let Some(entry) = self.tensors.get_mut(&name) else { continue };
            let (Some(scales), &[lines, _]) = (scales, &entry.shape[..]) else {
                entry.numbers = None;
                continue;
            };
            if scales.len() != lines {
                return Err(CheckpointError::Shape { tensor, expected: vec![lines], got: vec![scales.len()] });
            }
            if scales.iter().any(|scale| *scale <= 0.0) {
                return Err(CheckpointError::Buffer { tensor, what: "a positive number for every line" });
            }
            entry.numbers = entry.numbers.take().map(|numbers| numbers.scaled(scales.iter().copied().collect()));
        }
        Ok(())
    }

    /// If the model is `quantized`, checks that all matrices of `layout` are integers with scales. Otherwise checks
    /// that none of them is.
    pub(crate) fn check_types(&self, layout: &[TensorSpec], quantized: bool) -> Result<(), CheckpointError> {
        for TensorSpec { name, shape } in layout {
            let (entry, wanted) = (self.find(name)?, quantized && shape.len() == 2);
            if (entry.dtype == Dtype::I8) != wanted {
                let expected = if wanted { "config.json says I8" } else { FLOATS };
                return Err(CheckpointError::Type { tensor: name.clone(), dtype: entry.dtype.to_string(), expected });
            }
            if wanted && entry.numbers.is_none() {
                return Err(CheckpointError::missing(format!("{name}{SCALE}")));
            }
        }
        Ok(())
    }

    /// Whether the tensor that is called `stored` in the files consists of integers with scales.
    pub(crate) fn is_scaled(&self, stored: &str) -> bool {
        self.tensors.get(stored).is_some_and(|entry| entry.dtype == Dtype::I8 && entry.numbers.is_some())
    }

    /// Whether the tensor that is called `stored` in the files is a matrix in few bits.
    pub(crate) fn is_packed(&self, stored: &str) -> bool {
        self.tensors.get(stored).is_some_and(|entry| matches!(entry.numbers, Some(Numbers::Packed(_))))
    }

    /// The type of the tensor `name`, for writing it to a file. Fails if it is not F32, F16 or BF16.
    pub(crate) fn dtype(&self, name: &str) -> Result<DType, CheckpointError> {
        let entry = self.find(name)?;
        match entry.dtype {
            Dtype::F32 => Ok(DType::F32),
            Dtype::F16 => Ok(DType::F16),
            Dtype::BF16 => Ok(DType::Bf16),
            _ => Err(entry.refused(name)),
        }
    }

    /// The name that the tensor `name` has in the files: the same name, or the name without the prefix of the
    /// language-model class. `None` if the files have neither.
    pub(crate) fn stored_name<'a>(&self, name: &'a str) -> Option<&'a str> {
        let bare = ["transformer.", "model."].iter().find_map(|prefix| name.strip_prefix(prefix));
        [Some(name), bare].into_iter().flatten().find(|name| self.tensors.contains_key(*name))
    }

    fn find(&self, name: &str) -> Result<&Entry, CheckpointError> {
        self.stored_name(name).and_then(|stored| self.tensors.get(stored)).ok_or_else(|| CheckpointError::Missing {
            tensor: name.into(),
            hint: hints::of_tensors(name, self.tensors.keys().map(String::as_str)),
        })
    }

    /// The shape of a weight, and its numbers, which are not read yet.
    pub(crate) fn numbers(&self, name: &str) -> Result<(&[usize], &Numbers), CheckpointError> {
        let entry = self.find(name)?;
        // Numbers of one byte are masks, not weights.
        match entry.numbers.as_ref().filter(|_| Number::of(entry.dtype) != Some(Number::U8)) {
            Some(numbers) => Ok((&entry.shape, numbers)),
            None => Err(entry.refused(name)),
        }
    }

    /// Shape and values of a weight, all of them finite.
    pub(crate) fn read(&self, name: &str) -> Result<(Vec<usize>, Vec<f32>), CheckpointError> {
        self.numbers(name)?;
        let (shape, values) = self.values(name)?;
        match values.iter().position(|v: &f32| !v.is_finite()) {
            Some(position) => {
                Err(CheckpointError::NotFinite { tensor: name.into(), value: values[position], position })
            }
            None => Ok((shape, values)),
        }
    }

    /// Shape and values of a tensor that may be a mask and may hold infinities.
    pub(crate) fn values(&self, name: &str) -> Result<(Vec<usize>, Vec<f32>), CheckpointError> {
        let entry = self.find(name)?;
        let Some(numbers) = &entry.numbers else {
            return Err(entry.refused(name));
        };
        let mut values = vec![0.0; numbers.len()];
        numbers.read(0, &mut values);
        Ok((entry.shape.clone(), values))
    }

    /// Hashes name, type and shape of every tensor, in order of the names, and some of its bytes: all bytes of a
    /// vector, and those at the beginning, in the middle and at the end of a larger tensor. That is enough to tell
    /// one checkpoint from another.
    pub(crate) fn sample(&self, hasher: &mut blake3::Hasher) {
        let mut take = |bytes: &[u8]| take(hasher, bytes);
        let mut tensors: Vec<_> = self.tensors.iter().collect();
        tensors.sort_by_key(|(name, _)| *name);
        for (name, entry) in tensors {
            take(format!("{name} {} {:?}", entry.dtype, entry.shape).as_bytes());
            let Some(numbers) = &entry.numbers else { continue };
            for bytes in numbers.stored() {
                if entry.shape.len() < 2 || bytes.len() <= 3 * SAMPLE {
                    take(bytes);
                    continue;
                }
                let last = bytes.len() - SAMPLE;
                [0, last / 2, last].into_iter().for_each(|start| take(&bytes[start..start + SAMPLE]));
            }
        }
    }

    /// Hashes type, shape and all bytes of the tensor that is called `stored` in the files. They are hashed under the
    /// name `name`.
    pub(crate) fn hash_all(&self, stored: &str, name: &str, hasher: &mut blake3::Hasher) {
        let Some(entry) = self.tensors.get(stored) else { return };
        take(hasher, format!("{name} {} {:?}", entry.dtype, entry.shape).as_bytes());
        entry.numbers.iter().flat_map(Numbers::stored).for_each(|bytes| take(hasher, bytes));
    }

    /// Whether two tensors have the same shape and numbers.
    pub(crate) fn equal(&self, a: &str, b: &str) -> Result<bool, CheckpointError> {
        Ok(self.find(a)?.equals(self.find(b)?))
    }
}
