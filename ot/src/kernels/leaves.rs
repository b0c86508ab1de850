//! The loops of point functions: levels of a tree, the words of corrected leaves, and sums over a level.

use zeroize::Zeroizing;

use crate::Block;
use crate::dpf::{GROUP, tweak};
use crate::ggm::half;

/// Writes the next level from the nodes of a level and their hashes: two children side by side for every node. The
/// correction is added where a node's lowest bit, its control bit, is set.
#[inline(always)]
fn children(nodes: &[Block], hashes: &[Block], correction: Block, out: &mut [Block]) {
    for ((out, node), hash) in out.as_chunks_mut::<2>().0.iter_mut().zip(nodes).zip(hashes) {
        *out = half::children(*node, *hash ^ correction.times(node.lsb()));
    }
}

/// A machine word that holds a word of a leaf: `u64` for leaves of two words, `u32` for leaves of four.
pub trait Lane: Copy + Default + Send + Sync + 'static {
    /// Number of words of a leaf.
    const WORDS: usize;

    /// The place `out` for shares of leaves. Shares are multiplied by -1 if `sign` is all ones, and by 1 if it is
    /// zero.
    #[doc(hidden)]
    fn words(out: &mut [Self], sign: u64) -> Words<'_>;
}

impl Lane for u64 {
    const WORDS: usize = 2;

    fn words(out: &mut [u64], sign: u64) -> Words<'_> {
        Words::Two(out, sign)
    }
}

impl Lane for u32 {
    const WORDS: usize = 4;

    fn words(out: &mut [u32], sign: u64) -> Words<'_> {
        Words::Four(out, sign)
    }
}

/// Where the words of leaves go, and how a pad becomes the words of a leaf.
#[doc(hidden)]
pub enum Words<'a> {
    /// Two words per leaf. A word is the pad, plus the correction if the control bit is set, then XOR sign, minus
    /// sign.
    Two(&'a mut [u64], u64),
    /// As [`Words::Two`], with four words per leaf. Both halves of the sign are alike.
    Four(&'a mut [u32], u64),
    /// Two words per leaf. A word is the pad, XOR the correction if the control bit is set.
    Xor(&'a mut [u64]),
}

impl Words<'_> {
    /// Writes the words of leaves, from the leaves' nodes, their hashes `pads` and the last correction.
    #[inline(always)]
    pub(super) fn correct(self, pads: &[Block], nodes: &[Block], last: Block) {
        let leaves = pads.iter().zip(nodes).map(|(pad, node)| (*pad, last.times(node.lsb())));
        match self {
            Words::Two(out, sign) => {
                for (out, (pad, add)) in out.as_chunks_mut::<2>().0.iter_mut().zip(leaves) {
                    *out = std::array::from_fn(|i| (pad.0[i].wrapping_add(add.0[i]) ^ sign).wrapping_sub(sign));
                }
            }
            Words::Four(out, sign) => {
                for (out, (pad, add)) in out.as_chunks_mut::<4>().0.iter_mut().zip(leaves) {
                    let (pad, add, sign) = (quarters(pad), quarters(add), sign as u32);
                    *out = std::array::from_fn(|i| (pad[i].wrapping_add(add[i]) ^ sign).wrapping_sub(sign));
                }
            }
            Words::Xor(out) => {
                for (out, (pad, add)) in out.as_chunks_mut::<2>().0.iter_mut().zip(leaves) {
                    *out = (pad ^ add).0;
                }
            }
        }
    }
}

/// The four words of a block.
#[inline(always)]
fn quarters(Block([a, b]): Block) -> [u32; 4] {
    [a as u32, (a >> 32) as u32, b as u32, (b >> 32) as u32]
}

/// A party's sums over the leaves of a group of trees, to which kernels add. Every row has a block for each tree.
pub(crate) struct LeafRows<'a> {
    /// Sums of the words of the leaves' hashes.
    pub(crate) words: &'a mut [Block],
    /// Number of control bits set, in the low word.
    pub(crate) set: &'a mut [Block],
    /// A row for each block of bits, with the exclusive-or of the block's pads.
    pub(crate) pads: &'a mut [Block],
}

