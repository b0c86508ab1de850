//! The largest entry of every row, rounded down coarsely.
//!
//! Every entry is cut to a multiple of [`UNIT`]; on shares it may be cut to the next lower one. The maximum of these
//! multiples is found exactly ([`RowMax`]). So the result lies less than 2 [`UNIT`] below the largest entry and never
//! above it. A softmax tolerates this, because its exponential takes differences down to -[`EXP_MARGIN`].
//!
//! **Range.** -2^9 + [`UNIT`] <= x < 2^9. **Revealed.** Nothing. *Cost.* One exact maximum of rows of words of 13
//! bits.

use crate::abb::Abb;
use crate::functions::exp::EXP_MARGIN;
use crate::ops::row_max::RowMax;
use crate::words::Words;
use crate::{Error, FRAC, Lengths, Tensor};

/// Bits of the ring of the result: differences to it are below 2^10.
pub const MAX_WIDTH: u32 = FRAC + 11;

/// Low bits that are cut off.
const DROPPED: u32 = FRAC - 2;

/// Resolution of the maximum: half the exponential's margin.
pub const UNIT: f64 = 1.0 / (1u64 << (FRAC - DROPPED)) as f64;

const _: () = assert!(2.0 * UNIT <= EXP_MARGIN, "the exponential takes what is cut off");

/// (rows), modulo 2^[`MAX_WIDTH`]: the maxima of rows of different `lengths`, each at least 1, which lie one after
/// another in the vector `x`.
pub fn max_ragged<B: Abb>(b: &mut B, x: &B::Words, lengths: &Lengths) -> Result<B::Words, Error> {
    assert_eq!(x.len(), lengths.total(), "entries of the rows");
    assert!(lengths.counts().iter().all(|(n, _)| n > 0), "lengths of the rows");
    b.scope("max", |b| {
        b.expect_below(x, MAX_WIDTH - 2)?;
        // The lowest unit is left out, so that differences fit even where shares are cut to one unit less.
        let raised = b.add_public(x, (1u64 << DROPPED).wrapping_neg());
        b.expect_below(&raised, MAX_WIDTH - 2)?;
        let coarse = x.drop_low(DROPPED, MAX_WIDTH);
        Ok(b.apply(RowMax { lengths, width: MAX_WIDTH - DROPPED }, &coarse)?.times(1 << DROPPED))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::functions::testing::{fixed, real};
    use crate::tests::{BOTH, secure};
    use crate::words::signed;
    use crate::{Clear, function};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn maxima_of_ragged_rows(
            rows in prop::collection::vec(prop::collection::vec(-511.75f64..511.9999, 1..70), 1..9),
            spread in prop::sample::select(vec![1.0, 0.01, 0.0005]),
        ) {
            let lengths = Lengths::from(&rows.iter().map(Vec::len).collect::<Vec<_>>()[..]);
            let x = fixed(&rows.concat().iter().map(|x| x * spread).collect::<Vec<_>>());
            let clear = max_ragged(&mut Clear::new(), &x, &lengths).unwrap();
            let words: Vec<u64> = x.iter().copied().collect();
            let shared = BOTH.map(|options| {
                let lengths = lengths.clone();
                secure(options, &[(&words, &[words.len()])], function!([lengths: Lengths] |b, x| {
                    max_ragged(b, &x[0], lengths)
                }))
            });
            let mut rest = &words[..];
            for (i, n) in lengths.iter().enumerate() {
                let (row, others) = rest.split_at(n);
                rest = others;
                let want = row.iter().map(|&x| real(x)).fold(f64::MIN, f64::max);
                for (got, units) in [(clear[i], 1.0), (shared[0][i], 2.0), (shared[1][i], 2.0)] {
                    let short = want - real(signed(got, MAX_WIDTH) as u64);
                    prop_assert!((0.0..units * UNIT).contains(&short), "{} below {}", short, want);
                }
            }
        }
    }
}
