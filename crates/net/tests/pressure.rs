//! Limits on a peer that does not read, and progress of two parties that send at once.

use std::io::{ErrorKind, Read, Write};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use crate::common::*;
use waggle_net::{Channel, Link, LinkShape, NetError, Role, Shaped, memory_pair};

const MIB: usize = 1 << 20;

/// A time-out for a peer that reads nothing. No answer is expected within it.
const SHORT: Duration = Duration::from_secs(2);

/// A time-out for a peer that stops only when everything is full. A busy machine stops threads for a while, and Linux
/// wakes a writer only when a third of its socket's buffer is free.
const LONG: Duration = Duration::from_secs(15);

/// The right to fill sockets' buffers, for one test at a time: while some buffers are full, Linux shrinks those of
/// other sockets, drops what they cannot take, and retries ever later.
fn buffers() -> MutexGuard<'static, ()> {
    static BUFFERS: Mutex<()> = Mutex::new(());
    BUFFERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sends pieces of 1 MiB until one fails. Returns how many were taken, and the error.
fn pour(link: &mut dyn Link) -> (usize, ErrorKind) {
    for taken in 0..1024 {
        if let Err(e) = link.send(vec![1; MIB]) {
            return (taken, e.kind());
        }
    }
    panic!("a gigabyte was queued for a peer that does not read");
}

#[test]
fn a_peer_that_never_reads_holds_at_most_the_limit() {
    let _alone = buffers();
    // Both sides' sockets take this much beyond the queue: Linux grows them to some MiB.
    const SOCKETS: usize = 24;
    let check = |name: &str, link: &mut dyn Link, limit: usize| {
        let (taken, error) = pour(link);
        assert!((limit..=limit + SOCKETS).contains(&taken), "{name}: {taken} MiB");
        assert_eq!(error, ErrorKind::TimedOut, "{name}");
    };
    let (mut link, raw) = tcp_raw(SHORT);
    check("tcp", &mut link, 64);
    drop(raw);

    // A client of TLS that stops reading after the handshake.
    let (mut link, silent) = tls_links(SHORT);
    check("tls", &mut link, 64);
    drop(silent);

    // A shaped link has a queue of its own in front of the inner link's queue, on which its writer waits.
    let (link, raw) = tcp_raw(SHORT);
    let fast = LinkShape { bytes_per_second: 8_000_000_000, round_trip: Duration::ZERO };
    let mut link = Shaped::new(link, fast).unwrap();
    check("shaped tcp", &mut link, 128);
    drop(raw);
}

#[test]
fn a_slow_peer_gets_everything() {
    let _alone = buffers();
    // 96 MiB are sent: about 20 MiB more than fit at once.
    let (mut link, mut raw) = tcp_raw(PATIENCE);
    let reader = thread::spawn(move || {
        let mut buf = vec![0; MIB];
        let mut read = 0;
        while let Ok(n @ 1..) = raw.read(&mut buf) {
            read += n;
            if read < 32 * MIB {
                thread::sleep(Duration::from_millis(50));
            }
        }
        read
    });
    for _ in 0..96 {
        link.send(vec![1; MIB]).unwrap();
    }
    link.close().unwrap();
    assert_eq!(reader.join().unwrap(), 96 * MIB);
}

#[test]
fn both_send_more_than_fits_before_either_reads() {
    let _alone = buffers();
    const LEN: usize = 24 * MIB;
    let fast = LinkShape { bytes_per_second: 4_000_000_000, round_trip: Duration::ZERO };
    for (name, pair) in [("tcp", tcp(PATIENCE)), ("tls", tls(PATIENCE)), ("shaped", shaped(tcp(PATIENCE), fast))] {
        // Four messages of 24 MiB: 96 MiB each way, and the queue takes 64.
        let party = move |mut channel: Channel| {
            for _ in 0..4 {
                channel.send_owned("large", vec![7; LEN])?;
            }
            for _ in 0..4 {
                assert!(channel.recv("large", LEN)?.iter().all(|&byte| byte == 7), "{name}");
            }
            channel.exchange("end", &[], 0)
        };
        let (client, server) = run(pair, party, party);
        assert_eq!((kind(client), kind(server)), ("ok", "ok"), "{name}");
    }
}

#[test]
fn one_message_may_be_larger_than_the_queue() {
    let _alone = buffers();
    for (name, pair) in [("tcp", tcp(PATIENCE)), ("tls", tls(PATIENCE))] {
        let party =
            move |mut channel: Channel| channel.exchange("large", &vec![3; 80 * MIB], 80 * MIB).map(|m| m.len());
        let (client, server) = run(pair, party, party);
        assert_eq!((client.unwrap(), server.unwrap()), (80 * MIB, 80 * MIB), "{name}");
    }
}

#[test]
fn reading_ahead_keeps_the_order() {
    for (name, (mut a, mut b)) in [("tcp", tcp(PATIENCE)), ("tls", tls(PATIENCE))] {
        let words = noise(500_000, 11);
        a.send(words.clone()).unwrap();
        let mut heard = vec![0; words.len()];
        let mut at = 0;
        // Reads of all sizes, with some reading ahead between them.
        for (i, len) in [1, 7, 30_000, 100, 65_536, 1, 200_000, 64].into_iter().enumerate() {
            if i % 2 == 1 {
                b.read_ahead(Duration::from_millis(5)).unwrap();
            }
            b.recv(&mut heard[at..at + len]).unwrap();
            at += len;
        }
        b.recv(&mut heard[at..]).unwrap();
        assert!(heard == words, "{name}");
    }
}

