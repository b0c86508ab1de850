//! Framed messages over a link.
//!
//! A frame is a length (u32, little endian), the tag of the protocol step (u32) and the payload. The receiver names
//! the step and the length that the protocol prescribes and refuses anything else before it allocates.
//!
//! A party that finds bad data says so before it closes: a frame with the tag of the step `alert` and the name of the
//! step at fault. Every frame except an alert goes into the transcript, which is one hash for each direction.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::link::WireBytes;
use crate::{Ledger, Link, NetError, Phase, Role};

/// Bytes that a frame adds to its payload.
pub const HEADER_BYTES: usize = 8;

/// Frames are collected up to this size before they are handed to the link.
const COALESCE_BYTES: usize = 256 << 10;

/// A payload must advance by this much within each read time-out. A peer that trickles bytes thus delays this party
/// for a bounded time, while a large message over a slow link has all the time it needs.
const PROGRESS_BYTES: usize = 256 << 10;

/// The time for which [`Channel::read_under`] reads before it checks whether the work is done.
const READ_AHEAD: Duration = Duration::from_millis(1);

/// Bytes of the message of each party in [`Channel::confirm_transcript`].
const TRANSCRIPT_BYTES: usize = 32;

/// Step and scope of the comparison of transcripts.
const TRANSCRIPT: &str = "transcript";

/// Step of the frame that says which of the peer's messages was bad.
const ALERT: &str = "alert";

/// Most bytes of the name of a step in an alert.
const MAX_ALERT_BYTES: usize = 64;

/// After a failed send, the search for the peer's alert skips at most this many unread bytes.
const MAX_UNREAD_BYTES: usize = 64 << 20;

/// A counted, framed, blocking channel to the peer. Writes are coalesced. Every receive flushes them first, and so
/// does dropping the channel.
pub struct Channel {
    role: Role,
    link: Box<dyn Link>,
    out: Vec<u8>,
    ledger: Ledger,
    /// Hash of all frames sent.
    sent: blake3::Hasher,
    /// Hash of all frames received.
    received: blake3::Hasher,
    /// Bytes of a frame that was sent before its turn.
    ahead: Option<u64>,
    /// Whether the peer was told of its bad data.
    alerted: bool,
    /// In a rehearsal, the messages that the peer would send, each with its step; `None` on a real channel.
    pub(crate) replies: Option<Vec<(&'static str, Vec<u8>)>>,
}

impl Channel {
    /// A channel for the party `role` over `link`.
    pub fn new(role: Role, link: impl Link + 'static) -> Self {
        let hash = || blake3::Hasher::new_derive_key("waggle 2026 frames of one direction");
        let (sent, received) = (hash(), hash());
        Channel {
            role,
            link: Box::new(link),
            out: Vec::new(),
            ledger: Ledger::default(),
            sent,
            received,
            ahead: None,
            alerted: false,
            replies: None,
        }
    }

    /// Whether this channel only [counts](Channel::rehearsal).
    pub fn rehearses(&self) -> bool {
        self.replies.is_some()
    }

    /// The role of this party.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The ledger of this channel.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The ledger of this channel, to open scopes and to set the phase.
    pub fn ledger_mut(&mut self) -> &mut Ledger {
        &mut self.ledger
    }

    /// Sends `payload` (less than 4 GiB) as the message of `step`.
    pub fn send(&mut self, step: &'static str, payload: &[u8]) -> Result<(), NetError> {
        self.ledger.book(self.role.sends(), (payload.len() + HEADER_BYTES) as u64);
        self.frame(step, payload)
    }

    /// As [`Channel::send`], without a copy when the payload is large.
    pub fn send_owned(&mut self, step: &'static str, payload: Vec<u8>) -> Result<(), NetError> {
        self.ledger.book(self.role.sends(), (payload.len() + HEADER_BYTES) as u64);
        self.hand_over(step, payload)
    }

    /// Sends the payload that `make` makes, which has `len` bytes. A [rehearsal](Channel::rehearsal) counts the bytes
    /// without making them.
    ///
    /// # Errors
    /// Errors of `make`, [`NetError::Length`] for a payload of another length, and errors of [`Channel::send`].
    pub fn send_made<E: From<NetError>>(
        &mut self,
        step: &'static str,
        len: usize,
        make: impl FnOnce() -> Result<Vec<u8>, E>,
    ) -> Result<(), E> {
        if self.rehearses() {
            self.ledger.book(self.role.sends(), (len + HEADER_BYTES) as u64);
            return Ok(());
        }
        let payload = make()?;
        if payload.len() != len {
            return Err(NetError::Length { step, expected: len, got: payload.len() }.into());
        }
        Ok(self.send_owned(step, payload)?)
    }