/// Adds two blocks. They are two words of 64 bits or four of 32 bits, as `lanes` says, or bits if `lanes` is 0.
#[inline(always)]
fn add_words(x: Block, by: Block, lanes: usize) -> Block {
    match lanes {
        2 => Block([0, 1].map(|i| x.0[i].wrapping_add(by.0[i]))),
        4 => {
            let (x, by) = (quarters(x), quarters(by));
            let [a, b, c, d] = std::array::from_fn(|i| u64::from(x[i].wrapping_add(by[i])));
            Block([a | b << 32, c | d << 32])
        }
        _ => x ^ by,
    }
}

/// The words of all leaves. The first of the two buffers `nodes` holds the `size` nodes to begin with. Each of the
/// `corrections`, two words long, is that of one further level, and `last` corrects the leaves.
pub(super) fn expand(
    nodes: [&mut [Block]; 2],
    mut size: usize,
    corrections: &[u64],
    last: Block,
    out: Words<'_>,
    hash: impl Fn(&[Block], &mut [Block]),
) {
    let [mut here, mut next] = nodes;
    let mut hashes = Zeroizing::new(vec![Block::ZERO; here.len()]);
    for &correction in corrections.as_chunks::<2>().0 {
        hash(&here[..size], &mut hashes[..size]);
        children(&here[..size], &hashes[..size], Block(correction), &mut next[..2 * size]);
        std::mem::swap(&mut here, &mut next);
        size *= 2;
    }
    hash(&here[..size], &mut hashes[..size]);
    out.correct(&hashes[..size], &here[..size], last);
}

/// The left children of a row of nodes, then the right ones. Each tree has its own correction.
#[inline(always)]
fn family(nodes: &[Block], corrections: &[Block], out: &mut [Block], hash: impl Fn(&[Block], &mut [Block])) {
    let (left, right) = out.split_at_mut(nodes.len());
    hash(nodes, left);
    for ((left, right), (node, correction)) in left.iter_mut().zip(right).zip(nodes.iter().zip(corrections)) {
        [*left, *right] = half::children(*node, *left ^ correction.times(node.lsb()));
    }
}

/// Grows the first `size` rows of `nodes` to the next level of a group of trees, in place. The children of row i are
/// the rows 2 i and 2 i + 1. `sums` becomes the exclusive-or of their hashes, for each tree.
pub(super) fn grow_rows(
    nodes: &mut [Block],
    size: usize,
    corrections: &[Block],
    sums: &mut [Block],
    hash: impl Fn(&[Block], &mut [Block]),
) {
    let row = corrections.len();
    let (mut first, mut hashes) = ([Block::ZERO; GROUP], [Block::ZERO; GROUP]);
    let hashes = &mut hashes[..row];
    first[..row].copy_from_slice(&nodes[..row]);
    sums.fill(Block::ZERO);
    // From the end, so that children take no place of a parent that is still needed. Only the first row is in the
    // place of its own child.
    for parent in (0..size).rev() {
        let (before, children) = nodes.split_at_mut(2 * parent * row);
        let parents = if parent == 0 { &first[..row] } else { &before[parent * row..][..row] };
        let children = &mut children[..2 * row];
        family(parents, corrections, children, &hash);
        for children in children.chunks_exact(row) {
            hash(children, hashes);
            sums.iter_mut().zip(&*hashes).for_each(|(sum, hash)| *sum ^= *hash);
        }
    }
}

