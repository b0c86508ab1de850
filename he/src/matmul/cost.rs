//! The cost model: the time that a layout takes on the link and on the processors. It only guides the search. Both
//! parties must find the same layout, so nothing here is measured at run time.
//!
//! A plan must not depend on the machine that makes it either, so all plans use the first column of this table. The
//! other columns are the families of kernels as `cargo run --release -p waggle-bench --example he_costs -- families`
//! measures them on a shared Xeon with IFMA:
//!
//! | microseconds / 1000 | planned with | portable | AVX2 | AVX-512 | IFMA |
//! |---|---|---|---|---|---|
//! | a layer of a transform, per coefficient | 0.26 | 0.22 | 0.23 | 0.18 | 0.13 |
//! | a product with a polynomial | 0.6 | 1.5 | 0.47 | 0.42 | 0.28 |
//! | a product on runs, 32 tiles | 0.13 | 0.92 | 0.20 | 0.12 | 0.08 |
//!
//! The column of AVX2, which most machines have, is so near that plans by it would hardly be better.

use super::layout::Layout;
use super::spec::{Packing, PlanOptions};
use crate::ntt::{TILES, exact_terms};
use crate::work::MatmulWork;

/// The factor by which the time of bytes is multiplied under [`Packing::Always`], so that it counts for more.
const ALWAYS_WEIGHT: f64 = 8.0;
/// The divisor of the time of computation for seeded messages. These prepare products ahead of time, so computation
/// counts for less. With factors of 1, 1.6 and 2 at 40 cores, the matrices of a block of GPT-2 small on `lan` take
/// 17.0, 13.9 and 11.7 MB for 128 rows, and 5.6, 6.0 and 6.4 s of one core.
const AHEAD: f64 = 2.0;
/// Microseconds of one core of a 2.5 GHz Cascade Lake, per limb and coefficient (`bench/examples/he_costs.rs`): of a
/// transform layer (`NTT_US`; reading and writing weights counts as `WEIGHT_LAYERS` more), of placing a weight
/// (`ENCODE_US`), of a product with a polynomial (`MAC_US`), of a merge apart from transforms and products
/// (`MERGE_US`), of making and reading an upload (`UPLOAD_US`), of finishing and opening a response (`RESPONSE_US`).
const NTT_US: f64 = 2.6e-4;
const WEIGHT_LAYERS: f64 = 2.0;
const ENCODE_US: f64 = 1.0e-3;
const MAC_US: f64 = 0.6e-3;
const MERGE_US: f64 = 10e-3;
/// Microseconds of one core, as above, for products whose weights act on runs of rows: of bringing a weight into
/// place (`PLACE_US`), of a product (`RUN_MAC_US`), of reading a coefficient for up to [`TILES`] products
/// (`RUN_LOAD_US`), of a reduction (`RUN_REDUCE_US`).
const PLACE_US: f64 = 15e-3;
const RUN_MAC_US: f64 = 0.13e-3;
const RUN_LOAD_US: f64 = 0.22e-3;
const RUN_REDUCE_US: f64 = 1.8e-3;
const UPLOAD_US: f64 = 25e-3;
/// Microseconds of one core, as above, of splitting a value into a random entry and its correction.
const SPLIT_US: f64 = 10e-3;
const RESPONSE_US: f64 = 30e-3;

/// Seconds of the whole product: both messages at the link's rate, and the computation.
pub(super) fn seconds(layout: &Layout, options: &PlanOptions) -> f64 {
    let bytes = layout.upload_bytes() as f64 + download_estimate(layout);
    let ahead = if layout.seeded.is_some() { AHEAD } else { 1.0 };
    let weight = if options.packing == Packing::Always { ALWAYS_WEIGHT } else { 1.0 };
    let [encryptor, evaluator] = options.cores.map(|cores| f64::from(cores.max(1)));
    let [encrypting, evaluating] = compute_us(layout);
    // The sum is in units of the evaluator's cores, so that two equal parties are treated exactly as one.
    let computing = (encrypting * (evaluator / encryptor) + evaluating) * 1e-6 / (evaluator * ahead);
    weight * bytes / options.bytes_per_second.max(1) as f64 + computing
}

