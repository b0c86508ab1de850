#![doc = include_str!("../README.md")]
//!
//! # Where to start
//!
//! [`Channel`] over [`memory_pair`], [`tls`] or [`tcp`]; [`Ledger`] for what was sent; [`Handshake`] for what two
//! parties must agree on; [`NetError`] for what can go wrong.
#![deny(missing_docs)]

pub mod admission;
mod channel;
mod error;
pub mod handshake;
mod identity;
mod ledger;
mod link;
mod measure;
pub mod papers;
mod rehearsal;
pub mod shaped;
mod stream;
pub mod tcp;
pub mod tls;
mod trust;
mod usage;

pub use admission::{Admission, await_admission, await_client, send_admission};
pub use channel::{Channel, HEADER_BYTES};
pub use error::{Difference, NetError};
pub use handshake::{Field, Handshake};
pub use identity::{Identity, KeyError, PublicKey};
pub use ledger::{Direction, Entry, Ledger, Phase, Role, Traffic};
pub use link::{Link, SendHalf, WireBytes, memory_pair};
pub use measure::{Measured, measure};
pub use shaped::{LinkShape, Shaped};
pub use trust::{AllowList, KnownServer, KnownServers};
pub use usage::{peak_memory_bytes, process_cpu_time};
