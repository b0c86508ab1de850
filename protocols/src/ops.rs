//! Secure two-party operations, one file each.
//!
//! Every file states functionality, source, range in -> range out, error bound and what is revealed, and offers the
//! protocol (both roles call one function with their shares) beside `cost`, which predicts its messages and
//! correlations to the byte. Values are flat slices of words; shares are additive modulo 2^64 or exclusive-or.

pub mod compare;
pub mod cross;
pub mod evaluate;
pub mod matmul;
pub mod mul;
pub mod mux;
pub mod reveal;
pub mod truncate;
