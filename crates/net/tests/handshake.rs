//! Both parties agree, or both say on what they disagree.

use std::time::{Duration, Instant};

use crate::common::*;
use waggle_net::handshake::{MAX_BYTES, MAX_FIELDS, MAX_NAME_BYTES, MAX_VALUE_BYTES};
use waggle_net::{Channel, Field, HEADER_BYTES, Handshake, Link, NetError, Role};

type Outcome = Result<Vec<Field>, NetError>;

/// The outcomes of client and server, over memory and then over TCP.
fn meet(client: &Handshake, server: &Handshake) -> [(Outcome, Outcome); 2] {
    [memory(PATIENCE), tcp(PATIENCE)].map(|pair| {
        let client = client.clone();
        let start = Instant::now();
        let outcomes = run(pair, move |mut c| client.run(&mut c), |mut s| server.run(&mut s));
        assert!(start.elapsed() < PATIENCE);
        outcomes
    })
}

fn differences(outcome: Outcome) -> Vec<String> {
    match outcome {
        Err(NetError::Disagreement { differences }) => differences.iter().map(ToString::to_string).collect(),
        other => panic!("no disagreement: {other:?}"),
    }
}

#[test]
fn agreement_tells_each_the_others_list() {
    let client = Handshake::new().agree("protocol", 3).agree("model", "gpt2").tell("prompt tokens", 12);
    let server = Handshake::new().tell("layers", 12).agree("model", "gpt2").agree("protocol", "3");
    for (c, s) in meet(&client, &server) {
        assert_eq!(c.unwrap(), server.fields());
        assert_eq!(s.unwrap(), client.fields());
    }
    for (c, s) in meet(&Handshake::new(), &Handshake::new()) {
        assert_eq!((c.unwrap().len(), s.unwrap().len()), (0, 0));
    }
}

#[test]
fn disagreement_is_the_same_on_both_sides() {
    let client = Handshake::new()
        .agree("protocol", 3)
        .tell("name", "a")
        .agree("model", "gpt2")
        .tell("asked", "x")
        .agree("own", 1);
    let server = Handshake::new()
        .agree("linear", "online")
        .agree("model", "llama")
        .tell("name", "b")
        .agree("protocol", 3)
        .agree("asked", "y");
    let expected = [
        "model: client says gpt2, server says llama",
        // It suffices that one party insists.
        "asked: client says x, server says y",
        "own: client says 1, server says nothing",
        "linear: client says nothing, server says online",
    ];
    for (c, s) in meet(&client, &server) {
        assert_eq!(differences(c), expected);
        let error = s.unwrap_err();
        assert_eq!(error.to_string(), format!("the parties do not agree: {}", expected.join("; ")));
        assert_eq!(differences(Err(error)), expected);
    }
}

#[test]
fn the_ledgers_count_it_alike() {
    let party = |mut channel: Channel| {
        Handshake::new().agree("protocol", 3).run(&mut channel)?;
        assert_eq!(channel.ledger().depth(), 0);
        Ok::<_, NetError>(channel.ledger().untimed())
    };
    let (client, server) = run(tcp(PATIENCE), party, party);
    let (client, server) = (client.unwrap(), server.unwrap());
    assert_eq!(client, server);
    let [entry] = client.as_slice() else { panic!("{client:?}") };
    assert_eq!((entry.path.as_str(), entry.traffic.flows, entry.traffic.messages), ("handshake", 2, 2));
    let message = HEADER_BYTES + 10 + 1 + 2 + "protocol".len() + 2 + "3".len();
    assert_eq!(entry.traffic.bytes(), 2 * message as u64);
}

/// The outcome of the handshake with a peer that sends `bytes` and keeps silent.
fn hear(bytes: &[u8]) -> Outcome {
    hear_within(bytes, PATIENCE)
}

fn hear_within(bytes: &[u8], timeout: Duration) -> Outcome {
    let (mut peer, link) = tcp(timeout);
    peer.send(bytes.to_vec()).unwrap();
    Handshake::new().agree("protocol", 3).run(&mut Channel::new(Role::Server, link))
}

