//! From a shared bit to a shared word.
//!
//! **Functionality.** XOR shares of b -> additive shares of b modulo 2^w.
//!
//! **Source.** b = b_s + b_c - 2 b_s b_c: the product of the two private bits is one correlated OT modulo 2^(w-1), half of
//! what selecting a public 1 would take (CrypTFlow2, eprint 2020/1002, section 3.1).
//!
//! **Range.** Any bit; 1 <= w <= 64. **Error.** None. **Revealed.** Nothing.

use net::Role;
use ot::{Bits, Correlation};

use crate::Error;
use crate::cost::Cost;
use crate::ops::cross::{self, Side};
use crate::session::Session;

/// Shares of the bits as words modulo 2^`width`.
pub fn bit_to_word(s: &mut Session, bits: &[u8], width: u32) -> Result<Vec<u64>, Error> {
    let own = |bit: &u8| u64::from(*bit);
    let Some(shape) = shape(bits.len(), width) else { return Ok(bits.iter().map(own).collect()) };
    let both = match s.role() {
        Role::Client => cross::one_way(s, &shape, Side::Choose(&Bits::from_fn(bits.len(), |i| bits[i] == 1)))?,
        Role::Server => {
            let words: Vec<u64> = bits.iter().map(own).collect();
            cross::one_way(s, &shape, Side::Supply(&words))?
        }
    };
    Ok(bits.iter().zip(both).map(|(bit, both)| own(bit).wrapping_sub(both << 1)).collect())
}

/// Cost of [`bit_to_word`] of `n` bits.
pub fn cost(n: usize, width: u32) -> Cost {
    shape(n, width).map_or_else(Cost::free, |shape| cross::one_way_cost(&shape))
}

/// The correlated OTs needed: none modulo 2, where both kinds of shares are the same.
fn shape(n: usize, width: u32) -> Option<Correlation> {
    (n > 0 && width > 1).then(|| Correlation::new(n, 1, &[width - 1]).expect("a width of 1..=64"))
}
