//! Hidden selections of k of the n entries of each row, and their uses.
//!
//! A selection comes from [`top_k`] in one of two forms:
//! - One-hot words (rows, k, n) that no party knows. Gathering is their product with the payload (MPCache, algorithm
//!   2: one-hot by equality, then matmul); scattering is the product with the transpose.
//! - Positions in a shuffled order that no party knows. Gathering shuffles the payload by the same permutations and
//!   takes the positions. Scattering puts entries at the positions among zeros and restores the order.
//!
//! **Range.** Payloads |x| < 2^magnitude for a magnitude that the caller states. **Error.** With one-hot words a few
//! units in the last place, as products have; with permutations one unit.
//!
//! **A payload that stays.** Every step of a generation gathers from a cache by a new hidden choice, while the rows
//! of the cache stay the same. In a two-phase session `gather_cached` opens each row under its mask once, and after
//! that only the one-hot words ([`cached`](crate::cached)). Gathered rows, however, are fresh shares and need fresh
//! masks: one mask for the rows of two steps would show whether the choice changed. So products with gathered rows
//! are plain triples.
//!
//! **What each party sees.** Only masked messages, and k and n, which are public. `in_order` opens a uniformly random
//! permutation, as [`compact`] does. **Revealed.** Nothing.

use ndarray::ArrayD;

use crate::abb::Abb;
use crate::cached::{CachedMatmul, CachedProduct, Operand};
use crate::functions::compact;
use crate::functions::top_k::{self, Scores, Selection, Shuffled};
use crate::ops::{AtLeast, B2a, Matmul, Shuffle, Truncation};
use crate::words::{Words, index_bits};
use crate::{Axis, Error, FRAC, Indices, Tensor};

/// Bits of the ring of one-hot words, which is the widest ring of gathered payloads.
pub const SELECTION_WIDTH: u32 = 44;

/// Bits of the ring in which two selections are composed. There 2^[`GUARD`] stands for 1, so that the errors of the
/// product, a few units, stay far from the threshold between 0 and 1.
const COMPOSE_WIDTH: u32 = 10;

/// log2 of the number that stands for 1 in a composition.
const GUARD: u32 = 8;

/// Thresholds that one batched comparison takes.
const THRESHOLD_BATCH: usize = 32;

/// The k largest entries of each row of (rows, n), by the method of `how`.
pub(crate) fn choose<B: Abb>(
    b: &mut B,
    x: &B::Words,
    how: &waggle_engine::Ranking,
) -> Result<Selection<B::Words>, Error> {
    let scores = Scores::below(how.magnitude, how.frac).rounding(how.rounded);
    match how.method {
        waggle_engine::TopK::Rank => top_k::rank(b, x, how.k, scores, SELECTION_WIDTH),
        waggle_engine::TopK::Sort => top_k::sort(b, x, how.k, scores, SELECTION_WIDTH),
        waggle_engine::TopK::ShuffleReveal => {
            b.expect_below(x, 1 << (how.magnitude + FRAC), FRAC)?;
            // Comparisons are opened, so no word may leave the ring, whatever the weights.
            let scores = Scores::within(how.ceiling, how.frac).rounding(how.rounded);
            top_k::shuffle_reveal(b, x, how.k, scores).map(Selection::Shuffled)
        }
    }
}

/// `selection` as one-hot words (rows, k, n).
pub fn one_hot<B: Abb>(b: &mut B, selection: &Selection<B::Words>) -> Result<B::Words, Error> {
    match selection {
        Selection::OneHot(words) => Ok(words.clone()),
        Selection::Shuffled(shuffled) => top_k::one_hot_of_shuffled(b, shuffled, SELECTION_WIDTH),
    }
}

/// The chosen entries of x: (x rows, n, w), |x| < 2^`magnitude` -> (rows, k, w) modulo 2^64. The selection has a
/// multiple of the rows of x, and consecutive rows of the selection share a row of x.
pub fn gather<B: Abb>(
    b: &mut B,
    selection: &Selection<B::Words>,
    x: &B::Words,
    magnitude: u32,
) -> Result<B::Words, Error> {
    gather_from(b, selection, x, magnitude, None)
}

/// [`gather`] from a cached operand. x has the entries of the previous gathering with `operand`, followed by new
/// entries. w and the number of rows of x stay the same from one gathering to the next. A selection by permutations
/// moves all entries in any case and does not use `operand`.
pub fn gather_cached<B: Abb>(
    b: &mut B,
    selection: &Selection<B::Words>,
    x: &B::Words,
    magnitude: u32,
    operand: &mut Operand,
) -> Result<B::Words, Error> {
    gather_from(b, selection, x, magnitude, Some(operand))
}

