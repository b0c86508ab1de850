//! Files whose bytes stay on disk until they are read, and then stay in the page cache.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use memmap2::Mmap;
use safetensors::Dtype;
use waggle_bits::cpu::{self, wide};
#[cfg(target_arch = "x86_64")]
use waggle_bits::cpu::{Cpu, Feature};
use waggle_engine::Narrow;

/// The bytes of a file. Clones share them.
#[derive(Clone, Debug)]
pub(crate) enum Bytes {
    /// Bytes in this program.
    Static(&'static [u8]),
    /// Bytes of a file, which may have changed since it was opened.
    Mapped(Arc<Mmap>),
}

impl Bytes {
    /// The bytes of `file`. An empty file cannot be mapped, and needs no mapping.
    #[expect(unsafe_code, reason = "a mapping is the one way to leave 13 GB where they are")]
    pub(crate) fn map(file: &File) -> std::io::Result<Self> {
        if file.metadata()?.len() == 0 {
            return Ok(Bytes::Static(&[]));
        }
        // SAFETY: a mapping is sound while nobody changes the file. Whoever serves a model is told not to change its
        // files (`SECURITY.md`). Nothing else here depends on it: any bytes are valid numbers, each byte is read once
        // per use, and none is trusted. So an overwritten file gives other numbers, and a truncated one ends the
        // process.
        let map = unsafe { Mmap::map(file) }?;
        Ok(Bytes::Mapped(Arc::new(map)))
    }

    pub(crate) fn get(&self) -> &[u8] {
        match self {
            Bytes::Static(bytes) => bytes,
            Bytes::Mapped(map) => map,
        }
    }
}

/// The bytes of one tensor in a file.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    bytes: Bytes,
    range: Range<usize>,
}

impl Default for Piece {
    /// No bytes.
    fn default() -> Self {
        Piece { bytes: Bytes::Static(&[]), range: 0..0 }
    }
}

impl Piece {
    /// The bytes `range`, or `None` if there are no such bytes.
    pub(crate) fn new(bytes: Bytes, range: Range<usize>) -> Option<Self> {
        bytes.get().get(range.clone())?;
        Some(Piece { bytes, range })
    }

    pub(crate) fn get(&self) -> &[u8] {
        &self.bytes.get()[self.range.clone()]
    }
}

/// A matrix that is stored in few bits.
pub(crate) trait Packed: std::fmt::Debug + Send + Sync {
    /// The numbers of outputs and inputs: each output is a line, which has an entry for each input.
    fn shape(&self) -> [usize; 2];

    /// The type to which the entries of the matrix are rounded.
    fn number(&self) -> Number;

    /// The entries `from .. from + out.len()` of the line `line`. Panics if the matrix does not have these entries.
    fn read(&self, line: usize, from: usize, out: &mut [f32]);

    /// The stored bytes from which the matrix is computed.
    fn stored(&self) -> Vec<&[u8]>;
}

/// The form of a stored number, in little-endian bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    /// 32 bits, IEEE.
    F32,
    /// 16 bits, IEEE.
    F16,
    /// 16 bits: the upper half of an IEEE number of 32 bits.
    Bf16,
    /// A byte, for masks.
    U8,
    /// A signed byte, which is multiplied by the scale of its line.
    I8,
}

impl Number {
    /// The form of `dtype`, if it can be read.
    pub(crate) fn of(dtype: Dtype) -> Option<Self> {
        match dtype {
            Dtype::F32 => Some(Number::F32),
            Dtype::F16 => Some(Number::F16),
            Dtype::BF16 => Some(Number::Bf16),
            Dtype::U8 | Dtype::BOOL => Some(Number::U8),
            Dtype::I8 => Some(Number::I8),
            _ => None,
        }
    }

    /// The name of this form in a file.
    pub(crate) fn dtype(self) -> Dtype {
        match self {
            Number::F32 => Dtype::F32,
            Number::F16 => Dtype::F16,
            Number::Bf16 => Dtype::BF16,
            Number::U8 => Dtype::U8,
            Number::I8 => Dtype::I8,
        }
    }

