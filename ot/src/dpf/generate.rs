//! The generation of keys by both parties.

use bits::cpu::wide;
use bits::mask;
use net::Role;
use rayon::prelude::*;
use zeroize::{ZeroizeOnDrop, Zeroizing};

use super::shape::{DpfShape, GROUP, level_bytes};
use super::{bit_pads, block};
use crate::kernels::{Kernels, Permutation, Sums};
use crate::keys::{ChosenKeys, SenderKeys};
use crate::{Block, OtError};

const STEP: &str = "dpf/level";

/// The generation of a batch of keys, level by level; both parties run it alike.
///
/// Memory bounds its speed: nodes are kept in place, one level short of the leaves, and their hashes are
/// computed a second time, in registers, instead of being kept.
#[derive(ZeroizeOnDrop)]
pub struct Generation {
    #[zeroize(skip)]
    shape: DpfShape,
    #[zeroize(skip)]
    role: Role,
    /// Room for all nodes but the leaves, tree by tree; the nodes of the level reached come first.
    nodes: Vec<Block>,
    /// Of the level reached.
    sums: Vec<Sums>,
    /// This party's share of the corrections offered.
    offered: Vec<Block>,
    /// Shares of alpha Delta, level by level for every tree.
    products: Vec<Block>,
    delta: Block,
    keys: Vec<u64>,
    level: u32,
}

/// The hash under the cipher key that a key begins with.
fn hash(key: &[u64]) -> Permutation {
    Permutation::new(Kernels::Detected.simd(), block(key))
}

impl Generation {
    /// Starts from OTs in both directions. Those of `bits` are random ([`OtSender::random`](crate::OtSender::random),
    /// [`OtReceiver::random`](crate::OtReceiver::random)), `index_bits` for every tree, tree by tree; the first
    /// `depth` of them choose the leaf, the highest bit first: their choices are this party's shares of its bits.
    /// They may be spent on transfers afterwards. Those of `top` are spent here, [`DpfShape::top_ots`] for every
    /// tree; their choices are this party's shares of the unit vector of the first [`DpfShape::top`] bits, without
    /// its first entry. Errors: not as many OTs in both directions, or not whole trees.
    pub fn new(
        shape: DpfShape,
        role: Role,
        index_bits: u32,
        bits: (&SenderKeys, &ChosenKeys),
        top: (SenderKeys, ChosenKeys),
    ) -> Result<Self, OtError> {
        let ((sender, chosen), (per, depth)) = (bits, (index_bits as usize, shape.depth as usize));
        OtError::expect(STEP, "OTs", sender.len(), chosen.len())?;
        if per < depth || !sender.len().is_multiple_of(per) {
            return Err(OtError::Length { step: STEP, unit: "OTs", expected: depth, got: per });
        }
        let (count, size) = (sender.len() / per, 1 << shape.top());
        OtError::expect(STEP, "OTs of the first levels", count * shape.top_ots(), top.0.len())?;
        OtError::expect(STEP, "OTs of the first levels", count * shape.top_ots(), top.1.len())?;
        // The direction in which the server sends loses its lowest bit.
        let cut = |block: Block, sender: Role| match sender {
            Role::Server => Block([block.0[0] & !1, block.0[1]]),
            Role::Client => block,
        };
        let delta = cut(sender.delta, role);
        // This party's share of its and the peer's choice times Delta.
        let product = |sender: &SenderKeys, chosen: &ChosenKeys, ot: usize| {
            let (q, t) = (cut(sender.blocks[ot], role), cut(chosen.blocks[ot], role.peer()));
            q ^ t ^ delta.times(chosen.choices.get(ot))
        };
        let (first, hasher) = match role {
            Role::Server => (sender.first, &sender.hash),
            Role::Client => (chosen.first, &chosen.hash),
        };
        let (key_words, room, grown) = (shape.key_words(), shape.room(), shape.top() as usize..depth);
        let mut products = Vec::with_capacity(count * grown.len());
        let mut nodes = vec![Block::ZERO; count * room];
        let mut keys = vec![0; count * key_words];
        let mut tree_key = Block::ZERO;
        let trees = nodes.chunks_exact_mut(room).zip(keys.chunks_exact_mut(key_words));
        for (tree, (nodes, key)) in trees.enumerate() {
            products.extend(grown.clone().map(|level| product(sender, chosen, tree * per + level)));
            // The entries of a unit vector add up to 1.
            nodes[0] = delta;
            for (i, ot) in (tree * shape.top_ots()..).take(shape.top_ots()).enumerate() {
                nodes[i + 1] = product(&top.0, &top.1, ot);
                let other = nodes[i + 1];
                nodes[0] ^= other;
            }
            if tree % GROUP == 0 {
                tree_key = Block::from_bytes(hasher.tree_key(first + (tree * per) as u64));
            }
            let head = std::iter::once(&tree_key).chain(&nodes[..size]);
            key.as_chunks_mut::<2>().0.iter_mut().zip(head).for_each(|(key, block)| *key = block.0);
        }
        let mut sums = vec![Sums::default(); count];
        sums.par_chunks_mut(GROUP)
            .zip(nodes.par_chunks(GROUP * room))
            .zip(keys.par_chunks(GROUP * key_words))
            .for_each(|((sums, nodes), keys)| {
                let hash = hash(keys);
                let nodes = nodes.chunks_exact(room);
                sums.iter_mut().zip(nodes).for_each(|(sums, nodes)| *sums = hash.sums(&nodes[..size], shape.words));
            });
        Ok(Generation { shape, role, nodes, sums, offered: Vec::new(), products, delta, keys, level: shape.top() })
    }

