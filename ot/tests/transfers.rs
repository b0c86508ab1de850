//! The defining equations of correlated and 1-of-N transfers, on every output.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use waggle_bits::mask;
use waggle_net::Role;
use waggle_ot::{Bits, ChosenKeys, CotShape, LookupShape, OtError, OtReceiver, OtSender, SenderKeys, dealer};

/// Pools of at least `n` OTs from the dealer.
fn dealt(n: usize) -> (OtSender, OtReceiver) {
    let (mut c, mut s) = crate::common::channels();
    let (mut sender, mut receiver) = (dealer::setup(Role::Client, 1).0, dealer::setup(Role::Server, 1).1);
    sender.ensure(&mut c, n).unwrap();
    receiver.ensure(&mut s, n).unwrap();
    (sender, receiver)
}

fn keys((sender, receiver): &mut (OtSender, OtReceiver), choices: &Bits) -> (SenderKeys, ChosenKeys) {
    let (corrections, chosen) = receiver.choose(choices).unwrap();
    assert_eq!(corrections.len(), choices.len().div_ceil(8));
    (sender.accept(choices.len(), &corrections).unwrap(), chosen)
}

fn check_correlation(
    pools: &mut (OtSender, OtReceiver),
    count: usize,
    slots: usize,
    widths: &[u32],
    choices: &Bits,
    corr: &[u64],
) {
    let shape = CotShape::new(count, slots, widths).unwrap();
    let (sender, chosen) = keys(pools, choices);
    let (message, a) = sender.correlate(&shape, corr).unwrap();
    let bits: usize = (0..count).map(|i| slots * widths[i % widths.len()] as usize).sum();
    assert_eq!(message.len(), bits.div_ceil(8));
    assert_eq!(message.len(), shape.message_bytes());
    let b = chosen.decorrelate(&shape, &message).unwrap();
    for i in 0..count {
        let m = mask(widths[i % widths.len()]);
        for v in i * slots..(i + 1) * slots {
            assert!(a[v] <= m && b[v] <= m, "shares are reduced");
            let want = (choices.get(i) * corr[v]) & m;
            assert_eq!(a[v].wrapping_add(b[v]) & m, want, "{count} x {slots}, {widths:?}: OT {i} value {v}");
        }
    }
}

fn coins(count: usize, rng: &mut StdRng) -> Bits {
    Bits::from_fn(count, |_| rng.next_u32() & 1 == 1)
}

/// A few OTs of every width, and then so many that they take many tasks.
#[test]
fn correlated_transfers_of_every_width() {
    let mut rng = StdRng::seed_from_u64(1);
    let widths: Vec<[u32; 1]> = (1..=64).map(|w| [w]).collect();
    let sizes = [(1, 1), (37, 1), (300, 1), (9, 5), (3, 200)];
    let small = widths.iter().flat_map(|w| sizes.map(|(count, slots)| (count, slots, &w[..])));
    for (count, slots, widths) in
        small.chain([(50_001, 1, &[40, 3][..]), (700, 130, &[17]), (10_000, 3, &[8, 7, 6, 5])])
    {
        let choices = coins(count, &mut rng);
        let corr: Vec<u64> = (0..count * slots).map(|_| rng.next_u64()).collect();
        check_correlation(&mut dealt(count), count, slots, widths, &choices, &corr);
    }
}

#[test]
fn correlated_transfers_of_mixed_widths_and_extreme_values() {
    let mut rng = StdRng::seed_from_u64(2);
    let gilboa: Vec<u32> = (1..=64).rev().collect();
    for widths in [&gilboa[..], &[1, 64], &[5, 5, 7], &[63, 1, 2, 64, 33]] {
        for (count, slots) in [(1, 1), (64 * 70 + 3, 1), (130, 7), (66, 64)] {
            for extreme in [None, Some(0), Some(u64::MAX), Some(1 << 63)] {
                let choices = match extreme {
                    Some(0) => Bits::zeros(count),
                    Some(_) => Bits::from_fn(count, |_| true),
                    None => coins(count, &mut rng),
                };
                let corr: Vec<u64> = (0..count * slots).map(|_| extreme.unwrap_or_else(|| rng.next_u64())).collect();
                check_correlation(&mut dealt(count), count, slots, widths, &choices, &corr);
            }
        }
    }
}

