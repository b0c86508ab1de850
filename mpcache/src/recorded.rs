//! Which tokens a policy keeps and attends to, as the store records them.

use engine::Engine;

use crate::Store;
use crate::positions::Positions;

/// What the policies tell of themselves. Recorded on engines that see their values; elsewhere nothing happens.
impl<E: Engine> Store<E> {
    /// Records that the store now holds, of what it held before, the rows `rows(h)` for every key/value head h.
    pub fn record_kept(&mut self, rows: impl Fn(usize) -> Vec<usize>) {
        let Some(Positions { kept, .. }) = &mut self.positions else { return };
        for (head, row) in kept.iter_mut().enumerate() {
            *row = rows(head).into_iter().map(|i| row[i]).collect();
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

    /// For every query head the positions in the text that the last query attended to, in any order. Known where the
    /// engine sees its values.
    pub fn attended(&self) -> Option<&[Vec<usize>]> {
        self.positions.as_ref().map(|positions| &positions.attended[..]).filter(|attended| !attended.is_empty())
    }
}
