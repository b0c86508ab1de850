//! Hidden indices: vectors and shares made by both parties' messages, against the indices.

use std::ops::Range;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use waggle_bits::mask;
use waggle_net::Role;
use waggle_ot::index::{HiddenIndices, PlacedWords, UnitVectors, placed_bytes, sum_bytes, unit_bytes};
use waggle_ot::{OtReceiver, OtSender, dealer};

/// `count` indices of the client and of the server, and each party's pools of the dealer, which hold `more` further
/// OTs.
pub(crate) fn dealt_beside(
    weights: &[u32],
    count: usize,
    more: usize,
    rng: &mut StdRng,
) -> ([HiddenIndices; 2], [(OtSender, OtReceiver); 2]) {
    let (n, seed) = (count * weights.len(), rng.next_u64());
    let (mut c, mut s) = crate::common::channels();
    let [client, server] = [(Role::Client, &mut c), (Role::Server, &mut s)].map(|(role, channel)| {
        let (mut sender, mut receiver) = dealer::setup(role, seed);
        sender.ensure(channel, n + more).unwrap();
        receiver.ensure(channel, n + more).unwrap();
        let keys = (sender.random(n).unwrap(), receiver.random(n).unwrap().1);
        (HiddenIndices::new(role, weights, keys).unwrap(), (sender, receiver))
    });
    ([client.0, server.0], [client.1, server.1])
}

fn dealt(weights: &[u32], count: usize, rng: &mut StdRng) -> [HiddenIndices; 2] {
    dealt_beside(weights, count, 0, rng).0
}

pub(crate) fn run_unit(indices: &[HiddenIndices; 2], mut units: [UnitVectors; 2], count: usize) -> [UnitVectors; 2] {
    let mut step = 0;
    while !units[0].is_done() {
        let messages: [Vec<u8>; 2] = std::array::from_fn(|i| {
            let mut message = Vec::new();
            units[i].offer(&indices[i], &mut message);
            assert_eq!(message.len(), unit_bytes(count, step));
            message
        });
        assert!(units[0].accept(&indices[0], &messages[1][1..]).is_err(), "a short message");
        (0..2).for_each(|i| units[i].accept(&indices[i], &messages[1 - i]).unwrap());
        step += 1;
    }
    units
}

fn run_words(
    indices: &[HiddenIndices; 2],
    mut words: [PlacedWords; 2],
    size: [usize; 2],
    width: u32,
) -> [Vec<u64>; 2] {
    let mut step = 0;
    while !words[0].is_done() {
        let messages: [Vec<u8>; 2] = std::array::from_fn(|i| {
            let mut message = Vec::new();
            words[i].offer(&indices[i], &mut message);
            assert_eq!(message.len(), placed_bytes(size[0], step, size[1], width));
            message
        });
        (0..2).for_each(|i| words[i].accept(&indices[i], &messages[1 - i]).unwrap());
        step += 1;
    }
    words.map(PlacedWords::into_words)
}

/// The number that the bits of `index` at `places` spell. The first place is the highest bit.
fn spelt(index: u64, weights: &[u32], places: Range<usize>) -> usize {
    places.fold(0, |n, place| n << 1 | (index >> weights[place] & 1) as usize)
}

/// Places `per` random words of `width` bits by the bits `range` of `count` indices.
fn check_placed(
    indices: &mut [HiddenIndices; 2],
    weights: &[u32],
    range: Range<usize>,
    count: usize,
    (per, width): (usize, u32),
    rng: &mut StdRng,
) {
    let shares = indices.each_ref().map(HiddenIndices::shares);
    let words: [Vec<u64>; 2] =
        std::array::from_fn(|_| (0..count * per).map(|_| rng.next_u64() & mask(width)).collect());
    let mut own = words.clone().into_iter();
    let placed = indices.each_mut().map(|indices| indices.place(range.clone(), own.next().unwrap(), width));
    let placed = run_words(indices, placed, [count, per], width);
    assert_eq!(placed[0].len(), (count * per) << range.len());
    for (at, (a, b)) in placed[0].iter().zip(&placed[1]).enumerate() {
        let (i, place) = (at / (per << range.len()), at % (per << range.len()));
        let sum = words[0][i * per + place % per].wrapping_add(words[1][i * per + place % per]);
        let here = place / per == spelt(shares[0][i] ^ shares[1][i], weights, range.clone());
        assert_eq!(a.wrapping_add(*b) & mask(width), if here { sum & mask(width) } else { 0 });
    }
}

