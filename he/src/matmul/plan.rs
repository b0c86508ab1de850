//! Tiles, sizes and noise of a matrix product; arithmetic on shapes only.

use super::{MatmulSpec, Packing, PlanOptions};
use crate::bits::packed_len;
use crate::error::HeError;
use crate::galois::switch_variance;
use crate::ntt::{LANES, MIN_POINTS, TILES, exact_terms};
use crate::params::ParamSet;
use crate::sampling::{ERROR_VARIANCE, SEED_BYTES};
use std::ops::Range;

/// Standard deviations that a tail bound covers: `2 exp(-8.5^2 / 2) < 2^-51`.
pub(crate) const TAIL: f64 = 8.5;

/// `m * k`, `k * n` and `m * n` of all items together stay below this.
const MAX_ENTRIES: usize = 1 << 32;

/// What one ciphertext covers (names as in the module documentation). Either `group = 1`, or `rows` is all of m. `run` is 1
/// or a power of two from [`LANES`] to N / [`MIN_POINTS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tile {
    pub(crate) group: usize,
    pub(crate) rows: usize,
    pub(crate) inner: usize,
    pub(crate) cols: usize,
    pub(crate) run: usize,
}

impl Tile {
    /// The place of row slot `slot` at `place` of the polynomial of its run, `0..cols * inner`.
    fn position(&self, slot: usize, place: usize) -> usize {
        // By shifts: one of these is worked out per coefficient, many times over.
        let (log, low) = (self.run.trailing_zeros(), slot & (self.run - 1));
        (((slot >> log) * self.cols * self.inner + place) << log) + low
    }
}

/// Row slots with those that fill up the last run.
fn padded(slots: usize, run: usize) -> usize {
    slots.next_multiple_of(run)
}

/// The runs worth a look for `slots` row slots: 1, and of those that waste as many slots the longest.
fn runs(slots: usize, degree: usize) -> impl Iterator<Item = usize> {
    let longest = slots.next_power_of_two().min(degree / MIN_POINTS);
    let halves = std::iter::successors(Some(longest), |run| Some(run / 2)).take_while(|&run| run >= LANES);
    let mut least = usize::MAX;
    halves.filter(move |&run| padded(slots, run) < std::mem::replace(&mut least, padded(slots, run))).chain([1])
}

/// Products of ciphertexts that one response holds: of `columns` column tiles by `rows` row tiles; (1, 1) without packing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pack {
    pub(crate) columns: usize,
    pub(crate) rows: usize,
}

/// A tile applied to a shape under a parameter set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Layout {
    pub(crate) spec: MatmulSpec,
    pub(crate) set: ParamSet,
    pub(crate) tile: Tile,
    pub(crate) pack: Pack,
    /// Bits that each coefficient of a response keeps.
    pub(crate) c0_bits: u32,
    pub(crate) c1_bits: u32,
}

/// `ceil(log2(count))`: the height of [`offset`]'s tree.
pub(crate) fn levels(count: usize) -> u32 {
    count.next_power_of_two().trailing_zeros()
}

/// Places by which packing moves leaf `index` of `count`. A node gives the first half of its leaves, rounded up, to one
/// child and moves the others by its step; the root's is `step`, and it doubles from level to level.
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

/// `total` in pieces of at most `most`, evened out: their size.
fn even(total: usize, most: usize) -> usize {
    total.div_ceil(total.div_ceil(most))
}

impl Layout {
    fn new(spec: &MatmulSpec, set: ParamSet, tile: Tile) -> Self {
        // c1 is multiplied by the key, which turns a rounding of 2^-b1 into 8.5 sqrt(N / 16) 2^-b1; these widths keep
        // that below 0.54 (N <= 4096) or 0.38 LSB, and the rounding of c0 at 1/16 LSB.
        let c1_extra = if set.degree() <= 4096 { 8 } else { 9 };
        let pack = Pack { columns: 1, rows: 1 };
        Self { spec: *spec, set, tile, pack, c0_bits: spec.width + 3, c1_bits: spec.width + c1_extra }
    }

