//! Processes under attack: a server, clients, and a proxy between them that spoils what it passes on.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use crate::support::{self, Server, of};

/// The link between both parties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    Plaintext,
    Tls,
}

impl Wire {
    fn argument(self) -> &'static [&'static str] {
        match self {
            Wire::Plaintext => &["--insecure-plaintext"],
            Wire::Tls => &[],
        }
    }
}

/// The program with its keys in `home`, and arguments split at spaces.
pub(crate) fn waggle(home: &Path, line: &str, wire: Wire) -> Command {
    let mut command = of(support::waggle(line), home);
    command.args(wire.argument());
    command
}

/// Starts a server of the model in `home` and waits until it listens.
pub(crate) fn serve(home: &Path, arguments: &str, wire: Wire) -> Server {
    let line = format!("serve --model {} --listen 127.0.0.1:0 {arguments}", home.join("model").display());
    Server::run(&mut waggle(home, &line, wire))
}

impl Server {
    pub(crate) fn socket(&self) -> SocketAddr {
        self.address.parse().expect("an address")
    }

    /// Its largest memory so far in bytes, where the system tells (Linux).
    pub(crate) fn peak_memory(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        Some(1024 * line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()?)
    }

    /// Whether it still runs and never panicked.
    pub(crate) fn assert_sound(&mut self) {
        let log = self.log();
        assert!(self.runs(), "the server ended:\n{log}");
        assert!(!log.contains("panicked"), "{log}");
    }
}

/// Damage to a stream of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Damage {
    /// A bit of the byte at the offset is inverted.
    Flip(u8),
    /// So many bytes from the offset on vanish.
    Drop(usize),
    /// They come twice.
    Duplicate(usize),
    /// They come after as many that follow them.
    Reorder(usize),
    /// As many from the beginning of the stream come before them.
    Replay(usize),
}

/// Damage at one place of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spoil {
    /// Whether the client's bytes are spoiled, not the server's.
    pub(crate) upwards: bool,
    /// Offset in that direction's stream.
    pub(crate) offset: usize,
    pub(crate) damage: Damage,
}

impl Spoil {
    /// Offset after the last byte that has to be there before anything of the damage can be passed on.
    fn end(&self) -> usize {
        self.offset
            + match self.damage {
                Damage::Flip(_) => 1,
                Damage::Drop(n) | Damage::Duplicate(n) | Damage::Replay(n) => n,
                Damage::Reorder(n) => 2 * n,
            }
    }

    /// The result for `bytes`, which lie between [`Spoil::offset`] and [`Spoil::end`] of a stream that begins with
    /// `first`.
    fn apply(&self, bytes: &[u8], first: &[u8]) -> Vec<u8> {
        match self.damage {
            Damage::Flip(bit) => vec![bytes[0] ^ (1 << (bit % 8))],
            Damage::Drop(_) => Vec::new(),
            Damage::Duplicate(_) => [bytes, bytes].concat(),
            Damage::Reorder(n) => [&bytes[n..], &bytes[..n]].concat(),
            Damage::Replay(n) => [&first[..n.min(first.len())], bytes].concat(),
        }
    }
}

/// The bytes that went through a proxy: the client's and the server's.
#[derive(Default)]
pub(crate) struct Passed {
    pub(crate) streams: [Vec<u8>; 2],
    /// Whether the place of the damage was reached.
    pub(crate) spoiled: bool,
}

/// A proxy for one connection, or for all.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    passed: Arc<Mutex<Passed>>,
    /// Where connections go, and the damage to the next one.
    next: Arc<Mutex<(SocketAddr, Option<Spoil>)>>,
}

impl Proxy {
    /// Passes the next connection on to `server`, and damages it.
    pub(crate) fn start(server: SocketAddr, spoil: Option<Spoil>) -> Self {
        Proxy::of(server, spoil, 1)
    }

    /// Passes all connections on to `server`, as far as [`Proxy::aim`] says nothing else.
    pub(crate) fn lasting(server: SocketAddr) -> Self {
        Proxy::of(server, None, usize::MAX)
    }

    fn of(server: SocketAddr, spoil: Option<Spoil>, connections: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let proxy = Proxy { address, passed: Arc::default(), next: Arc::new(Mutex::new((server, spoil))) };
        let (passed, next) = (proxy.passed.clone(), proxy.next.clone());
        thread::spawn(move || {
            for client in listener.incoming().take(connections) {
                let Ok(client) = client else { return };
                let (server, spoil) = {
                    let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
                    (next.0, next.1.take())
                };
                let passed = passed.clone();
                thread::spawn(move || pass(client, server, spoil, passed));
            }
        });
        proxy
    }

    /// Passes the connections to come on to `server`, and damages the first of them. Forgets what has passed.
    pub(crate) fn aim(&self, server: SocketAddr, spoil: Option<Spoil>) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = (server, spoil);
        *self.passed.lock().unwrap_or_else(PoisonError::into_inner) = Passed::default();
    }

    /// The bytes that have passed so far.
    pub(crate) fn passed<T>(&self, look: impl FnOnce(&Passed) -> T) -> T {
        look(&self.passed.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Passes a connection on, both ways.
fn pass(client: TcpStream, server: SocketAddr, spoil: Option<Spoil>, kept: Arc<Mutex<Passed>>) {
    let Ok(server) = TcpStream::connect(server) else { return };
    for socket in [&client, &server] {
        let _ = socket.set_nodelay(true);
    }
    let (Ok(client_too), Ok(server_too)) = (client.try_clone(), server.try_clone()) else { return };
    let (up, down) = (spoil.filter(|spoil| spoil.upwards), spoil.filter(|spoil| !spoil.upwards));
    let other = kept.clone();
    let upwards = thread::spawn(move || pump(client, server, up, &kept, 0));
    pump(server_too, client_too, down, &other, 1);
    let _ = upwards.join();
}

/// Copies until one side ends.
fn pump(mut from: TcpStream, mut to: TcpStream, spoil: Option<Spoil>, passed: &Mutex<Passed>, direction: usize) {
    let mut buffer = [0; 1 << 14];
    // Bytes of the damaged part that wait until all of it is there.
    let (mut at, mut held) = (0, Vec::new());
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        let bytes = &buffer[..n];
        let mut passed = passed.lock().unwrap_or_else(PoisonError::into_inner);
        passed.streams[direction].extend_from_slice(bytes);
        let out = match spoil {
            Some(spoil) if at < spoil.end() && at + n > spoil.offset => {
                let before = spoil.offset.saturating_sub(at);
                let after = (spoil.end() - at).min(n);
                held.extend_from_slice(&bytes[before..after]);
                let mut out = bytes[..before].to_vec();
                if at + n >= spoil.end() {
                    out.extend(spoil.apply(&held, &passed.streams[direction]));
                    out.extend_from_slice(&bytes[after..]);
                    passed.spoiled = true;
                }
                out
            }
            _ => bytes.to_vec(),
        };
        drop(passed);
        at += n;
        if to.write_all(&out).is_err() {
            break;
        }
    }
    // Bytes still held have no successor any more.
    let _ = to.write_all(&held[..if spoil.is_some_and(|spoil| at < spoil.end()) { held.len() } else { 0 }]);
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}
