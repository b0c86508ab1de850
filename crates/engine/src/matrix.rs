//! Matrices of a checkpoint, read entry by entry when they are used.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use ndarray::Array2;
use rayon::prelude::*;

/// Entries of a line that are read at a time when a whole matrix is read.
const PIECE: usize = 2048;

/// Which entries of a matrix lie next to each other where it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The entries of a row.
    Rows,
    /// The entries of a column.
    Columns,
}

/// A piece of a line as it is stored. An entry is the stored number as an `f32`, times its gain, times the factor.
/// Each product is rounded to `f32`.
#[derive(Clone, Copy, Debug)]
pub struct Stored<'a> {
    /// The stored numbers, one for each entry of the piece.
    pub numbers: Narrow<'a>,
    /// The gains, one for each entry, or `None` if all are 1.
    pub gains: Option<&'a [f32]>,
    /// The factor by which all entries of the line are multiplied.
    pub factor: f32,
}

/// Numbers of fewer than 32 bits, each in little-endian bytes.
#[derive(Clone, Copy, Debug)]
pub enum Narrow<'a> {
    /// IEEE half precision.
    F16(&'a [[u8; 2]]),
    /// The upper 16 bits of an `f32`.
    Bf16(&'a [[u8; 2]]),
    /// Signed bytes and a scale. Each byte stands for its product with the scale, rounded to `f32`.
    I8(&'a [[u8; 1]], f32),
}

/// A matrix (inputs, outputs) whose entries need not be in memory.
///
/// Its *lines* are its rows or its columns, whichever are stored in one piece. Equal calls give equal entries.
pub trait MatrixSource: Debug + Send + Sync {
    /// The number of inputs, which are the rows, and of outputs, which are the columns.
    fn shape(&self) -> (usize, usize);

    /// Whether a line is a row or a column.
    fn order(&self) -> Order;

    /// Reads the entries `from .. from + out.len()` of the line `line` into `out`. Panics if the matrix does not have
    /// them.
    fn read(&self, line: usize, from: usize, out: &mut [f32]);

    /// A hint that the entries `from .. from + count` of the line `line` are read soon, so that they can be
    /// prefetched. Results do not depend on it.
    fn fetch(&self, line: usize, from: usize, count: usize) {
        let _ = (line, from, count);
    }

    /// The entries `from .. from + count` of the line `line` as they are stored, or `None` if
    /// [`read`](MatrixSource::read) does not compute them as [`Stored`] says. Panics if the matrix does not have
    /// them.
    fn stored(&self, line: usize, from: usize, count: usize) -> Option<Stored<'_>> {
        let _ = (line, from, count);
        None
    }

    /// The number of lines, and the number of entries of each line.
    fn lines(&self) -> (usize, usize) {
        let (inputs, outputs) = self.shape();
        match self.order() {
            Order::Rows => (inputs, outputs),
            Order::Columns => (outputs, inputs),
        }
    }
}

/// A matrix in memory, row by row.
impl MatrixSource for Array2<f32> {
    fn shape(&self) -> (usize, usize) {
        self.dim()
    }

    fn order(&self) -> Order {
        Order::Rows
    }

    fn read(&self, line: usize, from: usize, out: &mut [f32]) {
        let row = self.row(line);
        match row.as_slice() {
            Some(row) => out.copy_from_slice(&row[from..from + out.len()]),
            None => out.iter_mut().zip(row.iter().skip(from)).for_each(|(out, x)| *out = *x),
        }
    }
}

/// Some neighbouring columns of a matrix, as a matrix of its own. The other columns are never read.
#[derive(Clone, Debug)]
pub struct ColumnRange {
    matrix: Arc<dyn MatrixSource>,
    columns: Range<usize>,
}

impl ColumnRange {
    /// The `columns` of `matrix`. Panics if it does not have them.
    pub fn new(matrix: Arc<dyn MatrixSource>, columns: Range<usize>) -> Self {
        assert!(columns.start <= columns.end && columns.end <= matrix.shape().1, "columns of a matrix");
        ColumnRange { matrix, columns }
    }

    /// The line of the whole matrix that has the entries `from .. from + count` of `line`, and the index of the first
    /// one in that line.
    fn place(&self, line: usize, from: usize, count: usize) -> (usize, usize) {
        // The whole matrix would also return entries outside the range.
        let (lines, length) = self.lines();
        assert!(line < lines && from + count <= length, "entries of a range of columns");
        match self.order() {
            Order::Rows => (line, self.columns.start + from),
            Order::Columns => (self.columns.start + line, from),
        }
    }
}

impl MatrixSource for ColumnRange {
    fn shape(&self) -> (usize, usize) {
        (self.matrix.shape().0, self.columns.len())
    }

    fn order(&self) -> Order {
        self.matrix.order()
    }

    fn read(&self, line: usize, from: usize, out: &mut [f32]) {
        let (line, from) = self.place(line, from, out.len());
        self.matrix.read(line, from, out);
    }

    fn fetch(&self, line: usize, from: usize, count: usize) {
        let (line, from) = self.place(line, from, count);
        self.matrix.fetch(line, from, count);
    }

    fn stored(&self, line: usize, from: usize, count: usize) -> Option<Stored<'_>> {
        let (line, from) = self.place(line, from, count);
        self.matrix.stored(line, from, count)
    }
}

