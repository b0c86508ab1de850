//! The positions of the k largest keys of every row, by quickselect on opened comparisons of shuffled keys.
//!
//! **Functionality.** Per row, shares of n keys in a uniformly random order that neither party knows, and a public
//! k -> the positions of the k largest keys, ascending, to both parties.
//!
//! **Source.** Quickselect (Hoare, CACM 1961) on shuffled shares with opened comparisons (Hamada et al., ICISC 2012).
//!
//! ```text
//! active = all positions of the row, need = k
//! while 0 < need < |active|:
//!     if |active| <= FINISH:
//!         compare all pairs; choose the keys that fewer than `need` keys exceed; end
//!     pivot = the first active key
//!     compare all other active keys with the pivot, and open the outcomes
//!     larger, smaller = the keys above and below the pivot
//!     if need <= |larger|:  active = larger
//!     else:                 choose `larger` and the pivot, need -= |larger| + 1, active = smaller
//! if need = |active|: choose all that are active
//! ```
//!
//! The pivot is uniformly random because the order is. Each round compares in one batch, which all rows share; a row
//! that is settled drops out.
//!
//! **Range.** k <= n. Keys are distinct within a row *before the shuffle* (a tie-break by the position after it would
//! leak), and their differences are signed `width`-bit values, 2 <= width <= 64, whatever the parties' inputs.
//! **Error.** None. A peer can bring about outcomes that are no ranking; unless they choose k keys, they are refused.
//!
//! **What each party sees.** The comparison's messages, and [key_i >= key_j] for the pairs compared. **Revealed.**
//! The keys are distinct and in a uniformly random order, so the opened bits and the positions are those of a
//! uniformly random ranking. Any keys give the same distribution, which depends on n and k alone, and so do rounds
//! and bytes. This needs both preconditions: equal keys, a known order or two openings would leak.
//!
//! The traffic is random. [`expected`] is its mean, which a plan books. No run takes more than the comparisons of all
//! pairs and a round for each key beyond [`FINISH`], and one more round.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::operation::prelude::*;
use crate::ops::compare;
use crate::wire::opening;

/// (rows, n) keys -> the positions of the k largest of every row, ascending, to both parties. The keys must be
/// distinct in every row and shuffled by permutations used for no other opening. A plan books the cost of a mean run
/// and returns the positions 0..k.
#[derive(Clone, Copy, Debug)]
pub struct Quickselect {
    /// Number of keys chosen in each row, at most n.
    pub k: usize,
    /// Differences of keys are signed `width`-bit values, 2..=64.
    pub width: u32,
}

impl Operation for Quickselect {
    type Input<'a, F: Form> = &'a F::Words;
    type Output<F: Form> = Vec<Vec<usize>>;
    /// Number of rows, and number of keys of each row.
    type Size = [usize; 2];

    fn size<F: Form>(&self, keys: &&F::Words) -> [usize; 2] {
        match keys.shape()[..] {
            [rows, n] if self.k <= n => [rows, n],
            ref shape => panic!("the {} largest keys of each row of {shape:?}", self.k),
        }
    }

    /// Cost of the mean run.
    fn cost(&self, &[rows, n]: &[usize; 2], _: bool, _: &mut Plans) -> Result<Cost, Error> {
        let round = |count: usize| compare::cost(count, 1, self.width).then(opening::open_cost(count, &[1]));
        let rounds = &expected(rows, n, self.k).profile;
        Ok(rounds.iter().fold(Cost::free(), |cost, &count| cost.then(round(count))))
    }

    fn run(&self, s: &mut Session, keys: &ArrayD<u64>, _: Option<&[u64]>) -> Result<Vec<Vec<usize>>, Error> {
        let [rows, n] = self.size::<Values>(&keys);
        let keys = flat(keys);
        select(rows, n, self.k, |pairs| opened(s, &keys, n, self.width, pairs))
    }

    fn reference(&self, reference: &mut Reference, keys: &ArrayD<u64>) -> Result<Vec<Vec<usize>>, Error> {
        let [_, n] = self.size::<Values>(&keys);
        let limit = 1i128 << (self.width - 1);
        let mut largest = Vec::new();
        for row in keys.rows() {
            let mut order: Vec<usize> = (0..n).collect();
            order.sort_by_key(|&i| std::cmp::Reverse(signed(row[i], self.width)));
            let value = |i: usize| i128::from(signed(row[order[i]], self.width));
            assert!((1..n).all(|i| value(i) != value(i - 1)), "keys of a selection must be distinct");
            if n > 0 && value(0) - value(n - 1) >= limit {
                return Err(reference.out_of_range("quickselect", value(0) - value(n - 1), -limit, limit - 1));
            }
            order.truncate(self.k);
            order.sort_unstable();
            largest.push(order);
        }
        Ok(largest)
    }

