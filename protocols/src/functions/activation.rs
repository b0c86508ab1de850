//! GELU and SiLU: zero on the left, the identity on the right, a spline in between.
//!
//! A coarse comparison finds which of the three applies; the spline takes a reduced input. With `inside` and `right` the
//! two bits, the result is inside ? spline(x) : 0 plus right ? x : 0, in one multiplexer.
//!
//! The spline's input is x times a public ratio (7/8 or 5/4), so that the windows reach just as far as the tails ask for
//! and not to the next power of two. Range: |x| < 2^10. Nothing is revealed. One comparison, one evaluation, one
//! truncation and one multiplexer.

use std::sync::OnceLock;

use crate::abb::{Abb, Table, Truncation, Words};
use crate::functions::ring_for;
use crate::functions::spline::{Spline, SplineSpec};
use crate::{Error, FRAC, Gelu, Tensor};

/// Largest error of [`gelu`] in either form.
pub const MAX_GELU_ERROR: f64 = 2e-4;

/// Largest error of [`silu`].
pub const MAX_SILU_ERROR: f64 = 2e-4;

/// |x| < 2^RANGE_BITS, so that comparisons with one bit to spare do not overflow.
const RANGE_BITS: u32 = 10;
const COMPARED_WIDTH: u32 = FRAC + RANGE_BITS + 2;
/// Low bits that comparisons do not look at; the rest is in units of 1/64.
const DROPPED: u32 = 12;
const UNIT: f64 = 1.0 / (1u64 << (FRAC - DROPPED)) as f64;

/// The shape of an activation's spline.
#[derive(Clone, Copy, Debug)]
struct Form {
    index_bits: u32,
    low_bits: u32,
    degree: usize,
    power_bits: [u32; 4],
    /// Fractional bits of the reduced input before the ratio.
    in_frac: u32,
    /// The reduced input is x ratio / 8.
    ratio: u64,
    out_frac: u32,
}

/// 16 quartic windows of 4/7 on [-4.28, 4.28]: 1.3e-4 for 5525 bits per entry. 32 cubic windows of 2/7: 7.9e-5 for 6578;
/// 64 quadratic windows of 1/8: 1.1e-4 for 7902.
const GELU: Form =
    Form { index_bits: 4, low_bits: 14, degree: 4, power_bits: [11, 10, 9, 0], in_frac: 15, ratio: 7, out_frac: 29 };

/// 32 quartic windows of 4/5 on [-12.4, 12.4]: 1.6e-4 for 8739 bits per entry. 64 cubic windows of 1/2: 1.8e-4 for
/// 11597; 32 quartic windows of 1: 4.0e-4 for 8944.
const SILU: Form =
    Form { index_bits: 5, low_bits: 15, degree: 4, power_bits: [11, 10, 9, 0], in_frac: 15, ratio: 10, out_frac: 30 };

/// A spline with the thresholds around it.
#[derive(Debug)]
struct Activation {
    form: Form,
    spline: Spline,
    /// Added to the reduced input, in its units: the spline begins at word 0.
    offset: u64,
    /// Where the spline takes over from 0, and where x takes over from it, in comparison units.
    thresholds: [i64; 2],
}

impl Form {
    fn prepare(self, f: impl Fn(f64) -> f64) -> Activation {
        let step = 8.0 / self.ratio as f64 / (1u64 << self.in_frac) as f64;
        let window = step * (1u64 << self.low_bits) as f64;
        let half = ((1u64 << self.index_bits) - 1) as f64 * window / 2.0;
        // Reducing the input loses up to two units, on average one.
        let units = (half / step).floor();
        let base = -units * step;
        // A comparison loses up to a unit; two more keep the reduced input inside.
        let end = (half / UNIT).floor() as i64 - 2;
        let spec = SplineSpec {
            index_bits: self.index_bits,
            low_bits: self.low_bits,
            base,
            step,
            degree: self.degree,
            out_frac: self.out_frac,
            out_width: ring_for(half + 1.0, self.out_frac),
            power_bits: self.power_bits,
        };
        let spline = Spline::fit(spec, f);
        Activation { form: self, spline, offset: units as u64 + 1, thresholds: [-end, end] }
    }
}

