//! Distributed point functions: keys made by both parties' messages, every leaf against the definition.

use crate::index::{dealt_beside, run_unit};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use waggle_bits::mask;
use waggle_net::Role;
use waggle_ot::dpf::{BitSum, DpfShape, Expander, Generation, Lane, MOST_BIT_BLOCKS, Room, level_bytes};
use waggle_ot::index::HiddenIndices;
use waggle_ot::{ChosenKeys, SenderKeys};

/// One party's hidden indices and the OTs of the first levels.
struct Party {
    indices: HiddenIndices,
    top: (SenderKeys, ChosenKeys),
}

/// `count` indices of `per` bits for the client and the server, and OTs of the first levels, by the dealer.
fn dealt(shape: DpfShape, count: usize, per: usize, rng: &mut StdRng) -> [Party; 2] {
    let ots = shape.top_ots();
    let weights: Vec<u32> = (0..per as u32).rev().collect();
    let (mut indices, mut pools) = dealt_beside(&weights, count, count * ots, rng);
    let units = indices.each_mut().map(|indices| indices.unit(0..shape.top() as usize));
    let units = run_unit(&indices, units, count);
    let chosen = [0, 1].map(|i| pools[i].1.choose(&units[i].rows(1..1 << shape.top())).unwrap());
    let messages = chosen.each_ref().map(|(message, _)| message.clone());
    let mut chosen = chosen.into_iter();
    let (mut theirs, mut pools) = (messages.into_iter().rev(), pools.into_iter());
    indices.map(|indices| {
        let mut sender = pools.next().unwrap().0;
        let sender = sender.accept(count * ots, &theirs.next().unwrap()).unwrap();
        Party { indices, top: (sender, chosen.next().unwrap().1) }
    })
}

/// A party's generation of trees.
fn plant(shape: DpfShape, role: Role, party: Party) -> Result<(HiddenIndices, Generation), waggle_ot::OtError> {
    let trees = Generation::new(shape, role, &party.indices, party.top, Room::default())?;
    Ok((party.indices, trees))
}

fn check<L: Lane + Into<u64>>(count: usize, depth: u32, spare: u32, width: u32, rng: &mut StdRng) {
    let shape = DpfShape::new(depth, L::WORDS, width).unwrap();
    for blocks in 0..=MOST_BIT_BLOCKS {
        check_shape::<L>(shape.with_bits(blocks).unwrap(), blocks, count, spare, width, rng);
    }
}

