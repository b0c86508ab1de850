//! A channel without a peer, for plans: the functions that send and receive a session's messages run on it as they
//! are, so a plan books what a session does.

use std::io;
use std::time::Duration;

use crate::{Channel, Ledger, Link, Role};

/// A link that drops what it is given. A rehearsal answers before a link is read.
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
    /// A channel of `role` that counts: it books what is sent, and drops it. A message that must come has the
    /// length that is expected of it, and is zero, unless [`Channel::expect`] says what it is. One that may have any
    /// length is empty.
    pub fn rehearsal(role: Role) -> Self {
        let mut channel = Channel::new(role, NoPeer);
        channel.replies = Some(Vec::new());
        channel
    }

    /// In a rehearsal, the next message of `step` is `message`.
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
