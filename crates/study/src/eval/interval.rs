//! The uncertainty of a study's numbers: 95 % confidence intervals over sequences.
//!
//! Sequences are taken as independent draws from the texts that a study represents. A metric pools the positions of
//! all sequences, so it is not a mean of equal parts, and `perplexity` is not linear. The jackknife deals with both:
//! with n sequences, T the metric and T(i) the metric without sequence i, the pseudo-values
//!
//! ```text
//! p(i) = n T - (n - 1) T(i)
//! ```
//!
//! behave like n independent draws. So the interval is T ± t s / sqrt(n). Here s² is the variance of the
//! pseudo-values, and t is the 97.5 % point of Student's t with n - 1 degrees of freedom. For a mean over sequences
//! of equal length, the pseudo-values are the sequences' own means, and the interval is the classical one. For a
//! perplexity, T is its logarithm, and the interval is a factor. A metric relative to the full cache leaves the same
//! sequence out of both runs. It is thus paired: the difficulty of a sequence cancels.
//!
//! Unlike a bootstrap, the jackknife needs no random numbers, and it holds its level with few sequences, for which
//! percentiles of resamples are too narrow. With one sequence there is no interval. If all sequences agree, for
//! example because every answer is right, the interval is a point and says nothing about other sequences.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};

use super::METRICS;
use super::metrics::{Metric, Metrics, Totals};

/// The confidence of all intervals.
pub const CONFIDENCE: f64 = 0.95;

/// A confidence interval. The module `interval` defines how it is computed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
    /// The standard error of the metric.
    pub standard_error: f64,
}

/// The confidence interval of each measured metric, by the metric's key; empty for a single sequence. `policy` has
/// the sums of a policy for each sequence, and `full` those of the full cache for the same sequences.
pub(super) fn intervals(policy: &[Totals], full: &[Totals]) -> BTreeMap<String, Interval> {
    let (all, all_of_full) = (Totals::sum(policy), Totals::sum(full));
    let whole = all.metrics(&all_of_full);
    let without: Vec<Metrics> =
        policy.iter().zip(full).map(|(p, f)| all.without(*p).metrics(&all_of_full.without(*f))).collect();
    let of = |metric: &Metric| {
        let scale = |m: &Metrics| (metric.of)(m).map(|value| if metric.geometric() { value.ln() } else { value });
        let centre = scale(&whole)?;
        let parts = without.iter().map(scale).collect::<Option<Vec<f64>>>()?;
        let range = match (metric.geometric(), metric.share) {
            (true, _) => (f64::NEG_INFINITY, f64::INFINITY),
            (_, share) => (0.0, if share { 1.0 } else { f64::INFINITY }),
        };
        let mut interval = Interval::of(centre, &parts, range)?;
        if metric.geometric() {
            let Interval { low, high, standard_error } = interval;
            interval = Interval { low: low.exp(), high: high.exp(), standard_error: centre.exp() * standard_error };
        }
        Some((metric.key.to_owned(), interval))
    };
    METRICS.iter().filter_map(of).collect()
}

impl Interval {
    /// The confidence interval of a statistic, cut to `range`. The statistic's value is `whole` over all parts, and
    /// `without[i]` over all parts except part i. `None` for fewer than two parts.
    pub(crate) fn of(whole: f64, without: &[f64], range: (f64, f64)) -> Option<Self> {
        let standard_error = jackknife(whole, without)?;
        let t = StudentsT::new(0.0, 1.0, (without.len() - 1) as f64).ok()?;
        let reach = standard_error * t.inverse_cdf(0.5 + CONFIDENCE / 2.0);
        let (low, high) = ((whole - reach).max(range.0), (whole + reach).min(range.1).max(whole));
        low.is_finite().then_some(Interval { low, high, standard_error })
    }
}

/// The standard error of a statistic. The statistic's value is `whole` over all parts, and `without[i]` over all
/// parts except part i. `None` for fewer than two parts.
fn jackknife(whole: f64, without: &[f64]) -> Option<f64> {
    let n = without.len() as f64;
    if n < 2.0 {
        return None;
    }
    let pseudo = || without.iter().map(|part| n * whole - (n - 1.0) * part);
    let mean = pseudo().sum::<f64>() / n;
    let variance = pseudo().map(|p| (p - mean).powi(2)).sum::<f64>() / (n - 1.0);
    Some((variance / n).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::{Sequence, Trace};
    use ndarray::Array2;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    /// The sums of one sequence, with a vocabulary of two tokens and the same logits as the full cache. `right` has
    /// the probability of the right token at each position.
    fn totals(right: &[f64]) -> Totals {
        let ids = vec![0; right.len() + 2];
        let sequence = Sequence::of_text(&ids, 1).unwrap();
        let logits = Array2::from_shape_fn((right.len(), 2), |(i, token)| {
            if token == 0 { right[i].ln() as f32 } else { (1.0 - right[i]).ln() as f32 }
        });
        let trace = Trace { logits: logits.clone(), attention: None, generated: None };
        Totals::new(&sequence, &trace, &logits).unwrap()
    }

    fn close(got: f64, want: f64) {
        assert!((got - want).abs() < 1e-5, "{got} for {want}");
    }

    #[test]
    fn three_sequences_by_hand() {
        // Accuracies 1, 0.5 and 0: mean 0.5, standard deviation 0.5, t with two degrees of freedom 4.302653.
        let parts = [totals(&[0.9, 0.8]), totals(&[0.7, 0.2]), totals(&[0.4, 0.3])];
        let got = intervals(&parts, &parts);
        let error = 0.5 / 3f64.sqrt();
        close(got["accuracy"].standard_error, error);
        // 4.302653 standard errors would leave [0, 1] on both sides.
        assert_eq!((got["accuracy"].low, got["accuracy"].high), (0.0, 1.0));
        let means = [[0.9f64, 0.8], [0.7, 0.2], [0.4, 0.3]].map(|p| -(p[0].ln() + p[1].ln()) / 2.0);
        let mean = means.iter().sum::<f64>() / 3.0;
        let sd = (means.iter().map(|m| (m - mean).powi(2)).sum::<f64>() / 2.0).sqrt();
        let factor = (4.302_652_73 * sd / 3f64.sqrt()).exp();
        close(got["perplexity"].low, mean.exp() / factor);
        assert!((got["perplexity"].high / (mean.exp() * factor) - 1.0).abs() < 1e-5);
        // A run paired with itself has no differences.
        close(got["perplexity_ratio"].low, 1.0);
        close(got["perplexity_ratio"].high, 1.0);
        assert!(!got.contains_key("attention_mass"));
        assert!(intervals(&parts[..1], &parts[..1]).is_empty());
    }

    #[test]
    fn ninety_five_percent_of_the_intervals_hold_the_truth() {
        // Each sequence has 20 positions, each right with a probability of its own sequence: uniform in [0.3, 0.9].
        let mut rng = StdRng::seed_from_u64(11);
        let (studies, n, truth) = (2000, 6, 0.6);
        let mut held = 0;
        for _ in 0..studies {
            let parts: Vec<Totals> = (0..n)
                .map(|_| {
                    let p = rng.random_range(0.3..0.9);
                    let right: Vec<f64> = (0..20).map(|_| if rng.random_bool(p) { 0.9 } else { 0.1 }).collect();
                    totals(&right)
                })
                .collect();
            let interval = intervals(&parts, &parts)["accuracy"];
            held += usize::from((interval.low..=interval.high).contains(&truth));
        }
        let share = held as f64 / studies as f64;
        // Two standard deviations of the share are 0.01.
        assert!((0.93..=0.97).contains(&share), "{share}");
    }
}