    fn planned(&self, [rows, _]: [usize; 2]) -> Vec<Vec<usize>> {
        vec![(0..self.k).collect(); rows]
    }
}

/// Up to this many active keys are settled by comparing all pairs. That takes at most 120 comparisons; quickselect
/// would need some 40, but in four or five rounds more.
pub const FINISH: usize = 16;

/// A row and two positions in it, whose keys are compared.
pub(crate) type Pair = (usize, usize, usize);

/// A row that is not settled.
struct Open {
    row: usize,
    /// Active positions, ascending: those of keys that may or may not be among the k largest.
    active: Vec<usize>,
    /// The number of keys at active positions that are among the k largest.
    need: usize,
}

impl Open {
    fn pairs(&self) -> impl Iterator<Item = Pair> + '_ {
        // The pairs to compare: all pairs of active keys, or the pivot with all others.
        let pivots = if self.active.len() <= FINISH { self.active.len() } else { 1 };
        let others = move |p: usize| self.active[p + 1..].iter().map(move |&other| (self.row, other, self.active[p]));
        (0..pivots).flat_map(others)
    }

    /// Takes the outcomes of [`Open::pairs`] from `bits`, and adds to `winners` the positions of keys that are now
    /// known to be among the k largest. Returns the row unless it is settled.
    fn settle(mut self, bits: &mut impl Iterator<Item = bool>, winners: &mut Vec<usize>) -> Option<Open> {
        if self.active.len() <= FINISH {
            let mut above = vec![0; self.active.len()];
            for p in 0..self.active.len() {
                for other in p + 1..self.active.len() {
                    // `bits` has an outcome for each pair.
                    let larger = bits.next().unwrap_or_default();
                    above[if larger { p } else { other }] += 1;
                }
            }
            winners.extend(self.active.iter().zip(above).filter(|(_, above)| *above < self.need).map(|(&at, _)| at));
            return None;
        }
        let pivot = self.active[0];
        let (mut larger, mut smaller) = (vec![], vec![]);
        for (&at, bit) in self.active[1..].iter().zip(bits) {
            if bit { &mut larger } else { &mut smaller }.push(at);
        }
        if self.need <= larger.len() {
            self.active = larger;
        } else {
            self.need -= larger.len() + 1;
            winners.extend(larger.into_iter().chain([pivot]));
            self.active = smaller;
        }
        self.proceed(winners)
    }

    /// Returns the row, unless its numbers of needed and active keys settle it. All active keys are then `winners`,
    /// or none.
    fn proceed(self, winners: &mut Vec<usize>) -> Option<Open> {
        if self.need == self.active.len() {
            winners.extend(&self.active);
            return None;
        }
        (self.need > 0).then_some(self)
    }
}

/// Runs the algorithm. `ask` gets all triples (row, i, j) of a round, and answers for each whether key i is larger
/// than key j.
pub(crate) fn select(
    rows: usize,
    n: usize,
    k: usize,
    mut ask: impl FnMut(&[Pair]) -> Result<Vec<bool>, Error>,
) -> Result<Vec<Vec<usize>>, Error> {
    assert!(k <= n, "the {k} largest of {n} keys");
    let mut winners = vec![Vec::with_capacity(k); rows];
    let mut open: Vec<Open> = (0..rows)
        .filter_map(|row| Open { row, active: (0..n).collect(), need: k }.proceed(&mut winners[row]))
        .collect();
    while !open.is_empty() {
        let pairs: Vec<Pair> = open.iter().flat_map(Open::pairs).collect();
        let bits = ask(&pairs)?;
        assert_eq!(bits.len(), pairs.len(), "one outcome for every comparison");
        let mut bits = bits.into_iter();
        open = open
            .into_iter()
            .filter_map(|row| {
                let winners = &mut winners[row.row];
                row.settle(&mut bits, winners)
            })
            .collect();
    }
    for (row, winners) in winners.iter_mut().enumerate() {
        // Outcomes that are no ranking may choose fewer keys or more.
        if winners.len() != k {
            return Err(Error::Winners { row, expected: k, got: winners.len() });
        }
        winners.sort_unstable();
    }
    Ok(winners)
}

