//! Tiles into which the operands of a product are cut, and the places of entries in the polynomials of a tile.
//! Arithmetic on shapes only.

use super::spec::MatmulShape;
use crate::ntt::{LANES, MIN_POINTS};
use std::ops::Range;

/// The part of a product that one ciphertext covers. The documentation of [`crate::matmul`] derives the layout. If
/// `group` is more than 1, then `rows` is all m rows of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tile {
    /// Number of batch items whose rows share an upload.
    pub group: usize,
    /// Rows of X per item.
    pub rows: usize,
    /// Columns of X, which are a piece of the inner dimension.
    pub inner: usize,
    /// Columns of W per response.
    pub cols: usize,
    /// Number of rows whose coefficients lie next to each other: 1, or a power of two from 8 to N / 64.
    pub run: usize,
}

impl Tile {
    /// The position of row slot `slot` in a polynomial, at the place `place` of the slot's run. A run has
    /// `cols * inner` places.
    fn position(&self, slot: usize, place: usize) -> usize {
        // By shifts, because this is computed for every coefficient, many times.
        let (log, low) = (self.run.trailing_zeros(), slot & (self.run - 1));
        (((slot >> log) * self.cols * self.inner + place) << log) + low
    }
}

/// Number of row slots, rounded up to whole runs.
pub(super) fn padded(slots: usize, run: usize) -> usize {
    slots.next_multiple_of(run)
}

/// The lengths of runs that the search considers for `slots` row slots: 1, and every length that wastes fewer slots
/// than all longer ones.
pub(super) fn runs(slots: usize, degree: usize) -> impl Iterator<Item = usize> {
    let longest = slots.next_power_of_two().min(degree / MIN_POINTS);
    let halves = std::iter::successors(Some(longest), |run| Some(run / 2)).take_while(|&run| run >= LANES);
    let mut least = usize::MAX;
    halves.filter(move |&run| padded(slots, run) < std::mem::replace(&mut least, padded(slots, run))).chain([1])
}

/// The size of the pieces if `total` is cut into pieces of nearly equal size, each at most `most`.
pub(super) fn even(total: usize, most: usize) -> usize {
    total.div_ceil(total.div_ceil(most))
}

/// Every value of `ceil(total / t)` for an integer t, largest first.
pub(super) fn even_pieces(total: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(total), move |&piece| {
        // The next smaller size comes from the fewest pieces that give one.
        (piece > 1).then(|| total.div_ceil(total.div_ceil(piece - 1)))
    })
}

/// A tile applied to the shape of a product, in a ring of a given degree.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Tiling {
    pub(super) shape: MatmulShape,
    pub(super) degree: usize,
    pub(super) tile: Tile,
}

impl Tiling {
    /// Number of groups of batch items that share uploads.
    pub(super) fn groups(&self) -> usize {
        self.shape.batch.div_ceil(self.tile.group)
    }

    /// Number of row tiles of an item.
    pub(super) fn row_tiles(&self) -> usize {
        self.shape.m.div_ceil(self.tile.rows)
    }

    /// Number of pieces of the inner dimension.
    pub(super) fn inner_tiles(&self) -> usize {
        self.shape.k.div_ceil(self.tile.inner)
    }

    /// Number of columns of all batch items together.
    pub(super) fn columns(&self) -> usize {
        self.shape.batch * self.shape.n
    }

    /// Number of column tiles of all items together.
    pub(super) fn column_tiles(&self) -> usize {
        self.columns().div_ceil(self.tile.cols)
    }

    /// Number of ciphertexts sent up.
    pub(super) fn uploads(&self) -> usize {
        self.groups() * self.row_tiles() * self.inner_tiles()
    }

    /// Index of the upload that holds rows `row_tile` and columns `inner_tile` of X for the items of `group`.
    pub(super) fn upload_index(&self, group: usize, row_tile: usize, inner_tile: usize) -> usize {
        (group * self.row_tiles() + row_tile) * self.inner_tiles() + inner_tile
    }

    /// Columns `start..end` of a column tile, counted over all batch items.
    pub(super) fn column_range(&self, column_tile: usize) -> (usize, usize) {
        let start = column_tile * self.tile.cols;
        (start, (start + self.tile.cols).min(self.columns()))
    }

