//! Public lengths of rows that lie one after another in a vector.

use std::ops::Range;
use std::sync::Arc;

use crate::indices::Indices;

/// The lengths of rows that lie one after another in a vector. They are a pattern that repeats, because the rows of
/// all heads are alike. The number of rows of each length, on which costs depend, is kept with them. Clones share
/// both.
#[derive(Clone, Debug)]
pub struct Lengths {
    pattern: Arc<[usize]>,
    times: usize,
    /// The number of rows of each length.
    counts: Counts,
}

impl Lengths {
    /// The lengths `pattern`, `times` times.
    pub fn repeated(pattern: impl Into<Arc<[usize]>>, times: usize) -> Self {
        let pattern = pattern.into();
        let mut sorted = pattern.to_vec();
        sorted.sort();
        let runs = sorted.chunk_by(|a, b| a == b).filter(|_| times > 0);
        let counts = Counts(runs.map(|run| (run[0], run.len() * times)).collect());
        Lengths { pattern, times, counts }
    }

    /// `rows` rows of `n`.
    pub fn equal(n: usize, rows: usize) -> Self {
        Lengths::repeated([n], rows)
    }

    /// The lengths of several lists of rows, one list after another.
    pub fn joined(lists: &[Self]) -> Self {
        match lists {
            [one] => one.clone(),
            many => Lengths::repeated(many.iter().flat_map(Lengths::iter).collect::<Vec<_>>(), 1),
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.pattern.len() * self.times
    }

    /// Entries of all rows.
    pub fn total(&self) -> usize {
        self.counts.sum(|n| n)
    }

    /// The number of rows of each length.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The length of each row.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.times).flat_map(|_| self.pattern.iter().copied())
    }

    /// Where the entries of each row lie.
    pub fn spans(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.iter().scan(0, |end, n| {
            let start = *end;
            *end += n;
            Some(start..*end)
        })
    }

    /// The lengths with every length n replaced by `of(n)`.
    pub fn map(&self, of: impl Fn(usize) -> usize) -> Self {
        Lengths::repeated(self.pattern.iter().map(|&n| of(n)).collect::<Vec<_>>(), self.times)
    }

    /// The lengths of all rows, repeated `times` times.
    pub fn times(self, times: usize) -> Self {
        Lengths::repeated(self.pattern, self.times * times)
    }

    /// The number of the row that each entry belongs to.
    pub fn owners(&self) -> Indices<'static> {
        let lengths = self.clone();
        Indices::new(self.total(), move || {
            lengths.iter().enumerate().flat_map(|(row, n)| std::iter::repeat_n(row, n)).collect()
        })
    }

    /// The position of each entry if every row is padded to `columns` entries.
    pub fn padded(&self, columns: usize) -> Indices<'static> {
        let lengths = self.clone();
        Indices::new(self.total(), move || {
            lengths.iter().enumerate().flat_map(|(row, n)| row * columns..row * columns + n).collect()
        })
    }
}

impl From<&[usize]> for Lengths {
    fn from(lengths: &[usize]) -> Self {
        Lengths::repeated(lengths, 1)
    }
}

/// The number of rows of each length: ascending by length, without lengths that no row has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Counts(Arc<[(usize, usize)]>);

impl Counts {
    /// Every length that occurs, and the number of rows that have it.
    pub fn iter(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.0.iter().copied()
    }

    /// The sum of `of` over the lengths of all rows.
    pub fn sum(&self, of: impl Fn(usize) -> usize) -> usize {
        self.iter().map(|(n, rows)| rows * of(n)).sum()
    }

    /// The length of the longest row; 0 if there are no rows.
    pub fn longest(&self) -> usize {
        self.0.last().map_or(0, |&(n, _)| n)
    }

    /// The counts of the lengths divided by `by`, rounded up.
    pub fn divided(&self, by: usize) -> Self {
        let mut counts = Vec::new();
        self.divide_into(by, &mut counts);
        Counts(counts.into())
    }

    /// Puts the counts of [`Counts::divided`] into `counts`, in the place of what it held.
    pub(crate) fn divide_into(&self, by: usize, counts: &mut Vec<(usize, usize)>) {
        counts.clear();
        for (n, rows) in self.iter() {
            let n = n.div_ceil(by);
            match counts.last_mut() {
                Some((last, count)) if *last == n => *count += rows,
                _ => counts.push((n, rows)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_pattern_stands_for_the_explicit_list(
            pattern in prop::collection::vec(0usize..9, 0..12),
            times in 0usize..4,
            by in 1usize..5,
        ) {
            let lengths = Lengths::repeated(pattern.clone(), times);
            let list = pattern.repeat(times);
            prop_assert_eq!(lengths.iter().collect::<Vec<_>>(), list.clone());
            prop_assert_eq!(lengths.rows(), list.len());
            prop_assert_eq!(lengths.total(), list.iter().sum::<usize>());
            prop_assert_eq!(lengths.counts().clone(), Lengths::from(&list[..]).counts().clone());
            prop_assert_eq!(lengths.counts().longest(), list.iter().copied().max().unwrap_or(0));
            prop_assert_eq!(lengths.counts().sum(|n| n * n), list.iter().map(|n| n * n).sum::<usize>());
            let divided: Vec<usize> = list.iter().map(|n| n.div_ceil(by)).collect();
            prop_assert_eq!(lengths.counts().divided(by), Lengths::from(&divided[..]).counts().clone());
            prop_assert_eq!(lengths.map(|n| n.div_ceil(by)).iter().collect::<Vec<_>>(), divided);
            prop_assert_eq!(lengths.clone().times(2).iter().collect::<Vec<_>>(), list.repeat(2));

            let joined = Lengths::joined(&[lengths.clone(), Lengths::equal(3, 2), lengths.clone()]);
            let lists = [&list[..], &[3, 3], &list];
            prop_assert_eq!(joined.iter().collect::<Vec<_>>(), lists.concat());
            prop_assert_eq!(joined.counts().clone(), Lengths::from(&lists.concat()[..]).counts().clone());

            let (mut owners, mut padded, mut spans, mut start) = (vec![], vec![], vec![], 0);
            for (row, &n) in list.iter().enumerate() {
                owners.extend(vec![row; n]);
                padded.extend((0..n).map(|i| 10 * row + i));
                spans.push(start..start + n);
                start += n;
            }
            prop_assert_eq!(lengths.owners().list().to_vec(), owners);
            prop_assert_eq!(lengths.padded(10).list().to_vec(), padded);
            prop_assert_eq!(lengths.spans().collect::<Vec<_>>(), spans);
        }
    }
}
