use waggle_engine::{MatrixSource, Order};

/// A matrix in memory whose columns stand one after another, as those of most checkpoints do.
#[derive(Debug)]
pub struct Columns {
    /// Rows of the matrix, the length of a column.
    pub inputs: usize,
    /// All columns.
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
