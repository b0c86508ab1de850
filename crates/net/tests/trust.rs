//! Files of keys: what is written can be read, and every fault in them is reported.

use std::fs;

use crate::common::faulty::{Fault, Faulty};
use crate::common::*;
use waggle_net::{
    AllowList, Channel, Identity, KeyError, KnownServer, KnownServers, Link, NetError, Phase, PublicKey, Role,
};

fn key(byte: u8) -> PublicKey {
    PublicKey::from_bytes([byte; 32])
}

#[test]
fn an_identity_is_kept_and_never_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("identity");
    assert!(matches!(Identity::read(&path), Err(KeyError::File { .. })));
    let made = Identity::create(&path).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(&made.public().to_string()), "{text}");
    assert_eq!(Identity::read(&path).unwrap().public(), made.public());
    assert!(matches!(Identity::create(&path), Err(KeyError::Exists { .. })));
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "drafts stay behind");
    assert_ne!(Identity::generate().unwrap().public(), made.public());
    assert!(!format!("{made:?}").contains(text.rsplit(':').next().unwrap().trim()), "Debug shows the secret");
}

#[test]
fn known_vectors() {
    // RFC 8032, 7.1, test 1.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("identity");
    let seed = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
    write_private(&path, &format!("\n# comment\n  ed25519-secret:{seed}  \n"));
    let public = "ed25519:d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
    assert_eq!(Identity::read(&path).unwrap().public().to_string(), public);
}

fn write_private(path: &std::path::Path, text: &str) {
    fs::write(path, text).unwrap();
    #[cfg(unix)]
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
}

#[test]
fn wrong_identities() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("identity");
    let line = format!("ed25519-secret:{}", "ab".repeat(32));
    write_private(&path, "# nothing\n");
    assert!(matches!(Identity::read(&path), Err(KeyError::Empty { .. })));
    for (at, text) in
        [(1, line.replace('b', "g")), (1, line[..70].into()), (2, format!("{line}\n{line}")), (1, format!("{line}0"))]
    {
        write_private(&path, &text);
        let error = Identity::read(&path).unwrap_err();
        assert!(matches!(error, KeyError::Line { line, .. } if line == at), "{error:?}");
        assert!(!error.to_string().contains("abab"), "the message quotes the secret: {error}");
    }
    #[cfg(unix)]
    {
        write_private(&path, &line);
        assert!(Identity::read(&path).is_ok());
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
        assert!(matches!(Identity::read(&path), Err(KeyError::Readable { .. })));
    }
}

#[test]
fn servers_are_remembered() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("known_servers");
    let mut servers = KnownServers::read(&path).unwrap();
    assert_eq!(servers.lookup("a:1"), None);
    servers.remember("a:1", key(1)).unwrap();
    servers.pin("a:1", key(1), "pinned").unwrap();
    servers.remember("b:2", key(2)).unwrap();
    // A pin is kept with the same key, and lost with another one.
    servers.remember("a:1", key(1)).unwrap();
    let known = |address: &str| KnownServers::read(&path).unwrap().lookup(address).cloned();
    assert_eq!(known("a:1"), Some(KnownServer { address: "a:1".into(), key: key(1), pin: Some("pinned".into()) }));
    servers.remember("a:1", key(3)).unwrap();
    assert_eq!(known("a:1"), Some(KnownServer { address: "a:1".into(), key: key(3), pin: None }));
    // Comments stay, and so does what another process wrote meanwhile.
    fs::write(&path, format!("# mine\n\nc:3 {}\n", key(4))).unwrap();
    servers.remember("a:1", key(5)).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), format!("# mine\n\nc:3 {}\na:1 {}\n", key(4), key(5)));
    for address in ["two words", "", "#comment", "line\nbreak"] {
        assert!(servers.remember(address, key(1)).is_err(), "{address:?}");
    }
    assert!(servers.pin("a:1", key(1), "two words").is_err());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "drafts stay behind");
    for wrong in ["a:1", "a:1 nonsense", &format!("a:1 {} p extra", key(1)), &format!("a:1 {0}\na:1 {0}", key(1))] {
        fs::write(&path, wrong).unwrap();
        assert!(matches!(KnownServers::read(&path), Err(KeyError::Line { .. })), "{wrong}");
    }
}

#[test]
fn lists_of_clients() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("allowed_clients");
    assert!(!AllowList::read(&path).unwrap().contains(&key(1)));
    fs::write(&path, format!("# friends\n{}\n\n  {} Ada's laptop\n", key(1), key(2))).unwrap();
    let list = AllowList::read(&path).unwrap();
    assert!(list.contains(&key(1)) && list.contains(&key(2)) && !list.contains(&key(3)));
    fs::write(&path, format!("{}\nAda {}\n", key(1), key(2))).unwrap();
    assert!(matches!(AllowList::read(&path), Err(KeyError::Line { line: 2, .. })));
}

/// Results of both parties after some messages and a comparison of transcripts, where `fault` happens to the client's
/// bytes.
fn compare(pair: Pair, fault: Option<Fault>) -> [Result<(), NetError>; 2] {
    let party = |mut channel: Channel| {
        let step = if channel.role() == Role::Client {
            channel.send("words", &noise(50_000, 1))
        } else {
            channel.recv("words", 50_000).map(|_| ())
        };
        step?;
        channel.exchange("reply", &[1; 100], 100)?;
        channel.confirm_transcript()?;
        assert_eq!(channel.ledger().phase_total(Phase::Setup).bytes(), channel.ledger().total().bytes());
        assert!(channel.ledger().entries().iter().any(|e| e.path == "transcript" && e.traffic.bytes() == 80));
        Ok(())
    };
    let (client, server) = pair;
    let client: Box<dyn Link> = match fault {
        Some(fault) => Box::new(Faulty::new(client, fault)),
        None => client,
    };
    let (client, server) = run((client, server), party, party);
    [client, server]
}

#[test]
fn a_changed_session_does_not_pass() {
    for (name, pair) in every_kind(PATIENCE) {
        for outcome in compare(pair, None) {
            assert_eq!(kind(outcome), "ok", "{name}");
        }
    }
    // Any byte of the words, of the reply and of the digest itself.
    for at in [8, 5_000, 50_007, 50_016, 50_115, 50_124, 50_155] {
        for pair in [memory(BRIEF), tcp(BRIEF)] {
            let [client, server] = compare(pair, Some(Fault::Corrupt(at)));
            assert_eq!(kind(server), "transcript", "byte {at}");
            // If only the digest is changed, the client has seen nothing wrong: only the server can report it.
            assert_eq!(kind(client), if at < 50_124 { "transcript" } else { "ok" }, "byte {at}");
        }
    }
}
