//! Selections, compactions and extrema between two parties against naive twins. The plan's ledger is compared with
//! the parties' too, except for quickselect, whose traffic is random.

use engine::{Origin, Select};
use ndarray::{ArrayD, IxDyn};
use planner::Planner;
use protocols::functions::compact::compact;
use protocols::functions::extrema::{self, EXTREMA_WIDTH, UNIT};
use protocols::functions::selection;
use protocols::functions::top_k::{self, Scores, Selection};
use protocols::ops::shuffle::Shuffle;
use protocols::words::{mask, signed};
use protocols::{Abb, Clear, Error, FRAC, Fixed, Options, Shape, Tensor};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};

use crate::{DEALER, TWO_PHASES, fixed, own, real, run, secure, share};

const SCORES: Scores = Scores::below(5, 10);

/// Rows of multiples of 2^-10 below 2^5 in magnitude, with many equal ones.
fn scores(rows: usize, n: usize, distinct: u64, seed: u64) -> Vec<u64> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut value = || (rng.next_u64() % distinct) as i64 - distinct as i64 / 2;
    (0..rows * n).map(|_| (value() << (FRAC - 10)) as u64).collect()
}

/// The indices of the k largest, the largest first; among equal ones the lower index first.
fn largest(row: &[u64], k: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(row[i] as i64), i));
    order.truncate(k);
    order
}

const SIZES: [(usize, usize, usize); 10] = [
    (1, 1, 1),
    (1, 1, 0),
    (2, 2, 1),
    (3, 3, 2),
    (2, 5, 5),
    (2, 5, 1),
    (4, 8, 3),
    (2, 33, 8),
    (1, 33, 33),
    (3, 20, 0),
];

/// The unit vectors of a selection that has them.
fn vectors<B: Abb>(chosen: Selection<B>) -> B::Words {
    match chosen {
        Selection::OneHot(words) => words,
        Selection::Shuffled(_) => unreachable!("a method with unit vectors"),
    }
}

/// Whether each row's unit vectors name k entries that are the largest up to `slack` units of 2^-10.
fn check(got: &[u64], x: &[u64], (rows, n, k): (usize, usize, usize), slack: i64, ordered: bool) {
    assert_eq!(got.len(), rows * k * n);
    for (row, x) in x.chunks(n).enumerate() {
        let entry = |i: usize, j: usize| got[(row * k + i) * n + j] & 0xFF;
        let mut indices: Vec<usize> = (0..k)
            .map(|i| {
                assert_eq!((0..n).map(|j| entry(i, j)).sum::<u64>(), 1, "one entry");
                (0..n).find(|&j| entry(i, j) == 1).expect("a one")
            })
            .collect();
        let want = largest(x, k);
        let unit = (slack << (FRAC - 10)) as u64 as i64;
        if ordered {
            for (got, want) in indices.iter().zip(&want) {
                assert!((x[*got] as i64 - x[*want] as i64).abs() <= unit, "{got} for {want}");
            }
        }
        let least = want.last().map_or(i64::MAX, |&i| x[i] as i64);
        assert!(indices.iter().all(|&i| x[i] as i64 >= least - unit));
        indices.sort_unstable();
        indices.dedup();
        assert_eq!(indices.len(), k, "distinct entries");
    }
}

#[test]
fn unit_vectors_of_the_largest_by_rank_and_by_sorting() {
    for (rows, n, k) in SIZES {
        for distinct in [1, 5, 60_000] {
            let x = scores(rows, n, distinct, 7);
            let words = ArrayD::from_shape_vec(IxDyn(&[rows, n]), x.clone()).expect("shape");
            let by_rank = function!([k: usize] |b, x| Ok(vectors(top_k::rank(b, &x[0], *k, SCORES, 8)?)));
            let got = secure(DEALER, &[(&x, &[rows, n])], by_rank);
            check(&got, &x, (rows, n, k), 1, true);
            let by_sorting = function!([k: usize] |b, x| Ok(vectors(top_k::sort(b, &x[0], *k, SCORES, 8)?)));
            let got = secure(DEALER, &[(&x, &[rows, n])], by_sorting);
            check(&got, &x, (rows, n, k), 1, true);
            // In the clear there is no slack, and ties go by index.
            let mut exact = Vec::new();
            for row in x.chunks(n) {
                for i in largest(row, k) {
                    exact.extend((0..n).map(|j| u64::from(i == j)));
                }
            }
            for vectors in [
                vectors(top_k::rank(&mut Clear::new(), &words, k, SCORES, 8).expect("range")),
                vectors(top_k::sort(&mut Clear::new(), &words, k, SCORES, 8).expect("range")),
            ] {
                assert_eq!(vectors.iter().copied().collect::<Vec<_>>(), exact);
            }
        }
    }
}

