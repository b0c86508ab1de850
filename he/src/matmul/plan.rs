//! Tiles, sizes and noise of a matrix product; arithmetic on shapes only.

use super::{MatmulSpec, PlanOptions};
use crate::bits::packed_len;
use crate::error::HeError;
use crate::ntt::MAX_LAZY_TERMS;
use crate::params::ParamSet;
use crate::sampling::SEED_BYTES;

/// Standard deviations that a tail bound covers: `2 exp(-8.5^2 / 2) < 2^-51`.
pub(crate) const TAIL: f64 = 8.5;

/// Variance of the centred binomial error.
pub(crate) const ERROR_VARIANCE: f64 = 10.5;

/// `m * k`, `k * n` and `m * n` of all items together stay below this.
const MAX_ENTRIES: usize = 1 << 32;

/// What one ciphertext covers (names as in the module documentation). Either `group = 1`, or `rows` is all of m.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tile {
    pub(crate) group: usize,
    pub(crate) rows: usize,
    pub(crate) inner: usize,
    pub(crate) cols: usize,
}

/// A tile applied to a shape under a parameter set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Layout {
    pub(crate) spec: MatmulSpec,
    pub(crate) set: ParamSet,
    pub(crate) tile: Tile,
    /// Bits that each coefficient of a response keeps.
    pub(crate) c0_bits: u32,
    pub(crate) c1_bits: u32,
}

impl Layout {
    fn new(spec: &MatmulSpec, set: ParamSet, tile: Tile) -> Self {
        // c1 is multiplied by the key, which turns a rounding of 2^-b1 into 8.5 sqrt(N / 16) 2^-b1; these widths keep
        // that below 0.54 (N <= 4096) or 0.38 LSB, and the rounding of c0 at 1/16 LSB.
        let c1_extra = if set.degree() <= 4096 { 8 } else { 9 };
        Self { spec: *spec, set, tile, c0_bits: spec.width + 3, c1_bits: spec.width + c1_extra }
    }

    fn groups(&self) -> usize {
        self.spec.shape.batch.div_ceil(self.tile.group)
    }

    pub(crate) fn row_tiles(&self) -> usize {
        self.spec.shape.m.div_ceil(self.tile.rows)
    }

    pub(crate) fn inner_tiles(&self) -> usize {
        self.spec.shape.k.div_ceil(self.tile.inner)
    }

    /// Columns of all batch items together.
    fn columns(&self) -> usize {
        self.spec.shape.batch * self.spec.shape.n
    }

    pub(crate) fn column_tiles(&self) -> usize {
        self.columns().div_ceil(self.tile.cols)
    }

    pub(crate) fn uploads(&self) -> usize {
        self.groups() * self.row_tiles() * self.inner_tiles()
    }

    /// Upload that holds rows `row_tile` and columns `inner_tile` of X for the items of `group`.
    pub(crate) fn upload_index(&self, group: usize, row_tile: usize, inner_tile: usize) -> usize {
        (group * self.row_tiles() + row_tile) * self.inner_tiles() + inner_tile
    }

    pub(crate) fn responses(&self) -> usize {
        self.column_tiles() * self.row_tiles()
    }

    /// Global columns `start..end` of a column tile.
    pub(crate) fn column_range(&self, column_tile: usize) -> (usize, usize) {
        let start = column_tile * self.tile.cols;
        (start, (start + self.tile.cols).min(self.columns()))
    }

    fn row_range(&self, row_tile: usize) -> (usize, usize) {
        let start = row_tile * self.tile.rows;
        (start, (start + self.tile.rows).min(self.spec.shape.m))
    }

    pub(crate) fn inner_range(&self, inner_tile: usize) -> (usize, usize) {
        let start = inner_tile * self.tile.inner;
        (start, (start + self.tile.inner).min(self.spec.shape.k))
    }

    /// (coefficient, index into X) of every entry of an upload.
    pub(crate) fn x_entries(&self, upload: usize) -> impl Iterator<Item = (usize, usize)> {
        let (shape, tile) = (self.spec.shape, self.tile);
        let (rest, inner_tile) = (upload / self.inner_tiles(), upload % self.inner_tiles());
        let (group, row_tile) = (rest / self.row_tiles(), rest % self.row_tiles());
        let (row0, row1) = self.row_range(row_tile);
        let (j0, j1) = self.inner_range(inner_tile);
        let first = group * tile.group;
        (first..(first + tile.group).min(shape.batch)).flat_map(move |item| {
            (row0..row1).flat_map(move |row| {
                let slot = (item - first) * tile.rows + (row - row0);
                let base = slot * tile.cols * tile.inner + tile.inner - 1;
                (j0..j1).map(move |j| (base - (j - j0), (item * shape.m + row) * shape.k + j))
            })
        })
    }

