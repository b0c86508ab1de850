//! Largest and smallest entry of each row at once, and magnitudes.
//!
//! A tournament: the first round compares neighbours and knows winners and losers by one comparison, later rounds play
//! the winners for the maximum and the losers for the minimum, batched together. Comparisons drop the low [`DROPPED`]
//! bits of the differences, so each round errs by less than [`UNIT`], towards the other entry of the pair: results are
//! entries of the row, the maximum never above and the minimum never below the true one.
//!
//! Range: |x| < 2^[`MAGNITUDE`]. Error: ceil(log2 n) [`UNIT`]. Nothing is revealed. Per round: one comparison and one
//! multiplexer per pair.

use crate::abb::{Abb, Truncation, Words};
use crate::{Error, FRAC, Tensor};

/// log2 of the bound on magnitudes.
pub const MAGNITUDE: u32 = 9;

/// Low bits that the comparisons do not look at.
pub const DROPPED: u32 = 8;

/// Resolution of the comparisons.
pub const UNIT: f64 = 1.0 / (1u64 << (FRAC - DROPPED)) as f64;

/// Ring of the tournament: differences are below 2^(MAGNITUDE + 1).
const WIDTH: u32 = FRAC + MAGNITUDE + 2;

/// (..., n) -> (...): maximum and minimum over the last axis, modulo 2^64.
pub fn extrema<B: Abb>(b: &mut B, x: &B::Words) -> Result<(B::Words, B::Words), Error> {
    let shape = x.shape();
    let (&n, leading) = shape.split_last().expect("at least one axis");
    assert!(n > 0, "extrema of nothing");
    let rows = leading.iter().product::<usize>();
    b.scope("extrema", |b| {
        b.expect_below(x, MAGNITUDE + FRAC)?;
        let x = x.reshape(&[rows, n]);
        let half = n / 2;
        let rest = x.slice(1, 2 * half..n);
        let (first, second) = (x.slice(1, 0..half), x.slice(1, half..2 * half));
        let (high, low) = play(b, &first, &second)?;
        let mut high = B::Words::concat(1, &[&high, &rest]);
        let mut low = B::Words::concat(1, &[&low, &rest]);
        while high.shape()[1] > 1 {
            let n = high.shape()[1];
            let half = n / 2;
            let firsts = B::Words::concat(0, &[&high.slice(1, 0..half), &low.slice(1, half..2 * half)]);
            let seconds = B::Words::concat(0, &[&high.slice(1, half..2 * half), &low.slice(1, 0..half)]);
            let (winners, losers) = play(b, &firsts, &seconds)?;
            high = B::Words::concat(1, &[&winners.slice(0, 0..rows), &high.slice(1, 2 * half..n)]);
            low = B::Words::concat(1, &[&losers.slice(0, rows..2 * rows), &low.slice(1, 2 * half..n)]);
        }
        let both = B::Words::concat(0, &[&high, &low]);
        let both = b.truncate(&both, Truncation { width: WIDTH, shift: 0, out: 64 })?;
        Ok((both.slice(0, 0..rows).reshape(leading), both.slice(0, rows..2 * rows).reshape(leading)))
    })
}

/// The larger and the smaller of each pair, modulo 2^WIDTH.
fn play<B: Abb>(b: &mut B, first: &B::Words, second: &B::Words) -> Result<(B::Words, B::Words), Error> {
    let difference = first.minus(second);
    let coarse = difference.drop_low(DROPPED, WIDTH);
    let larger = b.at_least(&coarse, &[0], WIDTH - DROPPED)?.reshape(&difference.shape());
    let excess = b.mux(&larger, &difference, WIDTH)?;
    Ok((second.plus(&excess), first.minus(&excess)))
}

/// |x| entrywise, modulo 2^64, within [`UNIT`]; |x| < 2^[`MAGNITUDE`].
pub fn abs<B: Abb>(b: &mut B, x: &B::Words) -> Result<B::Words, Error> {
    b.scope("abs", |b| {
        b.expect_below(x, MAGNITUDE + FRAC)?;
        let coarse = x.drop_low(DROPPED, WIDTH);
        let positive = b.at_least(&coarse, &[0], WIDTH - DROPPED)?.reshape(&x.shape());
        let twice = b.mux(&positive, &x.times(2), WIDTH)?;
        b.truncate(&twice.minus(x), Truncation { width: WIDTH, shift: 0, out: 64 })
    })
}