/// Entries of a cell are equal wherever they lie in it, so that their indices decide, between two parties too.
#[test]
fn rounded_entries_go_by_their_cell_and_then_by_index() {
    const ROUNDED: Scores = SCORES.rounding(true);
    let (rows, n, k) = (5, 20, 7);
    let half = 1i64 << (FRAC - 11);
    for distinct in [1, 5, 60_000] {
        let cells = scores(rows, n, distinct, 3);
        let mut rng = StdRng::seed_from_u64(distinct);
        let x: Vec<u64> = cells.iter().map(|cell| cell.wrapping_add_signed(rng.random_range(-half..half))).collect();
        let want: Vec<Vec<usize>> = cells.chunks(n).map(|row| largest(row, k)).collect();
        let found = |vectors: &[u64]| -> Vec<Vec<usize>> {
            let one = |vector: &[u64]| vector.iter().position(|v| v & 0xFF == 1).expect("a one");
            vectors.chunks(k * n).map(|row| row.chunks(n).map(one).collect()).collect()
        };
        let inputs: [(&[u64], &[usize]); 1] = [(&x, &[rows, n])];
        for options in [DEALER, TWO_PHASES] {
            let by_rank = function!([k: usize] |b, x| Ok(vectors(top_k::rank(b, &x[0], *k, ROUNDED, 8)?)));
            assert_eq!(found(&secure(options, &inputs, by_rank)), want);
            let by_sorting = function!([k: usize] |b, x| Ok(vectors(top_k::sort(b, &x[0], *k, ROUNDED, 8)?)));
            assert_eq!(found(&secure(options, &inputs, by_sorting)), want);
        }
        let shares = share(&x, 1);
        let [(client, _), (server, _)] = run(DEALER, |abb| {
            let words = own(abb, &shares, &[rows, n]);
            let chosen = top_k::shuffle_reveal(abb, &words, k, ROUNDED)?;
            top_k::one_hot_of_shuffled(abb, &chosen, 8)
        });
        let opened: Vec<u64> = client.iter().zip(&server).map(|(c, s)| c.wrapping_add(*s)).collect();
        let sorted = |mut rows: Vec<Vec<usize>>| {
            rows.iter_mut().for_each(|row| row.sort_unstable());
            rows
        };
        assert_eq!(sorted(found(&opened)), sorted(want.clone()));
        let words = ArrayD::from_shape_vec(IxDyn(&[rows, n]), x.clone()).expect("shape");
        let clear = vectors(top_k::rank(&mut Clear::new(), &words, k, ROUNDED, 8).expect("range"));
        assert_eq!(found(&clear.iter().copied().collect::<Vec<_>>()), want);
    }
}

/// Positions in the shuffled order, and the shuffled entries, restored marks and unit vectors.
type Chosen<W> = (Vec<Vec<usize>>, [W; 3]);

fn shuffled<B: Abb>(b: &mut B, x: &B::Words, k: usize) -> Result<Chosen<B::Words>, Error> {
    let (rows, n) = (x.shape()[0], x.shape()[1]);
    let chosen = top_k::shuffle_reveal(b, x, k, SCORES)?;
    let moved =
        b.apply(Shuffle { widths: &[64], inverse: false }, (&chosen.permutations, &x.reshape(&[rows, n, 1])))?;
    let mut marks = ArrayD::zeros(IxDyn(&[rows, n, 1]));
    for (row, positions) in chosen.positions.iter().enumerate() {
        positions.iter().for_each(|&at| marks[[row, at, 0]] = 1);
    }
    let marks = b.public(&[rows, n, 1], |at| marks[at]);
    let marks = b.apply(Shuffle { widths: &[8], inverse: true }, (&chosen.permutations, &marks))?;
    let vectors = top_k::one_hot_of_shuffled(b, &chosen, 8)?;
    Ok((chosen.positions, [moved, marks, vectors]))
}

#[test]
fn positions_unit_vectors_and_restored_marks_name_the_same_entries() {
    for (rows, n, k) in SIZES {
        for distinct in [1, 5, 60_000] {
            let x = scores(rows, n, distinct, 9);
            let shares = share(&x, 1);
            let [client, server] = run(DEALER, |abb| {
                let words = own(abb, &shares, &[rows, n]);
                shuffled(abb, &words, k)
            });
            let ((positions, c), (theirs, s)) = (client.0, server.0);
            assert_eq!(positions, theirs);
            assert_eq!(client.1, server.1, "ledgers");
            let opened = |i: usize| -> Vec<u64> { c[i].iter().zip(&s[i]).map(|(c, s)| c.wrapping_add(*s)).collect() };
            let (moved, marks, vectors) = (opened(0), opened(1), opened(2));
            check(&vectors, &x, (rows, n, k), 1, false);
            for row in 0..rows {
                for (i, &at) in positions[row].iter().enumerate() {
                    let vector = &vectors[(row * k + i) * n..(row * k + i + 1) * n];
                    let j = vector.iter().position(|v| v & 0xFF == 1).expect("a one");
                    assert_eq!(moved[row * n + at], x[row * n + j], "the item at the position");
                    assert_eq!(marks[row * n + j] & 0xFF, 1, "the mark restored");
                }
                assert_eq!(marks[row * n..(row + 1) * n].iter().map(|m| m & 0xFF).sum::<u64>(), k as u64);
            }
        }
    }
}

