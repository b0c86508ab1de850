//! Truncation with change of ring, for values whose sign can be made known.
//!
//! **Functionality.** Shares of x modulo 2^w -> shares of x / 2^s modulo 2^o, for `Truncation { width: w, shift: s,
//! out: o }`.
//!
//! **Source.** One-bit-error truncation with known most significant bit (BumbleBee, eprint 2023/1678, section on
//! truncation; Cheetah, eprint 2022/207, section 4.3).
//!
//! ```text
//! x' = x + 2^(w-2) - [s > 0], which lies in [0, 2^(w-1))
//! a, b = the top bits of the shares x_0' and x_1'
//! wrap = a or b = a + b - a b
//! x / 2^s ~ (x_0' >> s) + (x_1' >> s) - wrap 2^(w-s) + [s > 0] - (2^(w-2) >> s)
//! ```
//!
//! The shares of x' wrap around 2^w exactly if at least one of them has its top bit set. Sharing a b takes **one**
//! correlated OT of u = o - w + s bits, since wrap counts 2^(w-s) modulo 2^o. With u <= 0 nothing is sent.
//!
//! **Range.** |x| < 2^(w-2). Other words give wrong results, but never above [`ceiling`]. **Error.** The sum of
//! `x_0' >> s` and `x_1' >> s` misses the carry of the low halves, and one is added for it. There is no carry with
//! probability (x' mod 2^s + 1) / 2^s over the choice of shares. So the result is one of the two neighbours of
//! x / 2^s at random, and x / 2^s on average, because x' is one less than the shifted x. Sums need that: without the
//! one, every term would be too large by 2^-s on average, and thousands of probabilities that lose three bits would
//! have a sum well above 1. A multiple of 2^s is exact, and so is all for s = 0.
//!
//! **Revealed.** Nothing.

use net::Role;
use ot::{Bits, Correlation};

use ndarray::ArrayD;

use crate::cost::Cost;
use crate::form::{Form, Shapes};
use crate::operation::{Operation, flat, shaped};
use crate::plans::Plans;
use crate::session::Session;
use crate::twin::Twin;
use crate::wire::cross::{self, Side};
use crate::words::{mask, signed};
use crate::{Error, Tensor};

/// A signed truncation with change of ring: from words modulo 2^`width` to words modulo 2^`out`.
///
/// Range: |x| < 2^(width-2). Result: x / 2^shift rounded to one of the two neighbouring integers (floor(x / 2^shift)
/// or that plus 1; exact when `shift` is 0), modulo 2^`out`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truncation {
    /// Bits of the ring of the input, 3..=64.
    pub width: u32,
    /// Bits dropped, less than `width - 1`.
    pub shift: u32,
    /// Bits of the ring of the result, 1..=64.
    pub out: u32,
}

impl Truncation {
    fn check(self) {
        let Truncation { width, shift, out } = self;
        assert!((3..=64).contains(&width) && shift < width - 1 && (1..=64).contains(&out), "{self:?}");
    }
}

impl Operation for Truncation {
    type Input<'a, F: Form> = &'a F::Words;
    type Output<F: Form> = F::Words;
    type Size = Vec<usize>;

    fn size<F: Form>(&self, x: &&F::Words) -> Vec<usize> {
        x.shape()
    }

    fn cost(&self, shape: &Vec<usize>, _: bool, _: &mut Plans) -> Result<Cost, Error> {
        Ok(cost(shape.iter().product(), *self))
    }

    fn run(&self, s: &mut Session, x: &ArrayD<u64>, _: Option<&[u64]>) -> Result<ArrayD<u64>, Error> {
        let mut words = flat(x);
        truncate(s, &mut words, *self)?;
        Ok(shaped(x.shape(), words))
    }

    /// Rounds to nearest.
    fn twin(&self, twin: &mut Twin, x: &ArrayD<u64>) -> Result<ArrayD<u64>, Error> {
        self.check();
        let rounded = twin.rounded("truncate", x, self.width, self.shift)?;
        Ok(rounded.mapv(|v| signed(v as u64, self.out) as u64))
    }

    fn planned(&self, shape: Vec<usize>) -> <Shapes as Form>::Words {
        crate::Shape(shape)
    }
}

/// Truncates the shares `x` in place; the result is modulo 2^`how.out`.
pub fn truncate(s: &mut Session, x: &mut [u64], how: Truncation) -> Result<(), Error> {
    how.check();
    let Truncation { width, shift, .. } = how;
    let offset = 1u64 << (width - 2);
    let carry = u64::from(shift > 0);
    let server = s.role() == Role::Server;
    if server {
        x.iter_mut().for_each(|x| *x = x.wrapping_add(offset - carry));
    }
    x.iter_mut().for_each(|x| *x &= mask(width));
    if let Some(shape) = shape(x.len(), how) {
        let top = |x: &u64| x >> (width - 1);
        // Shares of a b. This party's own top bit is its part of a + b.
        let both = if server {
            let tops: Vec<u64> = x.iter().map(top).collect();
            cross::one_way(s, &shape, Side::Supply(&tops))?
        } else {
            let tops = Bits::from_fn(x.len(), |i| top(&x[i]) == 1);
            cross::one_way(s, &shape, Side::Choose(&tops))?
        };
        for (x, both) in x.iter_mut().zip(both) {
            let wrap = top(x).wrapping_sub(both);
            *x = (*x >> shift).wrapping_sub(wrap << (width - shift));
        }
    } else {
        x.iter_mut().for_each(|x| *x >>= shift);
    }
    if server {
        let correction = carry.wrapping_sub(offset >> shift);
        x.iter_mut().for_each(|x| *x = x.wrapping_add(correction));
    }
    Ok(())
}

/// The largest magnitude that `how` returns to a ring of 64 bits, for any input, in range or not.
///
/// The result is q + c - 2^(w-2-s). Here q = (x_0' >> s) + (x_1' >> s) - wrap 2^(w-s), c is 0 or 1, and wrap is the
/// "or" of the shares' top bits. Without a wrap both shares are below 2^(w-1), so 0 <= q <= 2^(w-s) - 2. With a wrap
/// one share is at least 2^(w-1) and both are below 2^w, so -2^(w-s-1) <= q <= 2^(w-s) - 2. The result therefore lies
/// within 3/4 2^(w-s) of zero.
pub fn ceiling(how: Truncation) -> u64 {
    let Truncation { width, shift, out } = how;
    assert!(out == 64 && shift < width - 1 && width - shift < 64, "{how:?}");
    3 << (width - shift - 2)
}

/// Cost of [`truncate`] on `n` words.
pub fn cost(n: usize, how: Truncation) -> Cost {
    shape(n, how).map_or_else(Cost::free, |shape| cross::one_way_cost(&shape))
}

/// The correlated OTs needed, if any: the wrap counts 2^(width - shift) modulo 2^out.
fn shape(n: usize, how: Truncation) -> Option<Correlation> {
    let bits = (how.out + how.shift).checked_sub(how.width).filter(|&bits| bits > 0)?;
    (n > 0).then(|| Correlation::new(n, 1, &[bits]).expect("a width of 1..=64"))
}
