//! What the receiver of an opened value sees.

use ndarray::{ArrayD, IxDyn};
use net::Role;
use protocols::ops::reveal::Reveal;
use protocols::ops::reveal::RevealRounded;
use protocols::ops::truncate::Truncation;
use protocols::words::{mask, signed};
use protocols::{Abb, Clear, Shape};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::{BOTH, DEALER, Outcome, own, run, share};

/// Ring and dropped bits of a head with 16 fractional bits a weight, for logits of 14 bits and of 8, and other rings.
const SHAPES: [(u32, u32); 4] = [(56, 20), (56, 26), (24, 7), (64, 1)];

/// Random values of magnitude below 2^`bits`, and the edges.
fn values(bits: u32, count: usize) -> Vec<u64> {
    let mut rng = StdRng::seed_from_u64(u64::from(bits));
    let top = (1i64 << bits) - 1;
    let random = std::iter::repeat_with(|| rng.next_u64() as i64 >> (63 - bits));
    [0, 1, -1, top, -top].into_iter().chain(random).take(count).map(|v| v as u64).collect()
}

fn revealed(
    shares: &[Vec<u64>; 2],
    width: u32,
    drop: u32,
    options: protocols::Options,
) -> [Outcome<Option<Vec<u64>>>; 2] {
    let n = shares[0].len();
    run(options, |abb| {
        let x = own(abb, shares, &[n]);
        let opened = abb.apply(RevealRounded { width, drop, to: Role::Client }, &x)?;
        Ok(opened.map(|opened| opened.iter().copied().collect()))
    })
}

#[test]
fn a_rounded_opening_is_close_to_its_twin_and_costs_what_the_plan_says() {
    for options in BOTH {
        for (width, drop) in SHAPES {
            let x = values(width - 2, 300);
            let [(client, ledger), (server, peer_ledger)] = revealed(&share(&x, 3), width, drop, options);
            assert_eq!(server, None, "the server learns nothing");
            let client = client.expect("the client learns the values");
            let clear = ArrayD::from_shape_vec(IxDyn(&[x.len()]), x.clone()).expect("a vector");
            let twin = Clear::new().apply(RevealRounded { width, drop, to: Role::Client }, &clear).expect("in range");
            for ((x, got), twin) in x.iter().zip(client).zip(twin.expect("visible")) {
                let error = signed(got.wrapping_sub(*x) & mask(width), width);
                assert!(error.unsigned_abs() < 1 << drop, "{} off by {error} of 2^{drop}", *x as i64);
                let half = signed(twin.wrapping_sub(*x) & mask(width), width);
                assert!(half.unsigned_abs() <= 1 << (drop - 1), "the twin of {} off by {half}", *x as i64);
            }
            let mut planner = crate::planner(options);
            planner.apply(RevealRounded { width, drop, to: Role::Client }, &Shape(vec![x.len()])).expect("plan");
            assert_eq!(planner.ledger().untimed(), ledger);
            assert_eq!(ledger, peer_ledger);
        }
    }
}

/// How often the result lies above the receiver's grid point below x. x stands at `quarter` quarters of the way to
/// the next grid point.
fn rounded_up(quarter: u64, open: impl Fn(&[Vec<u64>; 2]) -> Vec<u64>) -> f64 {
    const WIDTH: u32 = 56;
    const DROP: u32 = 20;
    const COUNT: usize = 4000;
    let mut rng = StdRng::seed_from_u64(11 + quarter);
    let client: Vec<u64> = (0..COUNT).map(|_| rng.next_u64()).collect();
    // Any value at the given distance to the receiver's grid.
    let x: Vec<u64> = client
        .iter()
        .map(|c| (rng.next_u64() >> 24 << DROP).wrapping_add(c & mask(DROP)).wrapping_add(quarter << (DROP - 2)))
        .collect();
    let server = x.iter().zip(&client).map(|(x, c)| x.wrapping_sub(*c)).collect();
    let opened = open(&[client, server]);
    let up = x.iter().zip(opened).filter(|(x, got)| signed(got.wrapping_sub(**x) & mask(WIDTH), WIDTH) > 0);
    up.count() as f64 / COUNT as f64
}

/// The bits below the unit of a result move a probability and decide nothing. Truncating first, as is done for values
/// that stay shared, would leave the receiver a threshold test of those bits against a number that it knows.
#[test]
fn the_bits_below_are_left_to_chance() {
    let rounded = |shares: &[Vec<u64>; 2]| {
        let [(client, _), _] = revealed(shares, 56, 20, DEALER);
        client.expect("the client learns the values")
    };
    let truncated = |shares: &[Vec<u64>; 2]| {
        let [(client, _), _] = run(DEALER, |abb| {
            let x = own(abb, shares, &[shares[0].len()]);
            let high = abb.apply(Truncation { width: 56, shift: 20, out: 36 }, &x)?;
            abb.apply(Reveal { width: 36, to: Role::Client }, &high)
        });
        // On the grid of the receiver's share, which the receiver knows.
        let opened = client.expect("the client learns the values");
        opened.iter().zip(&shares[0]).map(|(high, c)| (high << 20).wrapping_add(c & mask(20))).collect()
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
