//! Distributed point functions: keys made by both parties' messages, every leaf against the definition.

mod common;

use net::Role;
use ot::dpf::{DpfShape, Expander, Generation, Lane, level_bytes};
use ot::{Bits, ChosenKeys, OtReceiver, OtSender, SenderKeys, dealer};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// One party's random OTs in both directions: as sender, as receiver.
type Ots = (SenderKeys, Bits, ChosenKeys);

/// Random OTs for the client and the server, by the dealer.
fn dealt(n: usize, seed: u64) -> [Ots; 2] {
    let (mut c, mut s) = common::channels();
    let deal = |role, channel: &mut net::Channel| {
        let (mut sender, mut receiver): (OtSender, OtReceiver) = dealer::setup(role, seed);
        sender.ensure(channel, n).unwrap();
        receiver.ensure(channel, n).unwrap();
        let (bits, chosen) = receiver.random(n).unwrap();
        (sender.random(n).unwrap(), bits, chosen)
    };
    [deal(Role::Client, &mut c), deal(Role::Server, &mut s)]
}

fn mask(width: u32) -> u64 {
    u64::MAX >> (64 - width)
}

fn check<L: Lane + Into<u64>>(count: usize, depth: u32, spare: u32, width: u32, rng: &mut StdRng) {
    let shape = DpfShape::new(depth, L::WORDS, width).unwrap();
    let per = depth + spare;
    let parties = dealt(count * per as usize, rng.next_u64());
    let index = |tree: usize| {
        let bit = |i| parties[0].1.get(tree * per as usize + i) ^ parties[1].1.get(tree * per as usize + i);
        (0..depth as usize).fold(0, |index, i| index << 1 | bit(i) as usize)
    };
    let mut generation: Vec<Generation> = [Role::Client, Role::Server]
        .into_iter()
        .zip(&parties)
        .map(|(role, (sender, _, chosen))| Generation::new(shape, role, per, sender, chosen).unwrap())
        .collect();
    while !generation[0].is_grown() {
        let messages = [generation[0].offer(), generation[1].offer()];
        assert_eq!(messages[0].len(), level_bytes(count));
        generation[0].grow(&messages[1]).unwrap();
        generation[1].grow(&messages[0]).unwrap();
    }
    let beta: Vec<u64> = (0..count * L::WORDS)
        .map(|i| match i % 5 {
            0 => 0,
            1 => mask(width),
            2 => 1 << (width - 1),
            _ => rng.next_u64() & mask(width),
        })
        .collect();
    let [(a, s), (b, t)] = [generation[0].leaves(), generation[1].leaves()];
    let corrections: Vec<u64> = (0..beta.len())
        .map(|i| {
            let sum = beta[i].wrapping_add(a[i]).wrapping_add(b[i]);
            let negative = s[i / L::WORDS] ^ t[i / L::WORDS] == 1;
            (if negative { sum.wrapping_neg() } else { sum }) & mask(width)
        })
        .collect();
    let keys: Vec<Vec<u64>> = generation.into_iter().map(|g| g.finish(&corrections).unwrap()).collect();
    let mut expanders = [Expander::new(shape, Role::Client), Expander::new(shape, Role::Server)];
    let mut shares = [vec![L::default(); shape.values()], vec![L::default(); shape.values()]];
    let (mut seen, mut own_words) = (0, 0u64);
    // Backwards: keys do not depend on the order of their use.
    for tree in (0..count).rev() {
        for (i, keys) in keys.iter().enumerate() {
            let key = &keys[tree * shape.key_words()..(tree + 1) * shape.key_words()];
            expanders[i].expand(key, &mut shares[i]);
        }
        for (at, (a, b)) in shares[0].iter().zip(&shares[1]).enumerate() {
            let (a, b): (u64, u64) = ((*a).into(), (*b).into());
            let word = at % L::WORDS;
            let want = if at / L::WORDS == index(tree) { beta[tree * L::WORDS + word] } else { 0 };
            assert_eq!(a.wrapping_add(b) & mask(width), want, "depth {depth}, tree {tree}, word {at}");
            own_words |= a;
        }
        seen |= 1u128 << (index(tree) % 128);
    }
    assert!(count < 100 || own_words & mask(width) == mask(width), "a share alone is random");
    assert!(count < 100 || depth > 3 || seen == (1 << (1 << depth)) - 1, "every index comes up");
}

#[test]
fn the_point_is_at_the_index_for_every_depth_and_width() {
    let mut rng = StdRng::seed_from_u64(1);
    for depth in 1..=9 {
        for (count, spare, width) in [(1, 0, 64), (3, 2, 37), (2, 1, 1)] {
            check::<u64>(count, depth, spare, width, &mut rng);
        }
        for (count, spare, width) in [(1, 1, 32), (2, 0, 30), (5, 3, 1)] {
            check::<u32>(count, depth, spare, width, &mut rng);
        }
    }
}

#[test]
fn the_point_is_at_every_index_over_many_groups_of_trees() {
    let mut rng = StdRng::seed_from_u64(2);
    check::<u64>(200, 3, 1, 50, &mut rng);
    check::<u32>(400, 2, 0, 29, &mut rng);
    check::<u32>(130, 8, 1, 30, &mut rng);
}

#[test]
fn shapes_and_lengths_are_checked() {
    for (depth, words, width) in [(0, 2, 8), (17, 2, 8), (3, 3, 8), (3, 2, 65), (3, 4, 33), (3, 4, 0)] {
        assert!(DpfShape::new(depth, words, width).is_err(), "{depth} {words} {width}");
    }
    let shape = DpfShape::new(3, 2, 8).unwrap();
    let [(sender, _, chosen), (other, _, _)] = dealt(6, 3);
    for per in [2, 4] {
        assert!(Generation::new(shape, Role::Client, per, &sender, &chosen).is_err());
    }
    let mut generation = Generation::new(shape, Role::Client, 3, &sender, &chosen).unwrap();
    let message = generation.offer();
    assert!(generation.grow(&message[1..]).is_err());
    assert!(generation.finish(&[0; 3]).is_err());
    drop(other);
}
