//! Distributed point functions over small domains, with keys made by the two parties themselves.
//!
//! **Functionality.** The parties hold bits of a random index R as XOR shares, and shares of a vector beta of words. They
//! get a key each, from which either computes its share of the vector that is beta at leaf R and 0 at all others:
//! v_server + v_client modulo 2^width, word by word ([`Expander`]).
//!
//! **Source.** Two-party generation by expanding the whole tree (Doerner and shelat, CCS 2017), over the correlated tree of
//! Guo et al. (Half-Tree, eprint 2022/1431, sections 4 and 5): the nodes of the two parties agree off the path to R and
//! differ by Delta = Delta_server ^ Delta_client on it, and a child is `H(node)` or `H(node) ^ node`. A level's correction
//! is then H-sums of both parties plus a share of alpha Delta, for the level's bit alpha of R, and random correlated OTs
//! with random choices alpha_server and alpha_client *are* such shares: a level costs one block each way and one OT in
//! each direction, whose Delta is the pool's. The first level costs no block at all. Delta needs lowest bit 1, to tell the
//! parties' control bits apart, so the lowest bit is dropped in the direction where the server sends OTs.
//!
//! **The final correction** is sign (beta - sum of the server's leaves + sum of the client's), where sign = 1 - 2 t and t is
//! the client's control bit at R. As only at R the control bits differ, t is known as XOR shares from how many of its
//! control bits either party finds set, modulo 4. The product is the caller's ([`Generation::leaves`]).
//!
//! **What each party sees.** Corrections, which are H of nodes of the other party, unknown for Delta_other's sake (circular
//! correlation robustness of `H(x) = pi(sigma(x)) ^ sigma(x)`, Guo et al., eprint 2019/074, with pi = AES-128 under a public
//! key that changes every [`GROUP`] keys), and shares of them that follow from the correction and its own. Every node is
//! hashed once. **A key contains the party's Delta** (the two nodes of the first level differ by it): who reads one key can
//! compute all that the party's OT sender hides. Keep it as the pools are kept.

use net::Role;
use rayon::prelude::*;
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::bits::low_mask;
use crate::tree_hash::TreeHash;
use crate::{Block, ChosenKeys, OtError, SenderKeys};

const STEP: &str = "dpf/level";

/// Keys whose trees are hashed under one public cipher key.
pub const GROUP: usize = 64;

/// Words of a key before the corrections: the cipher key and the two nodes of the first level.
const HEAD: usize = 6;

/// The shape of a tree and of its leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DpfShape {
    depth: u32,
    words: usize,
    width: u32,
}

impl DpfShape {
    /// Trees of `depth` levels (1..=16) over leaves of `words` words, 2 or 4, of `width` bits each, at most 64 or 32.
    pub fn new(depth: u32, words: usize, width: u32) -> Result<Self, OtError> {
        if !(1..=16).contains(&depth) {
            return Err(OtError::Parameter { what: "depth of a tree", allowed: "1..=16", got: depth as usize });
        }
        if words != 2 && words != 4 {
            return Err(OtError::Parameter { what: "words of a leaf", allowed: "2 or 4", got: words });
        }
        if width == 0 || width > 128 / words as u32 {
            return Err(OtError::Parameter {
                what: "bits of a leaf's words",
                allowed: "1..=64 or 32",
                got: width as usize,
            });
        }
        Ok(DpfShape { depth, words, width })
    }

    /// Levels of the tree: 2^depth leaves.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Words of a leaf.
    pub fn words(&self) -> usize {
        self.words
    }

    /// Words of all leaves.
    pub fn values(&self) -> usize {
        self.words << self.depth
    }

    /// Nodes of the last level above the leaves, at least those of the first level.
    fn room(&self) -> usize {
        1 << (self.depth - 1).max(1)
    }

    /// Words of a key.
    pub fn key_words(&self) -> usize {
        HEAD + 2 * self.depth as usize
    }
}

/// Bytes that each party sends for one level of `count` trees.
pub fn level_bytes(count: usize) -> usize {
    16 * count
}

/// The node of a party's key: two little-endian words.
fn block(words: &[u64]) -> Block {
    Block([words[0], words[1]])
}

