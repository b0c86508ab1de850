//! The positions of the tokens that a layer keeps and attends to, for accuracy studies.

/// Positions in the text, recorded where the engine sees its values.
#[derive(Clone, Debug)]
pub(crate) struct Positions {
    /// By key/value head the tokens that it keeps, in the order of the store.
    pub(crate) kept: Vec<Vec<usize>>,
    /// By query head the tokens that the last query attended to; empty before the first.
    pub(crate) attended: Vec<Vec<usize>>,
}

impl Positions {
    /// Nothing is kept by any of the `kv_heads` heads.
    pub(crate) fn new(kv_heads: usize) -> Self {
        Positions { kept: vec![Vec::new(); kv_heads], attended: Vec::new() }
    }

    /// The tokens `from..to` came in.
    pub(crate) fn extend(&mut self, from: usize, to: usize) {
        self.kept.iter_mut().for_each(|row| row.extend(from..to));
    }

    /// The last `dropped` tokens are taken back.
    pub(crate) fn cut(&mut self, dropped: usize) {
        self.kept.iter_mut().for_each(|row| row.truncate(row.len() - dropped));
    }
}
