//! e^-t for the differences of a softmax.
//!
//! A power of a sum is a product of powers, so one factor per party is enough, without a constant term:
//!
//! e^-(n + low_0 + low_1) = e^-(n + low_0) e^-low_1, with windows of width 1.
//!
//! **Range.** t in [-[`EXP_MARGIN`], [`EXP_END`]) -> [0, e^[`EXP_MARGIN`]]. **Error.** At most [`MAX_EXP_ERROR`];
//! other inputs give garbage below the same bound. **Revealed.** Nothing. *Cost.* One evaluation and one truncation.

use crate::abb::Abb;
use crate::functions::fit::kept;
use crate::ops::evaluate::{Evaluate, Function};
use crate::ops::fss::table::{FssTable, POWER_FRAC, exp_minus};
use crate::ops::lookup::Table;
use crate::ops::truncate::Truncation;
use crate::{Error, Evaluation, FRAC};

/// How far below 0 the argument may lie: 1/2. The maximum of a softmax is exact to less.
pub const EXP_MARGIN: f64 = 0.5;

/// Where the range ends: e^-14.5 is below a tenth of a unit in the last place.
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
    fn index_bits(&self) -> u32 {
        4
    }

    fn low_bits(&self) -> u32 {
        FRAC
    }

    fn out_width(&self) -> u32 {
        Self::OUT_FRAC + 3
    }

    fn has_constant(&self) -> bool {
        false
    }

    fn factor_bits(&self) -> Vec<u32> {
        vec![FACTOR_BITS]
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

/// With 4 bits, 14 windows of width 1 would not reach [`EXP_END`].
const MASKED_INDEX_BITS: u32 = 5;
const MASKED_OUT_FRAC: u32 = COEFFICIENT_FRAC + POWER_FRAC;

fn fit(evaluation: Evaluation) -> Function {
    match evaluation {
        Evaluation::Lookup | Evaluation::Activations => Function::lookup(ExpTable, ExpTable::OUT_FRAC),
        Evaluation::Masked => {
            let (coefficient, width) = (COEFFICIENT_FRAC, MASKED_OUT_FRAC + 3);
            let table = FssTable::power(MASKED_INDEX_BITS, FRAC, EXP_MARGIN, coefficient, width);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::functions::testing::{clear_map, worst};

    #[test]
    fn error_over_the_whole_range() {
        let end = EXP_END - 1.0 / (1u64 << FRAC) as f64;
        for evaluate in [Evaluation::Lookup, Evaluation::Masked] {
            let apply = |x: &[f64]| clear_map(evaluate, x, |b, x| exp_negative(b, x, 30));
            let error = worst(-EXP_MARGIN, end, 400_000, apply, |t| (-t).exp());
            println!("exp, {evaluate:?}: {error:.2e}");
            assert!(error < MAX_EXP_ERROR, "{error}");
        }
    }
}
