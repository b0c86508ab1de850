//! Set-up, extension and pools between two parties, with traffic predicted to the byte.

use std::time::Duration;

use crate::common::{channels, pools, run};
use rand::SeedableRng;
use rand::rngs::StdRng;
use waggle_net::{Channel, Link, NetError, Role, memory_pair};
use waggle_ot::{Bits, CotKind, CotShape, Kernels, LookupShape, OtError, PoolPlan, Run, SoftSpoken};

const KINDS: [CotKind; 4] = [
    CotKind::SoftSpoken(SoftSpoken::K2),
    CotKind::SoftSpoken(SoftSpoken::K4),
    CotKind::SoftSpoken(SoftSpoken::K8),
    CotKind::Silent,
];

/// OTs that a round of silent OT makes, and the most OTs that a pool makes before the first round.
const ROUND: usize = 964_096;
const DIRECT: usize = (1 << 17) - MASKS;

/// OTs that the check of an extension spends.
const MASKS: usize = 128;

#[test]
fn both_directions_work_and_cost_what_is_predicted() {
    for kind in KINDS {
        let mut needs = vec![1_usize, 5000, 70_000, 3, 9_000];
        if kind == CotKind::Silent {
            // The first round, one more round, and two rounds at once.
            needs.extend([60_000, ROUND, 2 * ROUND]);
        }
        let party = |ch: &mut waggle_net::Channel, role: Role| {
            let (mut sender, mut receiver) = waggle_ot::setup(ch, kind, &mut rand::rng()).unwrap();
            let mut products = Vec::new();
            for (round, n) in needs.iter().copied().enumerate() {
                let choices = Bits::from_fn(n, |i| (i * i + round + i / 3) % 3 == 1);
                let corr: Vec<u64> = (0..n as u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
                let shape = CotShape::new(n, 1, &[64]).unwrap();
                for turn in [Role::Client, Role::Server] {
                    if role == turn {
                        sender.ensure(ch, n).unwrap();
                        let corrections = ch.recv("corrections", n.div_ceil(8)).unwrap();
                        let keys = sender.accept(n, &corrections).unwrap();
                        let (message, share) = keys.correlate(&shape, &corr).unwrap();
                        ch.send("products", &message).unwrap();
                        products.push(share);
                    } else {
                        receiver.ensure(ch, n).unwrap();
                        let (corrections, keys) = receiver.choose(&choices).unwrap();
                        ch.send("corrections", &corrections).unwrap();
                        let message = ch.recv("products", shape.message_bytes()).unwrap();
                        products.push(keys.decorrelate(&shape, &message).unwrap());
                    }
                }
            }
            ch.flush("products").unwrap();
            assert_eq!(sender.used(), needs.iter().sum::<usize>() as u64);
            assert_eq!(sender.made(), sender.used() + sender.available() as u64);
            (products, sender.plan(), (sender.made(), receiver.made()))
        };
        let (a, b, ledger) = run(|ch| party(ch, Role::Client), |ch| party(ch, Role::Server));
        assert_eq!(a.2, b.2);
        for (turn, (x, y)) in a.0.iter().zip(&b.0).enumerate() {
            let round = turn / 2;
            for (i, (x, y)) in x.iter().zip(y).enumerate() {
                let chosen = (i * i + round + i / 3) % 3 == 1;
                let want = if chosen { (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) } else { 0 };
                assert_eq!(x.wrapping_add(*y), want, "{kind:?}, turn {turn}, OT {i}");
            }
        }

        // The ledger follows from shapes alone: both directions behave alike, so both parties send the same.
        let plan: PoolPlan = a.1;
        let (mut made, mut level) = (0, 0);
        let (mut bytes, mut messages) = (kind.setup_bytes(), kind.setup_messages());
        for n in needs {
            let amount = plan.refill_amount(made, level, n);
            let wire = plan.refill_wire(made, amount);
            bytes += wire.bytes();
            messages += wire.messages();
            made += amount as u64;
            level = level + amount - n;
            bytes += (n.div_ceil(8) + n * 8 + 2 * waggle_net::HEADER_BYTES) as u64;
            messages += 2;
        }
        let total = ledger.total();
        assert_eq!((total.bytes_client_to_server, total.bytes_server_to_client), (bytes, bytes), "{kind:?}");
        assert_eq!(total.messages, 2 * messages);
        assert_eq!(a.2.0, made);
    }
}

#[test]
fn large_extensions_are_cut_into_messages() {
    let kind = CotKind::SoftSpoken(SoftSpoken::K8);
    let n = (1 << 16) + 5000;
    let (sender, receiver, ledger) = pools(SoftSpoken::K8, n);
    let made = (n + MASKS).next_multiple_of(2048) - MASKS;
    assert_eq!((sender.available(), receiver.available()), (made, made));
    let [wire, rest @ ..] = kind.extend_wire(0, made).flows;
    // The check is a message of its own.
    assert_eq!((wire.messages, rest), (3, [Run::default(); 3]));
    assert_eq!(ledger.total().bytes_server_to_client, kind.setup_bytes() + wire.bytes);
    assert_eq!(ledger.total().bytes_client_to_server, kind.setup_bytes());
}

#[test]
fn refills_follow_the_plan() {
    for kind in KINDS {
        let plan = PoolPlan { kind, min_batch: 5000 };
        assert_eq!(plan.refill_amount(0, 10, 10), 0);
        assert_eq!(plan.refill_amount(0, 10, 11), 6144 - MASKS);
        assert_eq!(plan.refill_amount(0, 0, 6145 - MASKS), 8192 - MASKS);
        assert_eq!(plan.refill_amount(0, 2000, 8144 - MASKS), 6144 - MASKS);
        assert_eq!(plan.refill_wire(0, 0).bytes(), 0);
    }
}

#[test]
fn silent_rounds_begin_when_many_are_needed() {
    let plan = PoolPlan { kind: CotKind::Silent, min_batch: 1 };
    let softspoken = CotKind::SoftSpoken(SoftSpoken::K4);
    let amount = |made, need| plan.refill_amount(made, 0, need);
    assert_eq!((amount(0, 1), amount(0, DIRECT), amount(0, DIRECT + 1)), (2048 - MASKS, DIRECT, ROUND));
    let (made, last) = (DIRECT as u64 - 1920, 2048 - MASKS);
    assert_eq!((amount(made, last), amount(made, last + 1), amount(made, ROUND + 1)), (last, ROUND, 2 * ROUND));
    assert_eq!(amount(ROUND as u64, 1), ROUND, "never back to small refills");
    assert_eq!(plan.refill_wire(0, DIRECT), softspoken.extend_wire(0, DIRECT));
    let (first, later) = (plan.refill_wire(made, 2 * ROUND).flows, plan.refill_wire(ROUND as u64, 2 * ROUND));
    assert_eq!(first[0], softspoken.extend_wire(0, 42 * 2048 - MASKS).flows[0]);
    assert_eq!((later.flows[0], &later.flows[1..]), (Run::default(), &first[1..]));
    let bits = 8.0 * later.bytes() as f64 / (2 * ROUND) as f64;
    assert!((2.4..2.5).contains(&bits), "{bits} bits per OT");
}

/// Blocks are not public, but their hashes are: one fixed session on every combination of kernels and threads.
#[test]
fn kernels_and_threads_do_not_change_a_bit() {
    let session = |kind: CotKind, kernels: [Kernels; 2], threads: usize| {
        let party = |ch: &mut waggle_net::Channel, seed: u64, kernels: Kernels| {
            let mut rng = StdRng::seed_from_u64(seed);
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let (mut sender, mut receiver) = waggle_ot::setup_with(ch, kind, kernels, &mut rng).unwrap();
                let (mut words, mut sent) = (Vec::new(), Vec::new());
                for n in [3000, 140_000] {
                    match ch.role() {
                        Role::Client => {
                            sender.ensure(ch, n).unwrap();
                            sent.push(sender.random(n).unwrap().into_rows(&[64]).unwrap());
                        }
                        Role::Server => {
                            receiver.ensure(ch, n).unwrap();
                            let (choices, chosen) = receiver.random(n).unwrap();
                            words.push((choices, chosen.into_rows(&[64]).unwrap()));
                        }
                    }
                }
                (sent, words, ch.ledger().total().untimed())
            })
        };
        let (a, b, _) = run(|ch| party(ch, 1, kernels[0]), |ch| party(ch, 2, kernels[1]));
        (a.0, b.1, a.2)
    };
    for kind in KINDS {
        let first = session(kind, [Kernels::Portable; 2], 1);
        for (pairs, (choices, chosen)) in first.0.iter().zip(&first.1) {
            let wrong = |i: usize| chosen[i] != pairs[choices.get(i) as usize][i];
            assert!(!(0..chosen.len()).any(wrong), "{kind:?}");
        }
        for kernels in [[Kernels::Detected, Kernels::Portable], [Kernels::Portable, Kernels::Detected]] {
            assert!(session(kind, kernels, 3) == first, "{kind:?} {kernels:?}");
        }
    }
}

