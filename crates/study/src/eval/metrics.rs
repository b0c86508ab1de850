//! The metrics of a study.

use ndarray::{Array2, ArrayView1};
use serde::{Deserialize, Serialize};
use waggle_model::argmax;

use super::EvalError;
use super::attention::{AttentionMeans, Mean};
use super::sequence::Sequence;

/// The metrics of one policy; the [module](super) defines each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    /// Perplexity of the scored tokens.
    pub perplexity: f64,
    /// Perplexity divided by the full cache's perplexity.
    pub perplexity_ratio: f64,
    /// Share of scored positions whose most probable token is the right one.
    pub accuracy: f64,
    /// Share of scored positions whose most probable token is the same as with the full cache.
    pub agreement: f64,
    /// Kullback-Leibler divergence from the full cache's distribution, in nats.
    pub kl: f64,
    /// Share of the attention that goes to the tokens to which queries attended.
    pub attention_mass: Option<f64>,
    /// Relative error of the attention's output.
    pub output_error: Option<f64>,
    /// Share of the attended tokens that are among the tokens with the largest scores.
    pub top_k_recall: Option<f64>,
    /// Share of the tokens attended in one layer that are also attended in the next layer.
    pub layer_overlap: Option<f64>,
    /// Share of the tokens to which queries attended.
    pub attended: Option<f64>,
    /// Number of tokens to which queries attended.
    #[serde(default)]
    pub attended_tokens: Option<f64>,
    /// Share of the answers in which every token is right.
    #[serde(default)]
    pub exact_match: Option<f64>,
    /// Mean score of generated answers.
    #[serde(default)]
    pub score: Option<f64>,
}

/// How a metric is named, shown and read.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Name of the metric's field, and of its plot's file.
    pub key: &'static str,
    /// Head of the metric's column.
    pub short: &'static str,
    /// Title of the metric's plot.
    pub title: &'static str,
    /// Whether the metric is a share, from 0 to 1. Other metrics have no upper bound.
    pub share: bool,
    /// Whether smaller values are better.
    pub loss: bool,
    /// Returns the metric's value, if it was measured.
    pub of: fn(&Metrics) -> Option<f64>,
}

impl Metric {
    /// The metric called `key`.
    pub fn named(key: &str) -> Option<&'static Metric> {
        METRICS.iter().find(|metric| metric.key == key)
    }

    /// A few words for the axis of a plot.
    pub fn short_title(&self) -> &'static str {
        match self.key {
            "perplexity_ratio" => "perplexity / that of the full cache",
            "accuracy" => "share of right tokens",
            "agreement" => "agreement with the full cache",
            "kl" => "KL divergence, nats",
            "output_error" => "relative error",
            "top_k_recall" => "recall",
            "layer_overlap" => "overlap",
            "attended" => "share of tokens",
            "exact_match" => "share of right answers",
            "score" => "mean score",
            "attention_mass" => "attention mass",
            "attended_tokens" => "tokens",
            _ => self.short,
        }
    }

    /// Whether the metric is a geometric mean. The interval of such a metric is computed from logarithms, so that its
    /// error is a factor.
    pub(super) fn geometric(&self) -> bool {
        matches!(self.key, "perplexity" | "perplexity_ratio")
    }
}

macro_rules! metric {
    ($key:ident, $short:literal, $title:literal, $kind:ident, $of:expr) => {
        Metric {
            key: stringify!($key),
            short: $short,
            title: $title,
            share: metric!(@share $kind),
            loss: metric!(@loss $kind),
            of: $of,
        }
    };
    (@share share) => { true };
    (@share $other:ident) => { false };
    (@loss loss) => { true };
    (@loss $other:ident) => { false };
}

