//! GELU and SiLU: zero on the left, the identity on the right, a spline in between.
//!
//! ```text
//! inside, right = bits of one coarse comparison
//! y = spline(x reduced)
//! result = (inside ? y : 0) + (right ? x : 0)          one multiplexer
//! ```
//!
//! Where keys are prepared, one opening gives y and both bits ([`EvaluateNear`]), another makes both selections, and
//! a third extends what was selected to words of 64 bits. That is 20 bytes an entry online in place of 80.
//!
//! Comparisons before a key of the table's windows alone take fewer bytes in all: by plan GELU takes 4.98 GB of a
//! prompt of 448 of GPT-2 small in place of 5.38. But 1.34 GB of them come online in place of 0.31, in 882 flows in
//! place of 36. A byte online counts twice where forms are chosen. So keys of the whole range win, for prompts and
//! for single rows.
//!
//! In one phase, the number of entries decides (`choose`). Few entries over a slow link are looked up, since keys
//! take more flows. Many entries are evaluated by keys, since these take fewer bytes.
//!
//! The spline's input is x times a public ratio (7/8 or 5/4 for look-up), so that the windows reach just as far as
//! the tails need and not to the next power of two.
//!
//! **Range.** |x| < 2^10; for GELU where keys are prepared |x| < 2^9, which makes keys shorter by 64 bytes and saves
//! a quarter of the hashes. **Error.** At most [`MAX_GELU_ERROR`] and [`MAX_SILU_ERROR`]. **Revealed.** Nothing.
//! *Cost.* One comparison, one evaluation, one truncation and one multiplexer; or three exchanges.

use std::sync::{Arc, LazyLock};

use crate::abb::Abb;
use crate::cost::Cost;
use crate::functions::fit::kept;
use crate::functions::grid::{Grid, Pieces, Scale};
use crate::functions::ring_for;
use crate::ops::fss::table::CurveSpec;
use crate::ops::fss::tails::TailedTable;
use crate::ops::{
    AtLeast, Choose, Evaluate, EvaluateNear, ExtendColumns, Function, MuxColumns, Select, Truncation, compare,
    truncate,
};
use crate::words::Words;
use crate::{Error, Evaluation, FRAC, Gelu, Options, Tensor};

/// Largest error of [`gelu`] in either form.
pub const MAX_GELU_ERROR: f64 = 2e-4;

/// Largest error of [`silu`].
pub const MAX_SILU_ERROR: f64 = 2e-4;

/// |x| < 2^RANGE_BITS, so that comparisons with one bit to spare do not overflow.
const RANGE_BITS: u32 = 10;
const COMPARED_WIDTH: u32 = FRAC + RANGE_BITS + 2;

/// The form in which an activation is evaluated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    pub(super) grid: Grid,
    /// Fractional bits of the reduced input before the ratio.
    pub(super) in_frac: u32,
    /// The reduced input is x ratio / 2^RATIO_BITS.
    pub(super) ratio: u64,
    pub(super) out_frac: u32,
    /// Fractional bits that the comparison looks at.
    pub(super) compared_frac: u32,
}

/// The forms that use comparisons: one for look-up, one for keys. Where keys are prepared, [`Tailed`] takes their
/// place.
struct Forms {
    lookup: Form,
    masked: Form,
}

pub(super) const RATIO_BITS: u32 = 5;

impl Forms {
    fn fitted(&self, evaluation: Evaluation, name: &'static str, f: impl Fn(f64) -> f64) -> Fitted {
        let form = if evaluation == Evaluation::Lookup { self.lookup } else { self.masked };
        let activation = form.activation(identity);
        let function = kept(name, evaluation, &[], || activation.fit(f));
        (activation, function)
    }
}

const GELU: Forms = Forms {
    // 16 quartic windows of 4/7 on [-4.28, 4.28]: 1.3e-4 for 5525 bits per entry. 32 cubic windows of 2/7: 7.9e-5 for
    // 6578; 64 quadratic windows of 1/8: 1.1e-4 for 7902.
    lookup: Form {
        grid: Grid { index_bits: 4, low_bits: 14, pieces: Pieces::Powers { degree: 4, power_bits: [11, 10, 9, 0] } },
        in_frac: 15,
        ratio: 28,
        out_frac: 29,
        compared_frac: 6,
    },
    // 128 quadratic windows of 2/29 on [-4.34, 4.34]: 8.3e-5 (erf: 1.3e-4). 512 linear windows of 1/58: 1.5e-4, at
    // 2.4 times the processor time online, 1.5 times offline, and 30 bytes more an entry.
    masked: Form {
        grid: Grid { index_bits: 7, low_bits: 11, pieces: Pieces::Parabolas },
        in_frac: 15,
        ratio: 29,
        out_frac: 27,
        compared_frac: 3,
    },
};

