//! Which tokens a policy keeps and attends to, as the store records them for accuracy studies.

use waggle_engine::Engine;

use crate::Store;

/// Positions in the text, recorded where the engine sees its values.
#[derive(Clone, Debug)]
pub(crate) struct Positions {
    /// By key/value head, the positions of the tokens that it keeps, in the order of the store.
    pub(crate) kept: Vec<Vec<usize>>,
    /// By query head, the positions of the tokens that the last query attended to; empty before the first query.
    pub(crate) attended: Vec<Vec<usize>>,
}

impl Positions {
    /// The record of a store with `kv_heads` key/value heads that keeps nothing yet.
    pub(crate) fn new(kv_heads: usize) -> Self {
        Positions { kept: vec![Vec::new(); kv_heads], attended: Vec::new() }
    }

    /// Records that the tokens `from..to` came in.
    pub(crate) fn extend(&mut self, from: usize, to: usize) {
        self.kept.iter_mut().for_each(|row| row.extend(from..to));
    }

    /// Records that the latest tokens stand at `places` in each text, where the heads of a text follow one another.
    pub(crate) fn stand_at(&mut self, places: &[Vec<usize>]) {
        let of_text = self.kept.len() / places.len();
        for (row, places) in self.kept.iter_mut().zip(places.iter().flat_map(|text| vec![text; of_text])) {
            let known = row.len() - places.len();
            row[known..].copy_from_slice(places);
        }
    }

    /// Records that the last `dropped` tokens are taken back.
    pub(crate) fn roll_back(&mut self, dropped: usize) {
        self.kept.iter_mut().for_each(|row| row.truncate(row.len() - dropped));
    }
}

/// Records of what the policies keep and attend to, on engines that see their values; elsewhere nothing happens.
impl<E: Engine> Store<E> {
    /// Records that every key/value head h now holds the rows `rows(h)` of what it held before.
    pub fn record_kept(&mut self, rows: impl Fn(usize) -> Vec<usize>) {
        let Some(Positions { kept, .. }) = &mut self.positions else { return };
        for (head, row) in kept.iter_mut().enumerate() {
            *row = rows(head).into_iter().map(|i| row[i]).collect();
        }
    }

    /// Records that the heads of the part `part` now hold the rows `rows` of what they held before.
    pub fn record_kept_by(&mut self, part: usize, rows: &[usize]) {
        let Some(Positions { kept, .. }) = &mut self.positions else { return };
        for head in self.parts[part].heads() {
            kept[*head] = rows.iter().map(|i| kept[*head][*i]).collect();
        }
    }

    /// Records that the last query of every head attends to all tokens that it sees. A row that stands for several
    /// tokens is not counted as a token.
    pub(crate) fn record_all_attended(&mut self) {
        let group = self.shape.group();
        let Some(Positions { kept, attended }) = &mut self.positions else { return };
        attended.resize(self.shape.heads, Vec::new());
        for part in &self.parts {
            let merged = part.merged().map(|merged| merged.row);
            for kv in part.heads() {
                let rows = self.sees.span(kept[*kv].len(), kept[*kv].len()).filter(|row| Some(*row) != merged);
                let positions: Vec<usize> = rows.map(|row| kept[*kv][row]).collect();
                attended[kv * group..(kv + 1) * group].fill(positions);
            }
        }
    }

    /// Records that the query of every query head h attends to the rows `rows(h)` of the store.
    pub fn record_attended(&mut self, rows: impl Fn(usize) -> Vec<usize>) {
        let shape = self.heads();
        let Some(Positions { kept, attended }) = &mut self.positions else { return };
        let positions = |head: usize| -> Vec<usize> {
            let kept = &kept[head / shape.group()];
            rows(head).into_iter().map(|i| kept[i]).collect()
        };
        *attended = (0..shape.heads).map(positions).collect();
    }

    /// For every query head, the positions in the text that the last query attended to, in any order. `None` where
    /// the engine does not see its values.
    pub fn attended(&self) -> Option<&[Vec<usize>]> {
        self.positions.as_ref().map(|positions| &positions.attended[..]).filter(|attended| !attended.is_empty())
    }
}
