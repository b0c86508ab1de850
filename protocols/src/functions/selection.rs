//! Which k of the n entries of each row, hidden, as one-hot rows; and what is done with them.
//!
//! A [`Selection`] of shape (rows, k, n) holds words 0 or 1: entry (r, j, i) says whether the j-th chosen entry of row r
//! is entry i. Gathering is the product with the payload (MPCache, algorithm 2: one-hot by equality, then matmul),
//! scattering that with the transpose.
//!
//! Range: payloads |x| < 2^(SELECTION_WIDTH - 2). Error: a few units in the last place, those of the matrix product.
//! Nothing is revealed; k and n are public.

use crate::abb::{Abb, Truncation, Words};
use crate::functions::equal::equal;
use crate::{Error, FRAC, Tensor};

/// Ring of one-hot words and of what is gathered.
pub const SELECTION_WIDTH: u32 = 44;

/// Ring of the composition of two selections: 2^[`GUARD`] stands for 1, so that the errors of the product, a few units,
/// stay far from the threshold between 0 and 1.
const COMPOSE_WIDTH: u32 = 10;

/// log2 of what stands for 1 in a composition.
const GUARD: u32 = 8;

/// Public values that one batched equality takes.
const EQUAL_BATCH: usize = 16;

/// Thresholds that one batched comparison takes.
const THRESHOLD_BATCH: usize = 32;

/// One-hot words (rows, k, n), modulo 2^[`SELECTION_WIDTH`].
#[derive(Clone, Debug)]
pub struct Selection<W> {
    words: W,
}

impl<W: Words> Selection<W> {
    /// The one-hot words.
    pub fn words(&self) -> &W {
        &self.words
    }

    fn dims(&self) -> (usize, usize, usize) {
        let shape = self.words.shape();
        (shape[0], shape[1], shape[2])
    }
}

/// (rows, n) -> the k largest entries of each row, by all pairs: |x| < 2^`magnitude`, compared to `frac` fractional bits.
/// Entries that agree to that resolution (on shares: to within one unit of it) are taken in either order.
pub fn top_k_by_rank<B: Abb>(
    b: &mut B,
    x: &B::Words,
    k: usize,
    magnitude: u32,
    frac: u32,
) -> Result<Selection<B::Words>, Error> {
    let [rows, n] = x.shape()[..] else { panic!("ranking of {:?}", x.shape()) };
    assert!((1..=n).contains(&k), "{k} of {n}");
    b.scope("rank", |b| {
        b.expect_below(x, magnitude + FRAC)?;
        let pairs: Vec<(usize, usize)> = (0..n).flat_map(|i| (i + 1..n).map(move |j| (i, j))).collect();
        let ring = usize::BITS - n.leading_zeros() + 2;
        let wins = if pairs.is_empty() {
            b.constant(&[rows, n], 0)
        } else {
            let flat = x.reshape(&[rows * n]);
            let at = |side: fn(&(usize, usize)) -> usize| -> Vec<usize> {
                (0..rows).flat_map(|r| pairs.iter().map(move |pair| r * n + side(pair))).collect()
            };
            let width = magnitude + FRAC + 2;
            let difference = flat.pick(&at(|p| p.0)).minus(&flat.pick(&at(|p| p.1)));
            let coarse = difference.drop_low(FRAC - frac, width);
            let bits = b.at_least(&coarse, &[0], width - (FRAC - frac))?.reshape(&[rows * pairs.len()]);
            let first = b.bit_to_word(&bits, ring)?;
            let flipped = first.times(1u64.wrapping_neg());
            let second = b.add_public(&flipped, 1);
            // Entry i meets n - 1 others: its results in one row of that length, wherever they stand.
            let mut index = vec![0; rows * n * (n - 1)];
            let mut met = vec![0; n];
            for (p, &(i, j)) in pairs.iter().enumerate() {
                for r in 0..rows {
                    index[(r * n + i) * (n - 1) + met[i]] = r * pairs.len() + p;
                    index[(r * n + j) * (n - 1) + met[j]] = (rows + r) * pairs.len() + p;
                }
                met[i] += 1;
                met[j] += 1;
            }
            let both = B::Words::concat(0, &[&first, &second]);
            both.pick(&index).reshape(&[rows, n, n - 1]).sum_last()
        };
        // Rank 0 is the largest: it wins n - 1 times.
        let lost = wins.times(1u64.wrapping_neg());
        let ranks = b.add_public(&lost, n as u64 - 1);
        let mut bits = Vec::new();
        for start in (0..k).step_by(EQUAL_BATCH) {
            let values: Vec<i64> = (start..k.min(start + EQUAL_BATCH)).map(|j| j as i64).collect();
            bits.push(equal(b, &ranks, &values, ring)?);
        }
        let bits = B::Bits::concat(2, &bits.iter().collect::<Vec<_>>()).permute(&[0, 2, 1]);
        Ok(Selection { words: b.bit_to_word(&bits, SELECTION_WIDTH)? })
    })
}

