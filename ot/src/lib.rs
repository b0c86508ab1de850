#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod base;
mod block;
mod check;
mod correlate;
#[cfg(feature = "dealer")]
pub mod dealer;
pub mod dpf;
mod error;
mod ggm;
mod hash;
pub mod index;
mod kernels;
mod keys;
mod kind;
mod lookup;
mod pool;
#[cfg(feature = "probe")]
pub mod probe;
mod random;
mod setup;
mod silent;
mod softspoken;
mod source;

pub use block::Block;
pub use correlate::CotShape;
pub use error::OtError;
pub use kernels::{Family, Kernels};
pub use keys::{ChosenKeys, SenderKeys};
pub use kind::CotKind;
pub use lookup::LookupShape;
pub use pool::{OtReceiver, OtSender, PoolPlan};
pub use setup::{setup, setup_with};
pub use softspoken::SoftSpoken;
pub use source::{CotSource, ExtendWork, Run, Wire};
pub use waggle_bits::Bits;
