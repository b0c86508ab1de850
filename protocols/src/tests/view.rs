//! Opened values must not depend on the data. Chi-square tests compare everything that selections and compactions
//! open with the uniform distribution, over thousands of rows of very different inputs. Each test also refuses a
//! broken protocol, which shows that it can detect one.

use std::collections::HashMap;

use waggle_engine::Origin;

use ndarray::{ArrayD, IxDyn};

use super::{both, share};
use crate::abb::Abb;
use crate::audit::{deviation, standardised};
use crate::fixed_point::ceiling;
use crate::functions::top_k::{Scores, Selection};
use crate::functions::{compact, selection};
use crate::local::Pair;
use crate::ops::{Open, Permute, Shuffle, SquareRows, quickselect, scaled_squares};
use crate::options::{DEALER, TWO_PHASES};
use crate::wire::beaver::minus;
use crate::wire::opening;
use crate::words::Words;
use crate::{Error, FRAC, Ranking, Tensor, TwoParty};

const SCORES: Scores = Scores::below(5, 10);

/// The bound on the statistic of every test. A correct run exceeds it with a probability below 1e-6 (five standard
/// deviations, one-sided).
const LIMIT: f64 = 5.0;

#[derive(Clone, Copy)]
enum TieBreak {
    /// Ties are broken by the index before the shuffle, as in the protocol.
    BeforeTheShuffle,
    /// Ties are broken by the position in the shuffled order, which is wrong.
    AfterTheShuffle,
}

struct Opened {
    outcomes: Vec<bool>,
    positions: Vec<usize>,
}

/// Shuffled top-k of `rows` rows, all equal to `row`, with every opened bit recorded.
fn select(row: &[u64], rows: usize, k: usize, scores: Scores, tie_break: TieBreak) -> Result<Vec<Opened>, Error> {
    let n = row.len();
    let x: Vec<u64> = (0..rows).flat_map(|_| row.to_vec()).collect();
    let shares = share(&x, 4);
    let protocol = |abb: &mut TwoParty| -> Result<_, Error> {
        let words = own(abb, &shares, &[rows, n]);
        let (mut keys, ring) = scores.keys(abb, &words)?;
        if let TieBreak::AfterTheShuffle = tie_break {
            // The scores alone at the same scale, with positions after the shuffle.
            let drop = ring - 18;
            keys = words.drop_low(FRAC - 10, 18 + FRAC - 10).times(1 << drop);
        }
        let permutations = abb.apply(Permute { rows, items: n }, ())?;
        let keys = abb.apply(
            Shuffle { widths: &[ring], inverse: false },
            (&permutations, &Tensor::reshape(&keys, &[rows, n, 1])),
        )?;
        let keys = Tensor::reshape(&keys, &[rows, n]);
        let keys = match tie_break {
            TieBreak::BeforeTheShuffle => keys,
            TieBreak::AfterTheShuffle => keys.plus(&abb.public(&[rows, n], |at| (n - 1 - at[1]) as u64)),
        };
        let keys: Vec<u64> = keys.into_iter().collect();
        let mut outcomes = vec![Vec::new(); rows];
        let positions = quickselect::select(rows, n, k, |pairs| {
            let bits = quickselect::opened(abb.session(), &keys, n, ring, pairs)?;
            pairs.iter().zip(&bits).for_each(|(pair, bit)| outcomes[pair.0].push(*bit));
            Ok(bits)
        })?;
        Ok((outcomes, positions))
    };
    let [client, server] = Pair::new(DEALER)?.run(protocol)?;
    assert_eq!(client, server, "both parties see the same");
    Ok(client.0.into_iter().zip(client.1).map(|(outcomes, positions)| Opened { outcomes, positions }).collect())
}

fn own(abb: &mut TwoParty, shares: &[Vec<u64>; 2], shape: &[usize]) -> ArrayD<u64> {
    ArrayD::from_shape_vec(IxDyn(shape), shares[abb.session().role() as usize].clone()).expect("shape")
}

fn ascending(n: usize) -> Vec<u64> {
    (0..n as u64).map(|i| i << FRAC).collect()
}

fn counts<K: std::hash::Hash + Eq>(values: impl Iterator<Item = K>, cells: usize) -> Vec<usize> {
    let mut counts = HashMap::new();
    values.for_each(|value| *counts.entry(value).or_insert(0) += 1);
    assert!(counts.len() <= cells, "{} kinds of {cells}", counts.len());
    let seen = counts.into_values();
    seen.chain(std::iter::repeat(0)).take(cells).collect()
}

