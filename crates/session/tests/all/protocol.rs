//! The number of the protocol: parties with different numbers refuse each other, and the number rises when the bytes
//! on the wire change.

use std::collections::BTreeMap;
use std::path::Path;
use std::thread;
use std::time::Duration;

use waggle_model::bundled;
use waggle_net::{Channel, Handshake, Role, memory_pair};
use waggle_session::Error;
use waggle_session::party::{ClientOptions, ClientSession, Limits, ModelServer, PROTOCOL, Peer, Terms, nobody};

use crate::fuzz::opening;
use crate::hostile::Mode;

/// A party of this revision against one that states `number` and nothing else.
fn against(role: Role, number: Option<&str>) -> Error {
    let other = if role == Role::Client { Role::Server } else { Role::Client };
    let (ours, theirs) = memory_pair(Duration::from_secs(60));
    let (ours, mut theirs) = (Channel::new(role, ours), Channel::new(other, theirs));
    thread::scope(|scope| {
        scope.spawn(move || {
            let hello = number.into_iter().fold(Handshake::new(), |hello, number| hello.agree("protocol", number));
            hello.run(&mut theirs).expect_err("they differ");
        });
        let (peer, terms) = (Peer::default(), Terms::default());
        let outcome = match role {
            Role::Client => ClientSession::open(ours, &peer, &terms, &ClientOptions::default()).map(drop),
            Role::Server => {
                let hosted = ModelServer::builder().load(bundled("shakespeare-gpt2").unwrap()).unwrap();
                hosted.serve(ours, &peer, &terms, &Limits::default(), &mut nobody).map(drop)
            }
        };
        outcome.expect_err("they differ")
    })
}

#[test]
fn another_number_is_refused_and_both_are_named() {
    let cases = [(Some("0999"), Some(999)), (Some("0.1.0"), None), (None, None)];
    for role in [Role::Client, Role::Server] {
        for (stated, number) in cases {
            let error = against(role, stated);
            assert!(matches!(error, Error::Protocol { ours: PROTOCOL, theirs } if theirs == number), "{error:?}");
        }
    }
    let text = against(Role::Client, Some("0999")).to_string();
    assert!(text.contains(&format!("protocol {PROTOCOL} ")) && text.contains("protocol 999"), "{text}");
}

/// Digests of the messages of this revision: openings, and the golden plans without their times.
fn wire() -> BTreeMap<String, String> {
    let digest = |bytes: &[u8]| blake3::hash(bytes).to_hex()[..16].to_owned();
    let mut wire = BTreeMap::new();
    for (name, mode) in [("plain", Mode::Plain), ("prepared", Mode::Prepared)] {
        let [client, server] = opening(mode);
        // The client's first message names the kernels of this machine.
        let kernels = format!("{:24}", waggle_bits::cpu::Cpu::get().to_string());
        let hello = client[0].escape_ascii().to_string().replace(&kernels, "");
        let sent = [hello.into_bytes(), client[1..].concat()].concat();
        wire.insert(format!("opening/{name}/client"), digest(&sent));
        // The server's first message has the name of the model, which is that of a temporary folder.
        wire.insert(format!("opening/{name}/server"), digest(&server[1..].concat()));
    }
    for file in Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/plans").read_dir().unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        // The first line has the options. The last column of the other lines has seconds.
        let traffic: Vec<&str> = text.lines().skip(1).map(|line| line.rsplit_once(' ').unwrap().0).collect();
        let name = path.file_stem().unwrap().to_str().unwrap();
        wire.insert(format!("plan/{name}"), digest(traffic.join("\n").as_bytes()));
    }
    wire
}

#[test]
fn the_number_rises_with_the_bytes_on_the_wire() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/protocol.txt");
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    let pairs = text.lines().map(|line| line.split_once(' ').unwrap());
    let mut recorded: BTreeMap<String, String> = pairs.map(|(name, word)| (name.into(), word.into())).collect();
    let number = recorded.remove("protocol").unwrap_or_default();
    let wire = wire();
    let bless = "WAGGLE_BLESS=1 cargo test --release -p waggle-session the_number_rises";
    let changed = |(name, old): (&String, &String)| wire.get(name).is_some_and(|new| new != old);
    if number == PROTOCOL.to_string() {
        let changed: Vec<&String> = recorded.iter().filter(|pair| changed(*pair)).map(|(name, _)| name).collect();
        assert!(
            changed.is_empty(),
            "bytes on the wire change, and the number does not: {changed:?}. Raise `PROTOCOL` in \
             crates/session/src/party/opening.rs, say so in CHANGELOG.md, then run {bless}"
        );
    }
    if std::env::var_os("WAGGLE_BLESS").is_some() {
        let lines = wire.iter().map(|(name, digest)| format!("{name} {digest}\n"));
        let text: String = std::iter::once(format!("protocol {PROTOCOL}\n")).chain(lines).collect();
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        return std::fs::write(file, text).unwrap();
    }
    assert_eq!(
        (number, recorded),
        (PROTOCOL.to_string(), wire),
        "another number, or plans that come or go: run {bless}"
    );
}
