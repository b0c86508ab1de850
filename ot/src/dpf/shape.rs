//! The shape of a tree, and the sizes of its keys and messages.

use crate::OtError;
use crate::hash::CALLS_PER_KEY;

/// Number of keys whose trees are hashed under one public cipher key.
pub const GROUP: usize = 64;

/// Number of levels that come from a unit vector, if the tree has at least as many levels.
pub const TOP: u32 = 3;

/// Largest number of levels of a tree.
pub(super) const MOST_LEVELS: u32 = 16;

/// Largest number of blocks of bits of a leaf ([`DpfShape::with_bits`]).
pub const MOST_BIT_BLOCKS: usize = 2;

// A tree has one unknown node on each level from TOP to the leaves, and a leaf is hashed once for its words and once
// for each block of bits. These calls under one cipher key must stay within the bound of the hash.
const _: () = assert!(GROUP * ((MOST_LEVELS - TOP + 1) as usize + MOST_BIT_BLOCKS) <= CALLS_PER_KEY);

/// Number of bits of a block of a leaf ([`DpfShape::with_bits`]).
pub const BLOCK_BITS: usize = 128;

/// The shape of a tree and of its leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DpfShape {
    pub(super) depth: u32,
    pub(super) words: usize,
    pub(super) width: u32,
    pub(super) bit_blocks: usize,
    /// Whether leaves are added by exclusive-or.
    pub(super) xor: bool,
}

impl DpfShape {
    /// Trees of `depth` levels (1..=16). Leaves have 2 or 4 words (`words`) of `width` bits each, at most 64 bits for
    /// 2 words and 32 bits for 4. Errors: a number out of range.
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
        Ok(DpfShape { depth, words, width, bit_blocks: 0, xor: false })
    }

    /// Trees of `depth` levels (1..=16) over leaves of 128 bits, which are two words and shared by exclusive-or.
    /// Errors: a number out of range.
    pub fn of_bits(depth: u32) -> Result<Self, OtError> {
        Ok(DpfShape { xor: true, ..DpfShape::new(depth, 2, 64)? })
    }

    /// These trees with `blocks` further blocks in every leaf, of [`BLOCK_BITS`] bits each, which are shared by
    /// exclusive-or. Errors: more than [`MOST_BIT_BLOCKS`] blocks.
    pub fn with_bits(self, blocks: usize) -> Result<Self, OtError> {
        if blocks > MOST_BIT_BLOCKS {
            return Err(OtError::Parameter { what: "blocks of bits of a leaf", allowed: "0..=2", got: blocks });
        }
        Ok(DpfShape { bit_blocks: blocks, ..self })
    }

    /// Number of levels of the tree, which has 2^depth leaves.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Number of words of a leaf.
    pub fn words(&self) -> usize {
        self.words
    }

    /// Number of blocks of bits of a leaf.
    pub fn bit_blocks(&self) -> usize {
        self.bit_blocks
    }

    /// Number of words of all leaves together.
    pub fn values(&self) -> usize {
        self.words << self.depth
    }

    /// Number of levels that come from a unit vector.
    pub fn top(&self) -> u32 {
        self.depth.min(TOP)
    }

    /// Number of OTs in each direction for the nodes of level [`Self::top`]: one for each node but the first, which
    /// follows from the others.
    pub fn top_ots(&self) -> usize {
        (1 << self.top()) - 1
    }

    /// Number of nodes of the last level that is kept: the level above the leaves, or level [`Self::top`] if no level
    /// is grown.
    pub(super) fn room(&self) -> usize {
        1 << (self.depth - 1).max(self.top())
    }

    /// Number of words of the final corrections of a tree.
    pub(super) fn last_words(&self) -> usize {
        2 + self.bit_words()
    }

    /// Number of words of a leaf's bits.
    pub(super) fn bit_words(&self) -> usize {
        self.bit_blocks * (BLOCK_BITS / 64)
    }

    /// Number of words of a key before the corrections: the cipher key and the nodes of level [`Self::top`].
    pub(super) fn head(&self) -> usize {
        2 + (2 << self.top())
    }

    /// Number of words of a key: the cipher key and first nodes, a correction for every level that is grown, and the
    /// final corrections.
    pub fn key_words(&self) -> usize {
        self.head() + 2 * (self.depth - self.top()) as usize + self.last_words()
    }
}

/// Bytes that each party sends for one level of `count` trees.
pub fn level_bytes(count: usize) -> usize {
    16 * count
}
