//! Pairs of links, and the frames of a peer that is no `Channel`.
#![allow(dead_code, reason = "every test program uses a part")]

pub(crate) mod faulty;

use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use waggle_net::tcp::{ConnectOptions, TcpLink, connect, listen};
use waggle_net::tls::{self, TlsLink};
use waggle_net::{Channel, Identity, Link, LinkShape, NetError, Role, Shaped, memory_pair};

/// A time-out long enough for a busy machine. No passing test waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// A time-out for tests that wait for one.
pub(crate) const BRIEF: Duration = Duration::from_millis(300);

/// The ends of both parties, client first.
pub(crate) type Pair = (Box<dyn Link>, Box<dyn Link>);

pub(crate) fn memory(timeout: Duration) -> Pair {
    let (a, b) = memory_pair(timeout);
    (Box::new(a), Box::new(b))
}

pub(crate) fn tcp_links(timeout: Duration) -> (TcpLink, TcpLink) {
    let listener = listen("127.0.0.1:0", timeout).unwrap();
    let options = ConnectOptions { connect_timeout: PATIENCE, read_timeout: timeout };
    let client = connect(listener.local_addr().unwrap(), options).unwrap();
    (client, listener.accept(Some(PATIENCE)).unwrap())
}

pub(crate) fn tcp(timeout: Duration) -> Pair {
    let (client, server) = tcp_links(timeout);
    (Box::new(client), Box::new(server))
}

/// Two encrypted links, client first; each party trusts the other's key.
pub(crate) fn tls_links(timeout: Duration) -> (TlsLink, TlsLink) {
    let [client, server] = [(); 2].map(|()| Identity::generate().unwrap());
    let listener = listen("127.0.0.1:0", timeout).unwrap();
    let addr = listener.local_addr().unwrap();
    let trusted = server.public();
    let server = thread::spawn(move || {
        tls::accept(listener.accept_stream(Some(PATIENCE)).unwrap(), &server, PATIENCE, timeout).unwrap()
    });
    let options = ConnectOptions { connect_timeout: PATIENCE, read_timeout: timeout };
    let link = tls::connect(addr, &client, move |key| *key == trusted, options).unwrap();
    (link, server.join().unwrap())
}

pub(crate) fn tls(timeout: Duration) -> Pair {
    let (client, server) = tls_links(timeout);
    (Box::new(client), Box::new(server))
}

/// A link and the plain socket of its peer.
pub(crate) fn tcp_raw(timeout: Duration) -> (TcpLink, TcpStream) {
    let listener = listen("127.0.0.1:0", timeout).unwrap();
    let raw = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (listener.accept(Some(PATIENCE)).unwrap(), raw)
}

pub(crate) fn shaped(pair: Pair, shape: LinkShape) -> Pair {
    (Box::new(Shaped::new(pair.0, shape).unwrap()), Box::new(Shaped::new(pair.1, shape).unwrap()))
}

/// Every kind of link, with its name.
pub(crate) fn every_kind(timeout: Duration) -> Vec<(&'static str, Pair)> {
    let fast = LinkShape { bytes_per_second: 1_000_000_000, round_trip: Duration::from_micros(200) };
    vec![
        ("memory", memory(timeout)),
        ("tcp", tcp(timeout)),
        ("tls", tls(timeout)),
        ("shaped memory", shaped(memory(timeout), fast)),
        ("shaped tcp", shaped(tcp(timeout), fast)),
        ("shaped tls", shaped(tls(timeout), fast)),
    ]
}

/// Runs both parties, each on its channel, and returns what they return.
pub(crate) fn run<A: Send + 'static, B: Send>(
    pair: Pair,
    client: impl FnOnce(Channel) -> A + Send + 'static,
    server: impl FnOnce(Channel) -> B,
) -> (A, B) {
    let (a, b) = pair;
    let client = thread::spawn(move || client(Channel::new(Role::Client, a)));
    let b = server(Channel::new(Role::Server, b));
    (client.join().unwrap(), b)
}

/// A frame with the header as given, whatever the payload.
pub(crate) fn frame(step: &str, len: u32, payload: &[u8]) -> Vec<u8> {
    let tag = step.bytes().fold(0x811c_9dc5_u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
    [&len.to_le_bytes(), &tag.to_le_bytes(), payload].concat()
}

/// `len` bytes that depend on `seed` (splitmix64).
pub(crate) fn noise(len: usize, mut seed: u64) -> Vec<u8> {
    let mut word = || {
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)).to_le_bytes()
    };
    let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| word()).collect();
    bytes.truncate(len);
    bytes
}

/// The variant of an error.
pub(crate) fn kind<T: std::fmt::Debug>(result: Result<T, NetError>) -> &'static str {
    match result {
        Ok(_) => "ok",
        Err(NetError::Closed { .. }) => "closed",
        Err(NetError::TimedOut { .. }) => "timed out",
        Err(NetError::Length { .. }) => "length",
        Err(NetError::Unexpected { .. }) => "unexpected",
        Err(NetError::Malformed { .. }) => "malformed",
        Err(NetError::Disagreement { .. }) => "disagreement",
        Err(NetError::NotWaggle { .. }) => "not waggle",
        Err(NetError::Unreachable { .. }) => "unreachable",
        Err(NetError::PeerRejected { .. }) => "rejected by the peer",
        Err(NetError::Transcript) => "transcript",
        Err(NetError::Refused { .. }) => "refused",
        Err(NetError::Untrusted { .. }) => "untrusted",
        Err(NetError::Tls { .. }) => "tls",
        Err(NetError::Tampered { .. }) => "tampered",
        Err(NetError::Key(_)) => "key",
        Err(NetError::Io { .. }) => "io",
        Err(_) => "another",
    }
}
