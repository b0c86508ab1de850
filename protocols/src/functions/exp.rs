//! e^-t for the differences of a softmax.
//!
//! A power of a sum is a product of powers, so one factor per party is enough, without a constant term. For an
//! argument that is the window n plus the parties' low parts low_0 and low_1:
//!
//! e^-(n + low_0 + low_1) = e^-(n + low_0) e^-low_1, with windows of width 1.
//!
//! **Range.** t in [-[`EXP_MARGIN`], [`EXP_END`]) -> [0, e^[`EXP_MARGIN`]]. **Error.** At most [`MAX_EXP_ERROR`];
//! other inputs give garbage below the same bound. **Revealed.** Nothing. *Cost.* One evaluation and one truncation.
//!
//! On masked inputs there is a table that is 0 where e^-t is next to nothing (`exp_to_zero`). It has windows for all
//! differences of scores, or for differences below [`CLIPPED_RANGE`] alone. The caller then clips the others, which
//! makes a key shorter by 130 bytes.

use std::sync::Arc;

use crate::abb::Abb;
use crate::error::of_words;
use crate::functions::fit::kept;
use crate::ops::fss::table::{FssTable, exp_minus};
use crate::ops::lookup::{Table, TableShape};
use crate::ops::{Evaluate, Function, Truncation};
use crate::{Error, Evaluation, FRAC};

/// The most by which the argument may lie below 0: 1/2. The maximum of a softmax is off by less.
pub const EXP_MARGIN: f64 = 0.5;

/// The end of the range: e^-14.5 is below a tenth of a unit in the last place.
pub const EXP_END: f64 = 14.5;

/// Largest absolute error over the whole range, the last rounding included; a unit in the last place is 3.8e-6.
pub const MAX_EXP_ERROR: f64 = 5e-6;

/// Fractional bits of the coefficient and of the factor.
const COEFFICIENT_FRAC: u32 = 21;
const FACTOR_BITS: u32 = 20;
/// e^-low_1 is scaled by slightly less than 2^FACTOR_BITS so that it fits FACTOR_BITS bits at low_1 = 0.
const FACTOR_ONE: f64 = ((1u64 << FACTOR_BITS) - 1) as f64;

/// The table of e^-(x - EXP_MARGIN) for x in [0, 15) at [`FRAC`] fractional bits.
#[derive(Debug)]
struct ExpTable;

impl ExpTable {
    const OUT_FRAC: u32 = COEFFICIENT_FRAC + FACTOR_BITS;
}

impl Table for ExpTable {
    fn shape(&self) -> TableShape {
        let (out_width, factor_bits) = (Self::OUT_FRAC + 3, vec![FACTOR_BITS]);
        TableShape { index_bits: 4, low_bits: FRAC, out_width, constant: false, factor_bits }
    }

    fn factors(&self, low: u64, out: &mut [u64]) {
        out[0] = (FACTOR_ONE * exp_minus(low, FRAC)).round() as u64;
    }

    fn coefficients(&self, window: i64, low: u64, out: &mut [u64]) {
        let one = (1u64 << COEFFICIENT_FRAC) as f64 * ((1u64 << FACTOR_BITS) as f64 / FACTOR_ONE);
        // The window is a public loop index of the caller, shifted by a secret, so no table of libm may see it.
        let base = (window + 1) as u64;
        out[0] = (one * (EXP_MARGIN + 1.0).exp() * exp_minus(base << FRAC | low, FRAC)).round() as u64;
    }
}

/// The most by which the argument of `exp_to_zero` may lie below 0. A maximum by counts is off by no more.
pub const WHOLE_MARGIN: f64 = 1.0;

/// The end of the range of `exp_to_zero` for scores less than 2^9 apart. Its windows of width 1 reach up to 2^9, and
/// the last two of them are not served.
pub const WHOLE_RANGE: f64 = 510.0 - WHOLE_MARGIN;

/// Like [`WHOLE_RANGE`], where columns may be hidden: there are twice as many windows.
pub const HIDDEN_RANGE: f64 = 1022.0 - WHOLE_MARGIN;

/// Like [`WHOLE_RANGE`], for differences that were clipped.
pub const CLIPPED_RANGE: f64 = 30.0 - WHOLE_MARGIN;

/// Largest absolute error of `exp_to_zero`, which is reached where the power is near e. It has three parts: the
/// errors of the coefficients, the relative errors of the factors, and the last rounding.
pub const MAX_WHOLE_ERROR: f64 = 2.5e-5;

/// The differences that `exp_to_zero` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Up to [`CLIPPED_RANGE`].
    Clipped,
    /// Up to [`WHOLE_RANGE`].
    Whole,
    /// Up to [`HIDDEN_RANGE`].
    Hidden,
}

impl Reach {
    /// Bits of the index of a window.
    fn index_bits(self) -> u32 {
        match self {
            Reach::Clipped => 5,
            Reach::Whole => 9,
            Reach::Hidden => 10,
        }
    }

    /// Bits of an input.
    pub(crate) fn width(self) -> u32 {
        FRAC + self.index_bits()
    }

