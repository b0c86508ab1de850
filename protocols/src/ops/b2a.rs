//! From a shared bit to a shared word.
//!
//! **Functionality.** XOR shares of b -> additive shares of b modulo 2^w.
//!
//! **Source.** b = b_s + b_c - 2 b_s b_c. The product of the two private bits is one correlated OT modulo 2^(w-1),
//! half of what selecting a public 1 would take (CrypTFlow2, eprint 2020/1002, section 3.1). Prepared, it is the
//! product of a [truncation](super::truncate)'s top bits: one exchange of a bit.
//!
//! **Range.** Any bit; 1 <= w <= 64. **Error.** None. **Revealed.** Nothing.

use net::Role;
use ot::{Bits, Correlation};

use crate::operation::prelude::*;
use crate::ops::truncate::{Wrap, prepared, prepared_cost};
use crate::wire::cross::{self, Side};

/// The bits as words 0 or 1 modulo 2^`width`.
#[derive(Clone, Copy, Debug)]
pub struct B2a {
    /// Bits of the ring of the result, 1..=64.
    pub width: u32,
}

impl Operation for B2a {
    entrywise!(Bits -> Words);

    fn correlations(&self, shape: &Vec<usize>, options: &Options) -> Option<Need> {
        let n = shape.iter().product();
        (options.preprocess && n > 0 && self.width > 1).then(|| Need::new(Wrap { bits: self.width - 1 }, n))
    }

    fn cost(&self, shape: &Vec<usize>, is_prepared: bool, _: &mut Plans) -> Result<Cost, Error> {
        let n = shape.iter().product();
        Ok(if is_prepared { prepared_cost(n) } else { cost(n, self.width) })
    }

    fn run(&self, s: &mut Session, bits: &ArrayD<u8>, correlations: Option<&[u64]>) -> Result<ArrayD<u64>, Error> {
        let words = match correlations {
            Some(wraps) => {
                let own: Vec<u64> = bits.iter().map(|bit| u64::from(*bit)).collect();
                let both = prepared(s, &own, wraps, self.width - 1)?;
                own.iter().zip(both).map(|(bit, both)| bit.wrapping_sub(both << 1)).collect()
            }
            None => b2a(s, &flat(bits), self.width)?,
        };
        Ok(shaped(bits.shape(), words))
    }

    fn twin(&self, _: &mut Twin, bits: &ArrayD<u8>) -> Result<ArrayD<u64>, Error> {
        Ok(bits.mapv(u64::from))
    }
}

/// Shares of the bits as words modulo 2^`width`.
pub fn b2a(s: &mut Session, bits: &[u8], width: u32) -> Result<Vec<u64>, Error> {
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

/// Cost of [`b2a`] of `n` bits.
pub fn cost(n: usize, width: u32) -> Cost {
    shape(n, width).map_or_else(Cost::free, |shape| cross::one_way_cost(&shape))
}

/// The correlated OTs needed. Modulo 2 none are, because both kinds of shares are the same.
fn shape(n: usize, width: u32) -> Option<Correlation> {
    (n > 0 && width > 1).then(|| Correlation::new(n, 1, &[width - 1]).expect("a width of 1..=64"))
}