    /// Number of trees.
    pub fn len(&self) -> usize {
        self.keys.len() / self.shape.key_words()
    }

    /// Whether there are no trees.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Whether all levels are grown.
    pub fn is_grown(&self) -> bool {
        self.level == self.shape.depth
    }

    /// This party's message for the next level, [`level_bytes`].
    pub fn offer(&mut self) -> Vec<u8> {
        debug_assert!(!self.is_grown(), "a level to grow");
        let (grown, at) = ((self.shape.depth - self.shape.top()) as usize, (self.level - self.shape.top()) as usize);
        let products = self.products.chunks_exact(grown);
        // The left children keep Delta if alpha is 0.
        let share = |(sums, products): (&Sums, &[Block])| sums.hashes ^ products[at] ^ self.delta;
        self.offered = self.sums.iter().zip(products).map(share).collect();
        self.offered.iter().flat_map(|block| block.to_bytes()).collect()
    }

    /// Grows a level with the peer's message. Errors: its length.
    pub fn grow(&mut self, theirs: &[u8]) -> Result<(), OtError> {
        OtError::expect(STEP, "bytes", level_bytes(self.len()), theirs.len())?;
        let (shape, size) = (self.shape, 1usize << self.level);
        let (room, key_words) = (shape.room(), shape.key_words());
        let at = shape.head() + 2 * (self.level - shape.top()) as usize;
        let (mine, theirs) = (self.offered.par_chunks(GROUP), theirs.as_chunks::<16>().0.par_chunks(GROUP));
        self.nodes
            .par_chunks_mut(GROUP * room)
            .zip(self.keys.par_chunks_mut(GROUP * key_words))
            .zip(self.sums.par_chunks_mut(GROUP))
            .zip(mine.zip(theirs))
            .for_each(|(((nodes, keys), sums), (mine, theirs))| {
                let hash = hash(keys);
                let trees = nodes.chunks_exact_mut(room).zip(keys.chunks_exact_mut(key_words)).zip(sums);
                for (((nodes, key), sums), (mine, theirs)) in trees.zip(mine.iter().zip(theirs)) {
                    let correction = *mine ^ Block::from_bytes(*theirs);
                    key[at..at + 2].copy_from_slice(&correction.0);
                    *sums = hash.grow_level(nodes, size, correction, shape.words);
                }
            });
        self.level += 1;
        Ok(())
    }

