//! Axes: scales, ranges that one bad line does not stretch, and ticks with numbers.

/// How values are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    Linear,
    /// Of values above zero.
    Log,
}

/// What is larger is drawn here, and on a logarithmic axis what is smaller than one over it: a document may hold any
/// number, and axes compute with products of theirs.
const LARGEST: f64 = 1e100;

impl Scale {
    /// The value on the axis before it is stretched to the drawing.
    fn of(self, value: f64) -> f64 {
        match self {
            Scale::Linear => self.bounded(value),
            Scale::Log => self.bounded(value).ln(),
        }
    }

    /// `value` where axes can compute with it.
    fn bounded(self, value: f64) -> f64 {
        match self {
            Scale::Linear => value.clamp(-LARGEST, LARGEST),
            Scale::Log => value.clamp(1.0 / LARGEST, LARGEST),
        }
    }
}

/// A range of values along a length of the drawing.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    pub(super) scale: Scale,
    pub(super) low: f64,
    pub(super) high: f64,
    /// Where `low` and `high` lie in the drawing.
    pub(super) from: f64,
    pub(super) to: f64,
}

impl Axis {
    /// The place of `value`, which may lie outside of the range.
    pub(super) fn at(&self, value: f64) -> f64 {
        let [low, high, value] = [self.low, self.high, value].map(|v| self.scale.of(v));
        self.from + (value - low) / (high - low) * (self.to - self.from)
    }

    /// About `wanted` round values of the range, and at least two where rounding allows.
    pub(super) fn ticks(&self, wanted: usize) -> Vec<f64> {
        let Axis { scale, low, high, .. } = *self;
        match scale {
            Scale::Linear => linear(low, high, wanted),
            Scale::Log => logarithmic(low, high, wanted),
        }
    }
}

/// Multiples of 1, 2 or 5 times a power of ten in the range.
fn linear(low: f64, high: f64, wanted: usize) -> Vec<f64> {
    let rough = (high - low) / wanted.max(1) as f64;
    if rough <= 0.0 || !rough.is_finite() {
        return vec![low];
    }
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|step| *step >= rough * 0.999);
    let step = step.unwrap_or(10.0 * power);
    let (first, last) = ((low / step - 1e-9).ceil(), (high / step + 1e-9).floor());
    let count = (last - first).max(-1.0) as usize + 1;
    (0..count.min(100))
        .map(|i| (first + i as f64) * step)
        .map(|v| if v.abs() < step * 1e-9 { 0.0 } else { v })
        .collect()
}

/// Powers of ten with as many values between them as are wanted; in a short range, what a linear axis has.
fn logarithmic(low: f64, high: f64, wanted: usize) -> Vec<f64> {
    let decades = (low.log10().floor() as i32)..=(high.log10().ceil() as i32);
    let inside = |v: &f64| (low * 0.999_999..=high * 1.000_001).contains(v);
    let of = |digits: &[f64], every: i32| -> Vec<f64> {
        let powers = decades.clone().filter(|power| power.rem_euclid(every) == 0);
        let values = powers.flat_map(|power| digits.iter().map(move |digit| scaled(*digit, power)));
        values.filter(inside).collect()
    };
    let choices = [
        of(&[1.0, 2.0, 5.0], 1),
        of(&[1.0, 2.0, 3.0, 5.0, 7.0], 1),
        of(&[1.0, 3.0], 1),
        of(&[1.0], 1),
        of(&[1.0], 2),
        of(&[1.0], 3),
    ];
    let fits = |ticks: &Vec<f64>| ticks.len() >= 4 && ticks.len() <= wanted + 3;
    match choices.into_iter().find(fits) {
        Some(ticks) => ticks,
        None if high / low < 100.0 => linear(low, high, wanted).into_iter().filter(|v| *v > 0.0).collect(),
        None => of(&[1.0], 4.max((high / low).log10() as i32 / wanted.max(1) as i32)),
    }
}

/// `digit` times ten to the `power`, as near as a division gives it.
fn scaled(digit: f64, power: i32) -> f64 {
    if power < 0 { digit / 10f64.powi(-power) } else { digit * 10f64.powi(power) }
}

/// The range that shows `lines` well and all of `always`, of values above zero on a logarithmic scale; `None` of
/// nothing.
///
/// Lines that reach so high that they would stretch the range of all others more than two and a half times are left
/// out, at most a third of all; the drawing clips them. What is plotted gets better downwards or ends at 1, so bad
/// lines are high ones.
pub(super) fn range(lines: &[Vec<f64>], always: &[f64], scale: Scale) -> Option<(f64, f64)> {
    let ends = |values: &[f64]| {
        let of = values.iter().copied().filter(|v| v.is_finite() && (scale == Scale::Linear || *v > 0.0));
        of.fold(None, |ends: Option<(f64, f64)>, v| {
            let v = scale.bounded(v);
            Some(ends.map_or((v, v), |(low, high)| (low.min(v), high.max(v))))
        })
    };
    let mut spans: Vec<(f64, f64)> = lines.iter().filter_map(|line| ends(line)).collect();
    spans.sort_by(|a, b| b.1.total_cmp(&a.1));
    let always = ends(always);
    let join = |spans: &[(f64, f64)]| {
        let all = spans.iter().copied().chain(always);
        all.reduce(|(low, high), (l, h)| (low.min(l), high.max(h)))
    };
    let length = |(low, high): (f64, f64)| scale.of(high) - scale.of(low);
    let mut best = join(&spans)?;
    for left_out in 1..=spans.len() / 3 {
        let Some(rest) = join(&spans[left_out..]) else { break };
        if length(rest) > 0.0 && length(rest) * 2.5 < length(best) {
            best = rest;
        }
    }
    Some(best)
}