    /// Sends `payload` as the message of `step` before the protocol has the peer read it, so that it crosses the link
    /// meanwhile. Nothing else may be sent before [`Channel::take_turn`], which books the message at its place in the
    /// protocol.
    pub fn send_ahead(&mut self, step: &'static str, payload: Vec<u8>) -> Result<(), NetError> {
        let bytes = (payload.len() + HEADER_BYTES) as u64;
        self.hand_over(step, payload)?;
        self.flush(step)?;
        self.ahead = Some(bytes);
        Ok(())
    }

    /// Books the message that was sent ahead, because its turn has come.
    pub fn take_turn(&mut self) {
        if let Some(bytes) = self.ahead.take() {
            self.ledger.book(self.role.sends(), bytes);
        }
    }

    /// Runs `work` and meanwhile takes in what the peer sends ahead.
    pub fn read_under<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let (busy, link) = (AtomicBool::new(true), &mut self.link);
        thread::scope(|scope| {
            // A failure of the link comes up again at the next message. If no thread starts, nothing is taken in.
            let read = || {
                while busy.load(Ordering::Acquire) {
                    if link.read_ahead(READ_AHEAD).is_err() {
                        break;
                    }
                }
            };
            let _ = thread::Builder::new().name("waggle-read".into()).spawn_scoped(scope, read);
            let _idle = OnDrop(|| busy.store(false, Ordering::Release));
            work()
        })
    }

    /// Receives the message of `step`, which must have exactly `len` bytes.
    pub fn recv(&mut self, step: &'static str, len: usize) -> Result<Vec<u8>, NetError> {
        let payload = self.unframe(step, len, len)?;
        self.ledger.book(self.role.peer().sends(), (payload.len() + HEADER_BYTES) as u64);
        Ok(payload)
    }

    /// The read time-out: the longest silence of a peer.
    pub fn timeout(&self) -> Duration {
        self.link.timeout()
    }

    /// Receives the message of `step`, which may have any length up to `max`.
    pub fn recv_up_to(&mut self, step: &'static str, max: usize) -> Result<Vec<u8>, NetError> {
        let payload = self.unframe(step, 0, max)?;
        self.ledger.book(self.role.peer().sends(), (payload.len() + HEADER_BYTES) as u64);
        Ok(payload)
    }

    /// Sends `payload` and receives `len` bytes, while the peer does the same. Both ledgers book the two messages in
    /// the same order ([`Ledger::book_exchange`]). A send and a receive instead would make each ledger count flows in
    /// its own order.
    pub fn exchange(&mut self, step: &'static str, payload: &[u8], len: usize) -> Result<Vec<u8>, NetError> {
        self.frame(step, payload)?;
        let received = self.unframe(step, len, len)?;
        self.book_exchange(payload.len(), received.len());
        Ok(received)
    }

    /// [`Channel::exchange`] for the first message of a session, of any length up to `max`. The peer may be any
    /// program: a foreign tag is [`NetError::NotWaggle`].
    pub(crate) fn exchange_first(
        &mut self,
        step: &'static str,
        payload: &[u8],
        max: usize,
    ) -> Result<Vec<u8>, NetError> {
        self.frame(step, payload)?;
        let header = self.read_header(step)?;
        if header.tag() != tag(step) {
            self.reject(step);
            return Err(NetError::NotWaggle { first: header.0.escape_ascii().to_string() });
        }
        let received = self.read_payload(step, header, 0, max)?;
        self.book_exchange(payload.len(), received.len());
        Ok(received)
    }

    /// Hands everything written so far to the link.
    pub fn flush(&mut self, step: &'static str) -> Result<(), NetError> {
        if self.out.is_empty() {
            return Ok(());
        }
        let out = std::mem::take(&mut self.out);
        self.link.send(out).map_err(|e| self.send_error(step, e))
    }

    /// 32 bytes that stand for the keys of an encrypted link and for everything that both parties sent so far. Both
    /// ends get the same bytes if each has received all that the other sent. No two links get the same bytes.
    pub fn binding(&self) -> [u8; 32] {
        let (to_server, to_client) = match self.role {
            Role::Client => (&self.sent, &self.received),
            Role::Server => (&self.received, &self.sent),
        };
        let mut hash = blake3::Hasher::new_derive_key("waggle 2026 binding of a session");
        match self.link.exporter() {
            Some(exporter) => hash.update(b"encrypted").update(&exporter),
            None => hash.update(b"plaintext"),
        };
        hash.update(to_server.finalize().as_bytes()).update(to_client.finalize().as_bytes());
        *hash.finalize().as_bytes()
    }

