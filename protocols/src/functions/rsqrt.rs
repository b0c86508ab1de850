//! sqrt(n) / sqrt(q) for a sum q of n squares: the inverse of a root mean square.
//!
//! This works as in [`reciprocal`](super::reciprocal), with powers of four. The smallest q is n eps. Let 2^b be the
//! largest power of two that does not exceed n eps. Let 4^k <= q / 2^b < 4^(k+1) and g_j = [q / 2^b >= 4^j]. Then
//!
//! C = q 4^(J-k) = 4^J q - sum_j 3 4^(J-j) g_j q
//!
//! lies in [1, 4) 2^(b + 2J). A cubic spline gives y = sqrt(n) / sqrt(C), with the units of q folded in, and the
//! result is y 2^-k. Comparisons look at three bits below 2^b, so C may exceed its interval by a thirty-second; the
//! table has room for [0.875, 4.75).
//!
//! Where functions are evaluated on masked inputs and flows cost more than the work, q itself is looked up by a
//! [`ladder`](crate::ops::fss::ladder), whose tables cover six octaves each.
//!
//! **Range.** q in [n eps, 2^26) -> [sqrt(n) 2^-13, eps^(-1/2)]. **Error.** Relative, at most [`MAX_RSQRT_ERROR`]
//! plus one unit in the last place of the result, 2^-[`RSQRT_FRAC`]; by a ladder [`MAX_LADDER_ERROR`] and two units.
//! **Revealed.** Nothing. *Cost.* One comparison, two multiplexers by the same bits, one evaluation and one
//! truncation, on one word per row; or one evaluation.

use crate::abb::Abb;
use crate::functions::fit::{Grids, kept};
use crate::functions::grid::{Grid, Pieces, Scale};
use crate::functions::reciprocal::Octaves;
use crate::functions::ring_for;
use crate::ops::fss::ladder::{Ladder, LadderSpec};
use crate::ops::{Evaluate, Function, Truncation};
use crate::words::{Words, mask};
use crate::{Error, Evaluation, FRAC, Tensor};

/// Largest relative error before the result is rounded to its last place.
pub const MAX_RSQRT_ERROR: f64 = 2e-5;

/// Largest relative error by a ladder, to which two units in the last place are added.
pub const MAX_LADDER_ERROR: f64 = 4e-5;

/// Fractional bits of the result.
pub const RSQRT_FRAC: u32 = 24;

/// Fractional bits of q.
pub const SQUARE_FRAC: u32 = 2 * FRAC;

/// Bits of q: q < 2^(SQUARE_BITS - SQUARE_FRAC) = 2^26.
pub const SQUARE_BITS: u32 = 62;

/// Smallest q, in units of its last place. For a smaller one the result would not fit its ring.
pub const MIN_SQUARES: u64 = 1 << 18;

/// Most squares in a sum. For more, sqrt(n) would not leave room in the table's ring.
pub const MAX_NORM_ENTRIES: usize = 1 << 16;

const TABLE_FRAC: u32 = 20;
/// The argument at which the table begins.
const BASE: f64 = 0.875;
/// The table of the inverse root. For look-up, it has 32 cubic windows of width 1/8; for FSS keys, 1024 lines over
/// windows of width 1/256.
const GRIDS: Grids = Grids {
    lookup: Grid {
        index_bits: 5,
        low_bits: TABLE_FRAC - 3,
        pieces: Pieces::Powers { degree: 3, power_bits: [14, 12, 0, 0] },
    },
    masked: Grid { index_bits: 10, low_bits: TABLE_FRAC - 8, pieces: Pieces::Lines },
};
/// Bits below the bit of the lowest threshold at which comparisons look.
const COMPARED_BITS: u32 = 5;

/// log2 of the windows of a rung, and the octaves that it serves, if a ladder evaluates q directly.
const LADDER: [u32; 2] = [13, 6];
/// Bits of a rung's input below its window.
const LADDER_LOW_BITS: u32 = 10;
/// Flows that a ladder saves compared with a table of the normalised sum.
const LADDER_SAVES: u32 = 6;

/// n eps in units of q, at least [`MIN_SQUARES`].
pub(crate) fn smallest_square(n: usize, eps: f32) -> u64 {
    let units = n as f64 * f64::from(eps) * (1u64 << SQUARE_FRAC) as f64;
    (units.round() as u64).max(MIN_SQUARES)
}