/// The largest magnitude of the entries, all of which are read. It is infinite or NaN if an entry is, and 0 if there
/// are none.
pub fn largest(matrix: &dyn MatrixSource) -> f32 {
    let (lines, length) = matrix.lines();
    let of_line = |line: usize| {
        let mut piece = [0f32; PIECE];
        (0..length).step_by(PIECE).fold(0, |most: u32, from| {
            let piece = &mut piece[..PIECE.min(length - from)];
            matrix.read(line, from, piece);
            // Magnitudes compare as their bits do: infinity lies above every finite number, and NaN above infinity.
            piece.iter().fold(most, |most, x| most.max(x.to_bits() & (u32::MAX >> 1)))
        })
    };
    f32::from_bits((0..lines).into_par_iter().with_min_len(16).map(of_line).max().unwrap_or(0))
}

/// The position and the value of the first entry in row-major order for which `holds` is true.
pub(crate) fn find(matrix: &dyn MatrixSource, holds: impl Fn(f32) -> bool) -> Option<(usize, f32)> {
    let ((lines, length), (_, outputs)) = (matrix.lines(), matrix.shape());
    let mut entries = vec![0f32; length];
    let mut first: Option<(usize, f32)> = None;
    for line in 0..lines {
        matrix.read(line, 0, &mut entries);
        for (i, &x) in entries.iter().enumerate().filter(|(_, x)| holds(**x)) {
            let position = if matrix.order() == Order::Rows { line * outputs + i } else { i * outputs + line };
            first = first.filter(|(at, _)| *at < position).or(Some((position, x)));
        }
    }
    first
}

/// All entries of `matrix`, in memory.
pub(crate) fn array(matrix: &dyn MatrixSource) -> Array2<f32> {
    let (inputs, outputs) = matrix.shape();
    let (lines, length) = matrix.lines();
    let mut entries = vec![0f32; lines * length];
    entries.par_chunks_exact_mut(length.max(1)).enumerate().for_each(|(line, out)| matrix.read(line, 0, out));
    let filled = "as many entries as lines have";
    match matrix.order() {
        Order::Rows => Array2::from_shape_vec((inputs, outputs), entries).expect(filled),
        Order::Columns => {
            let transposed = Array2::from_shape_vec((outputs, inputs), entries).expect(filled);
            transposed.t().as_standard_layout().into_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::arr2;

    /// A matrix that is stored by columns.
    #[derive(Debug)]
    struct Columns(Array2<f32>);

    impl MatrixSource for Columns {
        fn shape(&self) -> (usize, usize) {
            self.0.dim()
        }

        fn order(&self) -> Order {
            Order::Columns
        }

        fn read(&self, line: usize, from: usize, out: &mut [f32]) {
            out.iter_mut().zip(self.0.column(line).iter().skip(from)).for_each(|(out, x)| *out = *x);
        }
    }

    #[test]
    fn both_orders_are_the_same_matrix() {
        let matrix = arr2(&[[1.0, -7.0, 3.0], [4.0, 5.0, 7.0]]);
        for source in [&matrix as &dyn MatrixSource, &Columns(matrix.clone())] {
            assert_eq!(array(source), matrix);
            assert_eq!(largest(source), 7.0);
            assert_eq!(find(source, |x| x.abs() == 7.0), Some((1, -7.0)), "the first by rows");
            assert_eq!(find(source, |x| x > 9.0), None);
        }
    }

    #[test]
    fn a_range_of_columns_is_a_matrix() {
        let matrix = arr2(&[[1.0, -7.0, 3.0, 2.0], [4.0, 5.0, 7.0, 0.0]]);
        let whole: [Arc<dyn MatrixSource>; 2] = [Arc::new(matrix.clone()), Arc::new(Columns(matrix.clone()))];
        for source in whole {
            for (start, end) in [(0, 4), (1, 3), (3, 4), (2, 2), (4, 4)] {
                let range = ColumnRange::new(source.clone(), start..end);
                assert_eq!(array(&range), matrix.slice_axis(ndarray::Axis(1), (start..end).into()));
            }
            assert_eq!(largest(&ColumnRange::new(source.clone(), 3..4)), 2.0);
            assert_eq!(largest(&ColumnRange::new(source, 2..2)), 0.0);
        }
    }

    #[test]
    fn what_is_no_number_is_larger_than_any() {
        assert!(largest(&arr2(&[[1.0, f32::NAN, 3.0e38]])).is_nan());
        assert_eq!(largest(&arr2(&[[1.0], [f32::NEG_INFINITY]])), f32::INFINITY);
        assert_eq!(largest(&Array2::zeros((0, 3))), 0.0);
    }
}
