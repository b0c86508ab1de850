//! One round of a binary tournament on rows that lie one after another.

use std::ops::Range;

use crate::{Indices, Lengths};

pub(super) struct Round {
    pub(super) left: Indices<'static>,
    pub(super) right: Indices<'static>,
    /// Positions of the entries that have no partner in this round: the last entry of each row of odd length.
    pub(super) single: Indices<'static>,
    /// The order of the next round's rows, as indices into a vector of the winners followed by the entries without a
    /// partner.
    pub(super) order: Indices<'static>,
    /// Lengths of the rows after the round.
    pub(super) next: Lengths,
}

/// The round that pairs the first half of each row with the second half.
pub(super) fn pair(lengths: &Lengths) -> Round {
    let pairs = lengths.counts().sum(|n| n / 2);
    let odd = lengths.counts().sum(|n| n % 2);
    // A row's contribution follows from where it lies in the vector of all entries.
    let rows = |len, of: fn(Range<usize>) -> Range<usize>| {
        let lengths = lengths.clone();
        Indices::new(len, move || lengths.spans().flat_map(of).collect())
    };
    Round {
        left: rows(pairs, |row| row.start..row.start + row.len() / 2),
        right: rows(pairs, |row| row.start + row.len() / 2..row.start + row.len() / 2 * 2),
        single: rows(odd, |row| row.end - row.len() % 2..row.end),
        order: order(lengths.clone(), pairs, odd),
        next: lengths.map(|n| n.div_ceil(2)),
    }
}

fn order(lengths: Lengths, pairs: usize, odd: usize) -> Indices<'static> {
    Indices::new(pairs + odd, move || {
        let (mut winners, mut single, mut order) = (0, pairs, Vec::with_capacity(pairs + odd));
        for n in lengths.iter() {
            order.extend(winners..winners + n / 2);
            order.extend(single..single + n % 2);
            (winners, single) = (winners + n / 2, single + n % 2);
        }
        order
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The fields left, right, single, order and next of a round, worked out row by row.
    fn explicit(lengths: &[usize]) -> [Vec<usize>; 5] {
        let pairs: usize = lengths.iter().map(|n| n / 2).sum();
        let [mut left, mut right, mut single, mut order] = [const { Vec::new() }; 4];
        let mut start = 0;
        for &n in lengths {
            for i in start..start + n / 2 {
                order.push(left.len());
                left.push(i);
                right.push(i + n / 2);
            }
            if n % 2 == 1 {
                order.push(pairs + single.len());
                single.push(start + n - 1);
            }
            start += n;
        }
        [left, right, single, order, lengths.iter().map(|n| n.div_ceil(2)).collect()]
    }

    proptest! {
        #[test]
        fn pairs_are_those_of_the_explicit_list(
            pattern in prop::collection::vec(0usize..9, 0..12),
            times in 0usize..4,
        ) {
            let lengths = pattern.repeat(times);
            let Round { left, right, single, order, next } = pair(&Lengths::repeated(pattern, times));
            let got = [left.list(), right.list(), single.list(), order.list()].map(<[usize]>::to_vec);
            let [left, right, single, order, halves] = explicit(&lengths);
            prop_assert_eq!(got, [left, right, single, order]);
            prop_assert_eq!(next.iter().collect::<Vec<_>>(), halves);
        }
    }
}
