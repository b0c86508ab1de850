//! The server's answer to a client before the session: come in, wait, or no.
//!
//! On a link without encryption the client speaks first: it sends eight bytes, so that a server that expects TLS
//! notices at once. On an encrypted link the handshake of TLS has already shown that both sides encrypt. Then the
//! server answers. The messages go over the bare link, before the handshake of Waggle, and are in no ledger. While a
//! client waits, the server repeats the message `busy` as a sign of life. A message (integers little endian):
//!
//! | part | bytes |
//! |---|---|
//! | magic `WGL-ADM1` | 8 |
//! | kind: 0 granted, 1 busy, 2 refused | 1 |
//! | length of the reason (refused), otherwise 0 | 4 |
//! | reason (UTF-8, one line) | its length |
//!
//! The order of calls: [`await_client`] and [`send_admission`] at the server, [`await_admission`] at the client.

use std::io;

use crate::{Link, NetError};

const MAGIC: [u8; 8] = *b"WGL-ADM1";
const CLIENT_MAGIC: [u8; 8] = *b"WGL-CLT1";
const HEADER_BYTES: usize = 13;
const STEP: &str = "admission";

/// Most bytes of a reason; a longer one is cut.
pub const MAX_REASON_BYTES: usize = 1024;

/// A server's answer to a client that has connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The session begins.
    Granted,
    /// The client waits. It is not told how many others wait.
    Busy,
    /// The connection ends.
    Refused {
        /// Why, in one line.
        reason: String,
    },
}

/// Receives the first bytes of a client on a link without encryption; returns at once on an encrypted link.
///
/// Errors: [`NetError::NotWaggle`], [`NetError::Tls`] if the client wants to encrypt, [`NetError::Closed`],
/// [`NetError::TimedOut`].
pub fn await_client(link: &mut dyn Link) -> Result<(), NetError> {
    if link.exporter().is_some() {
        return Ok(());
    }
    let timeout = link.timeout();
    let mut hello = [0; 8];
    link.recv(&mut hello).map_err(|e| NetError::from_io(STEP, e, timeout))?;
    if hello == CLIENT_MAGIC { Ok(()) } else { Err(foreign(&hello)) }
}

/// The error for unexpected first bytes of the peer on a link without encryption.
fn foreign(first: &[u8]) -> NetError {
    match first {
        // The head of a record of TLS: a handshake, or an alert about this party's first bytes.
        [0x15 | 0x16, 3, ..] => {
            NetError::Tls { step: STEP, what: "the peer encrypts, and this party runs in plaintext".into() }
        }
        _ => NetError::NotWaggle { first: first.escape_ascii().to_string() },
    }
}

/// Sends `admission` to the client at the other end of `link`.
///
/// Errors: [`NetError::Closed`], [`NetError::TimedOut`], [`NetError::Io`].
pub fn send_admission(link: &mut dyn Link, admission: &Admission) -> Result<(), NetError> {
    let timeout = link.timeout();
    link.send(encode(admission)).map_err(|e| NetError::from_io(STEP, e, timeout))
}

/// Waits until the server lets this client in. Calls `on_busy` at every sign of life until then. The read time-out
/// counts from one message to the next.
///
/// Errors: [`NetError::Refused`], [`NetError::NotWaggle`] if the peer is another program, [`NetError::Tls`] if it
/// encrypts and this link does not, [`NetError::Malformed`], [`NetError::Closed`], [`NetError::TimedOut`].
pub fn await_admission(link: &mut dyn Link, on_busy: &mut dyn FnMut()) -> Result<(), NetError> {
    if link.exporter().is_none() {
        let timeout = link.timeout();
        link.send(CLIENT_MAGIC.to_vec()).map_err(|e| NetError::from_io(STEP, e, timeout))?;
    }
    loop {
        match receive(link)? {
            Admission::Granted => return Ok(()),
            Admission::Busy => on_busy(),
            Admission::Refused { reason } => return Err(NetError::Refused { reason }),
        }
    }
}

fn encode(admission: &Admission) -> Vec<u8> {
    let (kind, value, text) = match admission {
        Admission::Granted => (0, 0, ""),
        Admission::Busy => (1, 0, ""),
        Admission::Refused { reason } => {
            let reason = &reason[..reason.floor_char_boundary(MAX_REASON_BYTES)];
            (2, reason.len() as u32, reason)
        }
    };
    let mut bytes = MAGIC.to_vec();
    bytes.push(kind);
    bytes.extend(value.to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes
}

fn receive(link: &mut dyn Link) -> Result<Admission, NetError> {
    let timeout = link.timeout();
    let failed = |e: io::Error| NetError::from_io(STEP, e, timeout);
    let malformed = |what: String| NetError::Malformed { step: STEP, what };
    // Reads seven bytes first. An alert of TLS has no more, and must be noticed without waiting.
    let mut header = [0; HEADER_BYTES];
    link.recv(&mut header[..7]).map_err(failed)?;
    if header[..7] != MAGIC[..7] {
        return Err(foreign(&header[..7]));
    }
    link.recv(&mut header[7..]).map_err(failed)?;
    if header[7] != MAGIC[7] {
        return Err(foreign(&header[..8]));
    }
    let value = u32::from_le_bytes([header[9], header[10], header[11], header[12]]);
    match (header[8], value) {
        (0, 0) => Ok(Admission::Granted),
        (1, 0) => Ok(Admission::Busy),
        (2, _) => {
            let len = value as usize;
            if len > MAX_REASON_BYTES {
                return Err(NetError::Length { step: STEP, expected: MAX_REASON_BYTES, got: len });
            }
            let mut text = vec![0; len];
            link.recv(&mut text).map_err(failed)?;
            let reason = String::from_utf8(text).map_err(|_| malformed("the reason is not UTF-8".into()))?;
            // The reason ends up on a terminal and in logs.
            if reason.chars().any(char::is_control) {
                return Err(malformed("the reason contains control characters".into()));
            }
            Ok(Admission::Refused { reason })
        }
        (kind, value) => Err(malformed(format!("kind {kind} with value {value}"))),
    }
}
