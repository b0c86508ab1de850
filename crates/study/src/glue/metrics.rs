//! The metrics of GLUE's tasks (Wang et al., ICLR 2019, table 1).

/// A metric. It is computed from pairs of a prediction and the right answer.
pub(super) struct Metric {
    pub(super) key: &'static str,
    /// The smallest and the largest value of the metric.
    pub(super) range: (f64, f64),
    pub(super) of: fn(&[(f64, f64)]) -> f64,
}

const fn share(key: &'static str, of: fn(&[(f64, f64)]) -> f64) -> Metric {
    Metric { key, range: (0.0, 1.0), of }
}

const fn correlation(key: &'static str, of: fn(&[(f64, f64)]) -> f64) -> Metric {
    Metric { key, range: (-1.0, 1.0), of }
}

/// The metrics of a model with `outputs` outputs. A model with one output gives a score. With two outputs it gives
/// one of two classes; with more, only the accuracy of its classes is measured.
pub(super) fn metrics(outputs: usize) -> &'static [Metric] {
    static SCORES: [Metric; 2] = [correlation("pearson", pearson), correlation("spearman", spearman)];
    static CLASSES: [Metric; 3] = [share("accuracy", accuracy), share("f1", f1), correlation("matthews", pearson)];
    match outputs {
        1 => &SCORES,
        2 => &CLASSES,
        _ => &CLASSES[..1],
    }
}

fn accuracy(pairs: &[(f64, f64)]) -> f64 {
    pairs.iter().filter(|(got, want)| got == want).count() as f64 / pairs.len() as f64
}

/// The F1 score of class 1: 2 tp / (2 tp + fp + fn), with tp true positives, fp false positives and fn false
/// negatives. It is 0 if the class neither occurs nor is predicted.
fn f1(pairs: &[(f64, f64)]) -> f64 {
    let count = |of: (f64, f64)| pairs.iter().filter(|pair| **pair == of).count() as f64;
    let right = 2.0 * count((1.0, 1.0));
    if right == 0.0 { 0.0 } else { right / (right + count((1.0, 0.0)) + count((0.0, 1.0))) }
}

/// The correlation of predictions with right answers, or 0 if the predictions or the right answers are all equal. For
/// two classes it is Matthews' correlation.
pub(crate) fn pearson(pairs: &[(f64, f64)]) -> f64 {
    let n = pairs.len() as f64;
    let (x, y) = pairs.iter().fold((0.0, 0.0), |(x, y), pair| (x + pair.0 / n, y + pair.1 / n));
    let sum = |of: fn(f64, f64) -> f64| pairs.iter().map(|pair| of(pair.0 - x, pair.1 - y)).sum::<f64>();
    let spread = (sum(|a, _| a * a) * sum(|_, b| b * b)).sqrt();
    if spread > 0.0 { sum(|a, b| a * b) / spread } else { 0.0 }
}

/// The correlation of the ranks of predictions with the ranks of right answers. Equal values share the mean of their
/// ranks.
fn spearman(pairs: &[(f64, f64)]) -> f64 {
    let [got, want] = [|pair: &(f64, f64)| pair.0, |pair: &(f64, f64)| pair.1].map(|of| ranks(pairs.iter().map(of)));
    pearson(&got.into_iter().zip(want).collect::<Vec<_>>())
}

fn ranks(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let values: Vec<f64> = values.collect();
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    let mut first = 0;
    for equal in order.chunk_by(|a, b| values[*a] == values[*b]) {
        let mean = first as f64 + (equal.len() - 1) as f64 / 2.0;
        equal.iter().for_each(|i| ranks[*i] = mean);
        first += equal.len();
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(got: f64, want: f64) {
        assert!((got - want).abs() < 1e-12, "{got} for {want}");
    }

    #[test]
    fn metrics_by_hand() {
        // tp 3, fp 1, fn 2, tn 4.
        let mut pairs = vec![(1.0, 1.0); 3];
        pairs.extend([(1.0, 0.0), (0.0, 1.0), (0.0, 1.0), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0)]);
        close(accuracy(&pairs), 0.7);
        close(f1(&pairs), 6.0 / 9.0);
        // (tp tn - fp fn) / sqrt((tp + fp) (tp + fn) (tn + fp) (tn + fn))
        close(pearson(&pairs), (12.0 - 2.0) / f64::sqrt(4.0 * 5.0 * 5.0 * 6.0));
        assert_eq!((f1(&[(0.0, 0.0)]), pearson(&[(1.0, 0.0), (1.0, 1.0)])), (0.0, 0.0));
        let scores = [(1.0, 10.0), (2.0, 20.0), (2.0, 25.0), (4.0, 1000.0)];
        // Ranks 0, 1.5, 1.5, 3 and 0, 1, 2, 3: covariance 4.5, variances 4.5 and 5.
        close(spearman(&scores), 4.5 / f64::sqrt(4.5 * 5.0));
        assert!(pearson(&scores) < 0.95);
    }
}
