//! Measures how a query's attention changes if the query attends to only some of the tokens.

/// A running mean.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Mean {
    sum: f64,
    count: u64,
}

impl Mean {
    pub(super) fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
    }

    pub(super) fn merge(&mut self, other: Mean) {
        self.sum += other.sum;
        self.count += other.count;
    }

    /// The mean of the numbers that remain without those of `other`. These must have been merged into this mean
    /// before.
    pub(super) fn without(self, other: Mean) -> Mean {
        Mean { sum: self.sum - other.sum, count: self.count - other.count }
    }

    /// The mean; `None` if no number was added.
    pub(super) fn get(self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }
}

/// Means of the metrics of attention; the [module](super) defines them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AttentionMeans {
    pub(super) mass: Mean,
    pub(super) output_error: Mean,
    pub(super) top_k_recall: Mean,
    pub(super) layer_overlap: Mean,
    pub(super) attended: Mean,
    pub(super) attended_tokens: Mean,
}

impl AttentionMeans {
    /// All means, in a fixed order.
    pub(super) fn each(&mut self) -> [&mut Mean; 6] {
        let AttentionMeans { mass, output_error, top_k_recall, layer_overlap, attended, attended_tokens } = self;
        [mass, output_error, top_k_recall, layer_overlap, attended, attended_tokens]
    }
}

/// A set of token positions, all below a fixed number of tokens.
#[derive(Clone, Debug)]
pub(super) struct TokenSet {
    member: Vec<bool>,
    len: usize,
}

impl TokenSet {
    /// The set of `positions` out of the positions below `tokens`. A repeated position counts once.
    ///
    /// # Panics
    /// If there are no positions, or if one is not below `tokens`. The policy is then wrong.
    pub(super) fn new(positions: &[usize], tokens: usize) -> Self {
        let mut set = TokenSet { member: vec![false; tokens], len: 0 };
        for &position in positions {
            set.len += usize::from(!std::mem::replace(&mut set.member[position], true));
        }
        assert!(set.len > 0, "a query looks at one token at least");
        set
    }

    /// Share of this set's tokens that are also in `other`.
    pub(super) fn overlap(&self, other: &TokenSet) -> f64 {
        let common = self.member.iter().zip(&other.member).filter(|(a, b)| **a && **b).count();
        common as f64 / self.len as f64
    }

    /// Share of all tokens that are in this set.
    pub(super) fn share(&self) -> f64 {
        self.len as f64 / self.member.len() as f64
    }
}

/// Keys or values of one head, with one row for each token. A row has `width` entries; the rows begin `stride`
/// entries apart.
#[derive(Clone, Copy)]
pub(super) struct HeadRows<'a> {
    pub(super) entries: &'a [f32],
    pub(super) offset: usize,
    pub(super) width: usize,
    pub(super) stride: usize,
}

impl<'a> HeadRows<'a> {
    fn iter(self) -> impl Iterator<Item = &'a [f32]> {
        self.entries.chunks_exact(self.stride).map(move |row| &row[self.offset..self.offset + self.width])
    }
}

