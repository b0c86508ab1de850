//! The common parts of links over TCP, encrypted or not: a bounded queue with a thread that writes it, and reading
//! with time-outs.
//!
//! # What a slow peer may hold
//!
//! A thread per link encrypts and writes what `send` queued, so encryption overlaps with computation and `send`
//! returns at once. The queue holds at most [`QUEUE_BYTES`]; a single larger message may enter an empty queue. If
//! there is no room, `send` waits, and gives up when the peer takes less than [`PROGRESS_BYTES`] within the read
//! time-out. A peer that never reads thus costs at most the limit, and the link ends in `TimedOut`.
//!
//! # Why two parties that send at once do not wait for each other forever
//!
//! Both parties send before they read only in [`Channel::exchange`](crate::Channel::exchange), one message each. A
//! party begins the next exchange after it has received the other's message of the exchange before. The other party
//! has sent that message, so it now reads this party's message. This party's queue therefore runs empty, and an empty
//! queue takes a message of any size: every exchange makes progress. The largest messages are 50 MB for GPT-2 small
//! with a prompt of 512 tokens (correlations of keys and values), 6 MB with 128.
//!
//! A message that is sent ahead of its turn ([`Channel::send_ahead`](crate::Channel::send_ahead)) waits in the queue
//! while its sender reads, so the peer's answer gets through, and the message is what the peer reads next.
//!
//! There is a second safeguard. While `send` waits, it reads into an inbox of at most [`QUEUE_BYTES`], which `recv`
//! empties first. Suppose both parties wait in `send`. Then neither inbox grows any more, so both inboxes and both
//! queues are full: each party has sent 128 MiB that the other has not asked for. If a protocol ever does that, both
//! sides end in `TimedOut`.
//!
//! A sending half ([`Link::take_sender`](crate::Link::take_sender)) cannot read; its owner bounds what it hands over
//! and lets the link read ahead meanwhile, as [`Shaped`](crate::Shaped) does.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustls::Connection;

use crate::Link;
use crate::link::{SendHalf, WireBytes};

/// Most bytes that wait to be written to a peer, and most that are read ahead.
pub(crate) const QUEUE_BYTES: usize = 64 << 20;

/// A peer that takes fewer bytes than this within the read time-out counts as silent, as for
/// [`Channel`](crate::Channel).
const PROGRESS_BYTES: u64 = 256 << 10;

/// A buffer is encrypted and written in pieces of this size, so that progress can be seen.
const PIECE_BYTES: usize = 128 << 10;

/// Reads smaller than this go through a buffer of this size, so that a header costs no system call of its own.
const READ_BUFFER_BYTES: usize = 64 << 10;

/// A dropped link discards at most this many read buffers of unread input, because closing a socket with unread input
/// resets the connection.
const DISCARDED_BUFFERS: usize = 1024;

/// Longest time that a sending half sleeps while it waits for room; the writer wakes it earlier.
const MAX_WAIT: Duration = Duration::from_millis(100);

/// The time for which a `send` that waits for room reads before it looks for room again.
const WAIT: Duration = Duration::from_millis(2);

/// A connected socket, its TLS, and the bytes that wait to be written.
struct Wire {
    socket: TcpStream,
    /// The state of TLS. Locked for encryption and decryption alone, never while the socket may block.
    tls: Option<Mutex<Connection>>,
    outbox: Mutex<Outbox>,
    /// Tells the writer that there is something to do.
    work: Condvar,
    /// Tells the threads counted in `Outbox::waiting` that the writer has done something.
    progress: Condvar,
    sent: AtomicU64,
    received: AtomicU64,
}

#[derive(Default)]
struct Outbox {
    queue: VecDeque<Vec<u8>>,
    /// Bytes in `queue` and in the buffer that is being written.
    held: usize,
    /// Bytes written since the start.
    written: u64,
    /// Whether TLS has something to send: an alert or new keys.
    flush: bool,
    closing: bool,
    /// Number of threads that wait for progress. It spares a signal without waiters, which would cost a system call.
    waiting: usize,
    /// Whether the writer has ended.
    ended: bool,
    /// Why the writer gave up, if it did.
    failure: Option<(ErrorKind, String)>,
}

impl Outbox {
    fn failure(&self) -> Option<io::Error> {
        self.failure.as_ref().map(|(kind, text)| io::Error::new(*kind, text.clone()))
    }
}

