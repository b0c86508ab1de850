//! Softmax over rows. Only the first entries of a row are visible.
//!
//! The result is e^(x - m) / sum e^(x - m), where m is the largest visible entry, rounded down coarsely (see
//! [`max`](super::max)). Masked entries are public, so they are cut out at the start and put back as zeros: they cost
//! nothing. Terms with m - x above [`CUT`] are below a seventh of a unit in the last place and are set to zero.
//!
//! **Range.** That of [`max`](super::max), about |x| < 2^9, and up to 2^12 columns -> [0, 1]. **Error.** At most
//! [`MAX_SOFTMAX_ERROR`] per entry plus [`MAX_TERM_ERROR`] times the number of visible entries. **Revealed.**
//! Nothing.
//!
//! *Cost.* Per visible entry: one place in the search of the maximum, one coarse comparison, one evaluation of the
//! exponential, two truncations, one multiplexer, one product with its row's word. Per row: one reciprocal.

use crate::abb::Abb;
use crate::functions::exp::{EXP_END, exp_negative};
use crate::functions::max::{MAX_WIDTH, max_ragged};
use crate::functions::reciprocal::reciprocal;
use crate::functions::ring_for;
use crate::ops::compare::AtLeast;
use crate::ops::mul::MulRows;
use crate::ops::mux::Choose;
use crate::ops::mux::Select;
use crate::ops::truncate::Truncation;
use crate::words::Words;
use crate::{Error, FRAC, Indices, Lengths, Tensor};

/// Largest absolute error of a probability, besides [`MAX_TERM_ERROR`] for each visible entry of the row.
pub const MAX_SOFTMAX_ERROR: f64 = 1e-5;

/// Rounding of one term of the sum: half a unit in the last place, or a whole unit between two parties, which round
/// either way. Many equally small terms next to a large one add up.
pub const MAX_TERM_ERROR: f64 = 0.5 / (1u64 << FRAC) as f64;

/// Low bits of a difference to the maximum that its comparison with [`CUT`] ignores.
const DROPPED: u32 = 13;

/// Resolution of that comparison.
const UNIT: f64 = 1.0 / (1u64 << (FRAC - DROPPED)) as f64;

/// Differences to the maximum from here on give 0. It lies one unit of the comparison below the exponential's end.
pub const CUT: f64 = EXP_END - UNIT;

/// Most columns.
pub const MAX_SOFTMAX_COLUMNS: usize = 1 << 12;

/// Fractional bits of the reciprocal of the sum. It has more than the terms, because its error is common to a row.
const RECIPROCAL_FRAC: u32 = 22;

/// (..., rows, columns) -> the same shape modulo 2^64. Row i of `rows` sees its first `visible[i]` columns, at
/// least 1.
pub fn softmax<B: Abb>(b: &mut B, x: &B::Words, visible: &[usize]) -> Result<B::Words, Error> {
    let shape = x.shape();
    assert!(shape.len() >= 2 && shape[shape.len() - 2] == visible.len(), "softmax of {shape:?}");
    let columns = shape[shape.len() - 1];
    assert!(visible.iter().all(|v| (1..=columns).contains(v)), "visible entries of {columns}");
    b.scope("softmax", |b| {
        let rows = x.len() / columns;
        let lengths = Lengths::repeated(visible, rows / visible.len().max(1));
        let longest = lengths.counts().longest().max(1);
        if longest > MAX_SOFTMAX_COLUMNS {
            return Err(Error::TooMany { operation: "softmax", limit: MAX_SOFTMAX_COLUMNS, got: longest });
        }
        let seen = lengths.padded(columns);
        if longest == 1 {
            let ones = b.constant(&[rows], 1 << FRAC);
            return Ok(ones.place(&seen, x.len()).reshape(&shape));
        }

        let x = x.reshape(&[rows * columns]).pick(&seen);
        let t = max_ragged(b, &x, &lengths)?.pick(&lengths.owners()).minus(&x);

        // e <= e^(1/2), a row's e / sum <= 1 up to the reciprocal's error.
        let width = rounding().width;
        let coarse = t.drop_low(DROPPED, MAX_WIDTH);
        let far = b
            .apply(AtLeast { thresholds: &[(CUT / UNIT) as i64], width: MAX_WIDTH - DROPPED }, &coarse)?
            .reshape(&[seen.len()]);
        let near = b.not(&far);
        let [near] = b.apply(Choose, &near)?;
        let e = exp_negative(b, &t, width)?;
        let e = b.apply(Select { width }, (near, &e))?;

        let sums = e.place(&lengths.padded(longest), rows * longest).reshape(&[rows, longest]).sum_last();
        let inverse = reciprocal(b, &sums, longest, width, RECIPROCAL_FRAC)?;

        let Chunks { size, row, at } = Chunks::of(&lengths, width);
        let e = e.place(&at, row.len() * size).reshape(&[row.len(), size]);
        let p = b.apply(MulRows { width }, (&e, &inverse.pick(&row)))?.reshape(&[row.len() * size]).pick(&at);
        let p = b.apply(rounding(), &p)?;
        Ok(p.place(&seen, rows * columns).reshape(&shape))
    })
}

