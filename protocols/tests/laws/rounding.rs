//! Truncations and rounded openings give a neighbour, are right on average, and stay below their ceiling.

use ndarray::{ArrayD, IxDyn};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use waggle_net::Role;
use waggle_protocols::ops::{Reveal, RevealRounded, Truncation, truncate};
use waggle_protocols::words::{mask, signed};
use waggle_protocols::{Abb, Options};
use waggle_testing::{DEALER, TWO_PHASES, open, own, run, share};

fn vector(x: Vec<u64>) -> ArrayD<u64> {
    ArrayD::from_shape_vec(IxDyn(&[x.len()]), x).unwrap()
}

/// The result of `how` between two parties with these shares.
fn truncated(options: Options, shares: &[ArrayD<u64>; 2], how: Truncation) -> ArrayD<u64> {
    let [(client, _), (server, _)] = run(options, |abb| {
        let x = own(abb, shares);
        abb.apply(how, x)
    });
    open(&[client, server])
}

/// Rings that grow a little and a lot, no shift, and the widest ring.
const WAYS: [Truncation; 8] = [
    Truncation { width: 44, shift: 15, out: 64 },
    Truncation { width: 23, shift: 0, out: 64 },
    Truncation { width: 64, shift: 32, out: 64 },
    Truncation { width: 64, shift: 3, out: 44 },
    Truncation { width: 32, shift: 9, out: 24 },
    Truncation { width: 32, shift: 12, out: 8 },
    Truncation { width: 36, shift: 18, out: 18 },
    Truncation { width: 5, shift: 3, out: 40 },
];

#[test]
fn results_are_neighbours_and_right_on_average() {
    for (how, options) in WAYS.into_iter().flat_map(|how| [DEALER, TWO_PHASES].map(|options| (how, options))) {
        let bound = (1i64 << (how.width - 2)) - 1;
        let step = (2 * bound as u64 / 300).max(1) as usize;
        let x = (-bound..=bound).step_by(step).chain([bound, 0, 1, -1]).flat_map(|x| [x as u64; 20]).collect();
        let x = vector(x);
        let got = truncated(options, &share(&x), how);
        let mut sum = 0f64;
        for (x, got) in x.iter().zip(got) {
            let (x, low) = (*x as i64, *x & mask(how.shift));
            let up = got.wrapping_sub((x >> how.shift) as u64) & mask(how.out);
            assert!(up <= u64::from(low > 0), "{how:?}: {x} gives {got}");
            sum += up as f64 - low as f64 / f64::from(how.shift).exp2();
        }
        // The error of a word has a variance of 1/4 at most.
        assert!(sum.abs() < 5.0 * (x.len() as f64 / 4.0).sqrt(), "{how:?}: off by {sum} in all");
    }
}

/// The formula of SECURITY: the client's own share decides how its truncation is rounded.
#[test]
fn an_error_is_decided_by_the_share_of_the_client() {
    let how = Truncation { width: 56, shift: 24, out: 64 };
    let x = vector((0..500u64).map(|i| (i * i * 77_777_777).wrapping_sub(i << 33)).collect());
    let shares = share(&x);
    let low = |x: u64| x & mask(how.shift);
    for (i, got) in truncated(DEALER, &shares, how).iter().enumerate() {
        let below = x[i].wrapping_sub(1);
        let want = (below as i64 >> how.shift) + 1 - i64::from(low(shares[0][i]) > low(below));
        assert_eq!(*got as i64, want, "{}", x[i] as i64);
    }
}

/// Every pair of shares of every word of a small ring, in range or not.
#[test]
fn truncations_of_any_word_stay_below_their_ceiling() {
    let shares = [0, 1].map(|party| vector((0..1 << 16).map(|i| i >> (8 * party) & 0xFF).collect()));
    for shift in [0, 1, 3, 6] {
        let how = Truncation { width: 8, shift, out: 64 };
        let largest = truncated(DEALER, &shares, how).iter().map(|x| (*x as i64).unsigned_abs()).max();
        let ceiling = truncate::ceiling(how);
        assert!(largest.is_some_and(|largest| largest <= ceiling && largest + 2 > ceiling), "{largest:?}, {ceiling}");
    }
}

const WIDTH: u32 = 56;
const DROP: u32 = 20;

/// The share of results that are rounded up, where x lies `quarter` quarters of the way from one grid point of the
/// receiver to the next.
fn rounded_up(quarter: u64, open: impl Fn(&[ArrayD<u64>; 2]) -> ArrayD<u64>) -> f64 {
    const COUNT: usize = 4000;
    let mut rng = StdRng::seed_from_u64(11 + quarter);
    let client = vector((0..COUNT).map(|_| rng.next_u64()).collect());
    // Any value at the given distance to the receiver's grid.
    let x = client
        .mapv(|c| (rng.next_u64() >> 24 << DROP).wrapping_add(c & mask(DROP)).wrapping_add(quarter << (DROP - 2)));
    let server = ndarray::Zip::from(&x).and(&client).map_collect(|x, c| x.wrapping_sub(*c));
    let opened = open(&[client, server]);
    let up = x.iter().zip(opened).filter(|(x, got)| signed(got.wrapping_sub(**x) & mask(WIDTH), WIDTH) > 0);
    up.count() as f64 / COUNT as f64
}

/// The bits below the unit of a result move a probability and decide nothing. Truncating first, as is done for values
/// that stay shared, would leave the receiver a threshold test of those bits against a number that it knows.
#[test]
fn the_bits_below_are_left_to_chance() {
    let rounded = |shares: &[ArrayD<u64>; 2]| {
        let [(client, _), _] = run(DEALER, |abb| {
            let x = own(abb, shares);
            abb.apply(RevealRounded { width: WIDTH, drop: DROP, to: Role::Client }, x)
        });
        client.expect("the client learns the values")
    };
    let truncated = |shares: &[ArrayD<u64>; 2]| {
        let [(client, _), _] = run(DEALER, |abb| {
            let x = own(abb, shares);
            let high = abb.apply(Truncation { width: WIDTH, shift: DROP, out: WIDTH - DROP }, x)?;
            abb.apply(Reveal { width: WIDTH - DROP, to: Role::Client }, &high)
        });
        // On the grid of the receiver's share, which the receiver knows.
        let opened = client.expect("the client learns the values");
        ndarray::Zip::from(&opened).and(&shares[0]).map_collect(|high, c| (high << DROP).wrapping_add(c & mask(DROP)))
    };
    for quarter in 1..4 {
        let share = rounded_up(quarter, rounded);
        // Six standard deviations of 4000 draws.
        let (want, margin) = (quarter as f64 / 4.0, 6.0 * (0.25f64 / 4000.0).sqrt());
        assert!((share - want).abs() < margin, "{quarter}/4 of the way: {share}");
    }
    // For the truncation, distances to the two neighbours do not matter: the same bits always give the same answer.
    let decided = rounded_up(1, truncated);
    assert!((decided - 0.25).abs() > 0.1, "a broken protocol is told apart: {decided}");
}
