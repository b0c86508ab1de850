//! Softmax over rows. Only some neighbouring entries of a row are visible, usually the first ones.
//!
//! The result is e^(x - m) / sum e^(x - m), where m is the largest visible entry, rounded coarsely (see
//! [`max`](super::max)). Masked entries are public, so they are cut out at the start and put back as zeros: they cost
//! nothing. Terms with m - x above [`CUT`] are below a seventh of a unit in the last place and are set to zero.
//!
//! **Forms of the terms.** For look-up, m - x is compared with the cut and a multiplexer sets the far terms to zero.
//! Where keys are prepared, a table is 0 for large differences (`exp_to_zero`). It serves all differences, or those
//! that were clipped: then a comparison of seven or eight bits tells which differences are far, and a multiplexer
//! replaces these. Clipping makes a key of 290 bytes shorter by 130, and takes five flows and 12 bytes an entry
//! online. Where flows cost more than expanding the leaves of keys, m is a maximum by counts, which may be 1 above
//! the largest entry. `exp_to_zero` takes that, too. The sum of a row is then at least 1 / e.
//!
//! **Two faces.** [`softmax_each`] divides the terms by their sums. [`mix`](super::mix) divides what the terms mix.
//!
//! **Range.** The range of [`max`](super::max), about |x| < 2^9, and up to [`MAX_SOFTMAX_COLUMNS`] columns -> [0, 1].
//! Where keys are prepared, entries of a row are less than [`WHOLE_RANGE`] - 1 apart, or [`HIDDEN_RANGE`] - 1 where
//! columns may be [hidden](fn@super::hide). **Error.** At most [`MAX_SOFTMAX_ERROR`] per entry plus
//! [`MAX_TERM_ERROR`] times the number of visible entries; where keys are prepared, [`MAX_MASKED_SOFTMAX_ERROR`] plus
//! [`MAX_MASKED_TERM_ERROR`] times that number. **Revealed.** Nothing.
//!
//! **Long rows.** For rows with n visible entries, N in the longest row:
//!
//! | value | range | ring, bits | N = 2^12 | N = 2^17 |
//! |---|---|---|---|---|
//! | term e | [0, 1.65] at 18 fractional bits | that of the product | 43 | 48 |
//! | sum of a row | [1, 1.65 N) at 18 | that of the product; at least log2 N + 21 | 33 | 38 |
//! | inside the reciprocal | [0, 1.15 N) at 36 | log2 N + 39 | 51 | 56 |
//! | 1 / sum | (0.6 / N, 1] at 22, and one more for each doubling of N beyond 2^12 | that of the product | 43 | 48 |
//! | product of both | [0, 1.01] | 21 more than the fractional bits of 1 / sum | 43 | 48 |
//!
//! The bound on the error is for the worst row: one large term and n small ones, all rounded the same way. It is
//! 0.008 for 2^12 entries and 0.25 for 2^17. The clear box comes near it, because it rounds equal terms alike. Two
//! parties round each term at random, and right on average, so their errors grow as the root of n: about 7e-4 for
//! 2^17. The clear box and two parties both lose what lies beyond [`CUT`], at most 5.2e-7 n of the largest term.
//!
//! A probability is a multiple of 2^-18. In a flat row of 2^17 entries it is two such units, and off by up to one. In
//! its product with the values, the random roundings of two parties again add up to a root. The clear box may round
//! all one way.
//!
//! *Cost.* Per visible entry: one place in the search of the maximum, one evaluation of the exponential, up to two
//! truncations, and one product with its row's word. For look-up, and where differences are clipped, also a coarse
//! comparison and a multiplexer. Per row: one reciprocal.

use std::ops::Range;

use waggle_engine::Visible;

use crate::abb::Abb;
use crate::cost::Cost;
use crate::functions::exp::{CLIPPED_RANGE, EXP_END, Reach, exp_negative, exp_to_zero};
#[cfg(doc)]
use crate::functions::exp::{HIDDEN_RANGE, WHOLE_RANGE};
use crate::functions::max::{MAX_WIDTH, MOST_COUNTED, max_counted, max_ragged};
use crate::functions::reciprocal::reciprocal;
use crate::functions::ring_for;
use crate::ops::fss::counts;
use crate::ops::{AtLeast, Choose, MulRows, Mux, Select, Truncation, compare, mux};
use crate::words::Words;
use crate::{Error, Evaluation, FRAC, Indices, Lengths, Options, Tensor};

