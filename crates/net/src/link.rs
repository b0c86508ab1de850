//! Byte transports under a [`Channel`](crate::Channel).

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// A reliable, ordered, duplex stream of bytes.
///
/// `send` takes ownership of a whole buffer and does not wait for the peer to read, so two parties that send to each
/// other at once never deadlock. `send` waits only if the peer leaves more than the link's bound unread, and then for
/// at most the read time-out without progress (`stream.rs` has the bound and the argument). `recv` blocks for at most
/// the read time-out.
///
/// Dropping a link delivers what was queued, as far as [`Link::close`] would, and then tells the peer that nothing
/// follows.
pub trait Link: Send {
    /// Queues `bytes` for the peer.
    fn send(&mut self, bytes: Vec<u8>) -> io::Result<()>;
    /// Fills `buf` within the read time-out, counted from the call: a peer that trickles bytes does not extend it.
    /// Errors: `UnexpectedEof` when the peer has closed, `TimedOut` after the read time-out.
    fn recv(&mut self, buf: &mut [u8]) -> io::Result<()>;
    /// The read time-out.
    fn timeout(&self) -> Duration;

    /// Takes the sending side out of this link, so that another thread may send while this one receives. Sending on
    /// the link itself then fails with `BrokenPipe`.
    ///
    /// Errors: `Unsupported` unless the link implements it, `BrokenPipe` the second time.
    fn take_sender(&mut self) -> io::Result<Box<dyn SendHalf>> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "this link cannot be split"))
    }

    /// Delivers what was queued and ends the sending side. Waits for a bounded time, and reports errors, which a
    /// plain drop cannot.
    fn close(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Takes in what arrives within `limit`, up to a bound, for later calls of `recv`. Called while something else is
    /// waited for: by [`Shaped`](crate::Shaped) while its queue is full, and by a server while its client waits its
    /// turn.
    ///
    /// Errors: `UnexpectedEof` when the peer has closed and everything received was taken. A link that takes in
    /// nothing ahead only lets the time pass.
    fn read_ahead(&mut self, limit: Duration) -> io::Result<()> {
        std::thread::sleep(limit);
        Ok(())
    }

    /// 32 bytes bound to the keys of an encrypted link, equal at both ends and different for every link (TLS
    /// exporter, RFC 8446, 7.5); `None` where nothing is encrypted.
    fn exporter(&self) -> Option<[u8; 32]> {
        None
    }

    /// The bytes that crossed the wire below this link; `None` where there is no wire.
    fn wire_bytes(&self) -> Option<WireBytes> {
        None
    }
}

/// Bytes that the socket sent and received, including records of TLS, without headers of TCP and IP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireBytes {
    /// Bytes sent by this party.
    pub sent: u64,
    /// Bytes received by this party.
    pub received: u64,
}

/// The sending side of a [`Link`], with the same duties. Dropping it closes it.
pub trait SendHalf: Send {
    /// Queues `bytes` for the peer.
    fn send(&mut self, bytes: Vec<u8>) -> io::Result<()>;
    /// Delivers what was queued and ends the sending side; see [`Link::close`].
    fn close(&mut self) -> io::Result<()>;
}

/// Makes the methods of [`Link`] that a wrapper hands on to the link inside it:
/// `forward_link!(self => self.inner; send recv)`.
#[macro_export]
macro_rules! forward_link {
    ($this:ident => $inner:expr; $($method:ident)*) => { $($crate::forward_link! { @$method $this $inner })* };
    (@send $this:ident $inner:expr) => {
        fn send(&mut $this, bytes: Vec<u8>) -> std::io::Result<()> { $inner.send(bytes) }
    };
    (@recv $this:ident $inner:expr) => {
        fn recv(&mut $this, buf: &mut [u8]) -> std::io::Result<()> { $inner.recv(buf) }
    };
    (@timeout $this:ident $inner:expr) => {
        fn timeout(&$this) -> std::time::Duration { $inner.timeout() }
    };
    (@take_sender $this:ident $inner:expr) => {
        fn take_sender(&mut $this) -> std::io::Result<Box<dyn $crate::SendHalf>> { $inner.take_sender() }
    };
    (@close $this:ident $inner:expr) => {
        fn close(&mut $this) -> std::io::Result<()> { $inner.close() }
    };
    (@read_ahead $this:ident $inner:expr) => {
        fn read_ahead(&mut $this, limit: std::time::Duration) -> std::io::Result<()> { $inner.read_ahead(limit) }
    };
    (@exporter $this:ident $inner:expr) => {
        fn exporter(&$this) -> Option<[u8; 32]> { $inner.exporter() }
    };
    (@wire_bytes $this:ident $inner:expr) => {
        fn wire_bytes(&$this) -> Option<$crate::WireBytes> { $inner.wire_bytes() }
    };
}

impl Link for Box<dyn Link> {
    forward_link!(self => (**self); send recv timeout take_sender close read_ahead exporter wire_bytes);
}

/// One end of an in-memory link.
struct MemoryLink {
    tx: MemorySender,
    rx: Receiver<Vec<u8>>,
    pending: Vec<u8>,
    read: usize,
    timeout: Duration,
}

/// The sending side; `None` once closed or taken.
struct MemorySender(Option<Sender<Vec<u8>>>);

/// Two ends of an in-memory link; each end reports a silent peer after `timeout`.
pub fn memory_pair(timeout: Duration) -> (impl Link, impl Link) {
    let (to_b, from_a) = channel();
    let (to_a, from_b) = channel();
    let end = |tx, rx| MemoryLink { tx: MemorySender(Some(tx)), rx, pending: Vec::new(), read: 0, timeout };
    (end(to_b, from_b), end(to_a, from_a))
}

impl SendHalf for MemorySender {
    fn send(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        let tx = self.0.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        tx.send(bytes).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn close(&mut self) -> io::Result<()> {
        self.0 = None;
        Ok(())
    }
}

impl Link for MemoryLink {
    fn send(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        self.tx.send(bytes)
    }

    fn recv(&mut self, buf: &mut [u8]) -> io::Result<()> {
        let start = Instant::now();
        let mut filled = 0;
        while filled < buf.len() {
            if self.read == self.pending.len() {
                let left = self.timeout.saturating_sub(start.elapsed());
                self.pending = self.rx.recv_timeout(left).map_err(|e| match e {
                    RecvTimeoutError::Timeout => io::Error::from(io::ErrorKind::TimedOut),
                    RecvTimeoutError::Disconnected => io::ErrorKind::UnexpectedEof.into(),
                })?;
                self.read = 0;
            }
            let n = (buf.len() - filled).min(self.pending.len() - self.read);
            buf[filled..filled + n].copy_from_slice(&self.pending[self.read..self.read + n]);
            filled += n;
            self.read += n;
        }
        Ok(())
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn take_sender(&mut self) -> io::Result<Box<dyn SendHalf>> {
        let tx = self.tx.0.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Box::new(MemorySender(Some(tx))))
    }

    fn close(&mut self) -> io::Result<()> {
        self.tx.close()
    }
}