    /// (coefficient, index into Y) of every output of a response, in wire order.
    pub(crate) fn outputs(&self, response: usize) -> impl Iterator<Item = (usize, usize)> {
        let (shape, tile) = (self.spec.shape, self.tile);
        let (start, end) = self.column_range(response / self.row_tiles());
        let (row0, row1) = self.row_range(response % self.row_tiles());
        (start..end).flat_map(move |column| {
            let (item, c) = (column / shape.n, column % shape.n);
            (row0..row1).map(move |row| {
                let slot = (item % tile.group) * tile.rows + (row - row0);
                let position = (slot * tile.cols + column - start) * tile.inner + tile.inner - 1;
                (position, (item * shape.m + row) * shape.n + c)
            })
        })
    }

    fn poly_bytes(&self) -> usize {
        self.set.degree() / 8 * self.set.log_q() as usize
    }

    pub(crate) fn upload_bytes(&self) -> usize {
        SEED_BYTES + self.uploads() * self.poly_bytes()
    }

    pub(crate) fn response_bytes(&self, response: usize) -> usize {
        let (start, end) = self.column_range(response / self.row_tiles());
        let (row0, row1) = self.row_range(response % self.row_tiles());
        packed_len(self.set.degree(), self.c1_bits) + packed_len((end - start) * (row1 - row0), self.c0_bits)
    }

    pub(crate) fn download_bytes(&self) -> usize {
        (0..self.responses()).map(|r| self.response_bytes(r)).sum()
    }

    /// The download without rounding each response to bytes; for the search.
    fn download_estimate(&self) -> f64 {
        let c0 = (self.columns() * self.spec.shape.m) as f64 * f64::from(self.c0_bits) / 8.0;
        (self.responses() * packed_len(self.set.degree(), self.c1_bits)) as f64 + c0
    }

    /// (distinct weight polynomials, products of a ciphertext with a weight polynomial).
    fn products(&self) -> (usize, usize) {
        // A column tile meets every group that owns one of its columns.
        let per_group = self.tile.group * self.spec.shape.n;
        let meetings: usize = if self.tile.cols >= self.columns() {
            self.groups()
        } else {
            // Each boundary between groups that falls inside a tile adds one meeting.
            let inside = (1..self.groups()).filter(|g| !(g * per_group).is_multiple_of(self.tile.cols)).count();
            self.column_tiles() + inside
        };
        let polys = meetings * self.inner_tiles();
        (polys, polys * self.row_tiles())
    }

    /// Microseconds of one core for evaluate; measured constants of a 2.5 GHz Cascade Lake core, a guide only.
    fn evaluate_us(&self) -> f64 {
        let n = self.set.degree() as f64;
        let limbs = self.set.primes().len() as f64;
        let transform = limbs * n * n.log2() * NTT_US;
        let (polys, products) = self.products();
        polys as f64 * (transform + limbs * n * ENCODE_US)
            + products as f64 * 2.0 * limbs * n * MAC_US
            + self.uploads() as f64 * (transform + limbs * n * UPLOAD_US)
            + self.responses() as f64 * (3.0 * transform + limbs * n * RESPONSE_US)
    }

    /// The bound of `MatmulPlan::lsb_error` as a real number, without the final floor.
    fn error(&self) -> f64 {
        let (spec, n) = (&self.spec, self.set.degree() as f64);
        let log_q: f64 = self.set.primes().iter().map(|&p| (p as f64).log2()).sum();
        // Ring elements are centred, which halves their size.
        let weight_bits = if spec.weight_bits == spec.width { spec.width - 1 } else { spec.weight_bits };
        let nonzero = (self.tile.cols * spec.shape.k) as f64;
        // Bits of errors that come before the rounding, relative to q.
        let product = (ERROR_VARIANCE + 1.0) * nonzero * f64::from(2 * weight_bits).exp2();
        let early = TAIL * (product + ERROR_VARIANCE * (1.0 + 2.0 * n)).sqrt() + n;
        let width = f64::from(spec.width);
        let switch = TAIL * (n / 16.0).sqrt() * (width - f64::from(self.c1_bits)).exp2()
            + (width - f64::from(self.c0_bits) - 1.0).exp2();
        1.0 + early * (width - log_q).exp2() + switch
    }
}

/// Microseconds, per limb and coefficient: of a transform layer, of placing a weight, of one product with one polynomial, of
/// reading an upload, of finishing a response.
const NTT_US: f64 = 2.0e-4;
const ENCODE_US: f64 = 1.0e-3;
const MAC_US: f64 = 0.4e-3;
const UPLOAD_US: f64 = 12e-3;
const RESPONSE_US: f64 = 25e-3;

/// Every value `ceil(total / t)`, largest first.
fn even_pieces(total: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(total), move |&piece| {
        // The fewest pieces that make them smaller.
        (piece > 1).then(|| total.div_ceil(total.div_ceil(piece - 1)))
    })
}

/// Fails unless `1 <= got <= max`.
pub(crate) fn range(what: &'static str, max: u32, got: u32) -> Result<(), HeError> {
    if (1..=max).contains(&got) { Ok(()) } else { Err(HeError::Width { what, min: 1, max, got }) }
}