/// Largest absolute error of a probability, not counting [`MAX_TERM_ERROR`] for each visible entry of the row.
pub const MAX_SOFTMAX_ERROR: f64 = 1e-5;

/// Takes the place of [`MAX_SOFTMAX_ERROR`] where keys are prepared.
pub const MAX_MASKED_SOFTMAX_ERROR: f64 = 5e-5;

/// Rounding of one term of the sum: half a unit in the last place, or a whole unit between two parties, which round
/// either way. Many equally small terms next to a large one add up.
pub const MAX_TERM_ERROR: f64 = 0.5 / (1u64 << FRAC) as f64;

/// Takes the place of [`MAX_TERM_ERROR`] where keys are prepared: there the sum by which a term is divided may be as
/// small as 1 / e.
pub const MAX_MASKED_TERM_ERROR: f64 = std::f64::consts::E * MAX_TERM_ERROR;

/// Low bits of a difference to the maximum that its comparison with [`CUT`] ignores.
const DROPPED: u32 = 13;

/// Resolution of the comparison with [`CUT`].
const UNIT: f64 = 1.0 / (1u64 << (FRAC - DROPPED)) as f64;

/// Terms are 0 if their difference to the maximum is at least this. It lies one unit of the comparison below the
/// exponential's end.
pub const CUT: f64 = EXP_END - UNIT;

/// Most columns of a row: 131072, as many as published models have positions.
pub const MAX_SOFTMAX_COLUMNS: usize = 1 << 17;

/// Flows of a maximum by counts.
const COUNTED_FLOWS: u32 = 5;

/// Number of leaves of keys whose expansion takes as long as the work of a maximum by counts for one row of any
/// length.
const ROW_LEAVES: u64 = 20_000;

/// Columns up to which the reciprocal of the sum has [`RECIPROCAL_FRAC`] fractional bits.
const SHORT_ROW: usize = 1 << 12;

/// Fractional bits of the reciprocal of the sum. It has more than the terms, because its error is common to a row.
const RECIPROCAL_FRAC: u32 = 22;

/// Fractional bits of the reciprocal of the sum, for rows of up to `longest` entries. A sum twice as large has a
/// reciprocal half as large, which takes one bit more to be as exact: to 2^-10 at least.
pub(super) fn reciprocal_frac(longest: usize) -> u32 {
    RECIPROCAL_FRAC + longest.div_ceil(SHORT_ROW).next_power_of_two().trailing_zeros()
}

/// Softmax of (..., rows, columns) modulo 2^64. Row i of `rows` sees its first `visible[i]` columns, at least 1.
pub fn softmax<B: Abb>(b: &mut B, scores: &B::Words, visible: &[usize]) -> Result<B::Words, Error> {
    let seen: Vec<_> = visible.iter().map(|end| 0..*end).collect();
    Ok(softmax_each(b, &[Visible { scores, seen: &seen, sink: false, hidden: false }])?.remove(0))
}

/// Softmax of several tensors in one call: the rows of all tensors share messages.
pub fn softmax_each<B: Abb>(b: &mut B, parts: &[Visible<B::Words>]) -> Result<Vec<B::Words>, Error> {
    b.scope("softmax", |b| {
        let rows = Rows::of(parts)?;
        let p = if rows.lengths.counts().longest() <= 1 {
            b.constant(&[rows.lengths.total()], 1 << FRAC)
        } else {
            quotients(b, &rows)?
        };
        Ok(rows.back(&p))
    })
}

/// The visible entries of several tensors, row after row.
pub(super) struct Rows<W> {
    places: Vec<Place>,
    /// The lengths of all rows, tensor by tensor.
    pub(super) lengths: Lengths,
    /// The entries of all rows.
    pub(super) x: W,
    /// Whether some entries may be hidden.
    pub(super) hidden: bool,
}