/// Adds all leaves of a group of trees to `sums`. The leaves are the children of the rows `nodes`, or these rows
/// themselves if there are no corrections. Each tree has its own correction. Hashes have `lanes` words, as
/// [`add_words`] says.
pub(super) fn leaf_rows(
    nodes: &[Block],
    corrections: &[Block],
    lanes: usize,
    sums: &mut LeafRows<'_>,
    hash: impl Fn(&[Block], &mut [Block]),
) {
    let row = sums.set.len();
    let (mut leaves, mut hashes) = ([Block::ZERO; 2 * GROUP], [Block::ZERO; GROUP]);
    let hashes = &mut hashes[..row];
    let mut add = |leaves: &[Block]| {
        hash(leaves, hashes);
        sums.words.iter_mut().zip(&*hashes).for_each(|(sum, hash)| *sum = add_words(*sum, *hash, lanes));
        sums.set.iter_mut().zip(leaves).for_each(|(set, leaf)| set.0[0] += leaf.lsb());
        for (block, pads) in sums.pads.chunks_exact_mut(row).enumerate() {
            let mut tweaked = [Block::ZERO; GROUP];
            tweaked.iter_mut().zip(leaves).for_each(|(tweaked, leaf)| *tweaked = *leaf ^ tweak(block));
            hash(&tweaked[..row], hashes);
            pads.iter_mut().zip(&*hashes).for_each(|(pad, hash)| *pad ^= *hash);
        }
    };
    for nodes in nodes.chunks_exact(row) {
        if corrections.is_empty() {
            add(nodes);
            continue;
        }
        let leaves = &mut leaves[..2 * row];
        family(nodes, corrections, leaves, &hash);
        leaves.chunks_exact(row).for_each(&mut add);
    }
}

