//! Operations, one file each.
//!
//! Every file states functionality, source, range in -> range out, error bound and what is revealed. It holds the
//! operation as a value ([`Operation`](crate::Operation)): its sizes, its correlations, its cost, its protocol and
//! its twin. A protocol has a direct form, and some have a prepared form, which takes correlations made ahead.
//!
//! Inside a protocol, values are flat slices of words. Shares are additive modulo 2^64 or exclusive-or.

pub mod b2a;
pub mod cached;
pub mod compare;
pub mod embed;
pub mod evaluate;
pub mod extend;
pub mod fss;
pub mod linear;
pub mod lookup;
pub mod matmul;
pub mod mul;
pub mod mux;
pub mod mux_all;
pub mod mux_columns;
pub mod one_hot;
pub mod private;
pub mod quickselect;
pub mod reveal;
pub mod row_max;
pub mod shuffle;
pub mod sum_squares;
pub mod truncate;

use std::convert::Infallible;

use crate::cost::Cost;

/// The most OTs in one batch of a chosen-OT protocol. Larger inputs go in several batches, each with its own flows,
/// so that keys and pads stay below some 100 MB.
const BATCH_OTS: usize = 1 << 20;

/// Items of a batch, if each uses `ots` OTs.
fn batch_items(ots: usize) -> usize {
    (BATCH_OTS / ots.max(1)).max(1)
}

/// The cost of `n` items in batches of `batch`.
fn batched_cost(n: usize, batch: usize, cost: impl Fn(usize) -> Cost) -> Cost {
    let Ok(total) = Cost::in_batches(n, batch, |size| Ok::<_, Infallible>(cost(size)));
    total
}
