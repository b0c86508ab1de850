//! Errors between two parties.

use std::time::Duration;
use std::{fmt, io};

use thiserror::Error;

use crate::{KeyError, PublicKey};

/// A failure of the channel, naming the protocol step that was under way.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NetError {
    /// The peer closed the connection or vanished.
    #[error("the peer closed the connection during `{step}`")]
    Closed {
        /// Protocol step under way.
        step: &'static str,
    },
    /// Nothing arrived within the read time-out.
    #[error("no message from the peer within {} s during `{step}`", Seconds(*.seconds))]
    TimedOut {
        /// Protocol step under way.
        step: &'static str,
        /// The time-out.
        seconds: f64,
    },
    /// The message has another length than the protocol prescribes; nothing was allocated for it.
    #[error("the peer's message for `{step}` has {got} bytes, expected {expected}")]
    Length {
        /// Protocol step under way.
        step: &'static str,
        /// Length that the protocol prescribes (for variable messages: the maximum).
        expected: usize,
        /// Length that the peer announced.
        got: usize,
    },
    /// The message belongs to another step.
    #[error("expected the peer's message for `{step}` (tag {expected:08x}), got tag {got:08x}")]
    Unexpected {
        /// Protocol step under way.
        step: &'static str,
        /// Tag of the step under way.
        expected: u32,
        /// Tag received.
        got: u32,
    },
    /// The bytes do not decode to what the step allows (a residue out of range, a point off the curve, ...).
    #[error("the peer's message for `{step}` is malformed: {what}")]
    Malformed {
        /// Protocol step under way.
        step: &'static str,
        /// The fault.
        what: String,
    },
    /// The parties differ in protocol, model or options; both see the same list.
    #[error("the parties do not agree: {}", listed(.differences))]
    Disagreement {
        /// The fields that differ.
        differences: Vec<Difference>,
    },
    /// The peer does not begin as a Waggle session does: it is another program, or in the middle of a session.
    #[error("the peer does not speak Waggle; it begins with `{first}`")]
    NotWaggle {
        /// The first bytes received, escaped.
        first: String,
    },
    /// No connection within the connect time-out.
    #[error("cannot connect to {addr} after {} s: {source}", Seconds(*.seconds))]
    Unreachable {
        /// The address as given and, if it is a name, the address tried last.
        addr: String,
        /// Seconds of trying.
        seconds: f64,
        /// The last cause.
        source: io::Error,
    },
    /// The peer says that it received bad data from this party, and has ended the session.
    #[error("the peer found bad data in `{theirs}` (during `{step}`)")]
    PeerRejected {
        /// Protocol step under way.
        step: &'static str,
        /// The step that the peer names; printable.
        theirs: String,
    },
    /// The parties have not seen the same messages: something changed them on the way.
    #[error("the two parties did not see the same messages: something between them changed the session")]
    Transcript,
    /// The server does not take this client.
    #[error("the server refused: {reason}")]
    Refused {
        /// The server's words; printable, one line.
        reason: String,
    },
    /// The peer proved a key that this party does not trust; nothing was sent to it.
    #[error("the key of the machine at this address is {key}, which is not trusted")]
    Untrusted {
        /// The key.
        key: PublicKey,
    },
    /// The peer does not speak TLS, or the handshake of TLS failed.
    #[error("no encrypted link: {what} (during `{step}`)")]
    Tls {
        /// Step under way.
        step: &'static str,
        /// The fault.
        what: String,
    },
    /// A record of an encrypted link is not what the peer sent.
    #[error("a message was changed on its way during `{step}`: {what}")]
    Tampered {
        /// Protocol step under way.
        step: &'static str,
        /// The error as TLS describes it.
        what: String,
    },
    /// A failure of a key file, of a list of keys or of the operating system's random numbers.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Any other failure of the operating system.
    #[error("input/output during `{step}`: {source}")]
    Io {
        /// Protocol step under way.
        step: &'static str,
        /// The cause.
        source: io::Error,
    },
}

impl NetError {
    /// The meaning of `source`, an error that a [`Link`](crate::Link) with this time-out gave during `step`.
    pub fn from_io(step: &'static str, source: io::Error, timeout: Duration) -> Self {
        use io::ErrorKind::*;
        match source.kind() {
            UnexpectedEof | BrokenPipe | ConnectionReset | ConnectionAborted | NotConnected => {
                NetError::Closed { step }
            }
            TimedOut | WouldBlock => NetError::TimedOut { step, seconds: timeout.as_secs_f64() },
            InvalidData => NetError::Tampered { step, what: source.to_string() },
            _ => NetError::Io { step, source },
        }
    }

    /// The step whose message from the peer was bad, if the error says so. The peer should hear of it
    /// ([`Channel::reject`](crate::Channel::reject)).
    pub fn bad_step(&self) -> Option<&'static str> {
        match self {
            NetError::Length { step, .. } | NetError::Unexpected { step, .. } | NetError::Malformed { step, .. } => {
                Some(step)
            }
            _ => None,
        }
    }
}

/// Most characters of a value that are shown where the parties do not agree.
const SHOWN: usize = 400;

/// A field on which the parties do not agree. Its texts are printable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Name of the field.
    pub name: String,
    /// The client's value, if any.
    pub client: Option<String>,
    /// The server's value, if any.
    pub server: Option<String>,
}

impl Difference {
    /// The difference in the field `name`, with the values of client and server in this order.
    pub fn new<T: fmt::Display>(name: &str, values: [Option<T>; 2]) -> Self {
        let [client, server] = values.map(|value| value.map(|value| value.to_string()));
        Difference { name: name.into(), client, server }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let short = |said: &str| match said.char_indices().nth(SHOWN) {
            Some((end, _)) => format!("{}...", &said[..end]),
            None => said.to_owned(),
        };
        let [client, server] = [&self.client, &self.server].map(|said| short(said.as_deref().unwrap_or("nothing")));
        write!(f, "{}: client says {client}, server says {server}", self.name)
    }
}

fn listed(differences: &[Difference]) -> String {
    differences.iter().map(Difference::to_string).collect::<Vec<_>>().join("; ")
}

/// A number of seconds, shown with milliseconds where tenths would say nothing.
struct Seconds(f64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let digits = if self.0 < 1.0 { 3 } else { 1 };
        write!(f, "{:.digits$}", self.0)
    }
}
