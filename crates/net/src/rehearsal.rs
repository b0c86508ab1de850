//! A channel without a peer, for plans: the functions that send and receive a session's messages run on it unchanged,
//! so a plan books the same messages as a session.

use std::io;
use std::time::Duration;

use crate::{Channel, Ledger, Link, Role};

/// A link that drops what it is given. A rehearsal never reads from it.
struct NoPeer;

impl Link for NoPeer {
    fn send(&mut self, _: Vec<u8>) -> io::Result<()> {
        Ok(())
    }

    fn recv(&mut self, _: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::UnexpectedEof.into())
    }

    fn timeout(&self) -> Duration {
        Duration::ZERO
    }
}

impl Channel {
    /// A channel of `role` that only counts: it books messages and drops them. It receives the messages of `replies`,
    /// by step. Any other received message is all zeros if its length is fixed, and empty otherwise.
    pub fn rehearsal(role: Role, replies: Vec<(&'static str, Vec<u8>)>) -> Self {
        let mut channel = Channel::new(role, NoPeer);
        channel.replies = Some(replies);
        channel
    }
}

impl Ledger {
    /// Books what `messages` sends and receives on a [rehearsal](Channel::rehearsal) of `role`.
    pub fn rehearse<T>(&mut self, role: Role, messages: impl FnOnce(&mut Channel) -> T) -> T {
        let mut channel = Channel::rehearsal(role, Vec::new());
        std::mem::swap(self, channel.ledger_mut());
        let result = messages(&mut channel);
        std::mem::swap(self, channel.ledger_mut());
        result
    }
}
