//! The hash of tree nodes, `H(x) = pi(sigma(x)) ^ sigma(x)` with `sigma(a || b) = (a ^ b) || a` and `pi` = AES-128 under a
//! public key: circular correlation robust for distinct inputs (Guo, Katz, Wang and Yu, <https://eprint.iacr.org/2019/074>,
//! section 7.3).

use aes::Aes128Enc;
use aes::cipher::{Array, BlockCipherEncrypt, KeyInit};

use crate::Block;
use crate::hash::sigma;

/// `H` under one public key.
#[derive(Clone)]
pub(crate) struct TreeHash {
    key: Block,
    cipher: Aes128Enc,
    #[cfg(target_arch = "x86_64")]
    round_keys: Option<aes_ni::RoundKeys>,
}

impl TreeHash {
    /// `H` under `key`.
    pub(crate) fn new(key: Block) -> Self {
        TreeHash {
            key,
            cipher: Aes128Enc::new(&Array::from(key.to_bytes())),
            #[cfg(target_arch = "x86_64")]
            round_keys: aes_ni::RoundKeys::new(key),
        }
    }

    /// The key.
    pub(crate) fn key(&self) -> Block {
        self.key
    }

    /// `out[i] = H(nodes[i])`, for as many nodes.
    pub(crate) fn hash(&self, nodes: &[Block], out: &mut [Block]) {
        debug_assert_eq!(nodes.len(), out.len());
        #[cfg(target_arch = "x86_64")]
        if let Some(keys) = &self.round_keys {
            return keys.hash(nodes, out);
        }
        self.portable(nodes, out);
    }

    fn portable(&self, nodes: &[Block], out: &mut [Block]) {
        for (out, node) in out.iter_mut().zip(nodes) {
            let s = sigma(*node);
            let mut y = Array::from(s.to_bytes());
            self.cipher.encrypt_block(&mut y);
            *out = s ^ Block::from_bytes(y.into());
        }
    }
}

/// The same with the processor's AES, eight blocks in flight and nothing in memory between the steps: less than half the
/// time of the cipher crate's calls.
#[cfg(target_arch = "x86_64")]
mod aes_ni {
    use std::arch::x86_64::{
        __m128i, _mm_aesenc_si128, _mm_aesenclast_si128, _mm_aeskeygenassist_si128, _mm_and_si128, _mm_set_epi64x,
        _mm_shuffle_epi32, _mm_slli_si128, _mm_storeu_si128, _mm_xor_si128,
    };

    use crate::Block;

    /// Blocks in flight.
    const LANES: usize = 8;

    /// The key schedule of AES-128; exists only where the processor has the instructions.
    #[derive(Clone)]
    pub(super) struct RoundKeys([__m128i; 11]);

    impl RoundKeys {
        pub(super) fn new(key: Block) -> Option<Self> {
            (is_x86_feature_detected!("aes") && is_x86_feature_detected!("avx"))
                // SAFETY: the features were detected just now.
                .then(|| RoundKeys(unsafe { schedule(key) }))
        }

        pub(super) fn hash(&self, nodes: &[Block], out: &mut [Block]) {
            // SAFETY: this value exists, so `new` has detected the features.
            unsafe { hash(&self.0, nodes, out) }
        }
    }

    #[target_feature(enable = "aes,avx")]
    fn load(block: Block) -> __m128i {
        _mm_set_epi64x(block.0[1] as i64, block.0[0] as i64)
    }

    #[target_feature(enable = "aes,avx")]
    fn store(x: __m128i, block: &mut Block) {
        // SAFETY: a block is 16 bytes long.
        unsafe { _mm_storeu_si128(std::ptr::from_mut(block).cast(), x) }
    }

    /// FIPS 197, section 5.2.
    #[target_feature(enable = "aes,avx")]
    fn schedule(key: Block) -> [__m128i; 11] {
        #[target_feature(enable = "aes,avx")]
        fn next<const RCON: i32>(key: __m128i) -> __m128i {
            let word = _mm_shuffle_epi32::<0xff>(_mm_aeskeygenassist_si128::<RCON>(key));
            let key = _mm_xor_si128(key, _mm_slli_si128::<4>(key));
            let key = _mm_xor_si128(key, _mm_slli_si128::<8>(key));
            _mm_xor_si128(key, word)
        }
        let mut keys = [load(key); 11];
        keys[1] = next::<0x01>(keys[0]);
        keys[2] = next::<0x02>(keys[1]);
        keys[3] = next::<0x04>(keys[2]);
        keys[4] = next::<0x08>(keys[3]);
        keys[5] = next::<0x10>(keys[4]);
        keys[6] = next::<0x20>(keys[5]);
        keys[7] = next::<0x40>(keys[6]);
        keys[8] = next::<0x80>(keys[7]);
        keys[9] = next::<0x1b>(keys[8]);
        keys[10] = next::<0x36>(keys[9]);
        keys
    }

    #[target_feature(enable = "aes,avx")]
    fn hash(keys: &[__m128i; 11], nodes: &[Block], out: &mut [Block]) {
        let (chunks, rest) = nodes.as_chunks::<LANES>();
        let (out_chunks, out_rest) = out.as_chunks_mut::<LANES>();
        for (nodes, out) in chunks.iter().zip(out_chunks) {
            eight(keys, nodes, out);
        }
        if !rest.is_empty() {
            let (mut nodes, mut hashed) = ([Block::ZERO; LANES], [Block::ZERO; LANES]);
            nodes[..rest.len()].copy_from_slice(rest);
            eight(keys, &nodes, &mut hashed);
            out_rest.copy_from_slice(&hashed[..rest.len()]);
        }
    }

    #[inline]
    #[target_feature(enable = "aes,avx")]
    fn eight(keys: &[__m128i; 11], nodes: &[Block; LANES], out: &mut [Block; LANES]) {
        let high = _mm_set_epi64x(-1, 0);
        let mut sigma = [high; LANES];
        for (s, node) in sigma.iter_mut().zip(nodes) {
            let x = load(*node);
            *s = _mm_xor_si128(_mm_shuffle_epi32::<0x4e>(x), _mm_and_si128(x, high));
        }
        let mut y = sigma;
        for y in &mut y {
            *y = _mm_xor_si128(*y, keys[0]);
        }
        for key in &keys[1..10] {
            for y in &mut y {
                *y = _mm_aesenc_si128(*y, *key);
            }
        }
        for ((y, s), out) in y.into_iter().zip(sigma).zip(out) {
            store(_mm_xor_si128(_mm_aesenclast_si128(y, keys[10]), s), out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_gives_the_bytes_of_the_cipher_crate() {
        for key in [0u128, u128::MAX, 0x0123_4567_89ab_cdef_0f1e_2d3c_4b5a_6978] {
            let hash = TreeHash::new(Block::from(key));
            for n in [0usize, 1, 7, 8, 9, 64, 257] {
                let mix = |i: usize| (i as u128 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
                let nodes: Vec<Block> = (0..n).map(|i| Block::from(mix(i) ^ key)).collect();
                let (mut got, mut want) = (vec![Block::ZERO; n], vec![Block::ZERO; n]);
                hash.hash(&nodes, &mut got);
                hash.portable(&nodes, &mut want);
                assert!(got == want, "{n} blocks");
            }
        }
    }
}
