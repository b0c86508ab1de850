//! A party's shares of all leaves, from its keys.

use waggle_net::Role;
use zeroize::ZeroizeOnDrop;

use super::shape::DpfShape;
use super::{BLOCK_BITS, MOST_BIT_BLOCKS, block, tweak};
use crate::Block;
#[cfg(feature = "probe")]
use crate::kernels::Simd;
use crate::kernels::{Kernels, Lane, Permutation, Words};

/// A sum of the bits of leaves by exclusive-or, in words of 64 bits. Leaves may have fewer blocks than the words
/// hold; the other words are then zero.
pub type BitSum = [u64; MOST_BIT_BLOCKS * BLOCK_BITS / 64];

/// Computes a party's shares from keys, one key after the other. It keeps its buffers between keys.
#[derive(ZeroizeOnDrop)]
pub struct Expander {
    #[zeroize(skip)]
    shape: DpfShape,
    #[zeroize(skip)]
    role: Role,
    /// The public cipher key of the last key, and the cipher under it.
    #[zeroize(skip)]
    hash: Option<(Block, Permutation)>,
    nodes: [Vec<Block>; 2],
}

impl Expander {
    /// An expander of the keys of the party `role`.
    pub fn new(shape: DpfShape, role: Role) -> Self {
        let size = 1 << shape.depth;
        let buffer = || vec![Block::ZERO; size];
        Expander { shape, role, hash: None, nodes: [buffer(), buffer()] }
    }

    /// An expander of keys under the cipher key `cipher`, on given kernels.
    #[cfg(feature = "probe")]
    pub(crate) fn by(shape: DpfShape, role: Role, simd: Option<Simd>, cipher: Block) -> Self {
        let mut expander = Expander::new(shape, role);
        expander.hash = Some((cipher, Permutation::new(simd, cipher)));
        expander
    }

    /// Writes this party's shares of all leaves' words, leaf by leaf, to `out`, which has [`DpfShape::values`] words.
    /// The bits above the width are arbitrary. Panics if a length or the lane is not the shape's.
    pub fn expand<L: Lane>(&mut self, key: &[u64], out: &mut [L]) {
        assert_eq!((L::WORDS, out.len()), (self.shape.words, self.shape.values()), "the leaves' words");
        let sign = self.sign();
        self.grow(key, L::words(out, sign));
    }

    /// As [`Expander::expand`], for the leaves `first`, `first` + 1, .., as many as `out` has room for. Leaf 0
    /// follows the last leaf. Few leaves take little time, so which leaves they are is public. Panics if a length or
    /// the lane is not the shape's.
    pub fn expand_part<L: Lane>(&mut self, key: &[u64], first: usize, out: &mut [L]) {
        let DpfShape { depth, words, .. } = self.shape;
        let (top, sign, leaves) = (self.shape.top(), self.sign(), out.len() / words);
        assert!(L::WORDS == words && out.len() == leaves * words && first >> depth == 0, "words of leaves");
        if 2 * leaves > 1 << depth {
            let mut all = vec![L::default(); self.shape.values()];
            self.grow(key, L::words(&mut all, sign));
            all.rotate_left(first * words);
            out.copy_from_slice(&all[..out.len()]);
            return;
        }
        // Subtrees of 2^below leaves, from their roots on.
        let below = leaves.next_power_of_two().ilog2().min(depth - top);
        let (start, run, above) = (first & ((1 << below) - 1), 1 << below, depth - below);
        let roots = (start + leaves).div_ceil(run);
        let (head, corrections, last) = self.read(key);
        let hash = &self.hash.as_ref().expect("the key was read").1;
        for (i, node) in self.nodes[0][..roots].iter_mut().enumerate() {
            let at = ((first >> below) + i) & ((1 << above) - 1);
            *node = block(&head[2 * (at >> (above - top))..]);
            for (level, correction) in (top..above).zip(corrections.chunks_exact(2)) {
                *node = hash.child(*node, block(correction), at >> (above - 1 - level) & 1 == 1);
            }
        }
        let mut part = vec![L::default(); roots * run * words];
        let [here, next] = self.nodes.each_mut().map(|nodes| &mut nodes[..roots * run]);
        hash.expand([here, next], roots, &corrections[2 * (above - top) as usize..], last, L::words(&mut part, sign));
        out.copy_from_slice(&part[start * words..][..out.len()]);
    }

    /// All ones if this party's shares are negated.
    fn sign(&self) -> u64 {
        match self.role {
            Role::Server => 0,
            Role::Client => u64::MAX,
        }
    }

