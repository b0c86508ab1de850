//! Operations, one file each.
//!
//! Every file states functionality, source, range in -> range out, error bound and what is revealed. It holds the
//! operation as a value ([`Operation`](crate::Operation)): its sizes, its correlations, its cost, its protocol and
//! its reference. A protocol has a direct form, and some have a prepared form, which takes correlations made ahead.
//!
//! Inside a protocol, values are flat slices of words. Shares are additive modulo 2^64 or exclusive-or.

pub mod b2a;
pub mod carry;
pub mod compare;
pub(crate) mod dealt;
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
pub mod scaled_squares;
pub mod shuffle;
pub mod sum_squares;
pub mod truncate;

use std::convert::Infallible;

use crate::cost::Cost;
pub use b2a::B2a;
pub use compare::AtLeast;
pub use embed::Embed;
pub use evaluate::{Evaluate, Function};
pub use extend::ExtendColumns;
pub use fss::counts::CountAtLeast;
pub use fss::tails::EvaluateNear;
pub use fss::threshold::NonZero;
pub use linear::Linear;
pub use matmul::Matmul;
pub use mul::{Mul, MulRows};
pub use mux::{Choose, Mux, Select, Selector};
pub use mux_columns::MuxColumns;
pub use one_hot::OneHot;
pub use quickselect::Quickselect;
pub use reveal::{Open, Reveal, RevealRounded};
pub use row_max::RowMax;
pub use scaled_squares::{ScaleRows, SquareRows};
pub use shuffle::{Permutations, Permute, Shuffle};
pub use sum_squares::SumSquares;
pub use truncate::Truncation;

/// The most OTs in one batch of a chosen-OT protocol. Larger inputs go in several batches, each with its own flows,
/// so that keys and pads stay below some 100 MB.
const BATCH_OTS: usize = 1 << 20;

/// The number of items in a batch, if each item uses `ots` OTs.
fn batch_items(ots: usize) -> usize {
    (BATCH_OTS / ots.max(1)).max(1)
}

/// The cost of `n` items in batches of up to `batch` items. `cost` returns the cost of a batch of the size that it is
/// passed.
fn batched_cost(n: usize, batch: usize, cost: impl Fn(usize) -> Cost) -> Cost {
    let Ok(total) = Cost::in_batches(n, batch, |size| Ok::<_, Infallible>(cost(size)));
    total
}
