//! Bytes that are integers or small floating-point numbers, with a scale for every block.

use std::sync::LazyLock;

use safetensors::Dtype;

use super::Packed;
use super::parts::{Floats, Part};
use crate::CheckpointError;
use crate::mapping::{Number, Piece};

/// The number that each byte stands for.
type Table = [f32; 256];

static SIGNED: LazyLock<Table> = LazyLock::new(|| std::array::from_fn(|byte| f32::from(byte as u8 as i8)));

static E4M3: LazyLock<Table> = LazyLock::new(|| std::array::from_fn(|byte| e4m3(byte as u8)));

/// A number of 4 bits of exponent and 3 of mantissa, which has no infinity.
fn e4m3(byte: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
    let magnitude = match (exponent, byte & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2f32.powi(-9),
        _ => (8.0 + mantissa) * 2f32.powi(exponent - 10),
    };
    if byte < 0x80 { magnitude } else { -magnitude }
}

/// The bytes of a tensor, and the number for which each value of a byte stands.
#[derive(Debug)]
pub(super) struct Codes {
    piece: Piece,
    table: &'static Table,
}

impl Codes {
    /// The codes of the tensor `part`, which has the type `dtype`.
    pub(super) fn new(part: Part, dtype: Dtype) -> Result<Self, CheckpointError> {
        match dtype {
            Dtype::F8_E4M3 => Ok(Codes { table: &E4M3, piece: part.of(dtype, "config.json says F8_E4M3")? }),
            _ => Ok(Codes { table: &SIGNED, piece: part.of(Dtype::I8, "config.json says I8")? }),
        }
    }

    fn at(&self, place: usize) -> f32 {
        self.table[usize::from(self.piece.get()[place])]
    }
}

/// A matrix with the entries (byte - zero) * scale * factor, in the type of the scale.
#[derive(Debug)]
pub(super) struct Blocks {
    /// The numbers of outputs and inputs.
    shape: [usize; 2],
    codes: Codes,
    zeros: Option<Codes>,
    scales: Floats,
    /// The numbers of outputs and inputs of a block.
    block: [usize; 2],
    /// The number of blocks that stand side by side along the inputs.
    width: usize,
    factor: f32,
}

impl Blocks {
    /// The matrix `weight` of the type `dtype`. There is a scale for each `block`, or if that is `None`, for each
    /// output or for the whole matrix.
    pub(super) fn new(
        weight: Part,
        dtype: Dtype,
        (scales, zeros): (Part, Option<Part>),
        block: Option<[usize; 2]>,
    ) -> Result<Self, CheckpointError> {
        let shape @ [outputs, inputs] = weight.axes()?;
        let codes = Codes::new(weight, dtype)?;
        let block = match (&scales.shape[..], block) {
            (_, Some(block)) => block,
            ([] | [1] | [1, 1], None) => [outputs, inputs],
            (_, None) => [1, inputs],
        };
        let block = block.map(|size| size.max(1));
        let grid = [outputs.div_ceil(block[0]), inputs.div_ceil(block[1])];
        let whole = grid == [1, 1] && scales.shape.iter().all(|size| *size == 1);
        let line = block[0] == 1 && grid[1] == 1 && scales.shape == [outputs];
        if scales.shape != grid && !whole && !line {
            return Err(scales.misshapen(&grid));
        }
        let zeros = zeros.map(|zeros| {
            let zeros = zeros.shaped(&scales.shape)?;
            let dtype = zeros.dtype;
            Codes::new(zeros, dtype)
        });
        let (zeros, scales) = (zeros.transpose()?, scales.floats()?);
        Ok(Blocks { shape, codes, zeros, scales, block, width: grid[1], factor: 1.0 })
    }

    /// The matrix with every entry times `factor`.
    pub(super) fn times(self, factor: f32) -> Self {
        Blocks { factor, ..self }
    }
}

impl Packed for Blocks {
    fn shape(&self) -> [usize; 2] {
        self.shape
    }

    fn number(&self) -> Number {
        self.scales.number
    }

    fn read(&self, line: usize, from: usize, out: &mut [f32]) {
        let (first, above) = (line * self.shape[1], line / self.block[0] * self.width);
        let (mut at, mut rest) = (from, out);
        while !rest.is_empty() {
            let beside = at / self.block[1];
            let count = ((beside + 1) * self.block[1] - at).min(rest.len());
            let (piece, after) = rest.split_at_mut(count);
            let scale = self.scales.at(above + beside);
            let zero = self.zeros.as_ref().map_or(0.0, |zeros| zeros.at(above + beside));
            for (input, out) in (at..).zip(piece.iter_mut()) {
                *out = (self.codes.at(first + input) - zero) * scale * self.factor;
            }
            self.number().round(piece);
            (at, rest) = (at + count, after);
        }
    }

    fn stored(&self) -> Vec<&[u8]> {
        let zeros = self.zeros.iter().map(|zeros| zeros.piece.get());
        [self.codes.piece.get(), self.scales.stored()].into_iter().chain(zeros).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_what_the_format_says() {
        for (byte, want) in [
            (0x00, 0.0),
            (0x01, 0.001_953_125),
            (0x07, 0.013_671_875),
            (0x08, 0.015_625),
            (0x38, 1.0),
            (0x3c, 1.5),
            (0x7e, 448.0),
            (0xfe, -448.0),
            (0xb8, -1.0),
        ] {
            assert_eq!(e4m3(byte), want, "{byte:#x}");
        }
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
        assert_eq!((SIGNED[0x7f], SIGNED[0x80], SIGNED[0xff]), (127.0, -128.0, -1.0));
    }
}
