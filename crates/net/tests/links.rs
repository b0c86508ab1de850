//! What a channel demands of every link: framing, equal ledgers, no deadlock, no lost last message.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::*;
use waggle_net::tcp::{ConnectOptions, TcpLink, connect, listen};
use waggle_net::{Channel, Entry, HEADER_BYTES, Link, NetError, Phase, Role};

/// Lengths around the sizes at which the channel and the links treat messages differently.
const LENGTHS: [usize; 9] = [0, 1, 7, 65_535, 65_536, 65_537, (256 << 10) - 8, 256 << 10, (1 << 20) + 3];

#[test]
fn every_length_arrives_unchanged() {
    for (name, pair) in every_kind(PATIENCE) {
        let (client, server) = run(
            pair,
            |mut c| {
                for (i, len) in LENGTHS.into_iter().enumerate() {
                    c.send("exact", &noise(len, i as u64))?;
                    c.send_owned("owned", noise(len, 100 + i as u64))?;
                    c.send("bounded", &noise(len, 200 + i as u64))?;
                }
                c.recv("thanks", 0)
            },
            |mut s| {
                for (i, len) in LENGTHS.into_iter().enumerate() {
                    assert!(s.recv("exact", len)? == noise(len, i as u64), "{name}: {len}");
                    assert!(s.recv("owned", len)? == noise(len, 100 + i as u64), "{name}: {len}");
                    assert!(s.recv_up_to("bounded", 2 << 20)? == noise(len, 200 + i as u64), "{name}: {len}");
                }
                s.send("thanks", &[])
            },
        );
        assert_eq!((kind(client), kind(server)), ("ok", "ok"), "{name}");
    }
}

/// A session with every kind of message, in two phases and nested scopes.
fn session(mut channel: Channel) -> Result<Vec<Entry>, NetError> {
    let client = channel.role() == Role::Client;
    let one_way = |channel: &mut Channel, sender: bool, len: usize| {
        if sender { channel.send("x", &vec![1; len]) } else { channel.recv("x", len).map(|_| ()) }
    };
    one_way(&mut channel, client, 5)?;
    one_way(&mut channel, client, 6)?;
    channel.ledger_mut().set_phase(Phase::Prefill);
    channel.ledger_mut().enter("layer 0");
    channel.ledger_mut().enter("softmax");
    one_way(&mut channel, client, 100)?;
    one_way(&mut channel, !client, 50)?;
    channel.exchange("both", &[2; 10], 10)?;
    channel.ledger_mut().leave();
    let (mine, theirs) = if client { (20, 40) } else { (40, 20) };
    channel.exchange("vary", &vec![3; mine], theirs)?;
    channel.ledger_mut().leave();
    channel.ledger_mut().set_phase(Phase::Decode);
    one_way(&mut channel, !client, 1)?;
    channel.ledger_mut().checkpoint();
    Ok(channel.ledger().untimed())
}

#[test]
fn both_ledgers_tell_the_same_story() {
    let h = HEADER_BYTES as u64;
    for (name, pair) in every_kind(PATIENCE) {
        let (client, server) = run(pair, session, session);
        let (client, server) = (client.unwrap(), server.unwrap());
        assert_eq!(client, server, "{name}");
        let [setup, layer, softmax, decode] = client.as_slice() else { panic!("{name}: {client:?}") };
        let count = |e: &Entry| {
            let t = &e.traffic;
            (e.path.clone(), t.bytes_client_to_server, t.bytes_server_to_client, t.messages, t.flows)
        };
        assert_eq!(count(setup), (String::new(), 11 + 2 * h, 0, 2, 1));
        // The client's 100 bytes go on in the direction of the set-up; an exchange turns once.
        assert_eq!(count(softmax), ("layer 0/softmax".into(), 110 + 2 * h, 60 + 2 * h, 4, 2));
        assert_eq!(count(layer), ("layer 0".into(), 20 + h, 40 + h, 2, 1));
        assert_eq!(count(decode), (String::new(), 0, 1 + h, 1, 0));
    }
}

#[test]
fn the_last_message_survives_the_drop() {
    const LEN: usize = 16 << 20;
    for (name, pair) in every_kind(PATIENCE) {
        let (client, server) = run(
            pair,
            |mut c| {
                c.send("small", b"held back until the drop")?;
                c.send("large", &noise(LEN, 1))
            },
            |mut s| {
                // The client has long dropped its end when the server begins to read.
                thread::sleep(Duration::from_millis(50));
                assert_eq!(s.recv("small", 24)?, b"held back until the drop");
                assert!(s.recv("large", LEN)? == noise(LEN, 1), "{name}");
                s.recv("more", 1)
            },
        );
        assert_eq!((kind(client), kind(server)), ("ok", "closed"), "{name}");
    }
}

#[test]
fn unread_input_does_not_cost_the_last_message() {
    const LEN: usize = 16 << 20;
    let (client, server) = run(
        tcp(PATIENCE),
        |mut c| {
            c.recv("ready", 0)?;
            // The bytes that follow stay unread, some in the socket: they exceed the link's read buffer.
            thread::sleep(Duration::from_millis(50));
            c.send("last", &noise(LEN, 2))
        },
        |mut s| {
            s.send("ready", &[])?;
            s.send("unread", &[0; 100_000])?;
            s.flush("unread")?;
            assert!(s.recv("last", LEN)? == noise(LEN, 2));
            s.close("end")
        },
    );
    assert_eq!((kind(client), kind(server)), ("ok", "ok"));
}

