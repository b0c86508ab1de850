//! The correlation-robust hash that turns a correlated block into pad bits.
//!
//! TMMO of Guo, Katz, Wang, Weng and Yu (<https://eprint.iacr.org/2019/1168>, <https://eprint.iacr.org/2019/074>):
//! `H(x, tweak) = pi(sigma(x) ^ tweak) ^ sigma(x) ^ tweak` with `sigma(a || b) = (a ^ b) || a` and `pi` = AES-128
//! under a public key. The key belongs to one session and direction and changes every [`EPOCH`] OTs, so an
//! attacker's table of `pi` helps against at most `2^10` OTs.

use std::ops::Range;

use aes::Aes128Enc;
use aes::cipher::{Array, BlockCipherEncrypt, KeyInit};

use crate::Block;
use crate::simd::{Cpu, Key};

/// OTs hashed under one key.
pub(crate) const EPOCH: u64 = 1 << 10;

/// Blocks per call of the cipher; a multiple of the eight that AES-NI keeps in flight.
const BATCH: usize = 16;

/// The hash of one session and direction.
#[derive(Clone)]
pub(crate) struct CrHash {
    key: [u8; 32],
    cpu: Option<Cpu>,
}

impl CrHash {
    /// The hash for the direction `label` of the session `session`.
    pub(crate) fn new(session: &[u8; 32], label: &[u8], cpu: Option<Cpu>) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("waggle-ot 2026 correlation-robust hash");
        hasher.update(session).update(label);
        CrHash { key: *hasher.finalize().as_bytes(), cpu }
    }

    /// A hasher for one thread.
    pub(crate) fn expander(&self) -> Expander<'_> {
        Expander { hash: self, epoch: 0, pi: self.permutation(0) }
    }

    /// A public cipher key for trees ([`crate::dpf`]), one for every `index`.
    pub(crate) fn tree_key(&self, index: u64) -> [u8; 16] {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(b"tree").update(&index.to_le_bytes());
        let mut key = [0; 16];
        key.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        key
    }

    /// The key of an epoch.
    fn epoch_key(&self, epoch: u64) -> [u8; 16] {
        let digest = blake3::keyed_hash(&self.key, &epoch.to_le_bytes());
        let mut key = [0; 16];
        key.copy_from_slice(&digest.as_bytes()[..16]);
        key
    }

    fn permutation(&self, epoch: u64) -> Permutation {
        let key = self.epoch_key(epoch);
        match self.cpu {
            Some(cpu) => Permutation::Simd(cpu, Key::new(cpu, Block::from_bytes(key))),
            None => Permutation::Portable(Aes128Enc::new(&Array::from(key))),
        }
    }
}

/// The permutation `pi` of an epoch.
enum Permutation {
    Portable(Aes128Enc),
    Simd(Cpu, Key),
}

impl Permutation {
    /// `x = pi(x) ^ x` for every block.
    fn davies_meyer(&self, blocks: &mut [Block]) {
        match self {
            Permutation::Portable(pi) => davies_meyer(pi, blocks),
            Permutation::Simd(cpu, pi) => cpu.davies_meyer(pi, blocks),
        }
    }

    /// `out[i] = H(blocks[i] ^ offset, (first + i, 0))`.
    fn hash(&self, first: u64, offset: Block, blocks: &[Block], out: &mut [Block]) {
        match self {
            Permutation::Portable(pi) => {
                for ((index, &x), out) in (first..).zip(blocks).zip(out.iter_mut()) {
                    *out = sigma(x ^ offset) ^ Block([0, index]);
                }
                davies_meyer(pi, out);
            }
            Permutation::Simd(cpu, pi) => cpu.hash(pi, first, offset, blocks, out),
        }
    }
}

/// A [`CrHash`] that remembers the key of the epoch it was used in last.
pub(crate) struct Expander<'a> {
    hash: &'a CrHash,
    epoch: u64,
    pi: Permutation,
}

