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
    /// A channel of `role` that only counts: it books messages and drops them. A received message of a fixed length
    /// is all zeros, and one of any length is empty, unless [`Channel::expect`] says what it is.
    pub fn rehearsal(role: Role) -> Self {
        let mut channel = Channel::new(role, NoPeer);
        channel.replies = Some(Vec::new());
        channel
    }

    /// Sets the next message of `step` that a rehearsal receives.
    pub fn expect(&mut self, step: &'static str, message: Vec<u8>) {
        self.replies.get_or_insert_default().push((step, message));
    }
}

impl Ledger {
    /// Books what `messages` sends and receives on a [rehearsal](Channel::rehearsal) of `role`.
    pub fn rehearse<T>(&mut self, role: Role, messages: impl FnOnce(&mut Channel) -> T) -> T {
        let mut channel = Channel::rehearsal(role);
        std::mem::swap(self, channel.ledger_mut());
        let result = messages(&mut channel);
        std::mem::swap(self, channel.ledger_mut());
        result
    }
}
