//! The search for the cheapest layout.

use super::layout::Layout;
use super::packs::levels;
use super::spec::{MatmulSpec, Packing, PlanOptions};
use super::tiling::{Tile, even, even_pieces, padded, runs};
use super::{cost, noise};
use crate::error::HeError;
use crate::set::ParamSet;

/// The cheapest layout whose error stays within the tolerated bound. `messages` returns a layout with the form of
/// messages that is wanted (direct or seeded), or `None` if the layout cannot have that form. Errors: a specification
/// out of range, or [`HeError::Noise`].
pub(super) fn search(
    spec: &MatmulSpec,
    options: &PlanOptions,
    messages: impl Fn(Layout) -> Option<Layout>,
) -> Result<Layout, HeError> {
    spec.check()?;
    let mut best: Option<(bool, f64, Layout)> = None;
    let allowed = |layout: &Layout| options.packing != Packing::Never || !layout.packs.is_packed();
    // `for_each`, because a `for` loop would move every layout through each of the iterators.
    candidates(spec).filter(allowed).filter_map(messages).for_each(|layout| {
        // Smaller is better. A packed layout always comes first if the options ask for packing.
        let unwanted = options.packing == Packing::Always && !layout.packs.is_packed();
        let seconds = cost::seconds(&layout, options);
        let better = best.as_ref().is_none_or(|b| (unwanted, seconds) < (b.0, b.1));
        // The error bound is expensive to compute, and most layouts are not better.
        if better && is_exact(&layout, options) {
            best = Some((unwanted, seconds, layout));
        }
    });
    let refused =
        HeError::Noise { width: spec.width, weight_bits: spec.weight_bits, max_lsb_error: options.max_lsb_error };
    best.map(|(_, _, layout)| layout).ok_or(refused)
}

/// Whether the error of `layout` stays within the tolerated bound.
fn is_exact(layout: &Layout, options: &PlanOptions) -> bool {
    noise::bound(layout).floor() <= options.max_lsb_error.max(1) as f64
}

/// The layout that cuts `spec` as `like` cuts its own product. The dimensions of `spec` must be no larger than those
/// of that product. `None` if there is no such layout, `spec` is out of range, or the error would be too large.
pub(super) fn adapted(spec: &MatmulSpec, options: &PlanOptions, like: &Layout) -> Option<Layout> {
    spec.check().ok()?;
    let (shape, n, set) = (spec.shape, like.set.degree(), like.set);
    let Tile { group, rows, inner, run, .. } = like.tiling.tile;
    let rows = if group > 1 { shape.m } else { even(shape.m, rows) };
    // Packed pieces are powers of two.
    let packed = like.packs.is_packed();
    let inner = if packed { inner } else { even(shape.k, inner) };
    let slots = padded(group * rows, run);
    if group > shape.batch || slots * inner > n {
        return None;
    }
    let columns = shape.batch * shape.n;
    let cols = even(columns, (n / (slots * inner)).min(columns));
    let layout = Layout::new(spec, set, Tile { group, rows, inner, cols, run });
    let layout = if packed { layout.packed()? } else { layout };
    is_exact(&layout, options).then_some(layout)
}

