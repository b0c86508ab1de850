//! The numbers of a study.

use ndarray::{Array2, ArrayView1};
use serde::{Deserialize, Serialize};

use super::attention::{AttentionMeans, Mean};
use super::sequence::Sequence;
use super::trace::Trace;
use crate::sampling::argmax;

/// Accuracy of one policy; the [module](super) defines each number.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    /// Perplexity of the scored tokens.
    pub perplexity: f64,
    /// Perplexity divided by that of the full cache.
    pub perplexity_ratio: f64,
    /// Share of scored positions whose most probable token is the right one.
    pub accuracy: f64,
    /// Share of scored positions whose most probable token is that of the full cache.
    pub agreement: f64,
    /// Kullback-Leibler divergence from the full cache's distribution, in nats.
    pub kl: f64,
    /// Attention mass kept.
    pub attention_mass: Option<f64>,
    /// Relative error of the attention's output.
    pub output_error: Option<f64>,
    /// Recall of the tokens with the largest scores.
    pub top_k_recall: Option<f64>,
    /// Overlap of adjacent layers.
    pub layer_overlap: Option<f64>,
    /// Share of the tokens that was looked at.
    pub attended: Option<f64>,
}

/// How a metric is shown.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Name of its field, also of its plot's file.
    pub key: &'static str,
    /// Head of its column.
    pub short: &'static str,
    /// Title of its plot.
    pub title: &'static str,
    /// Whether it is a share of 1; others have no upper end.
    pub share: bool,
    /// The number.
    pub of: fn(&Metrics) -> Option<f64>,
}

macro_rules! metric {
    ($key:ident, $short:literal, $title:literal, $share:literal, $of:expr) => {
        Metric { key: stringify!($key), short: $short, title: $title, share: $share, of: $of }
    };
}

/// All metrics, in the order of tables.
pub const METRICS: [Metric; 10] = [
    metric!(perplexity, "ppl", "Perplexity", false, |m| Some(m.perplexity)),
    metric!(perplexity_ratio, "ratio", "Perplexity relative to the full cache", false, |m| Some(m.perplexity_ratio)),
    metric!(accuracy, "right", "Share of right next tokens", true, |m| Some(m.accuracy)),
    metric!(agreement, "agree", "Next-token agreement with the full cache", true, |m| Some(m.agreement)),
    metric!(kl, "KL", "KL(full || pruned) of next-token distributions, nats", false, |m| Some(m.kl)),
    metric!(attention_mass, "mass", "Attention mass kept", true, |m| m.attention_mass),
    metric!(output_error, "error", "Relative error of the attention output", false, |m| m.output_error),
    metric!(top_k_recall, "recall", "Recall of the tokens with the largest scores", true, |m| m.top_k_recall),
    metric!(layer_overlap, "overlap", "Overlap of adjacent layers' token sets", true, |m| m.layer_overlap),
    metric!(attended, "attended", "Share of the tokens attended to", true, |m| m.attended),
];

/// Sums over sequences.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    nll: Mean,
    accuracy: Mean,
    agreement: Mean,
    kl: Mean,
    attention: AttentionMeans,
}

impl Totals {
    /// The sums of `trace` over `sequence`; `full` has the logits of the full cache.
    pub(super) fn new(sequence: &Sequence, trace: &Trace, full: &Array2<f32>) -> Self {
        let mut totals = Totals { attention: trace.attention.unwrap_or_default(), ..Totals::default() };
        assert_eq!(trace.logits.dim(), full.dim(), "one row for every scored position");
        for ((row, full), target) in trace.logits.rows().into_iter().zip(full.rows()).zip(sequence.targets()) {
            let (log_p, log_full) = (log_softmax(row), log_softmax(full));
            let best = argmax(row);
            totals.nll.add(-log_p[target as usize]);
            totals.accuracy.add(f64::from(best == target as usize));
            totals.agreement.add(f64::from(best == argmax(full)));
            totals.kl.add(log_full.iter().zip(&log_p).map(|(f, p)| f.exp() * (f - p)).sum());
        }
        totals
    }

    pub(super) fn merge(&mut self, other: &Totals) {
        let Totals { nll, accuracy, agreement, kl, attention } = *other;
        self.nll.merge(nll);
        self.accuracy.merge(accuracy);
        self.agreement.merge(agreement);
        self.kl.merge(kl);
        self.attention.merge(attention);
    }

    /// The metrics, beside those sums of the full cache. Sequences have a scored position each.
    pub(super) fn metrics(&self, full: &Totals) -> Metrics {
        let mean = |mean: Mean| mean.get().unwrap_or(f64::NAN);
        let (nll, full) = (mean(self.nll), mean(full.nll));
        Metrics {
            perplexity: nll.exp(),
            perplexity_ratio: (nll - full).exp(),
            accuracy: mean(self.accuracy),
            agreement: mean(self.agreement),
            // Rounding may put a divergence of zero slightly below zero.
            kl: mean(self.kl).max(0.0),
            attention_mass: self.attention.mass(),
            output_error: self.attention.output_error(),
            top_k_recall: self.attention.top_k_recall(),
            layer_overlap: self.attention.layer_overlap(),
            attended: self.attention.attended(),
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
        let totals =
            |logits: &Array2<f32>| Totals::new(&sequence, &Trace { logits: logits.clone(), attention: None }, &full);
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
        };
        let json = serde_json::to_value(metrics).unwrap();
        assert_eq!(json.as_object().unwrap().len(), METRICS.len());
        for (i, metric) in METRICS.iter().enumerate() {
            assert_eq!(json[metric.key].as_f64(), Some(i as f64), "{}", metric.key);
            assert_eq!((metric.of)(&metrics), Some(i as f64), "{}", metric.key);
        }
    }
}