/// Adds the metrics of one query `q` to `means`. The query attended to the tokens of `set`, and its attention gave
/// `output`. `keys` and `values` are those of all tokens. The head's `sink`, if it has one, is a term in the sum of
/// the softmax. Shares of attention refer to the attention of tokens alone, without the sink's.
pub(super) fn measure(
    means: &mut AttentionMeans,
    q: &[f32],
    sink: Option<f32>,
    keys: HeadRows,
    values: HeadRows,
    set: &TokenSet,
    output: impl Iterator<Item = f32>,
) {
    let scores: Vec<f32> = keys.iter().map(|k| q.iter().zip(k).map(|(a, b)| a * b).sum()).collect();
    assert_eq!(scores.len(), set.member.len(), "a key for every token");
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f64> = scores.iter().map(|s| f64::from((s - largest).exp())).collect();
    let (mut total, mut kept) = (0.0, 0.0);
    for (w, member) in weights.iter().zip(&set.member) {
        total += w;
        kept += if *member { *w } else { 0.0 };
    }
    means.mass.add(kept / total);
    total += sink.map_or(0.0, |sink| f64::from(sink - largest).exp());

    let mut exact = vec![0.0; q.len()];
    for (w, v) in weights.iter().zip(values.iter()) {
        exact.iter_mut().zip(v).for_each(|(o, v)| *o += w / total * f64::from(*v));
    }
    let (mut error, mut norm) = (0.0, 0.0);
    for (o, exact) in output.zip(&exact) {
        error += (f64::from(o) - exact).powi(2);
        norm += exact * exact;
    }
    // The exact output is zero in a head that is switched off.
    means.output_error.add(if error == 0.0 { 0.0 } else { (error / norm.max(f64::MIN_POSITIVE)).sqrt() });

    let mut descending = scores.clone();
    let (_, threshold, _) = descending.select_nth_unstable_by(set.len - 1, |a, b| b.total_cmp(a));
    let best = scores.iter().zip(&set.member).filter(|(s, member)| **member && **s >= *threshold).count();
    means.top_k_recall.add(best as f64 / set.len as f64);
    means.attended.add(set.share());
    means.attended_tokens.add(set.len as f64);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(entries: &[f32], offset: usize) -> HeadRows<'_> {
        HeadRows { entries, offset, width: 1, stride: 2 }
    }

    #[test]
    fn two_tokens_by_hand() {
        // Scores ln 3 and 0: weights 3/4 and 1/4, values 2 and -2: the exact output is 1.
        let (keys, values) = ([9.0, 3f32.ln(), 9.0, 0.0], [2.0, 9.0, -2.0, 9.0]);
        let mut means = AttentionMeans::default();
        let second = TokenSet::new(&[1, 1], 2);
        measure(&mut means, &[1.0], None, rows(&keys, 1), rows(&values, 0), &second, [-2.0].into_iter());
        let close = |got: Option<f64>, want: f64| assert!((got.unwrap() - want).abs() < 1e-6, "{got:?} for {want}");
        close(means.mass.get(), 0.25);
        close(means.output_error.get(), 3.0);
        close(means.top_k_recall.get(), 0.0);
        close(means.attended.get(), 0.5);
        assert_eq!(means.attended_tokens.get(), Some(1.0));
        assert_eq!(means.layer_overlap.get(), None);
        let both = TokenSet::new(&[0, 1], 2);
        assert_eq!((second.overlap(&both), both.overlap(&second)), (1.0, 0.5));
        let mut whole = AttentionMeans::default();
        measure(&mut whole, &[1.0], None, rows(&keys, 1), rows(&values, 0), &both, [1.0].into_iter());
        assert_eq!([whole.mass, whole.top_k_recall, whole.attended].map(Mean::get), [Some(1.0); 3]);
        close(whole.output_error.get(), 0.0);
        // A sink of ln 4 takes half of the attention: the output is 1/2.
        let mut sunk = AttentionMeans::default();
        let half = [0.5].into_iter();
        measure(&mut sunk, &[1.0], Some(4f32.ln()), rows(&keys, 1), rows(&values, 0), &both, half);
        close(sunk.output_error.get(), 0.0);
        whole.mass.merge(means.mass);
        close(whole.mass.get(), 0.625);
        assert_eq!(whole.mass.without(means.mass).get(), Some(1.0));
    }

    #[test]
    fn ties_count_in_favour() {
        let keys = [0.0, 5.0, 0.0, 5.0, 0.0, 7.0];
        let mut means = AttentionMeans::default();
        let set = TokenSet::new(&[1, 2], 3);
        measure(&mut means, &[1.0], None, rows(&keys, 1), rows(&keys, 1), &set, [5.5].into_iter());
        assert_eq!(means.top_k_recall.get(), Some(1.0));
    }
}
