//! Puncturable PRFs from full trees, the set-up of SoftSpoken OT.
//!
//! Tree `j` has `2^k` leaves. The extension's receiver knows all of them; the extension's sender knows all but the
//! one at its secret position `alpha_j`, the k bits `j k .. (j + 1) k` of its `Delta` (Roy,
//! <https://eprint.iacr.org/2022/192>, section 6). Level l of tree j spends the base
//! OT `j k + l`: with the receiver's sums `K_c` of all children on side c, the sender learns the sum of the side that
//! leaves its path.
//!
//! The sender stores leaf x at position `y = x ^ alpha_j`, so the hole is always at 0 and no address depends on a
//! secret: the only secret-dependent step is a conditional swap of two siblings.

use subtle::{Choice, ConditionallySelectable};
use zeroize::Zeroizing;

use super::levels;
use crate::base::COUNT;
use crate::{Block, OtError};

/// Bytes of the corrections: both sums for every level but the first, whose sums are the base keys themselves.
pub(crate) fn correction_bytes(k: usize) -> usize {
    (COUNT - COUNT / k) * 32
}

/// The two children of `node`.
fn children(key: &[u8; 32], tree: usize, level: usize, node: Block) -> [Block; 2] {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(&node.to_bytes()).update(&[tree as u8, level as u8]);
    let digest = hasher.finalize();
    let (halves, _) = digest.as_bytes().as_chunks();
    [halves[0], halves[1]].map(Block::from_bytes)
}

fn sum(blocks: &[Block]) -> Block {
    blocks.iter().fold(Block::ZERO, |acc, &b| acc ^ b)
}

/// Builds all trees from both keys of every base OT. Returns `128 / k` runs of `2^k` leaves and the corrections.
pub(crate) fn build(key: &[u8; 32], k: usize, base: &[[Block; 2]]) -> (Vec<Block>, Vec<u8>) {
    debug_assert_eq!(base.len(), COUNT);
    let mut leaves = Vec::with_capacity((COUNT / k) << k);
    let mut corrections = Vec::with_capacity(correction_bytes(k));
    for (tree, base) in base.chunks_exact(k).enumerate() {
        let mut nodes = Zeroizing::new(vec![Block::ZERO; 1 << k]);
        nodes[..2].copy_from_slice(&base[0]);
        levels(&mut nodes, |level, nodes| {
            let (lefts, rights) = nodes.split_at_mut(1 << level);
            for (left, right) in lefts.iter_mut().zip(rights.iter_mut()) {
                [*left, *right] = children(key, tree, level, *left);
            }
            for (side, pad) in [lefts, rights].into_iter().zip(base[level]) {
                corrections.extend_from_slice(&(sum(side) ^ pad).to_bytes());
            }
        });
        leaves.extend_from_slice(&nodes);
    }
    (leaves, corrections)
}

/// Rebuilds all trees around the holes `delta` from the base keys chosen by the *negated* bits of `delta`.
/// Leaf x of tree j is at position `x ^ alpha_j` of run j; position 0, the hole, holds zero.
pub(crate) fn open(
    step: &'static str,
    key: &[u8; 32],
    k: usize,
    chosen: &[Block],
    delta: &[Choice; COUNT],
    corrections: &[u8],
) -> Result<Vec<Block>, OtError> {
    OtError::expect(step, "bytes", correction_bytes(k), corrections.len())?;
    debug_assert_eq!(chosen.len(), COUNT);
    let mut leaves = Vec::with_capacity((COUNT / k) << k);
    let mut corrections = corrections.as_chunks::<16>().0.iter().map(|&b| u128::from_le_bytes(b));
    let mut next = || corrections.next().unwrap_or_default();
    for (tree, (chosen, delta)) in chosen.chunks_exact(k).zip(delta.chunks_exact(k)).enumerate() {
        let mut nodes = Zeroizing::new(vec![Block::ZERO; 1 << k]);
        nodes[1] = chosen[0];
        levels(&mut nodes, |level, nodes| {
            let (lefts, rights) = nodes.split_at_mut(1 << level);
            for (y, z) in lefts.iter_mut().zip(rights.iter_mut()).skip(1) {
                let [left, right] = children(key, tree, level, *y).map(u128::from);
                *y = u128::conditional_select(&left, &right, delta[level]).into();
                *z = u128::conditional_select(&right, &left, delta[level]).into();
            }
            // The side that leaves the path is 1 - alpha; all of its children but the hole's are known.
            let (left, right) = (next(), next());
            let side = u128::conditional_select(&right, &left, delta[level]);
            rights[0] = Block::from(side) ^ chosen[level] ^ sum(&rights[1..]);
        });
        leaves.extend_from_slice(&nodes);
    }
    Ok(leaves)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    #[test]
    fn all_leaves_agree_but_the_hole() {
        let mut rng = StdRng::seed_from_u64(5);
        let mut block = || Block([rng.next_u64(), rng.next_u64()]);
        let base: Vec<[Block; 2]> = (0..COUNT).map(|_| [block(), block()]).collect();
        let random = block();
        for (delta, k) in
            [random, Block::ZERO, Block([u64::MAX; 2])].into_iter().flat_map(|d| [(d, 2), (d, 4), (d, 8)])
        {
            let bit = |i: usize| delta.0[i / 64] >> (i % 64) & 1;
            let delta: [Choice; COUNT] = std::array::from_fn(|i| Choice::from(bit(i) as u8));
            let chosen: Vec<Block> = (0..COUNT).map(|i| base[i][1 - bit(i) as usize]).collect();
            let (all, corrections) = build(&[9; 32], k, &base);
            assert_eq!(corrections.len(), correction_bytes(k));
            let opened = open("t", &[9; 32], k, &chosen, &delta, &corrections).unwrap();
            for (j, (all, opened)) in all.chunks(1 << k).zip(opened.chunks(1 << k)).enumerate() {
                let alpha = (0..k).fold(0, |a, l| a | (bit(j * k + l) as usize) << l);
                assert!(opened[0] == Block::ZERO);
                assert!((1..1 << k).all(|y| opened[y] == all[y ^ alpha]), "k = {k}, tree {j}");
            }
            assert!(open("t", &[9; 32], k, &chosen, &delta, &corrections[1..]).is_err());
        }
    }
}