    /// Writes this party's shares by exclusive-or of all leaves to `out`, as two words of 64 bits for each leaf
    /// ([`Generation::xor_leaves`](super::Generation::xor_leaves)).
    pub fn expand_xor(&mut self, key: &[u64], out: &mut [u64]) {
        assert_eq!((2, out.len()), (self.shape.words, self.shape.values()), "the leaves' words");
        self.grow(key, Words::Xor(out));
    }

    /// As [`Self::expand`], and returns sums of this party's shares by exclusive-or of the bits of leaves: over the
    /// leaves before `split`, and over the leaves from `split` on. Panics if leaves have no bits.
    pub fn expand_with_bits<L: Lane>(&mut self, key: &[u64], split: usize, out: &mut [L]) -> [BitSum; 2] {
        assert!(self.shape.bit_blocks > 0 && split <= 1 << self.shape.depth, "bits of leaves");
        self.expand(key, out);
        // The levels alternate between the buffers.
        let nodes = &self.nodes[(self.shape.depth - self.shape.top()) as usize % 2];
        let hash = &self.hash.as_ref().expect("the key was read").1;
        let corrections = &key[key.len() - self.shape.bit_words()..];
        let mut sums = [BitSum::default(); 2];
        for (i, correction) in corrections.chunks_exact(2).map(block).enumerate() {
            let blocks = hash.bit_sums(tweak(i), correction, nodes, split);
            sums.iter_mut().zip(blocks).for_each(|(sum, Block(bits))| sum[2 * i..2 * i + 2].copy_from_slice(&bits));
        }
        sums
    }

    /// Splits a key into the nodes of level [`DpfShape::top`], the corrections of the levels below, and the final
    /// correction. Afterwards the hash is the one under the key's cipher key.
    fn read<'k>(&mut self, key: &'k [u64]) -> (&'k [u64], &'k [u64], Block) {
        assert_eq!(key.len(), self.shape.key_words(), "a key");
        let (head, corrections) = key.split_at(self.shape.head());
        let (cipher, nodes) = head.split_at(2);
        let cipher = block(cipher);
        if self.hash.as_ref().is_none_or(|(last, _)| *last != cipher) {
            self.hash = Some((cipher, Permutation::new(Kernels::Detected.simd(), cipher)));
        }
        let (corrections, last) = corrections.split_at(corrections.len() - self.shape.last_words());
        (nodes, corrections, block(last))
    }

    fn grow(&mut self, key: &[u64], out: Words<'_>) {
        let (head, corrections, last) = self.read(key);
        let hash = &self.hash.as_ref().expect("the key was read").1;
        let [here, next] = &mut self.nodes;
        let size = 1 << self.shape.top();
        here[..size].iter_mut().zip(head.chunks_exact(2)).for_each(|(node, words)| *node = block(words));
        hash.expand([here, next], size, corrections, last, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mix(i: usize) -> u64 {
        (i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23) ^ i as u64
    }

    /// Expands arbitrary words, which serve as well as a key, and compares parts of the leaves with all leaves.
    fn check<L: Lane + PartialEq + std::fmt::Debug>(depth: u32) {
        let shape = DpfShape::new(depth, L::WORDS, 32).expect("a shape");
        let key: Vec<u64> = (0..shape.key_words()).map(mix).collect();
        for role in [Role::Client, Role::Server] {
            let mut expander = Expander::new(shape, role);
            let mut all = vec![L::default(); shape.values()];
            expander.expand(&key, &mut all);
            let leaves = 1 << depth;
            for count in [1, 2, 3, 7, 8, 11, 12, leaves / 2, leaves].into_iter().filter(|&count| count <= leaves) {
                for first in (0..leaves).step_by(1 + leaves / 37).chain([leaves - 1]) {
                    let mut part = vec![L::default(); count * L::WORDS];
                    expander.expand_part(&key, first, &mut part);
                    for (i, leaf) in part.chunks_exact(L::WORDS).enumerate() {
                        let at = (first + i) % leaves * L::WORDS;
                        assert_eq!(leaf, &all[at..at + L::WORDS], "depth {depth}, {count} leaves from {first}");
                    }
                }
            }
        }
    }

    #[test]
    fn parts_are_those_of_the_whole() {
        for depth in [1, 2, 3, 4, 5, 7, 9, 10] {
            check::<u64>(depth);
            check::<u32>(depth);
        }
    }
}
