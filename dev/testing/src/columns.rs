use waggle_engine::{MatrixSource, Order};

/// A matrix in memory, column by column as in most checkpoints.
#[derive(Debug)]
pub struct Columns {
    /// Number of rows of the matrix, which is the length of a column.
    pub inputs: usize,
    /// The entries of all columns, one column after another.
    pub entries: Vec<f32>,
}

impl MatrixSource for Columns {
    fn shape(&self) -> (usize, usize) {
        (self.inputs, self.entries.len() / self.inputs)
    }

    fn order(&self) -> Order {
        Order::Columns
    }

    fn read(&self, line: usize, from: usize, out: &mut [f32]) {
        out.copy_from_slice(&self.entries[line * self.inputs + from..][..out.len()]);
    }
}
