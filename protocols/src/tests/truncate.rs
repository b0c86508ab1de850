//! Truncations whose wraps are prepared: results against the definition, costs against the ledger, and what is opened
//! against the uniform distribution. `ops.rs` has those of both forms through the box.

use net::{Ledger, Phase, Role};

use super::{DEALER, TWO_PHASES, book, open, own, run, share, without_masks};
use crate::abb::Abb;
use crate::correlation::{CorrelationKind, Need};
use crate::form::Shapes;
use crate::local::Pair;
use crate::operation::{Operation, shaped};
use crate::ops::truncate::{Truncation, Wrap};
use crate::plans::Plans;
use crate::words::{Words, mask};

fn pair() -> Pair {
    Pair::connect(|channel| open(channel, TWO_PHASES)).expect("set-up")
}

/// Rings that grow a little and a lot, no shift, and the widest ring.
const WAYS: [Truncation; 5] = [
    Truncation { width: 44, shift: 15, out: 64 },
    Truncation { width: 23, shift: 0, out: 64 },
    Truncation { width: 64, shift: 32, out: 64 },
    Truncation { width: 32, shift: 9, out: 24 },
    Truncation { width: 5, shift: 3, out: 40 },
];

/// Values from all over the range of `how`, with both ends.
fn values(how: Truncation, n: u64) -> Vec<u64> {
    let bound = (1i64 << (how.width - 2)) - 1;
    let step = (2 * bound as u64 / n).max(1) as usize;
    (-bound..=bound).step_by(step).chain([bound, 0, 1, -1]).map(|x| x as u64).collect()
}

#[test]
fn results_are_neighbours_and_right_on_average() {
    for how in WAYS {
        let x: Vec<u64> = values(how, 300).into_iter().flat_map(|x| [x; 8]).collect();
        let shares = share(&x, 17);
        let [client, server] = pair()
            .run(|abb| {
                let own = shaped(&[x.len()], shares[abb.session().role() as usize].clone());
                abb.apply(how, &own)
            })
            .expect("protocol");
        let mut sum = 0f64;
        for (x, (c, s)) in x.iter().zip(client.iter().zip(&server)) {
            let (x, got) = (*x as i64, c.wrapping_add(*s) & mask(how.out));
            let up = got.wrapping_sub((x >> how.shift) as u64) & mask(how.out);
            let exact = x & ((1 << how.shift) - 1) == 0;
            assert!(up <= u64::from(!exact), "{how:?}: {x} gives {got}");
            sum += up as f64 - (x & ((1 << how.shift) - 1)) as f64 / (how.shift as f64).exp2();
        }
        // The error of a word has a variance of 1/4 at most.
        assert!(sum.abs() < 5.0 * (x.len() as f64 / 4.0).sqrt(), "{how:?}: off by {sum} in all");
    }
}

#[test]
fn costs_are_the_ledger() {
    for (how, n) in [(WAYS[0], 1), (WAYS[1], 77), (WAYS[4], 0)] {
        let need = how.correlations(&vec![n], &TWO_PHASES);
        assert_eq!(need.is_some(), n > 0);
        let mut pair = pair();
        pair.run(|abb| {
            let session = abb.session();
            let words = match &need {
                Some(Need { kind, units }) => Some(kind.make(session, *units, None)?),
                None => None,
            };
            session.channel().ledger_mut().set_phase(Phase::Decode);
            how.run(session, &shaped(&[n], vec![5; n]), words.as_deref())
        })
        .expect("protocol");
        let (mut ledger, mut plans) = (Ledger::default(), Plans::new(TWO_PHASES));
        if let Some(Need { kind, units }) = &need {
            book(&kind.cost(&mut plans, *units).expect("a cost"), &mut ledger);
        }
        ledger.set_phase(Phase::Decode);
        let size = how.size::<Shapes>(&&crate::Shape(vec![n]));
        book(&how.cost(&size, need.is_some(), &mut plans).expect("a cost"), &mut ledger);
        for role in [Role::Client, Role::Server] {
            let session = pair.party(role).session();
            assert_eq!(session.channel().ledger().untimed(), ledger.untimed(), "{how:?}, {n}");
        }
        // One exchange, a bit a word.
        let online = ledger.phase_total(Phase::Decode);
        assert_eq!(online.messages, if n == 0 { 0 } else { 2 });
    }
}

/// How far from uniform is what truncations of `x` open; without masks if they are `missing`.
fn opened(x: u64, missing: bool) -> f64 {
    let (how, n) = (Truncation { width: 40, shift: 12, out: 64 }, 3000);
    // One share is 0, so the other's top bit is the same everywhere.
    let outcome = pair().run(|abb| {
        let s = abb.session();
        let mut wraps = CorrelationKind::new(Wrap { bits: 36 }).make(s, n, None)?;
        if missing {
            without_masks(s);
            wraps.fill(0);
        }
        let own = if s.is_server() { 0 } else { x };
        how.run(s, &shaped(&[n], vec![own; n]), Some(&wraps))?;
        Ok(s.audit.worst().1)
    });
    let [client, server] = outcome.expect("protocol");
    assert_eq!(client, server, "both parties see the same");
    client
}

#[test]
fn what_is_opened_is_uniform_whatever_the_input() {
    // A correct run exceeds 5 with probability below 1e-6 (one-sided).
    for x in [0, 1, 1 << 37, (1 << 38) - 1, (1u64 << 38).wrapping_neg() + 1] {
        let deviation = opened(x, false);
        assert!(deviation < crate::audit::LIMIT, "{deviation} for {x}");
    }
    assert!(opened(1, true) > 30.0, "masks that are missing show");
}

/// The formula of SECURITY: the client's own share decides how its truncation is rounded.
#[test]
fn an_error_is_decided_by_the_share_of_the_client() {
    let how = Truncation { width: 56, shift: 24, out: 64 };
    let x: Vec<u64> = (0..500u64).map(|i| (i * i * 77_777_777).wrapping_sub(i << 33)).collect();
    let shares = share(&x, 3);
    let [(client, _), (server, _)] = run(DEALER, |abb| {
        let words = own(abb, &shares, &[x.len()]);
        abb.apply(how, &words)
    });
    let low = |x: u64| x & mask(how.shift);
    for (i, got) in client.plus(&server).iter().enumerate() {
        let below = x[i].wrapping_sub(1);
        let want = (below as i64 >> how.shift) + 1 - i64::from(low(shares[0][i]) > low(below));
        assert_eq!(*got as i64, want, "{}", x[i] as i64);
    }
}
