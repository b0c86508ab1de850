//! The tensors that make up a matrix, and checks of their shapes and types.

use safetensors::Dtype;

use crate::checkpoint::Entry;
use crate::mapping::{Number, Piece};
use crate::{Checkpoint, CheckpointError};

/// The tensors of one matrix. Each is found by the suffix that follows the name of the matrix in its own name.
pub(crate) struct Parts<'a> {
    checkpoint: &'a mut Checkpoint,
    matrix: &'a str,
}

impl<'a> Parts<'a> {
    pub(crate) fn new(checkpoint: &'a mut Checkpoint, matrix: &'a str) -> Self {
        Parts { checkpoint, matrix }
    }

    /// Takes a tensor out of the checkpoint, if it exists.
    pub(super) fn take(&mut self, suffix: &str) -> Option<Part> {
        let name = format!("{}{suffix}", self.matrix);
        let Entry { dtype, shape, piece, .. } = self.checkpoint.take(&name)?;
        Some(Part { name, dtype, shape, piece })
    }

    /// Takes a tensor out of the checkpoint. An error if it does not exist.
    pub(super) fn need(&mut self, suffix: &str) -> Result<Part, CheckpointError> {
        self.take(suffix).ok_or_else(|| CheckpointError::missing(format!("{}{suffix}", self.matrix)))
    }

    /// Removes the tensors that say how activations were rounded. Activations are not rounded here.
    pub(super) fn leave(&mut self, suffixes: &[&str]) {
        for suffix in suffixes {
            self.take(suffix);
        }
    }
}

/// A tensor of a matrix.
pub(super) struct Part {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    piece: Piece,
}

impl Part {
    /// The tensor, if it has the shape `expected`; otherwise an error.
    pub(super) fn shaped(self, expected: &[usize]) -> Result<Self, CheckpointError> {
        if self.shape == expected { Ok(self) } else { Err(self.misshapen(expected)) }
    }

    /// The error for a tensor that should have another shape.
    pub(super) fn misshapen(&self, expected: &[usize]) -> CheckpointError {
        let (tensor, got) = (self.name.clone(), self.shape.clone());
        CheckpointError::Shape { tensor, expected: expected.to_vec(), got }
    }

    /// The sizes of the two axes of the tensor. An error if it does not have two axes.
    pub(super) fn axes(&self) -> Result<[usize; 2], CheckpointError> {
        <[usize; 2]>::try_from(&self.shape[..]).map_err(|_| self.misshapen(&[0, 0]))
    }

    /// The error for a tensor that should have another type.
    pub(super) fn mistyped(&self, expected: &'static str) -> CheckpointError {
        CheckpointError::Type { tensor: self.name.clone(), dtype: self.dtype.to_string(), expected }
    }

    /// The error for a tensor that is not what its name says.
    pub(super) fn wrong(&self, what: &'static str) -> CheckpointError {
        CheckpointError::Buffer { tensor: self.name.clone(), what }
    }

    /// The bytes of the tensor, if it has the type `dtype`.
    pub(super) fn of(self, dtype: Dtype, expected: &'static str) -> Result<Piece, CheckpointError> {
        if self.dtype == dtype { Ok(self.piece) } else { Err(self.mistyped(expected)) }
    }

    /// The tensor's words of 32 bits.
    pub(super) fn words(self) -> Result<Piece, CheckpointError> {
        self.of(Dtype::I32, "its words are I32")
    }

    /// The tensor's numbers, in floating point.
    pub(super) fn floats(self) -> Result<Floats, CheckpointError> {
        match Number::of(self.dtype) {
            Some(number @ (Number::F32 | Number::F16 | Number::Bf16)) => Ok(Floats { piece: self.piece, number }),
            _ => Err(self.mistyped("F32, F16 and BF16 are supported")),
        }
    }

    /// The tensor's integers of 32 bits, none of them negative, or `None` if all are -1.
    pub(super) fn indices(self) -> Result<Option<Vec<u32>>, CheckpointError> {
        let wrong = self.wrong("a list of places");
        let piece = self.of(Dtype::I32, "places are I32")?;
        let integers = piece.get().as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes));
        if integers.len() > 0 && integers.clone().all(|integer| integer == -1) {
            return Ok(None);
        }
        integers.map(u32::try_from).collect::<Result<_, _>>().map(Some).map_err(|_| wrong)
    }

    /// The tensor's integers of 64 bits, which are sizes.
    pub(super) fn sizes(self) -> Result<Vec<usize>, CheckpointError> {
        let wrong = self.wrong("a list of sizes");
        let piece = self.of(Dtype::I64, "sizes are I64")?;
        let integers = piece.get().as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes));
        integers.map(usize::try_from).collect::<Result<_, _>>().map_err(|_| wrong)
    }

    /// The bytes of the tensor, whatever its type.
    pub(super) fn piece(&self) -> Piece {
        self.piece.clone()
    }
}

/// Numbers that are read one by one.
#[derive(Debug)]
pub(super) struct Floats {
    piece: Piece,
    pub(super) number: Number,
}

impl Floats {
    /// The number at a place. Panics if there is none.
    pub(super) fn at(&self, place: usize) -> f32 {
        self.number.at(self.piece.get(), place)
    }

    pub(super) fn stored(&self) -> &[u8] {
        self.piece.get()
    }
}
