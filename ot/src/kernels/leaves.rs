//! The loops of point functions: levels of a tree, the words of corrected leaves, and sums over a level.

use zeroize::{Zeroize, Zeroizing};

use crate::Block;
use crate::ggm::half;

/// Nodes that portable code handles at once.
const RUN: usize = 8;

/// The nodes of the next level from those of a level and their hashes: two children side by side for every node. The
/// correction is added where a node's lowest bit, its control bit, is set.
#[inline(always)]
fn children(nodes: &[Block], hashes: &[Block], correction: Block, out: &mut [Block]) {
    for ((out, node), hash) in out.as_chunks_mut::<2>().0.iter_mut().zip(nodes).zip(hashes) {
        *out = half::children(*node, *hash ^ correction.times(node.lsb()));
    }
}

/// A machine word that holds a word of a leaf: `u64` for leaves of two, `u32` for leaves of four.
pub trait Lane: Copy + Default + Send + Sync + 'static {
    /// Words of a leaf.
    const WORDS: usize;

    /// These words as the shares of leaves, to be multiplied by 1 or, if `sign` is all ones, by -1.
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

/// Where the words of leaves go, and how they are corrected.
#[doc(hidden)]
pub enum Words<'a> {
    /// (pad + correction where the control bit is set) XOR sign, minus sign, in two words.
    Two(&'a mut [u64], u64),
    /// [`Words::Two`] in four words; both halves of the sign are alike.
    Four(&'a mut [u32], u64),
    /// pad XOR correction where the control bit is set.
    Xor(&'a mut [u64]),
}

impl Words<'_> {
    /// The words from the leaves' nodes, their hashes and the last correction.
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

/// A party's sums over one level of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Zeroize)]
pub(crate) struct Sums {
    /// Exclusive-or of the nodes' hashes.
    pub(crate) hashes: Block,
    /// Sums of their words: two, or four of 32 bits.
    pub(crate) words: Block,
    /// Number of control bits set.
    pub(crate) set: u64,
}

impl Sums {
    /// Adds words, `lanes` to a block.
    #[inline(always)]
    pub(super) fn add_words(&mut self, by: Block, lanes: usize) {
        self.words = match lanes {
            2 => Block([0, 1].map(|i| self.words.0[i].wrapping_add(by.0[i]))),
            _ => {
                let (sum, by) = (quarters(self.words), quarters(by));
                let [a, b, c, d] = std::array::from_fn(|i| u64::from(sum[i].wrapping_add(by[i])));
                Block([a | b << 32, c | d << 32])
            }
        };
    }

    /// Adds nodes with their hashes.
    #[inline(always)]
    fn add(&mut self, nodes: &[Block], hashes: &[Block], lanes: usize) {
        for (node, hash) in nodes.iter().zip(hashes) {
            self.hashes ^= *hash;
            self.add_words(*hash, lanes);
            self.set += node.lsb();
        }
    }
}

/// The words of all leaves. The first of the two buffers `nodes` holds the `size` nodes to begin with; each of the
/// `corrections`, two words, makes a level, and `last` corrects the leaves.
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

/// The sums over `nodes`, whose hashes have `lanes` words.
pub(super) fn sums(nodes: &[Block], lanes: usize, hash: impl Fn(&[Block], &mut [Block])) -> Sums {
    let (mut sums, mut hashes) = (Sums::default(), [Block::ZERO; RUN]);
    for nodes in nodes.chunks(RUN) {
        let hashes = &mut hashes[..nodes.len()];
        hash(nodes, hashes);
        sums.add(nodes, hashes, lanes);
    }
    sums
}

/// Grows the first `size` of `nodes` to the next level, in place if there is room for it, and returns its sums.
pub(super) fn grow(
    nodes: &mut [Block],
    size: usize,
    correction: Block,
    lanes: usize,
    hash: impl Fn(&[Block], &mut [Block]),
) -> Sums {
    let (mut sums, run, keep) = (Sums::default(), size.min(RUN), nodes.len() >= 2 * size);
    let (mut hashes, mut next) = ([Block::ZERO; 2 * RUN], [Block::ZERO; 2 * RUN]);
    // From the end: children take no place of a parent to come.
    for at in (0..size).step_by(run).rev() {
        let (hashes, next) = (&mut hashes[..2 * run], &mut next[..2 * run]);
        hash(&nodes[at..at + run], &mut hashes[..run]);
        children(&nodes[at..at + run], &hashes[..run], correction, next);
        if keep {
            nodes[2 * at..2 * (at + run)].copy_from_slice(next);
        }
        hash(next, hashes);
        sums.add(next, hashes, lanes);
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{self, Permutation};

    fn mix(i: usize) -> Block {
        Block::from((i as u128 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835))
    }

    /// A permutation with every set of kernels, and the portable one.
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
    fn kernels_grow_and_sum_alike() {
        for lanes in [2, 4] {
            for size in [2usize, 4, 8, 16, 32, 64, 128] {
                for room in [size, 2 * size] {
                    let nodes: Vec<Block> = (0..room).map(mix).collect();
                    let (all, portable) = all();
                    let grown = |pi: &Permutation| {
                        let mut grown = nodes.clone();
                        let sums = pi.grow_level(&mut grown, size, mix(77), lanes);
                        (grown, sums, pi.sums(&nodes[..size], lanes))
                    };
                    let want = grown(&portable);
                    // By the definition: hashes of all children.
                    let mut hashes = vec![Block::ZERO; size];
                    portable.tree_hash(&nodes[..size], &mut hashes);
                    let mut next = vec![Block::ZERO; 2 * size];
                    children(&nodes[..size], &hashes, mix(77), &mut next);
                    assert!(room == size || want.0 == next);
                    let mut hashes = vec![Block::ZERO; 2 * size];
                    portable.tree_hash(&next, &mut hashes);
                    let mut sums = Sums::default();
                    sums.add(&next, &hashes, lanes);
                    assert_eq!(want.1, sums);
                    for pi in all {
                        assert!(grown(&pi) == want, "{size} nodes in {room}, {:?}", pi.simd());
                    }
                }
            }
        }
    }
}
