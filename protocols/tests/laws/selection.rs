//! Shuffles, unit vectors and opened selections against naive references, by both parties' real messages.

use ndarray::{ArrayD, IxDyn};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use waggle_net::Phase;
use waggle_protocols::audit::deviation;
use waggle_protocols::functions::selection;
use waggle_protocols::functions::top_k::Selection;
use waggle_protocols::ops::{OneHot, Permute, Quickselect, Shuffle, quickselect};
use waggle_protocols::words::mask;
use waggle_protocols::{Abb, Operand, OperandId, OperandKind, Options, Shape, Tensor};

use waggle_testing::laws::planner;
use waggle_testing::{DEALER, Function, Laws, TWO_PHASES, function, own};

use crate::small::{run, share};

fn random(count: usize, seed: u64) -> Vec<u64> {
    let mut rng = StdRng::seed_from_u64(seed);
    (0..count).map(|_| rng.next_u64()).collect()
}

/// Rows, items, and the widths of the columns.
const SHAPES: [(usize, usize, &[u32]); 9] = [
    (1, 1, &[64]),
    (2, 2, &[7]),
    (3, 3, &[1, 64, 13]),
    (2, 5, &[1, 1]),
    (4, 8, &[44]),
    (1, 33, &[64, 5]),
    (2, 33, &[17, 3, 64, 1, 30]),
    (0, 4, &[9]),
    (12, 64, &[38]),
];

#[test]
fn shuffles_permute_whole_items_and_are_undone_by_their_inverse() {
    for (rows, n, widths) in SHAPES {
        let w = widths.len();
        let x = random(rows * n * w, n as u64);
        let (columns, widths) = (widths, widths.to_vec());
        let shape = [rows, n, w];
        // The shuffled items, and the items restored from them.
        let function = function!(Words, [rows: usize, n: usize, widths: Vec<u32>], |b, x, _| {
            let permutations = b.apply(Permute { rows: *rows, items: *n }, ())?;
            let shuffled = b.apply(Shuffle { widths, inverse: false }, (&permutations, &x[0]))?;
            let restored = b.apply(Shuffle { widths, inverse: true }, (&permutations, &shuffled))?;
            let again = b.apply(Shuffle { widths, inverse: false }, (&permutations, &restored))?;
            Ok(Tensor::concat(0, &[&shuffled, &restored, &again]))
        });
        let both: Vec<u64> = Laws::of(function).words(&shape, x.clone()).values(DEALER).into_iter().collect();
        let reduced =
            |x: &[u64]| -> Vec<u64> { x.iter().zip(columns.iter().cycle()).map(|(x, &w)| x & mask(w)).collect() };
        let want = reduced(&x);
        let parts: Vec<Vec<u64>> = both.chunks((rows * n * w).max(1)).map(reduced).collect();
        if rows == 0 {
            continue;
        }
        assert_eq!(parts[1], want, "{rows} rows of {n} items of {columns:?}");
        assert_eq!(parts[0], parts[2], "the same permutations twice");
        for (got, want) in parts[0].chunks(n * w).zip(want.chunks(n * w)) {
            let sorted = |row: &[u64]| {
                let mut items: Vec<Vec<u64>> = row.chunks(w).map(<[u64]>::to_vec).collect();
                items.sort();
                items
            };
            assert_eq!(sorted(got), sorted(want));
        }
        if n >= 33 {
            assert_ne!(parts[0], want, "order unchanged");
        }
    }
}

#[test]
fn every_order_is_equally_likely() {
    // 3000 shuffles of four items: 24 orders.
    let rows = 3000;
    let x: Vec<u64> = (0..rows * 4).map(|i| i as u64 % 4).collect();
    let shuffled = function!(Words, [rows: usize], |b, x, _| {
        let permutations = b.apply(Permute { rows: *rows, items: 4 }, ())?;
        b.apply(Shuffle { widths: &[2], inverse: false }, (&permutations, &x[0]))
    });
    let got: Vec<u64> = Laws::of(shuffled).words(&[rows, 4, 1], x).values(DEALER).into_iter().collect();
    let mut counts = std::collections::HashMap::new();
    for row in got.chunks(4) {
        *counts.entry(row.iter().fold(0, |acc, x| acc << 2 | x & 3)).or_insert(0usize) += 1;
    }
    assert_eq!(counts.len(), 24);
    let counts: Vec<usize> = counts.into_values().collect();
    assert!(deviation(&counts) < 5.0, "{counts:?}");
}