/// The chosen entries of (x rows, n, w) -> (rows, k, w) modulo 2^64. The rows of x are shared by consecutive rows of the
/// selection, which are a multiple.
pub fn gather<B: Abb>(b: &mut B, selection: &Selection<B::Words>, x: &B::Words) -> Result<B::Words, Error> {
    let (rows, k, n) = selection.dims();
    let [shared, columns, w] = x.shape()[..] else { panic!("gather of {:?}", x.shape()) };
    assert!(columns == n && rows.is_multiple_of(shared), "{:?} by a selection of {n} in {rows} rows", x.shape());
    b.scope("gather", |b| {
        let folded = selection.words.reshape(&[shared, rows / shared * k, n]);
        let chosen = b.matmul(&folded, x, SELECTION_WIDTH)?;
        Ok(widen(b, &chosen)?.reshape(&[rows, k, w]))
    })
}

/// (rows, k, w) put back where it was chosen: (rows, n, w) modulo 2^64, zeros elsewhere.
pub fn scatter<B: Abb>(b: &mut B, selection: &Selection<B::Words>, x: &B::Words) -> Result<B::Words, Error> {
    b.scope("scatter", |b| {
        let spread = b.matmul(&selection.words.permute(&[0, 2, 1]), x, SELECTION_WIDTH)?;
        widen(b, &spread)
    })
}

/// Words modulo 2^SELECTION_WIDTH as words modulo 2^64.
fn widen<B: Abb>(b: &mut B, x: &B::Words) -> Result<B::Words, Error> {
    b.truncate(x, Truncation { width: SELECTION_WIDTH, shift: 0, out: 64 })
}

/// `second` chooses among the `fan_out` parts of each entry that `first` chose: the selection of parts of all entries.
/// (rows, k1, n) and (rows, k2, k1 fan_out) -> (rows, k2, n fan_out), exact.
pub fn compose<B: Abb>(
    b: &mut B,
    first: &Selection<B::Words>,
    fan_out: usize,
    second: &Selection<B::Words>,
) -> Result<Selection<B::Words>, Error> {
    let ((rows, k1, n), (rows2, k2, parts)) = (first.dims(), second.dims());
    assert!(rows == rows2 && parts == k1 * fan_out, "{parts} parts of {k1} chosen");
    b.scope("compose", |b| {
        let by_part = second.words.reshape(&[rows, k2, k1, fan_out]).permute(&[0, 3, 1, 2]);
        let scaled = first.words.times(1 << GUARD);
        let product = b.matmul(&by_part.reshape(&[rows, fan_out * k2, k1]), &scaled, COMPOSE_WIDTH)?;
        let product = product.reshape(&[rows, fan_out, k2, n]).permute(&[0, 2, 3, 1]);
        let bits = b.at_least(&product, &[1 << (GUARD - 1)], COMPOSE_WIDTH)?.reshape(&[rows, k2, n * fan_out]);
        Ok(Selection { words: b.bit_to_word(&bits, SELECTION_WIDTH)? })
    })
}

/// The same choice with the chosen entries in the order of their positions.
///
/// With P_i the number of chosen entries up to the i-th, entry i is the j-th chosen (from 0) where [P_i > j] and
/// [P_(i-1) > j] differ: one batched comparison of the prefix sums with the k public thresholds.
pub fn in_order<B: Abb>(b: &mut B, selection: &Selection<B::Words>) -> Result<Selection<B::Words>, Error> {
    let (rows, k, n) = selection.dims();
    b.scope("order", |b| {
        let mask = selection.words.permute(&[0, 2, 1]).sum_last();
        let mut sums = Vec::with_capacity(n);
        let mut sum = mask.slice(1, 0..1);
        sums.push(sum.clone());
        for i in 1..n {
            sum = sum.plus(&mask.slice(1, i..i + 1));
            sums.push(sum.clone());
        }
        let prefix = B::Words::concat(1, &sums.iter().collect::<Vec<_>>());
        // Sums reach k, thresholds too.
        let width = usize::BITS - k.leading_zeros() + 2;
        let mut bits = Vec::new();
        for start in (0..k).step_by(THRESHOLD_BATCH) {
            let thresholds: Vec<i64> = (start..k.min(start + THRESHOLD_BATCH)).map(|j| j as i64 + 1).collect();
            bits.push(b.at_least(&prefix, &thresholds, width)?);
        }
        let reached = B::Bits::concat(2, &bits.iter().collect::<Vec<_>>());
        let first = reached.slice(1, 0..1);
        let bits = if n == 1 {
            first
        } else {
            let change = b.xor(&reached.slice(1, 1..n), &reached.slice(1, 0..n - 1));
            B::Bits::concat(1, &[&first, &change])
        };
        Ok(Selection { words: b.bit_to_word(&bits.permute(&[0, 2, 1]), SELECTION_WIDTH)?.reshape(&[rows, k, n]) })
    })
}