/// The exclusive-or of the bits of leaves in one block, over the leaves before `split` and over the others. A leaf's
/// bits are the hash of `node ^ tweak`, with `correction` added where the control bit is set.
pub(super) fn bit_sums(
    tweak: Block,
    correction: Block,
    nodes: &[Block],
    split: usize,
    hash: impl Fn(&[Block], &mut [Block]),
) -> [Block; 2] {
    let tweaked: Zeroizing<Vec<Block>> = Zeroizing::new(nodes.iter().map(|node| *node ^ tweak).collect());
    let mut pads = Zeroizing::new(vec![Block::ZERO; nodes.len()]);
    hash(&tweaked, &mut pads);
    let bits = |sum, (pad, node): (&Block, &Block)| sum ^ *pad ^ correction.times(node.lsb());
    [0..split, split..nodes.len()].map(|part| pads[part.clone()].iter().zip(&nodes[part]).fold(Block::ZERO, bits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{self, Permutation};

    fn mix(i: usize) -> Block {
        Block::from((i as u128 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835))
    }

    /// A permutation with every set of kernels, and the same permutation with the portable one.
    fn all() -> (impl Iterator<Item = Permutation>, Permutation) {
        (kernels::all().map(|simd| Permutation::new(simd, mix(5))), Permutation::new(None, mix(5)))
    }

    #[test]
    fn kernels_expand_alike() {
        for (size, levels) in [(2, 0), (4, 0), (8, 0), (8, 1), (8, 2), (8, 4), (8, 7)] {
            let corrections: Vec<u64> = (0..levels).flat_map(|level| mix(70 + level).0).collect();
            let leaves = size << levels;
            let run = |pi: &Permutation, words: Words<'_>| {
                let (mut a, mut b) = (vec![Block::ZERO; leaves], vec![Block::ZERO; leaves]);
                a.iter_mut().take(size).enumerate().for_each(|(i, node)| *node = mix(i));
                pi.expand([&mut a, &mut b], size, &corrections, mix(60), words);
            };
            let (all, portable) = all();
            let results = |pi: &Permutation| {
                let (mut two, mut minus) = (vec![0u64; 2 * leaves], vec![0u64; 2 * leaves]);
                let (mut xor, mut four) = (minus.clone(), vec![0u32; 4 * leaves + 1]);
                run(pi, Words::Two(&mut two, 0));
                run(pi, Words::Two(&mut minus, u64::MAX));
                run(pi, Words::Xor(&mut xor));
                // From an odd place on: the words need not be aligned as blocks are.
                run(pi, Words::Four(&mut four[1..], u64::MAX));
                (two, minus, xor, four)
            };
            let want = results(&portable);
            for pi in all {
                assert!(results(&pi) == want, "{size} nodes, {levels} levels, {:?}", pi.simd());
            }
        }
    }

    #[test]
    fn kernels_add_bits_alike() {
        // Miri takes hours for more.
        for leaves in [1usize, 2, 4, 8, 16, 32, 64, 128, 256].into_iter().filter(|n| !cfg!(miri) || *n <= 64) {
            let nodes: Vec<Block> = (0..leaves).map(mix).collect();
            for split in 0..=leaves {
                let (all, portable) = all();
                let sums = |pi: &Permutation| pi.bit_sums(tweak(split % 2), mix(60), &nodes, split);
                let want = sums(&portable);
                for pi in all {
                    assert!(sums(&pi) == want, "{leaves} leaves, split at {split}, {:?}", pi.simd());
                }
            }
        }
    }

    #[test]
    fn kernels_grow_and_sum_alike() {
        let cases = [(8, 1usize), (8, 4), (24, 8), (40, 2), (64, 1), (64, 8), (64, 32)];
        for (row, size) in cases.into_iter().filter(|(row, size)| !cfg!(miri) || row * size <= 200) {
            let nodes: Vec<Block> = (0..2 * size * row).map(mix).collect();
            let corrections: Vec<Block> = (500..500 + row).map(mix).collect();
            let (all, portable) = all();
            let grown = |pi: &Permutation| {
                let (mut grown, mut sums) = (nodes.clone(), vec![mix(3); row]);
                pi.grow_rows(&mut grown, size, &corrections, &mut sums);
                let mut parts = Vec::new();
                for (lanes, blocks) in [(0, 0), (2, 0), (2, 1), (4, 2)] {
                    for corrections in [&corrections[..], &[]] {
                        let (mut words, mut set, mut pads) =
                            (vec![mix(1); row], vec![Block::ZERO; row], vec![mix(9); blocks * row]);
                        let mut sums = LeafRows { words: &mut words, set: &mut set, pads: &mut pads };
                        pi.leaf_rows(&nodes[..size * row], corrections, lanes, &mut sums);
                        parts.push((words, set, pads));
                    }
                }
                (grown, sums, parts)
            };
            let want = grown(&portable);
            // By the definition: every child of every tree.
            let tree_hash = |x: Block| {
                let mut hash = [Block::ZERO];
                portable.tree_hash(&[x], &mut hash);
                hash[0]
            };
            for tree in 0..row {
                let node = |i: usize| nodes[i * row + tree];
                let next: Vec<Block> = (0..2 * size)
                    .map(|child| {
                        let node = node(child / 2);
                        half::children(node, tree_hash(node) ^ corrections[tree].times(node.lsb()))[child % 2]
                    })
                    .collect();
                let xor = |blocks: &mut dyn Iterator<Item = Block>| blocks.fold(Block::ZERO, |sum, x| sum ^ x);
                assert!((0..2 * size).all(|i| want.0[i * row + tree] == next[i]));
                assert!(want.1[tree] == xor(&mut next.iter().map(|x| tree_hash(*x))));
                let parts = [next, (0..size).map(node).collect()];
                for (i, (words, set, pads)) in want.2.iter().enumerate() {
                    let (lanes, leaves) = ([0, 2, 2, 4][i / 2], &parts[i % 2]);
                    let sum = leaves.iter().fold(mix(1), |sum, leaf| add_words(sum, tree_hash(*leaf), lanes));
                    assert!(words[tree] == sum);
                    assert_eq!(set[tree].0[0], leaves.iter().map(|leaf| leaf.lsb()).sum::<u64>());
                    for (block, pads) in pads.chunks_exact(row).enumerate() {
                        let pad = xor(&mut leaves.iter().map(|leaf| tree_hash(*leaf ^ tweak(block))));
                        assert!(pads[tree] == mix(9) ^ pad);
                    }
                }
            }
            for pi in all {
                assert!(grown(&pi) == want, "{size} rows of {row}, {:?}", pi.simd());
            }
        }
    }
}