#[test]
fn kept_items_stay_in_order() {
    for (rows, n, k, w, width) in [
        (1, 1, 0, 1, 64),
        (1, 1, 1, 2, 9),
        (2, 2, 1, 1, 64),
        (3, 3, 2, 5, 13),
        (2, 8, 8, 1, 3),
        (2, 5, 0, 1, 7),
        (4, 33, 9, 3, 64),
    ] {
        let mut rng = StdRng::seed_from_u64(n as u64);
        let mut kept = vec![0u64; rows * n];
        for row in kept.chunks_mut(n) {
            row[..k].fill(1);
            for i in (1..n).rev() {
                row.swap(i, rng.random_range(0..=i));
            }
        }
        let payload: Vec<u64> = (0..rows * n * w).map(|_| rng.next_u64() & mask(width)).collect();
        let got = secure(
            DEALER,
            &[(&kept, &[rows, n]), (&payload, &[rows, n, w])],
            function!([k: usize, width: u32] |b, x| compact(b, &x[0], &x[1], *k, *width)),
        );
        let want: Vec<u64> = payload
            .chunks(w)
            .zip(&kept)
            .filter(|(_, kept)| **kept == 1)
            .flat_map(|(item, _)| item.to_vec())
            .collect();
        let got: Vec<u64> = got.iter().map(|x| x & mask(width)).collect();
        assert_eq!(got, want, "{rows} {n} {k}");
        let words = |x: &[u64], shape: &[usize]| ArrayD::from_shape_vec(IxDyn(shape), x.to_vec()).expect("shape");
        let clear = compact(&mut Clear::new(), &words(&kept, &[rows, n]), &words(&payload, &[rows, n, w]), k, width);
        assert_eq!(clear.expect("range").into_iter().collect::<Vec<_>>(), want);
    }
}

#[test]
fn a_mask_with_too_many_ones_is_refused() {
    let words = |x: &[u64], shape: &[usize]| ArrayD::from_shape_vec(IxDyn(shape), x.to_vec()).expect("shape");
    let refused = compact(&mut Clear::new(), &words(&[1, 1, 0], &[1, 3]), &words(&[5, 6, 7], &[1, 3, 1]), 1, 8);
    assert!(matches!(refused, Err(Error::Destinations { row: 0, len: 3 })), "{refused:?}");
}

#[test]
fn real_transfers_give_the_same_and_cost_what_the_plan_says() {
    let (rows, n, k) = (3, 20, 6);
    let x = scores(rows, n, 60_000, 3);
    let kept: Vec<u64> = (0..rows * n).map(|i| u64::from(i % n % 3 == 1 && i % n < 18)).collect();
    let got = secure(
        Options::default(),
        &[(&x, &[rows, n]), (&kept, &[rows, n])],
        function!([rows: usize, n: usize, k: usize] |b, x| {
            let kept = compact(b, &x[1], &x[0].reshape(&[*rows, *n, 1]), *k, 64)?.reshape(&[*rows, *k]);
            Ok(vectors(top_k::rank(b, &kept, 2, SCORES, 8)?))
        }),
    );
    let compacted: Vec<u64> = x.iter().zip(&kept).filter(|(_, kept)| **kept == 1).map(|(x, _)| *x).collect();
    check(&got, &compacted, (rows, k, 2), 1, true);
    // Opened positions depend on the permutations, so only the ledgers of the two parties can be compared.
    let shares = share(&x, 1);
    let [client, server] = run(Options::default(), |abb| {
        let words = own(abb, &shares, &[rows, n]);
        let chosen = top_k::shuffle_reveal(abb, &words, k, SCORES)?;
        top_k::one_hot_of_shuffled(abb, &chosen, 8)
    });
    assert_eq!(client.1, server.1);
    let vectors: Vec<u64> = client.0.iter().zip(&server.0).map(|(c, s)| c.wrapping_add(*s)).collect();
    check(&vectors, &x, (rows, n, k), 1, false);
}