#[test]
fn silent_choices_are_balanced_and_no_pad_comes_twice() {
    let n = 2 * ROUND;
    let kind = CotKind::Silent;
    let (_, (choices, mut words), _) = run(
        |ch| waggle_ot::setup(ch, kind, &mut rand::rng()).unwrap().0.ensure(ch, n).unwrap(),
        |ch| {
            let (_, mut receiver) = waggle_ot::setup(ch, kind, &mut rand::rng()).unwrap();
            receiver.ensure(ch, n).unwrap();
            let (choices, keys) = receiver.random(n).unwrap();
            (choices, keys.into_rows(&[64]).unwrap())
        },
    );
    // Six standard deviations of a fair coin, for single choices and for neighbours; no tree is constant.
    let balanced = |ones: u32, of: usize| (ones as usize).abs_diff(of / 2) < 3 * of.isqrt();
    assert!(balanced(choices.words().iter().map(|w| w.count_ones()).sum(), n));
    assert!(balanced(choices.words().iter().map(|w| (w ^ w << 1).count_ones()).sum(), n));
    assert!(
        choices.words().chunks(8).all(|tree| (100..412).contains(&tree.iter().map(|w| w.count_ones()).sum::<u32>()))
    );
    words.sort_unstable();
    words.dedup();
    assert_eq!(words.len(), n);
}

