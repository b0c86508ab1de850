//! Products where weights act on runs of rows (`Tile::run > 1`).
//!
//! A weight polynomial then has one value per run of coefficients, at each of N / run points. The product at a point
//! is one of matrices: coefficients of all rows and both halves of a ciphertext by inner tiles, times inner tiles by
//! column tiles. So uploads are laid out point after point, once, and column tiles are taken together, [`TILES`] by
//! [`TILES`]. A *panel* is a number of column tiles whose weights are in memory at a time: every read of the uploads
//! then serves many columns.

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

/// Column tiles of a panel: at most, and at least where their weights take more than [`PANEL_WORDS`].
const PANEL_TILES: (usize, usize) = (32, TILES);
/// Words of the weights of a panel: more columns for each read of the uploads, and more memory. They go past the
/// caches, which they would fill.
const PANEL_WORDS: usize = 1 << 22;
/// Words between the weights of one point and those of the next. Without them the points of a weight would lie a
/// power of two apart, and a cache keeps only a few words of such addresses.
const GAP: usize = LANES;

/// Words from the beginning of a cache line on: vectors that are stored past the caches are whole lines. Memory is
/// [`LANES`] words longer for it.
fn first_line(words: &[u64]) -> usize {
    words.as_ptr().align_offset(size_of::<[u64; LANES]>())
}

/// Column tiles, at most [`TILES`], that meet the same groups of items.
struct Block {
    tiles: Range<usize>,
    groups: Range<usize>,
    /// Per limb its weights: point by point, [`GAP`] words apart, group by group, inner tile by inner tile, as
    /// `NttBackend::matmul` takes them.
    weights: Arc<Form>,
}

impl Block {
    /// The weights of `group` at a point.
    fn weights(&self, limb: usize, point: usize, group: usize, sizes: &Sizes) -> &[u64] {
        let weights = &self.weights[limb];
        let weights = &weights[first_line(weights)..];
        // The words left over are fewer than points.
        let pitch = weights.len() / sizes.points;
        let each = (pitch - GAP) / self.groups.len();
        &weights[point * pitch + (group - self.groups.start) * each..][..each]
    }
}

/// Sizes, in words unless they count something else.
#[derive(Clone, Copy)]
struct Sizes {
    /// Of the polynomial of a weight.
    points: usize,
    /// Vectors of the coefficients of both halves at a point.
    vectors: usize,
    /// Coefficients of one row tile and group at a point.
    operand: usize,
    /// All coefficients at a point.
    point: usize,
}

impl Sizes {
    fn new(tiling: &Tiling) -> Self {
        let vectors = 2 * tiling.tile.run / LANES;
        let operand = vectors * tiling.inner_tiles() * LANES;
        let point = tiling.row_tiles() * tiling.groups() * operand;
        Self { points: tiling.points(), vectors, operand, point }
    }
}

