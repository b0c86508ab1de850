#![doc = include_str!("../README.md")]
#![deny(missing_docs)]
#![deny(unsafe_code)]

pub mod cpu;
mod error;
mod packed;
#[cfg(feature = "probe")]
pub mod probe;
mod stream;
mod vector;
mod word;

pub use error::Error;
pub use packed::{pack, packed_bytes, unpack};
pub use stream::{Bytes, Reader, Sink, Words, Writer, bytes_for};
pub use vector::Bits;
pub use word::{equal, mask, signed};