fn message(body: &[u8]) -> Vec<u8> {
    let payload = [b"WAGGLE", body].concat();
    frame("handshake", payload.len() as u32, &payload)
}

#[test]
fn other_programs_are_recognised() {
    let Err(NetError::NotWaggle { first }) = hear(b"GET / HTTP/1.1\r\n\r\n") else { panic!("spoke to a browser") };
    assert_eq!(first, "GET / HT");
    assert_eq!(kind(hear(b"SSH-2.0-OpenSSH\r\n")), "not waggle");
    assert_eq!(kind(hear(&frame("handshake", 6, b"woggle"))), "not waggle");
    assert_eq!(kind(hear(&frame("handshake", 3, b"WAG"))), "not waggle");
    assert_eq!(kind(hear_within(b"short", BRIEF)), "timed out");
    for len in [MAX_BYTES as u32 + 1, u32::MAX] {
        assert_eq!(kind(hear(&frame("handshake", len, b"WAGGLE"))), "length");
    }
}

#[test]
fn another_format_is_a_disagreement() {
    let lines = differences(hear(&message(&[9, 0, 0xff, 0xff])));
    assert_eq!(lines, ["handshake format: client says 9, server says 1"]);
}

#[test]
fn malformed_lists() {
    // format 1, one field, must be equal, name "protocol", value "3"
    let good = [&[1, 0, 1, 0, 1, 8, 0][..], b"protocol", &[1, 0], b"3"].concat();
    assert_eq!(kind(hear(&message(&good))), "ok");
    for cut in 0..good.len() {
        assert_eq!(kind(hear(&message(&good[..cut]))), "malformed", "cut at {cut}");
    }
    let changed = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        kind(hear(&message(&bytes)))
    };
    assert_eq!(changed(2, 2), "malformed", "a field is missing");
    assert_eq!(changed(2, 0), "malformed", "bytes follow");
    assert_eq!(changed(3, 0xff), "malformed", "too many fields");
    assert_eq!(changed(4, 2), "malformed", "the flag");
    assert_eq!(changed(6, 0xff), "malformed", "a long name");
    assert_eq!(changed(7, 0x80), "malformed", "not UTF-8");
    assert_eq!(changed(7, 0x1b), "malformed", "an escape sequence");
    assert_eq!(changed(17, b'4'), "disagreement");
    let nameless = [1, 0, 1, 0, 1, 0, 0, 0, 0];
    assert_eq!(kind(hear(&message(&nameless))), "malformed");
    let field = [&[0, 1, 0][..], b"a", &[0, 0]].concat();
    assert_eq!(kind(hear(&message(&[&[1, 0, 2, 0][..], &field, &field].concat()))), "malformed", "stated twice");
    for seed in 0..20 {
        let body = [&[1, 0][..], &noise(200, seed)].concat();
        assert_eq!(kind(hear(&message(&body))), "malformed");
    }
}

#[test]
fn our_own_list_is_checked_too() {
    let list = |fields: usize, value: usize| {
        (0..fields).fold(Handshake::new(), |h, i| {
            h.agree(&format!("{i:0width$}", width = MAX_NAME_BYTES), "v".repeat(value))
        })
    };
    // The most fields, and the longest value.
    let full = list(MAX_FIELDS, (MAX_BYTES - 10) / MAX_FIELDS - 5 - MAX_NAME_BYTES);
    for most in [&full, &list(1, MAX_VALUE_BYTES)] {
        for (c, s) in meet(most, most) {
            assert_eq!((kind(c), kind(s)), ("ok", "ok"));
        }
    }
    let wrong = [
        full.tell("one too many", 1),
        list(2, MAX_VALUE_BYTES),
        Handshake::new().tell(&"n".repeat(MAX_NAME_BYTES + 1), 1),
        Handshake::new().tell("long", "v".repeat(MAX_VALUE_BYTES + 1)),
        Handshake::new().tell("lines", "a\nb"),
        Handshake::new().tell("twice", 1).tell("twice", 1),
    ];
    for handshake in wrong {
        let (_peer, link) = memory(BRIEF);
        assert_eq!(kind(handshake.run(&mut Channel::new(Role::Client, link))), "malformed");
    }
}