/// Bytes of the download, if responses were not rounded up to whole bytes.
fn download_estimate(layout: &Layout) -> f64 {
    if layout.seeded.is_some() {
        return layout.download_bytes() as f64;
    }
    let c0 = (layout.tiling.columns() * layout.spec.shape.m) as f64 * f64::from(layout.c0_bits) / 8.0;
    (layout.packs.responses() * layout.c1_bytes()) as f64 + c0
}

/// Microseconds of one core for the whole product, at the encrypting and at the evaluating party.
fn compute_us(layout: &Layout) -> [f64; 2] {
    let (tiling, packs) = (&layout.tiling, &layout.packs);
    let (n, points) = (layout.set.degree() as f64, tiling.points() as f64);
    let limbs = layout.set.primes().len() as f64;
    let transform = n * n.log2() * NTT_US;
    let polys = tiling.weight_polys();
    let products = polys * tiling.row_tiles();
    let span = tiling.weight_span() as f64;
    let (weights, product) = if tiling.tile.run == 1 {
        (0.0, MAC_US)
    } else {
        let shared = tiling.column_tiles().min(TILES) as f64;
        let terms = tiling.inner_tiles().min(exact_terms(layout.set.primes()[0])) as f64;
        (points * PLACE_US, RUN_MAC_US + RUN_LOAD_US / shared + RUN_REDUCE_US / terms)
    };
    // A correction is a coefficient, which the evaluator transforms.
    let (read_transforms, upload) =
        if layout.seeded.is_some() { (2.0, UPLOAD_US + SPLIT_US) } else { (1.0, UPLOAD_US) };
    let merge = 2.0 * limbs * (1.0 + limbs) * transform + limbs * n * (MERGE_US + 4.0 * limbs * MAC_US);
    let (uploads, responses) = (tiling.uploads() as f64, packs.responses() as f64);
    let encrypting = uploads * (transform + n * upload) + responses * (2.0 * transform + n * RESPONSE_US / 2.0);
    let evaluating = polys as f64 * (points * (span.log2() + WEIGHT_LAYERS) * NTT_US + span * ENCODE_US + weights)
        + products as f64 * 2.0 * n * product
        + uploads * read_transforms * transform
        + responses * (3.0 * transform + n * RESPONSE_US / 2.0);
    [limbs * encrypting, limbs * evaluating + packs.merges() as f64 * merge]
}

/// Counts the work of both parties on a product with this layout.
pub(super) fn work(layout: &Layout) -> MatmulWork {
    let (tiling, packs) = (&layout.tiling, &layout.packs);
    let (n, points, span) = (layout.set.degree(), tiling.points(), tiling.weight_span());
    let limbs = layout.set.primes().len();
    let polys = tiling.weight_polys() * limbs;
    let products = polys * tiling.row_tiles() * 2 * n;
    let runs = tiling.tile.run > 1;
    let ciphertexts = |count: usize| (count * limbs * n) as u64;
    MatmulWork {
        encrypted: ciphertexts(tiling.uploads()),
        opened: ciphertexts(packs.responses()),
        read: ciphertexts(tiling.uploads()),
        transformed: (polys * points) as u64 * u64::from(span.next_power_of_two().ilog2() + WEIGHT_LAYERS as u32),
        encoded: (polys * span) as u64,
        placed: if runs { (polys * points) as u64 } else { 0 },
        products: if runs { 0 } else { products as u64 },
        run_products: if runs { products as u64 } else { 0 },
        answered: ciphertexts(packs.responses()),
        merged: ciphertexts(packs.merges() * (1 + limbs)),
    }
}
