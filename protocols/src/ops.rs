//! Secure two-party operations, one file each.
//!
//! Every file states functionality, source, range in -> range out, error bound and what is revealed, and offers the
//! protocol (both roles call one function with their shares) beside `cost`, which predicts its messages and
//! correlations to the byte. Values are flat slices of words; shares are additive modulo 2^64 or exclusive-or.

pub mod beaver;
pub mod bit_to_word;
pub mod compare;
pub mod cross;
pub mod evaluate;
pub mod growing;
pub mod linear;
pub mod masked;
pub mod matmul;
pub mod mul;
pub mod mux;
pub mod mux_all;
pub mod one_hot;
mod opening;
pub(crate) mod packed;
pub mod quickselect;
pub mod reveal;
pub mod row_max;
pub mod shuffle;
pub mod truncate;

use crate::cost::Cost;

/// OTs that one batch of a chosen-OT protocol may use: larger inputs go in several batches, each with its own flows, so
/// that keys and pads stay below some 100 MB.
const BATCH_OTS: usize = 1 << 20;

/// Items of a batch, if each uses `ots` OTs.
fn batch_items(ots: usize) -> usize {
    (BATCH_OTS / ots.max(1)).max(1)
}

/// The cost of `n` items in batches of `batch`.
fn batched_cost(n: usize, batch: usize, cost: impl Fn(usize) -> Cost) -> Cost {
    let sizes = std::iter::repeat_n(batch, n / batch).chain((!n.is_multiple_of(batch)).then_some(n % batch));
    sizes.fold(Cost::free(), |total, size| total.then(cost(size)))
}