const SILU: Forms = Forms {
    // 32 quartic windows of 4/5 on [-12.4, 12.4]: 1.6e-4 for 8739 bits per entry. 64 cubic windows of 1/2: 1.8e-4 for
    // 11597; 32 quartic windows of 1: 4.0e-4 for 8944.
    lookup: Form {
        grid: Grid { index_bits: 5, low_bits: 15, pieces: Pieces::Powers { degree: 4, power_bits: [11, 10, 9, 0] } },
        in_frac: 15,
        ratio: 40,
        out_frac: 30,
        compared_frac: 6,
    },
    // 256 quadratic windows of 2/21 on [-12.1, 12.1]: 1e-4.
    masked: Form {
        grid: Grid { index_bits: 8, low_bits: 11, pieces: Pieces::Parabolas },
        in_frac: 15,
        ratio: 21,
        out_frac: 26,
        compared_frac: 3,
    },
};

/// A function with tails, evaluated on a masked input. A window is 32 / (16 ratio) wide. At this width, all cells of
/// windows together reach beyond the range on both sides, and the cell of the table reaches as far as the tails need.
struct Tailed {
    shape: TailedShape,
    table: TailedTable,
}

#[derive(Clone, Copy)]
struct TailedShape {
    /// log2 of the number of windows in a cell.
    index_bits: u32,
    /// log2 of the number of cells.
    cell_bits: u32,
    /// The reduced input is x ratio / 2^RATIO_BITS.
    ratio: u64,
    /// |x| < 2^range_bits.
    range_bits: u32,
}

// 128 quadratic windows of 2/31 on [-4.19, 4.06], two of which may count as tails on either side: 1e-4 there.
const GELU_TAILED: TailedShape = TailedShape { index_bits: 7, cell_bits: 7, ratio: 31, range_bits: 9 };
static GELU_TANH: LazyLock<Tailed> = LazyLock::new(|| Tailed::fit(GELU_TAILED, gelu_tanh));
static GELU_ERF: LazyLock<Tailed> = LazyLock::new(|| Tailed::fit(GELU_TAILED, gelu_erf));
// 256 quadratic windows of 2/21 on [-12.29, 12.1].
const SILU_TAILED: TailedShape = TailedShape { index_bits: 8, cell_bits: 7, ratio: 21, range_bits: RANGE_BITS };
static SILU_EXACT: LazyLock<Tailed> = LazyLock::new(|| Tailed::fit(SILU_TAILED, silu_exact));

impl TailedShape {
    /// The word that stands for 0. It lies a window above the middle of the table's cell, because a word may count as
    /// one up to two windows lower.
    fn zero(self) -> u64 {
        let middle = (1u64 << (self.cell_bits + self.index_bits) >> 1) + (1u64 << self.index_bits >> 1);
        (middle + 1) << Tailed::LOW_BITS
    }
}

impl Tailed {
    const LOW_BITS: u32 = 11;
    /// Fractional bits of the reduced input before the ratio.
    const IN_FRAC: u32 = 15;
    const OUT_FRAC: u32 = 26;
    const OUT_WIDTH: u32 = 32;

    fn fit(shape: TailedShape, f: impl Fn(f64) -> f64) -> Self {
        let TailedShape { index_bits, cell_bits, ratio, .. } = shape;
        let step = (1u64 << RATIO_BITS) as f64 / ratio as f64 / (1u64 << Self::IN_FRAC) as f64;
        let (low_bits, base) = (Self::LOW_BITS, -step * shape.zero() as f64);
        let (out_frac, out_width) = (Self::OUT_FRAC, Self::OUT_WIDTH);
        let spec = CurveSpec { index_bits, low_bits, base, step, out_frac, out_width };
        Tailed { shape, table: TailedTable::fit(spec, cell_bits, f) }
    }

