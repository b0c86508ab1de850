//! Distributed point functions over small domains, with keys made by the two parties themselves.
//!
//! **Functionality.** The parties hold bits of a random index R as XOR shares, and shares of a vector beta of words.
//! Each party gets a key, from which it computes its share of the vector that is beta at leaf R and 0 at all other
//! leaves: v_server + v_client modulo 2^width, word by word ([`Expander`]).
//!
//! **Source.** Two-party generation by expanding the whole tree (Doerner and shelat, CCS 2017), over the correlated
//! tree of Guo et al. (Half-Tree, eprint 2022/1431, sections 4 and 5): the nodes of the two parties agree off the
//! path to R and differ by Delta = Delta_server ^ Delta_client on it, and a child is `H(node)` or `H(node) ^ node`. A
//! level's correction is then the sum of H over the nodes of both parties plus alpha Delta, where alpha is the
//! level's bit of R. The parties need shares of alpha Delta, and random correlated OTs with random choices
//! alpha_server and alpha_client *are* such shares: a level costs one block each way and one OT in each direction,
//! whose Delta is the pool's. Delta needs lowest bit 1, to tell the parties' control bits apart, so the lowest bit is
//! dropped in the direction where the server sends OTs.
//!
//! *Departure.* The first [`TOP`] levels are not grown. Let the parties hold XOR shares of the unit vector e of those
//! bits of R ([`crate::index`]). Correlated OTs with its entries as choices are shares of e_i Delta, and those are
//! nodes. So a node costs an OT in each direction, instead of a block each way for a level: 10 bytes for three levels
//! instead of 64 (silent OT). The proof asks of a node only that the parties' blocks agree off the path and differ by
//! Delta on it.
//!
//! **Groups.** [`GROUP`] trees grow side by side, so that every step is a loop over rows of blocks, and share a
//! public key of the cipher.
//!
//! **The final correction** is sign (beta - sum of the server's leaves + sum of the client's), where sign = 1 - 2 t
//! and t is the client's control bit at R. The parties' control bits differ only at R, so each party's number of set
//! control bits, modulo 4, gives it an XOR share of t. The product is the caller's ([`Generation::leaves`]).
//!
//! **Bits.** A leaf may have further blocks, of bits that are shared by exclusive-or ([`DpfShape::with_bits`]). The
//! pad of each is the hash of the leaf's node under a tweak of its own, and its correction is the sum of both
//! parties' pads and of the bits at R. There is no sign.
//!
//! **What each party sees.** It sees the corrections and the other party's shares of them, which follow from the
//! correction and its own share. A correction is a sum of H of the other party's nodes, which look random without
//! that party's Delta: circular correlation robustness of `H(x) = pi(sigma(x)) ^ sigma(x)` (Guo et al., eprint
//! 2019/074; bound in `hash.rs`), with pi = AES-128 under a public key that changes every [`GROUP`] keys. The hash of
//! a node under a tweak is used once. Blocks of the OTs themselves leave a party only inside such sums, so their
//! pads, under other keys of the cipher, stay as good as before. This holds whatever the pads mask, including the
//! vectors of the same indices.
//!
//! **A key contains the party's Delta**: the nodes that it begins with add up to it. Whoever reads one key can
//! compute all that the party's OT sender hides. So keys must be kept as secret as pools.

mod deal;
mod expand;
mod generate;
mod shape;

pub use crate::kernels::Lane;
pub use deal::{DEALT_GROUP, DealtKeys};
pub use expand::{BitSum, Expander};
pub use generate::{Generation, Room};
pub use shape::{BLOCK_BITS, DpfShape, GROUP, MOST_BIT_BLOCKS, TOP, level_bytes};

use crate::Block;

/// The term that selects the pad of block `block` of a leaf's bits: the pad is the hash of the leaf's node plus this
/// term. The term is the preimage under sigma of a tweak other than 0, see [`crate::hash`].
pub(crate) fn tweak(block: usize) -> Block {
    Block([0, 1 + block as u64])
}

/// The node that two words of a party's key hold, the lower word first.
fn block(words: &[u64]) -> Block {
    Block([words[0], words[1]])
}
