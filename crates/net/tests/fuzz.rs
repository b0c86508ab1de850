//! Hostile bytes make no decoder of this crate panic or take much memory. See CONTRIBUTING, "Fuzzing".

use waggle_fuzz::link::{Recorded, frame};
use waggle_fuzz::{Corpus, memory};
use waggle_net::{
    Admission, AllowList, Channel, Handshake, Identity, KeyError, KnownServers, NetError, PublicKey, Role, admission,
    await_admission, handshake, send_admission,
};

fn corpus(name: &str) -> Corpus {
    Corpus::open(format!("{}/tests/corpus/{name}", env!("CARGO_MANIFEST_DIR")))
}

/// Memory that a decoder of a few bytes may hold beside its result: tables of the ledger, texts of errors.
const SLACK: usize = 64 << 10;

/// Shakes hands with a peer that sends `bytes` and nothing else. Also returns the bytes that the peer was sent.
fn shake(hello: &Handshake, bytes: Vec<u8>) -> (Result<Vec<handshake::Field>, NetError>, Vec<u8>) {
    let peer = Recorded::new(bytes);
    let kept = peer.kept();
    let outcome = hello.run(&mut Channel::new(Role::Server, peer));
    (outcome, kept.bytes())
}

#[test]
fn fuzz_handshake() {
    waggle_fuzz::target!(corpus("handshake"), |bytes: &[u8]| {
        let ((outcome, _), memory) = memory::peak(|| shake(&Handshake::new(), frame("handshake", bytes)));
        // Room for the message, its fields, and a copy of each for the list of differences.
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

/// Checks that what the error says has no control characters, because the texts of a peer end up on a terminal.
fn assert_one_line_each(error: &NetError) {
    match error {
        NetError::Disagreement { differences } => {
            assert!(!differences.iter().any(|one| one.to_string().contains(char::is_control)), "{differences:?}");
        }
        other => assert!(!other.to_string().contains(char::is_control), "{other:?}"),
    }
}

#[test]
fn fuzz_frames() {
    const MOST: usize = 1000;
    waggle_fuzz::target!(corpus("frames"), |bytes: &[u8]| {
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
    });
}

#[test]
fn fuzz_admission() {
    waggle_fuzz::target!(corpus("admission"), |bytes: &[u8]| {
        let mut signs = 0;
        let mut peer = Recorded::new(bytes);
        let (outcome, memory) = memory::peak(|| await_admission(&mut peer, &mut || signs += 1));
        assert!(memory < 4 * admission::MAX_REASON_BYTES + SLACK + 8 * bytes.len(), "{memory} bytes");
        // Messages that were understood have one spelling.
        let mut understood = vec![Admission::Busy; signs];
        match outcome {
            Ok(()) => understood.push(Admission::Granted),
            Err(NetError::Refused { reason }) => {
                assert!(!reason.contains(char::is_control), "{reason:?}");
                understood.push(Admission::Refused { reason });
            }
            Err(error) => assert_one_line_each(&error),
        }
        let mut peer = Recorded::new([]);
        understood.iter().for_each(|admission| send_admission(&mut peer, admission).expect("a peer that takes all"));
        assert!(bytes.starts_with(&peer.kept().bytes()), "{understood:?}");
    });
}

#[test]
fn fuzz_public_key() {
    waggle_fuzz::target!(corpus("public-key"), |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        match text.parse::<PublicKey>() {
            Ok(key) => assert_eq!(key.to_string(), text.to_lowercase(), "one key, two texts"),
            Err(error) => assert!(!error.to_string().contains(char::is_control), "{error:?}"),
        }
    });
}

/// Reads `bytes` as the file that `read` takes. Errors must name the place and be fit for a terminal.
fn read_file<T>(
    dir: &std::path::Path,
    bytes: &[u8],
    read: impl Fn(&std::path::Path) -> Result<T, KeyError>,
) -> Option<T> {
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    let path = dir.join("file");
    // A list that was rewritten has other permissions, so the file is made anew.
    let _ = std::fs::remove_file(&path);
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&path).expect("a file");
    std::io::Write::write_all(&mut file, bytes).expect("a file");
    assert_eq!(file.metadata().expect("a file").permissions().mode() & 0o777, 0o600);
    let (outcome, memory) = memory::peak(|| read(&path));
    assert!(memory < 64 * bytes.len() + SLACK, "{memory} bytes");
    match outcome {
        Ok(value) => Some(value),
        Err(error) => {
            let told = error.to_string();
            assert!(told.contains("file") && !told.contains(char::is_control), "{told:?}");
            None
        }
    }
}

#[cfg(unix)]
#[test]
fn fuzz_identity_file() {
    let dir = tempfile::tempdir().expect("a directory");
    waggle_fuzz::target!(corpus("identity"), |bytes: &[u8]| {
        if let Some(identity) = read_file(dir.path(), bytes, |path| Identity::read(path)) {
            let text = std::str::from_utf8(bytes).expect("text, as it was read");
            let lines = text.lines().filter(|line| line.trim().starts_with("ed25519-secret:"));
            assert_eq!(lines.count(), 1, "one key");
            let shown = format!("{identity:?}");
            assert!(shown.starts_with("Identity(ed25519:") && !shown.contains("secret"), "{shown}");
        }
    });
}

#[cfg(unix)]
#[test]
fn fuzz_lists_of_keys() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("file");
    waggle_fuzz::target!(corpus("known-servers"), |bytes: &[u8]| {
        read_file(dir.path(), bytes, |path| AllowList::read(path));
        let Some(mut servers) = read_file(dir.path(), bytes, |path| KnownServers::read(path)) else { return };
        // An added server comes back, and nothing else changes.
        let key: PublicKey = KEY.parse().expect("a key");
        let others: Vec<_> = String::from_utf8_lossy(bytes).lines().map(str::to_owned).collect();
        servers.remember("new.example:7411", key).expect("a list that was read can be written");
        let again = KnownServers::read(&path).expect("what was written can be read");
        assert_eq!(again.lookup("new.example:7411").map(|server| server.key), Some(key));
        let kept = |line: &String| {
            let address = line.split_whitespace().next().unwrap_or("#");
            address.starts_with('#') || address == "new.example:7411" || again.lookup(address).is_some()
        };
        assert!(others.iter().all(kept));
    });
}

