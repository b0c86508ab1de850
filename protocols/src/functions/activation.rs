//! GELU and SiLU: zero on the left, the identity on the right, a spline in between.
//!
//! A coarse comparison finds which of the three applies; the spline takes a reduced input. With `inside` and `right` the
//! two bits, the result is inside ? spline(x) : 0 plus right ? x : 0, in one multiplexer.
//!
//! The spline's input is x times a public ratio (7/8 or 5/4), so that the windows reach just as far as the tails ask for
//! and not to the next power of two. Range: |x| < 2^10. Nothing is revealed. One comparison, one evaluation, one
//! truncation and one multiplexer.

use std::sync::OnceLock;

use crate::abb::{Abb, Truncation, Words};
use crate::functions::ring_for;
use crate::functions::spline::{Curve, Spline, SplineSpec};
use crate::ops::masked::table::CurveSpec;
use crate::{Error, Evaluate, FRAC, Gelu, Tensor};

/// Largest error of [`gelu`] in either form.
pub const MAX_GELU_ERROR: f64 = 2e-4;

/// Largest error of [`silu`].
pub const MAX_SILU_ERROR: f64 = 2e-4;

/// |x| < 2^RANGE_BITS, so that comparisons with one bit to spare do not overflow.
const RANGE_BITS: u32 = 10;
const COMPARED_WIDTH: u32 = FRAC + RANGE_BITS + 2;

/// The shape of an activation's table.
#[derive(Clone, Copy, Debug)]
struct Form {
    index_bits: u32,
    low_bits: u32,
    /// Fractional bits of the reduced input before the ratio.
    in_frac: u32,
    /// The reduced input is x ratio / 2^RATIO_BITS.
    ratio: u64,
    out_frac: u32,
    /// Fractional bits that the comparison looks at.
    compared_frac: u32,
    pieces: Pieces,
}

/// What a table is made of.
#[derive(Clone, Copy, Debug)]
enum Pieces {
    /// Polynomials of this degree, with powers of so many bits, for look-up.
    Powers(usize, [u32; 4]),
    /// Parabolas, for masked inputs.
    Parabolas,
}

const RATIO_BITS: u32 = 5;

/// 16 quartic windows of 4/7 on [-4.28, 4.28]: 1.3e-4 for 5525 bits per entry. 32 cubic windows of 2/7: 7.9e-5 for 6578;
/// 64 quadratic windows of 1/8: 1.1e-4 for 7902.
const GELU: Form = Form {
    index_bits: 4,
    low_bits: 14,
    in_frac: 15,
    ratio: 28,
    out_frac: 29,
    compared_frac: 6,
    pieces: Pieces::Powers(4, [11, 10, 9, 0]),
};

/// 128 quadratic windows of 2/29 on [-4.34, 4.34]: 8.3e-5 (erf: 1.3e-4). 512 linear windows of 1/58: 1.5e-4, at 2.4 times the processor time
/// online, 1.5 times offline, and 30 bytes more an entry. The comparison is one of 15 bits, which a table of unit vectors decides over
/// slow links ([`crate::ops::masked::threshold`]).
const MASKED_GELU: Form = Form {
    index_bits: 7,
    low_bits: 11,
    in_frac: 15,
    ratio: 29,
    out_frac: 27,
    compared_frac: 3,
    pieces: Pieces::Parabolas,
};

/// 32 quartic windows of 4/5 on [-12.4, 12.4]: 1.6e-4 for 8739 bits per entry. 64 cubic windows of 1/2: 1.8e-4 for
/// 11597; 32 quartic windows of 1: 4.0e-4 for 8944.
const SILU: Form = Form {
    index_bits: 5,
    low_bits: 15,
    in_frac: 15,
    ratio: 40,
    out_frac: 30,
    compared_frac: 6,
    pieces: Pieces::Powers(4, [11, 10, 9, 0]),
};

