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
//! each direction, whose Delta is the pool's. Delta needs lowest bit 1, to tell the parties' control bits apart, so the
//! lowest bit is dropped in the direction where the server sends OTs.
//!
//! *Departure.* The first [`TOP`] levels are not grown. Where the parties hold XOR shares of the unit vector e of those
//! bits of R, correlated OTs with its entries as choices are shares of e_i Delta, which is what nodes are: an OT in each
//! direction for a node instead of a block each way for a level, 10 bytes for three levels instead of 64 (silent OT). The
//! proof asks of a node only that the parties' agree off the path and differ by Delta on it.
//!
//! **The final correction** is sign (beta - sum of the server's leaves + sum of the client's), where sign = 1 - 2 t and t is
//! the client's control bit at R. As only at R the control bits differ, t is known as XOR shares from how many of its
//! control bits either party finds set, modulo 4. The product is the caller's ([`Generation::leaves`]).
//!
//! **What each party sees.** Corrections, which are H of nodes of the other party, unknown for Delta_other's sake
//! (circular correlation robustness of `H(x) = pi(sigma(x)) ^ sigma(x)`, Guo et al., eprint 2019/074, bound in
//! `hash.rs`, with pi = AES-128 under a public key that changes every [`GROUP`] keys), and shares of them that follow
//! from the correction and its own. The hash of a node is used once. Blocks of the OTs themselves leave a party only
//! inside such sums, so that their pads, under other keys of the cipher, are as good as before. **A key contains the
//! party's Delta** (the nodes that it begins with add up to it): who reads one key can compute all that the party's
//! OT sender hides. Keep it as the pools are kept.

use net::Role;
use rayon::prelude::*;
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::bits::low_mask;
use crate::hash::CALLS_PER_KEY;
use crate::simd::Cpu;
use crate::tree_hash::TreeHash;
use crate::{Block, ChosenKeys, OtError, SenderKeys};

const STEP: &str = "dpf/level";

/// Keys whose trees are hashed under one public cipher key.
pub const GROUP: usize = 64;

/// Levels that come from a unit vector, of trees that have so many.
pub const TOP: u32 = 3;

/// Most levels of a tree.
const MOST_LEVELS: u32 = 16;