impl Activation {
    fn apply<B: Abb>(&self, b: &mut B, x: &B::Words) -> Result<B::Words, Error> {
        let (shape, n) = (x.shape(), x.len());
        let x = x.reshape(&[n]);
        b.expect_below(&x, COMPARED_WIDTH - 2)?;
        let coarse = x.drop_low(DROPPED, COMPARED_WIDTH);
        let reached = b.at_least(&coarse, &self.thresholds, COMPARED_WIDTH - DROPPED)?;
        let right = reached.slice(1, 1..2).reshape(&[n]);
        let inside = b.xor(&reached.slice(1, 0..1).reshape(&[n]), &right);

        let dropped = FRAC + 3 - self.form.in_frac;
        let width = self.form.index_bits + self.form.low_bits + dropped;
        let reduced = x.times(self.form.ratio).drop_low(dropped, width);
        let reduced = b.add_public(&reduced, self.offset);
        let y = b.evaluate(&self.spline, &reduced)?;
        let how = Truncation { width: self.spline.out_width(), shift: self.spline.out_frac() - FRAC, out: 64 };
        let y = b.truncate(&y, how)?;

        let chosen = b.mux(&B::Bits::concat(0, &[&inside, &right]), &B::Words::concat(0, &[&y, &x]), 64)?;
        Ok(chosen.slice(0, 0..n).plus(&chosen.slice(0, n..2 * n)).reshape(&shape))
    }
}

/// x Phi(x) entrywise, modulo 2^64.
pub fn gelu<B: Abb>(b: &mut B, x: &B::Words, form: Gelu) -> Result<B::Words, Error> {
    static TANH: OnceLock<Activation> = OnceLock::new();
    static ERF: OnceLock<Activation> = OnceLock::new();
    let activation = match form {
        Gelu::Tanh => TANH.get_or_init(|| GELU.prepare(gelu_tanh)),
        Gelu::Erf => ERF.get_or_init(|| GELU.prepare(gelu_erf)),
    };
    b.scope("gelu", |b| activation.apply(b, x))
}

/// x sigmoid(x) entrywise, modulo 2^64.
pub fn silu<B: Abb>(b: &mut B, x: &B::Words) -> Result<B::Words, Error> {
    static TABLE: OnceLock<Activation> = OnceLock::new();
    let activation = TABLE.get_or_init(|| SILU.prepare(silu_exact));
    b.scope("silu", |b| activation.apply(b, x))
}

fn gelu_tanh(x: f64) -> f64 {
    let sqrt_2_over_pi = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;
    0.5 * x * (1.0 + (sqrt_2_over_pi * (x + 0.044715 * x * x * x)).tanh())
}

fn gelu_erf(x: f64) -> f64 {
    0.5 * x * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2)
}

fn silu_exact(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::functions::testing::{clear_map, worst};

    /// Over the whole range coarsely and over the spline and its borders at almost every word.
    fn sweep(end: f64, activation: &Activation, f: impl Fn(f64) -> f64) -> f64 {
        let apply = |x: &[f64]| clear_map(x, |b, x| activation.apply(b, x));
        let far = worst(-1023.99, 1023.99, 200_001, apply, &f);
        far.max(worst(-end, end, 1_000_001, apply, &f))
    }

    /// Bits that [`Abb::evaluate`] sends per entry, by its formula.
    fn bits(table: &impl Table) -> u32 {
        let (width, factors) = (table.out_width(), table.factor_bits());
        let coefficients = factors.len() as u32 + u32::from(table.has_constant());
        ((coefficients * width) << table.index_bits())
            + (table.index_bits() + factors.iter().sum::<u32>()) * 32
            + factors.iter().flat_map(|&bits| (0..bits).map(|j| width - j)).sum::<u32>()
    }

    #[test]
    fn gelu_errors_over_the_whole_range() {
        for (name, f) in [("tanh", gelu_tanh as fn(f64) -> f64), ("erf", gelu_erf)] {
            let activation = GELU.prepare(f);
            let error = sweep(5.0, &activation, f);
            println!("gelu {name}: {error:.2e}, {} bits", bits(&activation.spline));
            assert!(error < MAX_GELU_ERROR, "{error}");
        }
    }

    #[test]
    fn silu_error_over_the_whole_range() {
        let activation = SILU.prepare(silu_exact);
        let error = sweep(17.0, &activation, silu_exact);
        println!("silu: {error:.2e}, {} bits", bits(&activation.spline));
        assert!(error < MAX_SILU_ERROR, "{error}");
    }
}
