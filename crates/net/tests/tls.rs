//! Encrypted links: who is let in, what binds a session, and what happens to changed bytes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::common::*;
use waggle_net::tcp::{ConnectOptions, Listener, listen};
use waggle_net::tls::{self, TlsLink};
use waggle_net::{Channel, Identity, Link, NetError, PublicKey, Role};

const OPTIONS: ConnectOptions = ConnectOptions { connect_timeout: PATIENCE, read_timeout: PATIENCE };

/// Starts a server that accepts one client. Returns its address, and a thread with the result.
fn server(identity: Arc<Identity>) -> (SocketAddr, JoinHandle<Result<TlsLink, NetError>>) {
    let listener = listen("127.0.0.1:0", PATIENCE).unwrap();
    let addr = listener.local_addr().unwrap();
    (addr, thread::spawn(move || accept(&listener, &identity, PATIENCE)))
}

fn accept(listener: &Listener, identity: &Identity, limit: Duration) -> Result<TlsLink, NetError> {
    tls::accept(listener.accept_stream(Some(PATIENCE))?, identity, limit, PATIENCE)
}

fn identity() -> Arc<Identity> {
    Arc::new(Identity::generate().unwrap())
}

#[test]
fn each_knows_the_other_by_its_key() {
    let (client, host) = (identity(), identity());
    let (addr, accepted) = server(host.clone());
    let link = tls::connect(addr, &client, |_| true, OPTIONS).unwrap();
    let accepted = accepted.join().unwrap().unwrap();
    assert_eq!((link.peer_key(), accepted.peer_key()), (host.public(), client.public()));
    assert!(link.protection().starts_with("X25519MLKEM768 "), "{}", link.protection());
    assert_eq!(link.protection(), accepted.protection());
}

#[test]
fn a_server_that_is_not_trusted_learns_nothing() {
    let (client, host) = (identity(), identity());
    let expected = client.public();
    let (addr, accepted) = server(host.clone());
    let error = tls::connect(addr, &client, move |key| *key == expected, OPTIONS).unwrap_err();
    let NetError::Untrusted { key } = error else { panic!("{error:?}") };
    assert_eq!(key, host.public());
    let error = accepted.join().unwrap().unwrap_err();
    assert!(matches!(error, NetError::Tls { .. } | NetError::Closed { .. }), "{error:?}");
}

#[test]
fn the_exporter_is_of_one_session_and_both_ends() {
    let [first, second] = [(); 2].map(|()| tls_links(PATIENCE)).map(|(a, b)| {
        assert_eq!(a.exporter(), b.exporter());
        a.exporter().expect("encrypted links have one")
    });
    assert_ne!(first, second);
    let (plain, _peer) = tcp(PATIENCE);
    assert_eq!(plain.exporter(), None);
}

/// The bindings of both ends after `talk`.
fn bindings(pair: Pair, talk: fn(&mut Channel) -> Result<(), NetError>) -> ([u8; 32], [u8; 32]) {
    let party = move |mut channel: Channel| {
        talk(&mut channel).unwrap();
        channel.binding()
    };
    run(pair, party, party)
}

#[test]
fn a_binding_stands_for_keys_and_words() {
    let hello = |c: &mut Channel| c.exchange("hello", b"hello", 5).map(|_| ());
    let (a, b) = bindings(tls(PATIENCE), hello);
    assert_eq!(a, b);
    let (other, _) = bindings(tls(PATIENCE), hello);
    assert_ne!(a, other, "two links");
    let (plain, same) = bindings(tcp(PATIENCE), hello);
    assert_eq!(plain, same);
    assert_eq!(bindings(memory(PATIENCE), hello).0, plain);
    assert_ne!(bindings(memory(PATIENCE), |_| Ok(())).0, plain);
    let longer = |c: &mut Channel| c.exchange("hello", b"hellO", 5).map(|_| ());
    assert_ne!(bindings(memory(PATIENCE), longer).0, plain);
}

#[test]
fn without_tls_or_with_another_there_is_no_link() {
    for greeting in
        [b"GET / HTTP/1.1\r\n\r\n".as_slice(), b"WGL-ADM1\0\0\0\0\0", &[0x16; 600], &[0x16, 3, 1, 0, 4, 1, 2]]
    {
        let (addr, accepted) = server(identity());
        let mut raw = TcpStream::connect(addr).unwrap();
        raw.write_all(greeting).unwrap();
        raw.shutdown(std::net::Shutdown::Write).unwrap();
        let error = accepted.join().unwrap().unwrap_err();
        assert!(matches!(error, NetError::Tls { .. } | NetError::Closed { .. }), "{error:?}");
        assert!(!error.to_string().contains('\n'));
    }
    // A client that meets a plaintext server.
    let listener = listen("127.0.0.1:0", PATIENCE).unwrap();
    let addr = listener.local_addr().unwrap();
    let plain = thread::spawn(move || listener.accept(Some(PATIENCE)).unwrap().send(b"WGL-ADM1\0\0\0\0\0".to_vec()));
    let error = tls::connect(addr, &identity(), |_| true, OPTIONS).unwrap_err();
    assert!(error.to_string().contains("it begins with `WGL-ADM1`"), "{error}");
    plain.join().unwrap().unwrap();
}