impl Expander<'_> {
    /// Hashes the blocks of consecutive OTs `first, first + 1, ..`, each `per` times:
    /// `out[i * per + c] = H(blocks[i] ^ offset, (first + i, start(i) + c))`. The counters may be secret.
    ///
    /// `out` must hold `per` blocks for each of `blocks`.
    pub(crate) fn expand_from(
        &mut self,
        first: u64,
        blocks: &[Block],
        offset: Block,
        per: usize,
        start: impl Fn(usize) -> u64,
        out: &mut [Block],
    ) {
        debug_assert_eq!(out.len(), blocks.len() * per);
        self.for_epochs(first, blocks.len(), |pi, range| {
            let out = &mut out[range.start * per..range.end * per];
            let mut slots = out.iter_mut();
            for (i, &x) in range.clone().zip(&blocks[range]) {
                let s = sigma(x ^ offset);
                let (index, counter) = (first + i as u64, start(i));
                for (c, out) in (counter..).zip(slots.by_ref().take(per)) {
                    *out = s ^ Block([c, index]);
                }
            }
            pi.davies_meyer(out);
        });
    }

    /// Cuts `len` OTs from `first` on into parts of one epoch each: `part(pi, range)` within `0..len`.
    fn for_epochs(&mut self, first: u64, len: usize, mut part: impl FnMut(&Permutation, Range<usize>)) {
        let mut done = 0;
        while done < len {
            let index = first + done as u64;
            if index / EPOCH != self.epoch {
                self.epoch = index / EPOCH;
                self.pi = self.hash.permutation(self.epoch);
            }
            let end = len.min(done + (EPOCH - index % EPOCH) as usize);
            part(&self.pi, done..end);
            done = end;
        }
    }

    /// [`expand_from`](Self::expand_from) with all counters starting at 0.
    pub(crate) fn expand(&mut self, first: u64, blocks: &[Block], offset: Block, per: usize, out: &mut [Block]) {
        if per == 1 {
            return self.for_epochs(first, blocks.len(), |pi, range| {
                pi.hash(first + range.start as u64, offset, &blocks[range.clone()], &mut out[range]);
            });
        }
        self.expand_from(first, blocks, offset, per, |_| 0, out);
    }
}

/// The linear orthomorphism of the TMMO construction.
#[inline]
pub(crate) fn sigma(x: Block) -> Block {
    Block([x.0[1], x.0[0] ^ x.0[1]])
}

/// `x = pi(x) ^ x` for every block.
pub(crate) fn davies_meyer(pi: &Aes128Enc, blocks: &mut [Block]) {
    let (chunks, rest) = blocks.as_chunks_mut::<BATCH>();
    for chunk in chunks {
        let mut y = chunk.map(|x| Array::from(x.to_bytes()));
        pi.encrypt_blocks(&mut y);
        for (x, y) in chunk.iter_mut().zip(y) {
            *x ^= Block::from_bytes(y.into());
        }
    }
    let mut y = [aes::Block::default(); BATCH];
    let y = &mut y[..rest.len()];
    for (y, x) in y.iter_mut().zip(rest.iter()) {
        *y = Array::from(x.to_bytes());
    }
    pi.encrypt_blocks(y);
    for (x, y) in rest.iter_mut().zip(y) {
        *x ^= Block::from_bytes((*y).into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, one block at a time.
    fn naive(hash: &CrHash, x: Block, index: u64, counter: u64) -> Block {
        let x = u128::from(x);
        let (high, low) = ((x >> 64) as u64, x as u64);
        let s = u128::from(high ^ low) << 64 | u128::from(high);
        let input = s ^ (u128::from(index) << 64 | u128::from(counter));
        let mut y = Array::from(input.to_le_bytes());
        Aes128Enc::new(&Array::from(hash.epoch_key(index / EPOCH))).encrypt_block(&mut y);
        Block::from(u128::from_le_bytes(y.into()) ^ input)
    }

    #[test]
    fn batches_equal_the_definition_across_epochs() {
        for cpu in crate::simd::all() {
            batches_equal_the_definition(&CrHash::new(&[7; 32], b"test", cpu));
        }
    }

    fn batches_equal_the_definition(hash: &CrHash) {
        let blocks: Vec<Block> =
            (0..2500_u128).map(|i| Block::from(i.wrapping_mul(0x9e37_79b9 << 70 | 0x1234_5677))).collect();
        let offset = Block::from(0xfeed_f00d << 90 | 1);
        for (first, per) in [(0, 1), (1000, 3), (5, 17)] {
            let mut out = vec![Block::ZERO; blocks.len() * per];
            hash.expander().expand_from(first, &blocks, offset, per, |i| 5 * i as u64, &mut out);
            for (i, &x) in blocks.iter().enumerate() {
                for c in 0..per {
                    let want = naive(hash, x ^ offset, first + i as u64, 5 * i as u64 + c as u64);
                    assert!(out[i * per + c] == want, "OT {i} counter {c}");
                }
            }
            hash.expander().expand(first, &blocks, offset, per, &mut out);
            for (i, &x) in blocks.iter().enumerate() {
                assert!(out[i * per] == naive(hash, x ^ offset, first + i as u64, 0), "OT {i}");
            }
        }
    }

    #[test]
    fn sessions_and_directions_differ() {
        let x = [Block::from(1)];
        let h = |session: u8, label: &[u8]| {
            let mut out = [Block::ZERO];
            CrHash::new(&[session; 32], label, None).expander().expand(0, &x, Block::ZERO, 1, &mut out);
            out[0]
        };
        assert!(h(0, b"a") != h(1, b"a") && h(0, b"a") != h(0, b"b"));
    }
}
