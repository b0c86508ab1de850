//! Products tile by tile, merged into packs as they are made. The way of few rows (`Tile::run` is 1).

use super::layout::Layout;
use super::response::{Evaluation, Response};
use crate::ciphertext::Ciphertext;
use rayon::prelude::*;
use std::ops::Range;
use zeroize::Zeroizing;

/// Weight polynomials that one column tile holds at a time.
const TERMS: usize = 8;
/// Coefficients that are multiplied at a time: a slice of `TERMS` uploads stays in the first-level cache.
const SLICE: usize = 256;
/// Columns that are read together where a tile has fewer: those of a cache line of weights.
const STRIP: usize = 16;

/// All responses; the uploads are factors.
pub(super) fn responses(evaluation: &Evaluation<'_>, uploads: &[Ciphertext]) -> Vec<Response> {
    let columns = Columns { evaluation, uploads };
    let packs = columns.layout().packs.column_packs();
    (0..packs).into_par_iter().flat_map(|pack| columns.column_pack(pack)).collect()
}

struct Columns<'a> {
    evaluation: &'a Evaluation<'a>,
    uploads: &'a [Ciphertext],
}

impl Columns<'_> {
    fn layout(&self) -> &Layout {
        &self.evaluation.plan.layout
    }

    /// All responses of one pack of column tiles, row pack by row pack.
    fn column_pack(&self, pack: usize) -> Vec<Response> {
        let (packs, steps) = (&self.layout().packs, self.layout().packs.steps());
        let mut products = self.columns(packs.column_pack(pack), steps.columns).into_iter();
        let packs: Vec<Vec<Ciphertext>> =
            (0..packs.row_packs()).map(|_| products.by_ref().take(packs.rows).collect()).collect();
        let first = pack * packs.len();
        let respond = |(i, rows)| self.evaluation.respond(first + i, self.rows(rows, steps.rows));
        packs.into_par_iter().enumerate().map(respond).collect()
    }

    /// Products of all row tiles with `columns`, packed into one ciphertext per row tile. The tree is that of the
    /// module `packs`; its leaves are made when they are needed, a few at a time.
    fn columns(&self, columns: Range<usize>, step: usize) -> Vec<Ciphertext> {
        let tiling = &self.layout().tiling;
        let alike = tiling.meetings(columns.start) == tiling.meetings(columns.end - 1);
        if columns.len() == 1 || alike && columns.len() * tiling.tile.cols <= STRIP {
            return self.join(self.column_tiles(columns), step);
        }
        let middle = columns.start + columns.len().div_ceil(2);
        let (even, odd) = rayon::join(
            || self.columns(columns.start..middle, 2 * step),
            || self.columns(middle..columns.end, 2 * step),
        );
        even.into_par_iter().zip(odd).map(|(even, odd)| self.merge(step, even, odd)).collect()
    }

    /// The same from the products of some tiles.
    fn join(&self, mut tiles: Vec<Vec<Ciphertext>>, step: usize) -> Vec<Ciphertext> {
        if tiles.len() == 1 {
            let mut products = tiles.swap_remove(0);
            self.double(&mut products, step, self.layout().tiling.tile.inner);
            return products;
        }
        let odd = tiles.split_off(tiles.len().div_ceil(2));
        let (even, odd) = (self.join(tiles, 2 * step), self.join(odd, 2 * step));
        even.into_iter().zip(odd).map(|(even, odd)| self.merge(step, even, odd)).collect()
    }

    /// The row tiles of one response, packed into one ciphertext.
    fn rows(&self, mut rows: Vec<Ciphertext>, step: usize) -> Ciphertext {
        if rows.len() == 1 {
            self.double(&mut rows, step, self.layout().packs.steps().columns);
            return rows.swap_remove(0);
        }
        let odd = rows.split_off(rows.len().div_ceil(2));
        let (even, odd) = rayon::join(|| self.rows(rows, 2 * step), || self.rows(odd, 2 * step));
        self.merge(step, even, odd)
    }

    /// Makes up for the merges of a leaf that ends at `step` instead of at `full`.
    fn double(&self, leaves: &mut [Ciphertext], step: usize, full: usize) {
        if step < full && self.layout().packs.is_packed() {
            let doublings = (full / step).trailing_zeros() as i32;
            leaves.iter_mut().for_each(|leaf| leaf.shift(self.evaluation.params, doublings));
        }
    }

    fn merge(&self, step: usize, even: Ciphertext, odd: Ciphertext) -> Ciphertext {
        let galois = self.evaluation.galois.expect("a plan that packs was given Galois keys");
        galois.merge(step, even, odd)
    }

    /// The products of all row tiles with neighbouring column tiles that meet the same groups, tile by tile. Each
    /// weight polynomial is made once and dropped.
    fn column_tiles(&self, tiles: Range<usize>) -> Vec<Vec<Ciphertext>> {
        let Evaluation { plan, params, .. } = self.evaluation;
        let (tiling, n) = (&plan.layout.tiling, params.degree());
        let span = tiling.weight_span();
        let row = || (0..tiling.row_tiles()).map(|_| Ciphertext::zero(params)).collect();
        let mut sums: Vec<Vec<Ciphertext>> = tiles.clone().map(|_| row()).collect();
        let meetings: Vec<(usize, usize)> = tiling
            .meetings(tiles.start)
            .flat_map(|group| (0..tiling.inner_tiles()).map(move |inner_tile| (group, inner_tile)))
            .collect();
        let terms = meetings.len().min(TERMS);
        let mut signed = Zeroizing::new(vec![0i64; terms * tiles.len() * span]);
        let mut polys = Zeroizing::new(vec![0; terms * tiles.len() * n]);
        for meetings in meetings.chunks(TERMS) {
            signed.fill(0);
            for (&(group, inner_tile), signed) in meetings.iter().zip(signed.chunks_exact_mut(tiles.len() * span)) {
                self.evaluation.encode_weights(tiles.clone(), group, inner_tile, signed);
            }
            for (limb, l) in params.limbs().iter().enumerate() {
                let given = signed.chunks_exact(span).take(meetings.len() * tiles.len());
                for (signed, poly) in given.zip(polys.chunks_exact_mut(n)) {
                    l.factor_signed(signed, plan.spec.weight_bits, poly);
                }
                self.add_products(limb, meetings, &polys, &mut sums);
            }
        }
        sums
    }

    /// Adds the products of the uploads of `meetings` with their weights, `polys`, modulo one prime. Slice by slice:
    /// those of the uploads serve all column tiles while they are near, and those of the weights all rows.
    fn add_products(&self, limb: usize, meetings: &[(usize, usize)], polys: &[u64], sums: &mut [Vec<Ciphertext>]) {
        let (tiling, params) = (&self.layout().tiling, self.evaluation.params);
        let (n, ntt, tiles) = (params.degree(), params.limbs()[limb].ntt(), sums.len());
        for start in (0..n).step_by(SLICE) {
            for row_tile in 0..tiling.row_tiles() {
                let at = limb * n + start;
                let mut halves: [[&[u64]; TERMS]; 2] = [[&[]; TERMS]; 2];
                for (j, &(group, inner_tile)) in meetings.iter().enumerate() {
                    let upload = &self.uploads[tiling.upload_index(group, row_tile, inner_tile)];
                    halves[0][j] = &upload.c0[at..at + SLICE];
                    halves[1][j] = &upload.c1[at..at + SLICE];
                }
                for (tile, sums) in sums.iter_mut().enumerate() {
                    let mut weights: [&[u64]; TERMS] = [&[]; TERMS];
                    for (j, weights) in weights[..meetings.len()].iter_mut().enumerate() {
                        *weights = &polys[(j * tiles + tile) * n + start..][..SLICE];
                    }
                    let (weights, sum) = (&weights[..meetings.len()], &mut sums[row_tile]);
                    ntt.dot(&mut sum.c0[at..at + SLICE], &halves[0][..meetings.len()], weights);
                    ntt.dot(&mut sum.c1[at..at + SLICE], &halves[1][..meetings.len()], weights);
                }
            }
        }
    }
}
