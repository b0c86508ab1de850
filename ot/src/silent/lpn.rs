//! Parameter sets of the LPN assumption, with estimates of their security.

use crate::check::MASKS;
use crate::kernels::TABLE;

/// An instance of LPN with regular noise: samples of a secret of dimension `dimension`, in `trees` blocks of
/// `2^depth` samples with one error in each block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lpn {
    pub(crate) dimension: usize,
    pub(crate) depth: usize,
    pub(crate) trees: usize,
}

/// Estimated bits of security, rounded down: the least over information-set decoding (Liu et al.,
/// <https://eprint.iacr.org/2022/712>), the algebraic attack on regular noise (Briaud and Oygarden,
/// <https://eprint.iacr.org/2023/176>), plain Gaussian elimination after guessing, and the hybrid of both (Wang et
/// al., <https://eprint.iacr.org/2025/1284>), all searched in full. Sets in wide use are listed even where they fall
/// short.
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

/// Fewest bits of security that the set in use must have.
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

    /// Correlated OTs that a round spends: those of the table, one for each level of every tree, and the masks of a
    /// check.
    pub(crate) const fn spent(self) -> usize {
        self.dimension + self.trees * self.depth + MASKS
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_set_in_use_is_secure_and_broken_sets_are_refused() {
        assert_eq!(LPN.security(), 193);
        // The sets of emp-ot 0.3 for 10 million OTs, of a present-day library, and one that nobody has estimated.
        for (dimension, depth, trees) in [(124_000, 11, 4971), (38_737, 9, 2000), (65_536, 9, 4096)] {
            let set = Lpn { dimension, depth, trees };
            assert!(std::panic::catch_unwind(|| set.refuse_below(LEAST_BITS)).is_err(), "{set:?}");
        }
        assert_eq!((LPN.spent(), LPN.made()), (84_096, 964_096));
    }
}