impl<W: Tensor + Words> Rows<W> {
    /// # Errors
    /// For rows of more than [`MAX_SOFTMAX_COLUMNS`] entries.
    pub(super) fn of(parts: &[Visible<W>]) -> Result<Self, Error> {
        let (places, lengths) = placed(parts);
        let longest = lengths.counts().longest();
        if longest > MAX_SOFTMAX_COLUMNS {
            return Err(Error::TooMany { operation: "softmax", limit: MAX_SOFTMAX_COLUMNS, got: longest });
        }
        let seen: Vec<W> = parts.iter().zip(&places).map(|(part, place)| place.seen(part.scores)).collect();
        Ok(Rows { places, lengths, x: joined(&seen), hidden: parts.iter().any(|part| part.hidden) })
    }

    /// Puts entries `y` of the rows back where they lie in the tensors. Entries that are not visible become zeros.
    pub(super) fn back(&self, y: &W) -> Vec<W> {
        let mut start = 0;
        let back = self.places.iter().map(|place| {
            let entries = start..start + place.lengths.total();
            start = entries.end;
            let all = entries.len() == y.len();
            place.back(&if all { y.clone() } else { y.slice(0, entries) })
        });
        back.collect()
    }
}

/// Where the visible entries of each part lie, and the lengths of all rows, part by part.
fn placed<W: Tensor>(parts: &[Visible<W>]) -> (Vec<Place>, Lengths) {
    let place = |part: &Visible<W>| Place::of(&part.scores.shape(), part.seen.to_vec(), part.sink);
    let places: Vec<Place> = parts.iter().map(place).collect();
    let lengths = Lengths::joined(&places.iter().map(|place| place.lengths.clone()).collect::<Vec<_>>());
    (places, lengths)
}

/// The numbers of visible entries of all rows, part by part.
pub(crate) fn lengths<W: Tensor>(parts: &[Visible<W>]) -> Lengths {
    placed(parts).1
}

/// Where the visible entries of a tensor (..., rows, columns) lie.
struct Place {
    shape: Vec<usize>,
    /// The number of visible entries of each row of the tensor.
    lengths: Lengths,
    /// The first visible column of each row of a batch.
    starts: Vec<usize>,
    /// Whether the last entry of each row is visible in addition to the entries from its first visible column on.
    sink: bool,
}

impl Place {
    fn of(shape: &[usize], seen: Vec<Range<usize>>, sink: bool) -> Self {
        assert!(shape.len() >= 2 && shape[shape.len() - 2] == seen.len(), "softmax of {shape:?}");
        let (columns, last) = (shape[shape.len() - 1], usize::from(sink));
        assert!(seen.iter().all(|s| !s.is_empty() && s.end + last <= columns), "visible entries of {columns}");
        let rows = shape.iter().product::<usize>() / columns;
        let visible: Vec<usize> = seen.iter().map(|s| s.len() + last).collect();
        let lengths = Lengths::repeated(visible, rows / seen.len().max(1));
        Place { shape: shape.to_vec(), lengths, starts: seen.iter().map(|s| s.start).collect(), sink }
    }

    /// The position in the tensor of each visible entry.
    fn entries(&self) -> Indices<'static> {
        let (lengths, starts, columns) =
            (self.lengths.clone(), self.starts.clone(), self.shape[self.shape.len() - 1]);
        let last = usize::from(self.sink);
        Indices::new(lengths.total(), move || {
            let starts = lengths.iter().zip(starts.iter().cycle()).enumerate();
            let of_row = |(row, (n, start)): (usize, (usize, &usize))| {
                let (from, end) = (row * columns + start, (row + 1) * columns);
                (from..from + n - last).chain(end - last..end)
            };
            starts.flat_map(of_row).collect()
        })
    }

    /// The visible entries of `x`, row after row.
    fn seen<W: Tensor + Words>(&self, x: &W) -> W {
        x.reshape(&[x.len()]).pick(&self.entries())
    }

    /// The inverse of [`seen`](Place::seen). Entries that are not visible become zeros.
    fn back<W: Tensor + Words>(&self, p: &W) -> W {
        p.place(&self.entries(), self.shape.iter().product()).reshape(&self.shape)
    }
}

fn joined<W: Tensor>(parts: &[W]) -> W {
    match parts {
        [one] => one.clone(),
        many => W::concat(0, &many.iter().collect::<Vec<_>>()),
    }
}