#[test]
fn close_reports_delivery() {
    for (name, pair) in every_kind(PATIENCE) {
        let (client, server) = run(
            pair,
            |mut c| {
                c.send("last", &noise(1 << 20, 3))?;
                c.close("end")
            },
            |mut s| s.recv("last", 1 << 20).map(|bytes| assert!(bytes == noise(1 << 20, 3))),
        );
        assert_eq!((kind(client), kind(server)), ("ok", "ok"), "{name}");
    }
}

#[test]
fn closing_does_not_wait_forever_for_a_peer_that_does_not_read() {
    let (link, raw) = tcp_raw(BRIEF);
    let mut channel = Channel::new(Role::Server, link);
    // More than the socket buffers of both sides hold.
    channel.send_owned("ignored", vec![0; 64 << 20]).unwrap();
    assert_eq!(kind(channel.close("end")), "timed out");
    drop(raw);
}

#[test]
fn a_failed_write_surfaces() {
    let (mut link, raw) = tcp_raw(PATIENCE);
    drop(raw);
    let start = Instant::now();
    let error = loop {
        if let Err(e) = link.send(vec![0; 1000]) {
            break e;
        }
        assert!(start.elapsed() < PATIENCE, "no send fails");
        thread::sleep(Duration::from_millis(1));
    };
    assert!(matches!(error.kind(), std::io::ErrorKind::BrokenPipe | std::io::ErrorKind::ConnectionReset), "{error}");

    // A channel that only waits for the answer learns of the lost connection as well, and at once.
    let (link, raw) = tcp_raw(PATIENCE);
    drop(raw);
    let mut channel = Channel::new(Role::Server, link);
    channel.send("lost", &[0; 1000]).unwrap();
    assert_eq!(kind(channel.recv("answer", 1)), "closed");

    // It learns of a failed write even if the peer is alive and silent: here the sending side is shut under the link.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (_peer, _) = listener.accept().unwrap();
    let mut channel = Channel::new(Role::Client, TcpLink::new(stream.try_clone().unwrap(), PATIENCE).unwrap());
    stream.shutdown(Shutdown::Write).unwrap();
    channel.send("lost", &[0; 1000]).unwrap();
    assert_eq!(kind(channel.recv("answer", 1)), "closed");
    assert!(start.elapsed() < PATIENCE);
}

/// A port of this machine where nobody listens.
fn free_port() -> std::net::SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[test]
fn the_client_may_start_first() {
    let addr = free_port();
    let options = ConnectOptions { connect_timeout: PATIENCE, read_timeout: PATIENCE };
    let client = thread::spawn(move || Channel::new(Role::Client, connect(addr, options).unwrap()).recv("hello", 2));
    thread::sleep(Duration::from_millis(100));
    let server = listen(addr, PATIENCE).unwrap().accept(Some(PATIENCE)).unwrap();
    Channel::new(Role::Server, server).send("hello", b"hi").unwrap();
    assert_eq!(client.join().unwrap().unwrap(), b"hi");
}

#[test]
fn nobody_listens() {
    let addr = free_port();
    let start = Instant::now();
    let options = ConnectOptions { connect_timeout: BRIEF, read_timeout: BRIEF };
    let Err(NetError::Unreachable { addr: named, .. }) = connect(addr, options) else { panic!("connected") };
    assert_eq!(named, addr.to_string());
    assert!(start.elapsed() < PATIENCE);
    let said = |addr: String| connect(addr, options).map(|_| ()).unwrap_err().to_string();
    assert!(said("no address at all".into()).starts_with("cannot connect to no address at all after 0."));
    // The error gives a name as the user wrote it, and the address that it stands for.
    let name = format!("localhost:{}", addr.port());
    assert!(said(name.clone()).starts_with(&format!("cannot connect to {name} (")), "{}", said(name));
}

#[test]
fn nobody_calls() {
    let listener = listen("127.0.0.1:0", BRIEF).unwrap();
    assert_eq!(kind(listener.accept(Some(BRIEF)).map(|_| ())), "timed out");
    assert_eq!(kind(listen(listener.local_addr().unwrap(), BRIEF)), "io");
}

#[test]
fn a_split_link_sends_from_its_half_only() {
    for (mut a, mut b) in [memory(PATIENCE), tcp(PATIENCE), tls(PATIENCE)] {
        let mut half = a.take_sender().unwrap();
        assert!(a.take_sender().is_err());
        assert!(a.send(vec![1]).is_err());
        half.send(vec![7, 8]).unwrap();
        b.send(vec![9]).unwrap();
        let mut buf = [0; 2];
        b.recv(&mut buf).unwrap();
        assert_eq!(buf, [7, 8]);
        half.close().unwrap();
        assert_eq!(b.recv(&mut buf).unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
        // The other direction is still open.
        a.recv(&mut buf[..1]).unwrap();
        assert_eq!(buf[0], 9);
        assert!(half.send(vec![0]).is_err());
    }
}
