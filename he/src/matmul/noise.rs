//! The bound on the error of a product; [`ProductPlan::lsb_error`](super::ProductPlan::lsb_error) states it.

use super::cells::Cells;
use super::layout::Layout;
use crate::galois::switch_variance;
use crate::sampling::ERROR_VARIANCE;

/// Number of standard deviations that a tail bound covers: `2 exp(-8.5^2 / 2) < 2^-51`.
const TAIL: f64 = 8.5;

/// Bits of a weight, and the number of weights that one output coefficient depends on.
fn weights(layout: &Layout) -> (u32, f64) {
    let spec = &layout.spec;
    // Ring elements are centred, which halves their size.
    let weight_bits = if spec.weight_bits == spec.width { spec.width - 1 } else { spec.weight_bits };
    (weight_bits, (layout.tiling.tile.cols * spec.shape.k) as f64)
}

/// The layout with seeded messages, or `None` if its ring has no room for them.
pub(super) fn seeded(layout: Layout) -> Option<Layout> {
    let (weight_bits, nonzero) = weights(&layout);
    let per_unit = TAIL * (nonzero / 12.0).sqrt() * f64::from(weight_bits).exp2();
    Cells::of(layout.set, layout.spec.width, per_unit).map(|cells| Layout { seeded: Some(cells), ..layout })
}

/// The bound in LSB as a real number: [`ProductPlan::lsb_error`](super::ProductPlan::lsb_error) without the final
/// floor.
pub(super) fn bound(layout: &Layout) -> f64 {
    let (spec, n) = (&layout.spec, layout.set.degree() as f64);
    let log_q: f64 = layout.set.primes().iter().map(|&p| (p as f64).log2()).sum();
    let (weight_bits, nonzero) = weights(layout);
    // Bits of errors that come before the rounding, relative to q.
    let cells = layout.seeded.map_or(0.0, |cells| cells.variance());
    let product = (ERROR_VARIANCE + 1.0 + cells) * nonzero * f64::from(2 * weight_bits).exp2();
    // The error of each merge on the way is doubled by every later one: a geometric sum of variances.
    let levels = layout.packs.levels();
    let merges = switch_variance(layout.set) * (f64::from(2 * (levels.columns + levels.rows)).exp2() - 1.0) / 3.0;
    let early = TAIL * (product + merges + ERROR_VARIANCE * (1.0 + 2.0 * n)).sqrt() + n;
    let width = f64::from(spec.width);
    // Seeded responses have a c0 of full precision.
    let c0 = if layout.seeded.is_some() { 0.0 } else { (width - f64::from(layout.c0_bits) - 1.0).exp2() };
    let switch = TAIL * (n / 16.0).sqrt() * (width - f64::from(layout.c1_bits)).exp2() + c0;
    1.0 + early * (width - log_q).exp2() + switch
}
