//! AES-128 under one key or many, by kernels or by portable code.

use aes::Aes128Enc;
use zeroize::{Zeroize, Zeroizing};

use super::code::TABLE;
use super::leaves::{LeafRows, Words};
use super::transpose::BATCH;
use super::{Key, Shape, Simd, planes, portable};
use crate::Block;
use crate::ggm::half;

/// AES-128 under one key: the permutation `pi` of the hashes, or a PRG.
pub(crate) enum Permutation {
    /// By the crate `aes`.
    Portable(Aes128Enc),
    /// By kernels.
    Simd(Simd, Key),
}

/// Methods that call a kernel, or its portable reference.
macro_rules! forward {
    ($($(#[$doc:meta])* $name:ident(pi: &Key $(, $arg:ident: $ty:ty)*) $(-> $out:ty)?;)*) => {$(
        $(#[$doc])*
        pub(crate) fn $name(&self $(, $arg: $ty)*) $(-> $out)? {
            match self {
                Permutation::Portable(pi) => portable::$name(pi $(, $arg)*),
                Permutation::Simd(simd, pi) => simd.$name(pi $(, $arg)*),
            }
        }
    )*};
}

impl Permutation {
    /// AES under `key`, on the kernels that `simd` permits or by portable code.
    pub(crate) fn new(simd: Option<Simd>, key: Block) -> Self {
        match simd {
            Some(simd) => Permutation::Simd(simd, simd.expand_key(key)),
            None => Permutation::Portable(portable::cipher(key)),
        }
    }

    /// The permission to run kernels, if this permutation has one.
    #[cfg(test)]
    pub(crate) fn simd(&self) -> Option<Simd> {
        match self {
            Permutation::Portable(_) => None,
            Permutation::Simd(simd, _) => Some(*simd),
        }
    }

    /// Wipes a secret key now; the cipher of the crate `aes` wipes its own when dropped.
    pub(crate) fn wipe(&mut self) {
        if let Permutation::Simd(_, key) = self {
            key.zeroize();
        }
    }

    keyed_kernels!(forward);

    /// The right child of a node of a point function if `right`, otherwise the left child.
    pub(crate) fn child(&self, node: Block, correction: Block, right: bool) -> Block {
        let mut hash = [Block::ZERO];
        self.tree_hash(&[node], &mut hash);
        half::children(node, hash[0] ^ correction.times(node.lsb()))[usize::from(right)]
    }
}

/// The PRGs of the leaves of SoftSpoken OT: AES in counter mode under each leaf.
pub(crate) enum Prgs {
    /// By the crate `aes`.
    Portable(Vec<Aes128Enc>),
    /// By kernels.
    Simd(Simd, Zeroizing<Vec<Key>>),
}

impl Prgs {
    /// One PRG per seed.
    pub(crate) fn new(simd: Option<Simd>, seeds: &[Block]) -> Self {
        match simd {
            Some(simd) => Prgs::Simd(simd, Zeroizing::new(seeds.iter().map(|&seed| simd.expand_key(seed)).collect())),
            None => Prgs::Portable(seeds.iter().map(|&seed| portable::cipher(seed)).collect()),
        }
    }

    /// Writes the receiver's planes of one batch to `rows` and its message to `message`. The PRGs begin at the
    /// counter `first`.
    pub(crate) fn receive_batch(&self, shape: &Shape, first: u64, rows: &mut [Block; BATCH], message: &mut [u8]) {
        match self {
            Prgs::Portable(prgs) => {
                let expand = |leaf: usize, out: &mut _| portable::counters(&prgs[leaf], first, out);
                planes::receive_batch(shape, expand, rows, message);
            }
            Prgs::Simd(simd, keys) => simd.receive_batch(shape, keys, first, rows, message),
        }
    }

    /// Writes the sender's planes of one batch to `rows`, from the receiver's `message`.
    pub(crate) fn send_batch(
        &self,
        shape: &Shape,
        first: u64,
        delta: Block,
        rows: &mut [Block; BATCH],
        message: &[u8],
    ) {
        match self {
            Prgs::Portable(prgs) => {
                let expand = |leaf: usize, out: &mut _| portable::counters(&prgs[leaf], first, out);
                planes::send_batch(shape, expand, delta, rows, message);
            }
            Prgs::Simd(simd, keys) => simd.send_batch(shape, keys, first, delta, rows, message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels;
    use aes::cipher::{Array, BlockCipherEncrypt, KeyInit};

    #[test]
    fn tree_hashes_equal_the_definition() {
        for key in [0u128, u128::MAX, 0x0123_4567_89ab_cdef_0f1e_2d3c_4b5a_6978] {
            let mix = |i: usize| (i as u128 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
            let nodes: Vec<Block> = (0..257).map(|i| Block::from(mix(i) ^ key)).collect();
            let pi = Aes128Enc::new(&Array::from(key.to_le_bytes()));
            for simd in kernels::all() {
                let hash = Permutation::new(simd, Block::from(key));
                for n in [0usize, 1, 2, 3, 4, 7, 8, 9, 31, 32, 33, 64, 257] {
                    let mut got = vec![Block::ZERO; n];
                    hash.tree_hash(&nodes[..n], &mut got);
                    for (node, got) in nodes.iter().zip(got) {
                        let s = portable::sigma(*node);
                        let mut y = Array::from(s.to_bytes());
                        pi.encrypt_block(&mut y);
                        assert!(got == s ^ Block::from_bytes(y.into()), "{n} blocks, {simd:?}");
                    }
                }
            }
        }
    }
}
