//! The shape of a tree, and the sizes of its keys and messages.

use crate::OtError;
use crate::hash::CALLS_PER_KEY;

/// Keys whose trees are hashed under one public cipher key.
pub const GROUP: usize = 64;

/// Levels that come from a unit vector, of trees that have so many.
pub const TOP: u32 = 3;

/// Most levels of a tree.
pub(super) const MOST_LEVELS: u32 = 16;

/// Most blocks of bits that a leaf has ([`DpfShape::with_bits`]).
pub const MOST_BIT_BLOCKS: usize = 2;

// A tree has one unknown node on each level from TOP to the leaves, and a leaf is hashed once for its words and once
// for each block of bits; a key's calls on them are what the bound of the hash allows.
const _: () = assert!(GROUP * ((MOST_LEVELS - TOP + 1) as usize + MOST_BIT_BLOCKS) <= CALLS_PER_KEY);

/// Bits of a block ([`DpfShape::with_bits`]).
pub const BLOCK_BITS: usize = 128;

/// The shape of a tree and of its leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DpfShape {
    pub(super) depth: u32,
    pub(super) words: usize,
    pub(super) width: u32,
    pub(super) bit_blocks: usize,
    /// Leaves are added by exclusive-or.
    pub(super) xor: bool,
}

impl DpfShape {
    /// Trees of `depth` levels (1..=16) over leaves of `words` words, 2 or 4, of `width` bits each, at most 64 or 32.
    /// Errors: a number out of range.
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

    /// Trees of `depth` levels (1..=16) over leaves of 128 bits, two words, that are shared by exclusive-or. Errors:
    /// a number out of range.
    pub fn of_bits(depth: u32) -> Result<Self, OtError> {
        Ok(DpfShape { xor: true, ..DpfShape::new(depth, 2, 64)? })
    }

    /// These trees with `blocks` blocks more in every leaf, of [`BLOCK_BITS`] bits that are shared by exclusive-or.
    /// Errors: more than [`MOST_BIT_BLOCKS`].
    pub fn with_bits(self, blocks: usize) -> Result<Self, OtError> {
        if blocks > MOST_BIT_BLOCKS {
            return Err(OtError::Parameter { what: "blocks of bits of a leaf", allowed: "0..=2", got: blocks });
        }
        Ok(DpfShape { bit_blocks: blocks, ..self })
    }

    /// Levels of the tree: 2^depth leaves.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Words of a leaf.
    pub fn words(&self) -> usize {
        self.words
    }

    /// Blocks of bits of a leaf.
    pub fn bit_blocks(&self) -> usize {
        self.bit_blocks
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

    /// Nodes of the last level that is kept: the one above the leaves, or [`Self::top`] if no level is grown.
    pub(super) fn room(&self) -> usize {
        1 << (self.depth - 1).max(self.top())
    }

    /// Words of the final corrections.
    pub(super) fn last_words(&self) -> usize {
        2 + self.bit_words()
    }

    /// Words of a leaf's bits.
    pub(super) fn bit_words(&self) -> usize {
        self.bit_blocks * (BLOCK_BITS / 64)
    }

    /// Words of a key before the corrections: the cipher key and the nodes of level [`Self::top`].
    pub(super) fn head(&self) -> usize {
        2 + (2 << self.top())
    }

    /// Words of a key: the head, a correction for every level that is grown, and the final ones.
    pub fn key_words(&self) -> usize {
        self.head() + 2 * (self.depth - self.top()) as usize + self.last_words()
    }
}

/// Bytes that each party sends for one level of `count` trees.
pub fn level_bytes(count: usize) -> usize {
    16 * count
}