/// No code panics while it holds a lock of this file, so a poisoned lock has no meaning.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Wire {
    /// Writes to the socket; may block. Bytes are counted before they are written, so that they are counted by the
    /// time the peer's answer to them arrives.
    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        self.sent.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        (&self.socket).write_all(bytes)
    }

    /// Writes `piece` encrypted, and whatever else TLS has to send, with `records` as a buffer.
    fn encrypt(&self, tls: &Mutex<Connection>, piece: &[u8], records: &mut Vec<u8>) -> io::Result<()> {
        records.clear();
        let mut tls = lock(tls);
        tls.writer().write_all(piece)?;
        while tls.wants_write() {
            tls.write_tls(records)?;
        }
        drop(tls);
        self.write(records)
    }

    /// Writes `bytes`, a buffer of the outbox, in pieces.
    fn deliver(&self, bytes: Vec<u8>, records: &mut Vec<u8>) -> io::Result<()> {
        let len = bytes.len();
        let mut noted = 0;
        for piece in bytes.chunks(PIECE_BYTES) {
            match &self.tls {
                None => self.write(piece)?,
                Some(tls) => self.encrypt(tls, piece, records)?,
            }
            // The last piece is noted below, so a small message costs one lock.
            if noted + piece.len() < len {
                noted += piece.len();
                self.update(|outbox| outbox.written += piece.len() as u64);
            }
        }
        drop(bytes);
        self.update(|outbox| {
            outbox.written += (len - noted) as u64;
            outbox.held -= len;
        });
        Ok(())
    }

    /// Changes the outbox on behalf of the writer.
    fn update(&self, change: impl FnOnce(&mut Outbox)) {
        let mut outbox = lock(&self.outbox);
        change(&mut outbox);
        let waiting = outbox.waiting > 0;
        drop(outbox);
        if waiting {
            self.progress.notify_all();
        }
    }

    /// Ends the sending side in good order.
    fn farewell(&self, records: &mut Vec<u8>) -> io::Result<()> {
        if let Some(tls) = &self.tls {
            lock(tls).send_close_notify();
            self.encrypt(tls, &[], records)?;
        }
        Ok(())
    }

    /// The writer: ends when the outbox is closed and empty, or when writing fails.
    fn write_all(&self) -> io::Result<()> {
        let mut records = Vec::new();
        loop {
            let mut outbox = lock(&self.outbox);
            while outbox.queue.is_empty() && !outbox.flush && !outbox.closing {
                outbox = self.work.wait(outbox).unwrap_or_else(PoisonError::into_inner);
            }
            outbox.flush = false;
            let next = outbox.queue.pop_front();
            let closing = outbox.closing;
            drop(outbox);
            match next {
                Some(bytes) => self.deliver(bytes, &mut records)?,
                None if closing => return self.farewell(&mut records),
                None => {
                    if let Some(tls) = &self.tls {
                        self.encrypt(tls, &[], &mut records)?;
                    }
                }
            }
        }
    }

    /// Takes `bytes` into the outbox, or gives them back if there is no room. Errors: the failure of the writer.
    fn offer(&self, bytes: Vec<u8>) -> io::Result<Option<Vec<u8>>> {
        let mut outbox = lock(&self.outbox);
        if outbox.ended || outbox.closing {
            return Err(outbox.failure().unwrap_or_else(|| ErrorKind::BrokenPipe.into()));
        }
        if outbox.held > 0 && outbox.held.saturating_add(bytes.len()) > QUEUE_BYTES {
            return Ok(Some(bytes));
        }
        outbox.held += bytes.len();
        outbox.queue.push_back(bytes);
        drop(outbox);
        self.work.notify_one();
        Ok(None)
    }

    /// Waits for progress of the writer, at most for `limit`.
    fn wait<'a>(&self, mut outbox: MutexGuard<'a, Outbox>, limit: Duration) -> MutexGuard<'a, Outbox> {
        outbox.waiting += 1;
        let waited = self.progress.wait_timeout(outbox, limit);
        let mut outbox = waited.unwrap_or_else(PoisonError::into_inner).0;
        outbox.waiting -= 1;
        outbox
    }

    /// Reads at least one byte from the socket until `deadline`. Errors: as [`crate::Link::recv`], or the failure of
    /// the writer.
    fn read_socket(&self, buf: &mut [u8], deadline: Instant) -> io::Result<usize> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            self.socket.set_read_timeout(Some(left))?;
            return match (&self.socket).read(buf) {
                Ok(0) => Err(lock(&self.outbox).failure().unwrap_or_else(|| ErrorKind::UnexpectedEof.into())),
                Ok(n) => {
                    self.received.fetch_add(n as u64, Ordering::Relaxed);
                    Ok(n)
                }
                Err(e) => match e.kind() {
                    // A system may wake its caller before the time is up.
                    ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut => continue,
                    _ => Err(e),
                },
            };
        }
    }
}

