//! 1 / S for a positive S of known size, such as the sum of a softmax.
//!
//! Let 2^k <= S < 2^(k+1) and g_j = [S >= 2^j] for j = 1..J. Then
//!
//! C = 2^J S - sum_j 2^(J-j) g_j S
//!
//! is S 2^(J-k), because 2^J - 2^(J-1) - ... - 2^(J-k) = 2^(J-k). It lies in [1, 2) 2^J and is linear in the words
//! g_j S, which take one multiplexer for all j. A cubic spline gives y = 2^J / C, and the same sum of the words g_j y
//! gives 1 / S = y 2^-k. The choices of both multiplexers are sent together. Comparisons look at [`COMPARED_FRAC`]
//! fractional bits, so C / 2^J may exceed 2 by 1/32; the table has room for [0.875, 2.8).
//!
//! Where functions are evaluated on masked inputs and flows cost more than the work, S itself is looked up by a
//! [`ladder`](crate::ops::fss::ladder), whose tables cover four octaves each.
//!
//! **Range.** S in [0.9, 1.7 n] for a public n up to [`MAX_RECIPROCAL_TERMS`] -> [0.58 / n, 1.12]. **Error.**
//! Relative, at most [`MAX_RECIPROCAL_ERROR`], or [`MAX_LADDER_ERROR`] by a ladder, plus one unit in the last place
//! of the result. **Revealed.** Nothing. *Cost.* One comparison, two multiplexers, one evaluation and one truncation,
//! on one word per row; or one evaluation.
//!
//! With J = log2 n, C takes J + FRAC + 3 bits and y 2^J takes J + 39 bits, which is 56 bits for n = 2^17. The table
//! sees C / 2^J alone.

use crate::abb::Abb;
use crate::functions::fit::{Grids, kept};
use crate::functions::grid::{Grid, Pieces, Scale};
use crate::functions::ring_for;
use crate::ops::fss::ladder::{Ladder, LadderSpec};
use crate::ops::{AtLeast, Choose, Evaluate, Function, Select, Selector, Truncation};
use crate::words::{Words, mask};
use crate::{Error, Evaluation, FRAC, Tensor};

/// Largest relative error before the result is rounded to its last place.
pub const MAX_RECIPROCAL_ERROR: f64 = 1e-5;

/// Largest relative error by a ladder, before the result is rounded to its last place.
pub const MAX_LADDER_ERROR: f64 = 2.5e-5;

/// Most terms that S may be the sum of: y 2^J takes the whole ring of 64 bits.
pub const MAX_RECIPROCAL_TERMS: usize = 1 << 25;

/// The most terms for which a ladder is made.
const MAX_LADDER_TERMS: usize = 1 << 17;

/// S lies in [START, END n], where n bounds the number of terms of S.
const START: f64 = 0.9;
const END: f64 = 1.7;

/// Fractional bits of S that the comparisons look at.
pub const COMPARED_FRAC: u32 = 6;

/// Fractional bits of the table's input.
const TABLE_FRAC: u32 = 20;
/// The table of 1 / x. For look-up, it has 32 cubic windows of width 1/16; for FSS keys, 1024 lines over windows of
/// width 1/512.
const GRIDS: Grids = Grids {
    lookup: Grid {
        index_bits: 5,
        low_bits: TABLE_FRAC - 4,
        pieces: Pieces::Powers { degree: 3, power_bits: [14, 12, 0, 0] },
    },
    masked: Grid { index_bits: 10, low_bits: TABLE_FRAC - 9, pieces: Pieces::Lines },
};
/// The argument at which the table begins: two windows of a spline below 1.
const BASE: f64 = 0.875;
/// Largest value of the table.
const TOP: f64 = 1.0 / BASE;

/// log2 of the windows of a rung, and the octaves that it serves, if a ladder evaluates S directly.
const LADDER: [u32; 2] = [12, 4];
/// Bits of a rung's input below its window: rung 0 begins in window 230.
const LADDER_LOW_BITS: u32 = 10;
/// Flows that a ladder saves compared with a table of the normalised sum.
const LADDER_SAVES: u32 = 5;