fn check_shape<L: Lane + Into<u64>>(
    shape: DpfShape,
    blocks: usize,
    count: usize,
    spare: u32,
    width: u32,
    rng: &mut StdRng,
) {
    let depth = shape.depth();
    let per = depth + spare;
    let parties = dealt(shape, count, per as usize, rng);
    let shares = parties.each_ref().map(|party| party.indices.shares());
    let indices: Vec<usize> =
        shares[0].iter().zip(&shares[1]).map(|(a, b)| ((a ^ b) >> (per - depth)) as usize).collect();
    let (hidden, mut generation): (Vec<HiddenIndices>, Vec<Generation>) = [Role::Client, Role::Server]
        .into_iter()
        .zip(parties)
        .map(|(role, party)| plant(shape, role, party).unwrap())
        .unzip();
    while !generation[0].is_grown() {
        let messages: [Vec<u8>; 2] = std::array::from_fn(|i| {
            let mut message = Vec::new();
            generation[i].offer(&hidden[i], &mut message);
            message
        });
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
    let beta_bits: Vec<u64> = (0..2 * blocks * count).map(|_| rng.next_u64()).collect();
    let [of_client, of_server] = [generation[0].bit_leaves(), generation[1].bit_leaves()];
    assert_eq!(of_client.len(), beta_bits.len());
    let bit_corrections: Vec<u64> =
        (0..beta_bits.len()).map(|i| beta_bits[i] ^ of_client[i] ^ of_server[i]).collect();
    let heads: Vec<u64> = (0..count as u64).map(|tree| tree << 7 | 3).collect();
    let entries: Vec<Vec<u64>> =
        generation.into_iter().map(|g| g.finish(&heads, &corrections, &bit_corrections).unwrap().0).collect();
    let keys: Vec<Vec<u64>> = entries
        .iter()
        .map(|entries| {
            let entries = entries.chunks_exact(1 + shape.key_words()).zip(&heads);
            entries.flat_map(|(entry, head)| (assert_eq!(entry[0], *head), &entry[1..]).1).copied().collect()
        })
        .collect();
    let mut expanders = [Expander::new(shape, Role::Client), Expander::new(shape, Role::Server)];
    let mut shares = [vec![L::default(); shape.values()], vec![L::default(); shape.values()]];
    let (mut seen, mut own_words) = (0, 0u64);
    // In reverse order, because keys do not depend on the order of their use.
    for tree in (0..count).rev() {
        for (i, keys) in keys.iter().enumerate() {
            let key = &keys[tree * shape.key_words()..(tree + 1) * shape.key_words()];
            expanders[i].expand(key, &mut shares[i]);
        }
        for (at, (a, b)) in shares[0].iter().zip(&shares[1]).enumerate() {
            let (a, b): (u64, u64) = ((*a).into(), (*b).into());
            let word = at % L::WORDS;
            let want = if at / L::WORDS == indices[tree] { beta[tree * L::WORDS + word] } else { 0 };
            assert_eq!(a.wrapping_add(b) & mask(width), want, "depth {depth}, tree {tree}, word {at}");
            own_words |= a;
        }
        seen |= 1u128 << (indices[tree] % 128);
        for split in
            (0..=1 << depth).step_by(1 + (1 << depth) / 5).chain([1 << depth]).take(if blocks > 0 { 9 } else { 0 })
        {
            let mut sums = [[BitSum::default(); 2]; 2];
            for (i, keys) in keys.iter().enumerate() {
                let key = &keys[tree * shape.key_words()..(tree + 1) * shape.key_words()];
                let mut again = shares[i].clone();
                sums[i] = expanders[i].expand_with_bits(key, split, &mut again);
                let same = again.iter().zip(&shares[i]).all(|(a, b)| (*a).into() == (*b).into());
                assert!(same, "the words are those without bits");
            }
            for (side, (a, b)) in sums[0].iter().zip(&sums[1]).enumerate() {
                let here = (indices[tree] >= split) == (side == 1);
                let want = |word: usize| if here { beta_bits[2 * blocks * tree + word] } else { 0 };
                for (word, (a, b)) in a.iter().zip(b).take(2 * blocks).enumerate() {
                    assert_eq!(a ^ b, want(word), "depth {depth}, split at {split}, word {word}");
                }
                assert_eq!([a, b].map(|sum| sum[2 * blocks..].iter().sum::<u64>()), [0; 2], "bits that leaves have");
            }
        }
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
    let (shape, mut rng) = (DpfShape::new(4, 2, 8).unwrap(), StdRng::seed_from_u64(3));
    let client = |trees, per, rng: &mut StdRng| dealt(shape, trees, per, rng).into_iter().next().unwrap();
    assert!(plant(shape, Role::Client, client(2, 3, &mut rng)).is_err(), "fewer bits than levels");
    let (party, other) = (client(2, 4, &mut rng), client(1, 4, &mut rng));
    assert!(plant(shape, Role::Client, Party { top: other.top, ..party }).is_err(), "first levels of fewer trees");
    let (indices, mut generation) = plant(shape, Role::Client, client(2, 4, &mut rng)).unwrap();
    let mut message = Vec::new();
    generation.offer(&indices, &mut message);
    assert!(generation.grow(&message[1..]).is_err());
    let mut whole = |shape: DpfShape| {
        let (mut message, (indices, mut trees)) =
            (Vec::new(), plant(shape, Role::Client, client(2, 4, &mut rng)).unwrap());
        trees.offer(&indices, &mut message);
        trees.grow(&message).unwrap();
        trees
    };
    assert!(whole(shape).finish(&[0; 2], &[0; 3], &[]).is_err());
    assert!(whole(shape).finish(&[0; 1], &[0; 4], &[]).is_err());
    assert!(whole(shape).finish(&[0; 2], &[0; 4], &[0; 2]).is_err(), "bits of leaves that have none");
    assert!(shape.with_bits(MOST_BIT_BLOCKS + 1).is_err());
    let bits = shape.with_bits(1).unwrap();
    assert!(whole(bits).finish(&[0; 2], &[0; 4], &[0; 3]).is_err(), "bits of fewer trees");
}
