//! The public code of the LPN assumption, and parameter sets with what is known of their security.

use aes::Aes128Enc;
use aes::cipher::{Array, BlockCipherEncrypt};

use crate::Block;

/// Entries of the table: the dimension k of the code, so that 16 bits are an index.
pub(crate) const TABLE: usize = 1 << 16;

/// Every output is the sum of this many entries of the table, drawn with repetition: the code is local and random
/// (Yang, Weng, Lan, Zhang and Wang, <https://eprint.iacr.org/2020/924>, section 5.1).
pub(crate) const CODE_WEIGHT: usize = 10;

/// Outputs whose indices are drawn at once, as whole blocks.
const GROUP: usize = 8;

/// An instance of LPN with regular noise: `trees` blocks of `2^depth` samples, each with one error, of a secret of
/// dimension `dimension`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lpn {
    pub(crate) dimension: usize,
    pub(crate) depth: usize,
    pub(crate) trees: usize,
}

/// Estimated bits of security, rounded down: the least over information-set decoding (Liu et al.,
/// <https://eprint.iacr.org/2022/712>), the algebraic attack on regular noise (Briaud and Oygarden,
/// <https://eprint.iacr.org/2023/176>), plain Gaussian elimination after guessing, and the hybrid of both (Wang et al.,
/// <https://eprint.iacr.org/2025/1284>), all searched in full. Sets in wide use are listed even where they fall short.
const ESTIMATES: [(Lpn, u32); 14] = [
    (Lpn { dimension: 65_536, depth: 9, trees: 2048 }, 193),
    (Lpn { dimension: 49_152, depth: 9, trees: 2048 }, 144),
    (Lpn { dimension: 40_960, depth: 9, trees: 1600 }, 129),
    (Lpn { dimension: 65_536, depth: 10, trees: 850 }, 128),
    (Lpn { dimension: 131_072, depth: 10, trees: 2048 }, 202),
    (Lpn { dimension: 131_072, depth: 11, trees: 1100 }, 129),
    (Lpn { dimension: 131_072, depth: 11, trees: 1170 }, 128),
    (Lpn { dimension: 262_144, depth: 11, trees: 2048 }, 209),
    (Lpn { dimension: 262_144, depth: 12, trees: 1400 }, 130),
    (Lpn { dimension: 524_288, depth: 13, trees: 1900 }, 128),
    (Lpn { dimension: 452_000, depth: 13, trees: 1280 }, 122),
    (Lpn { dimension: 38_737, depth: 9, trees: 2000 }, 114),
    (Lpn { dimension: 238_000, depth: 12, trees: 2507 }, 104),
    (Lpn { dimension: 124_000, depth: 11, trees: 4971 }, 92),
];

/// Least security of a set in use.
const LEAST_BITS: u32 = 128;

/// The set in use: the largest table whose indices take 16 bits and which a second-level cache holds. A larger one
/// would send less and wait for memory; a smaller one has no margin.
pub(crate) const LPN: Lpn = Lpn { dimension: TABLE, depth: 9, trees: 2048 }.refuse_below(LEAST_BITS);

impl Lpn {
    /// Estimated bits of security; 0 if nothing is known.
    pub(crate) const fn security(self) -> u32 {
        let mut i = 0;
        while i < ESTIMATES.len() {
            let (set, bits) = ESTIMATES[i];
            if set.dimension == self.dimension && set.depth == self.depth && set.trees == self.trees {
                return bits;
            }
            i += 1;
        }
        0
    }

    /// This set. Fails to compile, as a constant, if its estimate is unknown or below `bits`.
    const fn refuse_below(self, bits: u32) -> Self {
        assert!(self.security() >= bits, "this set of LPN parameters is not known to be secure");
        self
    }

    /// Leaves of a tree.
    pub(crate) const fn leaves(self) -> usize {
        1 << self.depth
    }

    /// Correlated OTs that a round spends: the table, and one per level of every tree.
    pub(crate) const fn spent(self) -> usize {
        self.dimension + self.trees * self.depth
    }

