//! Set-up, extension and pools between two parties, with traffic predicted to the byte.

mod common;

use common::{channels, pools, run};
use net::{NetError, Role};
use ot::{Bits, Correlation, CotKind, Lookup, OtError, PoolPlan, SoftSpoken};

const KINDS: [CotKind; 3] =
    [CotKind::SoftSpoken(SoftSpoken::K2), CotKind::SoftSpoken(SoftSpoken::K4), CotKind::SoftSpoken(SoftSpoken::K8)];

#[test]
fn both_directions_work_and_cost_what_is_predicted() {
    for kind in KINDS {
        let needs = [1_usize, 5000, 70_000, 3, 9_000];
        let party = |ch: &mut net::Channel, role: Role| {
            let (mut sender, mut receiver) = ot::setup(ch, kind, &mut rand::rng()).unwrap();
            let mut products = Vec::new();
            for (round, n) in needs.into_iter().enumerate() {
                let choices = Bits::from_fn(n, |i| (i * i + round + i / 3) % 3 == 1);
                let corr: Vec<u64> = (0..n as u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
                let shape = Correlation::new(n, 1, &[64]).unwrap();
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

        // The same from shapes alone: both directions behave alike, so both parties send the same.
        let plan: PoolPlan = a.1;
        let (mut level, mut bytes, mut messages) = (0, kind.setup_bytes(), kind.setup_messages());
        for n in needs {
            let amount = plan.refill_amount(level, n);
            let wire = plan.refill_wire(amount);
            assert_eq!(plan.refill_bytes(amount), wire.to_sender + wire.to_receiver);
            bytes += wire.to_sender + wire.to_receiver;
            messages += wire.messages;
            level = level + amount - n;
            bytes += (n.div_ceil(8) + n * 8 + 2 * net::HEADER_BYTES) as u64;
            messages += 2;
        }
        let total = ledger.total();
        assert_eq!((total.bytes_client_to_server, total.bytes_server_to_client), (bytes, bytes), "{kind:?}");
        assert_eq!(total.messages, 2 * messages);
    }
}

#[test]
fn large_extensions_are_cut_into_messages() {
    let kind = CotKind::SoftSpoken(SoftSpoken::K8);
    let n = (1 << 20) + 5000;
    let (sender, receiver, ledger) = run(
        |ch| {
            let (mut sender, _) = ot::setup(ch, kind, &mut rand::rng()).unwrap();
            sender.ensure(ch, n).unwrap();
            sender
        },
        |ch| {
            let (_, mut receiver) = ot::setup(ch, kind, &mut rand::rng()).unwrap();
            receiver.ensure(ch, n).unwrap();
            receiver
        },
    );
    assert_eq!(
        (sender.available(), receiver.available()),
        (n.next_multiple_of(kind.granularity()), n.next_multiple_of(kind.granularity()))
    );
    let wire = kind.extend_wire(sender.available());
    assert_eq!((wire.messages, wire.to_receiver), (2, 0));
    assert_eq!(ledger.total().bytes_server_to_client, kind.setup_bytes() + wire.to_sender);
    assert_eq!(ledger.total().bytes_client_to_server, kind.setup_bytes());
}

#[test]
fn lookups_over_real_transfers() {
    let shape = Lookup::new(2000, 4, &[5, 12]).unwrap();
    let (mut sender, mut receiver) = pools(4, shape.ots());
    let index = |item: usize| item * 7 % 16;
    let value = |item: usize, j: usize, word: usize| ((item * 31 + j * 5 + word * 3) as u64) & [31, 4095][word];
    let choices = Bits::from_fn(shape.ots(), |i| index(i / 4) >> (i % 4) & 1 == 1);
    let (corrections, chosen) = receiver.choose(&choices).unwrap();
    let keys = sender.accept(shape.ots(), &corrections).unwrap();
    let fill = |item: usize, row: &mut [u64]| (0..32).for_each(|v| row[v] = value(item, v / 2, v % 2));
    let got = chosen.lookup(&shape, &keys.lookup(&shape, fill).unwrap()).unwrap();
    for item in 0..shape.count() {
        assert_eq!(got[2 * item..2 * item + 2], [0, 1].map(|word| value(item, index(item), word)));
    }
}

#[test]
fn random_choices_need_no_message() {
    let (mut sender, mut receiver) = pools(4, 10_000);
    let shape = Correlation::new(10_000, 1, &[64]).unwrap();
    let corr: Vec<u64> = (0..10_000).collect();
    let (choices, chosen) = receiver.random(10_000).unwrap();
    let ones: u64 = (0..10_000).map(|i| choices.get(i)).sum();
    assert!((4500..5500).contains(&ones), "10 standard deviations around the mean: {ones}");
    let (message, a) = sender.random(10_000).unwrap().correlate(&shape, &corr).unwrap();
    let b = chosen.decorrelate(&shape, &message).unwrap();
    assert!((0..10_000).all(|i| a[i].wrapping_add(b[i]) == choices.get(i) * corr[i]));
}

#[test]
fn refills_follow_the_plan() {
    for kind in KINDS {
        let plan = PoolPlan { kind, min_batch: 5000 };
        assert_eq!(plan.refill_amount(10, 10), 0);
        assert_eq!(kind.granularity(), 2048);
        assert_eq!(plan.refill_amount(10, 11), 6144);
        assert_eq!(plan.refill_amount(0, 6145), 8192);
        assert_eq!(plan.refill_amount(2000, 8144), 6144);
        assert_eq!(plan.refill_bytes(0), 0);
    }
}

#[test]
fn misuse_is_a_typed_error() {
    let (mut sender, mut receiver) = pools(2, 100);
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
    let shape = Correlation::new(100, 2, &[7]).unwrap();
    assert!(matches!(
        keys.correlate(&shape, &[0; 199]).unwrap_err(),
        OtError::Length { expected: 200, got: 199, .. }
    ));
    assert!(matches!(
        chosen.decorrelate(&shape, &vec![0; shape.message_bytes() + 1]).unwrap_err(),
        OtError::Length { unit: "bytes", expected: 175, got: 176, .. }
    ));
    assert!(SoftSpoken::from_k(3).is_err() && SoftSpoken::from_k(4).is_ok());
    for widths in [&[][..], &[0], &[65], &[8, 0]] {
        assert!(Correlation::new(1, 1, widths).is_err() && Lookup::new(1, 1, widths).is_err());
    }
    assert!(Correlation::new(1, 0, &[1]).is_err() && Correlation::new(usize::MAX, 1, &[1]).is_err());
    assert!(Lookup::new(1, 0, &[1]).is_err() && Lookup::new(1, 9, &[1]).is_err());
    assert!(Lookup::new(usize::MAX / 2, 8, &[1]).is_err());
}

#[test]
fn peers_of_another_kind_meet_an_error() {
    let party = |ch: &mut net::Channel, kind| ot::setup(ch, kind, &mut rand::rng()).err();
    let (a, b, _) = {
        let (mut c, mut s) = channels();
        std::thread::scope(|scope| {
            let a = scope.spawn(move || party(&mut c, KINDS[0]));
            let b = party(&mut s, KINDS[1]);
            (a.join().unwrap(), b, ())
        })
    };
    for error in [a, b] {
        assert!(matches!(error, Some(OtError::Net(NetError::Length { step: "ot/trees", .. }))), "{error:?}");
    }
}

#[test]
fn malformed_set_up_is_refused() {
    // A peer that follows the message lengths but sends the identity, then points off the group.
    for (hello, points, step) in [(0_u8, 0_u8, "ot/hello"), (0xff, 0, "ot/hello")] {
        let (mut c, mut s) = channels();
        let error = std::thread::scope(|scope| {
            let honest = scope.spawn(|| ot::setup(&mut c, KINDS[1], &mut rand::rng()).err());
            s.send("ot/hello", &[hello; 64]).unwrap();
            s.send("ot/points", &vec![points; 128 * 32]).unwrap();
            s.flush("ot/points").unwrap();
            honest.join().unwrap()
        });
        assert!(matches!(&error, Some(OtError::Net(NetError::Malformed { step: s, .. })) if *s == step), "{error:?}");
    }
}

#[test]
fn a_short_extension_message_is_refused() {
    let (mut c, mut s) = channels();
    let error = std::thread::scope(|scope| {
        let honest = scope.spawn(|| {
            let (mut sender, _) = ot::setup(&mut c, KINDS[1], &mut rand::rng()).unwrap();
            let error = sender.ensure(&mut c, 100).unwrap_err();
            assert_eq!((sender.available(), sender.made()), (0, 0));
            error
        });
        ot::setup(&mut s, KINDS[1], &mut rand::rng()).unwrap();
        s.send("ot/softspoken", &[0; 100]).unwrap();
        s.flush("ot/softspoken").unwrap();
        honest.join().unwrap()
    });
    assert!(matches!(error, OtError::Net(NetError::Length { step: "ot/softspoken", got: 100, .. })), "{error}");
}