/// The nodes of the next level from those of a level and their hashes.
#[inline(always)]
fn children(nodes: &[Block], hashes: &[Block], correction: Block, out: &mut [Block]) {
    for ((out, node), hash) in out.as_chunks_mut::<2>().0.iter_mut().zip(nodes).zip(hashes) {
        let left = *hash ^ correction.times(node.lsb());
        *out = [left, left ^ *node];
    }
}

/// The generation of a batch of keys, level by level; both parties run it alike.
///
/// Memory is what bounds its speed: nodes are kept in place, one level short of the leaves, and their hashes are computed
/// a second time, in the first-level cache, instead of being kept.
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

/// What a party tells of a tree's level, in shares.
#[derive(Clone, Copy, Default, Zeroize)]
struct Sums {
    /// Exclusive-or of the nodes' hashes.
    hashes: Block,
    /// Sums of their words.
    words: [u64; 4],
    /// Number of control bits set.
    set: u64,
}

impl Sums {
    fn of(nodes: &[Block], hashes: &[Block], words: usize) -> Self {
        let mut sums = Sums::default();
        for (node, hash) in nodes.iter().zip(hashes) {
            sums.hashes ^= *hash;
            let parts = parts(*hash, words);
            sums.words.iter_mut().zip(parts).for_each(|(sum, part)| *sum = sum.wrapping_add(part));
            sums.set += node.lsb();
        }
        sums
    }
}

/// Buffers of one thread.
struct Scratch {
    hash: TreeHash,
    nodes: Vec<Block>,
    hashes: Vec<Block>,
    children: Vec<Block>,
}

impl Scratch {
    fn new(key: &[u64], shape: DpfShape) -> Self {
        let buffer = || vec![Block::ZERO; 1 << shape.depth];
        Scratch { hash: TreeHash::new(block(key)), nodes: buffer(), hashes: buffer(), children: buffer() }
    }

    /// The sums of nodes of the first level.
    fn sums(&mut self, nodes: &[Block], words: usize) -> Sums {
        let hashes = &mut self.hashes[..nodes.len()];
        self.hash.hash(nodes, hashes);
        Sums::of(nodes, hashes, words)
    }

    /// Grows a tree's first `size` nodes to the next level, in place where there is room, and returns its sums.
    fn grow(&mut self, nodes: &mut [Block], size: usize, correction: Block, words: usize) -> Sums {
        let parents = &mut self.nodes[..size];
        parents.copy_from_slice(&nodes[..size]);
        self.hash.hash(parents, &mut self.hashes[..size]);
        let next = nodes.get_mut(..2 * size).unwrap_or(&mut self.children[..2 * size]);
        children(parents, &self.hashes[..size], correction, next);
        let hashes = &mut self.hashes[..2 * size];
        self.hash.hash(next, hashes);
        Sums::of(next, hashes, words)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.nodes.zeroize();
        self.hashes.zeroize();
        self.children.zeroize();
    }
}