    /// Groups of batch items that own columns of a column tile.
    pub(super) fn meetings(&self, column_tile: usize) -> Range<usize> {
        let per_group = self.tile.group * self.shape.n;
        let (start, end) = self.column_range(column_tile);
        start / per_group..(end - 1) / per_group + 1
    }

    /// Rows `start..end` of a row tile.
    pub(super) fn row_range(&self, row_tile: usize) -> (usize, usize) {
        let start = row_tile * self.tile.rows;
        (start, (start + self.tile.rows).min(self.shape.m))
    }

    /// Columns of X, `start..end`, of an inner tile.
    pub(super) fn inner_range(&self, inner_tile: usize) -> (usize, usize) {
        let start = inner_tile * self.tile.inner;
        (start, (start + self.tile.inner).min(self.shape.k))
    }

    /// Number of distinct weight polynomials. Each is multiplied by [`Self::row_tiles`] ciphertexts.
    pub(super) fn weight_polys(&self) -> usize {
        // A column tile meets every group that owns one of its columns.
        let per_group = self.tile.group * self.shape.n;
        let meetings: usize = if self.tile.cols >= self.columns() {
            self.groups()
        } else {
            // Each boundary between groups that falls inside a tile adds one meeting.
            let inside = (1..self.groups()).filter(|g| !(g * per_group).is_multiple_of(self.tile.cols)).count();
            self.column_tiles() + inside
        };
        meetings * self.inner_tiles()
    }

    /// Degree of the ring of the weight polynomials, which is their number of points.
    pub(super) fn points(&self) -> usize {
        self.degree / self.tile.run
    }

    /// Number of leading coefficients of a weight polynomial that may differ from zero, in whole blocks of 64.
    pub(super) fn weight_span(&self) -> usize {
        (self.tile.cols * self.tile.inner).next_multiple_of(64).min(self.points())
    }

    /// For every entry of an upload, its position in the polynomial and its index in X.
    pub(super) fn entries(&self, upload: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (shape, tile) = (self.shape, self.tile);
        let (rest, inner_tile) = (upload / self.inner_tiles(), upload % self.inner_tiles());
        let (group, row_tile) = (rest / self.row_tiles(), rest % self.row_tiles());
        let (row0, row1) = self.row_range(row_tile);
        let (j0, j1) = self.inner_range(inner_tile);
        let first = group * tile.group;
        (first..(first + tile.group).min(shape.batch)).flat_map(move |item| {
            (row0..row1).flat_map(move |row| {
                let slot = (item - first) * tile.rows + (row - row0);
                (j0..j1).map(move |j| {
                    let position = tile.position(slot, tile.inner - 1 - (j - j0));
                    (position, (item * shape.m + row) * shape.k + j)
                })
            })
        })
    }

    /// For every output of one product of tiles, its position in the polynomial and its index in Y.
    pub(super) fn outputs(
        &self,
        column_tile: usize,
        row_tile: usize,
    ) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (shape, tile) = (self.shape, self.tile);
        let (start, end) = self.column_range(column_tile);
        let (row0, row1) = self.row_range(row_tile);
        (start..end).flat_map(move |column| {
            let (item, c) = (column / shape.n, column % shape.n);
            let first = (item % tile.group) * tile.rows;
            (row0..row1).map(move |row| {
                let slot = first + (row - row0);
                let position = tile.position(slot, (column - start) * tile.inner + tile.inner - 1);
                (position, (item * shape.m + row) * shape.n + c)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_pieces_are_all_ceilings() {
        for total in 1..200usize {
            let mut expected: Vec<_> = (1..=total).map(|t| total.div_ceil(t)).collect();
            expected.dedup();
            assert_eq!(even_pieces(total).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn runs_waste_no_slot_for_nothing() {
        let all = |slots, degree| runs(slots, degree).collect::<Vec<_>>();
        assert_eq!(all(128, 4096), [64, 1]);
        assert_eq!(all(128, 8192), [128, 1]);
        assert_eq!(all(100, 8192), [128, 16, 8, 1]);
        assert_eq!(all(12, 4096), [16, 1]);
        assert_eq!(all(5, 4096), [8, 1]);
        assert_eq!(all(4, 4096), [1]);
    }
}
