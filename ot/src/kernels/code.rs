//! The public code of silent OT: every output is a sum of a few entries of a table.

use aes::Aes128Enc;
use aes::cipher::{Array, BlockCipherEncrypt};

use crate::Block;

/// Number of entries of the table, which is the dimension k of the code. An index has 16 bits.
pub(crate) const TABLE: usize = 1 << 16;

/// Every output is the sum of this many entries of the table, drawn with repetition: the code is local and random
/// (Yang, Weng, Lan, Zhang and Wang, <https://eprint.iacr.org/2020/924>, section 5.1).
pub(crate) const CODE_WEIGHT: usize = 10;

/// Number of outputs whose indices are drawn at once. Their indices fill whole blocks.
const GROUP: usize = 8;

/// Adds to `out[i]` its [`CODE_WEIGHT`] entries of `table`. The stream of `prg` at `place` holds the indices, which
/// are public.
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
    use crate::kernels::{self, Permutation};
    use rand::{Rng, SeedableRng, rngs::StdRng};

    #[test]
    fn kernels_agree_and_indices_are_spread() {
        let mut rng = StdRng::seed_from_u64(12);
        let key = Block([rng.next_u64(), rng.next_u64()]);
        let prg = Permutation::new(None, key);
        let random = |rng: &mut StdRng| Block([rng.next_u64(), rng.next_u64()]);
        let table: Vec<Block> = (0..TABLE).map(|_| random(&mut rng)).collect();
        let table: &[Block; TABLE] = table[..].try_into().unwrap();
        let before: Vec<Block> = (0..1 << 9).map(|_| random(&mut rng)).collect();
        let mut portable = before.clone();
        prg.add_code_words(0x1234_5678_9abc, table, &mut portable);
        for simd in kernels::all().flatten() {
            let mut fast = before.clone();
            Permutation::new(Some(simd), key).add_code_words(0x1234_5678_9abc, table, &mut fast);
            assert!(fast == portable, "{simd:?}");
        }
        // Each table marks a sixteenth of its entries. A sum of ten entries is odd with probability 0.3685.
        let hits: Vec<u32> = (0..16)
            .map(|bucket| {
                let ones: Vec<Block> = (0..TABLE).map(|i| Block([u64::from(i >> 12 == bucket), 0])).collect();
                let odd = |place| {
                    let mut out = vec![Block::ZERO; 1 << 9];
                    prg.add_code_words(place, ones[..].try_into().unwrap(), &mut out);
                    out.iter().map(|b| b.lsb() as u32).sum::<u32>()
                };
                (0..8).map(odd).sum()
            })
            .collect();
        // 4096 draws each: six standard deviations are 185.
        assert!(hits.iter().all(|&h| h.abs_diff(1509) < 185), "{hits:?}");
    }
}