/// For each (row, i, j) of `pairs`, whether key i is larger than key j, opened to both parties.
pub(crate) fn opened(
    s: &mut Session,
    keys: &[u64],
    n: usize,
    width: u32,
    pairs: &[Pair],
) -> Result<Vec<bool>, Error> {
    let difference: Vec<u64> =
        pairs.iter().map(|&(row, i, j)| keys[row * n + i].wrapping_sub(keys[row * n + j])).collect();
    let bits: Vec<u64> = compare::at_least(s, &difference, &[0], width)?.into_iter().map(u64::from).collect();
    Ok(opening::open(s, &bits, &[1])?.into_iter().map(|bit| bit == 1).collect())
}

/// What a run takes on average.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected {
    /// Mean number of comparisons.
    pub comparisons: f64,
    /// Mean number of rounds.
    pub rounds: f64,
    /// The number of comparisons in each round of a typical run, which has the mean number of rounds and of
    /// comparisons.
    pub profile: Vec<usize>,
}

const TRIALS: usize = 256;

/// What a run takes on average over keys in a uniformly random order: the mean of `TRIALS` simulated runs with a
/// fixed seed. Computed once for each (rows, n, k). The standard error of the number of comparisons is some 2 % /
/// sqrt(rows).
pub fn expected(rows: usize, n: usize, k: usize) -> Arc<Expected> {
    static KNOWN: LazyLock<Mutex<HashMap<[usize; 3], Arc<Expected>>>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.entry([rows, n, k]).or_insert_with(|| Arc::new(simulate(rows, n, k))).clone()
}

fn simulate(rows: usize, n: usize, k: usize) -> Expected {
    let mut rng = StdRng::seed_from_u64(1);
    let mut totals: Vec<usize> = Vec::new();
    let mut rounds = 0;
    for _ in 0..TRIALS {
        let keys = random_orders(&mut rng, rows, n);
        let mut round = 0;
        let done = select(rows, n, k, |pairs| {
            totals.resize(totals.len().max(round + 1), 0);
            totals[round] += pairs.len();
            round += 1;
            Ok(pairs.iter().map(|&(row, i, j)| keys[row][i] > keys[row][j]).collect())
        });
        done.expect("nothing is sent");
        rounds += round;
    }
    let mean = |sum: usize| sum as f64 / TRIALS as f64;
    let (comparisons, rounds) = (mean(totals.iter().sum()), mean(rounds));
    // Rounds beyond the mean number are folded into the last.
    let length = (rounds.round() as usize).min(totals.len());
    let mut profile: Vec<usize> = totals[..length].iter().map(|&sum| mean(sum).round() as usize).collect();
    let before: usize = profile[..length.saturating_sub(1)].iter().sum();
    if let Some(last) = profile.last_mut() {
        *last = (comparisons.round() as usize).saturating_sub(before);
    }
    Expected { comparisons, rounds, profile }
}

/// Uniform and independent orders of 0..n, one for each row. The addresses used here depend on the orders, so the
/// random bits must be public.
pub(crate) fn random_orders(rng: &mut impl Rng, rows: usize, n: usize) -> Vec<Vec<usize>> {
    let order = |_| {
        let mut order: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            order.swap(i, below(rng, i as u64 + 1) as usize);
        }
        order
    };
    (0..rows).map(order).collect()
}

/// A uniform number below `bound`, which is at least 1. Random words beyond the largest multiple of the bound are
/// drawn again.
fn below(rng: &mut impl Rng, bound: u64) -> u64 {
    let excess = (u64::MAX % bound + 1) % bound;
    loop {
        let word = rng.next_u64();
        if word <= u64::MAX - excess {
            return word % bound;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::index_bits;

    /// Outcomes of a row of three keys that form a circle: 1 beats 0, 2 beats 1, and 0 beats 2.
    fn circle(pair: &Pair) -> bool {
        matches!((pair.1, pair.2), (1, 0) | (2, 1))
    }

    #[test]
    fn outcomes_that_are_no_ranking_are_refused_by_row() {
        for (k, got) in [(1, 0), (2, 3)] {
            let outcomes =
                |pairs: &[Pair]| Ok(pairs.iter().map(|pair| if pair.0 == 1 { circle(pair) } else { true }).collect());
            match select(3, 3, k, outcomes) {
                Err(Error::Winners { row: 1, expected, got: chosen }) => assert_eq!((expected, chosen), (k, got)),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn quickselect_spends_what_theory_says() {
        // Without the finish about n (2 + 2 H(1/4)) = 3.1 n comparisons at k = n / 4. The finish adds up to 120.
        let expected = expected(1, 512, 128);
        assert!((1400.0..1700.0).contains(&expected.comparisons), "{expected:?}");
        assert_eq!(index_bits(512), 9);
        assert_eq!([1, 2, 3, 4, 5].map(index_bits), [1, 1, 2, 2, 3]);
    }
}
