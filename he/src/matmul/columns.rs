//! Products tile by tile, merged into packs as they are made. This way serves few rows: `Tile::run` is 1.

use super::cache;
use super::layout::Layout;
use super::response::Evaluation;
use super::weights::Staged;
use crate::ciphertext::{Ciphertext, Split};
use rayon::prelude::*;
use std::cell::OnceCell;
use std::ops::Range;
use zeroize::Zeroizing;

/// Weight polynomials that one column tile holds at a time.
const TERMS: usize = 4;
/// Columns that are read together where a single tile has fewer columns. A cache line holds this number of weights.
const STRIP: usize = 16;

/// The responses of some packs of columns. The uploads must be factors.
pub(super) fn responses(evaluation: &Evaluation<'_>, uploads: &[Ciphertext], packs: Range<usize>) -> Vec<Split> {
    let columns = Columns { evaluation, uploads };
    packs.into_par_iter().flat_map(|pack| columns.column_pack(pack)).collect()
}

struct Columns<'a> {
    evaluation: &'a Evaluation<'a>,
    uploads: &'a [Ciphertext],
}

impl Columns<'_> {
    fn layout(&self) -> &Layout {
        &self.evaluation.plan.layout
    }

    /// All responses of one pack of column tiles. They are ordered by row packs.
    fn column_pack(&self, pack: usize) -> Vec<Split> {
        let (packs, steps) = (&self.layout().packs, self.layout().packs.steps());
        let mut products = self.columns(packs.column_pack(pack), steps.columns).into_iter();
        let packs: Vec<Vec<Ciphertext>> =
            (0..packs.row_packs()).map(|_| products.by_ref().take(packs.rows).collect()).collect();
        let first = pack * packs.len();
        let respond = |(i, rows)| self.evaluation.respond(first + i, self.rows(rows, steps.rows));
        packs.into_par_iter().enumerate().map(respond).collect()
    }

    /// Products of all row tiles with the column tiles `columns`, packed into one ciphertext per row tile. The tree
    /// is that of the module `packs`; its leaves are made when they are needed, a few at a time.
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

    /// Packs `tiles`, the products of all row tiles with some column tiles, into one ciphertext per row tile.
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

    /// Doubles `leaves` once for each level of merges that they skip: one level for each doubling from `step` to
    /// `full`.
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

    /// The products of all row tiles with neighbouring column tiles that meet the same groups of batch items, column
    /// tile by column tile. Each weight polynomial is made once. It is dropped after use unless there is a cache.
    fn column_tiles(&self, tiles: Range<usize>) -> Vec<Vec<Ciphertext>> {
        let Evaluation { plan, params, cached, .. } = *self.evaluation;
        let tiling = &plan.layout.tiling;
        let row = || (0..tiling.row_tiles()).map(|_| Ciphertext::zero(params)).collect();
        let mut sums: Vec<Vec<Ciphertext>> = tiles.clone().map(|_| row()).collect();
        let meetings: Vec<(usize, usize)> = tiling
            .meetings(tiles.start)
            .flat_map(|group| (0..tiling.inner_tiles()).map(move |inner_tile| (group, inner_tile)))
            .collect();
        // The columns are read only if some weights are not in the cache.
        let staged = OnceCell::new();
        let staged = || staged.get_or_init(|| self.evaluation.stage(&tiles, 0..plan.spec.shape.k)).as_ref();
        let mut signed = Zeroizing::new(vec![0i64; TERMS * tiles.len() * tiling.weight_span()]);
        let mut polys = Zeroizing::new(vec![0; TERMS * params.words()]);
        for (chunk, meetings) in meetings.chunks(TERMS).enumerate() {
            let kept = cached.map(|_| {
                cache::form(cached, &plan.layout, (tiles.clone(), chunk), || {
                    self.encode(&tiles, meetings, staged(), &mut signed);
                    let polys = |tile| {
                        let mut polys = Zeroizing::new(vec![0; meetings.len() * params.words()]);
                        self.factors(&signed, tiles.len(), tile, &mut polys);
                        polys
                    };
                    (0..tiles.len()).map(polys).collect()
                })
            });
            if kept.is_none() {
                self.encode(&tiles, meetings, staged(), &mut signed);
            }
            for (tile, sums) in sums.iter_mut().enumerate() {
                match &kept {
                    Some(form) => self.add_products(meetings, &form[tile], sums),
                    None => {
                        let polys = &mut polys[..meetings.len() * params.words()];
                        self.factors(&signed, tiles.len(), tile, polys);
                        self.add_products(meetings, polys, sums);
                    }
                }
            }
        }
        sums
    }

    /// Writes the coefficients of the weights that belong to `meetings`, which are pairs of a group and an inner
    /// tile. The outermost index first: meeting, tile.
    fn encode(&self, tiles: &Range<usize>, meetings: &[(usize, usize)], staged: Option<&Staged>, signed: &mut [i64]) {
        signed.fill(0);
        let each = tiles.len() * self.layout().tiling.weight_span();
        for (&(group, inner_tile), signed) in meetings.iter().zip(signed.chunks_exact_mut(each)) {
            self.evaluation.encode_weights(tiles.clone(), group, inner_tile, staged, false, signed);
        }
    }

    /// Transforms what [`Self::encode`] wrote for one of `tiles` tiles into factors.
    fn factors(&self, signed: &[i64], tiles: usize, tile: usize, polys: &mut [u64]) {
        let Evaluation { plan, params, .. } = self.evaluation;
        let of_tile = signed.chunks_exact(plan.layout.tiling.weight_span()).skip(tile).step_by(tiles);
        for (signed, poly) in of_tile.zip(polys.chunks_exact_mut(params.words())) {
            params.factor_signed(signed, plan.spec.weight_bits, poly);
        }
    }

    /// Adds the products of the uploads of `meetings` with their weights to `sums`, one ciphertext for each row tile.
    fn add_products(&self, meetings: &[(usize, usize)], polys: &[u64], sums: &mut [Ciphertext]) {
        let (tiling, params) = (&self.layout().tiling, self.evaluation.params);
        let factors: Vec<&[u64]> = polys.chunks_exact(params.words()).collect();
        for (row_tile, sum) in sums.iter_mut().enumerate() {
            let upload = |&(group, inner_tile)| &self.uploads[tiling.upload_index(group, row_tile, inner_tile)];
            let halves: (Vec<&[u64]>, Vec<&[u64]>) =
                meetings.iter().map(|m| (upload(m).c0.as_slice(), upload(m).c1.as_slice())).unzip();
            params.dot(&mut sum.c0, &halves.0, &factors);
            params.dot(&mut sum.c1, &halves.1, &factors);
        }
    }
}
