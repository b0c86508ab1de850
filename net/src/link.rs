//! Byte transports under a [`Channel`](crate::Channel).

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// A reliable, ordered, duplex stream of bytes.
///
/// `send` takes ownership of a whole buffer and must not wait for the peer to read: two parties that send to each
/// other at once may never deadlock. `recv` blocks for at most the link's read time-out.
pub trait Link: Send {
    /// Queues `bytes` for the peer.
    fn send(&mut self, bytes: Vec<u8>) -> io::Result<()>;
    /// Fills `buf`. Errors: `UnexpectedEof` when the peer has closed, `TimedOut` after the read time-out.
    fn recv(&mut self, buf: &mut [u8]) -> io::Result<()>;
    /// The read time-out.
    fn timeout(&self) -> Duration;
}

impl Link for Box<dyn Link> {
    fn send(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        (**self).send(bytes)
    }
    fn recv(&mut self, buf: &mut [u8]) -> io::Result<()> {
        (**self).recv(buf)
    }
    fn timeout(&self) -> Duration {
        (**self).timeout()
    }
}

/// One end of an in-memory link.
struct MemoryLink {
    tx: Sender<Vec<u8>>,
    rx: Receiver<Vec<u8>>,
    pending: Vec<u8>,
    read: usize,
    timeout: Duration,
}

/// Two ends of an in-memory link; each end reports a silent peer after `timeout`.
pub fn memory_pair(timeout: Duration) -> (impl Link, impl Link) {
    let (to_b, from_a) = channel();
    let (to_a, from_b) = channel();
    let end = |tx, rx| MemoryLink { tx, rx, pending: Vec::new(), read: 0, timeout };
    (end(to_b, from_b), end(to_a, from_a))
}

impl Link for MemoryLink {
    fn send(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        self.tx.send(bytes).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn recv(&mut self, buf: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < buf.len() {
            if self.read == self.pending.len() {
                self.pending = self.rx.recv_timeout(self.timeout).map_err(|e| match e {
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
}