/// All metrics, in the order of tables.
pub const METRICS: [Metric; 13] = [
    metric!(perplexity, "ppl", "Perplexity", loss, |m| Some(m.perplexity)),
    metric!(perplexity_ratio, "ratio", "Perplexity relative to the full cache", loss, |m| Some(m.perplexity_ratio)),
    metric!(accuracy, "right", "Share of right next tokens", share, |m| Some(m.accuracy)),
    metric!(agreement, "agree", "Next-token agreement with the full cache", share, |m| Some(m.agreement)),
    metric!(kl, "KL", "KL(full || pruned) of next-token distributions, nats", loss, |m| Some(m.kl)),
    metric!(attention_mass, "mass", "Attention mass kept", share, |m| m.attention_mass),
    metric!(output_error, "error", "Relative error of the attention output", loss, |m| m.output_error),
    metric!(top_k_recall, "recall", "Recall of the tokens with the largest scores", share, |m| m.top_k_recall),
    metric!(layer_overlap, "overlap", "Overlap of adjacent layers' token sets", share, |m| m.layer_overlap),
    metric!(attended, "attended", "Share of the tokens attended to", share, |m| m.attended),
    metric!(attended_tokens, "tokens", "Tokens attended to", count, |m| m.attended_tokens),
    metric!(exact_match, "exact", "Share of answers that are right in every token", share, |m| m.exact_match),
    metric!(score, "score", "Mean score of generated answers", share, |m| m.score),
];

/// The results of a run over one sequence, from which metrics are computed.
#[derive(Clone, Debug)]
pub struct Trace {
    /// Logits (scored positions, vocabulary).
    pub logits: Array2<f32>,
    /// Means of attention, if the engine sees its values.
    pub attention: Option<AttentionMeans>,
    /// The tokens that were generated after the prompt, if the sequence asks for an answer.
    pub generated: Option<Vec<u32>>,
}

/// For each metric, a mean to which the numbers of one or more sequences were added.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    nll: Mean,
    accuracy: Mean,
    agreement: Mean,
    kl: Mean,
    exact: Mean,
    score: Mean,
    attention: AttentionMeans,
}

impl Totals {
    /// The sums over the positions and answers of one sequence. `trace` is a policy's run over it, and `full` has the
    /// logits of the full cache.
    pub(super) fn new(sequence: &Sequence, trace: &Trace, full: &Array2<f32>) -> Result<Self, EvalError> {
        let mut totals = Totals { attention: trace.attention.unwrap_or_default(), ..Totals::default() };
        assert_eq!(trace.logits.dim(), full.dim(), "one row for every scored position");
        let mut right = Vec::with_capacity(full.nrows());
        for ((row, full), target) in trace.logits.rows().into_iter().zip(full.rows()).zip(sequence.targets()) {
            let (log_p, log_full) = (log_softmax(row), log_softmax(full));
            let best = argmax(row);
            right.push(best == target as usize);
            totals.nll.add(-log_p[target as usize]);
            totals.accuracy.add(f64::from(best == target as usize));
            totals.agreement.add(f64::from(best == argmax(full)));
            totals.kl.add(log_full.iter().zip(&log_p).map(|(f, p)| f.exp() * (f - p)).sum());
        }
        for answer in sequence.answers() {
            totals.exact.add(f64::from(right[answer].iter().all(|right| *right)));
        }
        if let (Some(wanted), Some(ids)) = (sequence.wanted(), &trace.generated) {
            totals.score.add(wanted.grader.grade(ids)?);
        }
        Ok(totals)
    }

    /// All sums, in a fixed order.
    fn each(&mut self) -> impl Iterator<Item = &mut Mean> {
        let Totals { nll, accuracy, agreement, kl, exact, score, attention } = self;
        [nll, accuracy, agreement, kl, exact, score].into_iter().chain(attention.each())
    }

    /// The sums over all sequences, from the sums of each.
    pub(super) fn sum(all: &[Totals]) -> Totals {
        let mut sum = Totals::default();
        for mut totals in all.iter().copied() {
            sum.each().zip(totals.each()).for_each(|(sum, mean)| sum.merge(*mean));
        }
        sum
    }

    /// The sums without those of `other`, which must have been merged into them before.
    pub(super) fn without(mut self, mut other: Totals) -> Totals {
        self.each().zip(other.each()).for_each(|(sum, mean)| *sum = sum.without(*mean));
        self
    }