/// The rows of a softmax before they are divided by their sums, one after another.
pub(super) struct Terms<W> {
    /// The terms e^(x - m) of all rows.
    pub(super) e: W,
    /// 1 / sum for each row.
    pub(super) inverse: W,
}

/// The form of terms and of the reciprocals of their sums.
#[derive(Clone, Copy)]
pub(super) struct TermForm {
    /// Fractional bits of a term.
    pub(super) frac: u32,
    /// Bits of the ring of a term.
    pub(super) width: u32,
    /// Fractional bits of a reciprocal.
    pub(super) inverse_frac: u32,
    /// Bits of the ring of a reciprocal.
    pub(super) inverse_width: u32,
}

/// The terms of all entries of `rows`, and the reciprocals of the sums of the rows.
pub(super) fn terms<B: Abb>(b: &mut B, rows: &Rows<B::Words>, form: TermForm) -> Result<Terms<B::Words>, Error> {
    let TermForm { frac, width, inverse_frac, inverse_width } = form;
    let Rows { lengths, x, hidden, .. } = rows;
    let longest = lengths.counts().longest();
    let masked = b.evaluation() == Evaluation::Masked;
    // A tournament takes some 3 log2 n flows, and half of the time that the leaves take.
    let saved = (3 * longest.ilog2()).saturating_sub(COUNTED_FLOWS);
    let leaves = x.len() as u64 * counts::LEAVES / 2 + lengths.rows() as u64 * ROW_LEAVES;
    let counted = masked && longest <= MOST_COUNTED && b.options().flows_cost_more(saved, leaves);

    let max = if counted { max_counted(b, x, lengths)? } else { max_ragged(b, x, lengths)? };
    let t = max.pick(&lengths.owners()).minus(x);
    let all = if *hidden { Reach::Hidden } else { Reach::Whole };
    // A maximum by counts is modulo 2^28. Differences to hidden columns take all of these bits, and cells need a sign.
    let clips = !(counted && *hidden);
    let e = match masked {
        false => near_terms(b, &t, frac, width)?,
        true if clips && clipping_pays(b.options(), all, t.len(), [frac, width]) => {
            clipped_terms(b, &t, all, frac, width)?
        }
        true => exp_to_zero(b, &t, all, frac, width)?,
    };

    let rows = lengths.rows();
    let sums = e.place(&lengths.padded(longest), rows * longest).reshape(&[rows, longest]).sum_last();
    let sums = sums.times(1 << (FRAC - frac));
    let inverse = if counted {
        // A sum of n terms lies in (1 / e, e n). Four times this sum lies where sums of 8 n terms do.
        reciprocal(b, &sums.times(4), 8 * longest, inverse_width, inverse_frac + 2)?
    } else {
        reciprocal(b, &sums, longest, inverse_width, inverse_frac)?
    };
    Ok(Terms { e, inverse })
}

/// The probabilities of all entries of `rows`.
fn quotients<B: Abb>(b: &mut B, rows: &Rows<B::Words>) -> Result<B::Words, Error> {
    // A quotient e / sum is at most 1, up to the reciprocal's error.
    let lengths = &rows.lengths;
    let rounding = rounding(lengths.counts().longest());
    let width = rounding.width;
    let form = TermForm { frac: FRAC, width, inverse_frac: rounding.shift, inverse_width: width };
    let Terms { e, inverse } = terms(b, rows, form)?;
    let Chunks { size, row, at } = Chunks::of(lengths, width);
    let e = e.place(&at, row.len() * size).reshape(&[row.len(), size]);
    let p =
        b.apply(MulRows { width, error_bits: 0 }, (&e, &inverse.pick(&row)))?.reshape(&[row.len() * size]).pick(&at);
    b.apply(rounding, &p)
}

/// e^-t modulo 2^`width` where t is below [`CUT`], and 0 elsewhere, at `frac` fractional bits.
fn near_terms<B: Abb>(b: &mut B, t: &B::Words, frac: u32, width: u32) -> Result<B::Words, Error> {
    let coarse = t.drop_low(DROPPED, MAX_WIDTH);
    let far = b
        .apply(AtLeast { thresholds: &[(CUT / UNIT) as i64], width: MAX_WIDTH - DROPPED }, &coarse)?
        .reshape(&[t.len()]);
    let near = b.not(&far);
    let [near] = b.apply(Choose, &near)?;
    let e = exp_negative(b, t, frac, width)?;
    b.apply(Select { width }, (near, &e))
}