/// The receiving side.
struct Reader {
    wire: Arc<Wire>,
    /// Bytes off the wire that TLS has not seen yet: `records[next..end]`. Empty without TLS.
    records: Box<[u8]>,
    next: usize,
    end: usize,
}

impl Reader {
    /// Reads at least one byte of the peer's until `deadline`.
    fn read(&mut self, buf: &mut [u8], deadline: Instant) -> io::Result<usize> {
        let wire = self.wire.clone();
        let Some(tls) = &wire.tls else { return wire.read_socket(buf, deadline) };
        loop {
            let read = self.decrypt(tls, buf)?;
            if read > 0 {
                return Ok(read);
            }
            self.end = wire.read_socket(&mut self.records, deadline)?;
            self.next = 0;
        }
    }

    /// Decrypts what has come off the wire into `buf`, as far as `buf` reaches. Returns 0 if more must come first.
    fn decrypt(&mut self, tls: &Mutex<Connection>, buf: &mut [u8]) -> io::Result<usize> {
        let mut tls = lock(tls);
        let mut filled = 0;
        loop {
            match tls.reader().read(&mut buf[filled..]) {
                // The peer has said that nothing follows.
                Ok(0) if filled == 0 => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(0) => return Ok(filled),
                Ok(n) => filled += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
            if filled == buf.len() || self.next == self.end {
                return Ok(filled);
            }
            let mut rest = &self.records[self.next..self.end];
            let before = rest.len();
            tls.read_tls(&mut rest)?;
            self.next += before - rest.len();
            let state = tls.process_new_packets();
            if tls.wants_write() {
                lock(&self.wire.outbox).flush = true;
                self.wire.work.notify_one();
            }
            state.map_err(bad_record)?;
        }
    }
}

/// The meaning of an error of TLS after the handshake.
fn bad_record(error: rustls::Error) -> io::Error {
    match error {
        // The peer found that bytes of this party were changed on their way.
        rustls::Error::AlertReceived(alert) => {
            io::Error::new(ErrorKind::InvalidData, format!("the peer says so (alert {alert:?})"))
        }
        error => io::Error::new(ErrorKind::InvalidData, error.to_string()),
    }
}

/// A [`Link`] over a TCP connection (`TCP_NODELAY`), neither encrypted nor authenticated.
///
/// A failed write closes the connection. It surfaces at the next `send` or `recv`, after what the peer sent before.
/// Dropping the link waits until the operating system has taken everything that was queued, for at most the read
/// time-out without progress. At most 64 MiB wait for a peer that does not read; beyond that `send` waits.
pub struct TcpLink {
    reader: Reader,
    /// `None` once taken.
    sender: Option<Sender>,
    buffer: Box<[u8]>,
    /// The unread part of `buffer` is `read..end`.
    read: usize,
    end: usize,
    /// Bytes read ahead, which follow the unread part of `buffer`.
    inbox: VecDeque<u8>,
    timeout: Duration,
}

impl TcpLink {
    /// A link over a connected, blocking stream, without encryption.
    pub fn new(stream: TcpStream, read_timeout: Duration) -> io::Result<Self> {
        TcpLink::over(stream, None, WireBytes::default(), read_timeout)
    }

    /// A link over a connected, blocking socket, encrypted by a connection whose handshake is over. `before` has the
    /// bytes of the handshake.
    pub(crate) fn over(
        socket: TcpStream,
        tls: Option<Connection>,
        before: WireBytes,
        timeout: Duration,
    ) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        let records = vec![0; if tls.is_some() { PIECE_BYTES } else { 0 }].into_boxed_slice();
        let wire = Arc::new(Wire {
            socket,
            tls: tls.map(Mutex::new),
            outbox: Mutex::default(),
            work: Condvar::new(),
            progress: Condvar::new(),
            sent: before.sent.into(),
            received: before.received.into(),
        });
        let sender = Sender::spawn(wire.clone(), timeout)?;
        Ok(TcpLink {
            reader: Reader { wire, records, next: 0, end: 0 },
            sender: Some(sender),
            buffer: vec![0; READ_BUFFER_BYTES].into_boxed_slice(),
            read: 0,
            end: 0,
            inbox: VecDeque::new(),
            timeout,
        })
    }
}

