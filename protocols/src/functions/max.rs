//! The largest entry of every row of coarse values, by a tournament or by counts.
//!
//! *By a tournament* ([`max_ragged`]). Every entry is rounded down to a multiple of a unit; on shares it may become
//! the multiple below that. The maximum of these multiples is found exactly ([`RowMax`]). So the result is never
//! above the largest entry, and less than two units below it. A softmax tolerates this, because its exponential
//! takes differences a little below 0.
//!
//! *By counts* ([`max_counted`]), for exponentials whose tables take all differences. Every entry is rounded down to
//! a whole number, or on shares sometimes to the number below that, and counted by its value. The largest value has
//! two digits. Each digit is the number of places at which a count is not 0:
//!
//! ```text
//! at[v] = the number of entries that are at least v                           one opening
//! high = the j >= 1 with at[32 j] > 0; they are 1, .., the high digit          one opening
//! fine[k] = at[32 high + k]: one of 32 groups of counts, selected by bits      one opening
//! low = the k >= 1 with fine[k] > 0                                            one opening
//! both digits from bits to words                                               one opening
//! ```
//!
//! The result is this value plus 1, so it lies less than 1 below the largest entry and at most 1 above. Both forms
//! stay right for rows of equal entries, since a count can hold all entries of a row.
//!
//! *Other forms* for 12 rows of 1001 entries, counted from the sizes of keys and messages. The times are those of a
//! link of 3 Gbit/s and 0.3 ms, bytes of the preparation included:
//!
//! | form | prepared, B an entry | online, B an entry | flows | ms |
//! |---|---|---|---|---|
//! | tournament, words of 12 bits | 18 OTs | 20 | 33 | 5.6 |
//! | groups of eight compared by keys of 9 bits | 280 | 9 | 8 | 10.4 |
//! | counts | 211 | 2.3 | 5 | 7.6 |
//!
//! So a short link takes tournaments for long rows. Groups of eight by OTs would take 16 flows, but 64 OTs an entry,
//! and their processor time outweighs the flows.
//!
//! **Range.** -2^9 + one unit <= x < 2^9, and by counts -2^9 + 1 < x. **Revealed.** Nothing. *Cost.* One exact
//! maximum of rows of words of 12 or 13 bits; or five exchanges.

use crate::abb::Abb;
#[cfg(doc)]
use crate::functions::exp::{EXP_MARGIN, WHOLE_MARGIN};
use crate::ops::fss::counts::{VALUE_BITS, VALUES};
use crate::ops::fss::threshold;
use crate::ops::{B2a, CountAtLeast, MuxColumns, NonZero, RowMax};
use crate::words::Words;
use crate::{Error, Evaluation, FRAC, Lengths, Tensor};

/// Bits of the ring of the result: differences to it are below 2^10.
pub const MAX_WIDTH: u32 = FRAC + 11;

/// Low bits of an entry that a tournament cuts off: as many as the exponential behind it tolerates.
fn dropped(evaluation: Evaluation) -> u32 {
    FRAC - if evaluation == Evaluation::Masked { 1 } else { 2 }
}

/// The unit of a tournament's entries, which is half of what the exponential takes below 0: [`WHOLE_MARGIN`] where
/// keys are prepared, and [`EXP_MARGIN`] otherwise.
pub fn unit(evaluation: Evaluation) -> f64 {
    f64::from(1u32 << dropped(evaluation)) / f64::from(1u32 << FRAC)
}

