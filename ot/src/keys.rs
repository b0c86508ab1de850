//! The keys of a batch of 1-of-2 OTs before they are spent on messages.

use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::hash::CrHash;
use crate::{Bits, Block};

/// The sender's two keys of every OT of a batch. They are spent by value, so that no pad is used twice.
#[derive(ZeroizeOnDrop)]
pub struct SenderKeys {
    /// The blocks q. The key for choice 0 is `H(q)`, for choice 1 `H(q ^ delta)`.
    pub(crate) blocks: Vec<Block>,
    pub(crate) delta: Block,
    #[zeroize(skip)]
    pub(crate) hash: CrHash,
    /// Index of the first OT in its direction.
    pub(crate) first: u64,
}

impl SenderKeys {
    pub(crate) fn new(blocks: Vec<Block>, delta: Block, hash: CrHash, first: u64) -> Self {
        SenderKeys { blocks, delta, hash, first }
    }

    /// Number of OTs.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether there are no OTs.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Splits after `at` OTs; this batch keeps the first part. Panics if `at` exceeds the length.
    pub fn split_off(&mut self, at: usize) -> SenderKeys {
        let tail = self.blocks[at..].to_vec();
        self.blocks[at..].zeroize();
        self.blocks.truncate(at);
        SenderKeys::new(tail, self.delta, self.hash.clone(), self.first + at as u64)
    }
}

/// The receiver's choices and its chosen key of every OT of a batch. They are spent by value, so that no pad is used
/// twice.
#[derive(ZeroizeOnDrop)]
pub struct ChosenKeys {
    /// The blocks t. The chosen key is `H(t)`.
    pub(crate) blocks: Vec<Block>,
    pub(crate) choices: Bits,
    #[zeroize(skip)]
    pub(crate) hash: CrHash,
    /// Index of the first OT in its direction.
    pub(crate) first: u64,
}

impl ChosenKeys {
    pub(crate) fn new(blocks: Vec<Block>, choices: Bits, hash: CrHash, first: u64) -> Self {
        debug_assert_eq!(blocks.len(), choices.len());
        ChosenKeys { blocks, choices, hash, first }
    }

    /// Number of OTs.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether there are no OTs.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The choice bits.
    pub fn choices(&self) -> &Bits {
        &self.choices
    }

    /// Splits after `at` OTs; this batch keeps the first part. Panics if `at` exceeds the length.
    pub fn split_off(&mut self, at: usize) -> ChosenKeys {
        let tail = self.blocks[at..].to_vec();
        self.blocks[at..].zeroize();
        self.blocks.truncate(at);
        let choices = self.choices.split_off(at);
        ChosenKeys::new(tail, choices, self.hash.clone(), self.first + at as u64)
    }
}

impl std::fmt::Debug for SenderKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SenderKeys({} OTs)", self.len())
    }
}

impl std::fmt::Debug for ChosenKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ChosenKeys({} OTs)", self.len())
    }
}
