//! Vectors of whole blocks, and AES over several of them at once.

use super::Key;
use crate::Block;

/// A vector of whole blocks. A value proves that the processor has the instructions of the type.
pub(super) trait Wide: Copy {
    /// The type of the vector.
    type Vector: Copy;

    /// Number of blocks in a vector.
    const BLOCKS: usize;

    /// A vector of zeros.
    fn zero(self) -> Self::Vector;
    /// A vector with `block` in every place.
    fn splat(self, block: &Block) -> Self::Vector;
    /// Loads as many blocks as a vector has. Panics if `from` has another number.
    fn load(self, from: &[Block]) -> Self::Vector;
    /// The reverse of [`Self::load`].
    fn store(self, to: &mut [Block], x: Self::Vector);
    /// Loads up to as many blocks as a vector has, and zeros in the other places. Panics if `from` has more.
    fn load_some(self, from: &[Block]) -> Self::Vector;
    /// Stores the first blocks of a vector, as many as `to` has. Panics if `to` has more blocks than a vector.
    fn store_some(self, to: &mut [Block], x: Self::Vector);
    /// For each place i the block `(first + i, high)`, low word first.
    fn count(self, first: u64, high: u64) -> Self::Vector;
    /// For each place, a block with `by` in the low word and zero in the high word.
    fn low(self, by: u64) -> Self::Vector;
    /// The tweaks of consecutive OTs from `first` on. The block at place i has `first + i` in the high word and zero
    /// in the low word.
    fn tweaks(self, first: u64) -> Self::Vector;
    /// For each place, a block with `by` in the high word and zero in the low word.
    fn high(self, by: u64) -> Self::Vector;
    /// Sums modulo 2^64, word by word.
    fn add(self, x: Self::Vector, y: Self::Vector) -> Self::Vector;

    /// Sums of integers of 32 bits, each modulo 2^32.
    fn add32(self, x: Self::Vector, y: Self::Vector) -> Self::Vector;
    /// Differences modulo 2^64, word by word.
    fn sub(self, x: Self::Vector, y: Self::Vector) -> Self::Vector;
    /// Differences of integers of 32 bits, each modulo 2^32.
    fn sub32(self, x: Self::Vector, y: Self::Vector) -> Self::Vector;

    /// `x ^ y`.
    fn xor(self, x: Self::Vector, y: Self::Vector) -> Self::Vector;
    /// `x ^ (mask & y)`.
    fn xor_where(self, x: Self::Vector, mask: Self::Vector, y: Self::Vector) -> Self::Vector;
    /// The lowest bit of every block, copied to all bits of the block.
    fn control(self, x: Self::Vector) -> Self::Vector;
    /// The blocks of `x` and of `y` in turn, `x` first. The first vector has the first half of these blocks.
    fn zip(self, x: Self::Vector, y: Self::Vector) -> [Self::Vector; 2];
    /// As [`Self::store`], to any address.
    fn store_bytes(self, to: &mut [[u8; 16]], x: Self::Vector);
    /// `(x ^ y) & mask`.
    fn cut(self, x: Self::Vector, y: Self::Vector, mask: Self::Vector) -> Self::Vector;
    /// `sum ^ x` in the first `blocks` places, `sum` in the others.
    fn xor_some(self, sum: Self::Vector, x: Self::Vector, blocks: usize) -> Self::Vector;
    /// The exclusive-or of all blocks of a vector.
    fn sum(self, x: Self::Vector) -> Block;
    /// The orthomorphism of the hashes, per block: `sigma(a || b) = (a ^ b) || a`.
    fn sigma(self, x: Self::Vector) -> Self::Vector;

    /// Carry-less products of the blocks of x and y: those of the low words, the sum of those of a low and a high
    /// word, and those of the high words.
    fn product(self, x: Self::Vector, y: Self::Vector) -> [Self::Vector; 3];

    /// A round of AES.
    fn round(self, x: Self::Vector, key: Self::Vector) -> Self::Vector;
    /// The last round of AES.
    fn last_round(self, x: Self::Vector, key: Self::Vector) -> Self::Vector;
}

#[inline(always)]
pub(super) fn load<W: Wide, const N: usize>(w: W, blocks: &[Block]) -> [W::Vector; N] {
    let mut x = [w.zero(); N];
    for i in 0..N {
        x[i] = w.load(&blocks[i * W::BLOCKS..(i + 1) * W::BLOCKS]);
    }
    x
}

#[inline(always)]
pub(super) fn store<W: Wide, const N: usize>(w: W, blocks: &mut [Block], x: [W::Vector; N]) {
    for i in 0..N {
        w.store(&mut blocks[i * W::BLOCKS..(i + 1) * W::BLOCKS], x[i]);
    }
}

/// Encrypts N vectors, all in flight at once.
#[inline(always)]
pub(super) fn encrypt<W: Wide, const N: usize>(w: W, key: &Key, mut x: [W::Vector; N]) -> [W::Vector; N] {
    // Round keys kept in registers over a loop would leave room for few blocks, and the compiler would encrypt them
    // one after the other; behind this address they are loaded once for all N.
    let key = std::hint::black_box(key);
    let k = w.splat(&key.0[0]);
    for i in 0..N {
        x[i] = w.xor(x[i], k);
    }
    for r in 1..10 {
        let k = w.splat(&key.0[r]);
        for i in 0..N {
            x[i] = w.round(x[i], k);
        }
    }
    let k = w.splat(&key.0[10]);
    for i in 0..N {
        x[i] = w.last_round(x[i], k);
    }
    x
}
