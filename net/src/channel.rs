//! Framed messages over a link.
//!
//! A frame is a length (u32, little endian), the tag of the protocol step (u32) and the payload. The receiver names
//! the step and the length that the protocol prescribes and refuses anything else before it allocates.

use std::io;

use crate::{Ledger, Link, NetError, Role};

/// Bytes that a frame adds to its payload.
pub const HEADER_BYTES: usize = 8;

/// Frames are collected up to this size before they are handed to the link.
const COALESCE_BYTES: usize = 256 << 10;

/// A counted, framed, blocking channel to the peer. Writes are coalesced; every receive flushes first.
pub struct Channel {
    role: Role,
    link: Box<dyn Link>,
    out: Vec<u8>,
    ledger: Ledger,
}

impl Channel {
    /// A channel for the party `role` over `link`.
    pub fn new(role: Role, link: impl Link + 'static) -> Self {
        Channel { role, link: Box::new(link), out: Vec::new(), ledger: Ledger::default() }
    }

    /// This party.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The account of this channel.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The account of this channel, to open scopes and phases.
    pub fn ledger_mut(&mut self) -> &mut Ledger {
        &mut self.ledger
    }

    /// Sends `payload` (less than 4 GiB) as the message of `step`.
    pub fn send(&mut self, step: &'static str, payload: &[u8]) -> Result<(), NetError> {
        self.ledger.book(self.role.sends(), (payload.len() + HEADER_BYTES) as u64);
        self.frame(step, payload)
    }

    /// Receives the message of `step`, which must have exactly `len` bytes.
    pub fn recv(&mut self, step: &'static str, len: usize) -> Result<Vec<u8>, NetError> {
        let payload = self.unframe(step, len, len)?;
        self.ledger.book(self.role.peer().sends(), (payload.len() + HEADER_BYTES) as u64);
        Ok(payload)
    }

    /// Receives the message of `step`, which may have any length up to `max`.
    pub fn recv_up_to(&mut self, step: &'static str, max: usize) -> Result<Vec<u8>, NetError> {
        let payload = self.unframe(step, 0, max)?;
        self.ledger.book(self.role.peer().sends(), (payload.len() + HEADER_BYTES) as u64);
        Ok(payload)
    }

    /// Both parties send at once: sends `payload`, receives `len` bytes. The client's message is booked first.
    pub fn exchange(&mut self, step: &'static str, payload: &[u8], len: usize) -> Result<Vec<u8>, NetError> {
        self.frame(step, payload)?;
        let received = self.unframe(step, len, len)?;
        let (client, server) = match self.role {
            Role::Client => (payload.len(), received.len()),
            Role::Server => (received.len(), payload.len()),
        };
        self.ledger.book(Role::Client.sends(), (client + HEADER_BYTES) as u64);
        self.ledger.book(Role::Server.sends(), (server + HEADER_BYTES) as u64);
        Ok(received)
    }

    /// Hands everything written so far to the link.
    pub fn flush(&mut self, step: &'static str) -> Result<(), NetError> {
        if self.out.is_empty() {
            return Ok(());
        }
        let out = std::mem::take(&mut self.out);
        self.link.send(out).map_err(|e| self.error(step, e))
    }

    fn frame(&mut self, step: &'static str, payload: &[u8]) -> Result<(), NetError> {
        let len = u32::try_from(payload.len()).map_err(|_| NetError::Length {
            step,
            expected: u32::MAX as usize,
            got: payload.len(),
        })?;
        self.out.extend_from_slice(&len.to_le_bytes());
        self.out.extend_from_slice(&tag(step).to_le_bytes());
        self.out.extend_from_slice(payload);
        if self.out.len() >= COALESCE_BYTES { self.flush(step) } else { Ok(()) }
    }

    fn unframe(&mut self, step: &'static str, min: usize, max: usize) -> Result<Vec<u8>, NetError> {
        self.flush(step)?;
        let mut header = [0; HEADER_BYTES];
        self.link.recv(&mut header).map_err(|e| self.error(step, e))?;
        let [l0, l1, l2, l3, t0, t1, t2, t3] = header;
        let got = u32::from_le_bytes([t0, t1, t2, t3]);
        if got != tag(step) {
            return Err(NetError::Unexpected { step, expected: tag(step), got });
        }
        let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if len < min || len > max {
            return Err(NetError::Length { step, expected: max, got: len });
        }
        let mut payload = vec![0; len];
        self.link.recv(&mut payload).map_err(|e| self.error(step, e))?;
        Ok(payload)
    }

    fn error(&self, step: &'static str, source: io::Error) -> NetError {
        use io::ErrorKind::*;
        match source.kind() {
            UnexpectedEof | BrokenPipe | ConnectionReset | ConnectionAborted => NetError::Closed { step },
            TimedOut | WouldBlock => NetError::TimedOut { step, seconds: self.link.timeout().as_secs_f64() },
            _ => NetError::Io { step, source },
        }
    }
}

/// The tag of a step: 32-bit FNV-1a of its name. It guards against confusion, not against an adversary.
const fn tag(step: &str) -> u32 {
    let bytes = step.as_bytes();
    let mut hash = 0x811c_9dc5_u32;
    let mut i = 0;
    while i < bytes.len() {
        hash = (hash ^ bytes[i] as u32).wrapping_mul(0x0100_0193);
        i += 1;
    }
    hash
}
