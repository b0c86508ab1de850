//! The largest entry of a row, by a tournament.
//!
//! Each round of the tournament halves every row at once: the difference of each pair is compared with 0 and the
//! winner is b + [a >= b] (a - b). Comparisons look at the differences without their low [`DROPPED`] bits, so the
//! winner may fall short of the larger by less than [`UNIT`] in each round: the result is within
//! ceil(log2 n) [`UNIT`] of the maximum, never above it, and always an entry of the row. A softmax tolerates it, because
//! its exponential takes differences down to -[`EXP_MARGIN`](super::exp::EXP_MARGIN).
//!
//! Range: |x| < 2^9 for rows of up to [`MAX_COLUMNS`]. Nothing is revealed. Per round of the tournament: one comparison
//! and one multiplexer.

use crate::abb::{Abb, Words};
use crate::{Error, FRAC, Tensor};

/// Ring of the comparisons and of the result: differences are below 2^10.
pub const MAX_WIDTH: u32 = FRAC + 11;

/// Low bits that the comparisons do not look at.
pub const DROPPED: u32 = 13;

/// Resolution of the comparisons.
pub const UNIT: f64 = 1.0 / (1u64 << (FRAC - DROPPED)) as f64;

/// Longest row: 16 rounds of the tournament stay within the margin of the exponential.
pub const MAX_COLUMNS: usize = 1 << 16;

/// Rows of different lengths `lengths` (each >= 1) one after another in the vector `x` -> (rows), modulo
/// 2^[`MAX_WIDTH`].
pub fn max_ragged<B: Abb>(b: &mut B, x: &B::Words, lengths: &[usize]) -> Result<B::Words, Error> {
    assert_eq!(x.len(), lengths.iter().sum::<usize>(), "entries of the rows");
    assert!(lengths.iter().all(|&n| (1..=MAX_COLUMNS).contains(&n)), "lengths of the rows");
    b.scope("max", |b| {
        b.expect_below(x, MAX_WIDTH - 2)?;
        let mut x = x.clone();
        let mut lengths = lengths.to_vec();
        while lengths.iter().any(|&n| n > 1) {
            let Round { left, right, single, order, next } = pair(&lengths);
            let (a, c) = (x.pick(&left), x.pick(&right));
            let difference = a.minus(&c);
            let coarse = difference.drop_low(DROPPED, MAX_WIDTH);
            let larger = b.at_least(&coarse, &[0], MAX_WIDTH - DROPPED)?.reshape(&[left.len()]);
            let winners = c.plus(&b.mux(&larger, &difference, MAX_WIDTH)?);
            x = B::Words::concat(0, &[&winners, &x.pick(&single)]).pick(&order);
            lengths = next;
        }
        Ok(x)
    })
}

/// One round of a tournament on rows one after another.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Clear;
    use crate::functions::testing::{fixed, real};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn maxima_of_ragged_rows(rows in prop::collection::vec(prop::collection::vec(-511.9f64..511.9, 1..70), 1..9)) {
            let lengths: Vec<usize> = rows.iter().map(Vec::len).collect();
            let x = fixed(&rows.concat());
            let got = max_ragged(&mut Clear::new(), &x, &lengths).unwrap();
            for (got, row) in got.iter().zip(&rows) {
                let want = row.iter().copied().fold(f64::MIN, f64::max);
                let rounds = (row.len() as f64).log2().ceil();
                prop_assert!((real(*got) - want).abs() <= rounds * UNIT + 1e-5, "{} for {}", real(*got), want);
            }
        }
    }
}