/// A public key as text.
const KEY: &str = "ed25519:3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c";

/// Writes the corpora of this file: `cargo test -p waggle-net --test fuzz -- --ignored write`.
#[test]
#[ignore = "writes files of the repository"]
fn write_corpora() {
    let payload = |hello: &Handshake| shake(hello, Vec::new()).1.split_off(8);
    let long = "x".repeat(1024);
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
        ("long-value", payload(&Handshake::new().tell("name", &long))),
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
    let message = |admissions: &[Admission]| {
        let mut peer = Recorded::new([]);
        admissions.iter().for_each(|admission| send_admission(&mut peer, admission).expect("a peer that takes all"));
        peer.kept().bytes()
    };
    let refused = |reason: &str| message(&[Admission::Refused { reason: reason.into() }]);
    let mut huge = refused("no");
    huge[9..13].fill(0xff);
    let mut control = refused("no");
    control[13] = 0x1b;
    let admissions = [
        ("granted", message(&[Admission::Granted])),
        ("busy", message(&[Admission::Busy, Admission::Busy, Admission::Granted])),
        ("refused", refused("not you")),
        ("no-reason", refused("")),
        ("longest-reason", refused(&"x".repeat(admission::MAX_REASON_BYTES))),
        ("reason-too-long", huge),
        ("control-character", control),
        ("another-program", b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
    ];
    Corpus::write(format!("{dir}/admission"), admissions.map(|(name, bytes)| (name.to_owned(), bytes)));
    let texts =
        [("key", KEY.to_owned()), ("upper-case", KEY.to_uppercase()), ("secret", KEY.replace(':', "-secret:"))];
    let texts = texts.into_iter().chain([("short", KEY[..40].to_owned()), ("digits", KEY[8..].to_owned())]);
    Corpus::write(format!("{dir}/public-key"), texts.map(|(name, text)| (name.to_owned(), text.into_bytes())));
    let secret = KEY.replace(':', "-secret:");
    let files = [
        ("one", format!("# mine\n{secret}\n")),
        ("two", format!("{secret}\n{secret}\n")),
        ("none", "# nothing\n".to_owned()),
        ("public", format!("{KEY}\n")),
        ("not-utf8", format!("{secret}\n\u{fffd}")),
    ];
    Corpus::write(format!("{dir}/identity"), files.map(|(name, text)| (name.to_owned(), text.into_bytes())));
    let files = [
        ("empty", String::new()),
        ("servers", format!("# met\nhost:7411 {KEY}\n\n[::1]:7411 {KEY} waggle-model:00ff\n")),
        ("twice", format!("a:1 {KEY}\na:1 {KEY}\n")),
        ("clients", format!("{KEY} of the queen\n{KEY}\n")),
        ("escapes", format!("\u{1b}[2J {KEY}\n")),
        ("no-key", "host:7411\n".to_owned()),
    ];
    Corpus::write(format!("{dir}/known-servers"), files.map(|(name, text)| (name.to_owned(), text.into_bytes())));
}