/// `(low, high)` with a little air, and wider than a point.
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

/// A number of an axis: as many digits as it needs, at most four.
pub(super) fn short(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let size = value.abs().log10().floor() as i32;
    if !(-4..6).contains(&size) {
        let text = format!("{value:.1e}");
        return text.replace(".0e", "e");
    }
    let digits = (3 - size).max(0) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// A number of bytes of an axis.
pub(super) fn short_bytes(value: f64) -> String {
    let (unit, name) = match value.abs() {
        v if v >= 1e9 => (1e9, "GB"),
        v if v >= 1e6 => (1e6, "MB"),
        v if v >= 1e3 => (1e3, "kB"),
        _ => (1.0, "B"),
    };
    format!("{} {name}", short((value / unit * 1e3).round() / 1e3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(scale: Scale, low: f64, high: f64) -> Axis {
        Axis { scale, low, high, from: 100.0, to: 0.0 }
    }

    #[test]
    fn every_range_has_ticks_with_numbers() {
        assert_eq!(axis(Scale::Linear, -0.02, 1.02).ticks(5), [0.0, 0.5, 1.0]);
        assert_eq!(axis(Scale::Linear, 0.0, 1.0).ticks(5), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(axis(Scale::Log, 0.05, 1.0).ticks(6), [0.05, 0.1, 0.2, 0.5, 1.0]);
        assert_eq!(axis(Scale::Log, 1e-4, 10.0).ticks(6), [1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0]);
        // A short range of a logarithmic axis has more than its powers of ten.
        for (low, high) in [(4.5, 6.1), (1.0, 1.02), (0.9, 40.0), (1e-9, 1e3), (3.0, 4.0), (99.0, 101.0)] {
            let ticks = axis(Scale::Log, low, high).ticks(6);
            assert!((3..=12).contains(&ticks.len()), "{low} to {high}: {ticks:?}");
            assert!(ticks.iter().all(|t| (low..=high).contains(t)), "{ticks:?}");
        }
        assert_eq!(axis(Scale::Log, 1.0, 100.0).at(10.0), 50.0);
        // Documents of extreme numbers.
        for scale in [Scale::Linear, Scale::Log] {
            let (low, high) = widened(range(&[], &[1e-320, 1.0, 1e300], scale).unwrap(), scale);
            let ticks = axis(scale, low, high).ticks(6);
            assert!((2..=12).contains(&ticks.len()), "{scale:?}: {ticks:?}");
            let ends = [1e-320, 1e300].map(|value| axis(scale, low, high).at(value));
            assert!(ends.iter().all(|end| (-0.1..=100.1).contains(end)), "{scale:?}: {ends:?}");
        }
    }

    #[test]
    fn one_bad_line_does_not_stretch_the_rest() {
        let good = [vec![1.0, 1.5], vec![1.1, 1.3], vec![1.0, 1.2]];
        let of = |lines: &[Vec<f64>], scale| range(lines, &[], scale);
        assert_eq!(of(&good, Scale::Linear), Some((1.0, 1.5)));
        let with = |bad: Vec<f64>, scale| of(&[&good[..], &[bad]].concat(), scale);
        assert_eq!(with(vec![1.2, 40.0], Scale::Linear), Some((1.0, 1.5)));
        assert_eq!(with(vec![1.2, 1.9], Scale::Linear), Some((1.0, 1.9)));
        assert_eq!(with(vec![1e4, 1.1], Scale::Log), Some((1.0, 1.5)));
        // A line that is better than all others is never left out, nor what is always shown.
        assert_eq!(with(vec![1e-4], Scale::Log), Some((1e-4, 1.5)));
        assert_eq!(range(&good, &[1e-3], Scale::Log), Some((1e-3, 1.5)));
        // Two lines: nobody can say which is the bad one.
        assert_eq!(of(&[vec![1.0], vec![50.0]], Scale::Linear), Some((1.0, 50.0)));
        assert_eq!(of(&[vec![f64::NAN]], Scale::Linear), None);
    }

    #[test]
    fn numbers_are_short() {
        let all = [0.05, 1.0, 0.25, 12345.0, 1e-5, 2.5e7, 1.0 / 3.0, -2.0].map(short);
        assert_eq!(all, ["0.05", "1", "0.25", "12345", "1e-5", "2.5e7", "0.3333", "-2"]);
        assert_eq!([1500.0, 2e6, 999.0].map(short_bytes), ["1.5 kB", "2 MB", "999 B"]);
    }
}