    /// Trees whose outputs are kept back for the next round.
    pub(crate) const fn kept_trees(self) -> usize {
        self.spent().div_ceil(self.leaves())
    }

    /// Correlated OTs that a round leaves for use.
    pub(crate) const fn made(self) -> usize {
        (self.trees - self.kept_trees()) * self.leaves()
    }
}

/// Adds to `out[i]` its [`CODE_WEIGHT`] entries of `table`; the stream of `prg` at `place` says which. The indices are
/// public.
pub(crate) fn add_code_words(prg: &Aes128Enc, place: u64, table: &[Block; TABLE], out: &mut [Block]) {
    let (groups, rest) = out.as_chunks_mut::<GROUP>();
    debug_assert!(rest.is_empty());
    for (g, out) in (0..).zip(groups) {
        let counter = |c: usize| Block([g * CODE_WEIGHT as u64 + c as u64, place]);
        let mut stream: [_; CODE_WEIGHT] = std::array::from_fn(|c| Array::from(counter(c).to_bytes()));
        prg.encrypt_blocks(&mut stream);
        let mut indices =
            stream.iter().flat_map(|b| b.as_chunks::<2>().0).map(|&b| usize::from(u16::from_le_bytes(b)));
        for out in out {
            *out = indices.by_ref().take(CODE_WEIGHT).fold(*out, |sum, i| sum ^ table[i]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Key;
    use aes::cipher::KeyInit;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    #[test]
    fn the_set_in_use_is_secure_and_broken_sets_are_refused() {
        assert_eq!(LPN.security(), 193);
        // The sets of emp-ot 0.3 for 10 million OTs, of a present-day library, and one that nobody has estimated.
        for (dimension, depth, trees) in [(124_000, 11, 4971), (38_737, 9, 2000), (65_536, 9, 4096)] {
            let set = Lpn { dimension, depth, trees };
            assert!(std::panic::catch_unwind(|| set.refuse_below(LEAST_BITS)).is_err(), "{set:?}");
        }
        assert_eq!((LPN.spent(), LPN.made()), (83_968, 964_608));
        assert_eq!(LPN.kept_trees() * LPN.leaves(), LPN.spent());
    }

    #[test]
    fn kernels_agree_and_indices_are_spread() {
        let mut rng = StdRng::seed_from_u64(12);
        let key = Block([rng.next_u64(), rng.next_u64()]);
        let prg = Aes128Enc::new(&Array::from(key.to_bytes()));
        let random = |rng: &mut StdRng| Block([rng.next_u64(), rng.next_u64()]);
        let table: Vec<Block> = (0..TABLE).map(|_| random(&mut rng)).collect();
        let table: &[Block; TABLE] = table[..].try_into().unwrap();
        let before: Vec<Block> = (0..1 << 9).map(|_| random(&mut rng)).collect();
        let mut portable = before.clone();
        add_code_words(&prg, 0x1234_5678_9abc, table, &mut portable);
        for cpu in crate::simd::all().flatten() {
            let mut fast = before.clone();
            cpu.add_code_words(&Key::new(cpu, key), 0x1234_5678_9abc, table, &mut fast);
            assert!(fast == portable);
        }
        // Indicators of a sixteenth of the table each: a sum of ten is odd in a share of 0.3685.
        let hits: Vec<u32> = (0..16)
            .map(|bucket| {
                let ones: Vec<Block> = (0..TABLE).map(|i| Block([u64::from(i >> 12 == bucket), 0])).collect();
                let odd = |place| {
                    let mut out = vec![Block::ZERO; 1 << 9];
                    add_code_words(&prg, place, ones[..].try_into().unwrap(), &mut out);
                    out.iter().map(|b| b.lsb() as u32).sum::<u32>()
                };
                (0..8).map(odd).sum()
            })
            .collect();
        // 4096 draws each: six standard deviations are 185.
        assert!(hits.iter().all(|&h| h.abs_diff(1509) < 185), "{hits:?}");
    }
}
