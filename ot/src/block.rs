//! 128-bit blocks, the unit of every OT.

use std::ops::{BitAnd, BitXor, BitXorAssign};

use zeroize::DefaultIsZeroes;

/// 128 bits as two words, the lower first: bit `i` is bit `i % 64` of word `i / 64`.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct Block(pub(crate) [u64; 2]);

impl Block {
    /// The block whose bits are all zero.
    pub const ZERO: Block = Block([0; 2]);

    /// The block whose little-endian bytes are `bytes`.
    #[inline]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Block::from(u128::from_le_bytes(bytes))
    }

    /// The little-endian bytes of this block.
    #[inline]
    pub fn to_bytes(self) -> [u8; 16] {
        u128::from(self).to_le_bytes()
    }

    /// The least significant bit: 0 or 1.
    #[inline]
    pub fn lsb(self) -> u64 {
        self.0[0] & 1
    }

    /// This block if `bit` is 1, zero if it is 0, without a branch.
    #[inline]
    pub fn times(self, bit: u64) -> Self {
        debug_assert!(bit <= 1);
        let mask = bit.wrapping_neg();
        Block([self.0[0] & mask, self.0[1] & mask])
    }
}

/// A word of ones if the secret `bit` is 1, zero if it is 0. The compiler does not see that there are only two cases,
/// so it makes no branch of them.
#[inline]
pub(crate) fn spread(bit: u64) -> u64 {
    debug_assert!(bit <= 1);
    std::hint::black_box(bit).wrapping_neg()
}

impl From<u128> for Block {
    #[inline]
    fn from(v: u128) -> Self {
        Block([v as u64, (v >> 64) as u64])
    }
}

impl From<Block> for u128 {
    #[inline]
    fn from(b: Block) -> u128 {
        u128::from(b.0[0]) | u128::from(b.0[1]) << 64
    }
}

impl BitXor for Block {
    type Output = Block;
    #[inline]
    fn bitxor(self, o: Block) -> Block {
        Block([self.0[0] ^ o.0[0], self.0[1] ^ o.0[1]])
    }
}

impl BitAnd for Block {
    type Output = Block;
    #[inline]
    fn bitand(self, o: Block) -> Block {
        Block([self.0[0] & o.0[0], self.0[1] & o.0[1]])
    }
}

impl BitXorAssign for Block {
    #[inline]
    fn bitxor_assign(&mut self, o: Block) {
        *self = *self ^ o;
    }
}

/// Blocks are secret more often than not, so they never reach a log.
impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Block(..)")
    }
}

impl DefaultIsZeroes for Block {}