    fn apply<B: Abb>(&self, b: &mut B, x: &B::Words) -> Result<B::Words, Error> {
        let (shape, n) = (x.shape(), x.len());
        let x = x.reshape(&[n]);
        let TailedShape { ratio, range_bits, .. } = self.shape;
        b.expect_below(&x, 1 << (FRAC + range_bits), FRAC)?;
        let dropped = FRAC + RATIO_BITS - Self::IN_FRAC;
        let width = self.table.shape().input_bits() + dropped;
        // Reducing the input loses up to two units, on average one.
        let reduced = b.add_public(&x.times(ratio).drop_low(dropped, width), self.shape.zero() + 1);
        let (y, side) = b.apply(EvaluateNear { table: &self.table }, &reduced)?;
        // The rings in which the table's value, at FRAC fractional bits, and x are selected.
        let widths = [Self::OUT_WIDTH - (Self::OUT_FRAC - FRAC), FRAC + range_bits + 2];
        let out = widths[0];
        let y = b.apply(Truncation { width: Self::OUT_WIDTH, shift: Self::OUT_FRAC - FRAC, out }, &y)?;
        let both = B::Words::concat(1, &[&y.reshape(&[n, 1]), &x.reshape(&[n, 1])]);
        let chosen = b.apply(MuxColumns { widths: &widths, words: 1 }, (&side, &both))?;
        let chosen = b.apply(ExtendColumns { widths: &widths }, &chosen)?;
        Ok(chosen.sum_last().reshape(&shape))
    }
}

/// A table with the thresholds at its two ends.
pub(super) struct Activation {
    form: Form,
    scale: Scale,
    /// Added to the reduced input, in its units, because the table begins at word 0.
    offset: u64,
    /// In units of the comparison: where the table takes over from 0, and where x takes over from the table.
    thresholds: [i64; 2],
}

impl Form {
    /// The activation with this form. Its table reaches from -h to h for some h, and `largest(h)` bounds the
    /// magnitudes in it.
    pub(super) fn activation(self, largest: impl Fn(f64) -> f64) -> Activation {
        let Form { grid, in_frac, ratio, out_frac, compared_frac } = self;
        let step = (1u64 << RATIO_BITS) as f64 / ratio as f64 / (1u64 << in_frac) as f64;
        let window = step * (1u64 << grid.low_bits) as f64;
        let lost = match grid.pieces {
            Pieces::Powers { .. } => 1,
            Pieces::Lines | Pieces::Parabolas => 2,
        };
        let half = ((1u64 << grid.index_bits) - lost) as f64 * window / 2.0;
        // Reducing the input loses up to two units, on average one.
        let units = (half / step).floor();
        // A comparison loses up to a unit; two more keep the reduced input inside.
        let end = (half * (1u64 << compared_frac) as f64).floor() as i64 - 2;
        let scale = Scale { base: -units * step, step, out_frac, out_width: ring_for(largest(half), out_frac) };
        Activation { form: self, scale, offset: units as u64 + 1, thresholds: [-end, end] }
    }
}

/// The values of an activation on the right of its table. On the left it is 0.
#[derive(Clone, Copy, Debug)]
pub(super) enum Right {
    /// The identity.
    Input,
    /// This word, whatever the input is.
    Word(u64),
}

impl Activation {
    pub(super) fn fit(&self, f: impl Fn(f64) -> f64) -> Function {
        self.form.grid.fit(self.scale, f)
    }

    pub(super) fn apply<B: Abb>(
        &self,
        b: &mut B,
        function: &Function,
        x: &B::Words,
        beyond: Right,
    ) -> Result<B::Words, Error> {
        let (shape, n) = (x.shape(), x.len());
        let x = x.reshape(&[n]);
        b.expect_below(&x, 1 << (COMPARED_WIDTH - 2), FRAC)?;
        let dropped = FRAC - self.form.compared_frac;
        let coarse = x.drop_low(dropped, COMPARED_WIDTH);
        let reached = b.apply(AtLeast { thresholds: &self.thresholds, width: COMPARED_WIDTH - dropped }, &coarse)?;
        let right = reached.slice(1, 1..2).reshape(&[n]);
        let inside = b.xor(&reached.slice(1, 0..1).reshape(&[n]), &right);
        let [selector] = b.apply(Choose::<1>, &B::Bits::concat(0, &[&inside, &right]))?;

        let dropped = FRAC + RATIO_BITS - self.form.in_frac;
        let width = self.form.grid.index_bits + self.form.grid.low_bits + dropped;
        let reduced = x.times(self.form.ratio).drop_low(dropped, width);
        let reduced = b.add_public(&reduced, self.offset);
        let y = b.apply(Evaluate { function }, &reduced)?;
        let how = Truncation { width: function.out_width(), shift: function.out_frac() - FRAC, out: 64 };
        let y = b.apply(how, &y)?;

        let beyond = match beyond {
            Right::Input => x,
            Right::Word(word) => b.constant(&[n], word),
        };
        let chosen = b.apply(Select { width: 64 }, (selector, &B::Words::concat(0, &[&y, &beyond])))?;
        Ok(chosen.slice(0, 0..n).plus(&chosen.slice(0, n..2 * n)).reshape(&shape))
    }