/// 1 / S for each of (rows) sums S, at `frac` fractional bits modulo 2^`width`. S has FRAC fractional bits and is
/// modulo 2^`width`, with `width` >= log2(n) + FRAC + 3 for sums of up to n terms.
pub(crate) fn reciprocal<B: Abb>(
    b: &mut B,
    s: &B::Words,
    n: usize,
    width: u32,
    frac: u32,
) -> Result<B::Words, Error> {
    assert!(n <= MAX_RECIPROCAL_TERMS, "a sum of {n} terms");
    let octaves = n.next_power_of_two().trailing_zeros();
    assert!(width >= octaves + FRAC + 3, "a sum of {n} in a ring of {width} bits");
    b.scope("reciprocal", |b| {
        // A ladder drops low bits of its input. Longer sums than those of a softmax leave it none to drop.
        if b.evaluation() == Evaluation::Masked && n <= MAX_LADDER_TERMS {
            let terms = ladder_terms(n);
            let ladder = kept("reciprocal ladder", Evaluation::Masked, &[terms, width.into(), frac.into()], || {
                ladder(terms, width, frac)
            });
            if b.options().flows_cost_more(LADDER_SAVES, s.len() as u64 * ladder.leaves()) {
                return b.apply(Evaluate { function: &ladder }, s);
            }
        }
        // C / 2^J < 2.8 and 2^J S keep J bits more than S, so a ring of J + FRAC + 2 bits holds C as a signed value.
        let ring = octaves + FRAC + 3;
        let coarse = s.drop_low(FRAC - COMPARED_FRAC, ring);
        let thresholds: Vec<i64> = (1..=octaves).map(|j| 1 << (j + COMPARED_FRAC)).collect();
        let reached = Octaves::of(b, &coarse, &thresholds, ring - (FRAC - COMPARED_FRAC))?;

        // Fractional bits that give p_1 a coefficient in units of 2^-20, or the fractional bits of the result if they
        // are more.
        let out_frac = (GRIDS.lookup.low_bits + 20).max(frac);
        let out_width = ring_for(TOP * f64::from(1u32 << octaves), out_frac);
        let evaluation = b.evaluation();
        let function = kept("reciprocal", evaluation, &[out_frac, out_width].map(u64::from), || {
            let scale = Scale { base: BASE, step: 1.0 / (1u64 << TABLE_FRAC) as f64, out_frac, out_width };
            GRIDS.choose(evaluation).fit(scale, f64::recip)
        });
        let y = reached.apply(b, s, 1, ring, out_width, |b, c| {
            // From J + FRAC to TABLE_FRAC fractional bits.
            let have = octaves + FRAC;
            let c = if have > TABLE_FRAC {
                c.drop_low(have - TABLE_FRAC, ring)
            } else {
                c.times(1 << (TABLE_FRAC - have))
            };
            let origin = (BASE * (1u64 << TABLE_FRAC) as f64) as u64;
            let c = b.add_public(&c, origin.wrapping_neg());
            b.apply(Evaluate { function: &function }, &c)
        })?;
        b.apply(Truncation { width: out_width, shift: octaves + out_frac - frac, out: 64 }, &y)
    })
}

/// The largest number of terms for which a ladder has as many rungs as for `n` terms.
fn ladder_terms(n: usize) -> u64 {
    let [index_bits, octaves] = LADDER;
    let reach = |rung: u32| (mask(index_bits) - 1) << (LADDER_LOW_BITS + octaves * rung) >> FRAC;
    let terms = (0..).map(|rung| (reach(rung) as f64 / END) as u64);
    terms.into_iter().find(|&terms| terms >= n as u64).unwrap_or(n as u64)
}

/// The function 1 / S as a ladder that takes S itself, for sums of up to `terms` terms.
fn ladder(terms: u64, width: u32, frac: u32) -> Function {
    let [index_bits, octaves] = LADDER;
    let one = (1u64 << FRAC) as f64;
    let range = [START * one, END * terms as f64 * one].map(|s| s as u64);
    let low_bits = LADDER_LOW_BITS;
    let spec = LadderSpec { index_bits, low_bits, octaves, range, in_width: width, out_frac: frac, out_width: width };
    Function::ladder(Ladder::fit(spec, |s| one / s), frac)
}

/// For one positive word per row, bits that tell which powers of two, or of four, the word reaches.
pub(super) struct Octaves<B: Abb> {
    /// The bits as selectors, one for the scaling before the table and one for the scaling after it.
    selectors: Option<[Selector<B::Form>; 2]>,
    steps: u32,
}

