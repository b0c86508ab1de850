//! The generation of keys by both parties.

use rayon::prelude::*;
use waggle_bits::mask;
use waggle_net::Role;
use zeroize::ZeroizeOnDrop;

use super::shape::{DpfShape, GROUP, level_bytes};
use crate::index::{Group, HiddenIndices};
use crate::kernels::{Kernels, LeafRows, Permutation, RUN};
use crate::keys::{ChosenKeys, SenderKeys};
use crate::{Block, OtError};

const STEP: &str = "dpf/level";

/// The generation of a batch of keys, level by level. Both parties run it alike.
///
/// A group of [`GROUP`] trees grows side by side: a row of blocks has one node of each tree. So the sums over a
/// level, the level's corrections and its messages are rows as well. Nodes are kept one level short of the leaves;
/// their hashes are computed a second time, in registers, instead of being kept.
pub struct Generation {
    shape: DpfShape,
    role: Role,
    count: usize,
    groups: Vec<Trees>,
    delta: Block,
    level: u32,
}

/// Memory of trees that one generation leaves to the next. Fresh memory would cost as much as the hashes of the
/// trees.
#[derive(Default)]
pub struct Room(Vec<Trees>);

/// A group of trees of one party.
#[derive(Default, ZeroizeOnDrop)]
struct Trees {
    /// The cipher key, which is public.
    #[zeroize(skip)]
    key: Block,
    /// Number of blocks of a row: one for each tree of the group, then zeros up to a whole run of a kernel.
    #[zeroize(skip)]
    row: usize,
    /// Rows of the nodes of level [`DpfShape::top`].
    heads: Vec<Block>,
    /// Rows of the corrections of the levels below.
    corrections: Vec<Block>,
    /// Memory for the rows of all nodes except the leaves. The nodes of the current level come first.
    nodes: Vec<Block>,
    /// For each tree, a sum over the current level: the exclusive-or of the hashes or, for leaves, the sums of their
    /// words.
    sums: Vec<Block>,
    /// For each tree, the number of leaves whose control bit is set.
    set: Vec<Block>,
    /// For each block of the leaves' bits, a row of the sums of its pads.
    pads: Vec<Block>,
    /// This party's share of the corrections offered.
    offered: Vec<Block>,
}

impl Trees {
    /// Makes room for rows of `row` blocks and sets the cipher key to `key`. All sums become zero.
    fn resize(&mut self, shape: DpfShape, key: Block, row: usize) {
        (self.key, self.row) = (key, row);
        let grown = (shape.depth - shape.top()) as usize;
        let sizes = [1 << shape.top(), grown, shape.room(), 1];
        let rows = [&mut self.heads, &mut self.corrections, &mut self.nodes, &mut self.offered];
        rows.into_iter().zip(sizes).for_each(|(rows, size)| rows.resize(size * row, Block::ZERO));
        for (sums, size) in [(&mut self.sums, 1), (&mut self.set, 1), (&mut self.pads, shape.bit_blocks)] {
            sums.clear();
            sums.resize(size * row, Block::ZERO);
        }
    }

    /// The hash under the cipher key of the group.
    fn hash(&self) -> Permutation {
        Permutation::new(Kernels::Detected.simd(), self.key)
    }

    /// Sums up the leaves. These are the children of the nodes, or the nodes themselves if no level is to grow.
    fn sum_leaves(&mut self, shape: DpfShape, size: usize, corrections: &[Block]) {
        let hash = self.hash();
        let Trees { row, nodes, sums, set, pads, .. } = self;
        sums.fill(Block::ZERO);
        let lanes = if shape.xor { 0 } else { shape.words };
        hash.leaf_rows(&nodes[..size * *row], corrections, lanes, &mut LeafRows { words: sums, set, pads });
    }
}

/// Clears the lowest bit of `block` if the server is the sender of the OT that the block comes from.
fn cut(block: Block, sender: Role) -> Block {
    match sender {
        Role::Server => Block([block.0[0] & !1, block.0[1]]),
        Role::Client => block,
    }
}

/// For each of the OTs `row`, a party's share of the common Delta times the exclusive-or of both parties' choices.
/// `choices` are this party's choices.
fn products(
    role: Role,
    (sender, chosen): (&SenderKeys, &ChosenKeys),
    row: std::ops::Range<usize>,
    choices: u64,
) -> impl Iterator<Item = Block> {
    let delta = cut(sender.delta, role);
    let blocks = sender.blocks[row.clone()].iter().zip(&chosen.blocks[row]).enumerate();
    blocks.map(move |(e, (q, t))| cut(*q, role) ^ cut(*t, role.peer()) ^ delta.times(choices >> e & 1))
}

