#![doc = include_str!("../README.md")]
//!
//! To run a party, start at [`party`].
#![deny(missing_docs)]
#![deny(unsafe_code)]

mod base;
mod columns;
mod error;
mod event;
mod fingerprint;
pub mod names;
mod needs;
pub mod party;
mod pin;
pub mod pool;
mod pool_error;
mod pool_id;
mod prefix;
mod public_model;
mod ranges;
mod register;
mod request;
mod terms;

pub use base::{Base, BaseError, Disclosure};
pub use columns::all_matrices;
pub use error::Error;
pub use fingerprint::{Fingerprint, PinError};
pub use pin::Expectation;
pub use prefix::PublicPrefix;
pub use ranges::{RANGE_CHECK_TOKENS, RangeCheck, check_ranges};
pub use register::{RegisterError, register_activation, register_policy};

// A tokenizer has one limit, in a model's files and in a session.
const _: () = assert!(waggle_model::MAX_TOKENIZER_BYTES == waggle_tokenizer::MAX_TOKENIZER_BYTES as u64);