    /// After the last level: for every tree this party's shares of the words that beta has to be added to, modulo
    /// 2^width, and of the bit t. The final correction is the sum of both, times 1 - 2 t.
    pub fn leaves(&self) -> (Vec<u64>, Vec<u8>) {
        debug_assert!(self.is_grown(), "all levels are grown");
        let words = self.shape.words;
        let signed = |sum: u64| match self.role {
            Role::Server => sum.wrapping_neg() & mask(self.shape.width),
            Role::Client => sum & mask(self.shape.width),
        };
        let values =
            self.sums.iter().flat_map(|sums| parts(sums.words, words).into_iter().take(words).map(signed)).collect();
        // The counts differ by 1 or -1 modulo 4; the borrow of the difference is the client's lowest bit.
        let bit = |set: u64| match self.role {
            Role::Server => set >> 1 & 1,
            Role::Client => (set >> 1 ^ set) & 1,
        };
        (values, self.sums.iter().map(|sums| bit(sums.set) as u8).collect())
    }

    /// [`Generation::leaves`] for leaves of two words that are added without carry: this party's shares of the words
    /// that beta has to be combined with by exclusive-or. There is no sign, so the result is the final correction.
    pub fn xor_leaves(&self) -> Vec<u64> {
        debug_assert!(self.is_grown() && self.shape.words == 2, "all levels are grown, leaves of two words");
        self.sums.iter().flat_map(|sums| sums.hashes.0).collect()
    }

    /// [`Generation::leaves`] for the bits of leaves: this party's shares, two words a block and tree, of the words
    /// that beta's bits have to be combined with by exclusive-or. Empty if leaves have no bits.
    pub fn bit_leaves(&self) -> Vec<u64> {
        debug_assert!(self.is_grown(), "all levels are grown");
        let blocks = self.shape.bit_blocks;
        if blocks == 0 {
            return Vec::new();
        }
        let (room, key_words) = (self.shape.room(), self.shape.key_words());
        let mut sums = vec![Block::ZERO; self.len() * blocks];
        sums.par_chunks_mut(GROUP * blocks)
            .zip(self.nodes.par_chunks(GROUP * room))
            .zip(self.keys.par_chunks(GROUP * key_words))
            .for_each(|((sums, nodes), keys)| {
                let (hash, mut pads) = (hash(keys), Zeroizing::new(vec![Block::ZERO; room]));
                for (sums, nodes) in sums.chunks_exact_mut(blocks).zip(nodes.chunks_exact(room)) {
                    for (block, sum) in sums.iter_mut().enumerate() {
                        bit_pads(&hash, block, nodes, &mut pads);
                        *sum = wide(|| pads.iter().fold(Block::ZERO, |sum, pad| sum ^ *pad));
                    }
                }
            });
        sums.into_iter().flat_map(|sum| sum.0).collect()
    }

    /// The keys, [`DpfShape::key_words`] each, with the final corrections that both parties have opened: of the
    /// words, and of the bits if leaves have some. Errors: another number of corrections.
    pub fn finish(mut self, corrections: &[u64], bits: &[u64]) -> Result<Vec<u64>, OtError> {
        const LAST: &str = "dpf/final correction";
        let DpfShape { words, .. } = self.shape;
        let (key_words, last_words, bit_words) =
            (self.shape.key_words(), self.shape.last_words(), self.shape.bit_words());
        OtError::expect(LAST, "words", self.len() * words, corrections.len())?;
        OtError::expect(LAST, "words of bits", self.len() * bit_words, bits.len())?;
        for (i, (key, correction)) in
            self.keys.chunks_exact_mut(key_words).zip(corrections.chunks_exact(words)).enumerate()
        {
            let last = match *correction {
                [a, b] => [a, b],
                [a, b, c, d] => [a & mask(32) | b << 32, c & mask(32) | d << 32],
                _ => [0; 2],
            };
            let (of_words, of_bits) = key[key_words - last_words..].split_at_mut(2);
            of_words.copy_from_slice(&last);
            of_bits.copy_from_slice(&bits[i * bit_words..][..bit_words]);
        }
        Ok(std::mem::take(&mut self.keys))
    }
}

impl std::fmt::Debug for Generation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Generation({} trees, level {})", self.len(), self.level)
    }
}

/// The words of a leaf, the last two zero if it has two.
fn parts(block: Block, words: usize) -> [u64; 4] {
    let [a, b] = block.0;
    if words == 2 { [a, b, 0, 0] } else { [a & mask(32), a >> 32, b & mask(32), b >> 32] }
}
