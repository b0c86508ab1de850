//! The server's matrices: integers that are made from a checkpoint's numbers when they are read.
//!
//! A model of 7 billion weights is 27 GB as integers of 32 bits and 13.5 GB as published. So a matrix stays where it
//! is published, in the page cache, and products round a few thousand entries at a time (`kernel`,
//! [`waggle_he::Entries`]).

use std::ops::Range;
use std::sync::Arc;

use waggle_bits::cpu::Family;
use waggle_engine::{ColumnRange, MatrixSource, Order, Stored};
use waggle_he::{CachedWeights, WeightCache};

use crate::kernel;
use crate::spread::Spread;

/// Entries of a weight in fixed point are below 2^WEIGHT_BITS in magnitude.
pub const WEIGHT_BITS: u32 = 20;

/// The largest magnitude of an entry, as a floating-point number.
pub(crate) const MOST: f32 = ((1 << WEIGHT_BITS) - 1) as f32;

/// The largest number below 1/2. Adding 1/2 itself would round this number up to 1.
pub(crate) const HALF: f32 = 0.5f32.next_down();

/// A matrix of integers below 2^[`WEIGHT_BITS`] in magnitude. Clones share it.
#[derive(Clone, Debug)]
pub struct FixedMatrix {
    inputs: usize,
    outputs: usize,
    /// Entries are below 2^bits in magnitude.
    bits: u32,
    entries: Entries,
    /// The cache that keeps the transforms of this matrix for products under encryption, and the matrix's key there.
    kept: Option<(Arc<WeightCache>, u64)>,
    /// The processes that multiply by this matrix together with this one, and the number by which they know the
    /// matrix.
    spread: Option<(Arc<dyn Spread>, usize)>,
}

#[derive(Clone, Debug)]
enum Entries {
    /// The integers, row by row.
    Integers(Arc<[i32]>),
    /// The entries are round(w 2^frac) for the published numbers w.
    Rounded { numbers: Arc<dyn MatrixSource>, frac: u32 },
}

impl FixedMatrix {
    /// round(w 2^`frac`) for every entry w of `numbers`, halves away from zero. Larger magnitudes than
    /// 2^[`WEIGHT_BITS`] - 1 are lowered to this bound, and a NaN becomes an entry of this magnitude:
    /// [`quantise`](crate::quantise) refuses both, but a file may change later.
    pub fn rounded(numbers: Arc<dyn MatrixSource>, frac: u32) -> Self {
        Self::bounded(numbers, frac, WEIGHT_BITS)
    }

    /// [`FixedMatrix::rounded`] with entries below 2^`bits` in magnitude. `bits` is at most [`WEIGHT_BITS`].
    pub(crate) fn bounded(numbers: Arc<dyn MatrixSource>, frac: u32, bits: u32) -> Self {
        assert!(bits <= WEIGHT_BITS, "{bits} bits of a weight");
        let (inputs, outputs) = numbers.shape();
        FixedMatrix { bits, ..Self::of(inputs, outputs, Entries::Rounded { numbers, frac }) }
    }

    /// The integers `entries`, row by row. Panics unless their number fits, and all are below 2^[`WEIGHT_BITS`].
    pub fn integers(inputs: usize, outputs: usize, entries: Vec<i32>) -> Self {
        assert_eq!(entries.len(), inputs * outputs, "entries of a matrix");
        assert!(entries.iter().all(|w| w.unsigned_abs() >> WEIGHT_BITS == 0), "entries below 2^{WEIGHT_BITS}");
        Self::of(inputs, outputs, Entries::Integers(entries.into()))
    }

    fn of(inputs: usize, outputs: usize, entries: Entries) -> Self {
        FixedMatrix { inputs, outputs, bits: WEIGHT_BITS, entries, kept: None, spread: None }
    }

    /// Some neighbouring columns, as a matrix of this process alone. Panics if there are no such columns.
    pub fn columns(&self, columns: Range<usize>) -> Self {
        match &self.entries {
            Entries::Integers(entries) => {
                let rows = entries.chunks_exact(self.outputs.max(1)).take(self.inputs);
                let part = rows.flat_map(|row| &row[columns.clone()]).copied().collect();
                Self::of(self.inputs, columns.len(), Entries::Integers(part))
            }
            Entries::Rounded { numbers, frac } => {
                Self::bounded(Arc::new(ColumnRange::new(numbers.clone(), columns)), *frac, self.bits)
            }
        }
    }

    /// This matrix with products that all processes of `spread` compute together. They know it as matrix `number`.
    pub fn spread_over(self, spread: Arc<dyn Spread>, number: usize) -> Self {
        FixedMatrix { spread: Some((spread, number)), ..self }
    }

