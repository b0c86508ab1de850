//! GGM trees (Goldreich, Goldwasser and Micali): a few blocks at the root, pseudorandom blocks at the leaves.
//!
//! Three protocols grow them:
//!
//! | tree | children of a node x | what the other party has | user |
//! |---|---|---|---|
//! | [`full`] | two halves of a hash of x | all leaves but one | the set-up of SoftSpoken OT |
//! | [`half`] | `H(x)` and `H(x) ^ x` | all leaves, one of which differs by Delta | silent OT |
//! | [`half`], corrected | the same, with a correction added | a tree that agrees off one path | point functions |
//!
//! **Places.** [`levels`] grows a tree in place and appends a bit on top: the children of node x of level l are x and
//! `x + 2^l`. Point functions number their leaves the other way, highest bit first, and so put the children of x at
//! 2x and 2x + 1 of another buffer; they share [`half::children`].
//!
//! Nodes of level l + 1 number `2^(l+1)`; level 0 is the root.

pub(crate) mod full;
pub(crate) mod half;

use crate::Block;

/// Grows all levels but the first, whose two nodes come first in `nodes`; the length is the number of leaves.
/// `double(l, nodes)` replaces the `2^l` parents in the first half of `nodes` by their children: the left ones in the
/// first half, the right ones in the second.
#[inline(always)]
pub(crate) fn levels(nodes: &mut [Block], mut double: impl FnMut(usize, &mut [Block])) {
    debug_assert!(nodes.len().is_power_of_two() && nodes.len() >= 2);
    for l in 1..nodes.len().trailing_zeros() as usize {
        double(l, &mut nodes[..2 << l]);
    }
}