/// The statistic of the opened comparisons of five keys in `row`. The ten outcomes of all pairs are one of 120
/// rankings.
fn rankings(row: &[u64], scores: Scores, tie_break: TieBreak) -> Result<f64, Error> {
    let opened = select(row, 6000, 2, scores, tie_break)?;
    Ok(deviation(&counts(opened.into_iter().map(|row| row.outcomes), 120)))
}

#[test]
fn opened_comparisons_are_those_of_a_uniform_ranking_whatever_the_keys() {
    for row in [ascending(5), vec![3 << FRAC; 5], vec![0, 0, 0, 0, 7 << FRAC]] {
        let got = rankings(&row, SCORES, TieBreak::BeforeTheShuffle).expect("in range");
        assert!(got < LIMIT, "{got} for {row:?}");
    }
    // Equal keys told apart by the shuffled position are opened as equal.
    let got = rankings(&[3 << FRAC; 5], SCORES, TieBreak::AfterTheShuffle).expect("in range");
    assert!(got > 10.0 * LIMIT, "{got}");
}

/// The scores are out of the expected range, as far as the truncation that made them allows.
#[test]
fn opened_comparisons_are_those_of_a_uniform_ranking_whatever_the_weights() {
    let most = ceiling(Origin::Product).expect("supported").units() as i64;
    let spread = [-most, -most / 2, 0, most / 2, most].map(|x| x as u64);
    let edges = [-most, most, most - 1, most, -most].map(|x| x as u64);
    for row in [spread, edges] {
        let scores = Scores::within(ceiling(Origin::Product).expect("supported"), 12);
        let got = rankings(&row, scores, TieBreak::BeforeTheShuffle).expect("no key wraps");
        assert!(got < LIMIT, "{got} for {row:?}");
    }
    // In the ring of scores below 2^9, these scores compare in a circle.
    match rankings(&spread, Scores::below(9, 12), TieBreak::BeforeTheShuffle) {
        Err(Error::Winners { .. }) => (),
        other => assert!(other.as_ref().is_ok_and(|got| *got > 10.0 * LIMIT), "{other:?}"),
    }
}

/// The selection of policies ranks scores out of range, too: it knows the range 2^9 and a bound that cannot be
/// exceeded.
#[test]
fn scores_out_of_range_are_ranked_all_the_same() {
    let (rows, n, k) = (40, 12, 3);
    let most = ceiling(Origin::Product).expect("supported").units() as i64;
    // They are apart by far more than a unit of the comparison, in another order in every row.
    let value = |i: usize| -most + (i * 5 + i / n) as i64 % n as i64 * (2 * most / n as i64);
    let x: Vec<u64> = (0..rows * n).map(|i| value(i) as u64).collect();
    let shares = share(&x, 4);
    let ceiling = ceiling(Origin::Product).expect("supported");
    let how =
        Ranking { k, method: waggle_engine::TopK::ShuffleReveal, magnitude: 9, ceiling, frac: 12, rounded: true };
    let [client, server] = both(DEALER, |abb| {
        let words = own(abb, &shares, &[rows, n]);
        match selection::choose(abb, &words, &how)? {
            Selection::Shuffled(shuffled) => Ok(shuffled.indices),
            Selection::OneHot(_) => unreachable!("a method with positions"),
        }
    });
    let indices = client.plus(&server).mapv(|index| index as usize & 15);
    for (row, (got, x)) in indices.outer_iter().zip(x.chunks(n)).enumerate() {
        let mut got = got.iter().copied().collect::<Vec<_>>();
        got.sort_unstable();
        let mut want: Vec<usize> = (0..n).collect();
        want.sort_by_key(|&i| std::cmp::Reverse(x[i] as i64));
        want.truncate(k);
        want.sort_unstable();
        assert_eq!(got, want, "row {row}");
    }
}

/// The larger of two statistics: of how many keys exceed the first pivot, and of which positions are selected.
fn pivots_and_positions(row: &[u64], tie_break: TieBreak) -> f64 {
    let (n, k, rows) = (row.len(), 5, 4000);
    let opened = select(row, rows, k, SCORES, tie_break).expect("in range");
    let pivots = opened.iter().map(|row| row.outcomes[..n - 1].iter().filter(|bit| **bit).count());
    let pivots = deviation(&counts(pivots, n));
    // A row selects k distinct positions, so the counts vary less than independent ones: chi-square for sets.
    let mut selected = vec![0usize; n];
    opened.iter().flat_map(|row| &row.positions).for_each(|&at| selected[at] += 1);
    let mean = (rows * k) as f64 / n as f64;
    let chi2: f64 =
        selected.iter().map(|&c| (c as f64 - mean).powi(2)).sum::<f64>() / mean * (n - 1) as f64 / (n - k) as f64;
    pivots.max(standardised(chi2, n as f64 - 1.0))
}

