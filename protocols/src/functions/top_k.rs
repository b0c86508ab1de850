//! The k largest entries of every row, as secret unit vectors or as positions in a shuffled order.
//!
//! **Functionality.** (rows, n) words and a public k -> which k entries of every row are the largest. Three methods
//! give the same kind of result, [`Selection`]:
//! - [`rank`] compares all pairs in one batch. An entry's rank is the number of entries that come before it. O(n^2)
//!   comparisons, constant rounds.
//! - [`sort`] is Batcher's odd-even merge sort (AFIPS 1968) without the comparators on which the first k outputs do
//!   not depend. O(n log^2 n) comparisons, O(log^2 n) rounds.
//! - [`shuffle_reveal`] shuffles the keys by permutations that nobody knows and opens the positions of the largest
//!   keys in the shuffled order. Some 3 n comparisons and 5 to 15 rounds on average.
//!
//! **Range.** Words modulo 2^64 at [`FRAC`] fractional bits below the bound of [`Scores`]. Entries are compared at
//! `frac <= FRAC` fractional bits; their shares drop the low bits for free. The ring of keys is the narrowest, of at
//! most 64 bits, in which differences of keys are signed. With `rank` and `sort`, a word beyond the bound spoils the
//! choice and shows nothing. `shuffle_reveal` must be given a bound that no word can exceed ([`Scores::within`]):
//! keys that wrap compare in a circle, and the opened outcomes of a circle depend on the words.
//!
//! **Error.** Each entry is compared as a multiple of 2^-frac that is at most x and more than x - 2^(1 - frac), since
//! the shares' low halves may carry. Entries at least 2^(1 - frac) apart are ordered right. Closer ones may come in
//! either order, but in the same order throughout a run. Among equal multiples, the lower index comes first.
//! [`Scores::rounding`] compares the nearest multiple, exactly, and takes one more comparison of the low bits per
//! entry.
//!
//! **What each party sees.** `rank` and `sort`: only masked messages. `shuffle_reveal`: comparisons of shuffled keys,
//! and the positions of the k largest among them.
//!
//! **Revealed.** Nothing. The keys carry their index in the low bits, so they are distinct *before* the shuffle. No
//! difference of keys leaves their ring, so the outcomes are those of a total order of distinct integers. The opened
//! outcomes and positions are then those of a uniformly random ranking; see [`quickselect`](crate::ops::quickselect).
//! The positions tell something about the entries only together with the permutation, or with another opening under
//! the same permutations. So the caller must never make another opening under these permutations.

use std::ops::Range;

use crate::abb::Abb;
use crate::ops::one_hot::MOST_BITS;
use crate::ops::{AtLeast, B2a, Mux, OneHot, Permutations, Permute, Quickselect, Shuffle};
use crate::words::{Words, index_bits};
use crate::{Ceiling, Error, FRAC, Indices, Tensor};

/// Most entries of a unit vector, which [`OneHot`] limits.
const MOST_ENTRIES: usize = 1 << MOST_BITS;

/// The range and the precision in which entries are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scores {
    /// |x| <= bound, in units of the last place.
    bound: u64,
    /// Fractional bits that comparisons look at, at most [`FRAC`].
    frac: u32,
    /// Whether entries are rounded exactly to `frac` fractional bits, see [`rounded`].
    rounded: bool,
}

impl Scores {
    /// Words that are expected to satisfy |x| < 2^`magnitude`, compared at `frac` fractional bits.
    pub const fn below(magnitude: u32, frac: u32) -> Self {
        assert!(frac <= FRAC, "no more fractional bits than there are");
        let bound = if magnitude < 64 - FRAC { (1 << (magnitude + FRAC)) - 1 } else { u64::MAX };
        Scores { bound, frac, rounded: false }
    }

    /// Words that cannot exceed `ceiling`, compared at `frac` fractional bits.
    pub fn within(ceiling: Ceiling, frac: u32) -> Self {
        assert!(frac <= FRAC, "{frac} fractional bits of {FRAC}");
        Scores { bound: ceiling.units(), frac, rounded: false }
    }

    /// The same scores. If `rounded`, they are rounded exactly to their fractional bits before they are compared.
    pub const fn rounding(self, rounded: bool) -> Self {
        Scores { rounded, ..self }
    }