// A tree has one unknown node on each level from TOP to the leaves; a key's calls on them are what the bound of the
// hash allows.
const _: () = assert!(GROUP * (MOST_LEVELS - TOP + 1) as usize <= CALLS_PER_KEY);

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
        if !(1..=MOST_LEVELS).contains(&depth) {
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

    /// Levels that come from a unit vector.
    pub fn top(&self) -> u32 {
        self.depth.min(TOP)
    }

    /// OTs in each direction for the nodes of level [`Self::top`]: all but the first, which follows from the others.
    pub fn top_ots(&self) -> usize {
        (1 << self.top()) - 1
    }

    /// Nodes of the last level above the leaves, at least those of level [`Self::top`].
    fn room(&self) -> usize {
        1 << (self.depth - 1).max(self.top())
    }

    /// Words of a key before the corrections: the cipher key and the nodes of level [`Self::top`].
    fn head(&self) -> usize {
        2 + (2 << self.top())
    }

    /// Words of a key: the head, a correction for every level that is grown, and the final one.
    pub fn key_words(&self) -> usize {
        self.head() + 2 * (self.depth - self.top()) as usize + 2
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
pub(crate) fn children(nodes: &[Block], hashes: &[Block], correction: Block, out: &mut [Block]) {
    for ((out, node), hash) in out.as_chunks_mut::<2>().0.iter_mut().zip(nodes).zip(hashes) {
        let left = *hash ^ correction.times(node.lsb());
        *out = [left, left ^ *node];
    }
}

/// [`children`], by a kernel where there is one.
fn grown(cpu: Option<Cpu>, nodes: &[Block], hashes: &[Block], correction: Block, out: &mut [Block]) {
    match cpu {
        Some(cpu) => cpu.children(nodes, hashes, correction, out),
        None => children(nodes, hashes, correction, out),
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

    /// The sums of the first nodes.
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
        grown(self.hash.cpu(), parents, &self.hashes[..size], correction, next);
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
    /// Starts from OTs in both directions. Those of `bits` are random ([`OtSender::random`](crate::OtSender::random),
    /// [`OtReceiver::random`](crate::OtReceiver::random)), `index_bits` for every tree, tree by tree; the first `depth` of
    /// them choose the leaf, the highest bit first: their choices are this party's shares of its bits. They may be spent on
    /// transfers afterwards. Those of `top` are spent here, [`DpfShape::top_ots`] for every tree; their choices are this
    /// party's shares of the unit vector of the first [`DpfShape::top`] bits, without its first entry. Errors: not as many
    /// OTs in both directions, or not whole trees.
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
                let mut scratch = Scratch::new(keys, shape);
                let nodes = nodes.chunks_exact(room);
                sums.iter_mut()
                    .zip(nodes)
                    .for_each(|(sums, nodes)| *sums = scratch.sums(&nodes[..size], shape.words));
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

    /// The same for leaves of two words that are added without carry: this party's shares of what beta has to be combined
    /// with by exclusive-or. There is no sign, so the result is the final correction.
    pub fn xor_leaves(&self) -> Vec<u64> {
        debug_assert!(self.is_grown() && self.shape.words == 2, "all levels are grown, leaves of two words");
        self.sums.iter().flat_map(|sums| sums.hashes.0).collect()
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

    /// An expander of keys under the cipher key of `hash`, on its kernels.
    #[cfg(feature = "probe")]
    pub(crate) fn by(shape: DpfShape, role: Role, hash: TreeHash) -> Self {
        let mut expander = Expander::new(shape, role);
        expander.hash = Some(hash);
        expander
    }

    /// This party's shares of all leaves' words, leaf by leaf, into `out` of [`DpfShape::values`] words; the bits above
    /// the width are arbitrary. Panics if a length or the lane is not the shape's.
    pub fn expand<L: Lane>(&mut self, key: &[u64], out: &mut [L]) {
        assert_eq!((L::WORDS, out.len()), (self.shape.words, self.shape.values()), "the leaves' words");
        let last = self.grow(key);
        let sign = match self.role {
            Role::Server => 0,
            Role::Client => u64::MAX,
        };
        match self.hash.as_ref().and_then(TreeHash::cpu) {
            Some(cpu) => cpu.correct(&self.hashes, &self.nodes[0], last, sign, out),
            None => L::correct(&self.hashes, &self.nodes[0], last, sign, out),
        }
    }

    /// This party's shares of all leaves by exclusive-or, as words of 64 bits, two for each leaf ([`Generation::xor_leaves`]).
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
        let hash = match &mut self.hash {
            Some(hash) if hash.key() == block(head) => &*hash,
            other => &*other.insert(TreeHash::new(block(head))),
        };
        let [here, next] = &mut self.nodes;
        let mut size = 1 << shape.top();
        here[..size].iter_mut().zip(head[2..].chunks_exact(2)).for_each(|(node, words)| *node = block(words));
        let (corrections, last) = corrections.split_at(corrections.len() - 2);
        for correction in corrections.chunks_exact(2) {
            hash.hash(&here[..size], &mut self.hashes[..size]);
            grown(hash.cpu(), &here[..size], &self.hashes[..size], block(correction), &mut next[..2 * size]);
            std::mem::swap(here, next);
            size *= 2;
        }
        hash.hash(here, &mut self.hashes);
        block(last)
    }
}

impl std::fmt::Debug for Expander {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Expander({:?})", self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_give_the_bytes_of_the_portable_code() {
        let mix = |i: usize| Block::from((i as u128 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835));
        for n in [1usize, 2, 3, 4, 7, 8, 33, 64] {
            let (nodes, hashes): (Vec<_>, Vec<_>) = (0..n).map(|i| (mix(i), mix(1000 + i))).unzip();
            for cpu in Cpu::all() {
                let (mut got, mut want) = (vec![Block::ZERO; 2 * n], vec![Block::ZERO; 2 * n]);
                cpu.children(&nodes, &hashes, mix(77), &mut got);
                children(&nodes, &hashes, mix(77), &mut want);
                assert!(got == want, "children of {n} nodes, {cpu:?}");
                for sign in [0, u64::MAX] {
                    let (mut got, mut want) = (vec![0u32; 4 * n], vec![0u32; 4 * n]);
                    cpu.correct(&hashes, &nodes, mix(78), sign, &mut got);
                    u32::correct(&hashes, &nodes, mix(78), sign, &mut want);
                    assert_eq!(got, want, "{n} leaves of four words, {cpu:?}");
                    let (mut got, mut want) = (vec![0u64; 2 * n], vec![0u64; 2 * n]);
                    cpu.correct(&hashes, &nodes, mix(78), sign, &mut got);
                    u64::correct(&hashes, &nodes, mix(78), sign, &mut want);
                    assert_eq!(got, want, "{n} leaves of two words, {cpu:?}");
                }
            }
        }
    }
}
