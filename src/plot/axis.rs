//! Axes of charts: their scales, and ticks with numbers.

use std::ops::Range;

use plotters::coord::ranged1d::{BoldPoints, DefaultFormatting, KeyPointHint, Ranged};
use plotters::coord::types::RangedCoordf64;

use super::canvas::{SIZE, width};

/// The scale of an axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Scale {
    #[default]
    Linear,
    /// Logarithmic, for values above zero.
    Log,
}

/// Largest value that is drawn. Larger values are drawn at this one. On a logarithmic axis, values below its inverse
/// are drawn at the inverse. A document may contain any number, and axes compute products of numbers.
const LARGEST: f64 = 1e100;

/// The length that is drawn for `value`, at least zero.
pub(super) fn length(value: f64) -> f64 {
    if value < 1.0 / LARGEST { 0.0 } else { value.min(LARGEST) }
}

impl Scale {
    /// The position of `value` on the axis, before the axis is scaled to the drawing.
    fn of(self, value: f64) -> f64 {
        if self == Scale::Log { self.bounded(value).ln() } else { self.bounded(value) }
    }

    /// `value`, limited to the range in which axes can compute.
    fn bounded(self, value: f64) -> f64 {
        value.clamp(if self == Scale::Log { 1.0 / LARGEST } else { -LARGEST }, LARGEST)
    }
}

/// The unit in which numbers are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Unit {
    #[default]
    Number,
    Bytes,
    /// A share of 1. The axis ends at 1.
    Share,
}

impl Unit {
    /// The size and the name of the unit that suits `value` best. For all but bytes, the size is 1 and the name
    /// empty.
    pub(super) fn scaled(self, value: f64) -> (f64, &'static str) {
        match value.abs() {
            _ if self != Unit::Bytes => (1.0, ""),
            v if v >= 1e9 => (1e9, "GB"),
            v if v >= 1e6 => (1e6, "MB"),
            v if v >= 1e3 => (1e3, "kB"),
            _ => (1.0, "B"),
        }
    }

    pub(super) fn write(self, value: f64) -> String {
        if self != Unit::Bytes {
            return short(value);
        }
        let (unit, name) = self.scaled(value);
        format!("{} {name}", short((value / unit * 1e3).round() / 1e3))
    }
}

/// The range of values of an axis, and its ticks.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    scale: Scale,
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) ticks: Vec<f64>,
}

impl Axis {
    /// An axis from `low` to `high` with about `wanted` ticks.
    pub(super) fn new(scale: Scale, (low, high): (f64, f64), wanted: usize) -> Self {
        let linear = || RangedCoordf64::from(low..high).key_points(BoldPoints(wanted + 2));
        let ticks = match scale {
            Scale::Linear => linear(),
            Scale::Log => logarithmic(low, high, wanted)
                .unwrap_or_else(|| linear().into_iter().filter(|tick| *tick > 0.0).collect()),
        };
        Axis { scale, low, high, ticks }
    }
}

impl Axis {
    /// Drops ticks whose numbers would touch the previous number. The axis is `across` pixels long.
    pub(super) fn thin(&mut self, across: i32, unit: Unit) {
        let (mut end, ticks) = (i32::MIN, std::mem::take(&mut self.ticks));
        let free = |tick: &f64| {
            let (at, half) = (self.map(tick, (0, across)), width(&unit.write(*tick), SIZE) / 2);
            let free = at - half > end;
            if free {
                end = at + half + 6;
            }
            free
        };
        self.ticks = ticks.into_iter().filter(free).collect();
    }
}

