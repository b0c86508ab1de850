//! Powers of the root of unity in the order in which transforms on vectors read them.

use super::backend::{LANES, MIN_POINTS};
use crate::modulus::Modulus;

/// Number of coefficients that the innermost pass keeps in registers.
pub(super) const BLOCK: usize = MIN_POINTS;
/// Number of roots that a group has in three merged layers: one, two and four.
pub(super) const RADIX8: usize = 7;

/// The roots w of transforms in one direction, each with the second number by which a kernel multiplies.
#[derive(Debug)]
pub(super) struct Twiddles<T> {
    /// The root of group i in the layer of m groups, at index `m + i`.
    pub(super) tree: Vec<[T; 2]>,
    /// For each block b of 64 coefficients of a transform of n, at index `n / 64 + b`: seven pairs of vectors for the
    /// last three layers, with one lane per group of 8. There are entries for every power of two n from 64 to N. A
    /// transform shorter than N is that of a subring, whose roots are the first ones of the tree.
    pub(super) lanes: Vec<[[[T; LANES]; 2]; RADIX8]>,
}

impl<T: Copy> Twiddles<T> {
    /// The tables of `roots`, which has the root of group i in the layer of m groups at index `m + i`. `factor`
    /// returns a root and the second number by which a kernel multiplies.
    pub(super) fn new(roots: &[u64], factor: impl Fn(u64) -> [T; 2]) -> Self {
        let tree: Vec<[T; 2]> = roots.iter().map(|&w| factor(w)).collect();
        // With b the index of a block, b * LANES counts from the number of groups of its first layer.
        let block = |b: usize| {
            std::array::from_fn(|k| {
                // Factors 0 | 1 2 | 3 4 5 6 belong to layers of m, 2m and 4m groups.
                let (layer, offset) = [(1, 0), (2, 0), (2, 1), (4, 0), (4, 1), (4, 2), (4, 3)][k];
                let at = |lane: usize| tree[layer * (b * LANES + lane) + offset];
                [std::array::from_fn(|lane| at(lane)[0]), std::array::from_fn(|lane| at(lane)[1])]
            })
        };
        let lanes = (0..2 * roots.len() / BLOCK).map(block).collect();
        Self { tree, lanes }
    }
}

/// The roots of the inverse transform, in the order of `roots`.
pub(super) fn inverses(modulus: &Modulus, roots: &[u64]) -> Vec<u64> {
    roots.iter().map(|&w| modulus.inverse(w)).collect()
}

/// The number of groups after the leading single layers of a transform of n, and the numbers of groups at which its
/// passes of three layers begin.
pub(super) fn passes(n: usize) -> (usize, impl DoubleEndedIterator<Item = usize>) {
    let layers = (n / BLOCK).trailing_zeros();
    let single = layers % 3;
    (1 << single, (0..layers / 3).map(move |pass| 1 << (single + 3 * pass)))
}

/// The number of groups of the first layer that must compute, in a transform of n of which only the first `given`
/// coefficients may differ from zero. A layer maps (u, 0) to (u, u), so layers only copy while the second half of a
/// group is zero.
pub(super) fn first_layer(n: usize, given: usize) -> usize {
    let (single, passes) = passes(n);
    let starts = (0..single.trailing_zeros()).map(|log| 1 << log).chain(passes).chain([n / BLOCK]);
    starts.filter(|m| n / m >= given).max().unwrap_or(1)
}
