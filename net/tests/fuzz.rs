//! Hostile bytes for the decoders of this crate. README, "Fuzzing", says how to run them for long.

use fuzzing::link::{Recorded, frame};
use fuzzing::{Corpus, memory};
use net::{Channel, Handshake, NetError, Role, handshake};

fn corpus(name: &str) -> Corpus {
    Corpus::open(format!("{}/tests/corpus/{name}", env!("CARGO_MANIFEST_DIR")))
}

/// What a decoder of a few bytes may hold beside what it returns: tables of the ledger, texts of errors.
const SLACK: usize = 64 << 10;

/// Shakes hands with a peer that sends `bytes` and nothing else; also returns what it was sent.
fn shake(hello: &Handshake, bytes: Vec<u8>) -> (Result<Vec<handshake::Field>, NetError>, Vec<u8>) {
    let peer = Recorded::new(bytes);
    let kept = peer.kept();
    let outcome = hello.run(&mut Channel::new(Role::Server, peer));
    (outcome, kept.bytes())
}

#[test]
fn fuzz_handshake() {
    fuzzing::target!(corpus("handshake"), |bytes: &[u8]| {
        let ((outcome, _), memory) = memory::peak(|| shake(&Handshake::new(), frame("handshake", bytes)));
        // The message, its fields, a copy of either for the list of differences.
        assert!(memory < 4 * handshake::MAX_BYTES + SLACK, "{memory} bytes");
        match outcome {
            Ok(fields) => {
                let stated = fields.iter().fold(Handshake::new(), |hello, field| match field.must_equal {
                    true => hello.agree(&field.name, &field.value),
                    false => hello.tell(&field.name, &field.value),
                });
                let (_, sent) = shake(&stated, Vec::new());
                assert_eq!(sent, frame("handshake", bytes), "one list, two messages");
            }
            Err(error) => assert_one_line_each(&error),
        }
    });
}

/// What a peer wrote ends up on a terminal.
fn assert_one_line_each(error: &NetError) {
    match error {
        NetError::Disagreement { differences } => {
            assert!(!differences.iter().any(|line| line.contains(char::is_control)), "{differences:?}");
        }
        other => assert!(!other.to_string().contains(char::is_control), "{other:?}"),
    }
}

#[test]
fn fuzz_frames() {
    const MOST: usize = 1000;
    fuzzing::target!(corpus("frames"), |bytes: &[u8]| {
        let receive = |what: fn(&mut Channel) -> Result<Vec<u8>, NetError>| {
            let peer = Recorded::new(bytes);
            let (outcome, memory) = memory::peak(|| what(&mut Channel::new(Role::Client, peer)));
            assert!(memory < MOST + SLACK, "{memory} bytes");
            match outcome {
                // A frame has one spelling.
                Ok(payload) => assert!(bytes.starts_with(&frame("step", &payload))),
                Err(error) => assert_one_line_each(&error),
            }
        };
        receive(|channel| channel.recv("step", 4));
        receive(|channel| channel.recv_up_to("step", MOST));
        receive(|channel| channel.exchange("step", b"mine", 4));
        receive(|channel| channel.exchange_up_to("step", b"", MOST));
    });
}

/// Writes the corpora of this file: `cargo test -p waggle-net --test fuzz -- --ignored write`.
#[test]
#[ignore = "writes files of the repository"]
fn write_corpora() {
    let payload = |hello: &Handshake| shake(hello, Vec::new()).1.split_off(8);
    let long = "x".repeat(handshake::MAX_VALUE_BYTES);
    let full = (0..handshake::MAX_FIELDS).fold(Handshake::new(), |hello, i| hello.tell(&format!("f{i}"), &long[..9]));
    let client = Handshake::new().agree("version", "0.1.0").agree("ot", "silent").tell("tokenizer", true);
    let mut twice = payload(&Handshake::new().tell("a", 1).tell("b", 1));
    let second = twice.iter().rposition(|byte| *byte == b'b').expect("the name of the second field");
    twice[second] = b'a';
    let mut control = payload(&Handshake::new().tell("a", "1"));
    *control.last_mut().expect("a value") = 0x1b;
    let mut format = payload(&client);
    format[6] = 9;
    let lists = [
        ("empty", payload(&Handshake::new())),
        ("client", payload(&client)),
        ("longest-value", payload(&Handshake::new().tell("name", &long))),
        ("most-fields", payload(&full)),
        ("not-utf8", b"WAGGLE\x01\0\x01\0\0\x01\0a\x01\0\xff".to_vec()),
        ("count-beyond-the-end", b"WAGGLE\x01\0\xff\xff".to_vec()),
        ("same-name-twice", twice),
        ("control-character", control),
        ("other-format", format),
        ("another-program", b"GET / HTTP/1.1\r\n\r\n".to_vec()),
    ];
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus");
    Corpus::write(format!("{dir}/handshake"), lists.map(|(name, bytes)| (name.to_owned(), bytes)));
    let frames = [
        ("exact", frame("step", b"four")),
        ("two", [frame("step", b"four"), frame("step", b"")].concat()),
        ("other-step", frame("other", b"four")),
        ("largest", [&u32::MAX.to_le_bytes()[..], &frame("step", b"")[4..]].concat()),
        ("cut", frame("step", b"four")[..11].to_vec()),
    ];
    Corpus::write(format!("{dir}/frames"), frames.map(|(name, bytes)| (name.to_owned(), bytes)));
}