impl Generation {
    /// Starts from hidden indices, whose first `depth` places choose the leaf, the highest bit first. This spends the
    /// OTs `top` in both directions: [`DpfShape::top_ots`] for every tree, in the groups of `indices`. The choices of
    /// these OTs are this party's shares of a unit vector without its first entry. The vector is that of the first
    /// [`DpfShape::top`] bits of the index. Trees use `room` before they allocate memory. Errors: a wrong number of
    /// OTs in a direction, or indices of fewer bits.
    pub fn new(
        shape: DpfShape,
        role: Role,
        indices: &HiddenIndices,
        top: (SenderKeys, ChosenKeys),
        Room(mut groups): Room,
    ) -> Result<Self, OtError> {
        let (depth, per, count) = (shape.depth as usize, shape.top_ots(), indices.len());
        if indices.places() < depth {
            return Err(OtError::Length { step: STEP, unit: "OTs", expected: depth, got: indices.places() });
        }
        OtError::expect(STEP, "OTs of the first levels", count * per, top.0.len())?;
        OtError::expect(STEP, "OTs of the first levels", count * per, top.1.len())?;
        let delta = cut(indices.sender.delta, role);
        let (first, hasher) = match role {
            Role::Server => (indices.sender.first, &indices.sender.hash),
            Role::Client => (indices.chosen.first, &indices.chosen.hash),
        };
        let (places, size) = (indices.places(), 1 << shape.top());
        let grows = shape.depth > shape.top();
        groups.resize_with(count.div_ceil(GROUP), Trees::default);
        groups.par_iter_mut().zip(Group::all(count)).for_each(|(trees, group)| {
            let row = group.len.next_multiple_of(RUN);
            let key = Block::from_bytes(hasher.tree_key(first + group.row(places, 0).start as u64));
            trees.resize(shape, key, row);
            // The entries of a unit vector add up to 1.
            let (zeroth, others) = trees.nodes.split_at_mut(row);
            zeroth[..group.len].fill(delta);
            for (i, node) in others.chunks_exact_mut(row).take(per).enumerate() {
                let ots = group.row(per, i);
                let choices = top.1.choices.word(ots.start, group.len);
                let products = products(role, (&top.0, &top.1), ots, choices);
                for ((node, zeroth), product) in node.iter_mut().zip(zeroth.iter_mut()).zip(products) {
                    *node = product;
                    *zeroth ^= product;
                }
            }
            trees.heads.copy_from_slice(&trees.nodes[..size * row]);
            if grows {
                let mut hashes = vec![Block::ZERO; size * row];
                trees.hash().tree_hash(&trees.heads, &mut hashes);
                for hashes in hashes.chunks_exact(row) {
                    trees.sums.iter_mut().zip(hashes).for_each(|(sum, hash)| *sum ^= *hash);
                }
            } else {
                trees.sum_leaves(shape, size, &[]);
            }
        });
        Ok(Generation { shape, role, count, groups, delta, level: shape.top() })
    }

    /// Whether all levels are grown.
    pub fn is_grown(&self) -> bool {
        self.level == self.shape.depth
    }

    /// Appends this party's message for the next level, of [`level_bytes`] bytes.
    pub fn offer(&mut self, indices: &HiddenIndices, out: &mut Vec<u8>) {
        debug_assert!(!self.is_grown(), "a level to grow");
        let (role, delta, place) = (self.role, self.delta, self.level as usize);
        let (places, start) = (indices.places(), out.len());
        out.resize(start + level_bytes(self.count), 0);
        let message = out[start..].par_chunks_mut(level_bytes(GROUP));
        self.groups.par_iter_mut().zip(Group::all(self.count)).zip(message).for_each(|((trees, group), message)| {
            let ots = (&indices.sender, &indices.chosen);
            let products = products(role, ots, group.row(places, place), indices.choices(group, place));
            let rows = trees.offered.iter_mut().zip(&trees.sums).zip(message.as_chunks_mut::<16>().0);
            for (((offered, sum), message), product) in rows.zip(products) {
                // The left children keep Delta if alpha is 0.
                *offered = *sum ^ product ^ delta;
                *message = offered.to_bytes();
            }
        });
    }

    /// Grows a level with the peer's message `theirs`. Errors: a wrong length.
    pub fn grow(&mut self, theirs: &[u8]) -> Result<(), OtError> {
        OtError::expect(STEP, "bytes", level_bytes(self.count), theirs.len())?;
        let (shape, size) = (self.shape, 1usize << self.level);
        let (at, last) = ((self.level - shape.top()) as usize, self.level + 1 == shape.depth);
        self.groups.par_iter_mut().zip(theirs.par_chunks(level_bytes(GROUP))).for_each(|(trees, theirs)| {
            let mut corrections = std::mem::take(&mut trees.offered);
            let theirs = theirs.as_chunks::<16>().0.iter().map(|bytes| Block::from_bytes(*bytes));
            corrections.iter_mut().zip(theirs).for_each(|(mine, theirs)| *mine ^= theirs);
            trees.corrections[at * trees.row..][..trees.row].copy_from_slice(&corrections);
            match last {
                true => trees.sum_leaves(shape, size, &corrections),
                false => trees.hash().grow_rows(&mut trees.nodes, size, &corrections, &mut trees.sums),
            }
            trees.offered = corrections;
        });
        self.level += 1;
        Ok(())
    }