/// The uploads limb by limb, point by point, row tile by row tile, group by group; there vector after vector, half
/// after half, of each all inner tiles: the operand of `NttBackend::matmul`.
fn point_by_point(tiling: &Tiling, params: &Params, uploads: &[Ciphertext]) -> Vec<u64> {
    let (sizes, run) = (Sizes::new(tiling), tiling.tile.run);
    let mut out = vec![0; params.limbs().len() * sizes.points * sizes.point];
    out.par_chunks_exact_mut(sizes.point).enumerate().for_each(|(point, out)| {
        let mut out = out.chunks_exact_mut(LANES);
        let operands = (0..tiling.row_tiles()).flat_map(|row_tile| (0..tiling.groups()).map(move |g| (row_tile, g)));
        for (row_tile, group) in operands {
            let first = tiling.upload_index(group, row_tile, 0);
            let uploads = &uploads[first..first + tiling.inner_tiles()];
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
    out
}

/// All responses; the uploads are factors.
pub(super) fn responses(evaluation: &Evaluation<'_>, uploads: Vec<Ciphertext>) -> Vec<Split> {
    let operand = point_by_point(&evaluation.plan.layout.tiling, evaluation.params, &uploads);
    drop(uploads);
    Panels { evaluation, operand, spare: Mutex::default() }.responses()
}

struct Panels<'a> {
    evaluation: &'a Evaluation<'a>,
    /// The uploads as [`point_by_point`] lays them out.
    operand: Vec<u64>,
    /// The memory of blocks that are done, for those to come.
    spare: Mutex<Vec<Form>>,
}

impl Panels<'_> {
    fn tiling(&self) -> &Tiling {
        &self.evaluation.plan.layout.tiling
    }

    fn responses(&self) -> Vec<Split> {
        let (tiling, params) = (self.tiling(), self.evaluation.params);
        let words: usize = params.limbs().iter().map(|l| l.ntt().weight_words()).sum();
        let (most, least) = PANEL_TILES;
        let tiles = PANEL_WORDS / (tiling.inner_tiles() * tiling.points() * words).max(1);
        let tiles = (tiles / TILES * TILES).clamp(least, most);
        // Evened out, for no panel to be much smaller than the others.
        let count = tiling.column_tiles().div_ceil(tiles);
        let start = |panel: usize| tiling.column_tiles() * panel / count;
        let panel = |panel| self.panel(start(panel)..start(panel + 1));
        (0..count).into_par_iter().flat_map(panel).collect()
    }

    /// The responses of some column tiles.
    fn panel(&self, tiles: Range<usize>) -> Vec<Split> {
        let (tiling, params, sizes) = (self.tiling(), self.evaluation.params, Sizes::new(self.tiling()));
        let mut blocks = self.blocks(tiles.clone());
        let Evaluation { cached, plan, .. } = *self.evaluation;
        let weigh = |block: &mut Block| {
            let part = (block.tiles.start, block.tiles.len());
            block.weights = cache::form(cached, &plan.layout, part, || self.weigh(block));
        };
        blocks.par_iter_mut().for_each(weigh);
        // Point by point, row tile by row tile and column tile by column tile, both halves of the run.
        let pair = sizes.vectors * LANES;
        let stride = tiling.row_tiles() * tiles.len() * pair;
        let mut sums = vec![0; params.limbs().len() * sizes.points * stride];
        let points = sums.par_chunks_exact_mut(stride).zip(self.operand.par_chunks_exact(sizes.point));
        points.enumerate().for_each(|(point, (sums, operand))| {
            let (limb, point) = (point / sizes.points, point % sizes.points);
            let mut sums = sums;
            for operand in operand.chunks_exact(tiling.groups() * sizes.operand) {
                let mut parts: Vec<&mut [u64]> = Vec::with_capacity(blocks.len());
                for block in &blocks {
                    let (part, rest) = std::mem::take(&mut sums).split_at_mut(block.tiles.len() * pair);
                    sums = rest;
                    parts.push(part);
                }
                for (group, a) in operand.chunks_exact(sizes.operand).enumerate() {
                    let meet = blocks.iter().zip(&mut parts).filter(|(block, _)| block.groups.contains(&group));
                    let mut products: Vec<Product<'_>> = meet
                        .map(|(block, sums)| Product { sums, weights: block.weights(limb, point, group, &sizes) })
                        .collect();
                    params.limbs()[limb].ntt().matmul(a, &mut products);
                }
            }
        });
        let done = blocks.into_iter().filter_map(|block| Arc::try_unwrap(block.weights).ok());
        self.spare.lock().unwrap_or_else(PoisonError::into_inner).extend(done);
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
        (0..tiles.len() * tiling.row_tiles()).into_par_iter().map(respond).collect()
    }

    /// Cuts column tiles into blocks of nearly equal size, without weights.
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
                weights: Arc::default(),
            }));
            start += alike;
        }
        blocks
    }

    /// Memory of these many words a limb, with anything in it.
    fn memory(&self, words: Vec<usize>) -> Form {
        let fits = |form: &Form| form.iter().map(|limb| limb.len()).eq(words.iter().copied());
        let used = {
            let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
            spare.iter().position(fits).map(|at| spare.swap_remove(at))
        };
        used.unwrap_or_else(|| words.into_iter().map(|words| Zeroizing::new(vec![0; words])).collect())
    }

    /// Encodes and transforms the weights of a block.
    fn weigh(&self, block: &Block) -> Form {
        let (tiling, params) = (self.tiling(), self.evaluation.params);
        let weight_bits = self.evaluation.plan.spec.weight_bits;
        let (points, span, tiles) = (tiling.points(), tiling.weight_span(), block.tiles.len());
        let terms = block.groups.len() * tiling.inner_tiles();
        let pitch = |words: usize| terms * TILES * words + GAP;
        let limbs = params.limbs();
        let mut weights = self.memory(limbs.iter().map(|l| points * pitch(l.ntt().weight_words()) + LANES).collect());
        let staged = self.evaluation.stage(&block.tiles);
        let mut signed = Zeroizing::new(vec![0; tiles * span]);
        let mut polys = Zeroizing::new(vec![0; tiles * points]);
        for term in 0..terms {
            let (group, inner_tile) = (block.groups.start + term / tiling.inner_tiles(), term % tiling.inner_tiles());
            signed.fill(0);
            self.evaluation.encode_weights(block.tiles.clone(), group, inner_tile, staged.as_ref(), &mut signed);
            for (l, out) in limbs.iter().zip(&mut weights) {
                for (signed, poly) in signed.chunks_exact(span).zip(polys.chunks_exact_mut(points)) {
                    l.factor_signed(signed, weight_bits, poly);
                }
                let words = l.ntt().weight_words();
                let start = first_line(out) + term * TILES * words;
                l.ntt().interleave(&polys, points, &mut out[start..], pitch(words));
            }
        }
        weights
    }
}
