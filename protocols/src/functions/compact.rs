//! Stable compaction: keeps the items that a secret mask marks, in their order, without telling which they are.
//!
//! **Functionality.** (rows, n) words 0 or 1, with exactly k ones in every row, and a payload (rows, n, w) modulo
//! 2^width -> (rows, k, w): the kept items in their order. k is public, the positions are secret.
//!
//! **Source.** The opened, shuffled destinations of oblivious radix sort (Chida et al., eprint 2019/695), for a key
//! of one bit, m_i, which is the mask of item i.
//!
//! ```text
//! P_i = the number of kept items before item i
//! a kept item goes to place P_i, a dropped one to k + i - P_i:
//!     destination = k + i - P_i + m_i (2 P_i - k - i)          one multiplexer by the lowest bit of m_i
//! shuffle items and destinations together by fresh permutations
//! open the shuffled destinations; each party puts its shares in their places
//! ```
//!
//! **Range.** Masks are words modulo 2^ceil(log2 n) or more; any payload. **Error.** None.
//!
//! **What each party sees.** Masked messages and the shuffled destinations. These are the fixed permutation
//! "destinations" after a uniformly random one, which neither party knows and under which nothing else is opened. So
//! they are uniformly random, whatever the mask. **Revealed.** Nothing: no index of the original order is ever
//! opened.

use ndarray::ArrayD;

use crate::abb::Abb;
use crate::functions::top_k::Shuffled;
use crate::ops::{Mux, Open, Permutations, Permute, Shuffle};
use crate::words::{Words, index_bits};
use crate::{Error, Indices, Tensor};

/// The `k` items of every row that `mask` keeps: a mask (rows, n) and items (rows, n, w) modulo 2^`width` -> (rows,
/// k, w).
///
/// # Errors
/// Opened destinations that are no permutation, as those of a mask with another number of ones may be.
pub fn compact<B: Abb>(
    b: &mut B,
    mask: &B::Words,
    payload: &B::Words,
    k: usize,
    width: u32,
) -> Result<B::Words, Error> {
    let (rows, n, w) = match (&mask.shape()[..], &payload.shape()[..]) {
        (&[rows, n], &[rows_too, n_too, w]) if (rows, n) == (rows_too, n_too) && k <= n => (rows, n, w),
        (mask, payload) => panic!("{k} of the items {payload:?} by a mask {mask:?}"),
    };
    b.scope("compact", |b| {
        if k == n {
            return Ok(payload.clone());
        }
        let Shuffled { permutations, positions, .. } = order(b, mask, k)?;
        let items = b.apply(Shuffle { widths: &[width], inverse: false }, (&permutations, payload))?;
        let at = Indices::new(rows * k * w, || {
            let at = positions.iter().enumerate().flat_map(|(row, p)| p.iter().map(move |p| row * n + p));
            at.flat_map(|item| item * w..(item + 1) * w).collect()
        });
        Ok(items.pick(&at).reshape(&[rows, k, w]))
    })
}

/// Fresh permutations, and the positions to which they bring the `k` items that `mask` (rows, n) keeps. The positions
/// are in the order of the items. A payload is compacted by shuffling it by these permutations and taking the
/// positions. Nothing else may be opened under the permutations.
pub(crate) fn order<B: Abb>(b: &mut B, mask: &B::Words, k: usize) -> Result<Shuffled<B::Words>, Error> {
    let [rows, n] = mask.shape()[..] else { panic!("masks of shape {:?}", mask.shape()) };
    b.scope("order", |b| {
        let (permutations, indices, opened) = opened(b, mask, k)?;
        let places = places(opened.as_ref(), rows, n, k)?;
        let positions = match k {
            0 => vec![vec![]; rows],
            _ => places.chunks(k).map(|row| row.iter().map(|at| at % n).collect()).collect(),
        };
        let indices = indices.pick(&places.into()).reshape(&[rows, k]);
        Ok(Shuffled { permutations, positions, indices, n })
    })
}

/// Fresh permutations, the shuffled indices (rows, n), and the opened destinations, which a plan does not have.
type Opened<B> = (Permutations, <B as Abb>::Words, Option<ArrayD<u64>>);

/// Shuffles the destinations of the items and opens them.
pub(crate) fn opened<B: Abb>(b: &mut B, mask: &B::Words, k: usize) -> Result<Opened<B>, Error> {
    let [rows, n] = mask.shape()[..] else { panic!("masks of shape {:?}", mask.shape()) };
    let bits = index_bits(n);
    let destinations = destinations(b, mask, k, bits)?.reshape(&[rows, n, 1]);
    let indices = b.public(&[rows, n, 1], |at| at[1] as u64);
    let permutations = b.apply(Permute { rows, items: n }, ())?;
    let items = b.apply(
        Shuffle { widths: &[bits], inverse: false },
        (&permutations, &B::Words::concat(2, &[&destinations, &indices])),
    )?;
    let opened = b.apply(Open { width: bits }, &items.slice(2, 0..1))?;
    Ok((permutations, items.slice(2, 1..2).reshape(&[rows, n]), opened))
}

/// The destination of every item modulo 2^`bits`.
pub(crate) fn destinations<B: Abb>(b: &mut B, mask: &B::Words, k: usize, bits: u32) -> Result<B::Words, Error> {
    let before = mask.sums_before();
    let last = b.public(&mask.shape(), |at| (k + at[1]) as u64).minus(&before);
    let kept = b.low_bit(mask);
    let moved = b.apply(Mux { width: bits }, (&kept, &before.minus(&last)))?;
    Ok(last.plus(&moved).drop_low(0, bits))
}

/// The positions, in the vector of all shuffled items, of the items whose destinations are 0..k, row by row. A plan
/// takes the first k positions of each row.
fn places(opened: Option<&ArrayD<u64>>, rows: usize, n: usize, k: usize) -> Result<Vec<usize>, Error> {
    let Some(opened) = opened else {
        return Ok((0..rows).flat_map(|row| row * n..row * n + k).collect());
    };
    let mut from = vec![None; rows * n];
    for (at, &place) in opened.iter().enumerate() {
        let row = at / n;
        match usize::try_from(place).ok().filter(|&place| place < n).map(|place| &mut from[row * n + place]) {
            Some(free @ None) => *free = Some(at),
            _ => return Err(Error::Destinations { row, len: n }),
        }
    }
    // n distinct places of n: every one is taken.
    Ok(from.chunks(n).flat_map(|row| row[..k].iter().copied().flatten()).collect())
}