    /// The number of bits of a ring in which all differences of keys are signed values. A key is a value and `bits`
    /// bits of an index.
    ///
    /// Let d bits be dropped and b = `bound`. A value lies in [-ceil(b / 2^d) - 1, floor(b / 2^d)], where the 1 is
    /// for the carry that shares lose, or in [ceil(-b / 2^d - 1 / 2), floor(b / 2^d + 1 / 2)] if values are rounded.
    /// So two values differ by at most D = floor(b / 2^d) + ceil(b / 2^d) + 1, and their keys by at most D 2^bits +
    /// 2^bits - 1. The returned width makes this less than 2^(width - 1).
    fn width(self, bits: u32) -> Result<u32, Error> {
        let drop = FRAC - self.frac;
        let bound = u128::from(self.bound);
        let most = (bound >> drop) + bound.div_ceil(1 << drop) + 1;
        let difference = (most << bits) + (1 << bits) - 1;
        let width = u128::BITS - difference.leading_zeros() + 1;
        // Values come from words modulo 2^64, of which d bits are dropped.
        match width.max(width - bits + drop) {
            got if got <= 64 => Ok(width),
            got => Err(Error::Width { operation: "top-k", limit: 64, got }),
        }
    }

    /// The compared values, and the bits of their ring.
    fn coarse<B: Abb>(self, b: &mut B, x: &B::Words) -> Result<(B::Words, u32), Error> {
        b.expect_below(x, 1 << (u64::BITS - self.bound.leading_zeros()), FRAC)?;
        let (drop, width) = (FRAC - self.frac, self.width(0)?);
        let coarse = if self.rounded { rounded(b, x, drop, width)? } else { x.drop_low(drop, width + drop) };
        Ok((coarse, width))
    }

    /// Distinct keys that carry the index, and the bits of their ring. With b bits for an index, the key of a value
    /// is value 2^b + (n - 1 - index).
    pub(crate) fn keys<B: Abb>(self, b: &mut B, x: &B::Words) -> Result<(B::Words, u32), Error> {
        let (rows, n) = matrix(x);
        let bits = index_bits(n);
        let width = self.width(bits)?;
        let (coarse, _) = self.coarse(b, x)?;
        let reverse = b.public(&[rows, n], |at| (n - 1 - at[1]) as u64);
        Ok((coarse.times(1 << bits).plus(&reverse), width))
    }
}

/// Each entry divided by 2^`drop` and rounded to nearest (halves up), modulo 2^`width`. Exact: the low parts of the
/// shares carry where the bit above them is not the sum of the shares' bits.
fn rounded<B: Abb>(b: &mut B, x: &B::Words, drop: u32, width: u32) -> Result<B::Words, Error> {
    if drop == 0 {
        return Ok(x.clone());
    }
    b.scope("round", |b| {
        let x = b.add_public(x, 1 << (drop - 1));
        let coarse = x.drop_low(drop, width + drop);
        let even = b.apply(AtLeast { thresholds: &[0], width: drop + 1 }, &x)?.reshape(&x.shape());
        let (odd, sum) = (b.not(&even), b.low_bit(&coarse));
        let carry = b.xor(&odd, &sum);
        Ok(coarse.plus(&b.apply(B2a { width }, &carry)?))
    })
}

/// The k largest entries, in one of two forms.
#[derive(Clone)]
pub enum Selection<W> {
    /// One-hot words (rows, k, n): row i of each matrix (k, n) is the unit vector of the entry of rank i, modulo the
    /// power of two that was asked for.
    OneHot(W),
    /// Positions in a shuffled order that nobody knows.
    Shuffled(Shuffled<W>),
}

/// The k largest entries of each row as positions in a shuffled order.
#[derive(Clone)]
pub struct Shuffled<W> {
    /// The permutations. Shuffled by them, any data has the chosen items at `positions`.
    pub permutations: Permutations,
    /// For every row the positions of the k largest in the shuffled order, ascending.
    pub positions: Vec<Vec<usize>>,
    /// (rows, k): the secret indices of the items at `positions` before the shuffle, modulo 2^ceil(log2 n).
    pub indices: W,
    /// Items of a row.
    pub n: usize,
}

impl<W> Shuffled<W> {
    /// Items chosen in each row.
    pub fn chosen(&self) -> usize {
        self.positions.first().map_or(0, Vec::len)
    }
}

fn matrix(x: &impl Tensor) -> (usize, usize) {
    match x.shape()[..] {
        [rows, n] => (rows, n),
        ref shape => panic!("rows of entries expected, not {shape:?}"),
    }
}