    /// The processes that share the products of this matrix, and the number by which they know the matrix.
    pub(crate) fn spread(&self) -> Option<(&Arc<dyn Spread>, usize)> {
        self.spread.as_ref().map(|(spread, number)| (spread, *number))
    }

    /// This matrix, whose transforms for products under encryption are kept in `cache` while there is room. The `key`
    /// must be unique to this matrix.
    pub fn keep_in(self, cache: Arc<WeightCache>, key: u64) -> Self {
        FixedMatrix { kept: Some((cache, key)), ..self }
    }

    /// The cache of [`keep_in`](FixedMatrix::keep_in) with the key, if there is one.
    pub(crate) fn kept(&self) -> Option<CachedWeights<'_>> {
        self.kept.as_ref().map(|(cache, key)| CachedWeights { cache, key: *key })
    }

    /// Rows and columns.
    pub fn shape(&self) -> (usize, usize) {
        (self.inputs, self.outputs)
    }

    /// Whether a line is a row or a column. The entries of a line are read together.
    pub fn order(&self) -> Order {
        match &self.entries {
            Entries::Integers(_) => Order::Rows,
            Entries::Rounded { numbers, .. } => numbers.order(),
        }
    }

    /// The number of lines, and the number of entries of a line.
    pub fn lines(&self) -> (usize, usize) {
        match self.order() {
            Order::Rows => (self.inputs, self.outputs),
            Order::Columns => (self.outputs, self.inputs),
        }
    }

    /// The entries `from .. from + out.len()` of the line `line`.
    pub fn read(&self, line: usize, from: usize, out: &mut [i32]) {
        match &self.entries {
            Entries::Integers(entries) => {
                let start = line * self.outputs + from;
                out.copy_from_slice(&entries[start..start + out.len()]);
            }
            Entries::Rounded { numbers, frac } => {
                let stored = self.stored(line, from, out.len());
                let done = stored.map_or(0, |stored| kernel::round_stored(kernel::family(), &stored, out));
                let rest = &mut out[done..];
                numbers.read(line, from + done, zerocopy::transmute_mut!(&mut *rest));
                round(kernel::family(), rest, (1u32 << frac) as f32, ((1u32 << self.bits) - 1) as f32);
            }
        }
    }

    /// Announces that `count` entries of `line`, from `from` on, will soon be read ([`MatrixSource::fetch`]).
    pub(crate) fn fetch(&self, line: usize, from: usize, count: usize) {
        if let Entries::Rounded { numbers, .. } = &self.entries {
            numbers.fetch(line, from, count);
        }
    }

    /// `count` entries of `line`, from `from` on, in the form in which they are stored ([`MatrixSource::stored`]).
    /// Rounding comes after all factors of the form.
    pub(crate) fn stored(&self, line: usize, from: usize, count: usize) -> Option<Stored<'_>> {
        let Entries::Rounded { numbers, frac } = &self.entries else { return None };
        let stored = numbers.stored(line, from, count)?;
        // A power of two changes the exponent alone. A number that underflows or overflows on the way is 0 or too
        // large in the end anyway.
        Some(Stored { factor: stored.factor * (1u32 << frac) as f32, ..stored })
    }

    /// One entry.
    pub fn entry(&self, row: usize, column: usize) -> i32 {
        let (line, at) = if self.order() == Order::Rows { (row, column) } else { (column, row) };
        let mut out = [0];
        self.read(line, at, &mut out);
        out[0]
    }

    /// All entries, row by row.
    pub fn to_integers(&self) -> Vec<i32> {
        let mut out = vec![0; self.inputs * self.outputs];
        match self.order() {
            Order::Rows => {
                let rows = out.chunks_exact_mut(self.outputs.max(1));
                rows.enumerate().for_each(|(line, row)| self.read(line, 0, row));
            }
            Order::Columns => {
                let mut column = vec![0; self.inputs];
                for line in 0..self.outputs {
                    self.read(line, 0, &mut column);
                    out[line..].iter_mut().step_by(self.outputs).zip(&column).for_each(|(out, w)| *out = *w);
                }
            }
        }
        out
    }
}

/// The blocks on the diagonal of a matrix, one below the other. Beside them the matrix is zero.
#[derive(Debug)]
pub(crate) struct Blocks<'a> {
    matrix: &'a FixedMatrix,
    count: usize,
}

impl<'a> Blocks<'a> {
    pub(crate) fn new(matrix: &'a FixedMatrix, count: usize) -> Self {
        Blocks { matrix, count }
    }

    /// Rows and columns of one block.
    fn block(&self) -> (usize, usize) {
        (self.matrix.inputs / self.count, self.matrix.outputs / self.count)
    }
}