impl<B: Abb> Octaves<B> {
    /// The bits that tell which of the `thresholds` each word of `x` reaches. The thresholds are in ascending order.
    pub(super) fn of(b: &mut B, x: &B::Words, thresholds: &[i64], width: u32) -> Result<Self, Error> {
        let selectors = match thresholds {
            [] => None,
            _ => {
                let reached = b.apply(AtLeast { thresholds, width }, x)?;
                Some(b.apply(Choose::<2>, &reached)?)
            }
        };
        Ok(Octaves { selectors, steps: thresholds.len() as u32 })
    }

    /// Scales, evaluates and scales back. Let a row of x, which is (rows), reach the first k of its J thresholds. Its
    /// result is `function` of x 2^(`bits` (J - k)) modulo 2^`width`, times 2^(J - k) modulo 2^`out`.
    pub(super) fn apply(
        self,
        b: &mut B,
        x: &B::Words,
        bits: u32,
        width: u32,
        out: u32,
        function: impl FnOnce(&mut B, B::Words) -> Result<B::Words, Error>,
    ) -> Result<B::Words, Error> {
        let Some([first, last]) = self.selectors else { return function(b, x.clone()) };
        let c = scale_up(b, x, first, self.steps, bits, width)?;
        let y = function(b, c)?;
        scale_up(b, &y, last, self.steps, 1, out)
    }
}

/// x 2^(`bits` (J - k)) modulo 2^`width` for x of shape (rows), where each row reaches the first k of its J
/// thresholds. With g_j = 1 where threshold j is `reached` and g_j = 0 elsewhere, this is x (2^(bits J) - sum_j g_j
/// (2^bits - 1) 2^(bits (J - j))).
fn scale_up<B: Abb>(
    b: &mut B,
    x: &B::Words,
    reached: Selector<B::Form>,
    steps: u32,
    bits: u32,
    width: u32,
) -> Result<B::Words, Error> {
    let wide = x.repeat_last(steps as usize);
    let chosen = b.apply(Select { width }, (reached, &wide))?;
    let weight = |j: u32| (((1u128 << bits) - 1) << (bits * (steps - j))) as u64;
    let all = if bits * steps < 64 { 1u64 << (bits * steps) } else { 0 };
    Ok(x.times(all).minus(&chosen.times_each(|at| weight(at[1] as u32 + 1)).sum_last()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Clear;
    use crate::functions::testing::fixed;
    use ndarray::{ArrayD, IxDyn};

    #[test]
    fn error_over_the_whole_range() {
        let mut worst = [0f64; 2];
        for (n, frac) in [
            (1usize, 22),
            (2, 22),
            (3, 22),
            (5, 22),
            (64, 22),
            (100, 22),
            (1024, 22),
            (4096, 22),
            (4097, 23),
            (32_768, 25),
            (100_000, 27),
            (1 << 17, 27),
            (MAX_RECIPROCAL_TERMS, 35),
        ] {
            let unit = 1.0 / (1u64 << frac) as f64;
            let end = 1.7 * n as f64;
            let mut s: Vec<f64> = (0..50_000).map(|i| 0.9 * (end / 0.9).powf(f64::from(i) / 49_999.0)).collect();
            // Powers of two and their neighbours.
            for j in 0..=n.ilog2() {
                let p = f64::from(1 << j);
                s.extend([p, p - 4e-6, p + 4e-6]);
            }
            let words = fixed(&s);
            let width = n.next_power_of_two().trailing_zeros() + FRAC + 3;
            let all: Vec<u64> = words.iter().copied().collect();
            let ladder = n <= MAX_LADDER_TERMS;
            // Few rows go through a ladder, many through normalisation.
            let ways = [(Evaluation::Lookup, all.len(), 0), (Evaluation::Masked, all.len(), 0)];
            for (evaluate, rows, way) in ways.into_iter().chain(ladder.then_some((Evaluation::Masked, 60, 1))) {
                for some in all.chunks(rows) {
                    let words = ArrayD::from_shape_vec(IxDyn(&[some.len()]), some.to_vec()).unwrap();
                    let got = reciprocal(&mut Clear::evaluating(evaluate), &words, n, width.max(43), frac).unwrap();
                    for (&word, got) in some.iter().zip(&got) {
                        let want = (1u64 << FRAC) as f64 / word as f64;
                        let error = (*got as f64 * unit - want).abs() - unit;
                        worst[way] = worst[way].max(error / want);
                    }
                }
            }
        }
        println!("reciprocal: {:.2e}, by a ladder {:.2e}", worst[0], worst[1]);
        assert!(worst[0] < MAX_RECIPROCAL_ERROR && worst[1] < MAX_LADDER_ERROR, "{worst:?}");
    }
}