#[test]
fn a_shuffle_sends_two_messages_online() {
    let x = random(12 * 32, 1);
    let shares = share(&x, &[12, 32, 1]);
    let [(_, ledger), _] = run(Options::default(), |abb| {
        let words = own(abb, &shares);
        let permutations = abb.apply(Permute { rows: 12, items: 32 }, ())?;
        abb.session().channel().ledger_mut().set_phase(Phase::Decode);
        abb.apply(Shuffle { widths: &[40], inverse: false }, (&permutations, words))
    });
    let online: Vec<_> = ledger.iter().filter(|entry| entry.phase == Phase::Decode).collect();
    let bytes = 2 * (12 * 32 * 40 / 8 + waggle_net::HEADER_BYTES) as u64;
    assert_eq!((online.len(), online[0].traffic.messages, online[0].traffic.bytes()), (1, 2, bytes));
}

#[test]
fn gathering_opens_the_entries_of_a_growing_payload_once() {
    const LENGTHS: [usize; 3] = [4, 4, 6];
    let (rows, k, most, w, magnitude) = (2, 3, LENGTHS[2], 8, 5);
    let chosen = |step: usize, row: usize, entry: usize| (5 * step + 3 * row + entry) % LENGTHS[step];
    let one_hot: Vec<u64> = (0..LENGTHS.len() * rows * k * most)
        .map(|i| {
            let (entry, item) = (i / most % k, i % most);
            u64::from(chosen(i / most / k / rows, i / most / k % rows, entry) == item)
        })
        .collect();
    let payload: Vec<u64> =
        random(rows * most * w, 3).iter().map(|x| (x % (1 << 23)).wrapping_sub(1 << 22)).collect();
    let shapes = [vec![LENGTHS.len(), rows, k, most], vec![rows, most, w]];
    let gathers = function!(Words, [], |b, x, _| {
        let mut operand = Operand::new(OperandId { layer: 0, kind: OperandKind::Clusters, generation: 0, part: 0 });
        let mut out = Vec::new();
        for (step, &n) in LENGTHS.iter().enumerate() {
            let words = x[0].slice(0, step..step + 1).reshape(&[2, 3, 6]).slice(2, 0..n);
            let payload = x[1].slice(1, 0..n);
            let gathered = b.scope(&format!("step {step}"), |b| {
                selection::gather_cached(b, &Selection::OneHot(words), &payload, 5, &mut operand)
            })?;
            out.push(gathered);
        }
        Ok(Tensor::concat(0, &out.iter().collect::<Vec<_>>()))
    });
    let laws = Laws::of(gathers.clone()).words(&shapes[0], one_hot).words(&shapes[1], payload.clone());
    for options in [DEALER, TWO_PHASES] {
        let got: Vec<u64> = laws.values(options).into_iter().collect();
        for (i, got) in got.chunks(w).enumerate() {
            let (step, row, entry) = (i / k / rows, i / k % rows, i % k);
            let at = (row * most + chosen(step, row, entry)) * w;
            for (got, want) in got.iter().zip(&payload[at..at + w]) {
                let off = got.wrapping_sub(*want) as i64;
                assert!(off.abs() <= 16, "step {step}, row {row}, entry {entry}: off by {off}");
            }
        }
    }
    let mut plan = planner(TWO_PHASES);
    plan.ledger().set_phase(Phase::Decode);
    gathers.call(&mut plan, &shapes.map(Shape), &[]).expect("plan");
    let ledger = plan.ledger().entries();
    let online = |step: usize| -> u64 {
        let gather = format!("step {step}/gather");
        ledger.iter().filter(|e| e.phase == Phase::Decode && e.path == gather).map(|e| e.traffic.bytes()).sum()
    };
    let sent: Vec<u64> = (0..LENGTHS.len()).map(online).collect();
    // Entries of 8 words fill whole bytes in any ring; one-hot rows are longer by the new items.
    let width = u64::from(magnitude + waggle_protocols::FRAC + 2);
    let opened = |items: usize, words: usize| 2 * ((items * words) as u64 * width / 8);
    assert_eq!(sent[0] - sent[1], opened(rows * LENGTHS[0], w), "{sent:?}");
    let more = |words: u64| 2 * (words * width).div_ceil(8);
    let one_hot_words = |step: usize| (rows * k * LENGTHS[step]) as u64;
    let new = (rows * (LENGTHS[2] - LENGTHS[1]) * w) as u64;
    assert_eq!(sent[2] - sent[1], more(one_hot_words(2) + new) - more(one_hot_words(1)), "{sent:?}");
}

