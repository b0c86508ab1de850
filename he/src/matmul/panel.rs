//! Products where weights act on runs of rows (`Tile::run > 1`).
//!
//! A weight polynomial then has one value per run of coefficients, at each of N / run points. The product at a point
//! is one of matrices: coefficients of all rows and both halves of a ciphertext by inner tiles, times inner tiles by
//! column tiles. So uploads are laid out point after point, once, and column tiles are taken together, [`TILES`] by
//! [`TILES`]. A *panel* is a number of column tiles that share every read of the uploads. Its weights are made and
//! used a *stretch* of inner tiles at a time, so that they stay in the caches between the two.

use super::cache::{self, Form};
use super::response::Evaluation;
use super::tiling::Tiling;
use crate::ciphertext::{Ciphertext, Split};
use crate::ntt::{LANES, Product, TILES};
use crate::params::Params;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use zeroize::Zeroizing;

/// Number of column tiles of a panel: the first number, or a smaller one down to the second if their weights would
/// take more than [`PANEL_RESIDUES`].
const PANEL_TILES: (usize, usize) = (32, TILES);
/// Number of residues of the weights of a panel that meet one stretch of inner tiles. They take 8 MiB, which the
/// last-level cache has for each of a few cores. Kernels in double precision take three times the memory but access
/// it less often.
const PANEL_RESIDUES: usize = 1 << 20;
/// Largest number of inner tiles of a stretch. With fewer, sums would be reduced and stored more often.
const STRETCH: usize = 128;
/// Words of a gap between the weights of one point and those of the next. Without the gap the points of a weight
/// would lie a power of two apart, and a cache keeps only a few words at such addresses.
const GAP: usize = LANES;

/// The index of the first word at the beginning of a cache line. A vector that crosses lines takes two accesses, so
/// memory is [`LANES`] words longer to begin there.
fn first_line(words: &[u64]) -> usize {
    words.as_ptr().align_offset(size_of::<[u64; LANES]>())
}

/// Neighbouring column tiles, at most [`TILES`], that meet the same groups of batch items.
struct Block {
    tiles: Range<usize>,
    groups: Range<usize>,
}

/// Inner tiles of one group of batch items. Their products are added up in one pass.
struct Stretch {
    /// Index of the stretch among all stretches.
    index: usize,
    group: usize,
    inner: Range<usize>,
}

/// The stretches of a product, ordered by group.
fn stretches(tiling: &Tiling) -> Vec<Stretch> {
    let (tiles, count) = (tiling.inner_tiles(), tiling.inner_tiles().div_ceil(STRETCH));
    let inner = |piece: usize| tiles * piece / count..tiles * (piece + 1) / count;
    let stretch = |index| Stretch { index, group: index / count, inner: inner(index % count) };
    (0..tiling.groups() * count).map(stretch).collect()
}

/// The weights at one point of one limb, term after term in the form that `NttBackend::matmul` takes. In `form`, the
/// weights of two neighbouring points are [`GAP`] words apart.
fn weights(form: &Form, limb: usize, point: usize, points: usize) -> &[u64] {
    let weights = &form[limb][first_line(&form[limb])..];
    // Fewer words than points are left over, so the division gives the pitch.
    let pitch = weights.len() / points;
    &weights[point * pitch..][..pitch - GAP]
}

/// Sizes of the operands at one point, in words unless a comment says otherwise.
#[derive(Clone, Copy)]
struct Sizes {
    /// Number of points of a weight polynomial.
    points: usize,
    /// Number of vectors that hold the coefficients of both halves of a ciphertext at a point.
    vectors: usize,
    /// Words that the coefficients of all row tiles take at a point, for one inner tile of one group.
    term: usize,
}

impl Sizes {
    fn new(tiling: &Tiling) -> Self {
        let vectors = 2 * tiling.tile.run / LANES;
        Self { points: tiling.points(), vectors, term: tiling.row_tiles() * vectors * LANES }
    }
}