    /// The same with as many products in a response as find room between its outputs, `inner` (a power of two) places
    /// apart. None if no two products would share a response.
    fn packed(mut self) -> Option<Self> {
        debug_assert!(self.tile.inner.is_power_of_two() && self.tile.run == 1);
        let columns = even(self.column_tiles(), self.tile.inner);
        let rows = even(self.row_tiles(), self.tile.inner >> levels(columns));
        self.pack = Pack { columns, rows };
        (columns * rows > 1).then_some(self)
    }

    /// Whether responses are packed, which takes Galois keys.
    pub(crate) fn is_packed(&self) -> bool {
        self.pack.columns * self.pack.rows > 1
    }

    /// Levels of merges that column tiles, and then row tiles, go through.
    pub(crate) fn pack_levels(&self) -> (u32, u32) {
        (levels(self.pack.columns), levels(self.pack.rows))
    }

    /// Steps of the roots of both trees; the leaves of the tree of columns are `inner` places apart.
    pub(crate) fn pack_steps(&self) -> (usize, usize) {
        let (columns, rows) = self.pack_levels();
        (self.tile.inner >> columns, self.tile.inner >> (columns + rows))
    }

    pub(crate) fn groups(&self) -> usize {
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

    fn row_packs(&self) -> usize {
        self.row_tiles().div_ceil(self.pack.rows)
    }

    pub(crate) fn column_packs(&self) -> usize {
        self.column_tiles().div_ceil(self.pack.columns)
    }

    pub(crate) fn responses(&self) -> usize {
        self.column_packs() * self.row_packs()
    }

    /// Column tiles of a pack.
    pub(crate) fn column_pack(&self, pack: usize) -> Range<usize> {
        let start = pack * self.pack.columns;
        start..(start + self.pack.columns).min(self.column_tiles())
    }

    /// Column tiles and row tiles of a response.
    fn members(&self, response: usize) -> (Range<usize>, Range<usize>) {
        let start = response % self.row_packs() * self.pack.rows;
        (self.column_pack(response / self.row_packs()), start..(start + self.pack.rows).min(self.row_tiles()))
    }

    /// Global columns `start..end` of a column tile.
    pub(crate) fn column_range(&self, column_tile: usize) -> (usize, usize) {
        let start = column_tile * self.tile.cols;
        (start, (start + self.tile.cols).min(self.columns()))
    }

    /// Groups that own columns of a column tile.
    pub(crate) fn meetings(&self, column_tile: usize) -> Range<usize> {
        let per_group = self.tile.group * self.spec.shape.n;
        let (start, end) = self.column_range(column_tile);
        start / per_group..(end - 1) / per_group + 1
    }

    fn row_range(&self, row_tile: usize) -> (usize, usize) {
        let start = row_tile * self.tile.rows;
        (start, (start + self.tile.rows).min(self.spec.shape.m))
    }

    pub(crate) fn inner_range(&self, inner_tile: usize) -> (usize, usize) {
        let start = inner_tile * self.tile.inner;
        (start, (start + self.tile.inner).min(self.spec.shape.k))
    }

    /// Places by which X is moved down, for outputs to lie at multiples of `inner` where they are packed.
    fn shift(&self) -> usize {
        if self.is_packed() { self.tile.inner - 1 } else { 0 }
    }

    /// (coefficient, index into X) of every entry of an upload. A coefficient of N or more stands for `-X^(i - N)`.
    pub(crate) fn x_entries(&self, upload: usize) -> impl Iterator<Item = (usize, usize)> {
        // X^-s = -X^(N-s): entries that move below zero come out at N and above of twice the range.
        let (down, wrap) = (self.shift(), 2 * self.set.degree());
        let (shape, tile) = (self.spec.shape, self.tile);
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
                    ((wrap + position - down) & (wrap - 1), (item * shape.m + row) * shape.k + j)
                })
            })
        })
    }

    /// (coefficient, index into Y) of every output of a response, in wire order.
    pub(crate) fn outputs(&self, response: usize) -> impl Iterator<Item = (usize, usize)> {
        let (columns, rows) = self.members(response);
        let (layout, (column_step, row_step)) = (*self, self.pack_steps());
        let (column0, row0) = (columns.start, rows.start);
        let (column_count, row_count) = (columns.len(), rows.len());
        columns.flat_map(move |column_tile| {
            rows.clone().flat_map(move |row_tile| {
                let moved = offset(column_count, column_tile - column0, column_step)
                    + offset(row_count, row_tile - row0, row_step);
                layout.tile_outputs(column_tile, row_tile).map(move |(position, entry)| (position + moved, entry))
            })
        })
    }

    /// [`Self::outputs`] of one product of tiles, before packing.
    fn tile_outputs(&self, column_tile: usize, row_tile: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (shape, tile, down) = (self.spec.shape, self.tile, self.shift());
        let (start, end) = self.column_range(column_tile);
        let (row0, row1) = self.row_range(row_tile);
        (start..end).flat_map(move |column| {
            let (item, c) = (column / shape.n, column % shape.n);
            let first = (item % tile.group) * tile.rows;
            (row0..row1).map(move |row| {
                let slot = first + (row - row0);
                let position = tile.position(slot, (column - start) * tile.inner + tile.inner - 1);
                (position - down, (item * shape.m + row) * shape.n + c)
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
        let (columns, rows) = self.members(response);
        let columns = self.column_range(columns.end - 1).1 - self.column_range(columns.start).0;
        let rows = self.row_range(rows.end - 1).1 - self.row_range(rows.start).0;
        packed_len(self.set.degree(), self.c1_bits) + packed_len(columns * rows, self.c0_bits)
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

    /// Degree of the ring of the weight polynomials.
    pub(crate) fn points(&self) -> usize {
        self.set.degree() / self.tile.run
    }

    /// Coefficients of a weight polynomial, in whole blocks of 64; the others are zero.
    pub(crate) fn weight_span(&self) -> usize {
        (self.tile.cols * self.tile.inner).next_multiple_of(64).min(self.points())
    }

    /// Merges of ciphertexts, each with a key switch.
    fn merges(&self) -> usize {
        self.column_tiles() * self.row_tiles() - self.responses()
    }

    /// Microseconds of one core for the whole product, both parties together: a guide only.
    fn compute_us(&self) -> f64 {
        let (n, points) = (self.set.degree() as f64, self.points() as f64);
        let limbs = self.set.primes().len() as f64;
        let transform = n * n.log2() * NTT_US;
        let (polys, products) = self.products();
        let span = self.weight_span() as f64;
        let (weights, product) = if self.tile.run == 1 {
            (0.0, MAC_US)
        } else {
            let shared = self.column_tiles().min(TILES) as f64;
            let terms = self.inner_tiles().min(exact_terms(self.set.primes()[0])) as f64;
            (points * PLACE_US, RUN_MAC_US + RUN_LOAD_US / shared + RUN_REDUCE_US / terms)
        };
        let merge = 2.0 * limbs * (1.0 + limbs) * transform + limbs * n * (MERGE_US + 4.0 * limbs * MAC_US);
        limbs
            * (polys as f64 * (points * (span.log2() + WEIGHT_LAYERS) * NTT_US + span * ENCODE_US + weights)
                + products as f64 * 2.0 * n * product
                + self.uploads() as f64 * (2.0 * transform + n * UPLOAD_US)
                + self.responses() as f64 * (5.0 * transform + n * RESPONSE_US))
            + self.merges() as f64 * merge
    }

    /// Seconds of the whole product: both messages at the link's rate, and the computation.
    pub(crate) fn seconds(&self, options: &PlanOptions) -> f64 {
        let bytes = self.upload_bytes() as f64 + self.download_estimate();
        let weight = if options.packing == Packing::Always { ALWAYS_WEIGHT } else { 1.0 };
        weight * bytes / options.bytes_per_second.max(1) as f64 + self.compute_us() * 1e-6 / CORES
    }

    /// The bound of `MatmulPlan::lsb_error` as a real number, without the final floor.
    pub(crate) fn error(&self) -> f64 {
        let (spec, n) = (&self.spec, self.set.degree() as f64);
        let log_q: f64 = self.set.primes().iter().map(|&p| (p as f64).log2()).sum();
        // Ring elements are centred, which halves their size.
        let weight_bits = if spec.weight_bits == spec.width { spec.width - 1 } else { spec.weight_bits };
        let nonzero = (self.tile.cols * spec.shape.k) as f64;
        // Bits of errors that come before the rounding, relative to q.
        let product = (ERROR_VARIANCE + 1.0) * nonzero * f64::from(2 * weight_bits).exp2();
        // The error of each merge on the way is doubled by every later one: a geometric sum of variances.
        let (columns, rows) = self.pack_levels();
        let merges = switch_variance(self.set) * (f64::from(2 * (columns + rows)).exp2() - 1.0) / 3.0;
        let early = TAIL * (product + merges + ERROR_VARIANCE * (1.0 + 2.0 * n)).sqrt() + n;
        let width = f64::from(spec.width);
        let switch = TAIL * (n / 16.0).sqrt() * (width - f64::from(self.c1_bits)).exp2()
            + (width - f64::from(self.c0_bits) - 1.0).exp2();
        1.0 + early * (width - log_q).exp2() + switch
    }
}

/// How much more bytes count under [`Packing::Always`].
const ALWAYS_WEIGHT: f64 = 8.0;
/// Cores that each party is taken to keep busy, rather more than it has: of two plans that take about as long, the one that
/// sends less is wanted. On `lan` (3 Gbit/s) a decode step of GPT-2 small takes 71.8, 62.1, 60.6, 56.9 and 55.1 MB in one
/// phase with 12, 16, 24, 32 and 40, and preparing one 39.0, 37.7, 34.2, 30.0 and 29.6 MB.
const CORES: f64 = 40.0;
/// Microseconds of one core of a 2.5 GHz Cascade Lake, per limb and coefficient (`examples/costs.rs`): of a transform layer,
/// of which reading and writing weights are taken for two more, of placing a weight, of one product with one polynomial, of
/// a merge apart from transforms and products, of making and reading an upload, of finishing and opening a response.
const NTT_US: f64 = 2.6e-4;
const WEIGHT_LAYERS: f64 = 2.0;
const ENCODE_US: f64 = 1.0e-3;
const MAC_US: f64 = 0.6e-3;
const MERGE_US: f64 = 10e-3;
/// Where weights act on runs: of bringing a weight into place, of a product, of reading a coefficient for up to [`TILES`]
/// of them, of a reduction.
const PLACE_US: f64 = 15e-3;
const RUN_MAC_US: f64 = 0.13e-3;
const RUN_LOAD_US: f64 = 0.22e-3;
const RUN_REDUCE_US: f64 = 1.8e-3;
const UPLOAD_US: f64 = 25e-3;
const RESPONSE_US: f64 = 30e-3;

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
    let mut best: Option<(bool, f64, Layout)> = None;
    for layout in candidates(spec).filter(|layout| options.packing != Packing::Never || !layout.is_packed()) {
        if layout.error().floor() > options.max_lsb_error.max(1) as f64 {
            continue;
        }
        // Smaller is better; a packed layout always comes first where that is asked for.
        let unwanted = options.packing == Packing::Always && !layout.is_packed();
        let seconds = layout.seconds(options);
        if best.as_ref().is_none_or(|b| (unwanted, seconds) < (b.0, b.1)) {
            best = Some((unwanted, seconds, layout));
        }
    }
    let refused =
        HeError::Noise { width: spec.width, weight_bits: spec.weight_bits, max_lsb_error: options.max_lsb_error };
    best.map(|(_, _, layout)| (layout, layout.error().floor() as u64)).ok_or(refused)
}

/// Every layout worth a look.
pub(crate) fn candidates(spec: &MatmulSpec) -> impl Iterator<Item = Layout> {
    let (spec, shape) = (*spec, spec.shape);
    let shared = even_pieces(shape.batch).filter(|&g| g > 1).map(move |group| (group, shape.m));
    let row_cuts: Vec<(usize, usize)> = shared.chain(even_pieces(shape.m).map(|rows| (1, rows))).collect();
    ParamSet::ALL.into_iter().flat_map(move |set| {
        let n = set.degree();
        let fits = move |(group, rows): &(usize, usize)| group * rows <= n;
        row_cuts.clone().into_iter().filter(fits).flat_map(move |(group, rows)| {
            runs(group * rows, n).flat_map(move |run| {
                let slots = padded(group * rows, run);
                let layout = move |inner: usize| {
                    let columns = shape.batch * shape.n;
                    // As many columns as fit, then evened out over the column tiles.
                    let cols = even(columns, (n / (slots * inner)).min(columns));
                    Layout::new(&spec, set, Tile { group, rows, inner, cols, run })
                };
                let plain = even_pieces(shape.k).filter(move |inner| slots * inner <= n).map(layout);
                // Powers of two up to the first that holds all of k.
                let powers = (0..=levels(shape.k)).map(|log| 1 << log).filter(move |inner| slots * inner <= n);
                plain.chain(powers.filter(move |_| run == 1).filter_map(move |inner| layout(inner).packed()))
            })
        })
    })
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

    /// Every tile whatsoever, with its two byte counts and its work recounted the slow way.
    #[test]
    fn search_finds_the_cheapest_tile() {
        let shapes = [(1, 1, 40, 30), (6, 2, 9, 11), (5, 1, 64, 8), (4, 3, 2, 50), (3, 17, 5, 1)];
        for (batch, m, k, n) in shapes {
            for (width, weight_bits) in [(64, 64), (20, 4)] {
                let spec = MatmulSpec { shape: MatmulShape { batch, m, k, n }, width, weight_bits };
                let options = PlanOptions { bytes_per_second: 1, ..PlanOptions::default() };
                let (found, _) = search(&spec, &options).unwrap();
                recount(&found);
                let bytes = |l: &Layout| l.upload_bytes() + l.download_bytes();
                let cuts = (1..=m).map(|rows| (1, rows)).chain((2..=batch).map(|group| (group, m)));
                for (group, rows) in cuts {
                    for inner in 1..=k {
                        for set in ParamSet::ALL {
                            let cols = (set.degree() / (group * rows * inner)).min(batch * n);
                            if cols == 0 {
                                continue;
                            }
                            let layout = Layout::new(&spec, set, Tile { group, rows, inner, cols, run: 1 });
                            recount(&layout);
                            for run in runs(group * rows, set.degree()).filter(|&run| run > 1) {
                                let cols = set.degree() / (padded(group * rows, run) * inner);
                                if cols > 0 {
                                    let tile = Tile { group, rows, inner, cols: cols.min(batch * n), run };
                                    recount(&Layout::new(&spec, set, tile));
                                }
                            }
                            let packed = inner.is_power_of_two().then(|| layout.packed()).flatten();
                            packed.iter().for_each(recount);
                            // The search ignores the rounding of each response to bytes.
                            let slack = found.responses();
                            for layout in packed.into_iter().chain([layout]) {
                                let cheaper = bytes(&layout) + slack < bytes(&found);
                                assert!(layout.error() >= 9.0 || !cheaper, "{layout:?} against {found:?}");
                            }
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
        for response in 0..layout.responses() {
            let positions: HashSet<_> = layout.outputs(response).map(|o| o.0).collect();
            let count = layout.outputs(response).count();
            assert_eq!(positions.len(), count);
            let bytes = packed_len(layout.set.degree(), layout.c1_bits) + packed_len(count, layout.c0_bits);
            assert_eq!(layout.response_bytes(response), bytes);
        }
    }
}
