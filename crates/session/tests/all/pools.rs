//! Tools for tests of pools: sessions of both parties in one process, complete or over links that die.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use std::{io, thread};

use waggle_net::{Channel, Link, Role, memory_pair};
use waggle_protocols::audit::unwatched;
use waggle_session::Error;
use waggle_session::party::{ClientOptions, ClientSession, Limits, ModelServer, Outcome, Peer, Terms, nobody};
use waggle_session::pool::{Found, State, find};

/// Terms of a session in two phases.
pub(crate) fn terms() -> Terms {
    let mut terms = crate::outcome::fine_terms();
    terms.protocol.preprocess = true;
    terms
}

/// Runs one session of `client` with `hosted`. Returns the results of client and server.
pub(crate) fn session(
    hosted: &ModelServer,
    client: impl FnOnce(ClientSession) -> Result<Outcome, Error>,
) -> [Result<Outcome, Error>; 2] {
    session_as(hosted, &Peer::default(), client)
}

/// [`session`], where each party sees the key of `peer` at the other end.
pub(crate) fn session_as(
    hosted: &ModelServer,
    peer: &Peer,
    client: impl FnOnce(ClientSession) -> Result<Outcome, Error>,
) -> [Result<Outcome, Error>; 2] {
    over(hosted, peer, memory_pair(Duration::from_secs(60)), [&terms(), &terms()], client)
}

/// [`session`] of a client and a server with these terms.
pub(crate) fn session_under(
    hosted: &ModelServer,
    terms: [&Terms; 2],
    client: impl FnOnce(ClientSession) -> Result<Outcome, Error>,
) -> [Result<Outcome, Error>; 2] {
    over(hosted, &Peer::default(), memory_pair(Duration::from_secs(60)), terms, client)
}

fn over(
    hosted: &ModelServer,
    peer: &Peer,
    (here, there): (impl Link + 'static, impl Link + 'static),
    [ours, theirs]: [&Terms; 2],
    client: impl FnOnce(ClientSession) -> Result<Outcome, Error>,
) -> [Result<Outcome, Error>; 2] {
    let (here, there) = (Channel::new(Role::Client, here), Channel::new(Role::Server, there));
    unwatched(|| {
        thread::scope(|scope| {
            let server = scope.spawn(|| hosted.serve(there, peer, theirs, &Limits::default(), &mut nobody));
            let opened = ClientSession::open(here, peer, ours, &ClientOptions::default());
            [opened.and_then(client), server.join().unwrap()]
        })
    })
}

/// Both outcomes of a session that went well.
pub(crate) fn both(results: [Result<Outcome, Error>; 2]) -> [Outcome; 2] {
    results.map(|result| result.unwrap())
}

/// A link that dies in both directions when it is asked to send more than `left` messages.
struct Dying<L> {
    link: L,
    left: usize,
    dead: bool,
    sent: Arc<AtomicUsize>,
}

impl<L: Link> Link for Dying<L> {
    fn send(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        if self.left == 0 {
            self.dead = true;
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.left -= 1;
        self.sent.fetch_add(1, Ordering::Relaxed);
        self.link.send(bytes)
    }

    fn recv(&mut self, buf: &mut [u8]) -> io::Result<()> {
        if self.dead { Err(io::ErrorKind::UnexpectedEof.into()) } else { self.link.recv(buf) }
    }

    fn timeout(&self) -> Duration {
        self.link.timeout()
    }
}

/// Limits for [`cut`] under which no link dies.
pub(crate) const NEVER: [usize; 2] = [usize::MAX; 2];

/// Runs a session whose links die after `client` and `server` messages. Returns whether it went well at each party,
/// and how many messages each sent.
pub(crate) fn cut(
    hosted: &ModelServer,
    [client, server]: [usize; 2],
    run: impl FnOnce(ClientSession) -> Result<Outcome, Error>,
) -> ([bool; 2], [usize; 2]) {
    let (here, there) = memory_pair(Duration::from_secs(60));
    let sent: [Arc<AtomicUsize>; 2] = Default::default();
    let here = Dying { link: here, left: client, dead: false, sent: sent[0].clone() };
    let there = Dying { link: there, left: server, dead: false, sent: sent[1].clone() };
    let ended = over(hosted, &Peer::default(), (here, there), [&terms(), &terms()], run);
    (ended.map(|result| result.is_ok()), sent.map(|sent| sent.load(Ordering::Relaxed)))
}

/// States of the files of pools in a directory, ordered by the state's name.
pub(crate) fn states(dir: &Path) -> Vec<State> {
    let mut states: Vec<State> = find(dir).unwrap().iter().map(Found::state).collect();
    states.sort_by_key(|state| format!("{state:?}"));
    states
}
