//! A link over TCP.
//!
//! A thread per link writes what `send` queued, so that sending never waits for the peer to read: two parties that
//! send large messages to each other at once both get on to reading. The queue has no bound of its own; a protocol
//! bounds it by waiting for answers.

use std::convert::Infallible;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::link::SendHalf;
use crate::{Link, NetError};

/// Reads smaller than this go through a buffer of this size, so a header does not cost a system call of its own.
const READ_BUFFER_BYTES: usize = 64 << 10;

/// Read buffers of unread input that a dropped link discards to close in good order.
const DISCARDED_BUFFERS: usize = 1024;

/// Pause between two attempts to connect.
const RETRY_PAUSE: Duration = Duration::from_millis(25);

/// Pause between two looks at a listener whose wait is limited.
const ACCEPT_PAUSE: Duration = Duration::from_millis(5);

/// Time limits of a TCP link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectOptions {
    /// How long [`connect`] keeps trying, so that a client may start before its server listens.
    pub connect_timeout: Duration,
    /// How long a read waits for the peer; also how long closing waits for a peer that does not read.
    pub read_timeout: Duration,
}

impl Default for ConnectOptions {
    /// Half a minute to connect, two minutes for the peer to compute.
    fn default() -> Self {
        ConnectOptions { connect_timeout: Duration::from_secs(30), read_timeout: Duration::from_secs(120) }
    }
}

/// Connects to a listening peer, trying again until the connect time-out.
///
/// Errors: [`NetError::Unreachable`] with the last cause, at once if trying again cannot help (an address that does
/// not parse, a missing permission).
pub fn connect(addr: impl ToSocketAddrs, options: ConnectOptions) -> Result<TcpLink, NetError> {
    let start = Instant::now();
    let mut name = String::from("the address");
    loop {
        let cause = match attempt(&addr, &mut name, options.connect_timeout.saturating_sub(start.elapsed())) {
            Ok(stream) => return TcpLink::new(stream, options.read_timeout).map_err(failed("connect")),
            Err(cause) => cause,
        };
        let hopeless = matches!(cause.kind(), ErrorKind::InvalidInput | ErrorKind::PermissionDenied);
        if hopeless || start.elapsed() + RETRY_PAUSE >= options.connect_timeout {
            let seconds = start.elapsed().as_secs_f64();
            return Err(NetError::Unreachable { addr: name, seconds, source: cause });
        }
        thread::sleep(RETRY_PAUSE);
    }
}

/// One round over the addresses that `addr` stands for, at most `limit` for each; leaves the last one in `name`.
fn attempt(addr: &impl ToSocketAddrs, name: &mut String, limit: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::AddrNotAvailable, "the name has no address");
    for addr in addr.to_socket_addrs()? {
        *name = addr.to_string();
        match TcpStream::connect_timeout(&addr, limit.max(Duration::from_millis(1))) {
            // A local port that nobody listens on can be drawn as our own source port: the socket then meets itself.
            Ok(stream) if stream.local_addr()? == stream.peer_addr()? => last = ErrorKind::ConnectionRefused.into(),
            Ok(stream) => return Ok(stream),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// A listening socket.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    read_timeout: Duration,
}

/// Listens on `addr` (port 0: any free one); links accepted there have the read time-out `read_timeout`.
pub fn listen(addr: impl ToSocketAddrs, read_timeout: Duration) -> Result<Listener, NetError> {
    let socket = TcpListener::bind(addr).map_err(failed("listen"))?;
    Ok(Listener { socket, read_timeout })
}

impl Listener {
    /// The address that peers connect to.
    pub fn local_addr(&self) -> Result<SocketAddr, NetError> {
        self.socket.local_addr().map_err(failed("listen"))
    }

    /// Waits for a peer, for at most `limit` if there is one.
    pub fn accept(&self, limit: Option<Duration>) -> Result<TcpLink, NetError> {
        let stream = match limit {
            None => self.socket.accept().map_err(failed("accept"))?.0,
            Some(limit) => self.accept_within(limit)?,
        };
        TcpLink::new(stream, self.read_timeout).map_err(failed("accept"))
    }

    fn accept_within(&self, limit: Duration) -> Result<TcpStream, NetError> {
        let start = Instant::now();
        self.socket.set_nonblocking(true).map_err(failed("accept"))?;
        let stream = loop {
            match self.socket.accept() {
                Ok((stream, _)) => break Ok(stream),
                Err(e) if e.kind() == ErrorKind::WouldBlock && start.elapsed() < limit => thread::sleep(ACCEPT_PAUSE),
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    break Err(NetError::TimedOut { step: "accept", seconds: limit.as_secs_f64() });
                }
                Err(e) => break Err(failed("accept")(e)),
            }
        };
        self.socket.set_nonblocking(false).map_err(failed("accept"))?;
        let stream = stream?;
        // Some systems let an accepted socket inherit the flag.
        stream.set_nonblocking(false).map_err(failed("accept"))?;
        Ok(stream)
    }
}

fn failed(step: &'static str) -> impl Fn(io::Error) -> NetError {
    move |source| NetError::Io { step, source }
}

/// A [`Link`] over a TCP connection (`TCP_NODELAY`).
///
/// A failed write closes the connection, so it surfaces at the next `send` or `recv`, after what the peer sent
/// before. Dropping the link waits until the operating system has taken everything that was queued, for at most the
/// read time-out.
pub struct TcpLink {
    stream: Arc<TcpStream>,
    /// `None` once taken.
    sender: Option<TcpSender>,
    failure: Arc<Failure>,
    buffer: Box<[u8]>,
    /// The unread part of `buffer` is `read..end`.
    read: usize,
    end: usize,
    timeout: Duration,
}

