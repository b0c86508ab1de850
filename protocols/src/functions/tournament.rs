//! One round of a binary tournament on rows that lie one after another.

/// The pairs of a round.
pub(super) struct Round {
    /// Positions of the pairs.
    pub(super) left: Vec<usize>,
    pub(super) right: Vec<usize>,
    /// Positions of the entries that rest: the last of each row of odd length.
    pub(super) single: Vec<usize>,
    /// The order of the rows, as indices into the winners followed by the entries that rest.
    pub(super) order: Vec<usize>,
    /// Lengths of the rows after the round.
    pub(super) next: Vec<usize>,
}

/// Pairs the first half of each row with the second.
pub(super) fn pair(lengths: &[usize]) -> Round {
    let pairs: usize = lengths.iter().map(|n| n / 2).sum();
    let mut round = Round {
        left: Vec::with_capacity(pairs),
        right: Vec::with_capacity(pairs),
        single: vec![],
        order: vec![],
        next: lengths.iter().map(|n| n.div_ceil(2)).collect(),
    };
    let mut start = 0;
    for &n in lengths {
        for i in start..start + n / 2 {
            round.order.push(round.left.len());
            round.left.push(i);
            round.right.push(i + n / 2);
        }
        if n % 2 == 1 {
            round.order.push(pairs + round.single.len());
            round.single.push(start + n - 1);
        }
        start += n;
    }
    round
}