/// The maxima of rows that lie one after another in the vector `x` and have the `lengths`, each at least 1: (rows)
/// modulo 2^[`MAX_WIDTH`].
pub fn max_ragged<B: Abb>(b: &mut B, x: &B::Words, lengths: &Lengths) -> Result<B::Words, Error> {
    assert_eq!(x.len(), lengths.total(), "entries of the rows");
    assert!(lengths.counts().iter().all(|(n, _)| n > 0), "lengths of the rows");
    b.scope("max", |b| {
        b.expect_below(x, 1 << (MAX_WIDTH - 2), FRAC)?;
        // The lowest unit is left out, so that differences fit even where shares are cut to one unit less.
        let dropped = dropped(b.evaluation());
        let raised = b.add_public(x, (1u64 << dropped).wrapping_neg());
        b.expect_below(&raised, 1 << (MAX_WIDTH - 2), FRAC)?;
        let coarse = x.drop_low(dropped, MAX_WIDTH);
        Ok(b.apply(RowMax { lengths, width: MAX_WIDTH - dropped }, &coarse)?.times(1 << dropped))
    })
}

/// log2 of the number of values of a digit of a maximum by counts.
const DIGIT_BITS: u32 = VALUE_BITS / 2;
const DIGIT: usize = 1 << DIGIT_BITS;

/// The most entries of a row whose counts can be compared.
pub const MOST_COUNTED: usize = (1 << threshold::MAX_WIDTH) - 1;

/// For every row a number that lies less than 1 below its largest entry and at most 1 above: (rows) modulo
/// 2^([`FRAC`] + [`VALUE_BITS`]). Rows have up to [`MOST_COUNTED`] entries. `x` and `lengths` are as for
/// [`max_ragged`].
pub fn max_counted<B: Abb>(b: &mut B, x: &B::Words, lengths: &Lengths) -> Result<B::Words, Error> {
    let (rows, longest) = (lengths.rows(), lengths.counts().longest());
    assert!(x.len() == lengths.total() && longest <= MOST_COUNTED, "entries of the rows");
    b.scope("max", |b| {
        b.expect_below(x, 1 << (FRAC + VALUE_BITS - 1), FRAC)?;
        // Shares may be cut to one less, so the lowest number is left out.
        let raised = b.add_public(x, (1u64 << FRAC).wrapping_neg());
        b.expect_below(&raised, 1 << (FRAC + VALUE_BITS - 1), FRAC)?;
        let raised = b.add_public(x, 1 << (FRAC + VALUE_BITS - 1));
        let whole = raised.drop_low(FRAC, FRAC + VALUE_BITS);
        let width = (usize::BITS - longest.leading_zeros()).max(threshold::MIN_WIDTH);
        let at = b.apply(CountAtLeast { lengths, width }, &whole)?.reshape(&[rows, DIGIT, VALUES / DIGIT]);

        let starts = at.slice(2, 0..1).reshape(&[rows, DIGIT]).slice(1, 1..DIGIT);
        let high = b.apply(NonZero { width }, &starts)?;
        // The bits up to the high digit are set, and those after it are not. The bit before the first digit is 1.
        let one = high.slice(1, 0..1);
        let zero = b.xor(&one, &one);
        let one = b.not(&zero);
        let last = b.xor(&B::Bits::concat(1, &[&one, &high]), &B::Bits::concat(1, &[&high, &zero]));
        let groups = at.slice(2, 1..DIGIT).reshape(&[rows * DIGIT, DIGIT - 1]);
        let group = MuxColumns { widths: &[width], words: DIGIT - 1 };
        let fine = b.apply(group, (&last.reshape(&[rows * DIGIT, 1]), &groups))?;
        let fine = fine.reshape(&[rows, DIGIT, DIGIT - 1]).permute(&[0, 2, 1]).sum_last();

        let low = b.apply(NonZero { width }, &fine)?;
        let digits = b.apply(B2a { width: VALUE_BITS }, &B::Bits::concat(1, &[&high, &low]))?;
        let [high, low] =
            [0, 1].map(|digit| digits.slice(1, digit * (DIGIT - 1)..(digit + 1) * (DIGIT - 1)).sum_last());
        let value = high.times(1 << DIGIT_BITS).plus(&low);
        // Adds 1, and subtracts 2^9, because values begin with -2^9.
        let value = b.add_public(&value, 1u64.wrapping_sub(1 << (VALUE_BITS - 1)));
        Ok(value.times(1 << FRAC))
    })
}