impl Generation {
    /// Starts from random OTs ([`OtSender::random`](crate::OtSender::random),
    /// [`OtReceiver::random`](crate::OtReceiver::random)) in both directions, `index_bits` for every tree, tree by tree.
    /// The first `depth` of them choose the leaf, the highest bit first: their choices are this party's shares of its bits.
    /// The OTs may be spent on transfers afterwards. Errors: not as many OTs in both directions, or not whole trees.
    pub fn new(
        shape: DpfShape,
        role: Role,
        index_bits: u32,
        sender: &SenderKeys,
        chosen: &ChosenKeys,
    ) -> Result<Self, OtError> {
        OtError::expect(STEP, "OTs", sender.len(), chosen.len())?;
        let (per, depth) = (index_bits as usize, shape.depth as usize);
        if per < depth || !sender.len().is_multiple_of(per) {
            return Err(OtError::Length { step: STEP, unit: "OTs", expected: depth, got: per });
        }
        // The direction in which the server sends loses its lowest bit.
        let cut = |block: Block, sender: Role| match sender {
            Role::Server => Block([block.0[0] & !1, block.0[1]]),
            Role::Client => block,
        };
        let delta = cut(sender.delta, role);
        let (first, hasher) = match role {
            Role::Server => (sender.first, &sender.hash),
            Role::Client => (chosen.first, &chosen.hash),
        };
        let count = sender.len() / per;
        let (key_words, mut products) = (shape.key_words(), Vec::with_capacity(count * depth));
        let room = shape.room();
        let mut nodes = vec![Block::ZERO; count * room];
        let mut keys = vec![0; count * key_words];
        let mut tree_key = Block::ZERO;
        for (tree, key) in keys.chunks_exact_mut(key_words).enumerate() {
            for ot in tree * per..tree * per + depth {
                let (q, t) = (cut(sender.blocks[ot], role), cut(chosen.blocks[ot], role.peer()));
                products.push(q ^ t ^ delta.times(chosen.choices.get(ot)));
            }
            // Right children differ by alpha Delta, left children by the rest.
            let right = products[tree * depth];
            let pair = [right ^ delta, right];
            nodes[tree * room..tree * room + 2].copy_from_slice(&pair);
            if tree % GROUP == 0 {
                tree_key = Block::from_bytes(hasher.tree_key(first + (tree * per) as u64));
            }
            let head = [tree_key, pair[0], pair[1]];
            key[..HEAD].as_chunks_mut::<2>().0.iter_mut().zip(head).for_each(|(key, block)| *key = block.0);
        }
        let mut sums = vec![Sums::default(); count];
        sums.par_chunks_mut(GROUP)
            .zip(nodes.par_chunks(GROUP * room))
            .zip(keys.par_chunks(GROUP * key_words))
            .for_each(|((sums, nodes), keys)| {
                let mut scratch = Scratch::new(keys, shape);
                let nodes = nodes.chunks_exact(room);
                sums.iter_mut().zip(nodes).for_each(|(sums, nodes)| *sums = scratch.sums(&nodes[..2], shape.words));
            });
        Ok(Generation { shape, role, nodes, sums, offered: Vec::new(), products, delta, keys, level: 1 })
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
        let products = self.products.chunks_exact(self.shape.depth as usize);
        // The left children keep Delta if alpha is 0.
        let share = |(sums, products): (&Sums, &[Block])| sums.hashes ^ products[self.level as usize] ^ self.delta;
        self.offered = self.sums.iter().zip(products).map(share).collect();
        self.offered.iter().flat_map(|block| block.to_bytes()).collect()
    }