#[test]
fn a_peer_that_floods_holds_at_most_the_inbox() {
    let _alone = buffers();
    let (mut link, mut raw) = tcp_raw(PATIENCE);
    let flood = thread::spawn(move || {
        raw.set_write_timeout(Some(LONG)).unwrap();
        let piece = vec![0; MIB];
        (0..1024).take_while(|_| raw.write_all(&piece).is_ok()).count()
    });
    while !flood.is_finished() {
        link.read_ahead(Duration::from_millis(20)).unwrap();
    }
    let taken = flood.join().unwrap();
    assert!((63..=64 + 24).contains(&taken), "{taken} MiB");
}

#[test]
fn a_rejection_overtakes_what_we_send() {
    let _alone = buffers();
    // The server refuses the first message while the client still pours: the client hears why, not only that writing
    // failed.
    for (name, pair) in [("tcp", tcp(PATIENCE)), ("tls", tls(PATIENCE)), ("memory", memory(PATIENCE))] {
        let (client, server) = run(
            pair,
            |mut c| -> Result<(), NetError> {
                c.send("first", &[1; 5])?;
                for _ in 0..200 {
                    c.send_owned("more", vec![0; MIB])?;
                }
                c.recv("never", 1).map(|_| ())
            },
            |mut s| s.recv("first", 4).map(|_| ()),
        );
        assert_eq!(kind(server), "length", "{name}");
        let Err(error @ NetError::PeerRejected { .. }) = client else { panic!("{name}: {client:?}") };
        assert!(error.to_string().starts_with("the peer found bad data in `first`"), "{error}");
    }
}

#[test]
fn decoders_tell_the_peer_as_well() {
    for (name, pair) in every_kind(PATIENCE) {
        let (client, server) = run(
            pair,
            |mut c| {
                c.send("points", &[9; 32])?;
                c.recv("answer", 1)
            },
            |mut s| {
                s.recv("points", 32)?;
                let error = NetError::Malformed { step: "points", what: "off the curve".into() };
                s.reject(error.bad_step().unwrap());
                s.reject("said once");
                Err::<(), _>(error)
            },
        );
        assert_eq!(kind(server), "malformed", "{name}");
        let Err(NetError::PeerRejected { step: "answer", theirs }) = client else { panic!("{name}: {client:?}") };
        assert_eq!(theirs, "points");
    }
}

#[test]
fn words_of_a_hostile_alert_are_printable() {
    for (len, printed) in [(4, "a\u{fffd}b"), (0, ""), (64, "")] {
        let (mut peer, link) = memory_pair(BRIEF);
        let text = [b"a\x07\xffb".as_slice(), &[0x1b; 60]].concat();
        peer.send(frame("alert", len, &text[..len as usize])).unwrap();
        let error = Channel::new(Role::Client, link).recv("step", 1).unwrap_err();
        let NetError::PeerRejected { theirs, .. } = error else { panic!("{error:?}") };
        assert!(theirs.starts_with(printed) && !theirs.contains('\x1b'), "{theirs:?}");
    }
    // A frame that is too long is no alert.
    let (mut peer, link) = memory_pair(BRIEF);
    peer.send(frame("alert", u32::MAX, &[])).unwrap();
    assert_eq!(kind(Channel::new(Role::Client, link).recv("step", 1)), "unexpected");
}

#[test]
fn short_time_outs_are_printed_right() {
    let said = |seconds| NetError::TimedOut { step: "x", seconds }.to_string();
    assert_eq!(said(0.05), "no message from the peer within 0.050 s during `x`");
    assert_eq!(said(120.0), "no message from the peer within 120.0 s during `x`");
}

#[test]
fn what_is_sent_ahead_crosses_under_the_work_of_the_peer() {
    let _alone = buffers();
    // More bytes than the sockets take, and fewer than the most that is read ahead.
    const AHEAD: usize = 40 * MIB;
    for pair in [tcp(PATIENCE), tls(PATIENCE)] {
        let (crossed, wait) = mpsc::channel();
        let client = move |mut channel: Channel| {
            channel.send("ask", &[1]).unwrap();
            channel.send_ahead("next", noise(AHEAD, 3)).unwrap();
            while channel.wire_bytes().unwrap().sent < AHEAD as u64 {
                thread::sleep(Duration::from_millis(1));
            }
            crossed.send(()).unwrap();
            channel.recv("answer", 1).unwrap();
            channel.take_turn();
            channel.recv("answer", 1).unwrap();
            channel.ledger().untimed()
        };
        let server = |mut channel: Channel| {
            channel.recv("ask", 1).unwrap();
            channel.read_under(|| wait.recv_timeout(PATIENCE)).expect("it crosses while this waits");
            channel.send("answer", &[2]).unwrap();
            assert!(channel.recv("next", AHEAD).unwrap() == noise(AHEAD, 3));
            channel.send("answer", &[3]).unwrap();
            channel.flush("answer").unwrap();
            channel.ledger().untimed()
        };
        let (client, server) = run(pair, client, server);
        assert_eq!(client, server, "it is booked when its turn comes");
        assert_eq!(client[0].traffic.flows, 4);
    }
}

#[test]
#[should_panic(expected = "ahead of its turn")]
fn nothing_is_sent_between_a_message_ahead_and_its_turn() {
    let (a, _b) = memory_pair(PATIENCE);
    let mut channel = Channel::new(Role::Client, a);
    channel.send_ahead("next", vec![1]).unwrap();
    let _ = channel.send("other", &[1]);
}