/// The uploads in the order of `NttBackend::matmul`'s left operand, the outermost index first: stretch, limb, point,
/// row tile, half, vector, inner tile.
fn point_by_point(tiling: &Tiling, params: &Params, stretches: &[Stretch], uploads: &[Ciphertext]) -> Vec<Vec<u64>> {
    let (sizes, run) = (Sizes::new(tiling), tiling.tile.run);
    let operand = |stretch: &Stretch| {
        let size = stretch.inner.len() * sizes.term;
        let mut operand = vec![0; params.limbs().len() * sizes.points * size];
        operand.par_chunks_exact_mut(size).enumerate().for_each(|(point, out)| {
            let mut out = out.chunks_exact_mut(LANES);
            for row_tile in 0..tiling.row_tiles() {
                let first = tiling.upload_index(stretch.group, row_tile, stretch.inner.start);
                let uploads = &uploads[first..first + stretch.inner.len()];
                for second in [false, true] {
                    for at in (point * run..(point + 1) * run).step_by(LANES) {
                        for (upload, out) in uploads.iter().zip(&mut out) {
                            let half = if second { &upload.c1 } else { &upload.c0 };
                            out.copy_from_slice(&half[at..at + LANES]);
                        }
                    }
                }
            }
        });
        operand
    };
    stretches.iter().map(operand).collect()
}

/// The responses of the column tiles `tiles`. The uploads must be factors.
pub(super) fn responses(evaluation: &Evaluation<'_>, uploads: Vec<Ciphertext>, tiles: Range<usize>) -> Vec<Split> {
    let tiling = &evaluation.plan.layout.tiling;
    let stretches = stretches(tiling);
    let operands = point_by_point(tiling, evaluation.params, &stretches, &uploads);
    drop(uploads);
    Panels { evaluation, stretches, operands, spare: Mutex::default() }.responses(tiles)
}

struct Panels<'a> {
    evaluation: &'a Evaluation<'a>,
    stretches: Vec<Stretch>,
    /// The uploads as [`point_by_point`] lays them out.
    operands: Vec<Vec<u64>>,
    /// Memory of former weights, to be used again for later ones.
    spare: Mutex<Form>,
}

