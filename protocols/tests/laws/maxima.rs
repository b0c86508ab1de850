//! Maxima of rows of many lengths come close from below, and one phase takes the form that is sent faster.

use std::time::Duration;

use proptest::prelude::*;
use waggle_planner::Planner;
use waggle_protocols::functions::max::{MAX_WIDTH, max_counted, max_ragged, unit};
use waggle_protocols::words::signed;
use waggle_protocols::{Clear, Evaluation, FRAC, Gelu, Lengths, Options, Shape, functions};

use ndarray::{ArrayD, arr1};
use waggle_testing::{DEALER, Laws, TWO_PHASES, function, to_fixed};

/// Numbers as a vector of words.
fn fixed(x: &[f64]) -> ArrayD<u64> {
    to_fixed(&arr1(x).into_dyn())
}

/// The number that a word stands for.
fn real(word: u64) -> f64 {
    word as i64 as f64 / f64::from(1u32 << FRAC)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn maxima_of_ragged_rows(
        rows in prop::collection::vec(prop::collection::vec(-511.75f64..511.9999, 1..70), 1..9),
        spread in prop::sample::select(vec![1.0, 0.01, 0.0005]),
    ) {
        let lengths = Lengths::from(&rows.iter().map(Vec::len).collect::<Vec<_>>()[..]);
        let x = fixed(&rows.concat().iter().map(|x| x * spread).collect::<Vec<_>>());
        let clear = max_ragged(&mut Clear::new(), &x, &lengths).unwrap();
        let words: Vec<u64> = x.iter().copied().collect();
        let largest = {
            let lengths = lengths.clone();
            function!(Words, [lengths: Lengths], |b, x, _| max_ragged(b, &x[0], lengths))
        };
        let laws = Laws::of(largest).words(&[words.len()], words.clone());
        let shared = [DEALER, TWO_PHASES].map(|options| laws.values(options));
        let mut rest = &words[..];
        for (i, n) in lengths.iter().enumerate() {
            let (row, others) = rest.split_at(n);
            rest = others;
            let want = row.iter().map(|&x| real(x)).fold(f64::MIN, f64::max);
            let [fine, coarse] = [Evaluation::Lookup, Evaluation::Masked].map(unit);
            for (got, margin) in [(clear[i], fine), (shared[0][i], 2.0 * fine), (shared[1][i], 2.0 * coarse)] {
                let short = want - real(signed(got, MAX_WIDTH) as u64);
                prop_assert!((0.0..margin).contains(&short), "{} below {}", short, want);
            }
        }
    }
}

/// Bits of a maximum by counts.
const COUNTED_WIDTH: u32 = FRAC + 10;

/// Asserts that a maximum by counts lies within 1 of its row's maximum, below or above.
fn check_counted(rows: &[Vec<f64>]) {
    let lengths = Lengths::from(&rows.iter().map(Vec::len).collect::<Vec<_>>()[..]);
    let x = fixed(&rows.concat());
    let clear = max_counted(&mut Clear::new(), &x, &lengths).unwrap();
    let words: Vec<u64> = x.iter().copied().collect();
    let largest = {
        let lengths = lengths.clone();
        function!(Words, [lengths: Lengths], |b, x, _| max_counted(b, &x[0], lengths))
    };
    let shared = Laws::of(largest).words(&[words.len()], words.clone()).values(TWO_PHASES);
    for (i, span) in lengths.spans().enumerate() {
        let row = &words[span];
        let want = row.iter().map(|&x| x as i64).max().unwrap_or(i64::MIN) as u64;
        for (got, low) in [(clear[i], 0.0), (shared[i], -1.0)] {
            let above = real(signed(got.wrapping_sub(want), COUNTED_WIDTH) as u64);
            assert!(low < above && above <= 1.0, "{above} above {}, {} entries", real(want), row.len());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn maxima_by_counts(
        rows in prop::collection::vec(prop::collection::vec(-510.99f64..511.9999, 1..70), 1..5),
        spread in prop::sample::select(vec![1.0, 0.05, 0.0005]),
    ) {
        check_counted(&rows.iter().map(|row| row.iter().map(|x| x * spread).collect()).collect::<Vec<_>>());
    }
}

/// Counters must not wrap to 0: as many equal entries as a ring has numbers, and one less and more. The largest entry
/// is also put at every place where a digit changes.
#[test]
fn maxima_by_counts_of_equal_entries_and_at_the_ends_of_digits() {
    for n in [1, 2, 127, 128, 255, 256, 257, 511, 512] {
        check_counted(&[vec![-3.25; n]]);
    }
    let ends = [-510.99, -510.5, -480.5, -480.0, -479.9, -1.0, 0.0, 31.99, 32.0, 479.99, 480.0, 511.0, 511.999];
    check_counted(&ends.map(|end| vec![-510.99, end, -510.99]));
}

/// One phase takes the form of an activation that is sent faster, on any link and for any number of entries.
#[test]
fn the_form_follows_link_and_volume() {
    let sent = |n: usize, over: waggle_net::LinkShape| {
        let mut planner = Planner::new(Options { link: over, ..DEALER });
        functions::gelu(&mut planner, &Shape(vec![n]), Gelu::Tanh).expect("plan");
        let total = planner.ledger().total();
        move |link: waggle_net::LinkShape| {
            link.predict([total.bytes_client_to_server, total.bytes_server_to_client], total.flows)
        }
    };
    for (megabits, milliseconds) in [(100, 80), (400, 4), (999, 4), (1001, 4), (999, 20), (1000, 1), (3016, 1)] {
        let round_trip = Duration::from_millis(milliseconds);
        let link = waggle_net::LinkShape { bytes_per_second: megabits * 125_000, round_trip };
        for n in [1, 64, 3072, 10_000, 128 * 3072] {
            // The form is look-up where flows alone count, and keys where bytes alone count.
            let [lookup, masked] = [(1 << 50, 1000), (1, 0)].map(|(rate, delay)| {
                sent(n, waggle_net::LinkShape { bytes_per_second: rate, round_trip: Duration::from_millis(delay) })(
                    link,
                )
            });
            assert_eq!(sent(n, link)(link), lookup.min(masked), "{n} over {link:?}: {lookup:?} or {masked:?}");
        }
    }
}
