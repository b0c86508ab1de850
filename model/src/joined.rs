//! Matrices that are made of other matrices, side by side or one above another.

use std::sync::Arc;

use ndarray::{Array1, Array2};
use waggle_engine::{MatrixSource, Order, Stored, WeightData};

/// The weight whose outputs are the outputs of `first`, followed by those of `second`.
pub(crate) fn side_by_side(first: WeightData, second: WeightData) -> WeightData {
    let bias = (first.bias.is_some() || second.bias.is_some()).then(|| {
        let biases = [&first, &second].map(|weight| {
            let zeros = || Array1::zeros(weight.matrix.shape().1);
            weight.bias.clone().unwrap_or_else(zeros)
        });
        biases.into_iter().flatten().collect()
    });
    WeightData { matrix: Arc::new(Beside { first: first.matrix, second: second.matrix }), bias }
}

/// The matrix whose outputs are those of `first`, then those of `second`. Both matrices have the same [`Order`].
#[derive(Debug)]
struct Beside {
    first: Arc<dyn MatrixSource>,
    second: Arc<dyn MatrixSource>,
}

impl MatrixSource for Beside {
    fn shape(&self) -> (usize, usize) {
        let (inputs, outputs) = self.first.shape();
        (inputs, outputs + self.second.shape().1)
    }

    fn order(&self) -> Order {
        assert_eq!(self.first.order(), self.second.order(), "matrices side by side");
        self.first.order()
    }

    fn read(&self, line: usize, from: usize, out: &mut [f32]) {
        let outputs = self.first.shape().1;
        match self.first.order() {
            Order::Rows => {
                let own = outputs.saturating_sub(from).min(out.len());
                let (first, second) = out.split_at_mut(own);
                if !first.is_empty() {
                    self.first.read(line, from, first);
                }
                if !second.is_empty() {
                    self.second.read(line, from.saturating_sub(outputs), second);
                }
            }
            Order::Columns if line < outputs => self.first.read(line, from, out),
            Order::Columns => self.second.read(line - outputs, from, out),
        }
    }

    fn fetch(&self, line: usize, from: usize, count: usize) {
        let outputs = self.first.shape().1;
        match self.first.order() {
            // A piece rarely lies in both matrices.
            Order::Rows if from < outputs => self.first.fetch(line, from, count.min(outputs - from)),
            Order::Rows => self.second.fetch(line, from - outputs, count),
            Order::Columns if line < outputs => self.first.fetch(line, from, count),
            Order::Columns => self.second.fetch(line - outputs, from, count),
        }
    }

    fn stored(&self, line: usize, from: usize, count: usize) -> Option<Stored<'_>> {
        let outputs = self.first.shape().1;
        match self.first.order() {
            Order::Rows => None,
            Order::Columns if line < outputs => self.first.stored(line, from, count),
            Order::Columns => self.second.stored(line - outputs, from, count),
        }
    }
}

/// A matrix that is stored by columns, with a diagonal matrix below it. The inputs of the upper matrix come first.
#[derive(Debug)]
pub(crate) struct Above {
    pub(crate) first: Arc<dyn MatrixSource>,
    pub(crate) second: Diagonal,
}

impl MatrixSource for Above {
    fn shape(&self) -> (usize, usize) {
        let (inputs, outputs) = self.first.shape();
        (inputs + self.second.gain.len(), outputs)
    }

    fn order(&self) -> Order {
        assert_eq!(self.first.order(), Order::Columns, "a matrix above another");
        Order::Columns
    }

    fn read(&self, line: usize, from: usize, out: &mut [f32]) {
        let inputs = self.first.shape().0;
        let (first, second) = out.split_at_mut(inputs.saturating_sub(from).min(out.len()));
        if !first.is_empty() {
            self.first.read(line, from, first);
        }
        self.second.read(line, from.saturating_sub(inputs), second);
    }

    fn fetch(&self, line: usize, from: usize, count: usize) {
        let inputs = self.first.shape().0;
        if from < inputs {
            self.first.fetch(line, from, count.min(inputs - from));
        }
    }
}

/// A diagonal matrix, which multiplies each input by its gain. If it is centred, the mean of the outputs is
/// subtracted from each output.
#[derive(Debug)]
pub(crate) struct Diagonal {
    pub(crate) gain: Array1<f32>,
    pub(crate) centred: bool,
}

impl Diagonal {
    /// Reads the entries of a column from the row `from` on.
    fn read(&self, column: usize, from: usize, out: &mut [f32]) {
        let share = if self.centred { 1.0 / self.gain.len().max(1) as f32 } else { 0.0 };
        for ((out, gain), row) in out.iter_mut().zip(self.gain.iter().skip(from)).zip(from..) {
            *out = gain * if row == column { 1.0 - share } else { -share };
        }
    }
}

/// A matrix in memory that is read column by column.
#[derive(Debug)]
pub(crate) struct ByColumns(pub(crate) Array2<f32>);

impl MatrixSource for ByColumns {
    fn shape(&self) -> (usize, usize) {
        self.0.dim()
    }

    fn order(&self) -> Order {
        Order::Columns
    }

    fn read(&self, line: usize, from: usize, out: &mut [f32]) {
        let column = self.0.column(line);
        assert!(from + out.len() <= column.len(), "entries of a line");
        out.iter_mut().zip(column.iter().skip(from)).for_each(|(out, x)| *out = *x);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_beside_a_matrix_of_either_order() {
        let matrix = Array2::from_shape_fn((3, 4), |(i, j)| (10 * i + j) as f32);
        let columns = Array2::from_shape_fn((3, 2), |(i, j)| (10 * i + j + 4) as f32);
        let by_rows = Beside { first: Arc::new(matrix.clone()), second: Arc::new(columns.clone()) };
        let by_columns = Beside { first: Arc::new(ByColumns(matrix)), second: Arc::new(ByColumns(columns)) };
        for wide in [by_rows, by_columns] {
            assert_eq!(wide.shape(), (3, 6));
            let (lines, length) = wide.lines();
            for line in 0..lines {
                for from in 0..length {
                    for len in 0..=length - from {
                        let mut out = vec![0.0; len];
                        wide.read(line, from, &mut out);
                        let want = (from..from + len).map(|at| match wide.order() {
                            Order::Rows => 10 * line + at,
                            Order::Columns => 10 * at + line,
                        });
                        assert_eq!(out, want.map(|x| x as f32).collect::<Vec<_>>(), "{line}, {from}, {len}");
                    }
                }
            }
        }
    }
}