#[test]
fn empty_batches() {
    let mut pools = dealt(1);
    let none = Bits::zeros(0);
    check_correlation(&mut pools, 0, 3, &[9], &none, &[]);
    let (sender, chosen) = keys(&mut pools, &none);
    let shape = LookupShape::new(0, 4, &[3]).unwrap();
    let message = sender.lookup(&shape, |_, _| unreachable!("no items")).unwrap();
    assert!(message.is_empty() && chosen.lookup(&shape, &message).unwrap().is_empty());
}

/// Transfers random tables; `index(item)` chooses.
fn check_lookup(count: usize, bits: u32, widths: &[u32], rng: &mut StdRng, index: impl Fn(usize) -> usize) {
    let shape = LookupShape::new(count, bits, widths).unwrap();
    let (entries, words) = (1 << bits, widths.len());
    let table: Vec<u64> = (0..count * entries * words).map(|_| rng.next_u64()).collect();
    let choices = Bits::from_fn(shape.ots(), |i| index(i / bits as usize) >> (i % bits as usize) & 1 == 1);
    let (sender, chosen) = keys(&mut dealt(shape.ots()), &choices);
    let row = entries * words;
    let message =
        sender.lookup(&shape, |item, out| out.copy_from_slice(&table[item * row..(item + 1) * row])).unwrap();
    let entry_bits: usize = widths.iter().map(|&w| w as usize).sum();
    assert_eq!(message.len(), (count * entries * entry_bits).div_ceil(8));
    assert_eq!(message.len(), shape.message_bytes());
    let got = chosen.lookup(&shape, &message).unwrap();
    for item in 0..count {
        for word in 0..words {
            let want = table[item * row + index(item) * words + word] & mask(widths[word]);
            assert_eq!(got[item * words + word], want, "2^{bits} x {widths:?}: item {item} word {word}");
        }
    }
}

#[test]
fn lookups_of_every_size_and_index() {
    let mut rng = StdRng::seed_from_u64(4);
    for bits in 1..=8 {
        let n = 1 << bits;
        for widths in
            [&[1_u32][..], &[2], &[3], &[7], &[8], &[16], &[37], &[64], &[1, 1], &[5, 64, 3], &[64, 64], &[61; 5]]
        {
            check_lookup(n, bits, widths, &mut rng, |item| item);
            check_lookup(5, bits, widths, &mut rng, |_| n - 1);
        }
    }
    for w in 1..=64 {
        check_lookup(100, 1, &[w], &mut rng, |item| item * item / 3 % 2);
    }
    // So many items that they take many tasks.
    check_lookup(20_003, 4, &[1], &mut rng, |item| item * 7 % 16);
    check_lookup(3_001, 4, &[2, 2], &mut rng, |item| item * 5 % 16);
    check_lookup(501, 8, &[18], &mut rng, |item| item * 11 % 256);
    check_lookup(5_001, 1, &[64, 63], &mut rng, |item| item / 3 % 2);
}

#[test]
fn short_tables_are_strings_of_entries() {
    let mut rng = StdRng::seed_from_u64(7);
    for (bits, w) in [(7, 1), (4, 1), (4, 3), (5, 4), (1, 64), (6, 2)] {
        let count = 300;
        let shape = LookupShape::new(count, bits, &[w]).unwrap();
        let tables: Vec<u128> =
            (0..count).map(|_| u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64())).collect();
        let choices = coins(shape.ots(), &mut rng);
        let (sender, chosen) = keys(&mut dealt(shape.ots()), &choices);
        let message = sender.lookup_short(&shape, |item| tables[item]).unwrap();
        let got = chosen.lookup(&shape, &message).unwrap();
        for (item, (got, table)) in got.iter().zip(&tables).enumerate() {
            let index: u32 = (0..bits).map(|i| (choices.get(item * bits as usize + i as usize) as u32) << i).sum();
            let want = (table >> (index * w)) as u64 & (u64::MAX >> (64 - w));
            assert_eq!(*got, want, "2^{bits} x {w}, item {item}");
        }
    }
    let long = LookupShape::new(1, 8, &[1]).unwrap();
    let (sender, _) = keys(&mut dealt(long.ots()), &Bits::zeros(long.ots()));
    assert!(matches!(sender.lookup_short(&long, |_| 0), Err(OtError::Parameter { got: 256, .. })));
}