#[test]
fn pivots_and_positions_are_uniform_whatever_the_keys() {
    for row in [ascending(20), vec![0; 20]] {
        let got = pivots_and_positions(&row, TieBreak::BeforeTheShuffle);
        assert!(got < LIMIT, "{got} for {row:?}");
    }
    assert!(pivots_and_positions(&[0; 20], TieBreak::AfterTheShuffle) > 10.0 * LIMIT);
}

/// The statistic of the opened destinations of five items, which are one of 120 permutations.
fn destinations(kept: [u64; 5], shuffle: bool) -> f64 {
    let rows = 6000;
    let mask: Vec<u64> = (0..rows).flat_map(|_| kept).collect();
    let shares = share(&mask, 1);
    let [client, server] = both(DEALER, |abb| {
        let mask = own(abb, &shares, &[rows, 5]);
        if shuffle {
            return Ok(compact::opened(abb, &mask, 2)?.2);
        }
        let places = compact::destinations(abb, &mask, 2, 3)?;
        abb.apply(Open { width: 3 }, &places)
    });
    assert_eq!(client, server, "both parties see the same");
    let opened: Vec<u64> = client.expect("opened").into_iter().collect();
    deviation(&counts(opened.chunks(5).map(<[u64]>::to_vec), 120))
}

#[test]
fn opened_destinations_are_a_uniform_permutation_whatever_the_mask() {
    for kept in [[1, 1, 0, 0, 0], [0, 0, 0, 1, 1], [1, 0, 0, 0, 1]] {
        let got = destinations(kept, true);
        assert!(got < LIMIT, "{got} for {kept:?}");
    }
    assert!(destinations([0, 0, 0, 1, 1], false) > 10.0 * LIMIT);
}

/// Which mask hides the factor of a row.
#[derive(Clone, Copy, Debug)]
enum Factor {
    /// A word of its own, as in the protocol.
    Fresh,
    /// None.
    Bare,
    /// That of the row before, for every other row.
    Reused,
    /// The first entry of the row's own mask.
    OfTheRow,
}

/// The statistic of the two highest bits of what two rows of two entries open together: d of the first row, whose
/// mask serves both openings, and e of both rows.
fn scaled(x: [u64; 2], y: u64, factor: Factor) -> f64 {
    let (rows, width) = (8192, 40);
    let words = share(&x.repeat(rows), 5);
    let factors = share(&vec![y; rows], 6);
    let [client, server] = both(TWO_PHASES, |abb| {
        let (x, y) = (own(abb, &words, &[rows, 2]), &factors[abb.session().role() as usize]);
        let (_, squared) = abb.apply(SquareRows { width, scaled: width }, &x)?;
        let [d, units] = squared.opened();
        let units: Vec<&[u64]> = units.chunks_exact(6).collect();
        let b = (0..rows).map(|row| match factor {
            Factor::Fresh => units[row][3],
            Factor::Bare => 0,
            Factor::Reused => units[row & !1][3],
            Factor::OfTheRow => units[row][0],
        });
        let e = match factor {
            Factor::Fresh => scaled_squares::open_factors(abb.session(), y, b, width)?,
            // The audit of this build would refuse a mask that serves again.
            _ => opening::open(abb.session(), &minus(y, b).collect::<Vec<_>>(), &[width])?,
        };
        Ok((d.to_vec(), e))
    });
    assert_eq!(client, server, "both parties see the same");
    let (d, e) = client;
    let rows = d.chunks_exact(4).zip(e.chunks_exact(2));
    let seen = rows.map(|(d, e)| [d[0], d[1], e[0], e[1]].map(|word| word >> (width - 2)));
    deviation(&counts(seen, 256))
}

#[test]
fn what_two_steps_under_one_mask_open_is_uniform_together() {
    for (x, y) in [([0, 0], 0), ([5 << 20, 3], 7 << 30), ([1 << 38, (1u64 << 38).wrapping_neg()], 1 << 39)] {
        let got = scaled(x, y, Factor::Fresh);
        assert!(got < LIMIT, "{got} for {x:?} and {y}");
        for broken in [Factor::Bare, Factor::Reused, Factor::OfTheRow] {
            let got = scaled(x, y, broken);
            assert!(got > 10.0 * LIMIT, "{broken:?} does not show: {got} for {x:?} and {y}");
        }
    }
}