    /// The metrics that follow from these sums. `full` are the sums of the full cache over the same sequences. Every
    /// sequence must have a scored position.
    pub(super) fn metrics(&self, full: &Totals) -> Metrics {
        let mean = |mean: Mean| mean.get().unwrap_or(f64::NAN);
        let (nll, full) = (mean(self.nll), mean(full.nll));
        Metrics {
            perplexity: nll.exp(),
            perplexity_ratio: (nll - full).exp(),
            accuracy: mean(self.accuracy),
            agreement: mean(self.agreement),
            // Rounding may turn a divergence of zero slightly negative.
            kl: mean(self.kl).max(0.0),
            attention_mass: self.attention.mass.get(),
            output_error: self.attention.output_error.get(),
            top_k_recall: self.attention.top_k_recall.get(),
            layer_overlap: self.attention.layer_overlap.get(),
            attended: self.attention.attended.get(),
            attended_tokens: self.attention.attended_tokens.get(),
            exact_match: self.exact.get(),
            score: self.score.get(),
        }
    }
}

fn log_softmax(logits: ArrayView1<f32>) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let shifted: Vec<f64> = logits.iter().map(|l| f64::from(*l) - f64::from(max)).collect();
    let log_sum = shifted.iter().map(|l| l.exp()).sum::<f64>().ln();
    shifted.into_iter().map(|l| l - log_sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::array;

    #[test]
    fn two_positions_by_hand() {
        let sequence = Sequence::of_text(&[0, 1, 1, 0], 1).unwrap();
        let ln = |p: f32| p.ln();
        // The policy gives token 1 probabilities 1/2 and 3/4, the full cache 3/4 and 3/4.
        let pruned = array![[ln(0.5), ln(0.5)], [ln(0.25), ln(0.75)]];
        let full = array![[ln(0.25), ln(0.75)], [ln(0.25), ln(0.75)]];
        let totals = |logits: &Array2<f32>| {
            let trace = Trace { logits: logits.clone(), attention: None, generated: None };
            Totals::new(&sequence, &trace, &full).unwrap()
        };
        let got = totals(&pruned).metrics(&totals(&full));
        let close = |got: f64, want: f64| assert!((got - want).abs() < 1e-6, "{got} for {want}");
        close(got.perplexity, (0.5f64 * 0.25).powf(-0.5));
        close(got.perplexity_ratio, (0.75f64 / 0.5).powf(0.5));
        close(got.kl, 0.5 * (0.25 * 0.5f64.ln() + 0.75 * 1.5f64.ln()));
        // The targets are 1 and 0; ties go to the first token.
        assert_eq!((got.accuracy, got.agreement), (0.0, 0.5));
        let same = totals(&full).metrics(&totals(&full));
        assert_eq!((same.perplexity_ratio, same.kl, same.agreement, same.accuracy), (1.0, 0.0, 1.0, 0.5));
        assert_eq!(same.attention_mass, None);
    }

    #[test]
    fn keys_are_the_names_of_fields() {
        let metrics = Metrics {
            perplexity: 0.0,
            perplexity_ratio: 1.0,
            accuracy: 2.0,
            agreement: 3.0,
            kl: 4.0,
            attention_mass: Some(5.0),
            output_error: Some(6.0),
            top_k_recall: Some(7.0),
            layer_overlap: Some(8.0),
            attended: Some(9.0),
            attended_tokens: Some(10.0),
            exact_match: Some(11.0),
            score: Some(12.0),
        };
        let json = serde_json::to_value(metrics).unwrap();
        assert_eq!(json.as_object().unwrap().len(), METRICS.len());
        for (i, metric) in METRICS.iter().enumerate() {
            assert_eq!(json[metric.key].as_f64(), Some(i as f64), "{}", metric.key);
            assert_eq!((metric.of)(&metrics), Some(i as f64), "{}", metric.key);
        }
    }
}
