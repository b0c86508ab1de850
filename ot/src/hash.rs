//! The correlation-robust hash that turns a correlated block into pad bits.
//!
//! `H(x, i) = pi(sigma(x) ^ i) ^ sigma(x) ^ i` with the tweak `i = (OT, counter)`, the linear orthomorphism `sigma(a
//! || b) = (a ^ b) || a`, and `pi` = AES-128 under a public key that serves one session, direction and run of OTs. It
//! is the hash of section 7.3 of Guo, Katz, Wang and Yu (<https://eprint.iacr.org/2019/074>) with a tweak added to
//! the input. It is *not* their TMMO (section 7.4), `pi(pi(x) ^ i) ^ pi(x)`, which costs twice the calls. The claim
//! below shows that TMMO is not needed here.
//!
//! # What it hides, and what it costs
//! One party knows blocks x, the other hashes `x ^ Delta`. 127 bits of Delta are unknown; its lowest bit is 1. Trees
//! ([`crate::ggm::half`]) use the hash without a tweak, under keys of their own, and add `b Delta` to it for known
//! bits b.
//!
//! **Claim.** Let `pi_1 .. pi_K` be ideal permutations. An adversary that evaluates them p times, forward or
//! backward, and asks q times per key for `pi_k(s) ^ s ^ b Delta` with `s = c ^ sigma(Delta)`, `c = sigma(x) ^ i`,
//! where no c occurs twice under a key, tells the answers from random blocks with advantage at most
//! `p q 2^-126 + K q^2 2^-129`.
//!
//! **Proof** (H-coefficients). Random answers y do not depend on Delta, which is drawn after them. They also occur
//! with the real permutations, and are at least as likely there, unless
//! 1. some evaluation has the input s of a query under the same key, or
//! 2. it has the output `y ^ s ^ b Delta` of one, or
//! 3. two queries under a key have the same such output.
//!
//! Because sigma and `sigma(x) ^ x` are bijective, one Delta of `2^127` puts a given evaluation and a given query
//! into case 1, and one into case 2. An evaluation is under one key and meets q queries, so both cases together have
//! probability `2 p q 2^-127`. Case 3 needs two random answers to differ by a given block: `2^-128` for each of fewer
//! than `K q^2 / 2` pairs.
//!
//! **Distinct inputs.** Tweaks of one x differ. For different x the claim needs `sigma(x) ^ i != sigma(x') ^ i'`, an
//! event that is decided before Delta comes in. TMMO would allow x that an adversary chose. Here the party that
//! knows x cannot choose it, because what it sends is checked ([`crate::check`]): 127 bits of x are pseudorandom.
//! With SoftSpoken OT every bit of x is the sum of another set of streams of AES under independent keys, which are
//! hashes of base OTs to which both parties contribute; with silent OT x is a sum of ten blocks of a table of such x,
//! other ten for every OT, and a leaf. So two inputs are equal with probability `2^-127`: for `2^40` blocks under
//! keys of `2^10` this is `2^-78` together. (And then the peer would learn the sum of two pads, not Delta.) A node of
//! a tree is pseudorandom alike.
//!
//! **The loss.** A key serves [`CALLS_PER_KEY`] `= 2^10` calls on unknown inputs: runs of OTs are the shorter the
//! more blocks an OT takes, [`crate::dpf::GROUP`] trees share a key, and every tree of silent OT has its own. So the
//! advantage is at most `p 2^-116`, and `2^-79` for `2^30` keys: the 128 bits of Delta are worth 116 against an
//! adversary that evaluates AES under the keys of one session. These keys are known only once the session runs, so
//! nothing can be computed ahead or for several sessions at once.

use std::ops::Range;

use crate::Block;
use crate::kernels::{Permutation, Simd, sigma};

/// Most calls of the permutation on unknown inputs under one key; the module documentation says what each bit of it
/// costs.
pub(crate) const CALLS_PER_KEY: usize = 1 << 10;

/// The hash of one session and direction.
#[derive(Clone)]
pub(crate) struct CrHash {
    key: [u8; 32],
    simd: Option<Simd>,
}