impl Link for TcpLink {
    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn wire_bytes(&self) -> Option<WireBytes> {
        let Wire { sent, received, .. } = &*self.reader.wire;
        Some(WireBytes { sent: sent.load(Ordering::Relaxed), received: received.load(Ordering::Relaxed) })
    }

    fn send(&mut self, mut bytes: Vec<u8>) -> io::Result<()> {
        let mut patience = None;
        loop {
            let sender = self.sender.as_ref().ok_or(ErrorKind::BrokenPipe)?;
            bytes = match sender.wire.offer(bytes)? {
                None => return Ok(()),
                Some(bytes) => bytes,
            };
            patience.get_or_insert_with(|| Patience::new(self.timeout)).check(&sender.wire)?;
            match self.read_ahead(WAIT) {
                Ok(()) => {}
                // The peer may still read.
                Err(e) if e.kind() == ErrorKind::UnexpectedEof => thread::sleep(WAIT),
                Err(e) => return Err(e),
            }
        }
    }

    fn recv(&mut self, buf: &mut [u8]) -> io::Result<()> {
        let deadline = Instant::now() + self.timeout;
        let mut filled = 0;
        while filled < buf.len() {
            let wanted = &mut buf[filled..];
            if self.read < self.end {
                let n = wanted.len().min(self.end - self.read);
                wanted[..n].copy_from_slice(&self.buffer[self.read..self.read + n]);
                filled += n;
                self.read += n;
            } else if !self.inbox.is_empty() {
                filled += self.inbox.read(wanted)?;
                if self.inbox.is_empty() {
                    // Frees the inbox's memory as well: a peer seldom sends that much ahead.
                    self.inbox = VecDeque::new();
                }
            } else if wanted.len() >= self.buffer.len() {
                filled += self.reader.read(wanted, deadline)?;
            } else {
                self.end = self.reader.read(&mut self.buffer, deadline)?;
                self.read = 0;
            }
        }
        Ok(())
    }

