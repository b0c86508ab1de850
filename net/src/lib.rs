//! Two-party channels in which every byte is counted.
//!
//! A [`Channel`] sends and receives *messages* whose length both sides know beforehand, over a [`Link`] that
//! carries plain bytes. Each message is booked in the [`Ledger`] by phase, operation path and direction, so
//! nothing leaves a party uncounted.
//!
//! Links: [`memory_pair`] between two threads, [`tls`] between two machines, [`tcp`] between two machines without
//! encryption, and [`shaped::Shaped`] around any of them, which slows it to the rate and the delay of a named
//! network. A server lets a client in ([`admission`]), and a session opens with a [`Handshake`].
//!
//! A peer may vanish, stall or send anything: the answer is a [`NetError`] within the read time-out, never a panic,
//! and never more memory than the length that the step allows.
//!
//! On an encrypted link each party has proved its key ([`Identity`]), and nobody between them can read or change a
//! word. [`Channel::binding`] ties a protocol to that link, [`Channel::confirm_transcript`] compares what both saw.
//!
//! ```
//! use std::time::Duration;
//! use net::{Channel, Role, memory_pair};
//!
//! let (a, b) = memory_pair(Duration::from_secs(5));
//! let server = std::thread::spawn(move || -> Result<(), net::NetError> {
//!     let mut channel = Channel::new(Role::Server, b);
//!     let question = channel.recv("question", 4)?;
//!     channel.send("answer", &question)
//! });
//! let mut channel = Channel::new(Role::Client, a);
//! channel.send("question", b"buzz")?;
//! assert_eq!(channel.recv("answer", 4)?, b"buzz");
//! assert_eq!(channel.ledger().total().flows, 2);
//! server.join().expect("the server thread does not panic")?;
//! # Ok::<(), net::NetError>(())
//! ```
#![deny(missing_docs)]

pub mod admission;
mod channel;
mod error;
pub mod handshake;
mod identity;
mod ledger;
mod link;
pub mod shaped;
mod stream;
pub mod tcp;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod tls;
mod trust;
mod usage;

pub use admission::{Admission, await_admission, await_client, send_admission};
pub use channel::{Channel, HEADER_BYTES, TRANSCRIPT_BYTES};
pub use error::NetError;
pub use handshake::{Field, Handshake};
pub use identity::{Identity, KeyError, PublicKey};
pub use ledger::{Direction, Entry, Ledger, Phase, Role, Traffic};
pub use link::{Link, SendHalf, WireBytes, memory_pair};
pub use shaped::{Shape, Shaped};
pub use trust::{AllowList, KnownServer, KnownServers};
pub use usage::{peak_memory_bytes, process_cpu_time};