    /// The cost of `n` entries, without the steps that cost the same in both forms.
    fn cost(&self, options: &Options, function: &Function, n: usize) -> Cost {
        let width = COMPARED_WIDTH - (FRAC - self.form.compared_frac);
        let how = Truncation { width: function.out_width(), shift: function.out_frac() - FRAC, out: 64 };
        compare::cost(n, self.thresholds.len(), width).then(function.cost(options, n)).then(truncate::cost(n, how))
    }
}

/// An activation in one of its forms, with the function of its table.
pub(super) type Fitted = (Activation, Arc<Function>);

/// The form in which `b` evaluates `entries` values. `fitted` makes the form for look-up and the form for keys. Where
/// both may be used, the one that takes less time on the link is chosen. The choice follows from public numbers.
pub(super) fn choose<B: Abb>(b: &B, entries: usize, fitted: impl Fn(Evaluation) -> Fitted) -> Fitted {
    match b.evaluation() {
        Evaluation::Activations => {
            let [lookup, masked] = [Evaluation::Lookup, Evaluation::Masked].map(fitted);
            let time = |(activation, function): &Fitted| {
                b.options().wire_time(&activation.cost(b.options(), function, entries))
            };
            if time(&lookup) <= time(&masked) { lookup } else { masked }
        }
        only => fitted(only),
    }
}

fn activation<B: Abb>(
    b: &mut B,
    name: &'static str,
    x: &B::Words,
    (forms, tailed): (&Forms, &LazyLock<Tailed>),
    f: impl Fn(f64) -> f64,
) -> Result<B::Words, Error> {
    if b.evaluation() == Evaluation::Masked {
        return tailed.apply(b, x);
    }
    let (activation, function) = choose(b, x.len(), |evaluation| forms.fitted(evaluation, name, &f));
    activation.apply(b, &function, x, Right::Input)
}

/// The largest magnitude in a table that reaches up to `half`, for a function that is the identity on the right of
/// it.
fn identity(half: f64) -> f64 {
    half + 1.0
}

/// x Phi(x) entrywise, modulo 2^64.
pub fn gelu<B: Abb>(b: &mut B, x: &B::Words, form: Gelu) -> Result<B::Words, Error> {
    b.scope("gelu", |b| match form {
        Gelu::Tanh => activation(b, "gelu tanh", x, (&GELU, &GELU_TANH), gelu_tanh),
        Gelu::Erf => activation(b, "gelu erf", x, (&GELU, &GELU_ERF), gelu_erf),
    })
}

/// x sigmoid(x) entrywise, modulo 2^64.
pub fn silu<B: Abb>(b: &mut B, x: &B::Words) -> Result<B::Words, Error> {
    b.scope("silu", |b| activation(b, "silu", x, (&SILU, &SILU_EXACT), silu_exact))
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
    use crate::Clear;
    use crate::functions::testing::within;
    use ndarray::ArrayD;

    /// Inputs from the whole range are checked at wide steps, and inputs in the table and at its borders at almost
    /// every word.
    #[test]
    fn errors_over_the_whole_range() {
        let all = [
            (MAX_GELU_ERROR, 5.0, &GELU, &GELU_TANH, gelu_tanh as fn(f64) -> f64),
            (MAX_GELU_ERROR, 5.0, &GELU, &GELU_ERF, gelu_erf),
            (MAX_SILU_ERROR, 17.0, &SILU, &SILU_EXACT, silu_exact),
        ];
        for (bound, end, forms, tailed, f) in all {
            let ranges = |bits: u32, end: f64| {
                let limit = f64::from(1u32 << bits) - 0.01;
                [(-limit, limit, 200_001), (-end, end, 1_000_001)]
            };
            for (form, evaluation) in [(forms.lookup, Evaluation::Lookup), (forms.masked, Evaluation::Masked)] {
                let activation = form.activation(identity);
                let function = activation.fit(f);
                println!("{:?}: {} bits", form.grid, function.online_bits());
                let apply = |b: &mut Clear, x: &ArrayD<u64>| activation.apply(b, &function, x, Right::Input);
                within(bound, &[evaluation], &ranges(RANGE_BITS, end), apply, f);
            }
            let ranges = ranges(tailed.shape.range_bits, 17.0);
            within(bound, &[Evaluation::Masked], &ranges, |b, x| tailed.apply(b, x), f);
        }
    }
}