impl CrHash {
    /// The hash for the direction `label` of the session `session`.
    pub(crate) fn new(session: &[u8; 32], label: &[u8], simd: Option<Simd>) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("waggle-ot 2026 correlation-robust hash");
        hasher.update(session).update(label);
        CrHash { key: *hasher.finalize().as_bytes(), simd }
    }

    /// A hasher for one thread and OTs of up to `blocks` blocks of pad each. Both parties must use the same number,
    /// because it decides where keys change.
    pub(crate) fn expander(&self, blocks: usize) -> Expander<'_> {
        // A power of two, at most CALLS_PER_KEY / blocks, or 1.
        let run = (CALLS_PER_KEY / blocks.max(1).next_power_of_two()).max(1);
        Expander { hash: self, blocks, run: run as u64, last: None }
    }

    /// A public cipher key for trees ([`crate::dpf`]), a different one for every `index`.
    pub(crate) fn tree_key(&self, index: u64) -> [u8; 16] {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(b"tree").update(&index.to_le_bytes());
        first_half(hasher.finalize())
    }

    /// The key of the place `at`.
    fn key(&self, at: Place) -> [u8; 16] {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&at.run.to_le_bytes()).update(&at.number.to_le_bytes()).update(&at.part.to_le_bytes());
        first_half(hasher.finalize())
    }

    fn permutation(&self, at: Place) -> Permutation {
        Permutation::new(self.simd, Block::from_bytes(self.key(at)))
    }
}

/// A key of AES from a hash.
pub(crate) fn first_half(hash: blake3::Hash) -> [u8; 16] {
    hash.as_bytes().as_chunks().0[0]
}

/// What is hashed under one key: part number `part` of the pads of the OTs `number * run .. (number + 1) * run`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Place {
    run: u64,
    number: u64,
    part: u64,
}

/// A [`CrHash`] that remembers the key it used last.
pub(crate) struct Expander<'a> {
    hash: &'a CrHash,
    blocks: usize,
    /// Number of OTs under one key.
    run: u64,
    last: Option<(Place, Permutation)>,
}

impl Expander<'_> {
    /// Hashes the blocks of consecutive OTs `first, first + 1, ..`, each `per` times: `out[i * per + c] = H(blocks[i]
    /// ^ offset, (first + i, start(i) + c))`. The counters may be secret, so one key must serve all counters of an
    /// OT: at most [`CALLS_PER_KEY`].
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
        debug_assert!(self.blocks <= CALLS_PER_KEY && out.len() == blocks.len() * per);
        self.for_runs(first, blocks.len(), |pi, range| {
            let out = &mut out[range.start * per..range.end * per];
            let mut slots = out.iter_mut();
            for (i, &x) in range.clone().zip(&blocks[range]) {
                expand_one(x ^ offset, first + i as u64, start(i), slots.by_ref().take(per));
            }
            pi.davies_meyer(out);
        });
    }

    /// Cuts the `len` OTs from `first` on into parts with one key each. Calls `part(pi, range)` with the permutation
    /// and the OTs of each part, counted from `first`.
    fn for_runs(&mut self, first: u64, len: usize, mut part: impl FnMut(&Permutation, Range<usize>)) {
        let mut done = 0;
        while done < len {
            let index = first + done as u64;
            let end = len.min(done + (self.run - index % self.run) as usize);
            part(self.permutation(index, 0), done..end);
            done = end;
        }
    }

    /// The permutation for part `part` of the pad of OT `index`.
    fn permutation(&mut self, index: u64, part: u64) -> &Permutation {
        let at = Place { run: self.run, number: index / self.run, part };
        if self.last.as_ref().is_none_or(|(last, _)| *last != at) {
            self.last = None;
        }
        &self.last.get_or_insert_with(|| (at, self.hash.permutation(at))).1
    }

    /// As [`expand_from`](Self::expand_from), with all counters starting at 0. Pads may have any length.
    pub(crate) fn expand(&mut self, first: u64, blocks: &[Block], offset: Block, per: usize, out: &mut [Block]) {
        debug_assert!(per <= self.blocks);
        if per == 1 {
            return self.for_runs(first, blocks.len(), |pi, range| {
                pi.hash(first + range.start as u64, offset, &blocks[range.clone()], &mut out[range]);
            });
        }
        if self.blocks <= CALLS_PER_KEY {
            return self.expand_from(first, blocks, offset, per, |_| 0, out);
        }
        for ((index, &x), out) in (first..).zip(blocks).zip(out.chunks_exact_mut(per)) {
            for (part, out) in (0..).zip(out.chunks_mut(CALLS_PER_KEY)) {
                expand_one(x ^ offset, index, part * CALLS_PER_KEY as u64, out.iter_mut());
                self.permutation(index, part).davies_meyer(out);
            }
        }
    }
}

