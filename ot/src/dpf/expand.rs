//! A party's shares of all leaves, from its keys.

use net::Role;
use zeroize::ZeroizeOnDrop;

use super::shape::DpfShape;
use super::{block, children};
use crate::Block;
#[cfg(feature = "probe")]
use crate::kernels::Simd;
use crate::kernels::{Kernels, Lane, Permutation};

/// Computes shares from keys, one after the other; keeps its buffers.
#[derive(ZeroizeOnDrop)]
pub struct Expander {
    #[zeroize(skip)]
    shape: DpfShape,
    #[zeroize(skip)]
    role: Role,
    /// The cipher of the last key, under its public key.
    #[zeroize(skip)]
    hash: Option<(Block, Permutation)>,
    nodes: [Vec<Block>; 2],
    hashes: Vec<Block>,
}

impl Expander {
    /// An expander of the keys of the party `role`.
    pub fn new(shape: DpfShape, role: Role) -> Self {
        let size = 1 << shape.depth;
        let buffer = || vec![Block::ZERO; size];
        Expander { shape, role, hash: None, nodes: [buffer(), buffer()], hashes: buffer() }
    }

    /// An expander of keys under the cipher key `cipher`, on given kernels.
    #[cfg(feature = "probe")]
    pub(crate) fn by(shape: DpfShape, role: Role, simd: Option<Simd>, cipher: Block) -> Self {
        let mut expander = Expander::new(shape, role);
        expander.hash = Some((cipher, Permutation::new(simd, cipher)));
        expander
    }

    /// This party's shares of all leaves' words, leaf by leaf, into `out` of [`DpfShape::values`] words; the bits
    /// above the width are arbitrary. Panics if a length or the lane is not the shape's.
    pub fn expand<L: Lane>(&mut self, key: &[u64], out: &mut [L]) {
        assert_eq!((L::WORDS, out.len()), (self.shape.words, self.shape.values()), "the leaves' words");
        let last = self.grow(key);
        let sign = match self.role {
            Role::Server => 0,
            Role::Client => u64::MAX,
        };
        match self.hash.as_ref().and_then(|(_, pi)| pi.simd()) {
            Some(simd) => simd.correct(&self.hashes, &self.nodes[0], last, sign, out),
            None => L::correct(&self.hashes, &self.nodes[0], last, sign, out),
        }
    }

    /// This party's shares of all leaves by exclusive-or, as words of 64 bits, two for each leaf
    /// ([`Generation::xor_leaves`](super::Generation::xor_leaves)).
    pub fn expand_xor(&mut self, key: &[u64], out: &mut [u64]) {
        assert_eq!((2, out.len()), (self.shape.words, self.shape.values()), "the leaves' words");
        let last = self.grow(key);
        for ((out, pad), node) in out.as_chunks_mut::<2>().0.iter_mut().zip(&self.hashes).zip(&self.nodes[0]) {
            *out = (*pad ^ last.times(node.lsb())).0;
        }
    }

    /// Computes the leaves' nodes, in the first buffer, and their hashes; returns the final correction.
    fn grow(&mut self, key: &[u64]) -> Block {
        let shape = self.shape;
        assert_eq!(key.len(), shape.key_words(), "a key");
        let (head, corrections) = key.split_at(shape.head());
        let cipher = block(head);
        let (_, hash) = match &mut self.hash {
            Some(hash) if hash.0 == cipher => &*hash,
            other => &*other.insert((cipher, Permutation::new(Kernels::Detected.simd(), cipher))),
        };
        let [here, next] = &mut self.nodes;
        let mut size = 1 << shape.top();
        here[..size].iter_mut().zip(head[2..].chunks_exact(2)).for_each(|(node, words)| *node = block(words));
        let (corrections, last) = corrections.split_at(corrections.len() - 2);
        for correction in corrections.chunks_exact(2) {
            hash.tree_hash(&here[..size], &mut self.hashes[..size]);
            children(hash.simd(), &here[..size], &self.hashes[..size], block(correction), &mut next[..2 * size]);
            std::mem::swap(here, next);
            size *= 2;
        }
        hash.tree_hash(here, &mut self.hashes);
        block(last)
    }
}

impl std::fmt::Debug for Expander {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Expander({:?})", self.shape)
    }
}