#[test]
fn unit_vectors_of_every_pair_of_shares_are_exact() {
    // All 64 x 64 pairs of shares modulo 2^6.
    let shares = [0, 1].map(|party| ArrayD::from_shape_fn(IxDyn(&[4096]), |i| i[0] as u64 >> (6 * party) & 63));
    for count in [1, 13, 64] {
        let [(client, _), (server, _)] = run(DEALER, |abb| {
            let words = own(abb, &shares);
            abb.apply(OneHot { bits: 6, count }, words)
        });
        for (i, (c, s)) in client.iter().zip(&server).enumerate() {
            let (item, j) = (i / count, (i % count) as u64);
            let x = (shares[0][item] + shares[1][item]) & 63;
            assert_eq!(c ^ s, u8::from(x == j));
        }
    }
}

/// Distinct keys of `rows` rows in random order.
fn keys(rows: usize, n: usize, seed: u64) -> Vec<u64> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut keys = Vec::new();
    for _ in 0..rows {
        let mut row: Vec<i64> = (0..n as i64).map(|i| 3 * i - n as i64).collect();
        for i in (1..n).rev() {
            row.swap(i, (rng.next_u64() % (i as u64 + 1)) as usize);
        }
        keys.extend(row.into_iter().map(|x| x as u64));
    }
    keys
}

#[test]
fn both_parties_learn_the_positions_of_the_largest_keys() {
    for (rows, n, k) in [
        (1, 1, 0),
        (1, 1, 1),
        (2, 2, 1),
        (3, 3, 2),
        (2, 5, 5),
        (4, 8, 3),
        (3, 33, 1),
        (3, 33, 32),
        (12, 100, 25),
        (1, 64, 0),
    ] {
        let keys = keys(rows, n, k as u64);
        let shares = share(&keys, &[rows, n]);
        let [client, server] = run(DEALER, |abb| {
            let words = own(abb, &shares);
            abb.apply(Quickselect { k, width: 12 }, words)
        });
        assert_eq!(client, server);
        let words = ArrayD::from_shape_vec(IxDyn(&[rows, n]), keys).expect("shape");
        assert_eq!(
            client.0,
            waggle_protocols::Clear::new().apply(Quickselect { k, width: 12 }, &words).expect("range"),
            "{rows}, {n}, {k}"
        );
    }
}

/// The mean of real runs, within 8 %: the standard error of 40 runs of 4 rows is below 2 %.
#[test]
fn a_plan_is_the_mean_of_many_runs() {
    for (rows, n, k) in [(4, 60, 15), (4, 24, 20)] {
        let runs = 40;
        let sent: u64 = (0..runs)
            .map(|seed| {
                let shares = share(&keys(rows, n, 100 + seed), &[rows, n]);
                let [(_, ledger), _] = run(DEALER, |abb| {
                    let words = own(abb, &shares);
                    abb.apply(Quickselect { k, width: 30 }, words)
                });
                ledger.iter().map(|entry| entry.traffic.bytes()).sum::<u64>()
            })
            .sum();
        let mut plan = planner(DEALER);
        plan.apply(Quickselect { k, width: 30 }, &Shape(vec![rows, n])).expect("plan");
        let (planned, mean) = (plan.ledger().total().bytes() as f64, sent as f64 / runs as f64);
        assert!((planned / mean - 1.0).abs() < 0.08, "{planned} planned, {mean} on average");
        let expected = quickselect::expected(rows, n, k);
        let profile: usize = expected.profile.iter().sum();
        assert_eq!(
            (profile as f64, expected.profile.len() as f64),
            (expected.comparisons.round(), expected.rounds.round())
        );
    }
}
