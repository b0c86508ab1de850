//! Oblivious transfer between two parties, semi-honest, over a counted [`net::Channel`].
//!
//! From the bottom up:
//! - base OTs on Ristretto give each direction 128 random OTs;
//! - a [`CotSource`] ([`SoftSpoken`] extension, or silent OT over it) stretches them into any number of random
//!   *correlated* OTs, kept in the pools of an [`OtSender`] and an [`OtReceiver`];
//! - [`OtReceiver::choose`] and [`OtSender::accept`] turn pooled OTs into keys for chosen bits; these calls, and all
//!   that follow, do no I/O, so a protocol merges their bytes into its own messages;
//! - [`SenderKeys`] and [`ChosenKeys`] are spent, by value, on correlated transfers modulo powers of two
//!   ([`Correlation`]), on 1-of-N transfers of short messages ([`Lookup`]), or as random words and bits;
//! - [`dpf`] makes keys of distributed point functions from random OTs.
//!
//! Every message has a length that a pure function predicts to the byte.
#![deny(missing_docs)]

mod base;
mod bits;
mod block;
mod correlate;
#[cfg(feature = "dealer")]
pub mod dealer;
pub mod dpf;
mod error;
mod hash;
mod keys;
mod lookup;
mod pool;
mod pprf;
#[cfg(feature = "probe")]
pub mod probe;
mod random;
mod setup;
mod silent;
mod simd;
mod softspoken;
mod source;
mod transpose;
mod tree_hash;

pub use bits::Bits;
pub use block::Block;
pub use correlate::Correlation;
pub use error::OtError;
pub use keys::{ChosenKeys, SenderKeys};
pub use lookup::Lookup;
pub use pool::{OtReceiver, OtSender, PoolPlan};
pub use setup::{CotKind, setup, setup_with};
pub use simd::Kernels;
pub use softspoken::SoftSpoken;
pub use source::{CotSource, Run, Wire};