/// Entries that the receiver did not choose stay hidden, because no two entries share a pad.
#[test]
fn entries_are_masked_independently() {
    let shape = LookupShape::new(64, 3, &[64]).unwrap();
    let zeros = Bits::zeros(shape.ots());
    let (sender, _) = keys(&mut dealt(shape.ots()), &zeros);
    // All tables zero: the message is the pads themselves.
    let message = sender.lookup(&shape, |_, row| row.fill(0)).unwrap();
    let mut pads: Vec<&[u8]> = message.chunks(8).collect();
    pads.sort_unstable();
    pads.dedup();
    assert_eq!(pads.len(), 64 * 8, "no two entries share a pad");
}

#[test]
fn batches_can_be_split() {
    let mut rng = StdRng::seed_from_u64(8);
    let choices = coins(200, &mut rng);
    let (mut sender, mut chosen) = keys(&mut dealt(200), &choices);
    let (sender_tail, chosen_tail) = (sender.split_off(77), chosen.split_off(77));
    for (sender, chosen, start) in [(sender, chosen, 0), (sender_tail, chosen_tail, 77)] {
        let n = sender.len();
        assert_eq!((chosen.len(), chosen.choices().len()), (n, n));
        let shape = CotShape::new(n, 1, &[31]).unwrap();
        let corr: Vec<u64> = (0..n as u64).map(|i| i * i + 12345).collect();
        let (message, a) = sender.correlate(&shape, &corr).unwrap();
        let b = chosen.decorrelate(&shape, &message).unwrap();
        for i in 0..n {
            assert_eq!(a[i].wrapping_add(b[i]) & mask(31), choices.get(start + i) * corr[i]);
        }
    }
}

#[test]
fn random_words_are_those_chosen() {
    let mut rng = StdRng::seed_from_u64(9);
    for count in [1, 129, 20_000] {
        for widths in [&[1][..], &[17], &[64], &[1, 64, 13], &[7; 300]] {
            let choices = coins(count, &mut rng);
            let (sender, chosen) = keys(&mut dealt(count), &choices);
            let [r0, r1] = sender.into_rows(widths).unwrap();
            let r = chosen.into_rows(widths).unwrap();
            assert_eq!((r0.len(), r1.len(), r.len()), [count * widths.len(); 3].into());
            for (i, r) in r.iter().enumerate() {
                let width = widths[i % widths.len()];
                assert!(r0[i] <= mask(width) && r1[i] <= mask(width));
                assert_eq!(*r, if choices.get(i / widths.len()) == 1 { r1[i] } else { r0[i] });
                assert!(width < 64 || r0[i] != r1[i]);
            }
        }
        let (mut sender, mut receiver) = dealt(count);
        let (choices, chosen) = receiver.random(count).unwrap();
        let [r0, r1] = sender.random(count).unwrap().into_rows(&[1]).unwrap();
        let r = chosen.into_rows(&[1]).unwrap();
        // An AND triple: r_b = r_0 ^ (r_0 ^ r_1) b.
        assert!((0..count).all(|i| r[i] == r0[i] ^ ((r0[i] ^ r1[i]) & choices.get(i))));
        assert!(count < 1000 || r0 != r1);
    }
    for width in [0, 65] {
        let (sender, chosen) = keys(&mut dealt(1), &Bits::zeros(1));
        assert!(sender.into_rows(&[1, width]).is_err() && chosen.into_rows(&[]).is_err());
    }
}
