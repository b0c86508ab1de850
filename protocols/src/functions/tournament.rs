//! One round of a binary tournament on rows one after another.

/// Who meets whom.
pub(super) struct Round {
    /// Positions of the pairs.
    pub(super) left: Vec<usize>,
    pub(super) right: Vec<usize>,
    /// Positions of the entries that rest: the last of a row of odd length.
    pub(super) single: Vec<usize>,
    /// The winners and then those who rest, put in the order of the rows.
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
