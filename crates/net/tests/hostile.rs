//! Peers that vanish, stall or send anything: the channel reports the right error within the time-out, over memory
//! and over TCP.

use std::io::{Read, Write};
use std::thread;
use std::time::Instant;

use crate::common::faulty::{Fault, Faulty};
use crate::common::*;
use waggle_net::{Channel, Link, NetError, Role};

/// The peer's behaviour after its bytes.
#[derive(Clone, Copy, PartialEq)]
enum Then {
    /// The peer does nothing, and the result does not depend on it.
    Open,
    /// The peer does nothing until the time-out.
    Silence,
    /// The peer closes the link.
    Farewell,
}

/// The results of a channel with a peer that sends `bytes`, over memory and over TCP.
fn receive(
    bytes: &[u8],
    then: Then,
    receive: impl Fn(&mut Channel) -> Result<Vec<u8>, NetError>,
) -> [Result<Vec<u8>, NetError>; 2] {
    let timeout = if then == Then::Silence { BRIEF } else { PATIENCE };
    [memory(timeout), tcp(timeout)].map(|(mut peer, link)| {
        peer.send(bytes.to_vec()).unwrap();
        let peer = (then != Then::Farewell).then_some(peer);
        let start = Instant::now();
        let outcome = receive(&mut Channel::new(Role::Server, link));
        assert!(start.elapsed() < PATIENCE);
        drop(peer);
        outcome
    })
}

#[test]
fn lengths_are_checked_before_anything_is_allocated() {
    let exact = |c: &mut Channel| c.recv("step", 100);
    let bounded = |c: &mut Channel| c.recv_up_to("step", 100);
    for len in [99, 101, u32::MAX] {
        for outcome in receive(&frame("step", len, &[0; 101]), Then::Open, exact) {
            let Err(NetError::Length { step: "step", expected: 100, got }) = outcome else { panic!("{outcome:?}") };
            assert_eq!(got, len as usize);
        }
    }
    for len in [101, 1 << 31, u32::MAX] {
        for outcome in receive(&frame("step", len, &[0; 101]), Then::Open, bounded) {
            let Err(NetError::Length { expected: 100, got, .. }) = outcome else { panic!("{outcome:?}") };
            assert_eq!(got, len as usize);
        }
    }
    for len in [0, 99, 100] {
        for outcome in receive(&frame("step", len, &vec![5; len as usize]), Then::Open, bounded) {
            assert_eq!(outcome.unwrap(), vec![5; len as usize]);
        }
    }
    for outcome in receive(&frame("step", u32::MAX, &[]), Then::Open, |c| c.exchange("step", b"mine", 100)) {
        assert_eq!(kind(outcome), "length");
    }
}

#[test]
fn foreign_steps_are_refused() {
    for outcome in receive(&frame("other", 4, &[0; 4]), Then::Open, |c| c.recv("step", 4)) {
        let Err(NetError::Unexpected { step: "step", expected, got }) = outcome else { panic!("{outcome:?}") };
        assert_eq!(frame("step", 0, &[])[4..], expected.to_le_bytes());
        assert_eq!(frame("other", 0, &[])[4..], got.to_le_bytes());
    }
    for seed in 0..50 {
        for outcome in receive(&noise(64, seed), Then::Open, |c| c.recv("step", 4)) {
            assert_eq!(kind(outcome), "unexpected");
        }
    }
}

#[test]
fn silence_and_farewell_at_every_point() {
    let whole = frame("step", 20, &[1; 20]);
    for cut in [0, 1, 7, 8, 9, 27] {
        for outcome in receive(&whole[..cut], Then::Farewell, |c| c.recv("step", 20)) {
            assert_eq!(kind(outcome), "closed", "after {cut} bytes");
        }
        for outcome in receive(&whole[..cut], Then::Silence, |c| c.recv("step", 20)) {
            let Err(NetError::TimedOut { step: "step", seconds }) = outcome else { panic!("{outcome:?}") };
            assert_eq!(seconds, BRIEF.as_secs_f64(), "after {cut} bytes");
        }
    }
}