/// 256 quadratic windows of 2/21 on [-12.1, 12.1]: 1e-4.
const MASKED_SILU: Form = Form {
    index_bits: 8,
    low_bits: 11,
    in_frac: 15,
    ratio: 21,
    out_frac: 26,
    compared_frac: 3,
    pieces: Pieces::Parabolas,
};

/// A table with the thresholds around it.
#[derive(Debug)]
struct Activation {
    form: Form,
    curve: Curve,
    /// Added to the reduced input, in its units: the table begins at word 0.
    offset: u64,
    /// Where the table takes over from 0, and where x takes over from it, in comparison units.
    thresholds: [i64; 2],
}

impl Form {
    fn prepare(self, f: impl Fn(f64) -> f64) -> Activation {
        let Form { index_bits, low_bits, in_frac, ratio, out_frac, compared_frac, pieces } = self;
        let step = (1u64 << RATIO_BITS) as f64 / ratio as f64 / (1u64 << in_frac) as f64;
        let window = step * (1u64 << low_bits) as f64;
        let lost = match pieces {
            Pieces::Powers(..) => 1,
            Pieces::Parabolas => 2,
        };
        let half = ((1u64 << index_bits) - lost) as f64 * window / 2.0;
        // Reducing the input loses up to two units, on average one.
        let units = (half / step).floor();
        let base = -units * step;
        // A comparison loses up to a unit; two more keep the reduced input inside.
        let end = (half * (1u64 << compared_frac) as f64).floor() as i64 - 2;
        let out_width = ring_for(half + 1.0, out_frac);
        let curve = match pieces {
            Pieces::Powers(degree, power_bits) => {
                let spec = SplineSpec { index_bits, low_bits, base, step, degree, out_frac, out_width, power_bits };
                Curve::Spline(Spline::fit(spec, f))
            }
            Pieces::Parabolas => {
                Curve::parabolas(CurveSpec { index_bits, low_bits, base, step, out_frac, out_width }, f)
            }
        };
        Activation { form: self, curve, offset: units as u64 + 1, thresholds: [-end, end] }
    }
}

impl Activation {
    fn apply<B: Abb>(&self, b: &mut B, x: &B::Words) -> Result<B::Words, Error> {
        let (shape, n) = (x.shape(), x.len());
        let x = x.reshape(&[n]);
        b.expect_below(&x, COMPARED_WIDTH - 2)?;
        let dropped = FRAC - self.form.compared_frac;
        let coarse = x.drop_low(dropped, COMPARED_WIDTH);
        let reached = b.at_least(&coarse, &self.thresholds, COMPARED_WIDTH - dropped)?;
        let right = reached.slice(1, 1..2).reshape(&[n]);
        let inside = b.xor(&reached.slice(1, 0..1).reshape(&[n]), &right);
        let [selector] = b.selectors(&B::Bits::concat(0, &[&inside, &right]))?;

        let dropped = FRAC + RATIO_BITS - self.form.in_frac;
        let width = self.form.index_bits + self.form.low_bits + dropped;
        let reduced = x.times(self.form.ratio).drop_low(dropped, width);
        let reduced = b.add_public(&reduced, self.offset);
        let y = b.evaluate(self.curve.tabulated(), &reduced)?;
        let how = Truncation { width: self.curve.out_width(), shift: self.curve.out_frac() - FRAC, out: 64 };
        let y = b.truncate(&y, how)?;

        let chosen = b.select(selector, &B::Words::concat(0, &[&y, &x]), 64)?;
        Ok(chosen.slice(0, 0..n).plus(&chosen.slice(0, n..2 * n)).reshape(&shape))
    }
}

/// One function by look-up and on masked inputs.
struct Both {
    lookup: OnceLock<Activation>,
    masked: OnceLock<Activation>,
}

impl Both {
    const fn new() -> Self {
        Both { lookup: OnceLock::new(), masked: OnceLock::new() }
    }

