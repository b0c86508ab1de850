//! Tables for evaluation by FSS keys, on a masked input.

use std::f64::consts::FRAC_1_SQRT_2;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use crate::ops::fss::dot::dot;
use crate::ops::fss::parabola::Parabolas;
use crate::words::mask;

/// The words that the parties share at the window index. They depend on the low part rho = rho_0 + rho_1 of a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Payload {
    /// The word 1, for unit vectors.
    One,
    /// The words 1 and rho, for functions that are linear in every window.
    Line,
    /// The words 1, rho and rho^2, the last in units of its own, for functions that are quadratic in every window.
    Parabola,
    /// One word, the power e^-(rho 2^-unit), for exponentials.
    Power {
        /// Fractional bits of rho.
        unit: u32,
        /// Fractional bits of the power, at most 2 [`FACTOR_FRAC`].
        frac: u32,
    },
}

/// Fractional bits of the two factors of a [`Payload::Power`].
pub const FACTOR_FRAC: u32 = 18;

/// Stands for 1 in a factor of a [`Payload::Power`]. A factor must be below 2^FACTOR_FRAC, so this is slightly less
/// than 2^FACTOR_FRAC.
pub(crate) const FACTOR_ONE: f64 = ((1u64 << FACTOR_FRAC) - 1) as f64;

impl Payload {
    pub(crate) fn words(self) -> usize {
        match self {
            Payload::Line => 2,
            Payload::Parabola => 3,
            Payload::One | Payload::Power { .. } => 1,
        }
    }
}

/// The numbers on which the preparation of an evaluation depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FssShape {
    /// log2 of the number of windows, 2..=14.
    pub index_bits: u32,
    /// Bits of an input below the window index: a window is 2^low_bits wide.
    pub low_bits: u32,
    /// Bits of the ring of the result, 2..=64; at most 32 for a parabola or a unit vector, more than 32 for a power.
    pub width: u32,
    /// The words that the parties share at the window index.
    pub payload: Payload,
    /// log2 of the number of times that the windows repeat: 7 or 8 if the key also tells the repetition
    /// ([`tails`](super::tails)), and 0 otherwise.
    pub cell_bits: u32,
}

impl FssShape {
    /// Bits of the index that a key hides: the bits of the window and those of its repetition.
    pub(super) fn hidden_bits(&self) -> u32 {
        self.index_bits + self.cell_bits
    }

    /// Bits of an input.
    pub fn input_bits(&self) -> u32 {
        self.hidden_bits() + self.low_bits
    }
}

/// A function of one variable over equal windows, for an input that both parties see only under a mask.
///
/// The input is x = y + r modulo 2^(index_bits + low_bits). It is opened as y, and the parties hold r = R
/// 2^low_bits + rho_0 + rho_1 with rho_i < 2^low_bits. Let n = high(y) + R modulo 2^index_bits, read as a number of
/// [-2, 2^index_bits - 2), and z = low(y) + rho_0 + rho_1. Then
///
/// x = n 2^low_bits + z.
///
/// A window serves three times its width, so no carry has to be computed. Inputs must lie in [0, (2^index_bits - 2)
/// 2^low_bits); others give garbage, which the caller muxes away.
///
/// Both parties compute with the same tables. Tables are therefore made by operations that every machine rounds
/// alike.
#[derive(Clone, Debug)]
pub struct FssTable {
    shape: FssShape,
    pub(super) windows: Windows,
}

#[derive(Clone, Debug)]
pub(super) enum Windows {
    Lines(Lines),
    Parabolas(Parabolas),
    Decay(Powers),
}

/// Coefficients of 1 and of rho for every window, with the list of windows repeated once. Each coefficient is given
/// by its value at low part 0 and its slope per unit of the low part.
#[derive(Clone, Debug)]
pub(super) struct Lines {
    base: Vec<u64>,
    slope: Vec<u64>,
}

/// The powers e^(start - n - low) for windows n of width 1 and low parts `low`.
#[derive(Clone, Debug)]
pub(super) struct Powers {
    unit: u32,
    /// e^(start - n) times the scale, for n = -2, -1, ..
    heights: Vec<f64>,
}

/// The input of [`FssTable::lines`] and [`FssTable::parabolas`].
#[derive(Clone, Copy, Debug)]
pub struct CurveSpec {
    /// log2 of the number of windows.
    pub index_bits: u32,
    /// Bits of a word below the window index.
    pub low_bits: u32,
    /// The argument at word 0.
    pub base: f64,
    /// The argument's step from one word to the next.
    pub step: f64,
    /// Fractional bits of the result.
    pub out_frac: u32,
    /// Bits of the ring of the result.
    pub out_width: u32,
}