#[test]
fn misuse_is_a_typed_error() {
    let (mut sender, mut receiver, _) = pools(SoftSpoken::K2, 100);
    let held = sender.available();
    let short = |e| matches!(e, OtError::Short { needed, available } if needed == held + 1 && available == held);
    assert!(short(receiver.choose(&Bits::zeros(held + 1)).unwrap_err()));
    assert!(short(sender.accept(held + 1, &vec![0; held.div_ceil(8) + 1]).unwrap_err()));
    assert!(matches!(
        sender.accept(100, &[0; 12]).unwrap_err(),
        OtError::Length { unit: "bytes", expected: 13, got: 12, .. }
    ));
    assert!(matches!(
        sender.accept(100, &[0xff; 13]).unwrap_err(),
        OtError::Net(NetError::Malformed { step: "ot/corrections", .. })
    ));
    assert_eq!(sender.available(), held, "a refused message consumes nothing");

    let (corrections, chosen) = receiver.choose(&Bits::zeros(100)).unwrap();
    let keys = sender.accept(100, &corrections).unwrap();
    let shape = CotShape::new(100, 2, &[7]).unwrap();
    assert!(matches!(
        keys.correlate(&shape, &[0; 199]).unwrap_err(),
        OtError::Length { expected: 200, got: 199, .. }
    ));
    assert!(matches!(
        chosen.decorrelate(&shape, &vec![0; shape.message_bytes() + 1]).unwrap_err(),
        OtError::Length { unit: "bytes", expected: 175, got: 176, .. }
    ));
    for widths in [&[][..], &[0], &[65], &[8, 0]] {
        assert!(CotShape::new(1, 1, widths).is_err() && LookupShape::new(1, 1, widths).is_err());
    }
    assert!(CotShape::new(1, 0, &[1]).is_err() && CotShape::new(usize::MAX, 1, &[1]).is_err());
    assert!(LookupShape::new(1, 0, &[1]).is_err() && LookupShape::new(1, 9, &[1]).is_err());
    assert!(LookupShape::new(usize::MAX / 2, 8, &[1]).is_err());
}

