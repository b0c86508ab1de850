//! Largest and smallest entry of every row at once, and absolute values.
//!
//! **Functionality.** [`extrema`]: (rows, n) -> (rows) maxima and (rows) minima. [`abs`]: |x| entrywise.
//!
//! **Source.** A tournament:
//!
//! ```text
//! first round:  compare disjoint pairs (a, b); keep the winner b + [a >= b](a - b)
//!               and the loser a - [a >= b](a - b)
//! later rounds: maxima of the winners and of the negated losers, side by side
//! ```
//!
//! All rounds together take 3n/2 comparisons instead of 2n. Each of the ceil(log2 n) rounds has one comparison and
//! one multiplexer.
//!
//! **Range.** |x| < 2^9 at [`FRAC`] fractional bits; results modulo 2^[`EXTREMA_WIDTH`]. **Error.** Comparisons look
//! at differences without their low [`DROPPED`] bits and lose the carry of the shares' low halves. So in each round
//! the winner may be smaller than the loser by less than [`UNIT`]. A maximum is an entry at most ceil(log2 n)
//! [`UNIT`] below the largest, and a minimum likewise. `abs` may be -|x| where |x| < [`UNIT`].
//!
//! **What each party sees.** Masked messages of comparisons and multiplexers. **Revealed.** Nothing.

use super::tournament::{Round, pair};
use crate::abb::Abb;
use crate::ops::{AtLeast, Mux};
use crate::words::Words;
use crate::{Error, FRAC, Lengths, Tensor};

/// Bits of the ring of the results: differences are below 2^10.
pub const EXTREMA_WIDTH: u32 = FRAC + 11;

/// Low bits that the comparisons ignore.
pub const DROPPED: u32 = 8;

/// Resolution of the comparisons.
pub const UNIT: f64 = 1.0 / (1u64 << (FRAC - DROPPED)) as f64;

/// Maxima and minima over the last axis: (rows, n), n >= 1 -> (rows), (rows).
pub fn extrema<B: Abb>(b: &mut B, x: &B::Words) -> Result<(B::Words, B::Words), Error> {
    let (rows, n) = match x.shape()[..] {
        [rows, n] if n > 0 => (rows, n),
        ref shape => panic!("extrema of rows of {shape:?}"),
    };
    b.scope("extrema", |b| {
        b.expect_below(x, 1 << (EXTREMA_WIDTH - 2), FRAC)?;
        let Round { left, right, single, order, next } = pair(&Lengths::equal(n, rows));
        let (a, c) = (x.pick(&left), x.pick(&right));
        let gain = larger_part(b, &a.minus(&c))?;
        let rest = x.pick(&single);
        let winners = B::Words::concat(0, &[&c.plus(&gain), &rest]).pick(&order);
        let losers = B::Words::concat(0, &[&a.minus(&gain), &rest]).pick(&order);
        // Minima are maxima of negated values.
        let mut both = B::Words::concat(0, &[&winners, &losers.times(u64::MAX)]);
        let mut lengths = next.times(2);
        while lengths.counts().longest() > 1 {
            let Round { left, right, single, order, next } = pair(&lengths);
            let winners = larger(b, &both.pick(&left), &both.pick(&right))?;
            both = B::Words::concat(0, &[&winners, &both.pick(&single)]).pick(&order);
            lengths = next;
        }
        Ok((both.slice(0, 0..rows), both.slice(0, rows..2 * rows).times(u64::MAX)))
    })
}

/// |x|, entrywise, modulo 2^[`EXTREMA_WIDTH`].
pub fn abs<B: Abb>(b: &mut B, x: &B::Words) -> Result<B::Words, Error> {
    b.scope("abs", |b| {
        b.expect_below(x, 1 << (EXTREMA_WIDTH - 2), FRAC)?;
        Ok(larger(b, &x.reshape(&[x.len()]), &x.reshape(&[x.len()]).times(u64::MAX))?.reshape(&x.shape()))
    })
}

fn larger<B: Abb>(b: &mut B, a: &B::Words, c: &B::Words) -> Result<B::Words, Error> {
    Ok(c.plus(&larger_part(b, &a.minus(c))?))
}

/// d where d >= 0 and 0 elsewhere, for a vector of differences d of pairs of entries.
fn larger_part<B: Abb>(b: &mut B, difference: &B::Words) -> Result<B::Words, Error> {
    let coarse = difference.drop_low(DROPPED, EXTREMA_WIDTH);
    let positive =
        b.apply(AtLeast { thresholds: &[0], width: EXTREMA_WIDTH - DROPPED }, &coarse)?.reshape(&[difference.len()]);
    b.apply(Mux { width: EXTREMA_WIDTH }, (&positive, difference))
}
