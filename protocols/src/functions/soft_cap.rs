//! A soft cap: c tanh(x / c), which is x near 0 and never exceeds c in magnitude. Gemma 2 caps its scores.
//!
//! c (1 + tanh(x / c)) is 0 on the left of a table and 2 c on its right, like an [activation](super::activation)
//! whose right end is a word in place of the identity. Finally, c is subtracted.
//!
//! **Range.** |x| < 2^10, and c of [`CAPS`]. **Error.** At most [`MAX_SOFT_CAP_ERROR`] c, plus two units in the last
//! place. **Revealed.** Nothing. *Cost.* The cost of an activation with a comparison.

use crate::abb::Abb;
use crate::functions::activation::{Activation, Form, RATIO_BITS, Right, choose};
use crate::functions::fit::kept;
use crate::functions::grid::{Grid, Pieces};
use crate::{Error, Evaluation, FRAC, Tensor};

/// Largest error of a result, as a fraction of the cap.
pub const MAX_SOFT_CAP_ERROR: f64 = 5e-5;

/// Smallest and largest cap.
pub const CAPS: [f32; 2] = waggle_engine::SOFT_CAPS;

/// The table reaches about this many caps to either side, where 1 - tanh is 5e-6.
const REACH: f64 = 6.5;

// 32 windows of degree 5, each 0.4 c wide. 64 quartic windows take 3200 bits an entry more.
const LOOKUP: Grid =
    Grid { index_bits: 5, low_bits: 14, pieces: Pieces::Powers { degree: 5, power_bits: [12, 11, 10, 9] } };

// 512 quadratic windows, each 0.025 c wide. Each of them serves three times its width.
const MASKED: Grid = Grid { index_bits: 9, low_bits: 11, pieces: Pieces::Parabolas };

fn form(evaluation: Evaluation, cap: f64) -> Form {
    // Results up to 2 c have `out_bits` bits. Results of parabolas must fit a ring of 32.
    let (grid, out_bits) = if evaluation == Evaluation::Lookup { (LOOKUP, 31) } else { (MASKED, 29) };
    // The most words per unit of x, rounded down to a multiple of a power of two.
    let words = (f64::from(grid.index_bits + grid.low_bits)).exp2() / (2.0 * REACH * cap);
    let in_frac = (words.log2().floor() as u32 + 1).min(FRAC);
    let ratio = (words * f64::from(1 << RATIO_BITS) / f64::from(in_frac).exp2()) as u64;
    let whole = (2.0 * cap).log2().ceil() as u32;
    // The ends of the table are known to a few units of the comparison: 1/64 to 1/32 of a cap.
    let compared_frac = (64.0 / cap).log2().ceil().max(0.0) as u32;
    Form { grid, in_frac, ratio: ratio.min(1 << RATIO_BITS), out_frac: out_bits - whole, compared_frac }
}

/// c tanh(x / c) entrywise, modulo 2^64.
///
/// # Panics
/// If the cap is not one of [`CAPS`]: a model's configuration is checked for that.
pub fn soft_cap<B: Abb>(b: &mut B, x: &B::Words, cap: f32) -> Result<B::Words, Error> {
    assert!((CAPS[0]..=CAPS[1]).contains(&cap), "a cap of {cap}");
    b.scope("soft cap", |b| {
        let c = f64::from(cap);
        let (activation, function) = choose(b, x.len(), |evaluation| {
            let activation = activation(evaluation, c);
            let function =
                kept("soft cap", evaluation, &[u64::from(cap.to_bits())], || activation.fit(|x| raised(x, c)));
            (activation, function)
        });
        let unit = (1u64 << FRAC) as f64;
        let twice = Right::Word((2.0 * c * unit).round() as u64);
        let raised = activation.apply(b, &function, x, twice)?;
        Ok(b.add_public(&raised, ((c * unit).round() as u64).wrapping_neg()))
    })
}

fn activation(evaluation: Evaluation, cap: f64) -> Activation {
    form(evaluation, cap).activation(|_| 2.0 * cap)
}

fn raised(x: f64, cap: f64) -> f64 {
    cap * (1.0 + libm::tanh(x / cap))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::functions::testing::within;

    #[test]
    fn error_over_the_whole_range() {
        let evaluations = [Evaluation::Lookup, Evaluation::Activations, Evaluation::Masked];
        for cap in [1.0f32, 5.0, 6.0, 30.0, 50.0, 127.0, 128.0] {
            let c = f64::from(cap);
            let (bound, end) = (MAX_SOFT_CAP_ERROR * c + 2.0 / (1u64 << FRAC) as f64, (7.0 * c).min(1023.9));
            let ranges = [(-1023.9, 1023.9, 50_001), (-end, end, 200_001)];
            within(bound, &evaluations, &ranges, |b, x| soft_cap(b, x, cap), |x| c * libm::tanh(x / c));
        }
    }
}
