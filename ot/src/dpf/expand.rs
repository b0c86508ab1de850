//! A party's shares of all leaves, from its keys.

use net::Role;
use zeroize::ZeroizeOnDrop;

use super::block;
use super::shape::DpfShape;
use crate::Block;
#[cfg(feature = "probe")]
use crate::kernels::Simd;
use crate::kernels::{Kernels, Lane, Permutation, Words};

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

    /// This party's shares of all leaves' words, leaf by leaf, into `out` of [`DpfShape::values`] words; the bits
    /// above the width are arbitrary. Panics if a length or the lane is not the shape's.
    pub fn expand<L: Lane>(&mut self, key: &[u64], out: &mut [L]) {
        assert_eq!((L::WORDS, out.len()), (self.shape.words, self.shape.values()), "the leaves' words");
        let sign = match self.role {
            Role::Server => 0,
            Role::Client => u64::MAX,
        };
        self.grow(key, L::words(out, sign));
    }

    /// This party's shares of all leaves by exclusive-or, as words of 64 bits, two for each leaf
    /// ([`Generation::xor_leaves`](super::Generation::xor_leaves)).
    pub fn expand_xor(&mut self, key: &[u64], out: &mut [u64]) {
        assert_eq!((2, out.len()), (self.shape.words, self.shape.values()), "the leaves' words");
        self.grow(key, Words::Xor(out));
    }

    fn grow(&mut self, key: &[u64], out: Words<'_>) {
        let shape = self.shape;
        assert_eq!(key.len(), shape.key_words(), "a key");
        let (head, corrections) = key.split_at(shape.head());
        let cipher = block(head);
        let (_, hash) = match &mut self.hash {
            Some(hash) if hash.0 == cipher => &*hash,
            other => &*other.insert((cipher, Permutation::new(Kernels::Detected.simd(), cipher))),
        };
        let [here, next] = &mut self.nodes;
        let size = 1 << shape.top();
        here[..size].iter_mut().zip(head[2..].chunks_exact(2)).for_each(|(node, words)| *node = block(words));
        let (corrections, last) = corrections.split_at(corrections.len() - 2);
        hash.expand([here, next], size, corrections, block(last), out);
    }
}

impl std::fmt::Debug for Expander {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Expander({:?})", self.shape)
    }
}
