//! Counts by both parties' messages: results against the definition, costs against the ledger, and what is opened
//! against the uniform distribution.

use net::{Ledger, Phase, Role};

use super::{TWO_PHASES, book, open, own, share, without_masks};
use crate::abb::Abb;
use crate::correlation::Need;
use crate::local::Pair;
use crate::operation::{Operation, shaped};
use crate::ops::fss::counts::{CountAtLeast, VALUES};
use crate::ops::fss::threshold::{Comparison, NonZero};
use crate::plans::Plans;
use crate::words::mask;
use crate::{Clear, Lengths};

fn pair() -> Pair {
    Pair::connect(|channel| open(channel, TWO_PHASES)).expect("set-up")
}

/// Rows with all values, with one value alone, and with both ends.
fn rows() -> Vec<Vec<u64>> {
    let last = VALUES as u64 - 1;
    let scattered = (0..300u64).map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 54).collect();
    vec![vec![5], vec![last; 40], vec![0; 3], vec![0, last, 512, 511, 512], scattered]
}

#[test]
fn counts_are_those_of_the_definition_and_cost_what_is_planned() {
    for width in [9, 10, 17, 32] {
        let (lengths, x) = (Lengths::from(&rows().iter().map(Vec::len).collect::<Vec<_>>()[..]), rows().concat());
        let how = CountAtLeast { lengths: &lengths, width };
        let shares = share(&x, 21);
        let need = how.correlations(&(), &TWO_PHASES).expect("a correlation");
        let mut pair = pair();
        let [client, server] = pair
            .run(|abb| {
                let x = own(abb, &shares, &[x.len()]);
                let s = abb.session();
                let correlations = need.kind.make(s, need.units, None)?;
                s.channel().ledger_mut().set_phase(Phase::Decode);
                how.run(s, &x, Some(&correlations))
            })
            .expect("protocol");
        let twin = Clear::new().apply(how, &shaped(&[x.len()], x.clone())).expect("any words");
        for (row, values) in rows().iter().enumerate() {
            for v in 0..VALUES {
                let want = values.iter().filter(|x| **x >= v as u64).count() as u64;
                assert_eq!(
                    client[[row, v]].wrapping_add(server[[row, v]]) & mask(width),
                    want,
                    "row {row}, from {v}"
                );
                assert_eq!(twin[[row, v]], want);
            }
        }
        let (mut ledger, mut plans) = (Ledger::default(), Plans::new(TWO_PHASES));
        book(&need.kind.cost(&mut plans, need.units).expect("a cost"), &mut ledger);
        ledger.set_phase(Phase::Decode);
        book(&how.cost(&(), true, &mut plans).expect("a cost"), &mut ledger);
        for role in [Role::Client, Role::Server] {
            let session = pair.party(role).session();
            assert_eq!(session.channel().ledger().untimed(), ledger.untimed(), "{width} bits");
        }
        assert_eq!(ledger.phase_total(Phase::Decode).messages, 2);
    }
}

#[test]
fn words_other_than_zero_are_told_apart_in_every_ring() {
    for width in 8..=15 {
        let x: Vec<u64> =
            (0..1 << 8).chain([1 << (width - 1), (1 << width) - 1, (1 << (width - 1)) - 1, 0]).collect();
        let x: Vec<u64> = x.into_iter().map(|x| x & mask(width)).collect();
        let shares = share(&x, 4);
        let [client, server] = pair()
            .run(|abb| {
                let own = own(abb, &shares, &[x.len()]);
                abb.apply(NonZero { width }, &own)
            })
            .expect("protocol");
        let twin = Clear::new().apply(NonZero { width }, &shaped(&[x.len()], x.clone())).expect("any words");
        for (i, x) in x.iter().enumerate() {
            assert_eq!(
                (client[i] ^ server[i], twin[i]),
                (u8::from(*x != 0), u8::from(*x != 0)),
                "{x} of {width} bits"
            );
        }
    }
}

/// How far from uniform is what is opened of entries `x`, counted and compared with 0; without masks if they are
/// `missing`.
fn opened(x: u64, missing: bool) -> f64 {
    let (n, lengths) = (3000, Lengths::equal(100, 30));
    let how = CountAtLeast { lengths: &lengths, width: 9 };
    let outcome = pair().run(|abb| {
        let s = abb.session();
        let needs = [how.correlations(&(), &TWO_PHASES), Some(Need::new(Comparison { width: 9 }, n))];
        // One share is 0.
        let own = shaped(&[n], vec![if s.is_server() { 0 } else { x }; n]);
        for (i, Need { kind, units }) in needs.into_iter().flatten().enumerate() {
            let mut correlations = kind.make(s, units, None)?;
            if missing {
                without_masks(s);
                // The mask stands before the key.
                let size = correlations.len() / units;
                correlations.chunks_exact_mut(size).for_each(|entry| entry[0] = 0);
            }
            match i {
                0 => drop(how.run(s, &own, Some(&correlations))?),
                _ => drop(NonZero { width: 9 }.run(s, &own, Some(&correlations))?),
            }
        }
        Ok(s.audit.worst().1)
    });
    let [client, server] = outcome.expect("protocol");
    assert_eq!(client, server, "both parties see the same");
    client
}

#[test]
fn what_is_opened_is_uniform_whatever_the_input() {
    // A correct run exceeds 5 with probability below 1e-6 (one-sided).
    for x in [0, 1, 511, 1023] {
        let deviation = opened(x, false);
        assert!(deviation < crate::audit::LIMIT, "{deviation} for {x}");
    }
    assert!(opened(1, true) > 30.0, "masks that are missing show");
}
