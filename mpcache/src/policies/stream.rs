//! Heads that stream: what is left of their tokens are the first ones and the latest.

use engine::Engine;

use crate::{Schedule, Store};

/// When heads that stream let tokens go, and which.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stream {
    /// The budget, and when the rest goes.
    pub(super) schedule: Schedule,
    /// The number of kept tokens that stand at the start of the text.
    pub(super) sinks: usize,
    /// Whether a row that stands for what went takes a place of its own, behind the first tokens.
    pub(super) merges: bool,
}

/// The rows of `held` that an eviction leaves: the first ones, and the latest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Left {
    held: usize,
    first: usize,
    latest: usize,
}

impl Left {
    /// The first rows.
    pub(super) fn first(self) -> Vec<usize> {
        (0..self.first).collect()
    }

    /// The rows that go.
    pub(super) fn gone(self) -> Vec<usize> {
        (self.first..self.held - self.latest).collect()
    }

    /// The latest rows.
    pub(super) fn latest(self) -> Vec<usize> {
        (self.held - self.latest..self.held).collect()
    }

    /// All rows that are left.
    pub(super) fn rows(self) -> Vec<usize> {
        [self.first(), self.latest()].concat()
    }
}

impl Stream {
    /// The rows left of the part `part` of `store` before its last `new` tokens attend, which came after the prompt
    /// and all stay. `None` if nothing goes.
    pub(super) fn before<E: Engine>(&self, store: &Store<E>, part: usize, new: usize) -> Option<Left> {
        if store.piece().in_prompt() { None } else { self.over(store, part, new) }
    }

    /// The rows left after a chunk of the prompt, or all of it, has seen itself whole. `None` if nothing goes.
    pub(super) fn after<E: Engine>(&self, store: &Store<E>, part: usize) -> Option<Left> {
        let piece = store.piece();
        if self.schedule.ends_chunk(piece) {
            self.left(store, part, self.schedule.budget_of(piece.prompt), 1)
        } else if piece.ends_prompt() {
            self.over(store, part, 1)
        } else {
            None
        }
    }

    /// The rows left when those go that do not fit into the budget, but none of the last `least` tokens.
    fn over<E: Engine>(&self, store: &Store<E>, part: usize, least: usize) -> Option<Left> {
        let most = self.schedule.budget_of(store.seen());
        let left = self.schedule.left(most, store.parts()[part].len())?;
        self.left(store, part, left, least)
    }

    /// `keep` rows are left, at least the last `least` tokens.
    fn left<E: Engine>(&self, store: &Store<E>, part: usize, keep: usize, least: usize) -> Option<Left> {
        let part = &store.parts()[part];
        let (held, merged) = (part.len(), usize::from(self.merges));
        let keep = keep.max(least + merged);
        if keep >= held {
            return None;
        }
        let keep = keep - merged;
        // A row that stands for others is none of the first tokens.
        let first = self.sinks.min(keep - least).min(part.merged().map_or(usize::MAX, |merged| merged.row));
        Some(Left { held, first, latest: keep - first })
    }
}