/// Values outside the range are drawn at its ends.
impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        let [low, high, value] = [self.low, self.high, *value].map(|v| self.scale.of(v));
        let share = ((value - low) / (high - low)).clamp(0.0, 1.0);
        from + (share * f64::from(to - from)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

/// Ticks at powers of ten, and at values between them if more are wanted. `None` if the range is too short.
fn logarithmic(low: f64, high: f64, wanted: usize) -> Option<Vec<f64>> {
    let decades = (low.log10().floor() as i32)..=(high.log10().ceil() as i32);
    let every = |digits: &[u8], step: i32| -> Vec<f64> {
        let powers = decades.clone().filter(|power| power.rem_euclid(step) == 0);
        // Values that are parsed from text are rounded best.
        let values = powers.flat_map(|power| digits.iter().map(move |digit| format!("{digit}e{power}")));
        let values = values.filter_map(|text| text.parse().ok());
        values.filter(|value| (low * 0.999_999..=high * 1.000_001).contains(value)).collect()
    };
    let choices = [(&[1, 2, 5][..], 1), (&[1, 2, 3, 5, 7], 1), (&[1, 3], 1), (&[1], 1), (&[1], 2), (&[1], 3)];
    let mut choices = choices.into_iter().map(|(digits, step)| every(digits, step));
    choices.find(|ticks| (4..=wanted + 3).contains(&ticks.len())).or_else(|| {
        let spread = (high / low).log10();
        (spread >= 2.0).then(|| every(&[1], 4.max(spread as i32 / wanted.max(1) as i32)))
    })
}

/// The range of `values`; on a logarithmic scale only of values above zero. `None` without values.
pub(super) fn range(values: impl IntoIterator<Item = f64>, scale: Scale) -> Option<(f64, f64)> {
    let seen = values.into_iter().filter(|v| v.is_finite() && (scale == Scale::Linear || *v > 0.0));
    seen.map(|v| scale.bounded(v)).map(|v| (v, v)).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
}

/// `(low, high)` with a small margin. A single point becomes a range.
pub(super) fn widened((low, high): (f64, f64), scale: Scale) -> (f64, f64) {
    match scale {
        Scale::Linear => {
            let air = ((high - low) * 0.05).max(high.abs().max(1e-12) * 1e-3);
            (low - air, high + air)
        }
        Scale::Log => {
            let air = ((high / low).ln() * 0.05).max(0.005).exp();
            (low / air, high * air)
        }
    }
}

/// A number of an axis, with as many digits as it needs, at most four.
pub(super) fn short(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let size = value.abs().log10().floor() as i32;
    if !(-4..6).contains(&size) {
        return format!("{value:.1e}").replace(".0e", "e");
    }
    let text = format!("{value:.*}", (3 - size).max(0) as usize);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_range_has_ticks_with_numbers() {
        let axis = |scale, low, high| Axis::new(scale, (low, high), 6);
        assert_eq!(axis(Scale::Log, 0.05, 1.0).ticks, [0.05, 0.1, 0.2, 0.5, 1.0]);
        assert_eq!(axis(Scale::Log, 1e-4, 10.0).ticks, [1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0]);
        assert_eq!(axis(Scale::Log, 1.0, 100.0).map(&10.0, (100, 0)), 50);
        assert_eq!(axis(Scale::Linear, 0.0, 1.0).ticks.len(), 6);
        // A short logarithmic range has ticks besides its powers of ten.
        for (low, high) in [(4.5, 6.1), (1.0, 1.02), (0.9, 40.0), (1e-9, 1e3), (3.0, 4.0), (99.0, 101.0)] {
            let ticks = axis(Scale::Log, low, high).ticks;
            assert!((3..=12).contains(&ticks.len()), "{low} to {high}: {ticks:?}");
            assert!(ticks.iter().all(|t| (low..=high).contains(t)), "{ticks:?}");
        }
        // Documents may have extreme numbers.
        for scale in [Scale::Linear, Scale::Log] {
            for all in [&[1e-320, 1.0, 1e300][..], &[1e-320], &[1e300, 1e301], &[0.0, 1e-12]] {
                let Some(ends) = range(all.iter().copied(), scale) else { continue };
                let (low, high) = widened(ends, scale);
                let axis = axis(scale, low, high);
                assert!((1..=12).contains(&axis.ticks.len()), "{scale:?}: {axis:?}");
            }
        }
    }

    #[test]
    fn numbers_are_short() {
        let all = [0.05, 1.0, 0.25, 12345.0, 1e-5, 2.5e7, 1.0 / 3.0, -2.0].map(short);
        assert_eq!(all, ["0.05", "1", "0.25", "12345", "1e-5", "2.5e7", "0.3333", "-2"]);
        assert_eq!([1500.0, 2e6, 999.0].map(|bytes| Unit::Bytes.write(bytes)), ["1.5 kB", "2 MB", "999 B"]);
    }
}
