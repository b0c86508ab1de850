//! Responses that several products of tiles share: which products a response holds, and by how many places each
//! product is moved.
//!
//! The products of one response are the leaves of two binary trees of merges, one over its column tiles and one,
//! above that, over its row tiles. A merge with step h moves its second operand by h places.

use super::tiling::{Tiling, even};
use std::ops::Range;

/// `ceil(log2(count))`: the height of [`offset`]'s tree.
pub(super) fn levels(count: usize) -> u32 {
    count.next_power_of_two().trailing_zeros()
}

/// Number of places by which packing moves leaf `index` of the `count` leaves of a tree. A node gives the first half
/// of its leaves, rounded up, to one child and moves the other leaves by its step. The step of the root is `step`,
/// and it doubles from level to level.
fn offset(mut count: usize, mut index: usize, mut step: usize) -> usize {
    let mut moved = 0;
    while count > 1 {
        let half = count.div_ceil(2);
        if index < half {
            count = half;
        } else {
            (index, count, moved) = (index - half, count - half, moved + step);
        }
        step *= 2;
    }
    moved
}

/// A value for the tree of column tiles and a value for the tree of row tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Trees<T> {
    pub(super) columns: T,
    pub(super) rows: T,
}

/// Which products of tiles each response holds: those of `columns` column tiles with `rows` row tiles. Both numbers
/// are 1 without packing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Packs {
    pub(super) columns: usize,
    pub(super) rows: usize,
    column_tiles: usize,
    row_tiles: usize,
    inner: usize,
}

impl Packs {
    /// Every product of tiles has a response of its own.
    pub(super) fn single(tiling: &Tiling) -> Self {
        let (column_tiles, row_tiles) = (tiling.column_tiles(), tiling.row_tiles());
        Self { columns: 1, rows: 1, column_tiles, row_tiles, inner: tiling.tile.inner }
    }

    /// As many products in a response as fit between its outputs, which lie `inner` (a power of two) places apart.
    /// `None` if no two products would share a response.
    pub(super) fn full(tiling: &Tiling) -> Option<Self> {
        let single = Self::single(tiling);
        debug_assert!(single.inner.is_power_of_two() && tiling.tile.run == 1);
        let columns = even(single.column_tiles, single.inner);
        let rows = even(single.row_tiles, single.inner >> levels(columns));
        let full = Self { columns, rows, ..single };
        full.is_packed().then_some(full)
    }

    /// Whether responses are packed, which takes Galois keys.
    pub(super) fn is_packed(&self) -> bool {
        self.columns * self.rows > 1
    }

    /// Numbers of levels of merges in both trees.
    pub(super) fn levels(&self) -> Trees<u32> {
        Trees { columns: levels(self.columns), rows: levels(self.rows) }
    }

    /// Steps at the roots of both trees. The deepest merges in the tree of columns have the step `inner / 2`.
    pub(super) fn steps(&self) -> Trees<usize> {
        let Trees { columns, rows } = self.levels();
        Trees { columns: self.inner >> columns, rows: self.inner >> (columns + rows) }
    }

    /// Number of responses that have the same column tiles.
    pub(super) fn row_packs(&self) -> usize {
        self.row_tiles.div_ceil(self.rows)
    }

    /// Number of responses that have the same row tiles.
    pub(super) fn column_packs(&self) -> usize {
        self.column_tiles.div_ceil(self.columns)
    }

    /// Number of ciphertexts that are sent down. The outermost index of their order is the column pack, then comes
    /// the row pack.
    pub(super) fn responses(&self) -> usize {
        self.column_packs() * self.row_packs()
    }

    /// Column tiles of a pack.
    pub(super) fn column_pack(&self, pack: usize) -> Range<usize> {
        let start = pack * self.columns;
        start..(start + self.columns).min(self.column_tiles)
    }

    /// Column tiles and row tiles of a response.
    pub(super) fn members(&self, response: usize) -> Trees<Range<usize>> {
        let start = response % self.row_packs() * self.rows;
        Trees {
            columns: self.column_pack(response / self.row_packs()),
            rows: start..(start + self.rows).min(self.row_tiles),
        }
    }

    /// Places by which the product of two tiles moves within the response that holds the products of `members`.
    pub(super) fn moved(&self, members: &Trees<Range<usize>>, column_tile: usize, row_tile: usize) -> usize {
        let steps = self.steps();
        offset(members.columns.len(), column_tile - members.columns.start, steps.columns)
            + offset(members.rows.len(), row_tile - members.rows.start, steps.rows)
    }

    /// Places by which X is moved down. Where responses are packed, outputs then lie at multiples of `inner`.
    pub(super) fn shift(&self) -> usize {
        if self.is_packed() { self.inner - 1 } else { 0 }
    }

    /// Number of merges of ciphertexts, each of which takes a key switch.
    pub(super) fn merges(&self) -> usize {
        self.column_tiles * self.row_tiles - self.responses()
    }
}