fn gather_from<B: Abb>(
    b: &mut B,
    selection: &Selection<B::Words>,
    x: &B::Words,
    magnitude: u32,
    operand: Option<&mut Operand>,
) -> Result<B::Words, Error> {
    let [shared, columns, w] = x.shape()[..] else { panic!("gather of {:?}", x.shape()) };
    b.scope("gather", |b| {
        let rounding = payload_rounding(magnitude)?;
        b.expect_below(x, 1 << (magnitude + FRAC), FRAC)?;
        let width = rounding.width;
        let chosen = match selection {
            Selection::OneHot(words) => {
                let (rows, k, n) = dims(words);
                assert!(columns == n && rows.is_multiple_of(shared), "{:?} by {:?}", x.shape(), words.shape());
                let folded = words.reshape(&[shared, rows / shared * k, n]);
                let product = match operand {
                    Some(operand) => {
                        let product = CachedProduct { a: &folded, b: x, axis: Axis::Rows, operand };
                        b.apply(CachedMatmul { width }, vec![product])?.remove(0)
                    }
                    None => b.apply(Matmul { width }, (&folded, x))?,
                };
                product.reshape(&[rows, k, w])
            }
            Selection::Shuffled(shuffled) => {
                let rows = shuffled.positions.len();
                let Shuffled { n, permutations, .. } = shuffled;
                assert!(columns == *n && rows.is_multiple_of(shared), "{:?} in {rows} rows of {n}", x.shape());
                let x = x.reshape(&[shared, 1, n * w]);
                let x = B::Words::concat(1, &vec![&x; rows / shared]).reshape(&[rows, *n, w]);
                let x = b.apply(Shuffle { widths: &[width], inverse: false }, (permutations, &x))?;
                x.pick(&places(shuffled, w)).reshape(&[rows, shuffled.chosen(), w])
            }
        };
        b.apply(rounding, &chosen)
    })
}

/// Puts entries back among zeros: (rows, k, w), |x| < 2^`magnitude` -> (rows, n, w) modulo 2^64.
pub fn scatter<B: Abb>(
    b: &mut B,
    selection: &Selection<B::Words>,
    x: &B::Words,
    magnitude: u32,
) -> Result<B::Words, Error> {
    b.scope("scatter", |b| {
        let rounding = payload_rounding(magnitude)?;
        b.expect_below(x, 1 << (magnitude + FRAC), FRAC)?;
        let width = rounding.width;
        let spread = match selection {
            Selection::OneHot(words) => b.apply(Matmul { width }, (&words.permute(&[0, 2, 1]), x))?,
            Selection::Shuffled(shuffled) => {
                let [rows, k, w] = x.shape()[..] else { panic!("scatter of {:?}", x.shape()) };
                assert_eq!((rows, k), (shuffled.positions.len(), shuffled.chosen()), "rows and entries chosen");
                let order = x.reshape(&[rows * k * w]).place(&places(shuffled, w), rows * shuffled.n * w);
                b.apply(
                    Shuffle { widths: &[width], inverse: true },
                    (&shuffled.permutations, &order.reshape(&[rows, shuffled.n, w])),
                )?
            }
        };
        b.apply(rounding, &spread)
    })
}

/// Composes two selections, exactly: one-hot words `first` (rows, k1, n) and `second` (rows, k2, k1 fan_out) ->
/// (rows, k2, n fan_out). `second` chooses among the `fan_out` parts of each entry that `first` chose.
pub(crate) fn compose<B: Abb>(
    b: &mut B,
    first: &B::Words,
    fan_out: usize,
    second: &B::Words,
) -> Result<B::Words, Error> {
    let ((rows, k1, n), (rows2, k2, parts)) = (dims(first), dims(second));
    assert!(rows == rows2 && parts == k1 * fan_out, "{parts} parts of {k1} chosen");
    b.scope("compose", |b| {
        let by_part = second.reshape(&[rows, k2, k1, fan_out]).permute(&[0, 3, 1, 2]);
        let scaled = first.times(1 << GUARD);
        let product =
            b.apply(Matmul { width: COMPOSE_WIDTH }, (&by_part.reshape(&[rows, fan_out * k2, k1]), &scaled))?;
        let product = product.reshape(&[rows, fan_out, k2, n]).permute(&[0, 2, 3, 1]);
        let bits = b.apply(AtLeast { thresholds: &[1 << (GUARD - 1)], width: COMPOSE_WIDTH }, &product)?.reshape(&[
            rows,
            k2,
            n * fan_out,
        ]);
        b.apply(B2a { width: SELECTION_WIDTH }, &bits)
    })
}