    fn read_ahead(&mut self, limit: Duration) -> io::Result<()> {
        let deadline = Instant::now() + limit;
        // If the buffer has bytes, the inbox is empty: `recv` fills the buffer only then.
        self.inbox.extend(&self.buffer[self.read..self.end]);
        (self.read, self.end) = (0, 0);
        while self.inbox.len() < QUEUE_BYTES {
            match self.reader.read(&mut self.buffer, deadline) {
                Ok(n) => self.inbox.extend(&self.buffer[..n]),
                // Before the deadline the time-out is the writer's, which is an error.
                Err(e) if e.kind() == ErrorKind::TimedOut && Instant::now() >= deadline => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        thread::sleep(deadline.saturating_duration_since(Instant::now()));
        Ok(())
    }

    fn take_sender(&mut self) -> io::Result<Box<dyn SendHalf>> {
        let sender = self.sender.take().ok_or(ErrorKind::BrokenPipe)?;
        Ok(Box::new(sender))
    }

    fn close(&mut self) -> io::Result<()> {
        self.sender.as_mut().map_or(Ok(()), SendHalf::close)
    }
}

impl Drop for TcpLink {
    fn drop(&mut self) {
        self.sender = None;
        // Closing a socket with unread bytes resets the connection. The reset would overtake our last message.
        let mut socket = &self.reader.wire.socket;
        if socket.set_nonblocking(true).is_ok() {
            for _ in 0..DISCARDED_BUFFERS {
                if !matches!(socket.read(&mut self.buffer), Ok(n) if n > 0) {
                    break;
                }
            }
        }
    }
}

/// Limits how long other threads wait for the writer while it makes no progress.
struct Patience {
    since: Instant,
    /// Bytes that were written by the time `since`; `None` at first.
    written: Option<u64>,
    timeout: Duration,
}

impl Patience {
    fn new(timeout: Duration) -> Self {
        Patience { since: Instant::now(), written: None, timeout }
    }

    /// Errors: `TimedOut` if the peer has taken too little for too long; the connection is closed then.
    fn check(&mut self, wire: &Wire) -> io::Result<()> {
        let mut outbox = lock(&wire.outbox);
        if self.lasts(outbox.written, Instant::now()) {
            return Ok(());
        }
        // The writer is stuck in the socket, and the queue is of no use any more.
        outbox.failure.get_or_insert((ErrorKind::TimedOut, "the peer does not read".into()));
        let _ = wire.socket.shutdown(Shutdown::Both);
        Err(ErrorKind::TimedOut.into())
    }

    /// Whether to go on waiting at `now`, when `written` bytes are written.
    fn lasts(&mut self, written: u64, now: Instant) -> bool {
        if self.written.is_none_or(|before| written - before >= PROGRESS_BYTES) {
            (self.since, self.written) = (now, Some(written));
        }
        now.duration_since(self.since) < self.timeout
    }

    /// The time-out, less the time since the last progress.
    fn left(&self) -> Duration {
        self.timeout.saturating_sub(self.since.elapsed())
    }
}

/// The owner of the writer thread.
struct Sender {
    wire: Arc<Wire>,
    /// `None` once closed.
    thread: Option<JoinHandle<()>>,
    /// The time for which closing and sending wait for a peer that does not read.
    timeout: Duration,
}

impl Sender {
    fn spawn(wire: Arc<Wire>, timeout: Duration) -> io::Result<Self> {
        let thread = thread::Builder::new().name("waggle-send".into()).spawn({
            let wire = wire.clone();
            move || {
                let outcome = wire.write_all();
                wire.update(|outbox| {
                    outbox.ended = true;
                    // Frees what will never be sent.
                    outbox.queue = VecDeque::new();
                    if let Err(e) = &outcome {
                        outbox.failure.get_or_insert((e.kind(), e.to_string()));
                    }
                });
                if outcome.is_err() {
                    // Wakes a reader, which would otherwise wait for an answer to a message that was never sent.
                    let _ = wire.socket.shutdown(Shutdown::Both);
                }
            }
        })?;
        Ok(Sender { wire, thread: Some(thread), timeout })
    }
}

impl SendHalf for Sender {
    fn send(&mut self, mut bytes: Vec<u8>) -> io::Result<()> {
        let mut patience = Patience::new(self.timeout);
        loop {
            bytes = match self.wire.offer(bytes)? {
                None => return Ok(()),
                Some(bytes) => bytes,
            };
            patience.check(&self.wire)?;
            drop(self.wire.wait(lock(&self.wire.outbox), patience.left().min(MAX_WAIT)));
        }
    }

    fn close(&mut self) -> io::Result<()> {
        let Some(thread) = self.thread.take() else {
            return Ok(());
        };
        lock(&self.wire.outbox).closing = true;
        self.wire.work.notify_one();
        let mut patience = Patience::new(self.timeout);
        let stalled = loop {
            let stalled = patience.check(&self.wire).is_err();
            let outbox = lock(&self.wire.outbox);
            if outbox.ended || stalled {
                break !outbox.ended;
            }
            drop(self.wire.wait(outbox, patience.left()));
        };
        // A writer that is stuck is released by closing the connection under it. An error means that the connection
        // is closed already.
        let _ = self.wire.socket.shutdown(if stalled { Shutdown::Both } else { Shutdown::Write });
        let _ = thread.join();
        if stalled {
            return Err(ErrorKind::TimedOut.into());
        }
        lock(&self.wire.outbox).failure().map_or(Ok(()), Err)
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        // A drop cannot report errors; `close` can.
        let _ = self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A read of a socket that another thread writes may return before its time is up, because the kernel counts time
    /// in ticks.
    #[test]
    fn a_slow_peer_is_no_silent_one() {
        const ALL: usize = 6 * QUEUE_BYTES;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        let reader = thread::spawn(move || {
            let (mut buf, mut all) = (vec![0; READ_BUFFER_BYTES], 0);
            while all < ALL {
                all += far.read(&mut buf).unwrap();
                thread::yield_now();
            }
        });
        let mut link = TcpLink::new(near, Duration::from_secs(60)).unwrap();
        for _ in 0..ALL / PIECE_BYTES {
            link.send(vec![0; PIECE_BYTES]).unwrap();
        }
        reader.join().unwrap();
    }

    #[test]
    fn a_peer_that_takes_enough_is_waited_for_however_long() {
        let timeout = Duration::from_secs(60);
        let almost = timeout - Duration::from_millis(1);
        let (mut patience, mut now, mut written) = (Patience::new(timeout), Instant::now(), 0);
        assert!(patience.lasts(written, now));
        for _ in 0..10 {
            (now, written) = (now + almost, written + PROGRESS_BYTES);
            assert!(patience.lasts(written, now));
        }
        // One byte less is no progress.
        assert!(patience.lasts(written + PROGRESS_BYTES - 1, now + almost));
        assert!(!patience.lasts(written + PROGRESS_BYTES - 1, now + timeout));
    }
}
