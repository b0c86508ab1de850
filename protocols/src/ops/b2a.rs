//! A shared bit as a shared word.
//!
//! **Functionality.** XOR shares of b -> additive shares of b modulo 2^w.
//!
//! **Source.** For the server's share b_s and the client's share b_c, b = b_s + b_c - 2 b_s b_c. The product of the
//! two private bits is one correlated OT modulo 2^(w-1), half of what selecting a public 1 would take (CrypTFlow2,
//! eprint 2020/1002, section 3.1). In the prepared form, the product is made like the product of the top bits in a
//! [truncation](super::truncate), and each party sends one bit.
//!
//! **Range.** Any bit; 1 <= w <= 64. **Error.** None. **Revealed.** Nothing.

use waggle_ot::{Bits, CotShape};

use crate::operation::prelude::*;
use crate::ops::truncate::{Wrap, prepared, prepared_cost};
use crate::wire::cross;

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

    fn cost(&self, size: &Vec<usize>, is_prepared: bool, _: &mut Plans) -> Result<Cost, Error> {
        let n = size.iter().product();
        let direct = || shape(n, self.width).map_or_else(Cost::free, |shape| cross::one_way_cost(&shape));
        Ok(if is_prepared { prepared_cost(n) } else { direct() })
    }

    fn run(&self, s: &mut Session, bits: &ArrayD<u8>, correlations: Option<&[u64]>) -> Result<ArrayD<u64>, Error> {
        let mut words: Vec<u64> = bits.iter().map(|bit| u64::from(*bit)).collect();
        let both = match (correlations, shape(words.len(), self.width)) {
            (Some(wraps), _) => prepared(s, &words, wraps, self.width - 1)?,
            (None, None) => Vec::new(),
            (None, Some(shape)) => {
                let choices = || Bits::from_fn(words.len(), |i| words[i] == 1);
                cross::one_way(s, &shape, choices, || words.clone())?
            }
        };
        words.iter_mut().zip(both).for_each(|(bit, both)| *bit = bit.wrapping_sub(both << 1));
        Ok(shaped(bits.shape(), words))
    }

    fn reference(&self, _: &mut Reference, bits: &ArrayD<u8>) -> Result<ArrayD<u64>, Error> {
        Ok(bits.mapv(u64::from))
    }
}

/// The correlated OTs needed. Modulo 2 no OTs are needed, because both kinds of shares are the same.
fn shape(n: usize, width: u32) -> Option<CotShape> {
    (n > 0 && width > 1).then(|| CotShape::new(n, 1, &[width - 1]).expect("a width of 1..=64"))
}
