//! Messages that several operations share: products of bits with words, products with prepared factors, openings.

pub(crate) mod beaver;
pub mod cross;
pub mod opening;
