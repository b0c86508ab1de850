//! The hash of tree nodes, `H(x) = pi(sigma(x)) ^ sigma(x)` with `sigma(a || b) = (a ^ b) || a` and `pi` = AES-128 under a
//! public key: circular correlation robust for distinct inputs (Guo, Katz, Wang and Yu, <https://eprint.iacr.org/2019/074>,
//! section 7.3), with the bound that [`crate::hash`] proves.

use aes::Aes128Enc;
use aes::cipher::{Array, KeyInit};

use crate::hash::{davies_meyer, sigma};
use crate::simd::{Cpu, Key};
use crate::{Block, Kernels};

/// `H` under one public key.
pub(crate) struct TreeHash {
    key: Block,
    pi: Permutation,
}

enum Permutation {
    Portable(Aes128Enc),
    Simd(Cpu, Key),
}

impl TreeHash {
    /// `H` under `key`.
    pub(crate) fn new(key: Block) -> Self {
        TreeHash::by(Kernels::Detected.cpu(), key)
    }

    /// `H` under `key` on given kernels.
    pub(crate) fn by(cpu: Option<Cpu>, key: Block) -> Self {
        let pi = match cpu {
            Some(cpu) => Permutation::Simd(cpu, Key::new(cpu, key)),
            None => Permutation::Portable(Aes128Enc::new(&Array::from(key.to_bytes()))),
        };
        TreeHash { key, pi }
    }

    /// The key.
    pub(crate) fn key(&self) -> Block {
        self.key
    }

    /// The processor's permission to run kernels, if it has what they need.
    pub(crate) fn cpu(&self) -> Option<Cpu> {
        match &self.pi {
            Permutation::Portable(_) => None,
            Permutation::Simd(cpu, _) => Some(*cpu),
        }
    }

    /// `out[i] = H(nodes[i])`, for as many nodes.
    pub(crate) fn hash(&self, nodes: &[Block], out: &mut [Block]) {
        debug_assert_eq!(nodes.len(), out.len());
        match &self.pi {
            Permutation::Portable(pi) => {
                out.iter_mut().zip(nodes).for_each(|(out, node)| *out = sigma(*node));
                davies_meyer(pi, out);
            }
            Permutation::Simd(cpu, pi) => cpu.tree_hash(pi, nodes, out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aes::cipher::BlockCipherEncrypt;

    #[test]
    fn all_codes_give_the_definition() {
        for key in [0u128, u128::MAX, 0x0123_4567_89ab_cdef_0f1e_2d3c_4b5a_6978] {
            let mix = |i: usize| (i as u128 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
            let nodes: Vec<Block> = (0..257).map(|i| Block::from(mix(i) ^ key)).collect();
            let pi = Aes128Enc::new(&Array::from(key.to_le_bytes()));
            for cpu in crate::simd::all() {
                let hash = TreeHash::by(cpu, Block::from(key));
                for n in [0usize, 1, 2, 3, 4, 7, 8, 9, 31, 32, 33, 64, 257] {
                    let mut got = vec![Block::ZERO; n];
                    hash.hash(&nodes[..n], &mut got);
                    for (node, got) in nodes.iter().zip(got) {
                        let s = sigma(*node);
                        let mut y = Array::from(s.to_bytes());
                        pi.encrypt_block(&mut y);
                        assert!(got == s ^ Block::from_bytes(y.into()), "{n} blocks, {cpu:?}");
                    }
                }
            }
        }
    }
}