/// log2 of the unit in which differences are compared before they are clipped.
const CELL_BITS: u32 = 3;
/// Differences that reach this many cells are clipped. Two parties may round a difference down by one cell more.
const NEAR_CELLS: i64 = 2;
/// The difference that takes the place of those that are clipped. Its power is 0.
const CLIPPED: u64 = 24 << FRAC;
const _: () = {
    assert!((NEAR_CELLS as u64 + 1) << CELL_BITS << FRAC <= CLIPPED, "a difference that is not clipped");
    assert!((CLIPPED >> FRAC) < CLIPPED_RANGE as u64, "differences that a table takes");
};
/// Bits of what is selected, which is below 2^5 in magnitude.
const CLIPPED_WIDTH: u32 = FRAC + 6;

/// e^-t as [`exp_to_zero`] gives it for `all` differences, where those beyond 24, and perhaps some beyond 16, were
/// clipped.
fn clipped_terms<B: Abb>(b: &mut B, t: &B::Words, all: Reach, frac: u32, width: u32) -> Result<B::Words, Error> {
    b.expect_below(t, 1 << all.width(), FRAC)?;
    let cells = t.drop_low(FRAC + CELL_BITS, MAX_WIDTH);
    let far = b.apply(AtLeast { thresholds: &[NEAR_CELLS], width: cells_width(all) }, &cells)?.reshape(&[t.len()]);
    let near = b.not(&far);
    let below = b.add_public(t, CLIPPED.wrapping_neg());
    let below = b.apply(Mux { width: CLIPPED_WIDTH }, (&near, &below))?;
    let t = b.add_public(&below, CLIPPED);
    exp_to_zero(b, &t, Reach::Clipped, frac, width)
}

/// Bits of a signed number of cells.
fn cells_width(all: Reach) -> u32 {
    all.width() + 1 - FRAC - CELL_BITS
}

/// Whether the terms of `n` differences, at `frac` fractional bits modulo 2^`width`, cost less if they are clipped
/// first. Clipping takes keys that are shorter by 130 bytes, and five flows and 12 bytes more online. Time on the link
/// counts twice if a prompt waits for it.
fn clipping_pays(options: &Options, all: Reach, n: usize, [frac, width]: [u32; 2]) -> bool {
    let time = |reach: Reach, before: &Cost| {
        let function = reach.function(frac, width);
        let online = before.clone().then(function.online_cost(n));
        options.wire_time(&function.prepared_cost(options, n)) + 2 * options.wire_time(&online)
    };
    let clip = compare::cost(n, 1, cells_width(all)).then(mux::rows_cost(n, 1, CLIPPED_WIDTH));
    time(Reach::Clipped, &clip) < time(all, &Cost::free())
}

/// The truncation that brings a probability to [`FRAC`] fractional bits, for rows of up to `longest` entries. Its
/// [`ceiling`](crate::ops::truncate::ceiling) is the same for all lengths, because ring and shift grow together.
pub(crate) fn rounding(longest: usize) -> Truncation {
    let shift = reciprocal_frac(longest);
    Truncation { width: ring_for(1.01, FRAC + shift), shift, out: 64 }
}

/// Rows of different lengths cut into chunks of one size, for products with one word per row.
struct Chunks {
    size: usize,
    /// The row that each chunk belongs to.
    row: Indices<'static>,
    /// Position of every entry in the vector of all chunks.
    at: Indices<'static>,
}

impl Chunks {
    /// Bits that an oblivious transfer costs besides its messages, roughly.
    const OVERHEAD: usize = 32;

    /// Chunks of the size for which the fewest bits are sent. A product of a chunk with a word takes `width`
    /// transfers of `size` words of (width + 1) / 2 bits on average. Transfers of padding are wasted.
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
    use ndarray::Dimension;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    /// Largest error, less the error that the terms may have, for scores made by `score`. Masked entries must be
    /// exactly 0.
    fn worst(batch: usize, visible: &[usize], columns: usize, score: impl FnMut(usize) -> f64) -> f64 {
        worst_by(Evaluation::Lookup, batch, visible, columns, score)
    }

