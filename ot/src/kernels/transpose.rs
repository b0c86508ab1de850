//! Bit transposition of several 128 x 128 matrices at once.

use crate::Block;

/// Number of matrices that are transposed together. Each leaf of the extension also expands to this many blocks at
/// once, which are two rounds of the eight blocks that AES-NI keeps in flight.
pub(crate) const TILES: usize = 16;

/// Number of blocks of all tiles.
pub(crate) const BATCH: usize = 128 * TILES;

/// Transposes tile `t`, whose row `r` is `rows[r * TILES + t]`, in place, for every `t`.
///
/// Interleaving the tiles makes each step of the recursion (swap the off-diagonal quadrants of 2s x 2s submatrices,
/// s = 1, 2, .., 64) the same shift-and-mask on long runs of words, which the compiler vectorises.
pub(crate) fn transpose(rows: &mut [Block; BATCH]) {
    swap::<1>(rows, 0x5555_5555_5555_5555);
    swap::<2>(rows, 0x3333_3333_3333_3333);
    swap::<4>(rows, 0x0f0f_0f0f_0f0f_0f0f);
    swap::<8>(rows, 0x00ff_00ff_00ff_00ff);
    swap::<16>(rows, 0x0000_ffff_0000_ffff);
    swap::<32>(rows, 0x0000_0000_ffff_ffff);
    // s = 64 moves whole words: the high word of row r and the low word of row r + 64.
    let (top, bottom) = rows.split_at_mut(BATCH / 2);
    for (a, b) in top.iter_mut().zip(bottom) {
        std::mem::swap(&mut a.0[1], &mut b.0[0]);
    }
}

/// Swaps bit `i + S` of row `r` with bit `i` of row `r + S`, for all `i` in `mask` and all `r` with bit S clear.
#[inline(always)]
fn swap<const S: usize>(rows: &mut [Block; BATCH], mask: u64) {
    for pair in rows.chunks_exact_mut(2 * S * TILES) {
        let (top, bottom) = pair.split_at_mut(S * TILES);
        for (a, b) in top.iter_mut().zip(bottom) {
            for w in 0..2 {
                let t = (a.0[w] >> S ^ b.0[w]) & mask;
                b.0[w] ^= t;
                a.0[w] ^= t << S;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    fn check(transpose: impl Fn(&mut [Block; BATCH])) {
        let mut rng = StdRng::seed_from_u64(1);
        for round in 0..4 {
            let mut rows = Box::new([Block::ZERO; BATCH]);
            for b in rows.iter_mut() {
                *b = match round {
                    0 => Block([u64::MAX; 2]),
                    _ => Block([rng.next_u64(), rng.next_u64()]),
                };
            }
            let before = rows.clone();
            transpose(&mut rows);
            for t in 0..TILES {
                for r in 0..128 {
                    for c in 0..128 {
                        let bit = |m: &[Block], r: usize, c: usize| m[r * TILES + t].0[c / 64] >> (c % 64) & 1;
                        assert_eq!(bit(&rows[..], r, c), bit(&before[..], c, r), "tile {t} row {r} column {c}");
                    }
                }
            }
        }
    }

    #[test]
    fn portable_code_and_kernels_transpose() {
        check(transpose);
        crate::kernels::all().flatten().for_each(|simd| check(|rows| simd.transpose(rows)));
    }
}
