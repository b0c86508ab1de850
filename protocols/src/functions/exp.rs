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
//! On masked inputs windows cost little, so there is also a table for all differences of scores: `exp_to_zero` is 0
//! where e^-t is next to nothing. It takes no comparison, and its ring has so many bits that rounding sends nothing.

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

/// Bits of the index of a window for FSS keys. With 4 bits, 14 windows of width 1 would not reach [`EXP_END`].
const MASKED_INDEX_BITS: u32 = 5;
const MASKED_FRACS: [u32; 2] = [COEFFICIENT_FRAC, 25];
const MASKED_OUT_FRAC: u32 = MASKED_FRACS[0] + MASKED_FRACS[1];

/// The most by which the argument of `exp_to_zero` may lie below 0. A maximum by counts is off by no more.
pub const WHOLE_MARGIN: f64 = 1.0;

/// The end of the range of `exp_to_zero`. Its windows of width 1 reach up to 2^9, and the last two of them are not
/// served.
pub const WHOLE_RANGE: f64 = 510.0 - WHOLE_MARGIN;

/// Like [`WHOLE_RANGE`], where columns may be hidden: there are twice as many windows.
pub const HIDDEN_RANGE: f64 = 1022.0 - WHOLE_MARGIN;

/// Largest absolute error of `exp_to_zero`. It has three parts: the errors of the coefficients, one unit of a power
/// times e^3, and the last rounding.
pub const MAX_WHOLE_ERROR: f64 = 1.2e-5;

/// Bits of the index of a window of `exp_to_zero`. Where columns may be hidden, there is one bit more.
const WHOLE_INDEX_BITS: u32 = 9;
/// From this window on the table has zeros: e^-16 is a thirtieth of a unit in the last place.
const WHOLE_END: u32 = 17;
/// Fractional bits of the coefficients and of the powers of `exp_to_zero`.
const WHOLE_FRACS: [u32; 2] = [17, 22];

/// Bits of the ring of the results of `exp_to_zero`: those that a ring of 64 bits has left after rounding.
pub const WHOLE_WIDTH: u32 = 64 - (WHOLE_FRACS[0] + WHOLE_FRACS[1] - FRAC);

/// The most entries of one call that `exp_to_zero` evaluates where another way is open, too. An entry saves 44 bytes
/// online and takes 132 more to prepare, and the call saves four flows. So this table is for passes of a few tokens.
pub const MOST_WHOLE: usize = 1 << 16;

fn fit(evaluation: Evaluation) -> Function {
    match evaluation {
        Evaluation::Lookup | Evaluation::Activations => Function::lookup(ExpTable, ExpTable::OUT_FRAC),
        Evaluation::Masked => {
            let table = FssTable::power(MASKED_INDEX_BITS, FRAC, EXP_MARGIN, MASKED_FRACS, MASKED_OUT_FRAC + 3);
            Function::masked(table, MASKED_OUT_FRAC)
        }
    }
}

/// e^-t entrywise, from words modulo 2^22 at least to words modulo 2^`out`.
pub fn exp_negative<B: Abb>(b: &mut B, t: &B::Words, out: u32) -> Result<B::Words, Error> {
    b.scope("exp", |b| {
        let x = b.add_public(t, (EXP_MARGIN * (1u64 << FRAC) as f64) as u64);
        let exp = kept("exp", b.evaluation(), &[], || fit(b.evaluation()));
        let y = b.apply(Evaluate { function: &exp }, &x)?;
        let out_frac = exp.out_frac();
        // e^(1/2) < 2, so the result is below 2^(out_frac + 1), and the truncation needs two bits more.
        b.apply(Truncation { width: out_frac + 3, shift: out_frac - FRAC, out }, &y)
    })
}

/// e^-t entrywise for t in [-[`WHOLE_MARGIN`], [`WHOLE_RANGE`]), with 0 for powers below e^-16: from words modulo
/// 2^28 at least to words modulo 2^[`WHOLE_WIDTH`]. Only where functions are evaluated on masked inputs. If some
/// columns may be `hidden`, t reaches up to [`HIDDEN_RANGE`] and the input words have a bit more.
pub(crate) fn exp_to_zero<B: Abb>(b: &mut B, t: &B::Words, hidden: bool) -> Result<B::Words, Error> {
    b.scope("exp", |b| {
        let index_bits = WHOLE_INDEX_BITS + u32::from(hidden);
        let x = b.add_public(t, (WHOLE_MARGIN * (1u64 << FRAC) as f64) as u64);
        let exp = kept("exp to zero", Evaluation::Masked, &[index_bits.into()], || {
            let table = FssTable::decay(index_bits, FRAC, WHOLE_MARGIN, WHOLE_END, WHOLE_FRACS, 64);
            Function::masked(table, WHOLE_FRACS[0] + WHOLE_FRACS[1])
        });
        let y = b.apply(Evaluate { function: &exp }, &x).map_err(of_words(FRAC))?;
        b.apply(Truncation { width: 64, shift: exp.out_frac() - FRAC, out: WHOLE_WIDTH }, &y)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::functions::testing::{fixed, within};

    #[test]
    fn error_over_the_whole_range() {
        let (range, both) =
            ((-EXP_MARGIN, EXP_END - 1.0 / (1u64 << FRAC) as f64, 400_000), [Evaluation::Lookup, Evaluation::Masked]);
        within(MAX_EXP_ERROR, &both, &[range], |b, x| exp_negative(b, x, 30), |t| (-t).exp());
    }

    #[test]
    fn error_over_all_differences_of_scores() {
        let half_a_unit = 0.5 / (1u64 << FRAC) as f64;
        for (hidden, end) in [(false, WHOLE_RANGE), (true, HIDDEN_RANGE)] {
            let (near, far) = ((-WHOLE_MARGIN, 20.0, 400_000), (20.0, end - 1e-5, 100_000));
            for (bound, range) in [(MAX_WHOLE_ERROR, near), (half_a_unit, far)] {
                within(bound, &[Evaluation::Masked], &[range], |b, x| exp_to_zero(b, x, hidden), |t| (-t).exp());
            }
        }
    }

    #[test]
    fn a_difference_beyond_the_range_is_refused() {
        for (hidden, end) in [(false, WHOLE_RANGE), (true, HIDDEN_RANGE)] {
            // In the table's ring, the last three inputs lie next to -1 and next to nothing.
            for t in [end, end + 2.0, end + 20.0, 2.0 * end] {
                let refused = exp_to_zero(&mut crate::Clear::evaluating(Evaluation::Masked), &fixed(&[t]), hidden);
                let Err(Error::Engine(waggle_engine::Error::Range { value, .. })) = refused else {
                    panic!("{t}: {refused:?}")
                };
                assert!((value - t - WHOLE_MARGIN).abs() < 1e-4, "{t}: {value}");
            }
        }
    }
}