fn check(spec: &MatmulSpec) -> Result<(), HeError> {
    range("ring width", 64, spec.width)?;
    range("weight bits", spec.width, spec.weight_bits)?;
    let s = spec.shape;
    let small = |a: usize, b: usize| {
        let entries = s.batch.checked_mul(a).and_then(|x| x.checked_mul(b));
        entries.is_some_and(|x| (1..MAX_ENTRIES).contains(&x))
    };
    if small(s.m, s.k) && small(s.k, s.n) && small(s.m, s.n) {
        return Ok(());
    }
    Err(HeError::Shape { step: "matmul" })
}

/// The cheapest layout and its error bound.
pub(crate) fn search(spec: &MatmulSpec, options: &PlanOptions) -> Result<(Layout, u64), HeError> {
    check(spec)?;
    let shape = spec.shape;
    let mut best: Option<(f64, Layout, u64)> = None;
    let shared = even_pieces(shape.batch).filter(|&g| g > 1).map(|group| (group, shape.m));
    let row_cuts: Vec<(usize, usize)> = shared.chain(even_pieces(shape.m).map(|rows| (1, rows))).collect();
    for set in ParamSet::ALL {
        let n = set.degree();
        for &(group, rows) in row_cuts.iter().filter(|(group, rows)| group * rows <= n) {
            for inner in even_pieces(shape.k).filter(|inner| group * rows * inner <= n) {
                let columns = shape.batch * shape.n;
                // As many columns as fit, then evened out over the responses.
                let fit = (n / (group * rows * inner)).min(columns);
                let cols = columns.div_ceil(columns.div_ceil(fit));
                let layout = Layout::new(spec, set, Tile { group, rows, inner, cols });
                let error = layout.error().floor();
                let terms = layout.inner_tiles().saturating_mul(cols);
                if error > options.max_lsb_error.max(1) as f64 || terms > MAX_LAZY_TERMS {
                    continue;
                }
                let cost = layout.upload_bytes() as f64
                    + layout.download_estimate()
                    + layout.evaluate_us() * options.bytes_per_us;
                if best.as_ref().is_none_or(|b| cost < b.0) {
                    best = Some((cost, layout, error as u64));
                }
            }
        }
    }
    let refused =
        HeError::Noise { width: spec.width, weight_bits: spec.weight_bits, max_lsb_error: options.max_lsb_error };
    best.map(|(_, layout, error)| (layout, error)).ok_or(refused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matmul::MatmulShape;
    use std::collections::HashSet;

    #[test]
    fn even_pieces_are_all_ceilings() {
        for total in 1..200usize {
            let mut expected: Vec<_> = (1..=total).map(|t| total.div_ceil(t)).collect();
            expected.dedup();
            assert_eq!(even_pieces(total).collect::<Vec<_>>(), expected);
        }
    }

    /// Every tile whatsoever, with its two byte counts and its work recounted the slow way.
    #[test]
    fn search_finds_the_cheapest_tile() {
        let shapes = [(1, 1, 40, 30), (6, 2, 9, 11), (5, 1, 64, 8), (4, 3, 2, 50), (3, 17, 5, 1)];
        for (batch, m, k, n) in shapes {
            for (width, weight_bits) in [(64, 64), (20, 4)] {
                let spec = MatmulSpec { shape: MatmulShape { batch, m, k, n }, width, weight_bits };
                let options = PlanOptions { bytes_per_us: 0.0, ..PlanOptions::default() };
                let (found, _) = search(&spec, &options).unwrap();
                let bytes = |l: &Layout| l.upload_bytes() + l.download_bytes();
                let cuts = (1..=m).map(|rows| (1, rows)).chain((2..=batch).map(|group| (group, m)));
                for (group, rows) in cuts {
                    for inner in 1..=k {
                        for set in ParamSet::ALL {
                            let cols = (set.degree() / (group * rows * inner)).min(batch * n);
                            if cols == 0 {
                                continue;
                            }
                            let layout = Layout::new(&spec, set, Tile { group, rows, inner, cols });
                            recount(&layout);
                            // The search ignores the rounding of each response to bytes.
                            let slack = found.responses();
                            assert!(layout.error() >= 9.0 || bytes(&layout) + slack >= bytes(&found), "{layout:?}");
                        }
                    }
                }
            }
        }
    }

    fn recount(layout: &Layout) {
        let shape = layout.spec.shape;
        let per_group = layout.tile.group * shape.n;
        let pairs: HashSet<_> = (0..layout.columns()).map(|c| (c / layout.tile.cols, c / per_group)).collect();
        assert_eq!(layout.products().0, pairs.len() * layout.inner_tiles(), "{layout:?}");
        let outputs: Vec<_> = (0..layout.responses()).flat_map(|r| layout.outputs(r)).collect();
        let distinct: HashSet<_> = outputs.iter().map(|o| o.1).collect();
        assert_eq!((outputs.len(), distinct.len()), (shape.batch * shape.m * shape.n, outputs.len()));
        assert!(outputs.iter().all(|o| o.0 < layout.set.degree()));
    }
}