#[test]
fn peers_of_another_kind_meet_an_error() {
    let party = |ch: &mut Channel, kind| waggle_ot::setup(ch, kind, &mut rand::rng()).err();
    let (mut c, mut s) = channels();
    let (a, b) = std::thread::scope(|scope| {
        let a = scope.spawn(move || party(&mut c, KINDS[0]));
        let b = party(&mut s, KINDS[1]);
        (a.join().unwrap(), b)
    });
    // The session's name includes the kind, so no tree fits its check.
    for (error, peer) in [(a, Role::Server), (b, Role::Client)] {
        let deviates =
            |error: &OtError| matches!(error, OtError::Deviates { step: "ot/trees", party } if *party == peer);
        assert!(error.as_ref().is_some_and(deviates), "{error:?}");
    }
}

/// A link that changes one byte of what arrives, or claims other keys.
struct Meddled<L> {
    link: L,
    /// How many bytes arrive before the one to change.
    left: Option<usize>,
    exporter: Option<[u8; 32]>,
}

impl<L: Link> Link for Meddled<L> {
    fn send(&mut self, bytes: Vec<u8>) -> std::io::Result<()> {
        self.link.send(bytes)
    }
    fn recv(&mut self, buf: &mut [u8]) -> std::io::Result<()> {
        self.link.recv(buf)?;
        self.left = match self.left {
            Some(left) if left < buf.len() => {
                buf[left] ^= 1;
                None
            }
            left => left.map(|left| left - buf.len()),
        };
        Ok(())
    }
    fn timeout(&self) -> Duration {
        self.link.timeout()
    }
    fn exporter(&self) -> Option<[u8; 32]> {
        self.exporter
    }
}

/// The steps whose checks fail at the client and at the server, over a link that changes the byte after `left` bytes
/// that the server receives. `exporters` are those of the client's and the server's link. A handshake of one message
/// comes before the set-up, and an extension for each party after it.
fn meddled(
    kind: CotKind,
    left: Option<usize>,
    exporters: [Option<[u8; 32]>; 2],
    ots: usize,
) -> [Option<&'static str>; 2] {
    let (c, s) = memory_pair(Duration::from_secs(60));
    let mut c = Channel::new(Role::Client, Meddled { link: c, left: None, exporter: exporters[0] });
    let mut s = Channel::new(Role::Server, Meddled { link: s, left, exporter: exporters[1] });
    let party = |ch: &mut Channel| -> Result<(), OtError> {
        match ch.role() {
            Role::Client => ch.send("hello", b"policy=full")?,
            Role::Server => drop(ch.recv("hello", 11)?),
        }
        let (mut sender, mut receiver) = waggle_ot::setup(ch, kind, &mut rand::rng())?;
        for turn in [Role::Client, Role::Server] {
            let outcome = match ch.role() == turn {
                true => sender.ensure(ch, ots),
                false => receiver.ensure(ch, ots),
            };
            if let Err(OtError::Deviates { .. }) = outcome {
                // Afterwards the pool gives nothing and refuses another try.
                let again = match ch.role() == turn {
                    true => [sender.ensure(ch, 1).err(), sender.random(1).err()],
                    false => [receiver.ensure(ch, 1).err(), receiver.random(1).err()],
                };
                assert!(again.iter().all(|error| matches!(error, Some(OtError::Deviates { .. }))));
            }
            outcome?;
        }
        Ok(())
    };
    let step = |outcome: Result<(), OtError>, peer: Role| match outcome {
        Ok(()) | Err(OtError::Net(NetError::Closed { .. } | NetError::PeerRejected { .. })) => None,
        Err(OtError::Deviates { step, party }) if party == peer => Some(step),
        Err(other) => panic!("{other}"),
    };
    std::thread::scope(|scope| {
        let client = scope.spawn(move || party(&mut c));
        let outcome = party(&mut s);
        drop(s);
        [step(client.join().unwrap(), Role::Server), step(outcome, Role::Client)]
    })
}