/// sqrt(n) / sqrt(q) for each of (rows) sums q of `n` squares, at [`RSQRT_FRAC`] fractional bits modulo 2^`width`. q
/// has [`SQUARE_FRAC`] fractional bits, and in units of its last place `smallest` <= q < 2^[`SQUARE_BITS`].
///
/// # Errors
/// A `smallest` of 2^([`SQUARE_BITS`] - 2) or more, and more than [`MAX_NORM_ENTRIES`] squares.
pub(crate) fn rsqrt<B: Abb>(b: &mut B, q: &B::Words, n: usize, smallest: u64, width: u32) -> Result<B::Words, Error> {
    debug_assert!(smallest >= MIN_SQUARES, "smallest sum of squares {smallest}");
    let limit = SQUARE_BITS - 2;
    if smallest >> limit > 0 {
        return Err(Error::Width { operation: "a norm with this epsilon", limit, got: smallest.ilog2() + 1 });
    }
    if n > MAX_NORM_ENTRIES {
        return Err(Error::TooMany { operation: "a norm", limit: MAX_NORM_ENTRIES, got: n });
    }
    b.scope("rsqrt", |b| {
        b.expect_below(q, 1 << SQUARE_BITS, 2 * FRAC)?;
        if b.evaluation() == Evaluation::Masked {
            let ladder = kept("rsqrt ladder", Evaluation::Masked, &[n as u64, smallest, width.into()], || {
                ladder(n, smallest, width)
            });
            if b.options().flows_cost_more(LADDER_SAVES, q.len() as u64 * ladder.leaves()) {
                return b.apply(Evaluate { function: &ladder }, q);
            }
        }
        let floor = smallest.ilog2();
        let steps = (SQUARE_BITS - floor).div_ceil(2) - 1;
        let dropped = floor + 2 - COMPARED_BITS;
        let coarse = q.drop_low(dropped, 64);
        let thresholds: Vec<i64> = (1..=steps).map(|j| 1i64 << (floor + 2 * j - dropped)).collect();
        let reached = Octaves::of(b, &coarse, &thresholds, 64 - dropped)?;

        // q = C 4^(k - J) units of 2^-SQUARE_FRAC, and C = c 2^(floor + 2J): q = c 2^(floor + 2k - SQUARE_FRAC).
        let unit = (n as f64).sqrt() * libm::exp2(0.5 * (f64::from(SQUARE_FRAC) - f64::from(floor)));
        let out_frac = ((f64::from(GRIDS.lookup.low_bits + 20) - unit.log2()).floor() as u32).max(RSQRT_FRAC);
        let out_width = ring_for(unit * BASE.powf(-0.5) * f64::from(steps).exp2(), out_frac);
        let evaluation = b.evaluation();
        let function = kept("rsqrt", evaluation, &[unit.to_bits(), out_frac.into(), out_width.into()], || {
            let scale = Scale { base: BASE, step: 1.0 / (1u64 << TABLE_FRAC) as f64, out_frac, out_width };
            GRIDS.choose(evaluation).fit(scale, |c| unit / c.sqrt())
        });
        let y = reached.apply(b, q, 2, 64, out_width, |b, c| {
            // C < 2^63: at most SQUARE_BITS + 1 bits for its top octave.
            let have = floor + 2 * steps;
            let c = c.drop_low(have - TABLE_FRAC, 64);
            let origin = (BASE * (1u64 << TABLE_FRAC) as f64) as u64;
            let c = b.add_public(&c, origin.wrapping_neg());
            b.apply(Evaluate { function: &function }, &c)
        })?;
        b.apply(Truncation { width: out_width, shift: steps + out_frac - RSQRT_FRAC, out: 64 }, &y)
    })
}

/// The function sqrt(n) / sqrt(q) as a ladder that takes q itself.
fn ladder(n: usize, smallest: u64, width: u32) -> Function {
    let [index_bits, octaves] = LADDER;
    let range = [smallest, mask(SQUARE_BITS)];
    let low_bits = LADDER_LOW_BITS;
    let spec =
        LadderSpec { index_bits, low_bits, octaves, range, in_width: 64, out_frac: RSQRT_FRAC, out_width: width };
    let unit = (n as f64).sqrt() * libm::exp2(0.5 * f64::from(SQUARE_FRAC));
    Function::ladder(Ladder::fit(spec, |q| unit / q.sqrt()), RSQRT_FRAC)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Clear;
    use ndarray::ArrayD;

    #[test]
    fn an_epsilon_beyond_the_ring_is_refused() {
        let q = ArrayD::zeros(ndarray::IxDyn(&[1]));
        for eps in [1e9, f32::MAX, f32::INFINITY] {
            let refused = rsqrt(&mut Clear::new(), &q, 768, smallest_square(768, eps), 49);
            assert!(matches!(refused, Err(Error::Width { limit: 60, got: 61.., .. })), "{eps}: {refused:?}");
        }
    }

    #[test]
    fn error_over_the_whole_range() {
        let mut worst = [0f64; 2];
        let sums = [(1usize, 1e-5f32), (4, 1e-6), (768, 1e-5), (768, 1e-12), (1000, 0.3), (4096, 1e-6), (64, 0.0)];
        let methods = [Evaluation::Lookup, Evaluation::Masked];
        for ((n, eps), evaluate) in sums.into_iter().flat_map(|sum| methods.map(|method| (sum, method))) {
            let smallest = smallest_square(n, eps);
            let ratio = (1u64 << SQUARE_BITS) as f64 / smallest as f64;
            let mut q: Vec<u64> =
                (0..40_000).map(|i| (smallest as f64 * ratio.powf(f64::from(i) / 40_000.0)) as u64 + 1).collect();
            q.extend((smallest.ilog2() + 1..SQUARE_BITS).flat_map(|j| [1 << j, (1 << j) - 1, (1 << j) + 1]));
            q.push(smallest);
            q.push((1 << SQUARE_BITS) - 1);
            // Few rows go through a ladder, many through normalisation.
            for (way, rows) in [(0, q.len()), (usize::from(evaluate == Evaluation::Masked), 20)] {
                for some in q.chunks(rows) {
                    let words = ArrayD::from_shape_vec(ndarray::IxDyn(&[some.len()]), some.to_vec()).unwrap();
                    let got = rsqrt(&mut Clear::evaluating(evaluate), &words, n, smallest, 52).unwrap();
                    for (q, got) in some.iter().zip(&got) {
                        let want = (n as f64 / (*q as f64 / (1u64 << SQUARE_FRAC) as f64)).sqrt();
                        let unit = 1.0 / (1u64 << RSQRT_FRAC) as f64;
                        let rounding = unit * (1 + way) as f64;
                        worst[way] = worst[way].max(((*got as f64 * unit - want).abs() - rounding) / want);
                    }
                }
            }
        }
        println!("rsqrt: {:.2e}, by a ladder {:.2e}", worst[0], worst[1]);
        assert!(worst[0] < MAX_RSQRT_ERROR && worst[1] < MAX_LADDER_ERROR, "{worst:?}");
    }
}