/// The inputs of the permutation for a block x of OT `index`, with the counters `counter, counter + 1, ..`.
#[inline]
fn expand_one<'a>(x: Block, index: u64, counter: u64, out: impl Iterator<Item = &'a mut Block>) {
    let s = sigma(x);
    for (c, out) in (counter..).zip(out) {
        *out = s ^ Block([c, index]);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use aes::Aes128Enc;
    use aes::cipher::{Array, BlockCipherEncrypt, KeyInit};

    use super::*;

    /// The place of the counter `counter` of OT `index`, which decides its key, for pads of `blocks` blocks.
    fn place(index: u64, counter: u64, blocks: usize) -> Place {
        let calls = CALLS_PER_KEY as u64;
        let run = (calls / (blocks as u64).next_power_of_two()).max(1);
        Place { run, number: index / run, part: if blocks > CALLS_PER_KEY { counter / calls } else { 0 } }
    }

    /// The definition, one block at a time.
    fn naive(hash: &CrHash, blocks: usize, x: Block, index: u64, counter: u64) -> Block {
        let x = u128::from(x);
        let (high, low) = ((x >> 64) as u64, x as u64);
        let s = u128::from(high ^ low) << 64 | u128::from(high);
        let input = s ^ (u128::from(index) << 64 | u128::from(counter));
        let mut y = Array::from(input.to_le_bytes());
        Aes128Enc::new(&Array::from(hash.key(place(index, counter, blocks)))).encrypt_block(&mut y);
        Block::from(u128::from_le_bytes(y.into()) ^ input)
    }

    #[test]
    fn batches_equal_the_definition_across_keys() {
        for simd in crate::kernels::all() {
            batches_equal_the_definition(&CrHash::new(&[7; 32], b"test", simd));
        }
    }

    fn batches_equal_the_definition(hash: &CrHash) {
        let blocks: Vec<Block> =
            (0..2500_u128).map(|i| Block::from(i.wrapping_mul(0x9e37_79b9 << 70 | 0x1234_5677))).collect();
        let offset = Block::from(0xfeed_f00d << 90 | 1);
        for (first, per, all) in [(0, 1, 1), (1000, 3, 3), (5, 17, 17), (3, 2, 700), (7, 1, 2048)] {
            let mut out = vec![Block::ZERO; blocks.len() * per];
            if all <= CALLS_PER_KEY {
                hash.expander(all).expand_from(first, &blocks, offset, per, |i| 5 * i as u64, &mut out);
                for (i, &x) in blocks.iter().enumerate() {
                    for c in 0..per {
                        let want = naive(hash, all, x ^ offset, first + i as u64, 5 * i as u64 + c as u64);
                        assert!(out[i * per + c] == want, "OT {i} counter {c}");
                    }
                }
            }
            hash.expander(all).expand(first, &blocks, offset, per, &mut out);
            for (i, &x) in blocks.iter().enumerate() {
                assert!(out[i * per] == naive(hash, all, x ^ offset, first + i as u64, 0), "OT {i}");
            }
        }
        // Pads longer than a key serves.
        let per = 2 * CALLS_PER_KEY + 3;
        let mut out = vec![Block::ZERO; 2 * per];
        hash.expander(per).expand(9, &blocks[..2], offset, per, &mut out);
        for (at, out) in out.iter().enumerate() {
            let (i, c) = (at / per, (at % per) as u64);
            assert!(*out == naive(hash, per, blocks[i] ^ offset, 9 + i as u64, c), "OT {i} counter {c}");
        }
    }

    /// The number q of the bound, for pads of all lengths: no key serves more calls.
    #[test]
    fn a_key_serves_no_more_calls_than_the_bound_allows() {
        for blocks in [1, 2, 3, 16, 17, 32, 700, 1024, 1025, 5504] {
            let hash = CrHash::new(&[7; 32], b"test", None);
            let mut calls = HashMap::new();
            for index in 0..3000_u64.div_ceil(blocks) {
                for counter in 0..blocks {
                    *calls.entry(hash.key(place(index, counter, blocks as usize))).or_insert(0) += 1;
                }
            }
            assert!(calls.values().all(|&calls| calls <= CALLS_PER_KEY), "{blocks} blocks an OT: {calls:?}");
        }
        // Runs of different lengths that begin with the same OT have keys of their own.
        let hash = CrHash::new(&[7; 32], b"test", None);
        assert!(hash.key(place(0, 0, 1)) != hash.key(place(0, 0, 2)));
    }

    #[test]
    fn sessions_and_directions_differ() {
        let x = [Block::from(1)];
        let h = |session: u8, label: &[u8]| {
            let mut out = [Block::ZERO];
            CrHash::new(&[session; 32], label, None).expander(1).expand(0, &x, Block::ZERO, 1, &mut out);
            out[0]
        };
        assert!(h(0, b"a") != h(1, b"a") && h(0, b"a") != h(0, b"b"));
    }
}