impl FssTable {
    /// The piecewise linear interpolation of `f` at the Chebyshev nodes of every triple window. Its error is about
    /// f'' (3 window)^2 / 16. `f` must give the same results on every machine: it may use the basic operations and
    /// `libm`.
    pub fn lines(spec: CurveSpec, f: impl Fn(f64) -> f64) -> Self {
        let CurveSpec { index_bits, low_bits, out_width, .. } = spec;
        let shape = FssShape { index_bits, low_bits, width: out_width, payload: Payload::Line, cell_bits: 0 };
        FssTable { shape, windows: Windows::Lines(Lines::fit(spec, f)) }
    }

    /// The piecewise quadratic interpolation of `f` at the Chebyshev nodes of every triple window. Its error is about
    /// f''' (3 window)^3 / 192. Roundings of coefficients add about 2 2^low_bits units of the result, those of a
    /// square up to ten times its coefficient. `f` is as in [`Self::lines`].
    ///
    /// # Panics
    /// If the ring has more than 32 bits or a window more than 16 low bits, or if the function bends so much that a
    /// coefficient would not fit.
    pub fn parabolas(spec: CurveSpec, f: impl Fn(f64) -> f64) -> Self {
        let CurveSpec { index_bits, low_bits, out_width, .. } = spec;
        let parabolas = fitted(spec, f, |n| window(n, index_bits));
        let shape = FssShape { index_bits, low_bits, width: out_width, payload: Payload::Parabola, cell_bits: 0 };
        FssTable { shape, windows: Windows::Parabolas(parabolas) }
    }

    /// The power e^(start - x 2^-unit) where x 2^-unit < `end`, and 0 where it is `end` + 2 or more. In between, it is
    /// one of the two. Windows have width 1 in x 2^-unit. Coefficients have the first number of `fracs` of fractional
    /// bits, powers have the second, and the result has the sum of both. Each party expands its key only near
    /// coefficients that are not zero.
    ///
    /// # Panics
    /// If no window of the table is left for zero.
    pub fn decay(index_bits: u32, unit: u32, start: f64, end: u32, fracs: [u32; 2], out_width: u32) -> Self {
        assert!(end + 2 < 1 << index_bits, "powers up to {end} in 2^{index_bits} windows");
        let heights = (-2..i64::from(end)).map(|n| height(n, start, fracs[0])).collect();
        let windows = Windows::Decay(Powers { unit, heights });
        let payload = Payload::Power { unit, frac: fracs[1] };
        let shape = FssShape { index_bits, low_bits: unit, width: out_width, payload, cell_bits: 0 };
        FssTable { shape, windows }
    }

    /// Whether the table has a value for every input that there may be, so that an input outside the range is an
    /// error.
    pub(crate) fn is_whole(&self) -> bool {
        matches!(self.windows, Windows::Decay(_))
    }

    /// The shape, on which the preparation depends.
    pub fn shape(&self) -> FssShape {
        self.shape
    }

    /// The value by the definition of the function, from the window `n` modulo 2^index_bits, the low part, and the
    /// server's and the client's rho.
    pub(crate) fn value(&self, n: u64, low: u64, rho: [u64; 2]) -> u64 {
        let n = (n & mask(self.shape.index_bits)) as usize;
        let value = match &self.windows {
            Windows::Lines(lines) => lines.value(n, low, rho),
            Windows::Parabolas(parabolas) => parabolas.value(n, low, rho, self.shape.low_bits),
            // The first window is -2.
            Windows::Decay(powers) => match (n + 2) & mask(self.shape.index_bits) as usize {
                at if at < powers.heights.len() => powers.value(at, low, rho, self.shape),
                _ => 0,
            },
        };
        value & mask(self.shape.width)
    }
}

/// The parabolas of `f`. `window` returns, for an index, the window that it stands for, counted from word 0 on.
pub(super) fn fitted(spec: CurveSpec, f: impl Fn(f64) -> f64, window: impl Fn(u64) -> i64) -> Parabolas {
    let CurveSpec { index_bits, low_bits, base, step, out_frac, out_width } = spec;
    assert!(out_width <= 32 && low_bits <= 16, "parabolas in a ring of {out_width} bits, windows of {low_bits}");
    let (unit, scale) = ((1u64 << low_bits) as f64, (1u64 << out_frac) as f64);
    let at = |n: i64, z: f64| scale * f(base + step * (n as f64 * unit + z));
    Parabolas::fit(index_bits, low_bits, at, window)
}

/// e^(start - n) at `frac` fractional bits, corrected because the two factors of a power are slightly less than they
/// should be.
fn height(n: i64, start: f64, frac: u32) -> f64 {
    let one = (1u64 << FACTOR_FRAC) as f64 / FACTOR_ONE;
    (1u64 << frac) as f64 * one * one * libm::exp(start - n as f64)
}