#[test]
fn transfers_are_bound_to_the_handshake_and_to_the_keys_of_the_link() {
    let (kind, trees) = (KINDS[1], Some("ot/trees"));
    assert_eq!(meddled(kind, None, [None; 2], 1000), [None; 2]);
    assert_eq!(meddled(kind, None, [Some([1; 32]); 2], 1000), [None; 2]);
    // First the last byte of the handshake changes on its way. Then the parties sit at the ends of two encrypted
    // links.
    assert_eq!(meddled(kind, Some(waggle_net::HEADER_BYTES + 10), [None; 2], 1000), [trees; 2]);
    assert_eq!(meddled(kind, None, [Some([1; 32]), Some([2; 32])], 1000), [trees; 2]);
    assert_eq!(meddled(kind, None, [Some([1; 32]), None], 1000), [trees; 2]);
}

/// A byte changes on its way to the server, in messages of every kind. The server's check of that message fails.
#[test]
fn a_changed_byte_fails_the_check_of_its_step() {
    let hello = 8 + 11;
    for kind in KINDS {
        // First the client's corrections, in the second half of the set-up, then its first messages.
        let set_up = kind.setup_bytes() as usize;
        assert_eq!(meddled(kind, Some(hello + set_up - 20), [None; 2], 1000), [None, Some("ot/trees")], "{kind:?}");
        let changed = |after: usize| meddled(kind, Some(hello + set_up + 8 + after), [None; 2], 1000);
        assert_eq!(changed(100), [None, Some("ot/softspoken")], "{kind:?}");
    }
    let changed = |after: usize| {
        meddled(CotKind::Silent, Some(hello + CotKind::Silent.setup_bytes() as usize + after), [None; 2], DIRECT + 1)
    };
    let [_, trees, _, answer] = CotKind::Silent.extend_wire(0, ROUND).flows;
    for after in
        [8, 5000, trees.bytes as usize - 1, trees.bytes as usize + 8, (trees.bytes + answer.bytes) as usize - 1]
    {
        assert_eq!(changed(after), [None, Some("ot/silent")], "byte {after}");
    }
}

/// The client's error if the server sends `bad` as the message of `step`, after a set-up of `kind` or, if that is
/// `None`, instead of a set-up.
fn refused(kind: Option<CotKind>, step: &'static str, bad: &[u8], client: fn(&mut Channel) -> OtError) -> OtError {
    let (mut c, mut s) = channels();
    std::thread::scope(|scope| {
        let honest = scope.spawn(|| client(&mut c));
        if let Some(kind) = kind {
            waggle_ot::setup(&mut s, kind, &mut rand::rng()).unwrap();
        }
        s.send(step, bad).unwrap();
        s.flush(step).unwrap();
        honest.join().unwrap()
    })
}

#[test]
fn malformed_set_up_is_refused() {
    let honest = |ch: &mut Channel| waggle_ot::setup(ch, KINDS[1], &mut rand::rng()).err().unwrap();
    // The identity, then bytes off the group.
    for byte in [0, 0xff] {
        let error = refused(None, "ot/hello", &[byte; 64], honest);
        assert!(matches!(error, OtError::Net(NetError::Malformed { step: "ot/hello", .. })), "{error}");
    }
}

#[test]
fn short_messages_of_extensions_are_refused() {
    let error = refused(Some(CotKind::Silent), "ot/silent", &[0; 64 * 9 * 16 - 1], |ch| {
        let (_, mut receiver) = waggle_ot::setup(ch, CotKind::Silent, &mut rand::rng()).unwrap();
        let error = receiver.ensure(ch, DIRECT + 1).unwrap_err();
        assert_eq!((receiver.available(), receiver.made()), (0, 0));
        error
    });
    assert!(matches!(error, OtError::Net(NetError::Length { step: "ot/silent", got: 9_215, .. })), "{error}");
    let error = refused(Some(KINDS[1]), "ot/softspoken", &[0; 100], |ch| {
        let (mut sender, _) = waggle_ot::setup(ch, KINDS[1], &mut rand::rng()).unwrap();
        let error = sender.ensure(ch, 100).unwrap_err();
        assert_eq!((sender.available(), sender.made()), (0, 0));
        error
    });
    assert!(matches!(error, OtError::Net(NetError::Length { step: "ot/softspoken", got: 100, .. })), "{error}");
}