    fn get(&self, evaluate: Evaluate, forms: [Form; 2], f: impl Fn(f64) -> f64) -> &Activation {
        let [lookup, masked] = forms;
        match evaluate {
            Evaluate::Lookup => self.lookup.get_or_init(|| lookup.prepare(f)),
            Evaluate::Activations | Evaluate::Masked => self.masked.get_or_init(|| masked.prepare(f)),
        }
    }
}

/// x Phi(x) entrywise, modulo 2^64.
pub fn gelu<B: Abb>(b: &mut B, x: &B::Words, form: Gelu) -> Result<B::Words, Error> {
    static TANH: Both = Both::new();
    static ERF: Both = Both::new();
    let activation = match form {
        Gelu::Tanh => TANH.get(b.evaluation(), [GELU, MASKED_GELU], gelu_tanh),
        Gelu::Erf => ERF.get(b.evaluation(), [GELU, MASKED_GELU], gelu_erf),
    };
    b.scope("gelu", |b| activation.apply(b, x))
}

/// x sigmoid(x) entrywise, modulo 2^64.
pub fn silu<B: Abb>(b: &mut B, x: &B::Words) -> Result<B::Words, Error> {
    static TABLE: Both = Both::new();
    let activation = TABLE.get(b.evaluation(), [SILU, MASKED_SILU], silu_exact);
    b.scope("silu", |b| activation.apply(b, x))
}

fn gelu_tanh(x: f64) -> f64 {
    let sqrt_2_over_pi = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;
    0.5 * x * (1.0 + libm::tanh(sqrt_2_over_pi * (x + 0.044715 * x * x * x)))
}

fn gelu_erf(x: f64) -> f64 {
    0.5 * x * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2)
}

fn silu_exact(x: f64) -> f64 {
    x / (1.0 + libm::exp(-x))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::functions::testing::{clear_map, worst};

    use crate::abb::{Table, Tabulated};

    /// Over the whole range coarsely and over the table and its borders at almost every word.
    fn sweep(end: f64, activation: &Activation, f: impl Fn(f64) -> f64) -> f64 {
        let evaluate = match activation.form.pieces {
            Pieces::Powers(..) => Evaluate::Lookup,
            Pieces::Parabolas => Evaluate::Masked,
        };
        let apply = |x: &[f64]| clear_map(evaluate, x, |b, x| activation.apply(b, x));
        let far = worst(-1023.99, 1023.99, 200_001, apply, &f);
        far.max(worst(-end, end, 1_000_001, apply, &f))
    }

    /// Bits that [`Abb::evaluate`] sends per entry, online, by its formula.
    fn bits(curve: &Curve) -> u32 {
        let table = match curve.tabulated() {
            Tabulated::Lookup(table) => table,
            Tabulated::Masked(table) => return 2 * table.shape().input_bits(),
        };
        let (width, factors) = (table.out_width(), table.factor_bits());
        let coefficients = factors.len() as u32 + u32::from(table.has_constant());
        ((coefficients * width) << table.index_bits())
            + (table.index_bits() + factors.iter().sum::<u32>()) * 32
            + factors.iter().flat_map(|&bits| (0..bits).map(|j| width - j)).sum::<u32>()
    }

    #[test]
    fn gelu_errors_over_the_whole_range() {
        for (name, f) in [("tanh", gelu_tanh as fn(f64) -> f64), ("erf", gelu_erf)] {
            for form in [GELU, MASKED_GELU] {
                let activation = form.prepare(f);
                let error = sweep(5.0, &activation, f);
                println!("gelu {name}, {:?}: {error:.2e}, {} bits", form.pieces, bits(&activation.curve));
                assert!(error < MAX_GELU_ERROR, "{error}");
            }
        }
    }

    #[test]
    fn silu_error_over_the_whole_range() {
        for form in [SILU, MASKED_SILU] {
            let activation = form.prepare(silu_exact);
            let error = sweep(17.0, &activation, silu_exact);
            println!("silu, {:?}: {error:.2e}, {} bits", form.pieces, bits(&activation.curve));
            assert!(error < MAX_SILU_ERROR, "{error}");
        }
    }
}