impl waggle_he::Entries for Blocks<'_> {
    fn shape(&self) -> (usize, usize) {
        (self.matrix.inputs, self.block().1)
    }

    fn by_columns(&self) -> bool {
        false
    }

    fn bits(&self) -> u32 {
        self.matrix.bits
    }

    fn read(&self, line: usize, from: usize, out: &mut [i32]) {
        let (rows, columns) = self.block();
        let first = line / rows * columns + from;
        match self.matrix.order() {
            Order::Rows => self.matrix.read(line, first, out),
            Order::Columns => (first..).zip(out).for_each(|(at, out)| *out = self.matrix.entry(line, at)),
        }
    }
}

impl waggle_he::Entries for FixedMatrix {
    fn shape(&self) -> (usize, usize) {
        FixedMatrix::shape(self)
    }

    fn by_columns(&self) -> bool {
        self.order() == Order::Columns
    }

    fn bits(&self) -> u32 {
        self.bits
    }

    fn read(&self, line: usize, from: usize, out: &mut [i32]) {
        FixedMatrix::read(self, line, from, out);
    }
}

/// Reads every element of `numbers` as the bits of a number w and replaces it by round(w unit) for a power of two
/// `unit`, halves away from zero. Magnitudes are at most `most` and at most [`MOST`].
fn round(family: Family, numbers: &mut [i32], unit: f32, most: f32) {
    kernel::at_level!(family, |numbers: &mut [i32], unit: f32, most: f32| -> () {
        let most = most.min(MOST);
        for number in numbers {
            // A power of two changes the exponent alone. The order of the two bounds turns a NaN into a number.
            let scaled = (f32::from_bits(*number as u32) * unit).max(-most).min(most);
            // SAFETY: the sum is at most 2^20 in magnitude. The further checks of `as` would take longer.
            *number = unsafe { (scaled + HALF.copysign(scaled)).to_int_unchecked() };
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::Array2;
    use proptest::prelude::*;

    /// round(w 2^frac), computed as the documentation of `quantise` says.
    fn naive(w: f32, frac: u32) -> i32 {
        (f64::from(w) * (1u64 << frac) as f64).round() as i32
    }

    proptest! {
        #[test]
        fn entries_are_rounded_to_nearest(bits in prop::collection::vec(any::<u32>(), 1..60), frac in 4u32..=16) {
            let limit = ((1 << WEIGHT_BITS) - 1) as f32 / (1u32 << frac) as f32;
            let numbers: Vec<f32> = bits.iter().map(|b| f32::from_bits(*b)).filter(|w| w.abs() <= limit).collect();
            let halves = (0..40).map(|i| (i as f32 - 20.5) / (1u32 << frac) as f32);
            let numbers: Vec<f32> = numbers.into_iter().chain(halves).collect();
            let want: Vec<i32> = numbers.iter().map(|w| naive(*w, frac)).collect();
            let columns = numbers.len();
            let matrix = Array2::from_shape_vec((1, columns), numbers.clone()).expect("one row");
            let matrix = FixedMatrix::rounded(Arc::new(matrix), frac);
            prop_assert_eq!(&matrix.to_integers(), &want);
            prop_assert_eq!(matrix.entry(0, columns / 2), want[columns / 2]);
            for family in kernel::families() {
                let mut got: Vec<i32> = numbers.iter().map(|w| w.to_bits() as i32).collect();
                round(family, &mut got, (1u32 << frac) as f32, MOST);
                prop_assert_eq!(&got, &want, "{:?}", family);
            }
        }
    }

    #[test]
    fn a_file_that_changes_breaks_no_bound() {
        let numbers = vec![f32::NAN, f32::INFINITY, -f32::MAX, 1.0e9];
        let matrix = Array2::from_shape_vec((2, 2), numbers).expect("four");
        let most = (1 << WEIGHT_BITS) - 1;
        let matrix = FixedMatrix::rounded(Arc::new(matrix), 16);
        assert_eq!(matrix.to_integers(), [-most, most, -most, most]);
        let Entries::Rounded { numbers, .. } = matrix.entries else { panic!("rounded") };
        let narrow = FixedMatrix::bounded(numbers, 16, 11);
        assert_eq!(narrow.columns(0..2).to_integers(), [-2047, 2047, -2047, 2047]);
        assert_eq!(waggle_he::Entries::bits(&narrow), 11);
    }

    #[test]
    #[should_panic(expected = "entries below")]
    fn integers_too_large_are_refused() {
        FixedMatrix::integers(1, 1, vec![1 << WEIGHT_BITS]);
    }
}