    /// A hash of all frames that this party sent so far. It equals the peer's [`Channel::received_digest`] once the
    /// peer has received the last of them.
    pub fn sent_digest(&self) -> [u8; 32] {
        *self.sent.finalize().as_bytes()
    }

    /// A hash of all frames that this party received so far.
    pub fn received_digest(&self) -> [u8; 32] {
        *self.received.finalize().as_bytes()
    }

    /// Compares with the peer the transcripts of the session so far, by one message of 32 bytes each way, booked
    /// under `transcript` in the phase setup. Both parties must have received all that was sent before.
    ///
    /// The comparison finds accidental changes, and changes by somebody who does not know of the comparison. A forger
    /// on a plaintext link can send fitting digests. On an encrypted link TLS already refuses the change.
    ///
    /// Errors: [`NetError::Transcript`] if they differ, and errors of [`Channel::exchange`].
    pub fn confirm_transcript(&mut self) -> Result<(), NetError> {
        let ours = self.binding();
        let depth = self.ledger.depth();
        let phase = self.ledger.set_phase(Phase::Setup);
        self.ledger.enter(TRANSCRIPT);
        let theirs = self.exchange(TRANSCRIPT, &ours, TRANSCRIPT_BYTES);
        self.ledger.leave_to(depth);
        self.ledger.set_phase(phase);
        // No alert: the peer holds our digest and finds the difference itself.
        if theirs? == ours || self.rehearses() { Ok(()) } else { Err(NetError::Transcript) }
    }

    /// Whether the link is encrypted.
    pub fn encrypted(&self) -> bool {
        self.link.exporter().is_some()
    }

    /// The bytes that crossed the wire below this channel so far; `None` where there is no wire.
    pub fn wire_bytes(&self) -> Option<WireBytes> {
        self.link.wire_bytes()
    }

    /// Tells the peer, once, that its message for `step` was bad, so that the peer reports [`NetError::PeerRejected`]
    /// and not a closed connection. The alert is not booked and not part of the transcript. The channel sends it
    /// itself for the errors that it finds; whoever decodes payloads calls this with [`NetError::bad_step`]. Failures
    /// are ignored: the session is over.
    pub fn reject(&mut self, step: &str) {
        if std::mem::replace(&mut self.alerted, true) {
            return;
        }
        let end = step.floor_char_boundary(MAX_ALERT_BYTES);
        let mut alert = (end as u32).to_le_bytes().to_vec();
        alert.extend(tag(ALERT).to_le_bytes());
        alert.extend(&step.as_bytes()[..end]);
        // Bytes that wait in `out` go first: an alert in the middle of a frame could not be read.
        let mut out = std::mem::take(&mut self.out);
        out.extend(alert);
        let _ = self.link.send(out);
    }

    /// Delivers what was sent and ends the session. Waits for a bounded time (see [`Link::close`]). Dropping the
    /// channel does the same, but cannot report errors.
    pub fn close(mut self, step: &'static str) -> Result<(), NetError> {
        self.flush(step)?;
        self.link.close().map_err(|e| self.error(step, e))
    }

    fn book_exchange(&mut self, sent: usize, received: usize) {
        let bytes = match self.role {
            Role::Client => [sent, received],
            Role::Server => [received, sent],
        };
        self.ledger.book_exchange(bytes.map(|payload| (payload + HEADER_BYTES) as u64));
    }

    fn header(&mut self, step: &'static str, len: usize) -> Result<(), NetError> {
        let announced =
            u32::try_from(len).map_err(|_| NetError::Length { step, expected: u32::MAX as usize, got: len })?;
        assert!(self.ahead.is_none(), "`{step}` comes after a message that was sent ahead of its turn");
        let start = self.out.len();
        self.out.extend_from_slice(&announced.to_le_bytes());
        self.out.extend_from_slice(&tag(step).to_le_bytes());
        self.sent.update(&self.out[start..]);
        Ok(())
    }