    /// Rounds to the nearest numbers of this form; bytes stay as they are.
    pub(crate) fn round(self, numbers: &mut [f32]) {
        match self {
            Number::F16 => {
                let mut rounded = [f16::ZERO; 64];
                for numbers in numbers.chunks_mut(rounded.len()) {
                    let rounded = &mut rounded[..numbers.len()];
                    rounded.convert_from_f32_slice(numbers);
                    rounded.convert_to_f32_slice(numbers);
                }
            }
            Number::Bf16 => numbers.iter_mut().for_each(|x| *x = bf16::from_f32(*x).to_f32()),
            Number::F32 | Number::U8 | Number::I8 => {}
        }
    }

    /// The number at the place `place` of `bytes`. Panics if there is none.
    pub(crate) fn at(self, bytes: &[u8], place: usize) -> f32 {
        let mut number = [0.0];
        self.decode(&bytes[place * self.bytes()..(place + 1) * self.bytes()], &mut number);
        number[0]
    }

    pub(crate) fn bytes(self) -> usize {
        match self {
            Number::F32 => 4,
            Number::F16 | Number::Bf16 => 2,
            Number::U8 | Number::I8 => 1,
        }
    }

    /// Reads as many numbers as `out` takes. `bytes` must hold that many.
    fn decode(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            Number::F32 => {
                out.iter_mut().zip(bytes.as_chunks().0).for_each(|(out, b)| *out = f32::from_le_bytes(*b));
            }
            Number::Bf16 => {
                let numbers = out.iter_mut().zip(bytes.as_chunks().0);
                wide(|| numbers.for_each(|(out, b)| *out = f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16)));
            }
            Number::F16 => widen(bytes, out),
            Number::U8 => out.iter_mut().zip(bytes).for_each(|(out, b)| *out = f32::from(*b)),
            Number::I8 => scale(bytes, 1.0, out),
        }
    }
}

/// Multiplies the signed bytes `bytes` by `by`, into `out`.
fn scale(bytes: &[u8], by: f32, out: &mut [f32]) {
    wide(|| out.iter_mut().zip(bytes).for_each(|(out, b)| *out = f32::from(*b as i8) * by));
}

/// Converts IEEE numbers of 16 bits, in little-endian bytes, to f32.
fn widen(bytes: &[u8], out: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if Cpu::get().has(Feature::Avx2) {
        // SAFETY: the processor has AVX2 and F16C, which are one feature.
        #[expect(unsafe_code, reason = "a kernel for this processor")]
        return unsafe { widen_f16c(bytes, out) };
    }
    widen_portable(bytes, out);
}

/// [`widen`] on any processor.
fn widen_portable(bytes: &[u8], out: &mut [f32]) {
    out.iter_mut().zip(bytes.as_chunks().0).for_each(|(out, b)| *out = widened(u16::from_le_bytes(*b)));
}

/// [`widen`] by the processor's own conversion. A NaN may become another NaN.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
#[expect(unsafe_code, reason = "loads and stores of vectors")]
fn widen_f16c(bytes: &[u8], out: &mut [f32]) {
    use std::arch::x86_64::{_mm_loadu_si128, _mm256_cvtph_ps, _mm256_storeu_ps};
    let (parts, rest) = out.as_chunks_mut::<8>();
    for (out, bytes) in parts.iter_mut().zip(bytes.as_chunks::<16>().0) {
        // SAFETY: the arrays have the 16 bytes that are loaded and the 32 that are stored, at any alignment.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), _mm256_cvtph_ps(_mm_loadu_si128(bytes.as_ptr().cast()))) };
    }
    widen_portable(&bytes[16 * parts.len()..], rest);
}

/// The number that `bits` stand for in IEEE's format of 16 bits. There is no branch, so that the compiler can
/// vectorise.
#[inline(always)]
fn widened(bits: u16) -> f32 {
    /// The difference between the exponents of the two formats, at the exponent's place in 32 bits.
    const EXPONENT: u32 = (127 - 15) << 23;
    /// The value of the lowest bit in the format of 16 bits, where the exponent is 0.
    const LEAST: f32 = f32::from_bits((127 - 24) << 23);
    let (sign, rest) = (u32::from(bits & 0x8000) << 16, u32::from(bits & 0x7fff));
    let normal = (rest << 13) + EXPONENT;
    // Exponent 0 has no leading one. The largest exponent stands for infinity or NaN, and becomes the largest
    // exponent again.
    let tiny = (rest as i32 as f32 * LEAST).to_bits();
    let magnitude = if rest < 0x400 { tiny } else { normal };
    let special = if rest < 0x7c00 { 0 } else { EXPONENT };
    f32::from_bits(sign | (magnitude + special))
}

