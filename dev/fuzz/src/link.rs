//! Links in memory: one that plays back a recording, and pairs on which messages are spoiled.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use waggle_net::{HEADER_BYTES, Link, Role};

/// The time-out that the links report; nobody waits for it.
pub const TIMEOUT: Duration = Duration::from_secs(1);

/// A link to a peer that sends fixed bytes and closes. It keeps what the peer is sent.
#[derive(Debug)]
pub struct Recorded {
    bytes: Vec<u8>,
    read: usize,
    kept: Kept,
}

/// The bytes that a [`Recorded`] peer was sent.
#[derive(Clone, Debug, Default)]
pub struct Kept(Arc<Mutex<Vec<u8>>>);

impl Kept {
    /// All bytes so far.
    pub fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Recorded {
    /// A peer that sends `bytes`.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Recorded { bytes: bytes.into(), read: 0, kept: Kept::default() }
    }

    /// A handle on the bytes that the peer will be sent.
    pub fn kept(&self) -> Kept {
        self.kept.clone()
    }
}

impl Link for Recorded {
    fn send(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        self.kept.0.lock().unwrap_or_else(PoisonError::into_inner).extend(bytes);
        Ok(())
    }

    fn recv(&mut self, buf: &mut [u8]) -> io::Result<()> {
        let part = self.bytes.get(self.read..self.read + buf.len()).ok_or(ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(part);
        self.read += buf.len();
        Ok(())
    }

    fn timeout(&self) -> Duration {
        TIMEOUT
    }
}

/// A frame as a channel writes it: length and tag of `step`, then `payload`.
pub fn frame(step: &str, payload: &[u8]) -> Vec<u8> {
    let tag = step.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    [&(payload.len() as u32).to_le_bytes()[..], &tag.to_le_bytes(), payload].concat()
}

/// The frames of `bytes`, which an honest party sent in one direction. Bytes at the end that do not fill a frame are
/// left out.
pub fn frames(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    while let Some(len) = whole(bytes) {
        let (head, rest) = bytes.split_at(len);
        out.push(head.to_vec());
        bytes = rest;
    }
    out
}

/// Length of the frame that `bytes` begin with, if all of it is there.
fn whole(bytes: &[u8]) -> Option<usize> {
    let len = HEADER_BYTES + u32::from_le_bytes(*bytes.first_chunk()?) as usize;
    (bytes.len() >= len).then_some(len)
}

/// The fate of a message on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// A bit of its payload is inverted: the one at this number modulo the number of bits. In a message without
    /// payload a bit of the header is inverted.
    Flip(u64),
    /// A bit of its header is inverted: the one at this number modulo the number of bits.
    FlipHeader(u64),
    /// The message does not arrive.
    Drop,
    /// The message arrives twice.
    Duplicate,
    /// The message arrives after the next one.
    Swap,
    /// An earlier message arrives in its place: the one this many messages before, modulo the number of earlier
    /// messages. If there is none, the message arrives twice.
    Replay(usize),
    /// The last byte of the message is missing. Without payload this is a byte of the header.
    Truncate,
    /// The payload of the message is one byte shorter, and its header says so. A message without payload is dropped.
    Shorten,
}

impl Mutation {
    /// One mutation of each kind, varied by `seed`.
    pub fn all(seed: u64) -> [Mutation; 8] {
        [
            Mutation::Flip(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 8),
            Mutation::FlipHeader(seed),
            Mutation::Drop,
            Mutation::Duplicate,
            Mutation::Swap,
            Mutation::Replay(1 + seed as usize % 3),
            Mutation::Truncate,
            Mutation::Shorten,
        ]
    }
}

/// A mutation of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spoil {
    /// The party that sends the message.
    pub from: Role,
    /// The number of the message among those of its party, from 0.
    pub message: usize,
    /// The fate of that message.
    pub mutation: Mutation,
}

/// The state of both directions of a pair.
struct State {
    /// Bytes on their way to the client and to the server, in this order.
    queues: [VecDeque<u8>; 2],
    /// The numbers of bytes that the client and the server wait for, in this order.
    wants: [Option<usize>; 2],
    closed: [bool; 2],
    /// Whether both parties waited at once: then nothing will ever come.
    stalled: bool,
    /// The bytes that each party sent, before any mutation.
    sent: [Vec<u8>; 2],
    spoil: Option<Spoil>,
    spoiled: bool,
    /// Whether a message came in the place of one with the same bytes.
    unchanged: bool,
    /// Bytes that each party sent and that are no whole frame yet.
    partial: [Vec<u8>; 2],
    messages: [usize; 2],
    /// The messages before the spoiled one, sent by the same party, for replays.
    earlier: Vec<Vec<u8>>,
    /// The message of a [`Mutation::Swap`], until the next message has arrived.
    held: Option<Vec<u8>>,
}

