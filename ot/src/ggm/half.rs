//! Correlated trees ("half trees", Guo, Yang, Wang, Zhang, Xie, Liu and Zhao, <https://eprint.iacr.org/2022/1431>,
//! section 4): one call of the hash makes both children of a node.
//!
//! A node x has the children `H(x)` and `x ^ H(x)`, with `H(x) = pi(sigma(x)) ^ sigma(x)` and `sigma(a || b) = (a ^
//! b) || a` (Guo, Katz, Wang and Yu, <https://eprint.iacr.org/2019/074>, section 7.3; bound in [`crate::hash`]). The
//! two nodes of the first level sum to `Delta`, and so does every level; the last level is cut to even blocks, whose
//! sum is `Delta ^ 1`. A party that knows, for every level, the sum of the side that leaves the path to one leaf,
//! knows all leaves but that one.
//!
//! The functions here do not know the hash: kernels and portable code pass in how a level is doubled.

use super::levels;
use crate::Block;

/// All bits but the lowest, in which a leaf will hold the choice.
const EVEN: Block = Block([u64::MAX - 1, u64::MAX]);
const ALL: Block = Block([u64::MAX; 2]);

/// Mask of the bits that the blocks of level `l + 1` keep, in a tree of `depth` levels. The last level loses the
/// lowest bit.
#[inline(always)]
fn kept(l: usize, depth: usize) -> Block {
    if l + 1 == depth { EVEN } else { ALL }
}

/// The children of a node with the hash `hash`. A correction, if there is one, must have been added to the hash
/// before.
#[inline(always)]
pub(crate) fn children(node: Block, hash: Block) -> [Block; 2] {
    [hash, hash ^ node]
}

/// Grows the whole tree from `root` and leaves its leaves in `nodes`. `sums[l]` becomes the sum of the left nodes of
/// level `l + 1`.
///
/// `double(mask, nodes)` replaces the parents in the first half of `nodes` by all children, cut to `mask`, and
/// returns the sum of the left ones.
#[inline(always)]
pub(crate) fn grow(
    root: Block,
    delta: Block,
    sums: &mut [Block],
    nodes: &mut [Block],
    double: impl Fn(Block, &mut [Block]) -> Block,
) {
    let depth = sums.len();
    debug_assert_eq!(nodes.len(), 1 << depth);
    (nodes[0], nodes[1], sums[0]) = (root, root ^ delta, root);
    levels(nodes, |l, nodes| sums[l] = double(kept(l, depth), nodes));
}

/// Grows the tree without one leaf. Bit l of `away` is the side that leaves the path on level l + 1, `sums[l]` the
/// sum of its nodes. The leaf at the end of the path becomes `q ^ Delta`, where q is what [`grow`] has there.
///
/// `of_zero` is the hash of the zero block, `double` as for [`grow`], and `add_at` as below. Addresses and time do
/// not depend on `away`.
#[inline(always)]
pub(crate) fn regrow(
    of_zero: Block,
    away: u64,
    sums: &[Block],
    nodes: &mut [Block],
    double: impl Fn(Block, &mut [Block]) -> Block,
    add_at: impl Fn(&mut [Block], u64, Block),
) {
    let depth = sums.len();
    debug_assert_eq!(nodes.len(), 1 << depth);
    let side = |l: usize| away >> l & 1;
    (nodes[0], nodes[1]) = (sums[0].times(1 - side(0)), sums[0].times(side(0)));
    // The unknown node is kept at zero; the sum of a level is that of its known nodes.
    let (mut unknown, mut total) = (1 - side(0), sums[0]);
    levels(nodes, |l, nodes| {
        let (last, mask) = (l + 1 == depth, kept(l, depth));
        let left = double(mask, nodes);
        // The zero node got two equal children; one becomes its true value, the other zero again.
        let (of_zero, c) = (of_zero & mask, side(l));
        let both = total & mask;
        let correction = (sums[l] & mask) ^ left ^ both.times(c);
        total = both ^ correction ^ of_zero;
        let hole = if last { of_zero ^ total ^ Block([1, 0]) } else { of_zero };
        let (lefts, rights) = nodes.split_at_mut(1 << l);
        add_at(lefts, unknown, correction.times(1 - c) ^ hole.times(c));
        add_at(rights, unknown, correction.times(c) ^ hole.times(1 - c));
        unknown |= (1 - c) << l;
    });
}

/// XORs `by` into `nodes[at]`, touching all nodes alike.
pub(crate) fn add_at(nodes: &mut [Block], at: u64, by: Block) {
    for (i, node) in (0..).zip(nodes) {
        *node ^= by.times(waggle_bits::equal(i, at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{self, Permutation};
    use rand::{Rng, SeedableRng, rngs::StdRng};

    #[test]
    fn all_leaves_agree_but_one_that_differs_by_delta() {
        let mut rng = StdRng::seed_from_u64(8);
        let mut block = || Block([rng.next_u64(), rng.next_u64()]);
        for depth in 2..=9 {
            for away in [0, 0b1_1010_1101, u64::MAX].map(|a| a & ((1 << depth) - 1)) {
                let (pi, root, delta) = (block(), block(), Block([block().0[0] | 1, 7]));
                let mut sums = vec![Block::ZERO; depth];
                let mut whole = vec![Block::ZERO; 1 << depth];
                let portable = Permutation::new(None, pi);
                portable.grow(root, delta, &mut sums, &mut whole);
                // The right sums follow from the left ones; the last bit of the last one may be anything.
                let known: Vec<Block> = (0..).zip(&sums).map(|(l, &k)| k ^ delta.times(away >> l & 1)).collect();
                let mut part = vec![Block::ZERO; 1 << depth];
                portable.regrow(away, &known, &mut part);
                let alpha = (!away & ((1 << depth) - 1)) as usize;
                for x in 0..1 << depth {
                    assert_eq!(whole[x].lsb(), 0);
                    assert!(part[x] == whole[x] ^ delta.times(u64::from(x == alpha)), "depth {depth}, leaf {x}");
                }
                let all = whole.iter().fold(Block::ZERO, |sum, &leaf| sum ^ leaf);
                assert!(all == delta & EVEN);

                for simd in kernels::all().flatten() {
                    let (mut fast_sums, mut fast) = (sums.clone(), vec![Block::ZERO; 1 << depth]);
                    let kernel = Permutation::new(Some(simd), pi);
                    kernel.grow(root, delta, &mut fast_sums, &mut fast);
                    assert!(fast_sums == sums && fast == whole, "depth {depth}, {simd:?}");
                    kernel.regrow(away, &known, &mut fast);
                    assert!(fast == part, "depth {depth}, {simd:?}");
                }
            }
        }
    }
}