/// A tensor in a file: its numbers are read when they are asked for.
#[derive(Clone, Debug)]
pub(crate) enum Numbers {
    /// Numbers that are stored one after another.
    Plain(Plain),
    /// Numbers that are stored in few bits, in a form of another program.
    Packed(Arc<dyn Packed>),
}

/// Numbers that are stored one after another.
#[derive(Clone, Debug)]
pub(crate) struct Plain {
    piece: Piece,
    number: Number,
    /// The scale of every line, for signed bytes.
    scales: Option<Arc<[f32]>>,
}

impl Numbers {
    /// The numbers in `piece`.
    pub(crate) fn new(piece: Piece, number: Number) -> Self {
        Numbers::Plain(Plain { piece, number, scales: None })
    }

    /// These signed bytes with a scale for each line: they consist of as many lines of equal length as there are
    /// `scales`, and each byte is multiplied by the scale of its line.
    pub(crate) fn scaled(self, scales: Arc<[f32]>) -> Self {
        match self {
            Numbers::Plain(plain) => {
                let lines = scales.len().max(1);
                assert!(plain.number == Number::I8 && plain.len().is_multiple_of(lines), "bytes in lines");
                Numbers::Plain(Plain { scales: Some(scales), ..plain })
            }
            Numbers::Packed(_) => self,
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Numbers::Plain(plain) => plain.len(),
            Numbers::Packed(matrix) => matrix.shape().into_iter().product(),
        }
    }

    /// The stored bytes, in one piece or several.
    pub(crate) fn stored(&self) -> Vec<&[u8]> {
        match self {
            Numbers::Plain(plain) => vec![plain.piece.get()],
            Numbers::Packed(matrix) => matrix.stored(),
        }
    }

    /// The numbers from `from` on, as many as `out` takes. Panics if there are fewer.
    pub(crate) fn read(&self, from: usize, out: &mut [f32]) {
        match self {
            Numbers::Plain(plain) => plain.read(from, out),
            Numbers::Packed(matrix) => {
                let length = matrix.shape()[1].max(1);
                by_line(length, from, out, |line, at, out| matrix.read(line, at, out));
            }
        }
    }

    /// Whether the numbers are equal to `other`, which has the same length.
    pub(crate) fn equal(&self, other: &Numbers) -> bool {
        let (mut first, mut second) = ([0.0; 1024], [0.0; 1024]);
        (0..self.len()).step_by(first.len()).all(|from| {
            let count = first.len().min(self.len() - from);
            self.read(from, &mut first[..count]);
            other.read(from, &mut second[..count]);
            first[..count] == second[..count]
        })
    }

    /// The `count` numbers from `from` on in their stored form, if they have 16 bits, or if they have 8 bits and lie
    /// in one line with a scale; otherwise `None`. Panics if there are fewer numbers.
    pub(crate) fn narrow(&self, from: usize, count: usize) -> Option<Narrow<'_>> {
        match self {
            Numbers::Plain(plain) => plain.narrow(from, count),
            Numbers::Packed(_) => None,
        }
    }

    /// Prefetches the `count` numbers from `from` on into the processor's cache, if there are that many.
    pub(crate) fn fetch(&self, from: usize, count: usize) {
        let Numbers::Plain(Plain { piece, number, .. }) = self else { return };
        let size = number.bytes();
        if let Some(bytes) = piece.get().get(from * size..(from + count) * size) {
            cpu::fetch(bytes);
        }
    }
}

/// Divides `out` into parts that lie in one line each. Lines have `length` numbers, and the first number of `out` has
/// the index `from` in the tensor. Calls `read` for each part with its line, the place in the line at which the part
/// begins, and the part.
fn by_line(length: usize, from: usize, out: &mut [f32], read: impl Fn(usize, usize, &mut [f32])) {
    let (mut at, mut out) = (from, out);
    while !out.is_empty() {
        let count = (length - at % length).min(out.len());
        let (line, after) = out.split_at_mut(count);
        read(at / length, at % length, line);
        (at, out) = (at + count, after);
    }
}

impl Plain {
    fn len(&self) -> usize {
        self.piece.get().len() / self.number.bytes()
    }

