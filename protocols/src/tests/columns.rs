//! Selections by prepared bits and extensions, by both parties' messages: results against the definition, costs
//! against the ledger, and what is opened against the uniform distribution.

use net::{Ledger, Phase, Role};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::{TWO_PHASES, book, open, own, share, without_masks};
use crate::correlation::{CorrelationKind, Need};
use crate::local::Pair;
use crate::operation::{Operation, shaped};
use crate::ops::mux_columns::{MuxColumns, Selection};
use crate::plans::Plans;
use crate::words::mask;

fn pair() -> Pair {
    Pair::connect(|channel| open(channel, TWO_PHASES)).expect("set-up")
}

/// One bit and one word, rings of both kinds of parity, several words a bit, and the narrowest and the widest ring.
const WAYS: [MuxColumns<'static>; 4] = [
    MuxColumns { widths: &[17], words: 1 },
    MuxColumns { widths: &[24, 30], words: 1 },
    MuxColumns { widths: &[9, 1, 64], words: 5 },
    MuxColumns { widths: &[8], words: 23 },
];

/// Bits and words of `n` items, with all bits equal in the first items.
fn items(how: MuxColumns, n: usize, seed: u64) -> (Vec<u64>, Vec<u64>) {
    let (mut rng, columns) = (StdRng::seed_from_u64(seed), how.widths.len());
    let bits = (0..n * columns).map(|i| if i < 2 * columns { (i / columns) as u64 } else { rng.next_u64() & 1 });
    let bits = bits.collect();
    let word = |i: usize, rng: &mut StdRng| match i % 7 {
        0 => 0,
        1 => u64::MAX,
        2 => 1 << (how.widths[i / how.words % columns] - 1),
        _ => rng.next_u64(),
    };
    (bits, (0..n * columns * how.words).map(|i| word(i, &mut rng)).collect())
}

#[test]
fn selections_are_products_and_cost_what_is_planned() {
    for (seed, (how, n)) in (0..).zip([(WAYS[0], 1), (WAYS[1], 70), (WAYS[2], 33), (WAYS[3], 9), (WAYS[1], 0)]) {
        let (bits, words) = items(how, n, seed);
        let columns = how.widths.len();
        let shapes = [[n, columns], [n, columns * how.words]];
        let [bit_shares, word_shares] = [share(&bits, 3), share(&words, 4)];
        // XOR shares of bits.
        let bit_shares = bit_shares.map(|shares| shares.iter().map(|share| (share & 1) as u8).collect::<Vec<_>>());
        let need = how.correlations(&n, &TWO_PHASES).expect("a correlation");
        let mut pair = pair();
        let [client, server] = pair
            .run(|abb| {
                let Need { kind, units } = &need;
                let x = own(abb, &word_shares, &shapes[1]);
                let s = abb.session();
                let correlations = kind.make(s, *units, None)?;
                assert_eq!(correlations.len(), units * kind.words(s.role()));
                s.channel().ledger_mut().set_phase(Phase::Decode);
                let bits = shaped(&shapes[0], bit_shares[s.role() as usize].clone());
                how.run(s, (&bits, &x), Some(&correlations))
            })
            .expect("protocol");
        for (i, (c, s)) in client.iter().zip(&server).enumerate() {
            let column = i / how.words;
            let width = how.widths[column % columns];
            let want = if bits[column] == 1 { words[i] } else { 0 };
            assert_eq!(c.wrapping_add(*s) & mask(width), want & mask(width), "{how:?}: word {i}");
        }
        let (mut ledger, mut plans) = (Ledger::default(), Plans::new(TWO_PHASES));
        book(&need.kind.cost(&mut plans, n).expect("a cost"), &mut ledger);
        ledger.set_phase(Phase::Decode);
        book(&how.cost(&n, true, &mut plans).expect("a cost"), &mut ledger);
        for role in [Role::Client, Role::Server] {
            let session = pair.party(role).session();
            assert_eq!(session.channel().ledger().untimed(), ledger.untimed(), "{how:?}, {n}");
        }
        // One exchange.
        assert_eq!(ledger.phase_total(Phase::Decode).messages, if n == 0 { 0 } else { 2 });
    }
}

#[test]
fn correlations_are_products_of_uniform_bits_and_words() {
    let (selection, n) = (Selection { widths: vec![24, 30], words: 2 }, 400);
    let kind = CorrelationKind::new(selection);
    let [client, server] = pair().run(|abb| kind.make(abb.session(), n, None)).expect("protocol");
    let mut ones = 0;
    for (c, s) in client.chunks_exact(11).zip(server.chunks_exact(11)) {
        let bits = c[0] ^ s[0];
        for (column, width) in [(0, 24), (1, 30)] {
            let bit = bits >> column & 1;
            ones += bit;
            let sum = |at: usize| c[at].wrapping_add(s[at]) & mask(width);
            assert_eq!(sum(1 + column as usize), bit);
            for word in 0..2 {
                let at = 3 + 4 * column as usize + 2 * word;
                assert_eq!(sum(at + 1), bit * sum(at));
            }
        }
    }
    assert!((300..500).contains(&ones), "{ones} of 800 bits");
}

/// How far from uniform is what selections of one item `bit` and `word` open; without masks if they are `missing`.
fn opened(bit: u8, word: u64, missing: bool) -> f64 {
    let (how, n) = (MuxColumns { widths: &[24, 30], words: 1 }, 3000);
    let outcome = pair().run(|abb| {
        let s = abb.session();
        let kind = how.correlations(&n, &TWO_PHASES).expect("a correlation").kind;
        let mut correlations = kind.make(s, n, None)?;
        if missing {
            without_masks(s);
            correlations.fill(0);
        }
        // One share is 0.
        let (bit, word) = if s.is_server() { (0, 0) } else { (bit, word) };
        how.run(s, (&shaped(&[n, 2], vec![bit; 2 * n]), &shaped(&[n, 2], vec![word; 2 * n])), Some(&correlations))?;
        Ok(s.audit.worst().1)
    });
    let [client, server] = outcome.expect("protocol");
    assert_eq!(client, server, "both parties see the same");
    client
}

#[test]
fn what_is_opened_is_uniform_whatever_the_input() {
    // A correct run exceeds 5 with probability below 1e-6 (one-sided).
    for (bit, word) in [(0, 0), (1, 0), (1, 1 << 23), (0, u64::MAX)] {
        let deviation = opened(bit, word, false);
        assert!(deviation < crate::audit::LIMIT, "{deviation} for {bit} {word}");
    }
    assert!(opened(1, 1, true) > 30.0, "masks that are missing show");
}