#[test]
fn a_trickling_handshake_is_cut() {
    let listener = listen("127.0.0.1:0", PATIENCE).unwrap();
    let mut raw = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let trickle = thread::spawn(move || {
        // The head of a record of 512 bytes, and then one byte at a time. Each byte would extend a time-out that
        // counts per read.
        for byte in [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc].into_iter().chain(std::iter::repeat_n(0, 500)) {
            if raw.write_all(&[byte]).is_err() {
                return;
            }
            thread::sleep(BRIEF / 10);
        }
    });
    let start = Instant::now();
    let error = accept(&listener, &identity(), BRIEF).unwrap_err();
    assert!(matches!(error, NetError::TimedOut { step: "tls", .. }), "{error:?}");
    assert!(start.elapsed() < BRIEF * 20);
    trickle.join().unwrap();
}

/// A proxy that inverts the lowest bit of the client's byte number `at`, and passes on everything else unchanged.
fn proxy(server: SocketAddr, at: u64) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || {
        let client = listener.accept().unwrap().0;
        let server = TcpStream::connect(server).unwrap();
        let pump = |mut from: TcpStream, mut to: TcpStream, flip: Option<u64>| {
            move || {
                let mut buf = [0; 1 << 14];
                let mut passed = 0;
                while let Ok(n @ 1..) = from.read(&mut buf) {
                    if let Some(i) = flip.and_then(|at| at.checked_sub(passed)).filter(|i| *i < n as u64) {
                        buf[i as usize] ^= 1;
                    }
                    passed += n as u64;
                    if to.write_all(&buf[..n]).is_err() {
                        break;
                    }
                }
                let _ = to.shutdown(std::net::Shutdown::Write);
            }
        };
        thread::spawn(pump(server.try_clone().unwrap(), client.try_clone().unwrap(), None));
        pump(client, server, Some(at))();
    });
    addr
}

#[test]
fn a_changed_byte_ends_the_session() {
    // The client's handshake has some 1.5 kB; the rest are records. Within the session both parties report the
    // change.
    for (at, inside) in [(3, false), (700, false), (5_000, true), (60_001, true)] {
        let host = identity();
        let (addr, accepted) = server(host.clone());
        let client = thread::spawn(move || {
            let mut options = OPTIONS;
            options.read_timeout = Duration::from_secs(10);
            let link = tls::connect(proxy(addr, at), &identity(), |_| true, options)?;
            let mut channel = Channel::new(Role::Client, link);
            channel.send("words", &noise(100_000, 1))?;
            channel.recv("answer", 1)
        });
        let outcome = accepted.join().unwrap().and_then(|link| {
            let mut channel = Channel::new(Role::Server, link);
            let words = channel.recv("words", 100_000)?;
            assert!(words == noise(100_000, 1), "changed words are taken for the client's");
            channel.send("answer", &[1])
        });
        let (server, client) = (kind(outcome), kind(client.join().unwrap()));
        if inside {
            assert_eq!(server, "tampered", "byte {at}");
            assert!(["tampered", "closed"].contains(&client), "byte {at}: {client}");
        } else {
            assert_ne!(server, "ok", "byte {at}");
            assert_ne!(client, "ok", "byte {at}");
        }
    }
}

#[test]
fn a_cut_without_farewell_is_closed() {
    let listener = listen("127.0.0.1:0", PATIENCE).unwrap();
    let addr = listener.local_addr().unwrap();
    let accepted = thread::spawn(move || {
        let stream = listener.accept_stream(Some(PATIENCE)).unwrap();
        let wire = stream.try_clone().unwrap();
        (tls::accept(stream, &identity(), PATIENCE, PATIENCE).unwrap(), wire)
    });
    let client = tls::connect(addr, &identity(), |_| true, OPTIONS).unwrap();
    let (server, wire) = accepted.join().unwrap();
    let (client, server) = run(
        (Box::new(client), Box::new(server)),
        move |mut c| {
            let heard = c.recv("first", 1);
            wire.shutdown(std::net::Shutdown::Both).unwrap();
            heard.and(c.recv("never", 1))
        },
        |mut s| {
            s.send("first", &[1])?;
            s.recv("second", 1)
        },
    );
    assert_eq!((kind(client), kind(server)), ("closed", "closed"));
}

#[test]
fn the_wire_carries_more_than_the_ledger() {
    let talk = |mut channel: Channel| {
        channel.exchange("words", &noise(100_000, 3), 100_000).unwrap();
        // A party that has received this message has written all its words, because the peer sent it after them. Only
        // the eight bytes of its own message may still wait for the writer thread.
        channel.exchange("end", &[], 0).unwrap();
        (channel.wire_bytes().unwrap(), channel.ledger().total())
    };
    let ((client, ledger), (server, _)) = run(tls(PATIENCE), talk, talk);
    assert!(client.sent > ledger.bytes_client_to_server && server.sent > ledger.bytes_server_to_client);
    // TLS adds the handshake, with keys of the post-quantum exchange, and 22 bytes for each record.
    assert!(client.sent < ledger.bytes_client_to_server + 4_000, "{client:?} {ledger:?}");
    let ((plain, ledger), _) = run(tcp(PATIENCE), talk, talk);
    for (wire, counted) in
        [(plain.sent, ledger.bytes_client_to_server), (plain.received, ledger.bytes_server_to_client)]
    {
        assert!((counted - 8..=counted).contains(&wire), "{wire} of {counted}");
    }
}

#[test]
fn keys_as_text() {
    let key = identity().public();
    let text = key.to_string();
    assert_eq!((text.len(), text.parse::<PublicKey>().unwrap()), (72, key));
    for wrong in ["", "ed25519:", &text[..71], &text[1..], &format!("{text}0"), &text.replace("ed25519", "x25519")] {
        assert!(wrong.parse::<PublicKey>().is_err(), "{wrong}");
    }
}
