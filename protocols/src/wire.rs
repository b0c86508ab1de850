//! What operations send: products of bits with words, packed words, openings.

pub(crate) mod beaver;
pub mod cross;
pub mod opening;