    fn read(&self, from: usize, out: &mut [f32]) {
        let size = self.number.bytes();
        let bytes = &self.piece.get()[from * size..(from + out.len()) * size];
        let Some(scales) = &self.scales else { return self.number.decode(bytes, out) };
        let length = (self.len() / scales.len().max(1)).max(1);
        by_line(length, from, out, |line, at, out| {
            let first = line * length + at - from;
            scale(&bytes[first..first + out.len()], scales[line], out);
        });
    }

    fn narrow(&self, from: usize, count: usize) -> Option<Narrow<'_>> {
        let size = self.number.bytes();
        let bytes = &self.piece.get()[from * size..(from + count) * size];
        match self.number {
            Number::F16 => Some(Narrow::F16(bytes.as_chunks().0)),
            Number::Bf16 => Some(Narrow::Bf16(bytes.as_chunks().0)),
            Number::I8 => {
                let scales = self.scales.as_ref()?;
                let length = (self.len() / scales.len().max(1)).max(1);
                let scale = *scales.get(from / length)?;
                (from % length + count <= length).then_some(Narrow::I8(bytes.as_chunks().0, scale))
            }
            Number::F32 | Number::U8 => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_16_bits_is_widened() {
        let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        let mut all = vec![0.0; 1 << 16];
        widen(&bytes, &mut all);
        let mut portable = vec![0.0; 1 << 16];
        widen_portable(&bytes, &mut portable);
        for (bits, (got, alone)) in (0..=u16::MAX).zip(all.into_iter().zip(portable)) {
            let want = f16::from_bits(bits).to_f32();
            if want.is_nan() {
                assert!(got.is_nan() && alone.is_nan(), "{bits:#x}");
            } else {
                assert_eq!([got.to_bits(), alone.to_bits()], [want.to_bits(); 2], "{bits:#x}");
            }
        }
    }

    #[test]
    fn bytes_are_scaled_line_by_line() {
        let bytes: Vec<u8> = (0..=255).chain(0..44).collect();
        let scales: Vec<f32> = (0..3).map(|line| 0.1 + line as f32).collect();
        let want: Vec<f32> = bytes.iter().zip(0..).map(|(b, at)| f32::from(*b as i8) * scales[at / 100]).collect();
        let numbers =
            Numbers::new(Piece::new(Bytes::Static(bytes.leak()), 0..300).unwrap(), Number::I8).scaled(scales.into());
        for (from, len) in [(0, 300), (0, 0), (300, 0), (97, 65), (99, 1), (99, 2), (100, 100), (50, 201)] {
            let mut out = vec![0.0; len];
            numbers.read(from, &mut out);
            assert_eq!(out, want[from..from + len]);
            let stored = (len > 0).then(|| numbers.narrow(from, len)).flatten();
            let one_line = len > 0 && from / 100 == (from + len - 1) / 100;
            assert_eq!(stored.is_some(), one_line, "{len} from {from}");
            if let Some(stored) = stored {
                let Narrow::I8(bytes, scale) = stored else { panic!("{stored:?}") };
                assert!(bytes.iter().map(|[b]| f32::from(*b as i8) * scale).eq(out), "{len} from {from}");
            }
        }
    }

    #[test]
    fn every_type_gives_its_numbers_at_any_place() {
        let values: Vec<f32> = (0..300).map(|i| (i % 120) as f32).collect();
        for (number, bytes) in [
            (Number::F32, values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>()),
            (Number::F16, values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect()),
            (Number::Bf16, values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect()),
            (Number::U8, values.iter().map(|v| *v as u8).collect()),
            (Number::I8, values.iter().map(|v| *v as i8 as u8).collect()),
        ] {
            // One byte stands before the first number, so that nothing is aligned.
            let mut file = tempfile::tempfile().unwrap();
            std::io::Write::write_all(&mut file, &[&[0], &bytes[..]].concat()).unwrap();
            let mapped = Bytes::map(&file).unwrap();
            assert!(Piece::new(mapped.clone(), 1..bytes.len() + 2).is_none(), "beyond the file");
            let numbers = Numbers::new(Piece::new(mapped, 1..bytes.len() + 1).unwrap(), number);
            assert_eq!(numbers.len(), values.len());
            for (from, len) in [(0, 300), (0, 0), (3, 65), (299, 1), (64, 128)] {
                let mut out = vec![0.0; len];
                numbers.fetch(from, len);
                numbers.read(from, &mut out);
                assert_eq!(out, values[from..from + len], "{number:?}");
            }
        }
    }
}