/// One party's end of a pair.
pub struct End {
    role: Role,
    shared: Arc<(Mutex<State>, Condvar)>,
}

/// A view of a pair from outside.
#[derive(Clone)]
pub struct Watch(Arc<(Mutex<State>, Condvar)>);

/// The ends of client and server, and a view of both. If both parties wait at once, the pair is stalled for good, and
/// both get `TimedOut` without delay. Each party must therefore use its end from one thread at a time, as channels
/// do.
pub fn pair(spoil: Option<Spoil>) -> (End, End, Watch) {
    let state = State {
        queues: Default::default(),
        wants: [None; 2],
        closed: [false; 2],
        stalled: false,
        sent: Default::default(),
        spoil,
        spoiled: false,
        unchanged: false,
        partial: Default::default(),
        messages: [0; 2],
        earlier: Vec::new(),
        held: None,
    };
    let shared = Arc::new((Mutex::new(state), Condvar::new()));
    let end = |role| End { role, shared: shared.clone() };
    (end(Role::Client), end(Role::Server), Watch(shared.clone()))
}

impl Watch {
    /// The bytes that `role` sent, before any mutation.
    pub fn sent(&self, role: Role) -> Vec<u8> {
        lock(&self.0.0).sent[role as usize].clone()
    }

    /// Messages that `role` sent.
    pub fn messages(&self, role: Role) -> usize {
        lock(&self.0.0).messages[role as usize]
    }

    /// Whether the message to be spoiled was sent.
    pub fn spoiled(&self) -> bool {
        lock(&self.0.0).spoiled
    }

    /// Whether the mutation changed nothing, because the message that came instead has the same bytes. Short messages
    /// sometimes do.
    pub fn unchanged(&self) -> bool {
        lock(&self.0.0).unchanged
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // A test that panicked while it held the lock has failed anyway.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// Delivers a whole message of `from`, or what the mutation makes of it.
    fn message(&mut self, from: Role, mut frame: Vec<u8>) {
        let index = self.messages[from as usize];
        self.messages[from as usize] += 1;
        let Some(spoil) = self.spoil.filter(|spoil| spoil.from == from) else { return self.deliver(from, &frame) };
        if index != spoil.message {
            if index < spoil.message {
                self.earlier.push(frame.clone());
            }
            self.deliver(from, &frame);
            if let Some(held) = self.held.take() {
                self.unchanged = held == frame;
                self.deliver(from, &held);
            }
            return;
        }
        self.spoiled = true;
        let payload = frame.len() - HEADER_BYTES;
        match spoil.mutation {
            Mutation::Flip(bit) => {
                let (first, len) = if payload > 0 { (HEADER_BYTES, payload) } else { (0, HEADER_BYTES) };
                let bit = bit % (8 * len as u64);
                frame[first + (bit / 8) as usize] ^= 1 << (bit % 8);
            }
            Mutation::FlipHeader(bit) => {
                let bit = bit as usize % (8 * HEADER_BYTES);
                frame[bit / 8] ^= 1 << (bit % 8);
            }
            Mutation::Drop => return,
            Mutation::Duplicate => self.deliver(from, &frame.clone()),
            Mutation::Swap => {
                self.held = Some(frame);
                return;
            }
            Mutation::Replay(back) => match self.earlier.len() {
                0 => self.deliver(from, &frame.clone()),
                n => {
                    let earlier = &self.earlier[n - 1 - (back - 1) % n];
                    self.unchanged = *earlier == frame;
                    frame.clone_from(earlier);
                }
            },
            Mutation::Truncate => {
                frame.pop();
            }
            Mutation::Shorten => {
                if payload == 0 {
                    return;
                }
                frame.pop();
                frame[..4].copy_from_slice(&(payload as u32 - 1).to_le_bytes());
            }
        }
        self.deliver(from, &frame);
    }

    fn deliver(&mut self, from: Role, bytes: &[u8]) {
        self.queues[from.peer() as usize].extend(bytes);
    }

    /// Whether `role` waits for bytes that are not there.
    fn starved(&self, role: Role) -> bool {
        self.wants[role as usize].is_some_and(|n| self.queues[role as usize].len() < n)
    }
}

impl Link for End {
    fn send(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        let (mutex, wake) = &*self.shared;
        let mut state = lock(mutex);
        if state.closed[self.role.peer() as usize] {
            return Err(ErrorKind::BrokenPipe.into());
        }
        state.sent[self.role as usize].extend_from_slice(&bytes);
        let mut partial = std::mem::take(&mut state.partial[self.role as usize]);
        partial.extend(bytes);
        let mut start = 0;
        while let Some(len) = whole(&partial[start..]) {
            state.message(self.role, partial[start..start + len].to_vec());
            start += len;
        }
        partial.drain(..start);
        state.partial[self.role as usize] = partial;
        wake.notify_all();
        Ok(())
    }