/// Every layout that the search considers.
pub(super) fn candidates(spec: &MatmulSpec) -> impl Iterator<Item = Layout> {
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
                    // As many columns as fit, then evenly spread over the column tiles.
                    let cols = even(columns, (n / (slots * inner)).min(columns));
                    Layout::new(&spec, set, Tile { group, rows, inner, cols, run })
                };
                let plain = even_pieces(shape.k).filter(move |inner| slots * inner <= n).map(layout);
                // Powers of two up to the first one that is at least k.
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
    use waggle_bits::packed_bytes;

    /// Every possible tile, with its two byte counts and its work counted the slow way.
    #[test]
    fn search_finds_the_cheapest_tile() {
        let shapes = [(1, 1, 40, 30), (6, 2, 9, 11), (5, 1, 64, 8), (4, 3, 2, 50), (3, 17, 5, 1)];
        for (batch, m, k, n) in shapes {
            for (width, weight_bits) in [(64, 64), (20, 4)] {
                let spec = MatmulSpec { shape: MatmulShape { batch, m, k, n }, width, weight_bits };
                let options = PlanOptions { bytes_per_second: 1, ..PlanOptions::default() };
                let found = search(&spec, &options, Some).unwrap();
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
                            let slack = found.packs.responses();
                            for layout in packed.into_iter().chain([layout]) {
                                let cheaper = bytes(&layout) + slack < bytes(&found);
                                assert!(noise::bound(&layout) >= 9.0 || !cheaper, "{layout:?} against {found:?}");
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn adapted_layouts_are_sound_and_nearly_as_cheap_as_those_searched_for() {
        for (batch, m, d) in [(8, 128, 128), (2, 16, 64), (12, 64, 64), (1, 5, 10)] {
            for packing in [Packing::Auto, Packing::Never, Packing::Always] {
                let options = PlanOptions { packing, ..PlanOptions::default() };
                for (tokens, near) in [(2050, 2304), (3000, 3072), (4097, 4608)] {
                    let shapes = |t| [(m, d, t), (m, t, d), (t, d, m), (d, t, m)];
                    for ((m, k, n), (far_m, far_k, far_n)) in shapes(tokens).into_iter().zip(shapes(near)) {
                        let spec = |m, k, n| {
                            let shape = MatmulShape { batch, m, k, n };
                            MatmulSpec { shape, width: 44, weight_bits: 44 }
                        };
                        let like = search(&spec(far_m, far_k, far_n), &options, Some).unwrap();
                        let best = search(&spec(m, k, n), &options, Some).unwrap();
                        let adapted = adapted(&spec(m, k, n), &options, &like).expect("a layout");
                        recount(&adapted);
                        let ratio = cost::seconds(&adapted, &options) / cost::seconds(&best, &options);
                        assert!((0.999..1.1).contains(&ratio), "{ratio}: {adapted:?} for {best:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn work_is_that_of_the_ciphertexts() {
        let shape = MatmulShape { batch: 2, m: 40, k: 100, n: 70 };
        let spec = MatmulSpec { shape, width: 56, weight_bits: 20 };
        for layout in candidates(&spec) {
            let work = cost::work(&layout);
            let words = (layout.set.degree() * layout.set.primes().len()) as u64;
            let Layout { tiling, packs, .. } = &layout;
            assert_eq!((work.encrypted, work.read), (tiling.uploads() as u64 * words, work.encrypted));
            assert_eq!((work.opened, work.answered), (packs.responses() as u64 * words, work.opened));
            // A product has two halves. A response that packs several products merges all of them into one.
            let products = (tiling.weight_polys() * tiling.row_tiles()) as u64 * 2 * words;
            assert_eq!(work.products + work.run_products, products, "{layout:?}");
            assert_eq!(work.run_products > 0, tiling.tile.run > 1);
            assert_eq!(work.merged > 0, packs.is_packed());
        }
    }

    fn recount(layout: &Layout) {
        let shape = layout.spec.shape;
        let Layout { tiling, packs, .. } = layout;
        let per_group = tiling.tile.group * shape.n;
        let pairs: HashSet<_> = (0..tiling.columns()).map(|c| (c / tiling.tile.cols, c / per_group)).collect();
        assert_eq!(tiling.weight_polys(), pairs.len() * tiling.inner_tiles(), "{layout:?}");
        let responses = (0..packs.responses()).map(|r| layout.response_bytes(r));
        assert_eq!(layout.download_bytes(), responses.sum::<usize>(), "{layout:?}");
        let outputs: Vec<_> = (0..packs.responses()).flat_map(|r| layout.outputs(r)).collect();
        let distinct: HashSet<_> = outputs.iter().map(|o| o.1).collect();
        assert_eq!((outputs.len(), distinct.len()), (shape.batch * shape.m * shape.n, outputs.len()));
        assert!(outputs.iter().all(|o| o.0 < layout.set.degree()));
        for response in 0..packs.responses() {
            let positions: HashSet<_> = layout.outputs(response).map(|o| o.0).collect();
            let count = layout.outputs(response).count();
            assert_eq!(positions.len(), count);
            let bytes = layout.c1_bytes() + packed_bytes(count, &[layout.c0_bits]);
            assert_eq!(layout.response_bytes(response), bytes);
        }
    }
}