    /// Every tree, as its group and its position in the group.
    fn each(&self) -> impl Iterator<Item = (&Trees, usize)> {
        self.groups
            .iter()
            .zip((0..self.count).step_by(GROUP))
            .flat_map(|(trees, first)| (0..GROUP.min(self.count - first)).map(move |e| (trees, e)))
    }

    /// This party's shares after the last level: the words of every tree, to which beta has to be added modulo
    /// 2^width, and the bit t of every tree. The final correction is the sum of the words and beta, times 1 - 2 t.
    pub fn leaves(&self) -> (Vec<u64>, Vec<u8>) {
        debug_assert!(self.is_grown() && !self.shape.xor, "all levels are grown, leaves are added");
        let words = self.shape.words;
        let signed = |sum: u64| match self.role {
            Role::Server => sum.wrapping_neg() & mask(self.shape.width),
            Role::Client => sum & mask(self.shape.width),
        };
        // The parties' counts differ by 1 or -1 modulo 4. The borrow of the difference is the client's lowest bit.
        let bit = |set: u64| match self.role {
            Role::Server => set >> 1 & 1,
            Role::Client => (set >> 1 ^ set) & 1,
        };
        let mut sums = Vec::with_capacity(self.count * words);
        let mut negative = Vec::with_capacity(self.count);
        for (trees, e) in self.each() {
            sums.extend(parts(trees.sums[e], words).into_iter().take(words).map(signed));
            negative.push(bit(trees.set[e].0[0]) as u8);
        }
        (sums, negative)
    }

    /// As [`Generation::leaves`], for leaves of bits ([`DpfShape::of_bits`]): this party's shares of a mask, two
    /// words per tree. The exclusive-or of the mask and beta is the final correction, as there is no sign.
    pub fn xor_leaves(&self) -> Vec<u64> {
        debug_assert!(self.is_grown() && self.shape.xor, "all levels are grown, leaves are bits");
        self.each().flat_map(|(trees, e)| trees.sums[e].0).collect()
    }

    /// As [`Generation::leaves`], for the bits of leaves: this party's shares of a mask, two words per tree and
    /// block. The exclusive-or of the mask and the bits of beta is the correction of the bits. Empty if leaves have
    /// no bits.
    pub fn bit_leaves(&self) -> Vec<u64> {
        debug_assert!(self.is_grown(), "all levels are grown");
        let blocks = self.shape.bit_blocks;
        let mut out = Vec::with_capacity(2 * self.count * blocks);
        for (trees, e) in self.each() {
            (0..blocks).for_each(|block| out.extend(trees.pads[block * trees.row + e].0));
        }
        out
    }

    /// Returns the keys and the memory of the trees. A key is one word of `heads`, followed by
    /// [`DpfShape::key_words`] words. `corrections` are the final corrections of the leaves' words and `bits` those
    /// of their bits, if they have some. Both parties have opened all of them. Errors: a wrong number of corrections
    /// or heads.
    pub fn finish(self, heads: &[u64], corrections: &[u64], bits: &[u64]) -> Result<(Vec<u64>, Room), OtError> {
        const LAST: &str = "dpf/final correction";
        let shape = self.shape;
        let (words, key_words, bit_words) = (shape.words, shape.key_words(), shape.bit_words());
        OtError::expect(LAST, "words before keys", self.count, heads.len())?;
        OtError::expect(LAST, "words", self.count * words, corrections.len())?;
        OtError::expect(LAST, "words of bits", self.count * bit_words, bits.len())?;
        let mut out = vec![0; self.count * (1 + key_words)];
        let entries = out.par_chunks_mut(GROUP * (1 + key_words)).zip(heads.par_chunks(GROUP));
        let groups = self.groups.par_iter().zip(corrections.par_chunks(GROUP * words)).enumerate();
        entries.zip(groups).for_each(|((entries, heads), (group, (trees, corrections)))| {
            let entries = entries.chunks_exact_mut(1 + key_words).zip(heads).zip(corrections.chunks_exact(words));
            for (e, ((entry, head), correction)) in entries.enumerate() {
                let (mask, key) = entry.split_at_mut(1);
                mask[0] = *head;
                let (blocks, of_bits) = key.split_at_mut(key_words - bit_words);
                let rows = trees.heads.chunks_exact(trees.row).chain(trees.corrections.chunks_exact(trees.row));
                let last = Block(match *correction {
                    [a, b] => [a, b],
                    [a, b, c, d] => [a & 0xffff_ffff | b << 32, c & 0xffff_ffff | d << 32],
                    _ => [0; 2],
                });
                let all = std::iter::once(trees.key).chain(rows.map(|row| row[e])).chain([last]);
                blocks.as_chunks_mut::<2>().0.iter_mut().zip(all).for_each(|(words, block)| *words = block.0);
                of_bits.copy_from_slice(&bits[(group * GROUP + e) * bit_words..][..bit_words]);
            }
        });
        Ok((out, Room(self.groups)))
    }
}

/// The words of a leaf. The last two are zero if the leaf has only two.
fn parts(block: Block, words: usize) -> [u64; 4] {
    let [a, b] = block.0;
    if words == 2 { [a, b, 0, 0] } else { [a & mask(32), a >> 32, b & mask(32), b >> 32] }
}