/// `selection` with the chosen entries in the order of their positions. Its form, one-hot words or permutations,
/// stays the same.
pub(crate) fn in_order<B: Abb>(b: &mut B, selection: &Selection<B::Words>) -> Result<Selection<B::Words>, Error> {
    match selection {
        Selection::OneHot(words) => ordered(b, words).map(Selection::OneHot),
        Selection::Shuffled(shuffled) => {
            let (rows, n) = (shuffled.positions.len(), shuffled.n);
            let ones = b.constant(&[rows * shuffled.chosen()], 1).place(&places(shuffled, 1), rows * n);
            let bits = index_bits(n);
            let mask = b.apply(
                Shuffle { widths: &[bits], inverse: true },
                (&shuffled.permutations, &ones.reshape(&[rows, n, 1])),
            )?;
            compact::order(b, &mask.reshape(&[rows, n]), shuffled.chosen()).map(Selection::Shuffled)
        }
    }
}

/// One-hot words (rows, k, n) sorted by the chosen positions.
///
/// Let P_i be the number of chosen entries up to the i-th. Entry i is the j-th chosen (from 0) where [P_i > j] and
/// [P_(i-1) > j] differ. This takes one batched comparison of the prefix sums with the k public thresholds.
fn ordered<B: Abb>(b: &mut B, words: &B::Words) -> Result<B::Words, Error> {
    let (_, k, n) = dims(words);
    b.scope("order", |b| {
        let mask = words.permute(&[0, 2, 1]).sum_last();
        let prefix = mask.sums_before().plus(&mask);
        // Sums reach k, and thresholds do, too.
        let width = usize::BITS - k.leading_zeros() + 2;
        let mut bits = Vec::new();
        for start in (0..k).step_by(THRESHOLD_BATCH) {
            let thresholds: Vec<i64> = (start..k.min(start + THRESHOLD_BATCH)).map(|j| j as i64 + 1).collect();
            bits.push(b.apply(AtLeast { thresholds: &thresholds, width }, &prefix)?);
        }
        let reached = B::Bits::concat(2, &bits.iter().collect::<Vec<_>>());
        let first = reached.slice(1, 0..1);
        let bits = if n == 1 {
            first
        } else {
            let change = b.xor(&reached.slice(1, 1..n), &reached.slice(1, 0..n - 1));
            B::Bits::concat(1, &[&first, &change])
        };
        b.apply(B2a { width: SELECTION_WIDTH }, &bits.permute(&[0, 2, 1]))
    })
}

/// The chosen positions of each row, if the box sees its values.
pub(crate) fn chosen<B: Abb>(b: &B, selection: &Selection<B::Words>) -> Option<Vec<Vec<usize>>> {
    let rows = |words: ArrayD<u64>, of: fn(&[u64]) -> Option<usize>| {
        let entries = words.lanes(ndarray::Axis(words.ndim() - 1)).into_iter().map(|lane| of(&lane.to_vec()));
        entries.collect::<Option<Vec<usize>>>()
    };
    let (flat, k) = match selection {
        Selection::OneHot(words) => {
            (rows(b.visible(words)?, |lane| lane.iter().position(|&word| word == 1))?, dims(words).1)
        }
        Selection::Shuffled(shuffled) => {
            let (count, k) = (shuffled.positions.len(), shuffled.chosen());
            let mask = (1 << index_bits(shuffled.n)) - 1;
            let indices = b.visible(&shuffled.indices)?.mapv(|index| index & mask);
            let single = indices.into_shape_with_order((count * k, 1)).ok()?.into_dyn();
            (rows(single, |lane| usize::try_from(lane[0]).ok())?, k)
        }
    };
    Some(flat.chunks(k.max(1)).map(<[usize]>::to_vec).collect())
}

/// The truncation that takes a payload out of its ring, which holds magnitudes up to 2^(width - 2).
pub(crate) fn payload_rounding(magnitude: u32) -> Result<Truncation, Error> {
    let width = magnitude.saturating_add(FRAC + 2);
    if width > SELECTION_WIDTH {
        return Err(Error::Width { operation: "gather and scatter", limit: SELECTION_WIDTH, got: width });
    }
    Ok(Truncation { width, shift: 0, out: 64 })
}

/// The positions, in a vector of all words, of the words of the chosen items, where each item of the shuffled order
/// has w words.
fn places<W>(shuffled: &Shuffled<W>, w: usize) -> Indices<'_> {
    let Shuffled { positions, n, .. } = shuffled;
    let item = move |row: usize, position: usize| {
        let at = (row * n + position) * w;
        at..at + w
    };
    Indices::new(positions.len() * shuffled.chosen() * w, move || {
        positions.iter().enumerate().flat_map(|(row, p)| p.iter().flat_map(move |&p| item(row, p))).collect()
    })
}

fn dims<W: Tensor>(words: &W) -> (usize, usize, usize) {
    match words.shape()[..] {
        [rows, k, n] => (rows, k, n),
        ref shape => panic!("one-hot words of shape {shape:?}"),
    }
}
