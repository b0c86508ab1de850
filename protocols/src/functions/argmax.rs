//! The position of the largest entry of each row, by a tournament that carries positions along.
//!
//! **Error.** None: comparisons are exact; ties go to either. **Range.** |x| < 2^11, n < 2^30. **Revealed.** Nothing.
//! *Cost.* ceil(log2 n) rounds of one comparison and one multiplexer.

use super::tournament::{Round, pair};
use crate::abb::Abb;
use crate::ops::{AtLeast, Mux};
use crate::words::Words;
use crate::{Error, FRAC, Lengths, Tensor};

/// Bits of the ring of the comparisons and of the result: differences are below 2^12.
pub const ARGMAX_WIDTH: u32 = FRAC + 13;

/// (rows, n) -> (rows): the position of the largest entry of each row, modulo 2^[`ARGMAX_WIDTH`].
pub fn argmax<B: Abb>(b: &mut B, x: &B::Words) -> Result<B::Words, Error> {
    let shape = x.shape();
    let [rows, n] = shape[..] else { panic!("argmax of rows, not of {shape:?}") };
    let limit = (1 << (ARGMAX_WIDTH - 1)) - 1;
    if !(1..=limit).contains(&n) {
        return Err(Error::TooMany { operation: "argmax", limit, got: n });
    }
    b.scope("argmax", |b| {
        let mut x = x.reshape(&[rows * n]);
        b.expect_below(&x, 1 << (ARGMAX_WIDTH - 2), FRAC)?;
        let mut at = b.public(&[rows * n], |i| (i[0] % n) as u64);
        let mut lengths = Lengths::equal(n, rows);
        while lengths.counts().longest() > 1 {
            let Round { left, right, single, order, next } = pair(&lengths);
            let (x_right, at_right) = (x.pick(&right), at.pick(&right));
            let difference = x.pick(&left).minus(&x_right);
            let larger =
                b.apply(AtLeast { thresholds: &[0], width: ARGMAX_WIDTH }, &difference)?.reshape(&[left.len()]);
            // One multiplexer moves the values and the positions.
            let both = B::Words::concat(0, &[&difference, &at.pick(&left).minus(&at_right)]);
            let moved = b.apply(Mux { width: ARGMAX_WIDTH }, (&B::Bits::concat(0, &[&larger, &larger]), &both))?;
            let x_won = x_right.plus(&moved.slice(0, 0..left.len()));
            let at_won = at_right.plus(&moved.slice(0, left.len()..2 * left.len()));
            x = B::Words::concat(0, &[&x_won, &x.pick(&single)]).pick(&order);
            at = B::Words::concat(0, &[&at_won, &at.pick(&single)]).pick(&order);
            lengths = next;
        }
        Ok(at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Clear;
    use ndarray::{ArrayD, IxDyn};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn position_of_the_exact_maximum(
            x in prop::collection::vec(-(1i64 << 29) + 1..1 << 29, 1..400),
            rows in 1usize..5,
        ) {
            let n = x.len().div_ceil(rows);
            let x: Vec<i64> = (0..rows * n).map(|i| x[i % x.len()]).collect();
            let words = ArrayD::from_shape_fn(IxDyn(&[rows, n]), |i| x[i[0] * n + i[1]] as u64);
            let got = argmax(&mut Clear::new(), &words).unwrap();
            prop_assert_eq!(got.shape(), &[rows]);
            for (row, at) in x.chunks(n).zip(got) {
                prop_assert_eq!(row[at as usize], *row.iter().max().unwrap());
            }
        }
    }

    #[test]
    fn a_vocabulary_with_neighbouring_values() {
        let n = 50_257;
        for best in [0, 1, 31_337, n - 1] {
            let value = |i: usize| if i == best { -(1i64 << 20) } else { -(1i64 << 20) - 1 };
            let words = ArrayD::from_shape_fn(IxDyn(&[1, n]), |i| value(i[1]) as u64);
            assert_eq!(argmax(&mut Clear::new(), &words).unwrap()[[0]], best as u64);
        }
    }
}