/// The window that an index modulo 2^index_bits stands for.
fn window(n: u64, index_bits: u32) -> i64 {
    // [-2, 2^b - 2): shifted by 2 it is the residue.
    (n.wrapping_add(2) & mask(index_bits)) as i64 - 2
}

impl Lines {
    /// The fit that [`FssTable::lines`] documents.
    pub(super) fn fit(spec: CurveSpec, f: impl Fn(f64) -> f64) -> Self {
        let CurveSpec { index_bits, low_bits, base, step, out_frac, .. } = spec;
        let unit = (1u64 << low_bits) as f64;
        let scale = (1u64 << out_frac) as f64;
        let middle = 1.5 * unit;
        let reach = middle * FRAC_1_SQRT_2;
        let line = |n: u64| {
            let n = window(n, index_bits) as f64;
            let at = |z: f64| scale * f(base + step * (n * unit + z));
            let (low, high) = (at(middle - reach), at(middle + reach));
            let slope = ((high - low) / (2.0 * reach)).round();
            let constant = ((high + low) / 2.0 - slope * middle).round();
            [constant as i64 as u64, slope as i64 as u64]
        };
        let lines: Vec<[u64; 2]> = (0..2u64 << index_bits).map(line).collect();
        let base = lines.iter().flatten().copied().collect();
        let slope = lines.iter().flat_map(|&[_, slope]| [slope, 0]).collect();
        Lines { base, slope }
    }

    /// The value at the window of index `n`, which is less than twice the number of windows. The other arguments are
    /// as in [`FssTable::value`].
    pub(super) fn value(&self, n: usize, low: u64, rho: [u64; 2]) -> u64 {
        let constant = self.base[2 * n].wrapping_add(self.slope[2 * n].wrapping_mul(low));
        constant.wrapping_add(self.base[2 * n + 1].wrapping_mul(rho[0].wrapping_add(rho[1])))
    }

    /// This party's share of the result for the opened input with window `high` and low part `low`. `values` are its
    /// shares of 1 and rho at every window n - `high`.
    pub(super) fn apply(&self, high: usize, low: u64, values: &[u64]) -> u64 {
        let lanes = 2 * high..2 * high + values.len();
        let (base, slope) = (dot(&self.base[lanes.clone()], values), dot(&self.slope[lanes], values));
        base.wrapping_add(slope.wrapping_mul(low))
    }
}

impl Powers {
    /// The value for entry number `at` of the heights. The other arguments are as in [`FssTable::value`].
    fn value(&self, at: usize, low: u64, rho: [u64; 2], shape: FssShape) -> u64 {
        let Payload::Power { frac, .. } = shape.payload else { return 0 };
        let product = factor(rho[0], self.unit) * factor(rho[1], self.unit);
        self.coefficients(at..at + 1, low)[0].wrapping_mul(product >> (2 * FACTOR_FRAC - frac))
    }

    /// Number of windows that have a height.
    pub(super) fn windows(&self) -> usize {
        self.heights.len()
    }

    /// This party's share of the result of a decay, from its shares of the power at the windows that have a height.
    pub(super) fn apply_near(&self, low: u64, values: &[u64]) -> u64 {
        dot(&self.coefficients(0..self.heights.len(), low), values)
    }

    fn coefficients(&self, windows: std::ops::Range<usize>, low: u64) -> Vec<u64> {
        let low = libm::exp(-(low as f64) / (1u64 << self.unit) as f64);
        self.heights[windows].iter().map(|height| (height * low).round() as u64).collect()
    }
}

/// A party's factor e^-(rho 2^-unit) of a power, at [`FACTOR_FRAC`] fractional bits.
pub(crate) fn factor(rho: u64, unit: u32) -> u64 {
    (FACTOR_ONE * exp_minus(rho, unit)).round() as u64
}

/// Bits of the arguments of [`exp_minus`].
const EXP_BITS: usize = 24;

/// e^-(2^k) - 1 at index k + EXP_BITS, for every k from -EXP_BITS on.
static POWERS: LazyLock<[f64; EXP_BITS + 6]> =
    LazyLock::new(|| std::array::from_fn(|i| libm::expm1(-libm::exp2(i as f64 - EXP_BITS as f64))));

/// e^-(x 2^-unit) for x 2^-unit < 32 and unit <= 24. It is a product over the bits of x, without branches or table
/// look-ups that depend on x, which may be a party's secret.
pub(crate) fn exp_minus(x: u64, unit: u32) -> f64 {
    let first = EXP_BITS - unit as usize;
    let powers = POWERS[first..].iter().enumerate();
    powers.fold(1.0, |product, (bit, power)| product * (1.0 + (x >> bit & 1) as f64 * power))
}