/// The rank of each entry in its row, (rows, n) -> (rows, n), modulo 2^ceil(log2 n). The rank is the number of
/// entries of the row that come before the entry, and 0 for the largest.
pub(crate) fn ranks<B: Abb>(b: &mut B, x: &B::Words, scores: Scores) -> Result<B::Words, Error> {
    let (rows, n) = matrix(x);
    let bits = index_bits(n);
    b.scope("ranks", |b| {
        let (coarse, width) = scores.coarse(b, x)?;
        let total = n * n.saturating_sub(1) / 2;
        let pairs = move || (0..n).flat_map(move |i| (i + 1..n).map(move |j| (i, j)));
        let at = |of: fn((usize, usize)) -> usize| {
            let list = move || (0..rows).flat_map(|row| pairs().map(move |pair| row * n + of(pair))).collect();
            Indices::new(rows * total, list)
        };
        let difference = coarse.pick(&at(|pair| pair.0)).minus(&coarse.pick(&at(|pair| pair.1)));
        // The entry of lower index comes first.
        let first = b.apply(AtLeast { thresholds: &[0], width }, &difference)?.reshape(&[difference.len()]);
        let first = b.apply(B2a { width: bits }, &first)?.reshape(&[rows, total]);
        // Before an entry come the earlier entries that win their pair with it, and the later entries that it does
        // not beat.
        let position = |i: usize, j: usize| i * (2 * n - i - 1) / 2 + j - i - 1;
        let columns: Vec<B::Words> = (0..n)
            .map(|entry| {
                let sum = |others: Range<usize>, position: &dyn Fn(usize) -> usize| {
                    let at = Indices::new(rows * others.len(), || {
                        let others = || others.clone().map(position);
                        (0..rows).flat_map(|row| others().map(move |p| row * total + p)).collect()
                    });
                    first.pick(&at).reshape(&[rows, others.len()]).sum_last()
                };
                let lost = sum(0..entry, &|i| position(i, entry));
                let won = sum(entry + 1..n, &|j| position(entry, j));
                b.add_public(&lost.minus(&won), (n - 1 - entry) as u64).reshape(&[rows, 1])
            })
            .collect();
        if columns.is_empty() {
            return Ok(x.clone());
        }
        Ok(B::Words::concat(1, &columns.iter().collect::<Vec<_>>()))
    })
}

/// The k largest by secret ranks: (rows, n) -> unit vectors in words modulo 2^`width`, the largest first.
pub fn rank<B: Abb>(
    b: &mut B,
    x: &B::Words,
    k: usize,
    scores: Scores,
    width: u32,
) -> Result<Selection<B::Words>, Error> {
    let (rows, n) = chosen(x, k);
    b.scope("top-k by rank", |b| {
        if k == 0 {
            return Ok(Selection::OneHot(b.constant(&[rows, 0, n], 0)));
        }
        check_entries(n)?;
        let ranks = ranks(b, x, scores)?;
        let chosen = b.apply(OneHot { bits: index_bits(n), count: k }, &ranks)?.permute(&[0, 2, 1]);
        Ok(Selection::OneHot(b.apply(B2a { width }, &chosen)?))
    })
}

/// The k largest by a sorting network: (rows, n) -> unit vectors in words modulo 2^`width`, the largest first.
pub fn sort<B: Abb>(
    b: &mut B,
    x: &B::Words,
    k: usize,
    scores: Scores,
    width: u32,
) -> Result<Selection<B::Words>, Error> {
    let (rows, n) = chosen(x, k);
    b.scope("top-k by sorting", |b| {
        let (keys, ring) = scores.keys(b, x)?;
        // Wire by wire, so that layers pick whole rows.
        let mut wires = keys.permute(&[1, 0]);
        for layer in network(n, k) {
            let at = |of: fn(&(usize, usize)) -> usize| {
                let layer = &layer;
                Indices::new(layer.len() * rows, move || {
                    layer.iter().flat_map(|pair| (0..rows).map(move |row| of(pair) * rows + row)).collect()
                })
            };
            let (upper, lower) = (at(|pair| pair.0), at(|pair| pair.1));
            let (a, c) = (wires.pick(&upper), wires.pick(&lower));
            let difference = a.minus(&c);
            let larger = b.apply(AtLeast { thresholds: &[0], width: ring }, &difference)?.reshape(&[upper.len()]);
            let moved = b.apply(Mux { width: ring }, (&larger, &difference))?;
            let compared = B::Words::concat(0, &[&c.plus(&moved), &a.minus(&moved)]);
            let from = Indices::new(n * rows, || {
                let mut from: Vec<usize> = (0..n * rows).collect();
                for (i, &to) in upper.list().iter().chain(lower.list()).enumerate() {
                    from[to] = n * rows + i;
                }
                from
            });
            wires = B::Words::concat(0, &[&wires.reshape(&[n * rows]), &compared]).pick(&from).reshape(&[n, rows]);
        }
        let best = wires.slice(0, 0..k).permute(&[1, 0]);
        let indices = indices(b, &best, n);
        unit_vectors(b, &indices, n, width).map(Selection::OneHot)
    })
}

