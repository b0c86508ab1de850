//! Selection: a shared bit times a shared word.
//!
//! **Functionality.** XOR shares of b and shares of x modulo 2^w -> shares of b x modulo 2^w.
//!
//! **Source.** (b_0 + b_1 - 2 b_0 b_1)(x_0 + x_1): party i keeps b_i x_i and the parties share
//! b_{1-i} (1 - 2 b_i) x_i by correlated OT, one in each direction (CrypTFlow2, eprint 2020/1002, section 3.1, with
//! correlated instead of chosen OT).
//!
//! **Range.** Any. **Error.** None. **Revealed.** Nothing.

use ot::{Bits, Correlation};

use crate::Error;
use crate::cost::Cost;
use crate::ops::cross;
use crate::session::Session;

/// Shares of b x modulo 2^`width` from this party's bit and word shares: as many words for every bit.
pub fn mux(s: &mut Session, bits: &[u8], x: &[u64], width: u32) -> Result<Vec<u64>, Error> {
    if x.is_empty() {
        return Ok(Vec::new());
    }
    let slots = x.len() / bits.len();
    assert_eq!(bits.len() * slots, x.len(), "whole rows of words");
    let rows = || bits.iter().zip(x.chunks_exact(slots));
    let words: Vec<u64> = rows().flat_map(|(&b, x)| x.iter().map(move |&x| if_bit(b, x.wrapping_neg(), x))).collect();
    let choices = Bits::from_fn(bits.len(), |i| bits[i] == 1);
    let mut out = cross::two_way(s, &shape(bits.len(), slots, width), &choices, &words)?;
    for (out, (&b, x)) in out.chunks_exact_mut(slots).zip(rows()) {
        out.iter_mut().zip(x).for_each(|(out, &x)| *out = out.wrapping_add(if_bit(b, x, 0)));
    }
    Ok(out)
}

/// Cost of [`mux`] of `n` words.
pub fn cost(n: usize, width: u32) -> Cost {
    rows_cost(n, 1, width)
}

/// Cost of [`mux`] of `n` bits with `slots` words each.
pub fn rows_cost(n: usize, slots: usize, width: u32) -> Cost {
    if n * slots == 0 { Cost::free() } else { cross::two_way_cost(&shape(n, slots, width)) }
}

fn shape(n: usize, slots: usize, width: u32) -> Correlation {
    Correlation::new(n, slots, &[width]).expect("a width of 1..=64")
}

/// `one` if the bit is 1, else `zero`, without a branch.
pub(crate) fn if_bit(bit: u8, one: u64, zero: u64) -> u64 {
    let select = u64::from(bit).wrapping_neg();
    (one & select) | (zero & !select)
}