/// Brings a probability to [`FRAC`] fractional bits.
pub(crate) fn rounding() -> Truncation {
    Truncation { width: ring_for(1.01, FRAC + RECIPROCAL_FRAC), shift: RECIPROCAL_FRAC, out: 64 }
}

/// Rows of different lengths cut into chunks of one size, for products with one word per row.
struct Chunks {
    size: usize,
    /// Row of each chunk.
    row: Indices<'static>,
    /// Position of every entry among the chunks.
    at: Indices<'static>,
}

impl Chunks {
    /// Bits that an oblivious transfer costs besides its messages, roughly.
    const OVERHEAD: usize = 32;

    /// The size that sends the fewest bits. A product of a chunk with a word takes `width` transfers of `size` words
    /// of (width + 1) / 2 bits on average. Those on padding are wasted.
    fn of(lengths: &Lengths, width: u32) -> Self {
        let longest = lengths.counts().longest().max(1);
        let chunks = |size: usize| lengths.counts().sum(|n| n.div_ceil(size));
        let cost = |size: usize| chunks(size) * (size * (width as usize + 1) / 2 + Self::OVERHEAD);
        let powers = (0..usize::BITS).map(|i| 1usize << i).take_while(|&size| size < longest);
        let size = powers.chain([longest]).min_by_key(|&size| cost(size)).unwrap_or(1);
        let each = lengths.map(|n| n.div_ceil(size));
        let (row, lengths) = (each.owners(), lengths.clone());
        // The chunks of a row begin where those of the row before it end.
        let at = Indices::new(lengths.total(), move || {
            let starts = each.spans().map(|chunks| chunks.start * size);
            lengths.iter().zip(starts).flat_map(|(n, start)| start..start + n).collect()
        });
        Self { size, row, at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Clear;
    use crate::functions::testing::{real, shaped};
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    /// Largest error, minus that of the terms, on (batch, rows, columns) with scores from `score`. Masked entries
    /// must be exactly 0.
    fn worst(batch: usize, visible: &[usize], columns: usize, mut score: impl FnMut(usize) -> f64) -> f64 {
        let shape = [batch, visible.len(), columns];
        let x: Vec<f64> = (0..shape.iter().product()).map(|i| score(i % columns)).collect();
        let words = shaped(&x, &shape);
        let got = softmax(&mut Clear::new(), &words, visible).unwrap();
        assert_eq!(got.shape(), shape);
        let mut error = 0f64;
        for h in 0..batch {
            for (i, &seen) in visible.iter().enumerate() {
                let x: Vec<f64> = (0..columns).map(|j| real(words[[h, i, j]])).collect();
                let max = x[..seen].iter().copied().fold(f64::MIN, f64::max);
                let sum: f64 = x[..seen].iter().map(|x| (x - max).exp()).sum();
                for j in 0..columns {
                    let want = if j < seen { (x[j] - max).exp() / sum } else { 0.0 };
                    assert!(j < seen || got[[h, i, j]] == 0, "masked entry {j} of row {i}");
                    error = error.max((real(got[[h, i, j]]) - want).abs() - seen as f64 * MAX_TERM_ERROR);
                }
            }
        }
        error
    }

    #[test]
    fn error_over_spreads_and_lengths() {
        let mut rng = StdRng::seed_from_u64(6);
        let mut largest = 0f64;
        for spread in [0.0, 0.01, 1.0, 10.0, 40.0, 500.0] {
            let mut score = |_: usize| if spread == 0.0 { 3.0 } else { rng.random_range(-spread..spread) };
            largest = largest.max(worst(3, &[1, 2, 3, 4, 5, 6, 7], 7, &mut score));
            largest = largest.max(worst(2, &[33], 40, &mut score));
            largest = largest.max(worst(1, &[1, 17, 1024], 1024, &mut score));
        }
        // A single large score against many small ones, at every distance around the cut.
        for tenth in 0..200 {
            let score = |j: usize| if j == 5 { f64::from(tenth) / 10.0 } else { 0.0 };
            largest = largest.max(worst(1, &[300], 300, score));
        }
        println!("softmax: {largest:.2e}");
        assert!(largest < MAX_SOFTMAX_ERROR, "{largest}");
    }

    #[test]
    fn a_single_column_is_certain() {
        assert_eq!(worst(2, &[1, 1], 1, |_| -300.0), 0.0);
        assert_eq!(worst(2, &[1, 1], 3, |j| j as f64), 0.0);
    }

    #[test]
    fn chunks_hold_every_entry_once() {
        for lengths in [vec![1], vec![100], (1..=128).collect::<Vec<_>>(), vec![1024, 1, 1, 5]] {
            let chunks = Chunks::of(&Lengths::from(&lengths[..]), 43);
            let (row, at) = (chunks.row.list(), chunks.at.list());
            assert!(at.is_sorted_by(|a, b| a < b));
            assert_eq!(at.len(), lengths.iter().sum::<usize>());
            let mut entry = 0;
            for (r, &n) in lengths.iter().enumerate() {
                for _ in 0..n {
                    assert_eq!(row[at[entry] / chunks.size], r);
                    entry += 1;
                }
            }
        }
        assert_eq!(Chunks::of(&Lengths::equal(100, 2), 43).size, 100);
    }
}
