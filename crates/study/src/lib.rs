#![doc = include_str!("../README.md")]
#![deny(missing_docs)]
#![deny(unsafe_code)]

pub mod cost;
pub mod eval;
pub mod fit;
pub mod glue;
pub mod published;
pub mod reproduce;
pub mod sweep;
mod watch;
