//! Selection: a shared bit times a shared word.
//!
//! **Functionality.** XOR shares of b and shares of x modulo 2^w -> shares of b x modulo 2^w.
//!
//! **Source.** (b_0 + b_1 - 2 b_0 b_1)(x_0 + x_1): party i keeps b_i x_i and the parties share
//! b_{1-i} (1 - 2 b_i) x_i by correlated OT, one in each direction (CrypTFlow2, eprint 2020/1002, section 3.1, with
//! correlated instead of chosen OT). The choices depend on the bits alone: where they are known before the words, they are
//! sent before ([`selectors`]), for several selections at once.
//!
//! **Range.** Any. **Error.** None. **Revealed.** Nothing.

use ot::{Bits, Correlation};

use crate::Error;
use crate::cost::Cost;
use crate::ops::cross::{self, Chosen};
use crate::session::Session;

/// A party's share of bits, of which its choices were sent: for one selection.
pub struct Selector {
    bits: Vec<u8>,
    chosen: Chosen,
}

/// Sends choices for `N` selections by the same bits.
pub fn selectors<const N: usize>(s: &mut Session, bits: &[u8]) -> Result<[Selector; N], Error> {
    let n = bits.len();
    let mut chosen = cross::choose(s, &Bits::from_fn(N * n, |i| bits[i % n] == 1))?;
    Ok(std::array::from_fn(|_| {
        let rest = chosen.split_off(n);
        Selector { bits: bits.to_vec(), chosen: std::mem::replace(&mut chosen, rest) }
    }))
}

/// Cost of `uses` [`selectors`] by `n` bits.
pub fn selectors_cost(uses: usize, n: usize) -> Cost {
    cross::choose_cost(uses * n)
}

impl Selector {
    /// Shares of b x modulo 2^`width` from this party's word shares: as many words for every bit.
    pub fn select(self, s: &mut Session, x: &[u64], width: u32) -> Result<Vec<u64>, Error> {
        let Selector { bits, chosen } = self;
        if x.is_empty() {
            return Ok(Vec::new());
        }
        let slots = x.len() / bits.len();
        assert_eq!(bits.len() * slots, x.len(), "whole rows of words");
        let rows = || bits.iter().zip(x.chunks_exact(slots));
        let words: Vec<u64> =
            rows().flat_map(|(&b, x)| x.iter().map(move |&x| if_bit(b, x.wrapping_neg(), x))).collect();
        let mut out = chosen.answer(s, &shape(bits.len(), slots, width), &words)?;
        for (out, (&b, x)) in out.chunks_exact_mut(slots).zip(rows()) {
            out.iter_mut().zip(x).for_each(|(out, &x)| *out = out.wrapping_add(if_bit(b, x, 0)));
        }
        Ok(out)
    }
}

/// Cost of [`Selector::select`] of `n` words, one for each bit.
pub fn select_cost(n: usize, width: u32) -> Cost {
    if n == 0 { Cost::free() } else { cross::answer_cost(&shape(n, 1, width)) }
}

/// Shares of b x modulo 2^`width` from this party's bit and word shares: as many words for every bit.
pub fn mux(s: &mut Session, bits: &[u8], x: &[u64], width: u32) -> Result<Vec<u64>, Error> {
    if x.is_empty() {
        return Ok(Vec::new());
    }
    let [selector] = selectors(s, bits)?;
    selector.select(s, x, width)
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