#[test]
fn a_stalled_large_message_times_out() {
    const LEN: usize = 8 << 20;
    let sent = frame("step", LEN as u32, &vec![0; LEN / 2]);
    for outcome in receive(&sent, Then::Silence, |c| c.recv_up_to("step", LEN)) {
        assert_eq!(kind(outcome), "timed out");
    }
}

#[test]
fn trickling_does_not_extend_the_time_out() {
    let (link, mut raw) = tcp_raw(BRIEF);
    // A byte four times per time-out, for ever: each read makes progress, the message does not.
    let peer = thread::spawn(move || {
        let mut bytes = frame("step", 1000, &[0; 1000]).into_iter();
        while bytes.next().is_some_and(|byte| raw.write_all(&[byte]).is_ok()) {
            thread::sleep(BRIEF / 4);
        }
        bytes.len()
    });
    let start = Instant::now();
    assert_eq!(kind(Channel::new(Role::Server, link).recv("step", 1000)), "timed out");
    assert!(start.elapsed() >= BRIEF);
    assert!(peer.join().unwrap() > 0, "the peer got rid of its message");
}

#[test]
fn faults_of_the_peer() {
    const LEN: usize = 300 << 10;
    let sent = 16 + 10 + LEN as u64;
    for tcp_too in [false, true] {
        let pair = |timeout| if tcp_too { tcp(timeout) } else { memory(timeout) };
        let outcome = |fault, timeout| {
            let (a, b) = pair(timeout);
            let mut c = Channel::new(Role::Client, Faulty::new(a, fault));
            // If the connection is cut, the faulty party itself may get an error.
            let _ = c
                .send("first", &[1; 10])
                .and_then(|()| c.send("second", &vec![2; LEN]))
                .and_then(|()| c.flush("end"));
            let mut s = Channel::new(Role::Server, b);
            let first = s.recv("first", 10);
            let second = first.is_ok().then(|| s.recv("second", LEN));
            (first, second)
        };
        for offset in [0, 4, 8, 17] {
            assert_eq!(kind(outcome(Fault::CutAfter(offset), PATIENCE).0), "closed");
            assert_eq!(kind(outcome(Fault::StallAfter(offset), BRIEF).0), "timed out");
        }
        for offset in [18, 26, sent - 1] {
            assert_eq!(outcome(Fault::CutAfter(offset), PATIENCE).1.map(kind), Some("closed"));
            assert_eq!(outcome(Fault::StallAfter(offset), BRIEF).1.map(kind), Some("timed out"));
        }
        assert_eq!(outcome(Fault::CutAfter(sent), PATIENCE).1.map(kind), Some("ok"));
        for offset in 0..8 {
            let expected = if offset < 4 { "length" } else { "unexpected" };
            assert_eq!(kind(outcome(Fault::Corrupt(offset), PATIENCE).0), expected);
        }
        // The channel does not authenticate: a changed payload arrives changed, and nothing else does.
        let (first, second) = outcome(Fault::Corrupt(9), PATIENCE);
        assert_eq!(first.unwrap(), [1, !1, 1, 1, 1, 1, 1, 1, 1, 1]);
        assert!(second.unwrap().unwrap() == vec![2; LEN]);
    }
}

#[test]
fn a_peer_that_dies_while_both_send() {
    let (link, mut raw) = tcp_raw(PATIENCE);
    let peer = thread::spawn(move || {
        raw.write_all(&frame("cross", 1 << 20, &[0; 1000])).unwrap();
        raw.read_exact(&mut [0; 1000]).unwrap();
    });
    let outcome = Channel::new(Role::Server, link).exchange("cross", &vec![0; 32 << 20], 1 << 20);
    assert_eq!(kind(outcome), "closed");
    peer.join().unwrap();
}
