//! Links that misbehave on purpose.

use std::io::{self, ErrorKind};
use std::time::Duration;

use waggle_net::Link;

/// A fault of a link. Offsets count the bytes sent on the link from its start, framing included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The connection closes after this many bytes.
    CutAfter(u64),
    /// Everything after this many bytes disappears while the connection stays open.
    StallAfter(u64),
    /// All bits of the byte at this offset are inverted.
    Corrupt(u64),
}

/// A [`Link`] whose sending side suffers a [`Fault`]. It cannot be split, so it must be put around a `Shaped` link,
/// not inside.
pub(crate) struct Faulty<L> {
    /// The link, or `None` once it is cut.
    inner: Option<L>,
    fault: Fault,
    sent: u64,
    timeout: Duration,
}

impl<L: Link> Faulty<L> {
    /// Lets `fault` happen to what is sent on `inner`.
    pub(crate) fn new(inner: L, fault: Fault) -> Self {
        let timeout = inner.timeout();
        Faulty { inner: Some(inner), fault, sent: 0, timeout }
    }
}

impl<L: Link> Link for Faulty<L> {
    fn send(&mut self, mut bytes: Vec<u8>) -> io::Result<()> {
        let inner = self.inner.as_mut().ok_or(ErrorKind::BrokenPipe)?;
        let before = self.sent;
        let len = bytes.len() as u64;
        self.sent += len;
        // Whether the offset lies in this buffer or before it, and where in it.
        let reached = |offset: u64| (self.sent > offset).then(|| offset.saturating_sub(before) as usize);
        match self.fault {
            Fault::CutAfter(n) => {
                if let Some(keep) = reached(n) {
                    bytes.truncate(keep);
                    inner.send(bytes)?;
                    self.inner = None;
                    return Err(ErrorKind::BrokenPipe.into());
                }
            }
            Fault::StallAfter(n) => {
                if let Some(keep) = reached(n) {
                    bytes.truncate(keep);
                }
            }
            Fault::Corrupt(n) => {
                if let Some(at) = reached(n).filter(|_| n >= before) {
                    bytes[at] ^= 0xff;
                }
            }
        }
        inner.send(bytes)
    }

    fn recv(&mut self, buf: &mut [u8]) -> io::Result<()> {
        self.inner.as_mut().ok_or(ErrorKind::UnexpectedEof)?.recv(buf)
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn close(&mut self) -> io::Result<()> {
        self.inner.as_mut().map_or(Ok(()), Link::close)
    }
}
