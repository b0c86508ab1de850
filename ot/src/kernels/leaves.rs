//! The loops of point functions: the nodes of the next level, and the words of corrected leaves.

use crate::Block;
use crate::ggm::half;

/// The nodes of the next level from those of a level and their hashes: two children side by side for every node. The
/// correction is added where a node's lowest bit, its control bit, is set.
#[inline(always)]
pub(crate) fn children(nodes: &[Block], hashes: &[Block], correction: Block, out: &mut [Block]) {
    for ((out, node), hash) in out.as_chunks_mut::<2>().0.iter_mut().zip(nodes).zip(hashes) {
        *out = half::children(*node, *hash ^ correction.times(node.lsb()));
    }
}

/// A machine word that holds a word of a leaf: `u64` for leaves of two, `u32` for leaves of four.
pub trait Lane: Copy + Default + Send + Sync + 'static {
    /// Words of a leaf.
    const WORDS: usize;

    /// (pads + corrections where the node's control bit is set) XOR sign, minus sign.
    #[doc(hidden)]
    fn correct(pads: &[Block], nodes: &[Block], correction: Block, sign: u64, out: &mut [Self]);
}

impl Lane for u64 {
    const WORDS: usize = 2;

    #[inline(always)]
    fn correct(pads: &[Block], nodes: &[Block], correction: Block, sign: u64, out: &mut [u64]) {
        for ((out, pad), node) in out.as_chunks_mut::<2>().0.iter_mut().zip(pads).zip(nodes) {
            let add = correction.times(node.lsb());
            *out = std::array::from_fn(|i| (pad.0[i].wrapping_add(add.0[i]) ^ sign).wrapping_sub(sign));
        }
    }
}

impl Lane for u32 {
    const WORDS: usize = 4;

    #[inline(always)]
    fn correct(pads: &[Block], nodes: &[Block], correction: Block, sign: u64, out: &mut [u32]) {
        let lanes = |block: Block| -> [u32; 4] {
            let bytes = block.to_bytes();
            let lanes = bytes.as_chunks::<4>().0;
            std::array::from_fn(|i| u32::from_le_bytes(lanes[i]))
        };
        let sign = sign as u32;
        for ((out, pad), node) in out.as_chunks_mut::<4>().0.iter_mut().zip(pads).zip(nodes) {
            let (pad, add) = (lanes(*pad), lanes(correction.times(node.lsb())));
            *out = std::array::from_fn(|i| (pad[i].wrapping_add(add[i]) ^ sign).wrapping_sub(sign));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Simd;

    #[test]
    fn kernels_give_the_bytes_of_the_portable_code() {
        let mix = |i: usize| Block::from((i as u128 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835));
        for n in [1usize, 2, 3, 4, 7, 8, 33, 64] {
            let (nodes, hashes): (Vec<_>, Vec<_>) = (0..n).map(|i| (mix(i), mix(1000 + i))).unzip();
            for simd in Simd::all() {
                let (mut got, mut want) = (vec![Block::ZERO; 2 * n], vec![Block::ZERO; 2 * n]);
                simd.children(&nodes, &hashes, mix(77), &mut got);
                children(&nodes, &hashes, mix(77), &mut want);
                assert!(got == want, "children of {n} nodes, {simd:?}");
                for sign in [0, u64::MAX] {
                    let (mut got, mut want) = (vec![0u32; 4 * n], vec![0u32; 4 * n]);
                    simd.correct(&hashes, &nodes, mix(78), sign, &mut got);
                    u32::correct(&hashes, &nodes, mix(78), sign, &mut want);
                    assert_eq!(got, want, "{n} leaves of four words, {simd:?}");
                    let (mut got, mut want) = (vec![0u64; 2 * n], vec![0u64; 2 * n]);
                    simd.correct(&hashes, &nodes, mix(78), sign, &mut got);
                    u64::correct(&hashes, &nodes, mix(78), sign, &mut want);
                    assert_eq!(got, want, "{n} leaves of two words, {simd:?}");
                }
            }
        }
    }
}