#[test]
fn extrema_are_entries_near_the_extremes() {
    for (rows, n) in [(1, 1), (2, 2), (3, 3), (2, 5), (4, 8), (3, 33)] {
        let mut rng = StdRng::seed_from_u64(n as u64);
        let numbers: Vec<f64> = (0..rows * n)
            .map(|i| {
                if i % 7 == 0 {
                    511.9
                } else if i % 11 == 3 {
                    -511.9
                } else {
                    rng.random_range(-3.0..3.0)
                }
            })
            .collect();
        let x: Vec<u64> = fixed(&numbers).into_iter().collect();
        let new: Vec<u64> =
            fixed(&(0..rows).map(|_| rng.random_range(-511.0..511.0)).collect::<Vec<_>>()).into_iter().collect();
        let both = |b: &[u64]| -> Vec<f64> { b.iter().map(|&y| real(signed(y, EXTREMA_WIDTH) as u64)).collect() };
        let got = both(&secure(
            DEALER,
            &[(&x, &[rows, n]), (&new, &[rows])],
            function!(
                [] | b,
                x | {
                    let (maxima, minima) = extrema::extrema(b, &x[0])?;
                    let (later_maxima, later_minima) = extrema::update(b, &maxima, &minima, &x[1])?;
                    Ok(B::Words::concat(0, &[&maxima, &minima, &later_maxima, &later_minima]))
                }
            ),
        ));
        let rounds = (n as f64).log2().ceil();
        for (row, x) in x.chunks(n).enumerate() {
            let numbers: Vec<f64> = x.iter().map(|&x| real(x)).collect();
            let (max, min) = numbers.iter().fold((f64::MIN, f64::MAX), |(h, l), &x| (h.max(x), l.min(x)));
            let new = real(new[row]);
            let near = |at: usize, want: f64, rounds: f64, sign: f64| {
                let short = sign * (want - got[at * rows + row]);
                assert!((0.0..=rounds * UNIT).contains(&short), "{short} of {want} in {rounds} rounds");
            };
            near(0, max, rounds, 1.0);
            near(1, min, rounds, -1.0);
            near(2, max.max(new), rounds + 1.0, 1.0);
            near(3, min.min(new), rounds + 1.0, -1.0);
            assert!(numbers.contains(&got[row]) && numbers.contains(&got[rows + row]), "an entry of the row");
        }
        let clear =
            extrema::extrema(&mut Clear::new(), &Tensor::reshape(&fixed(&numbers), &[rows, n])).expect("range");
        let clear = both(&clear.0.iter().chain(&clear.1).copied().collect::<Vec<_>>());
        assert!(clear.iter().zip(&got).all(|(a, b)| (a - b).abs() <= rounds * UNIT));
        let got = both(&secure(DEALER, &[(&x, &[rows, n])], function!([] | b, x | extrema::abs(b, &x[0]))));
        for (x, got) in x.iter().zip(got) {
            assert!((got - real(*x).abs()).abs() < 2.0 * UNIT && (got.abs() == real(*x).abs()));
        }
    }
}

/// Magnitudes follow from public shapes and options, which a peer may choose.
#[test]
fn sizes_beyond_every_ring_are_refused() {
    let words = |shape: &[usize]| Shape(shape.to_vec());
    let chosen = Selection::OneHot(words(&[1, 2, 3]));
    for magnitude in [25, 63, u32::MAX] {
        let mut planner = Planner::new(DEALER);
        let gathered = selection::gather(&mut planner, &chosen, &words(&[1, 3, 4]), magnitude);
        assert!(matches!(gathered, Err(Error::Width { limit: 44, .. })), "{gathered:?}");
        let scattered = selection::scatter(&mut planner, &chosen, &words(&[1, 2, 4]), magnitude);
        assert!(matches!(scattered, Err(Error::Width { limit: 44, .. })), "{scattered:?}");
        assert!(Fixed::new().ceiling(Origin::Moved { magnitude }).is_err());
    }
    let beyond = Fixed::new().ceiling(Origin::Product).expect("supported").times(1 << 40);
    for scores in [Scores::below(45, 12), Scores::below(u32::MAX, 0), Scores::within(beyond, 12)] {
        let sorted = top_k::sort(&mut Planner::new(DEALER), &words(&[1, 8]), 2, scores, 44).map(|_| ());
        assert!(matches!(sorted, Err(Error::Width { operation: "top-k", limit: 64, .. })), "{sorted:?}");
    }
    let many = words(&[0, (1 << 17) + 1]);
    let ranked = top_k::sort(&mut Planner::new(DEALER), &many, 1, SCORES, 44).map(|_| ());
    assert!(matches!(ranked, Err(Error::TooMany { got: 131_073, .. })), "{ranked:?}");
}
