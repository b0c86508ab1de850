//! Which tokens a layer keeps and looked at, for studies in the clear.

use crate::HeadShape;

/// Original positions of the tokens that each key/value head keeps, in the order of the store, and of those that each
/// query head attended to last. Only kept on engines that see their values; empty elsewhere.
#[derive(Clone, Debug, Default)]
pub(crate) struct Positions {
    kept: Vec<Vec<usize>>,
    attended: Vec<Vec<usize>>,
}

impl Positions {
    /// Nothing kept.
    pub(crate) fn new(clear: bool, shape: HeadShape) -> Self {
        let kept = if clear { vec![Vec::new(); shape.kv_heads] } else { Vec::new() };
        Positions { kept, attended: Vec::new() }
    }

    /// The positions `from..to` came in.
    pub(crate) fn extend(&mut self, from: usize, to: usize) {
        self.kept.iter_mut().for_each(|row| row.extend(from..to));
    }

    /// The store now holds the rows `index(kv head)` of what it held.
    pub(crate) fn keep(&mut self, index: impl Fn(usize) -> Vec<usize>) {
        for (head, row) in self.kept.iter_mut().enumerate() {
            *row = index(head).into_iter().map(|i| row[i]).collect();
        }
    }

    /// Every query head attended to the rows `index(head)` of the store.
    pub(crate) fn attend(&mut self, shape: HeadShape, index: impl Fn(usize) -> Vec<usize>) {
        if self.kept.is_empty() {
            return;
        }
        let row = |head: usize| -> Vec<usize> {
            let kept = &self.kept[head / shape.group()];
            index(head).into_iter().map(|i| kept[i]).collect()
        };
        self.attended = (0..shape.heads).map(row).collect();
    }

    /// Every query head attended to all that is kept.
    pub(crate) fn attend_all(&mut self, shape: HeadShape) {
        let tokens = self.kept.first().map_or(0, Vec::len);
        self.attend(shape, |_| (0..tokens).collect());
    }

    /// What was attended to, if it is known.
    pub(crate) fn attended(&self) -> Option<&[Vec<usize>]> {
        (!self.attended.is_empty()).then_some(&self.attended[..])
    }
}
