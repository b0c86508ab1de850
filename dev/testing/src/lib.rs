#![cfg_attr(feature = "laws", doc = include_str!("../README.md"))]
#![cfg_attr(not(feature = "laws"), doc = "What tests and benchmarks of all crates share.")]
#![deny(missing_docs)]

mod assets;
#[cfg(feature = "laws")]
pub mod channel;
mod columns;
#[cfg(feature = "laws")]
pub mod laws;
mod parties;
mod values;

pub use assets::{asset, large};
pub use columns::Columns;
#[cfg(feature = "laws")]
pub use laws::{Function, Lawful, Laws, Output};
#[cfg(feature = "laws")]
pub use parties::{DEALER, TWO_PHASES};
pub use parties::{Outcome, open, own, pair, run, share, share_of};
pub use values::{distance, largest_difference, signed_values, to_fixed, to_real};

// The macro `lawful!` refers to this crate.
#[cfg(feature = "laws")]
#[doc(hidden)]
pub use waggle_protocols;
