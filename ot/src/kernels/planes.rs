//! The bit planes of SoftSpoken OT: sums of the leaves of a run. The PRG that expands the leaves is passed in by the
//! caller.
//!
//! [`crate::softspoken`] defines u, v, w and d.

use super::transpose::{BATCH, TILES};
use crate::Block;

/// The runs that the leaves of a batch form: `2^k` leaves per run, all of them known or all but one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Bits of the small field: 2, 4 or 8.
    pub(crate) k: usize,
    /// Whether leaf 0 of every run is the unknown one.
    pub(crate) punctured: bool,
}

/// Writes the receiver's planes of one batch to `rows`, where row `j k + b` is plane b of sub-VOLE j, and the `d_j`
/// to `message`. `expand(leaf, out)` is the PRG.
#[inline(always)]
pub(crate) fn receive_batch(
    shape: &Shape,
    expand: impl Fn(usize, &mut [Block; TILES]),
    rows: &mut [Block; BATCH],
    message: &mut [u8],
) {
    let mut u0 = [Block::ZERO; TILES];
    planes(shape, expand, rows, |j, u, _| match j.checked_sub(1) {
        None => u0 = *u,
        Some(j) => {
            let d = &mut message[j * TILES * 16..(j + 1) * TILES * 16];
            for (d, (u, u0)) in d.as_chunks_mut::<16>().0.iter_mut().zip(u.iter().zip(&u0)) {
                *d = (*u ^ *u0).to_bytes();
            }
        }
    });
    // Both parties XOR w_{0,0} = v_{0,0} ^ u_0 (Delta has bit 0) into plane 0: the choice lands in the LSB.
    rows[..TILES].copy_from_slice(&u0);
}

/// Writes the sender's planes of one batch to `rows`, from the receiver's `message`.
#[inline(always)]
pub(crate) fn send_batch(
    shape: &Shape,
    expand: impl Fn(usize, &mut [Block; TILES]),
    delta: Block,
    rows: &mut [Block; BATCH],
    message: &[u8],
) {
    let k = shape.k;
    planes(shape, expand, rows, |j, _, planes| {
        let Some(d) = j.checked_sub(1).map(|j| &message[j * TILES * 16..(j + 1) * TILES * 16]) else {
            return;
        };
        let (d, _) = d.as_chunks::<16>();
        for (b, plane) in planes.iter_mut().enumerate() {
            let bit = j * k + b;
            let bit = delta.0[bit / 64] >> (bit % 64) & 1;
            for (w, &d) in plane.iter_mut().zip(d) {
                *w ^= Block::from_bytes(d).times(bit);
            }
        }
    });
    // Plane 0 after the XOR of w_{0,0}; see the receiver.
    rows[..TILES].fill(Block::ZERO);
}

/// Makes the bit planes of one batch. `each(j, u_j, planes of j)` is called for every j and may change the planes.
#[inline(always)]
fn planes(
    shape: &Shape,
    expand: impl Fn(usize, &mut [Block; TILES]),
    rows: &mut [Block; BATCH],
    mut each: impl FnMut(usize, &[Block; TILES], &mut [[Block; TILES]]),
) {
    let k = shape.k;
    let (rows, _) = rows.as_chunks_mut::<TILES>();
    let mut scratch = [[Block::ZERO; TILES]; 16];
    for (j, planes) in rows.chunks_exact_mut(k).enumerate() {
        let expand = |i: usize, out: &mut [Block; TILES]| match shape.punctured && i == 0 {
            true => *out = [Block::ZERO; TILES],
            false => expand((j << k) + i, out),
        };
        let u = match shape.k {
            2 => fold::<4>(1, expand, &mut scratch, planes),
            4 => fold::<16>(1, expand, &mut scratch, planes),
            _ => fold::<16>(16, expand, &mut scratch, planes),
        };
        each(j, &u, planes);
    }
}

/// Expands one run of leaves and sums it up. Plane b of `planes` becomes the sum of all leaves with bit b set, and
/// the sum of all leaves is returned. Groups of `G` leaves are halved level by level, and higher bits select whole
/// groups.
///
/// The sums over a punctured run are right for the planes (leaf 0 is in none), not for the total.
#[inline(always)]
fn fold<const G: usize>(
    groups: usize,
    expand: impl Fn(usize, &mut [Block; TILES]),
    x: &mut [[Block; TILES]; 16],
    planes: &mut [[Block; TILES]],
) -> [Block; TILES] {
    let mut total = [Block::ZERO; TILES];
    let (low, high) = planes.split_at_mut(G.trailing_zeros() as usize);
    high.fill([Block::ZERO; TILES]);
    for g in 0..groups {
        for (i, leaf) in x.iter_mut().enumerate().take(G) {
            expand(g * G + i, leaf);
        }
        // x[i] is a leaf, then the sum of a subtree, halved level by level in place.
        let mut n = G;
        for plane in low.iter_mut() {
            n /= 2;
            let mut sum = if g == 0 { [Block::ZERO; TILES] } else { *plane };
            for i in 0..n {
                let (even, odd) = (x[2 * i], x[2 * i + 1]);
                for t in 0..TILES {
                    sum[t] ^= odd[t];
                    x[i][t] = even[t] ^ odd[t];
                }
            }
            *plane = sum;
        }
        for (b, plane) in high.iter_mut().enumerate() {
            if g >> b & 1 == 1 {
                xor(plane, &x[0]);
            }
        }
        xor(&mut total, &x[0]);
    }
    total
}

#[inline(always)]
fn xor(a: &mut [Block; TILES], b: &[Block; TILES]) {
    for (a, b) in a.iter_mut().zip(b) {
        *a ^= *b;
    }
}