    fn worst_by(
        evaluation: Evaluation,
        batch: usize,
        visible: &[usize],
        columns: usize,
        mut score: impl FnMut(usize) -> f64,
    ) -> f64 {
        let shape = [batch, visible.len(), columns];
        let x: Vec<f64> = (0..shape.iter().product()).map(|i| score(i % columns)).collect();
        let words = shaped(&x, &shape);
        let got = softmax(&mut Clear::evaluating(evaluation), &words, visible).unwrap();
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
                    let term = match evaluation {
                        Evaluation::Masked => MAX_MASKED_TERM_ERROR,
                        _ => MAX_TERM_ERROR,
                    };
                    error = error.max((real(got[[h, i, j]]) - want).abs() - seen as f64 * term);
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

    /// Tensors of different shapes, whose rows have different lengths, come out as they do alone.
    #[test]
    fn several_tensors_at_once() {
        let mut rng = StdRng::seed_from_u64(9);
        for evaluation in [Evaluation::Lookup, Evaluation::Masked] {
            let both: [[(usize, &[usize]); 2]; 3] =
                [[(2, &[3, 9, 40]), (1, &[7, 8, 12])], [(3, &[1]), (1, &[2])], [(1, &[1]), (1, &[1])]];
            for shapes in both {
                let parts = shapes.map(|(batch, visible)| {
                    let shape = [batch, visible.len(), 40];
                    let x: Vec<f64> = (0..shape.iter().product()).map(|_| rng.random_range(-9.0..9.0)).collect();
                    (shaped(&x, &shape), visible)
                });
                let seen = parts.each_ref().map(|(_, visible)| visible.iter().map(|end| 0..*end).collect::<Vec<_>>());
                let both =
                    [0, 1].map(|i| Visible { scores: &parts[i].0, seen: &seen[i], sink: false, hidden: false });
                let together = softmax_each(&mut Clear::evaluating(evaluation), &both).unwrap();
                for (got, (x, visible)) in together.iter().zip(&parts) {
                    let alone = softmax(&mut Clear::evaluating(evaluation), x, visible).unwrap();
                    assert_eq!(got.shape(), alone.shape());
                    // The longest row decides the form of all reciprocals.
                    let off = got.iter().zip(&alone).map(|(a, b)| (real(*a) - real(*b)).abs()).fold(0.0, f64::max);
                    assert!(off < 2.0 * MAX_MASKED_SOFTMAX_ERROR, "{visible:?}: off by {off}");
                    let shows = |at: &[usize]| at[2] < visible[at[1]];
                    let empty = got.indexed_iter().all(|(at, p)| shows(at.slice()) || *p == 0);
                    assert!(empty, "{visible:?}: hidden entries");
                }
            }
        }
    }

    /// The terms and the reciprocal have larger errors where their tables serve the whole range.
    #[test]
    fn error_on_masked_inputs() {
        let mut rng = StdRng::seed_from_u64(8);
        let mut largest = 0f64;
        let mut worst = |visible: &[usize], columns: usize, score: &mut dyn FnMut(usize) -> f64| {
            largest = largest.max(worst_by(Evaluation::Masked, 2, visible, columns, score));
        };
        for spread in [0.0, 0.01, 1.0, 10.0, 40.0, 250.0] {
            let mut score = |_: usize| if spread == 0.0 { 3.0 } else { rng.random_range(-spread..spread) };
            worst(&[1, 2, 9, 10], 10, &mut score);
            worst(&[17, 150, 151, 1024], 1024, &mut score);
        }
        for tenth in 0..200 {
            worst(&[300], 300, &mut |j| if j == 5 { f64::from(tenth) / 10.0 } else { 0.0 });
        }
        println!("softmax on masked inputs: {largest:.2e}");
        assert!(largest < MAX_MASKED_SOFTMAX_ERROR, "{largest}");
    }

    /// Every entry of a flat row is 1 / n apart from its rounding. No row reaches the worst case of the bound, but
    /// next to a single large entry the roundings of equal terms add up.
    #[test]
    fn long_rows() {
        let mut rng = StdRng::seed_from_u64(7);
        for columns in [4096, 4097, 8192, 32_768, 98_304, MAX_SOFTMAX_COLUMNS] {
            let flat = softmax(&mut Clear::new(), &shaped(&vec![-2.25; columns], &[1, columns]), &[columns]).unwrap();
            let off = flat.iter().map(|&p| (real(p) - 1.0 / columns as f64).abs()).fold(0.0, f64::max);
            assert!(off < 0.6 / (1u64 << FRAC) as f64, "{columns} equal entries: off by {off}");

            let mut largest = f64::MIN;
            for distance in [4.0, 10.0, 12.1, 12.6, 13.0, 13.2, 14.0, 14.45, 20.0] {
                largest = largest.max(worst(1, &[columns], columns, |j| if j == 77 { distance } else { 0.0 }));
            }
            assert!(largest < MAX_SOFTMAX_ERROR, "a peak among {columns}: {largest}");

            // Roundings of different terms average out.
            for spread in [0.3, 3.0, 12.0, 100.0] {
                let x: Vec<f64> = (0..columns).map(|_| rng.random_range(-spread..spread)).collect();
                let p = softmax(&mut Clear::new(), &shaped(&x, &[1, columns]), &[columns]).unwrap();
                let max = x.iter().copied().fold(f64::MIN, f64::max);
                let sum: f64 = x.iter().map(|x| (x - max).exp()).sum();
                let off = p.iter().zip(&x).map(|(&p, x)| (real(p) - (x - max).exp() / sum).abs()).fold(0.0, f64::max);
                println!("{columns} entries within {spread}: {off:.1e}");
                assert!(off < MAX_SOFTMAX_ERROR, "{columns} entries within {spread}: off by {off}");
            }
        }
    }

    /// Entries outside the window are 0. Entries in it are the probabilities of a row of these entries alone, or of
    /// these entries and a sink.
    #[test]
    fn rows_that_see_a_window() {
        let mut rng = StdRng::seed_from_u64(9);
        let heads = 3;
        let seen = [0..1, 0..4, 2..6, 5..9, 8..9, 0..9];
        let both = [Evaluation::Lookup, Evaluation::Masked];
        for (evaluation, sink) in both.into_iter().flat_map(|evaluation| [(evaluation, false), (evaluation, true)]) {
            let columns = 9 + usize::from(sink);
            let x: Vec<f64> = (0..heads * seen.len() * columns).map(|_| rng.random_range(-6.0..6.0)).collect();
            let words = shaped(&x, &[heads, seen.len(), columns]);
            let part = Visible { scores: &words, seen: &seen, sink, hidden: false };
            let got = softmax_each(&mut Clear::evaluating(evaluation), &[part]).unwrap().remove(0);
            for h in 0..heads {
                for (i, seen) in seen.iter().enumerate() {
                    let e = |j: usize| real(words[[h, i, j]]).exp();
                    let sum: f64 = seen.clone().chain(9..columns).map(e).sum();
                    for j in 0..columns {
                        let got = got[[h, i, j]];
                        match seen.contains(&j) || j == 9 {
                            true => assert!((real(got) - e(j) / sum).abs() < 1e-4, "entry {j} of row {i}"),
                            false => assert_eq!(got, 0, "entry {j} of row {i}"),
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn longer_rows_are_refused() {
        let columns = MAX_SOFTMAX_COLUMNS + 1;
        let refused = softmax(&mut Clear::new(), &shaped(&vec![0.0; columns], &[1, columns]), &[columns]);
        let limit = MAX_SOFTMAX_COLUMNS;
        assert!(matches!(refused, Err(Error::TooMany { got, limit: most, .. }) if (got, most) == (columns, limit)));
    }

    /// A wider ring sends more, so short rows keep their narrow ring.
    #[test]
    fn rings_by_length() {
        let of = |longest| (rounding(longest).width, rounding(longest).shift);
        assert_eq!([1, 2, 4095, 4096].map(of), [(43, 22); 4]);
        assert_eq!([4097, 8192].map(of), [(44, 23); 2]);
        assert_eq!([65_537, MAX_SOFTMAX_COLUMNS].map(of), [(48, 27); 2]);
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