#[test]
fn shares_and_vectors_are_those_of_the_index() {
    let mut rng = StdRng::seed_from_u64(7);
    for count in [1, 3, 63, 64, 65, 200] {
        // Three groups of bits, as a function with tails has them: a unit vector of the first and of the last group,
        // and words placed by the group between.
        for (first, between, last) in [(1, 0, 0), (3, 1, 8), (2, 2, 7), (8, 0, 6), (0, 3, 1)] {
            let places = first + between + last;
            let weights: Vec<u32> = (0..places as u32).map(|place| (place + 2) % places as u32).collect();
            let mut indices = dealt(&weights, count, &mut rng);
            let message = indices[1].offer_sums();
            assert_eq!(message.len(), sum_bytes(count, &weights));
            if !message.is_empty() {
                assert!(indices[0].accept_sums(&message[1..]).is_err());
            }
            indices[0].accept_sums(&message).unwrap();
            let shares = indices.each_ref().map(HiddenIndices::shares);
            let index = |i: usize| shares[0][i] ^ shares[1][i];
            let sums: Vec<u64> = indices[0].sums().zip(indices[1].sums()).map(|(a, b)| a.wrapping_add(b)).collect();
            (0..count).for_each(|i| assert_eq!(sums[i] & mask(places as u32), index(i)));
            for range in [0..first, first + between..places].into_iter().filter(|range| !range.is_empty()) {
                let units = indices.each_mut().map(|indices| indices.unit(range.clone()));
                let units = run_unit(&indices, units, count);
                let stride = (1usize << range.len()).div_ceil(64);
                let bit = |i: usize, entry: usize| {
                    let word = i * stride + entry / 64;
                    (units[0].words()[word] ^ units[1].words()[word]) >> (entry % 64) & 1
                };
                let rows = units.each_ref().map(|unit| unit.rows(0..1 << range.len()));
                for i in 0..count {
                    for entry in 0..1 << range.len() {
                        let want = u64::from(entry == spelt(index(i), &weights, range.clone()));
                        assert_eq!(bit(i, entry), want, "{count} indices, {range:?}");
                        let (start, len) = (i / 64 * 64, (count - i / 64 * 64).min(64));
                        let at = (start << range.len()) + entry * len + i - start;
                        assert_eq!(rows[0].get(at) ^ rows[1].get(at), want);
                    }
                }
            }
            if between > 0 {
                check_placed(&mut indices, &weights, first..first + between, count, (1, 64), &mut rng);
            }
        }
    }
}

#[test]
fn words_of_every_size_are_placed() {
    let mut rng = StdRng::seed_from_u64(8);
    for size in [(1, 1), (1, 64), (2, 64), (3, 32), (5, 41), (11, 56), (0, 9)] {
        let mut indices = dealt(&[2, 1, 0], 70, &mut rng);
        check_placed(&mut indices, &[2, 1, 0], 0..3, 70, size, &mut rng);
    }
}

/// The server gets zeros instead of the client's messages, so its own messages are its shares under pads. If a pad
/// served twice, differences of messages would repeat: of two places, of two steps, of two indices, or of a vector
/// and the sums.
#[test]
fn no_pad_serves_twice() {
    let mut rng = StdRng::seed_from_u64(9);
    let (count, weights) = (256, (0..16).collect::<Vec<u32>>());
    let [_, mut server] = dealt(&weights, count, &mut rng);
    let sums = server.offer_sums();
    let mut words: Vec<u64> = Vec::new();
    for range in [0..8, 8..16] {
        let mut unit = server.unit(range);
        for step in 0..8 {
            let mut message = Vec::new();
            unit.offer(&server, &mut message);
            // Only steps of 64 bits and more, because shorter ones may well have equal words.
            if step >= 6 {
                words.extend(message.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)));
            }
            unit.accept(&server, &vec![0; unit_bytes(count, step)]).unwrap();
        }
    }
    words.extend(sums.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)));
    let all = words.len();
    assert!(all > 1500);
    let distinct = |words: &mut Vec<u64>| {
        words.sort_unstable();
        words.dedup();
        words.len()
    };
    // Differences of words in the order of sending, at the distances between neighbours and between indices, rows and
    // steps.
    for distance in [1, 64, count, 3 * count] {
        let mut differences: Vec<u64> = words.iter().zip(&words[distance..]).map(|(a, b)| a ^ b).collect();
        let expected = differences.len();
        assert_eq!(distinct(&mut differences), expected, "pads repeat at distance {distance}");
    }
    assert_eq!(distinct(&mut words), all);
}

#[test]
#[should_panic(expected = "serves one vector")]
fn a_place_serves_one_vector() {
    let [mut client, _] = dealt(&[0, 1, 2], 5, &mut StdRng::seed_from_u64(1));
    let _first = client.unit(0..2);
    client.place(1..3, vec![0; 5], 8);
}

#[test]
fn weights_and_lengths_are_checked() {
    let mut rng = StdRng::seed_from_u64(2);
    let keys = |n: usize, rng: &mut StdRng| {
        let (mut c, _) = crate::common::channels();
        let (mut sender, mut receiver) = dealer::setup(Role::Client, rng.next_u64());
        sender.ensure(&mut c, n).unwrap();
        receiver.ensure(&mut c, n).unwrap();
        (sender.random(n).unwrap(), receiver.random(n).unwrap().1)
    };
    for weights in [&[][..], &[1], &[0, 0], &[0, 2], &[0, 70]] {
        assert!(HiddenIndices::new(Role::Client, weights, keys(2 * weights.len(), &mut rng)).is_err(), "{weights:?}");
    }
    assert!(HiddenIndices::new(Role::Client, &[0, 1], keys(3, &mut rng)).is_err(), "not whole indices");
    let (a, b) = (keys(4, &mut rng), keys(2, &mut rng));
    assert!(HiddenIndices::new(Role::Client, &[0, 1], (a.0, b.1)).is_err(), "other OTs in one direction");
}