    fn recv(&mut self, buf: &mut [u8]) -> io::Result<()> {
        let (mutex, wake) = &*self.shared;
        let mut state = lock(mutex);
        let me = self.role as usize;
        state.wants[me] = Some(buf.len());
        let outcome = loop {
            if state.queues[me].len() >= buf.len() {
                break Ok(());
            }
            if state.closed[self.role.peer() as usize] {
                break Err(ErrorKind::UnexpectedEof.into());
            }
            state.stalled |= state.starved(self.role.peer());
            if state.stalled {
                wake.notify_all();
                break Err(ErrorKind::TimedOut.into());
            }
            state = wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        state.wants[me] = None;
        if outcome.is_ok() {
            let len = buf.len();
            buf.iter_mut().zip(state.queues[me].drain(..len)).for_each(|(to, from)| *to = from);
        }
        outcome
    }

    fn timeout(&self) -> Duration {
        TIMEOUT
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let (mutex, wake) = &*self.shared;
        let mut state = lock(mutex);
        state.closed[self.role as usize] = true;
        // A message that waited for its successor still arrives: nothing follows it.
        if state.spoil.is_some_and(|spoil| spoil.from == self.role)
            && let Some(held) = state.held.take()
        {
            state.deliver(self.role, &held);
        }
        wake.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use waggle_net::Channel;

    /// The pair after three messages of the client, of which the second is spoiled.
    fn sent(mutation: Mutation, second: &str) -> (End, Watch) {
        let (client, server, watch) = pair(Some(Spoil { from: Role::Client, message: 1, mutation }));
        let mut client = Channel::new(Role::Client, client);
        for payload in ["one", second, "six"] {
            client.send("step", payload.as_bytes()).unwrap();
        }
        (server, watch)
    }

    fn unchanged(mutation: Mutation, second: &str) -> bool {
        sent(mutation, second).1.unchanged()
    }

    /// The messages of [`sent`] as the server receives them.
    fn received(mutation: Mutation) -> Vec<Result<Vec<u8>, String>> {
        let (server, watch) = sent(mutation, "two");
        assert!(watch.spoiled() && watch.messages(Role::Client) == 3 && watch.messages(Role::Server) == 0);
        assert_eq!(frames(&watch.sent(Role::Client))[2], frame("step", b"six"));
        let mut server = Channel::new(Role::Server, server);
        (0..4).map(|_| server.recv("step", 3).map_err(|e| e.to_string())).take_while(Result::is_ok).collect()
    }

    #[test]
    fn messages_are_spoiled_as_said() {
        let texts = |mutation| -> Vec<String> {
            received(mutation).into_iter().map(|r| String::from_utf8_lossy(&r.unwrap()).into_owned()).collect()
        };
        assert_eq!(texts(Mutation::Flip(24)), ["one", "uwo", "six"]);
        assert_eq!(texts(Mutation::Drop), ["one", "six"]);
        assert_eq!(texts(Mutation::Duplicate), ["one", "two", "two", "six"]);
        assert_eq!(texts(Mutation::Swap), ["one", "six", "two"]);
        assert_eq!(texts(Mutation::Replay(1)), ["one", "one", "six"]);
        assert!(!unchanged(Mutation::Replay(1), "two") && unchanged(Mutation::Replay(1), "one"));
        assert!(!unchanged(Mutation::Swap, "two") && unchanged(Mutation::Swap, "six"));
        for mutation in [Mutation::Truncate, Mutation::Shorten, Mutation::FlipHeader(0), Mutation::FlipHeader(40)] {
            let got = texts(mutation);
            assert!(got[0] == "one" && got.get(1).is_none_or(|text| text != "two"), "{mutation:?}: {got:?}");
        }
    }

    #[test]
    fn a_pair_on_which_both_wait_times_out_at_once() {
        let (mut client, mut server, _) = pair(None);
        let waiting = std::thread::spawn(move || (client.recv(&mut [0; 4]).unwrap_err().kind(), client));
        server.send(vec![1]).unwrap();
        assert_eq!(server.recv(&mut [0; 1]).unwrap_err().kind(), ErrorKind::TimedOut);
        assert_eq!(waiting.join().unwrap().0, ErrorKind::TimedOut);
        let mut late = Recorded::new(*b"ab");
        late.recv(&mut [0; 2]).unwrap();
        assert_eq!(late.recv(&mut [0; 1]).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(server.recv(&mut [0; 1]).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }
}