impl TcpLink {
    /// A link over a connected, blocking stream.
    pub fn new(stream: TcpStream, read_timeout: Duration) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let stream = Arc::new(stream);
        let failure = Arc::new(Failure::default());
        let sender = TcpSender::spawn(stream.clone(), failure.clone(), read_timeout)?;
        let buffer = vec![0; READ_BUFFER_BYTES].into_boxed_slice();
        Ok(TcpLink { stream, sender: Some(sender), failure, buffer, read: 0, end: 0, timeout: read_timeout })
    }

    /// The peer's address.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }
}

impl Link for TcpLink {
    fn send(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        self.sender.as_mut().ok_or(ErrorKind::BrokenPipe)?.send(bytes)
    }

    fn recv(&mut self, buf: &mut [u8]) -> io::Result<()> {
        let start = Instant::now();
        let mut filled = 0;
        while filled < buf.len() {
            let wanted = &mut buf[filled..];
            if self.read == self.end && wanted.len() >= self.buffer.len() {
                filled += read_some(&self.stream, wanted, self.timeout, start, &self.failure)?;
                continue;
            }
            if self.read == self.end {
                self.end = read_some(&self.stream, &mut self.buffer, self.timeout, start, &self.failure)?;
                self.read = 0;
            }
            let n = wanted.len().min(self.end - self.read);
            wanted[..n].copy_from_slice(&self.buffer[self.read..self.read + n]);
            filled += n;
            self.read += n;
        }
        Ok(())
    }

    fn timeout(&self) -> Duration {
        self.timeout
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
        // Closing a socket with unread bytes resets the connection, and the reset would overtake our last message.
        if self.stream.set_nonblocking(true).is_ok() {
            for _ in 0..DISCARDED_BUFFERS {
                if !matches!((&*self.stream).read(&mut self.buffer), Ok(n) if n > 0) {
                    break;
                }
            }
        }
    }
}

/// Reads at least one byte within `timeout` of `start`. Errors: as [`Link::recv`], or what the writer met.
fn read_some(
    mut stream: &TcpStream,
    buf: &mut [u8],
    timeout: Duration,
    start: Instant,
    failure: &Failure,
) -> io::Result<usize> {
    loop {
        let left = timeout.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        return match stream.read(buf) {
            Ok(0) => Err(failure.get().unwrap_or_else(|| ErrorKind::UnexpectedEof.into())),
            Ok(n) => Ok(n),
            Err(e) => match e.kind() {
                ErrorKind::Interrupted => continue,
                ErrorKind::WouldBlock | ErrorKind::TimedOut => Err(ErrorKind::TimedOut.into()),
                _ => Err(e),
            },
        };
    }
}

/// Why the writer gave up, if it did.
#[derive(Default)]
struct Failure(OnceLock<(ErrorKind, String)>);

impl Failure {
    fn set(&self, error: &io::Error) {
        // Only the first cause is kept.
        let _ = self.0.set((error.kind(), error.to_string()));
    }

    fn get(&self) -> Option<io::Error> {
        self.0.get().map(|(kind, text)| io::Error::new(*kind, text.clone()))
    }
}

/// The queue to the writer thread.
struct TcpSender {
    /// `None` once closed.
    queue: Option<Sender<Vec<u8>>>,
    thread: Option<JoinHandle<()>>,
    /// Disconnected when the writer ends.
    ended: Receiver<Infallible>,
    stream: Arc<TcpStream>,
    failure: Arc<Failure>,
    /// How long closing waits for a peer that does not read.
    linger: Duration,
}

impl TcpSender {
    fn spawn(stream: Arc<TcpStream>, failure: Arc<Failure>, linger: Duration) -> io::Result<Self> {
        let (queue, buffers) = mpsc::channel::<Vec<u8>>();
        let (end, ended) = mpsc::channel::<Infallible>();
        let thread = thread::Builder::new().name("waggle-tcp".into()).spawn({
            let (stream, failure) = (stream.clone(), failure.clone());
            move || {
                let _end = end;
                for bytes in buffers {
                    if let Err(error) = (&*stream).write_all(&bytes) {
                        failure.set(&error);
                        // Wakes a reader that would otherwise wait for an answer to what was never sent.
                        let _ = stream.shutdown(Shutdown::Both);
                        return;
                    }
                }
            }
        })?;
        Ok(TcpSender { queue: Some(queue), thread: Some(thread), ended, stream, failure, linger })
    }
}

impl SendHalf for TcpSender {
    fn send(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        let queue = self.queue.as_ref().ok_or(ErrorKind::BrokenPipe)?;
        let unsent = queue.send(bytes).is_err();
        match self.failure.get() {
            Some(failure) => Err(failure),
            None if unsent => Err(ErrorKind::BrokenPipe.into()),
            None => Ok(()),
        }
    }

    fn close(&mut self) -> io::Result<()> {
        self.queue = None;
        let Some(thread) = self.thread.take() else {
            return Ok(());
        };
        let stalled = matches!(self.ended.recv_timeout(self.linger), Err(RecvTimeoutError::Timeout));
        // A writer that is stuck is released by closing the connection under it. Errors mean that it is closed.
        let _ = self.stream.shutdown(if stalled { Shutdown::Both } else { Shutdown::Write });
        let _ = thread.join();
        if stalled {
            return Err(ErrorKind::TimedOut.into());
        }
        self.failure.get().map_or(Ok(()), Err)
    }
}

impl Drop for TcpSender {
    fn drop(&mut self) {
        // Nobody is left to tell; `close` is there for those who want to know.
        let _ = self.close();
    }
}