impl Panels<'_> {
    fn tiling(&self) -> &Tiling {
        &self.evaluation.plan.layout.tiling
    }

    fn responses(&self, all: Range<usize>) -> Vec<Split> {
        let (tiling, params) = (self.tiling(), self.evaluation.params);
        let (most, least) = PANEL_TILES;
        let column = tiling.inner_tiles().min(STRETCH) * tiling.points() * params.limbs().len();
        let tiles = PANEL_RESIDUES / column.max(1);
        let tiles = (tiles / TILES * TILES).clamp(least, most);
        // Panels of nearly equal size, so that none is much smaller than the others.
        let count = all.len().div_ceil(tiles);
        let start = |panel: usize| all.start + all.len() * panel / count;
        let panel = |panel| self.panel(start(panel)..start(panel + 1));
        (0..count).into_par_iter().flat_map(panel).collect()
    }

    /// The responses of the column tiles `tiles`, which make one panel.
    fn panel(&self, tiles: Range<usize>) -> Vec<Split> {
        let (tiling, params, sizes) = (self.tiling(), self.evaluation.params, Sizes::new(self.tiling()));
        // The outermost index first: point, row tile, column tile, and then both halves of the run.
        let pair = sizes.vectors * LANES;
        let stride = tiling.row_tiles() * tiles.len() * pair;
        let mut sums = self.memory(params.limbs().len() * sizes.points * stride);
        sums.fill(0);
        let blocks = self.blocks(tiles.clone());
        for (stretch, operand) in self.stretches.iter().zip(&self.operands) {
            let meet: Vec<&Block> = blocks.iter().filter(|block| block.groups.contains(&stretch.group)).collect();
            let forms: Vec<Arc<Form>> = meet.par_iter().map(|block| self.form(block, stretch)).collect();
            let points =
                sums.par_chunks_exact_mut(stride).zip(operand.par_chunks_exact(stretch.inner.len() * sizes.term));
            points.enumerate().for_each(|(point, (sums, operand))| {
                let (limb, point) = (point / sizes.points, point % sizes.points);
                let rows = operand.chunks_exact(operand.len() / tiling.row_tiles());
                for (a, mut sums) in rows.zip(sums.chunks_exact_mut(stride / tiling.row_tiles())) {
                    let mut products = Vec::with_capacity(meet.len());
                    let mut first = tiles.start;
                    for (block, form) in meet.iter().zip(&forms) {
                        let rest = std::mem::take(&mut sums).split_at_mut((block.tiles.start - first) * pair).1;
                        let (part, rest) = rest.split_at_mut(block.tiles.len() * pair);
                        (sums, first) = (rest, block.tiles.end);
                        products.push(Product { sums: part, weights: weights(form, limb, point, sizes.points) });
                    }
                    params.limbs()[limb].ntt().matmul(a, &mut products);
                }
            });
            forms.into_iter().filter_map(|form| Arc::try_unwrap(form).ok()).for_each(|form| self.recycle(form));
        }
        let respond = |index: usize| {
            let (tile, row_tile) = (index / tiling.row_tiles(), index % tiling.row_tiles());
            let at = (row_tile * tiles.len() + tile) * pair;
            let half = |half: usize| {
                let mut poly = Vec::with_capacity(params.words());
                let runs = sums.chunks_exact(stride).map(|sums| &sums[at + half * pair / 2..][..pair / 2]);
                runs.for_each(|run| poly.extend_from_slice(run));
                poly
            };
            let product = Ciphertext { c0: half(0), c1: half(1) };
            self.evaluation.respond((tiles.start + tile) * tiling.row_tiles() + row_tile, product)
        };
        let responses = (0..tiles.len() * tiling.row_tiles()).into_par_iter().map(respond).collect();
        self.recycle(vec![sums]);
        responses
    }

    /// Cuts column tiles into blocks of nearly equal size.
    fn blocks(&self, tiles: Range<usize>) -> Vec<Block> {
        let tiling = self.tiling();
        let mut blocks = Vec::new();
        let mut start = tiles.start;
        while start < tiles.end {
            let groups = tiling.meetings(start);
            let alike = (start..tiles.end).take_while(|&tile| tiling.meetings(tile) == groups).count();
            let count = alike.div_ceil(TILES);
            blocks.extend((0..count).map(|block| Block {
                tiles: start + alike * block / count..start + alike * (block + 1) / count,
                groups: groups.clone(),
            }));
            start += alike;
        }
        blocks
    }

    /// Memory of `words` words with arbitrary contents.
    fn memory(&self, words: usize) -> Zeroizing<Vec<u64>> {
        let used = {
            let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
            spare.iter().position(|memory| memory.len() == words).map(|at| spare.swap_remove(at))
        };
        used.unwrap_or_else(|| Zeroizing::new(vec![0; words]))
    }

    fn recycle(&self, memory: Form) {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner).extend(memory);
    }

    /// The weights of a block that meet a stretch, from the cache or made.
    fn form(&self, block: &Block, stretch: &Stretch) -> Arc<Form> {
        let Evaluation { cached, plan, .. } = *self.evaluation;
        cache::form(cached, &plan.layout, (block.tiles.clone(), stretch.index), || self.weigh(block, stretch))
    }

    /// Encodes and transforms the weights of a block that meet a stretch.
    fn weigh(&self, block: &Block, stretch: &Stretch) -> Form {
        let (tiling, params) = (self.tiling(), self.evaluation.params);
        let (points, limbs) = (tiling.points(), params.limbs());
        let pitch = |words: usize| stretch.inner.len() * TILES * words + GAP;
        let mut form: Form =
            limbs.iter().map(|l| self.memory(points * pitch(l.ntt().weight_words()) + LANES)).collect();
        let rows = tiling.inner_range(stretch.inner.start).0..tiling.inner_range(stretch.inner.end - 1).1;
        let staged = self.evaluation.stage(&block.tiles, rows);
        let mut signed = Zeroizing::new(vec![0; TILES * tiling.weight_span()]);
        let mut scratch = Zeroizing::new(vec![0; TILES * points]);
        for (term, inner_tile) in stretch.inner.clone().enumerate() {
            let (start, end) = tiling.inner_range(inner_tile);
            if end - start < tiling.tile.inner {
                // The last inner tile has fewer rows, so old words must go. The other tiles overwrite the same
                // places.
                signed.fill(0);
            }
            let (tiles, staged) = (block.tiles.clone(), staged.as_ref());
            self.evaluation.encode_weights(tiles, stretch.group, inner_tile, staged, true, &mut signed);
            for (l, out) in limbs.iter().zip(&mut form) {
                let words = l.ntt().weight_words();
                let start = first_line(out) + term * TILES * words;
                let out = &mut out[start..];
                let weigh = |signed: &[i64]| l.ntt().weigh(signed, &mut scratch, out, pitch(words));
                l.reduced(&signed, self.evaluation.plan.spec.weight_bits, weigh);
            }
        }
        form
    }
}