    /// Grows a level with the peer's message. Errors: its length.
    pub fn grow(&mut self, theirs: &[u8]) -> Result<(), OtError> {
        OtError::expect(STEP, "bytes", level_bytes(self.len()), theirs.len())?;
        let (shape, size) = (self.shape, 1usize << self.level);
        let (room, key_words) = (shape.room(), shape.key_words());
        let at = HEAD + 2 * (self.level as usize - 1);
        let (mine, theirs) = (self.offered.par_chunks(GROUP), theirs.as_chunks::<16>().0.par_chunks(GROUP));
        self.nodes
            .par_chunks_mut(GROUP * room)
            .zip(self.keys.par_chunks_mut(GROUP * key_words))
            .zip(self.sums.par_chunks_mut(GROUP))
            .zip(mine.zip(theirs))
            .for_each(|(((nodes, keys), sums), (mine, theirs))| {
                let mut scratch = Scratch::new(keys, shape);
                let trees = nodes.chunks_exact_mut(room).zip(keys.chunks_exact_mut(key_words)).zip(sums);
                for (((nodes, key), sums), (mine, theirs)) in trees.zip(mine.iter().zip(theirs)) {
                    let correction = *mine ^ Block::from_bytes(*theirs);
                    key[at..at + 2].copy_from_slice(&correction.0);
                    *sums = scratch.grow(nodes, size, correction, shape.words);
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
            Role::Server => sum.wrapping_neg() & low_mask(self.shape.width),
            Role::Client => sum & low_mask(self.shape.width),
        };
        let values = self.sums.iter().flat_map(|sums| sums.words[..words].iter().map(|&sum| signed(sum))).collect();
        // The counts differ by 1 or -1 modulo 4; the borrow of the difference is the client's lowest bit.
        let bit = |set: u64| match self.role {
            Role::Server => set >> 1 & 1,
            Role::Client => (set >> 1 ^ set) & 1,
        };
        (values, self.sums.iter().map(|sums| bit(sums.set) as u8).collect())
    }

    /// The keys, [`DpfShape::key_words`] each, with the final corrections that both parties have opened. Errors: another
    /// number of corrections.
    pub fn finish(mut self, corrections: &[u64]) -> Result<Vec<u64>, OtError> {
        OtError::expect("dpf/final correction", "words", self.len() * self.shape.words, corrections.len())?;
        let words = self.shape.words;
        let key_words = self.shape.key_words();
        for (key, correction) in self.keys.chunks_exact_mut(key_words).zip(corrections.chunks_exact(words)) {
            let last = match *correction {
                [a, b] => [a, b],
                [a, b, c, d] => [a & low_mask(32) | b << 32, c & low_mask(32) | d << 32],
                _ => [0; 2],
            };
            key[key_words - 2..].copy_from_slice(&last);
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
#[inline(always)]
fn parts(block: Block, words: usize) -> [u64; 4] {
    let [a, b] = block.0;
    if words == 2 { [a, b, 0, 0] } else { [a & low_mask(32), a >> 32, b & low_mask(32), b >> 32] }
}

/// A machine word that holds a word of a leaf: `u64` for leaves of two, `u32` for leaves of four.
pub trait Lane: Copy + Default + Send + Sync + 'static {
    /// Words of a leaf.
    const WORDS: usize;

    /// (pads + corrections where the node's control bit is set) XOR sign, minus sign.
    #[doc(hidden)]
    fn correct(pads: &[Block], nodes: &[Block], correction: Block, sign: u64, out: &mut [Self]);
}

impl Lane for u64 {
    const WORDS: usize = 2;

    #[inline(always)]
    fn correct(pads: &[Block], nodes: &[Block], correction: Block, sign: u64, out: &mut [u64]) {
        for ((out, pad), node) in out.as_chunks_mut::<2>().0.iter_mut().zip(pads).zip(nodes) {
            let add = correction.times(node.lsb());
            *out = std::array::from_fn(|i| (pad.0[i].wrapping_add(add.0[i]) ^ sign).wrapping_sub(sign));
        }
    }
}

impl Lane for u32 {
    const WORDS: usize = 4;

    #[inline(always)]
    fn correct(pads: &[Block], nodes: &[Block], correction: Block, sign: u64, out: &mut [u32]) {
        let lanes = |block: Block| -> [u32; 4] {
            let bytes = block.to_bytes();
            let lanes = bytes.as_chunks::<4>().0;
            std::array::from_fn(|i| u32::from_le_bytes(lanes[i]))
        };
        let sign = sign as u32;
        for ((out, pad), node) in out.as_chunks_mut::<4>().0.iter_mut().zip(pads).zip(nodes) {
            let (pad, add) = (lanes(*pad), lanes(correction.times(node.lsb())));
            *out = std::array::from_fn(|i| (pad[i].wrapping_add(add[i]) ^ sign).wrapping_sub(sign));
        }
    }
}

/// Computes shares from keys, one after the other; keeps its buffers.
#[derive(ZeroizeOnDrop)]
pub struct Expander {
    #[zeroize(skip)]
    shape: DpfShape,
    #[zeroize(skip)]
    role: Role,
    #[zeroize(skip)]
    hash: Option<TreeHash>,
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

    /// This party's shares of all leaves' words, leaf by leaf, into `out` of [`DpfShape::values`] words; the bits above
    /// the width are arbitrary. Panics if a length or the lane is not the shape's.
    pub fn expand<L: Lane>(&mut self, key: &[u64], out: &mut [L]) {
        let shape = self.shape;
        assert_eq!((key.len(), out.len()), (shape.key_words(), shape.values()), "a key and its leaves");
        assert_eq!(L::WORDS, shape.words, "words of a leaf");
        let (head, corrections) = key.split_at(HEAD);
        let hash = match &mut self.hash {
            Some(hash) if hash.key() == block(head) => &*hash,
            other => &*other.insert(TreeHash::new(block(head))),
        };
        let [here, next] = &mut self.nodes;
        (here[0], here[1]) = (block(&head[2..]), block(&head[4..]));
        let mut size = 2;
        let (corrections, last) = corrections.split_at(2 * (shape.depth as usize - 1));
        for correction in corrections.chunks_exact(2) {
            hash.hash(&here[..size], &mut self.hashes[..size]);
            children(&here[..size], &self.hashes[..size], block(correction), &mut next[..2 * size]);
            std::mem::swap(here, next);
            size *= 2;
        }
        hash.hash(here, &mut self.hashes);
        let sign = match self.role {
            Role::Server => 0,
            Role::Client => u64::MAX,
        };
        L::correct(&self.hashes, here, block(last), sign, out);
    }
}

impl std::fmt::Debug for Expander {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Expander({:?})", self.shape)
    }
}