    /// The table, for results modulo 2^`out` with `frac` fractional bits. Where no difference was clipped, a table of
    /// words of 64 bits spares the exchange of a truncation, if its result fits what the truncation leaves.
    pub(crate) fn function(self, frac: u32, out: u32) -> Arc<Function> {
        let out_frac = WHOLE_FRACS[0] + WHOLE_FRACS[1];
        let ring = if self != Reach::Clipped && out <= 64 - (out_frac - frac) { 64 } else { WHOLE_RING };
        kept("exp to zero", Evaluation::Masked, &[self.index_bits().into(), ring.into()], || {
            let table = FssTable::decay(self.index_bits(), FRAC, WHOLE_MARGIN, WHOLE_END, WHOLE_FRACS, ring);
            Function::masked(table, out_frac)
        })
    }
}

/// From this window on the table has zeros: e^-16 is a thirtieth of a unit in the last place.
const WHOLE_END: u32 = 17;
/// Fractional bits of the coefficients and of the powers of `exp_to_zero`.
const WHOLE_FRACS: [u32; 2] = [17, 22];
/// Bits of the narrowest ring of the table's values, which are below e.
const WHOLE_RING: u32 = WHOLE_FRACS[0] + WHOLE_FRACS[1] + 4;

/// e^-t entrywise by look-up, from words modulo 2^22 at least to words modulo 2^`out` with `frac` fractional bits.
pub fn exp_negative<B: Abb>(b: &mut B, t: &B::Words, frac: u32, out: u32) -> Result<B::Words, Error> {
    b.scope("exp", |b| {
        let x = b.add_public(t, (EXP_MARGIN * (1u64 << FRAC) as f64) as u64);
        let exp = kept("exp", Evaluation::Lookup, &[], || Function::lookup(ExpTable, ExpTable::OUT_FRAC));
        let y = b.apply(Evaluate { function: &exp }, &x)?;
        let out_frac = exp.out_frac();
        // e^(1/2) < 2, so the result is below 2^(out_frac + 1), and the truncation needs two bits more.
        b.apply(Truncation { width: out_frac + 3, shift: out_frac - frac, out }, &y)
    })
}

/// e^-t entrywise for t from -[`WHOLE_MARGIN`] to the end of `reach`, with 0 for powers below e^-16: from words that
/// hold this range to words modulo 2^`out` with `frac` fractional bits. Only where functions are evaluated
/// on masked inputs.
pub(crate) fn exp_to_zero<B: Abb>(
    b: &mut B,
    t: &B::Words,
    reach: Reach,
    frac: u32,
    out: u32,
) -> Result<B::Words, Error> {
    b.scope("exp", |b| {
        let x = b.add_public(t, (WHOLE_MARGIN * (1u64 << FRAC) as f64) as u64);
        let exp = reach.function(frac, out);
        let y = b.apply(Evaluate { function: &exp }, &x).map_err(of_words(FRAC))?;
        b.apply(Truncation { width: exp.out_width(), shift: exp.out_frac() - frac, out }, &y)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::functions::testing::{fixed, within};

    const ENDS: [(Reach, f64); 3] =
        [(Reach::Clipped, CLIPPED_RANGE), (Reach::Whole, WHOLE_RANGE), (Reach::Hidden, HIDDEN_RANGE)];

    #[test]
    fn error_over_the_whole_range() {
        let range = (-EXP_MARGIN, EXP_END - 1.0 / (1u64 << FRAC) as f64, 400_000);
        within(MAX_EXP_ERROR, &[Evaluation::Lookup], &[range], |b, x| exp_negative(b, x, FRAC, 30), |t| (-t).exp());
    }

    #[test]
    fn error_over_all_differences_of_scores() {
        let half_a_unit = 0.5 / (1u64 << FRAC) as f64;
        for (reach, end) in ENDS {
            let (near, far) = ((-WHOLE_MARGIN, 20.0, 400_000), (20.0, end - 1e-5, 100_000));
            for (bound, range) in [(MAX_WHOLE_ERROR, near), (half_a_unit, far)] {
                within(
                    bound,
                    &[Evaluation::Masked],
                    &[range],
                    |b, x| exp_to_zero(b, x, reach, FRAC, 43),
                    |t| (-t).exp(),
                );
            }
        }
    }

    #[test]
    fn a_difference_beyond_the_range_is_refused() {
        for (reach, end) in ENDS {
            // In the table's ring, the last three inputs lie next to -1 and next to nothing.
            for t in [end, end + 2.0, end + 20.0, 2.0 * end] {
                let refused =
                    exp_to_zero(&mut crate::Clear::evaluating(Evaluation::Masked), &fixed(&[t]), reach, FRAC, 43);
                let Err(Error::Engine(waggle_engine::Error::Range { value, .. })) = refused else {
                    panic!("{t}: {refused:?}")
                };
                assert!((value - t - WHOLE_MARGIN).abs() < 1e-4, "{t}: {value}");
            }
        }
    }
}
