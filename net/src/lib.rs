//! Two-party channels in which every byte is counted.
//!
//! A [`Channel`] sends and receives *messages* whose length both sides know beforehand, over a [`Link`] that
//! carries plain bytes. Each message is booked in the [`Ledger`] by phase, operation path and direction, so
//! nothing leaves a party uncounted.
#![deny(missing_docs)]

mod channel;
mod error;
mod ledger;
mod link;

pub use channel::{Channel, HEADER_BYTES};
pub use error::NetError;
pub use ledger::{Direction, Entry, Ledger, Phase, Role, Traffic};
pub use link::{Link, memory_pair};