    /// Frames `payload`, without a copy when it is large.
    fn hand_over(&mut self, step: &'static str, payload: Vec<u8>) -> Result<(), NetError> {
        if payload.len() < COALESCE_BYTES {
            return self.frame(step, &payload);
        }
        self.header(step, payload.len())?;
        self.flush(step)?;
        self.sent.update(&payload);
        self.link.send(payload).map_err(|e| self.send_error(step, e))
    }

    fn frame(&mut self, step: &'static str, payload: &[u8]) -> Result<(), NetError> {
        self.header(step, payload.len())?;
        self.sent.update(payload);
        self.out.extend_from_slice(payload);
        if self.out.len() >= COALESCE_BYTES { self.flush(step) } else { Ok(()) }
    }

    fn unframe(&mut self, step: &'static str, min: usize, max: usize) -> Result<Vec<u8>, NetError> {
        if let Some(replies) = &mut self.replies {
            let next = replies.iter().position(|(of, _)| *of == step);
            return Ok(next.map_or_else(|| vec![0; min], |next| replies.remove(next).1));
        }
        let header = self.read_header(step)?;
        if header.tag() != tag(step) {
            self.reject(step);
            return Err(NetError::Unexpected { step, expected: tag(step), got: header.tag() });
        }
        self.read_payload(step, header, min, max)
    }

    fn read_header(&mut self, step: &'static str) -> Result<Header, NetError> {
        self.flush(step)?;
        let mut header = Header([0; HEADER_BYTES]);
        self.link.recv(&mut header.0).map_err(|e| self.error(step, e))?;
        if header.tag() == tag(ALERT) && header.len() <= MAX_ALERT_BYTES {
            return Err(self.read_alert(step, header));
        }
        self.received.update(&header.0);
        Ok(header)
    }

    /// The error that the peer's alert behind `header` stands for.
    fn read_alert(&mut self, step: &'static str, header: Header) -> NetError {
        let mut name = vec![0; header.len()];
        if let Err(e) = self.link.recv(&mut name) {
            return self.error(step, e);
        }
        // The text ends up on a terminal and in logs.
        let theirs = String::from_utf8_lossy(&name).chars().filter(|c| !c.is_control()).collect();
        NetError::PeerRejected { step, theirs }
    }

    /// The reason why sending failed: the peer's alert, if it sent one before it closed, otherwise `source`.
    fn send_error(&mut self, step: &'static str, source: io::Error) -> NetError {
        let error = self.error(step, source);
        if !matches!(error, NetError::Closed { .. }) {
            return error;
        }
        // The connection is gone, so this loop reads only what has arrived. Frames before the alert are skipped.
        let mut left = MAX_UNREAD_BYTES;
        let mut header = Header([0; HEADER_BYTES]);
        while self.link.recv(&mut header.0).is_ok() {
            if header.tag() == tag(ALERT) && header.len() <= MAX_ALERT_BYTES {
                return self.read_alert(step, header);
            }
            let Some(rest) = left.checked_sub(header.len()) else { break };
            left = rest;
            let mut skipped = vec![0; header.len()];
            if self.link.recv(&mut skipped).is_err() {
                break;
            }
        }
        error
    }

    /// The payload behind `header`, allocated once its length is known to be within `min..=max`.
    fn read_payload(
        &mut self,
        step: &'static str,
        header: Header,
        min: usize,
        max: usize,
    ) -> Result<Vec<u8>, NetError> {
        let len = header.len();
        if len < min || len > max {
            self.reject(step);
            return Err(NetError::Length { step, expected: max, got: len });
        }
        let mut payload = vec![0; len];
        for part in payload.chunks_mut(PROGRESS_BYTES) {
            self.link.recv(part).map_err(|e| self.error(step, e))?;
            // At this point the part is still in the processor's cache.
            self.received.update(part);
        }
        Ok(payload)
    }

    fn error(&self, step: &'static str, source: io::Error) -> NetError {
        NetError::from_io(step, source, self.link.timeout())
    }
}

/// Runs a function at the end of a scope, even if the scope panics.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // The last message of a session must not be lost; the link flushes itself when it is dropped.
        let _ = self.flush("close");
    }
}

/// The eight bytes before a payload.
struct Header([u8; HEADER_BYTES]);

impl Header {
    fn len(&self) -> usize {
        let [l0, l1, l2, l3, ..] = self.0;
        u32::from_le_bytes([l0, l1, l2, l3]) as usize
    }

    fn tag(&self) -> u32 {
        let [.., t0, t1, t2, t3] = self.0;
        u32::from_le_bytes([t0, t1, t2, t3])
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
