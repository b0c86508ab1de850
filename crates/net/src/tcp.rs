//! Links over TCP: connecting, listening, and the link without encryption.

use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use crate::NetError;

pub use crate::stream::TcpLink;

/// Pause between two attempts to connect.
const RETRY_PAUSE: Duration = Duration::from_millis(25);

/// Pause between two looks at a listener whose wait is limited.
const ACCEPT_PAUSE: Duration = Duration::from_millis(5);

/// Time limits of a TCP link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectOptions {
    /// The time for which [`connect`] keeps trying, so that a client may start before its server listens.
    pub connect_timeout: Duration,
    /// The time for which a read waits for the peer, and for which closing waits for a peer that does not read.
    pub read_timeout: Duration,
}

impl Default for ConnectOptions {
    /// Half a minute to connect, two minutes for the peer to compute.
    fn default() -> Self {
        ConnectOptions { connect_timeout: Duration::from_secs(30), read_timeout: Duration::from_secs(120) }
    }
}

/// Connects to a listening peer without encryption, trying again until the connect time-out.
///
/// Errors: [`NetError::Unreachable`] with the last cause, at once if trying again cannot help (an address that does
/// not parse, a missing permission).
pub fn connect(addr: impl ToSocketAddrs + Display, options: ConnectOptions) -> Result<TcpLink, NetError> {
    let stream = dial(addr, options.connect_timeout)?;
    TcpLink::new(stream, options.read_timeout).map_err(failed("connect"))
}

/// Connects a stream, trying again for at most `patience`.
pub(crate) fn dial(addr: impl ToSocketAddrs + Display, patience: Duration) -> Result<TcpStream, NetError> {
    let start = Instant::now();
    let given = addr.to_string();
    let mut name = given.clone();
    loop {
        let cause = match attempt(&addr, &mut name, patience.saturating_sub(start.elapsed())) {
            Ok(stream) => return Ok(stream),
            Err(cause) => cause,
        };
        let hopeless = matches!(cause.kind(), ErrorKind::InvalidInput | ErrorKind::PermissionDenied);
        if hopeless || start.elapsed() + RETRY_PAUSE >= patience {
            let seconds = start.elapsed().as_secs_f64();
            let addr = if name == given { name } else { format!("{given} ({name})") };
            return Err(NetError::Unreachable { addr, seconds, source: cause });
        }
        thread::sleep(RETRY_PAUSE);
    }
}

/// Tries once each address that `addr` stands for, at most `limit` for each. Leaves the address tried last in `name`.
fn attempt(addr: &impl ToSocketAddrs, name: &mut String, limit: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::AddrNotAvailable, "the name has no address");
    for addr in addr.to_socket_addrs()? {
        *name = addr.to_string();
        match TcpStream::connect_timeout(&addr, limit.max(Duration::from_millis(1))) {
            // If nobody listens on the port, the system may draw it as this socket's own source port. The socket then
            // connects to itself.
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

    /// Waits for a peer, for at most `limit` if there is one; the link is not encrypted.
    pub fn accept(&self, limit: Option<Duration>) -> Result<TcpLink, NetError> {
        TcpLink::new(self.accept_stream(limit)?, self.read_timeout).map_err(failed("accept"))
    }

    /// Waits for a peer, for at most `limit` if there is one, and sends it nothing yet: for [`crate::tls::accept`].
    pub fn accept_stream(&self, limit: Option<Duration>) -> Result<TcpStream, NetError> {
        match limit {
            None => Ok(self.socket.accept().map_err(failed("accept"))?.0),
            Some(limit) => self.accept_within(limit),
        }
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
        // On some systems an accepted socket inherits the non-blocking mode.
        stream.set_nonblocking(false).map_err(failed("accept"))?;
        Ok(stream)
    }
}

pub(crate) fn failed(step: &'static str) -> impl Fn(io::Error) -> NetError {
    move |source| NetError::Io { step, source }
}