/// The k largest by opened comparisons of shuffled keys: (rows, n) -> positions in the shuffled order.
pub fn shuffle_reveal<B: Abb>(
    b: &mut B,
    x: &B::Words,
    k: usize,
    scores: Scores,
) -> Result<Shuffled<B::Words>, Error> {
    let (rows, n) = chosen(x, k);
    b.scope("top-k by shuffling", |b| {
        let (keys, ring) = scores.keys(b, x)?;
        let permutations = b.apply(Permute { rows, items: n }, ())?;
        let keys = b
            .apply(Shuffle { widths: &[ring], inverse: false }, (&permutations, &keys.reshape(&[rows, n, 1])))?
            .reshape(&[rows, n]);
        // A plan books the mean.
        let name = if B::PLAN { "quickselect (mean)" } else { "quickselect" };
        let positions = b.scope(name, |b| b.apply(Quickselect { k, width: ring }, &keys))?;
        let chosen = keys.pick(&Indices::new(rows * k, || {
            positions.iter().enumerate().flat_map(|(row, p)| p.iter().map(move |p| row * n + p)).collect()
        }));
        let indices = indices(b, &chosen.reshape(&[rows, k]), n);
        Ok(Shuffled { permutations, positions, indices, n })
    })
}

/// The unit vectors of the items at the opened positions: (rows, k, n) words modulo 2^`width`. It stays secret which
/// position belongs to which item: each vector comes from the equality of a secret index with all of 0..n.
pub fn one_hot_of_shuffled<B: Abb>(b: &mut B, shuffled: &Shuffled<B::Words>, width: u32) -> Result<B::Words, Error> {
    b.scope("unit vectors", |b| unit_vectors(b, &shuffled.indices, shuffled.n, width))
}

fn chosen(x: &impl Tensor, k: usize) -> (usize, usize) {
    let (rows, n) = matrix(x);
    assert!(k <= n, "the {k} largest of {n} entries");
    (rows, n)
}

fn check_entries(n: usize) -> Result<(), Error> {
    if n > MOST_ENTRIES {
        return Err(Error::TooMany { operation: "unit vectors", limit: MOST_ENTRIES, got: n });
    }
    Ok(())
}

/// The indices that keys carry. The low bits of a key are n - 1 - index.
fn indices<B: Abb>(b: &mut B, keys: &B::Words, n: usize) -> B::Words {
    b.add_public(&keys.times(u64::MAX), (n.max(1) - 1) as u64)
}

fn unit_vectors<B: Abb>(b: &mut B, indices: &B::Words, n: usize, width: u32) -> Result<B::Words, Error> {
    if n == 0 {
        return Ok(indices.repeat_last(0));
    }
    check_entries(n)?;
    let bits = b.apply(OneHot { bits: index_bits(n), count: n }, indices)?;
    b.apply(B2a { width }, &bits)
}

/// The layers of comparators that bring the `k` largest of `n` entries to the first wires, in order. A comparator
/// puts the larger entry on the first of its two wires.
fn network(n: usize, k: usize) -> Vec<Vec<(usize, usize)>> {
    // Batcher's network for the next power of two. Wires from n on would hold smaller values, and stay.
    let size = n.next_power_of_two();
    let mut comparators = Vec::new();
    let mut p = 1;
    while p < size {
        let mut q = p;
        while q >= 1 {
            for start in (q % p..size.saturating_sub(q)).step_by(2 * q) {
                for i in start..(start + q).min(size - q) {
                    if i / (2 * p) == (i + q) / (2 * p) && i + q < n {
                        comparators.push((i, i + q));
                    }
                }
            }
            q /= 2;
        }
        p *= 2;
    }
    let mut needed: Vec<bool> = (0..n).map(|wire| wire < k).collect();
    let mut kept = Vec::new();
    for &(i, j) in comparators.iter().rev() {
        if needed[i] || needed[j] {
            (needed[i], needed[j]) = (true, true);
            kept.push((i, j));
        }
    }
    let mut layers: Vec<Vec<(usize, usize)>> = Vec::new();
    let mut depth = vec![0; n];
    for &(i, j) in kept.iter().rev() {
        let layer = depth[i].max(depth[j]);
        (depth[i], depth[j]) = (layer + 1, layer + 1);
        if layers.len() == layer {
            layers.push(Vec::new());
        }
        layers[layer].push((i, j));
    }
    layers
}
