//! Keys made by a dealer, who knows the index and what both parties draw, but sends neither party what the other
//! draws.
//!
//! Both parties draw the root of their tree. The roots differ by Delta, whose lowest bit is 1. A level's correction
//! keeps that difference on the path to the index and ends it beside the path, as in the [parent module](super). Here
//! the dealer has both roots and walks the path alone, with two hashes per level. The corrections go to both parties
//! and look random to either one without the other's root. Every tree has a Delta of its own.

use waggle_bits::mask;
use waggle_net::Role;

use super::shape::{DpfShape, MOST_BIT_BLOCKS, MOST_LEVELS};
use super::{block, tweak};
use crate::Block;
use crate::ggm::half;
use crate::hash::CALLS_PER_KEY;
use crate::kernels::{Kernels, Permutation};

/// Largest number of keys that are dealt under one public cipher key. It is smaller than [`GROUP`](super::GROUP), the
/// number for keys that two parties make, because the levels from the root on are hashed, too.
pub const DEALT_GROUP: usize = 32;

// A tree has one unknown node on each level, and a leaf is hashed once for its words and once for each block of bits.
const _: () = assert!(DEALT_GROUP * ((MOST_LEVELS + 1) as usize + MOST_BIT_BLOCKS) <= CALLS_PER_KEY);

/// Makes the keys of trees of one shape under one public cipher key, which serves at most [`DEALT_GROUP`] trees.
pub struct DealtKeys {
    shape: DpfShape,
    cipher: Block,
    hash: Permutation,
}

/// The root of a party's tree, made from two words that the party drew. The lowest bit tells the parties apart.
fn root(role: Role, drawn: [u64; 2]) -> Block {
    Block([drawn[0] & !1 | u64::from(role == Role::Server), drawn[1]])
}

impl DpfShape {
    /// Number of words of a dealt key's corrections of levels: two for each level.
    pub fn level_words(&self) -> usize {
        2 * self.depth as usize
    }

    /// Number of words of a dealt key's corrections of bits.
    pub fn bits_words(&self) -> usize {
        self.bit_words()
    }
}

impl DealtKeys {
    /// A maker of keys of `shape` under the public cipher key `cipher`.
    pub fn new(shape: DpfShape, cipher: [u64; 2]) -> Self {
        let cipher = Block(cipher);
        DealtKeys { shape, cipher, hash: Permutation::new(Kernels::Detected.simd(), cipher) }
    }

    fn hashed(&self, nodes: [Block; 2]) -> [Block; 2] {
        let mut out = [Block::ZERO; 2];
        self.hash.tree_hash(&nodes, &mut out);
        out
    }

    /// The dealer's part: the corrections that both parties get, from what the client and the server drew. First come
    /// the corrections of all levels. The final corrections follow, a word for each word of `beta`, or two words if
    /// leaves are bits. Last come the corrections of the leaves' bits, where `bits` are those of the leaf `leaf`.
    pub fn corrections(&self, drawn: [[u64; 2]; 2], leaf: usize, beta: &[u64], bits: &[u64]) -> Vec<u64> {
        let DpfShape { depth, words, width, xor, .. } = self.shape;
        let mut nodes = [Role::Client, Role::Server].map(|role| root(role, drawn[role as usize]));
        let delta = nodes[0] ^ nodes[1];
        let mut out = Vec::with_capacity(self.shape.level_words() + beta.len() + bits.len());
        for level in (0..depth).rev() {
            let right = leaf >> level & 1;
            let hashes = self.hashed(nodes);
            let correction = hashes[0] ^ hashes[1] ^ delta.times(1 - right as u64);
            out.extend(correction.0);
            nodes = [0, 1].map(|i| half::children(nodes[i], hashes[i] ^ correction.times(nodes[i].lsb()))[right]);
        }
        let [client, server] = self.hashed(nodes);
        if xor {
            out.extend((0..2).map(|i| client.0[i] ^ server.0[i] ^ beta[i]));
        } else {
            // A leaf is the server's words less the client's. The correction counts at the party whose control bit is
            // set.
            let sign = 1u64.wrapping_sub(nodes[0].lsb() << 1);
            out.extend(beta.iter().enumerate().map(|(i, beta)| {
                let rest = beta.wrapping_sub(lane(server, words, i)).wrapping_add(lane(client, words, i));
                sign.wrapping_mul(rest) & mask(width)
            }));
        }
        for (at, bits) in bits.as_chunks::<2>().0.iter().enumerate() {
            let [client, server] = self.hashed(nodes.map(|node| node ^ tweak(at)));
            out.extend((client ^ server ^ Block(*bits)).0);
        }
        out
    }

    /// A party's part: appends its key to `out`. The key is made from what the party drew and from the corrections of
    /// the levels, of the leaves' words (`last`) and of the leaves' bits. Words that `last` leaves out are zero.
    pub fn append(
        &self,
        role: Role,
        drawn: [u64; 2],
        levels: &[u64],
        last: &[u64],
        bits: &[u64],
        out: &mut Vec<u64>,
    ) {
        let top = self.shape.top() as usize;
        let mut nodes = vec![root(role, drawn)];
        let (head, rest) = levels.split_at(2 * top);
        for correction in head.chunks_exact(2).map(block) {
            let mut hashes = vec![Block::ZERO; nodes.len()];
            self.hash.tree_hash(&nodes, &mut hashes);
            let families = nodes.iter().zip(&hashes);
            nodes = families
                .flat_map(|(node, hash)| half::children(*node, *hash ^ correction.times(node.lsb())))
                .collect();
        }
        out.extend(self.cipher.0);
        out.extend(nodes.iter().flat_map(|node| node.0));
        out.extend(rest);
        let word = |i: usize| last.get(i).copied().unwrap_or(0);
        out.extend(match self.shape.words {
            4 => [word(0) & mask(32) | word(1) << 32, word(2) & mask(32) | word(3) << 32],
            _ => [word(0), word(1)],
        });
        out.extend(bits);
    }
}

/// Word `i` of a leaf that has `words` words.
fn lane(Block(halves): Block, words: usize, i: usize) -> u64 {
    if words == 2 { halves[i] } else { halves[i / 2] >> (32 * (i % 2)) & mask(32) }
}
