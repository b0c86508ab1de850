//! The field GF(2^128) of the checks: polynomials modulo `X^128 + X^7 + X^2 + X + 1`. Bit i of a block is the
//! coefficient of `X^i`.

use crate::Block;

/// `low + cross X^64 + high X^128`, reduced.
#[inline(always)]
pub(super) fn reduce([low, cross, high]: [Block; 3]) -> Block {
    // X^128 = X^7 + X^2 + X + 1 moves a word two words down, and its highest bits one word down.
    let down = |x: u64| [x ^ x << 1 ^ x << 2 ^ x << 7, x >> 63 ^ x >> 62 ^ x >> 57];
    let [third, over] = down(high.0[1]);
    let [second, carried] = down(high.0[0] ^ cross.0[1] ^ over);
    Block([low.0[0] ^ second, low.0[1] ^ cross.0[0] ^ third ^ carried])
}

/// `x X`.
#[inline(always)]
fn shifted(x: Block) -> Block {
    Block([x.0[0] << 1 ^ (x.0[1] >> 63).wrapping_neg() & 0x87, x.0[1] << 1 | x.0[0] >> 63])
}

/// For every byte, its bits, each in a byte of its own.
static SPREAD: [u64; 256] = {
    let mut spread = [0; 256];
    let mut i = 0;
    while i < 256 * 8 {
        spread[i / 8] |= ((i as u64 / 8) >> (i % 8) & 1) << (8 * (i % 8));
        i += 1;
    }
    spread
};

/// Number of blocks whose products are summed together.
const GROUP: usize = 4;

/// `sums[c] ^= sum_i coefficients[i] data[c n + i]` for n coefficients.
///
/// The coefficients are public, so they may be addresses. All sixteen sums of every four blocks are made, and each
/// power of X takes the sum that its bits of the four coefficients select.
pub(super) fn combine(coefficients: &[Block], data: &[Block], sums: &mut [Block]) {
    let names = |group: &[Block]| {
        let mut names = [0_u8; 128];
        for (k, names) in names.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let spread = |x: &Block| SPREAD[usize::from((x.0[k / 8] >> (8 * (k % 8))) as u8)];
            *names = group.iter().enumerate().fold(0, |all, (i, x)| all | spread(x) << i).to_le_bytes();
        }
        names
    };
    let names: Vec<_> = coefficients.chunks(GROUP).map(names).collect();
    for (data, sum) in data.chunks_exact(coefficients.len()).zip(sums) {
        let mut powers = [Block::ZERO; 128];
        for (group, names) in data.chunks(GROUP).zip(&names) {
            let mut all = [Block::ZERO; 1 << GROUP];
            for (i, x) in group.iter().enumerate() {
                (0..1 << i).for_each(|others| all[1 << i | others] = all[others] ^ *x);
            }
            powers.iter_mut().zip(names).for_each(|(power, name)| *power ^= all[usize::from(*name)]);
        }
        *sum ^= powers.iter().rev().fold(Block::ZERO, |sum, power| shifted(sum) ^ *power);
    }
}

/// The sum of `coefficients[i] data[i]`, and the sum of the coefficients whose data are odd.
pub(super) fn combine_odd(coefficients: &[Block], data: &[Block]) -> [Block; 2] {
    let mut sum = [Block::ZERO];
    combine(coefficients, data, &mut sum);
    let odd = coefficients.iter().zip(data).fold(Block::ZERO, |odd, (c, x)| odd ^ c.times(x.lsb()));
    [sum[0], odd]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    /// The definition, bit by bit.
    fn naive(a: Block, b: Block) -> Block {
        let (a, b) = (u128::from(a), u128::from(b));
        let (_, product) = (0..128).fold((a, 0), |(shifted, product), i| {
            (
                shifted << 1 ^ if shifted >> 127 == 1 { 0x87 } else { 0 },
                product ^ if b >> i & 1 == 1 { shifted } else { 0 },
            )
        });
        product.into()
    }

    #[test]
    fn products_are_those_of_a_field() {
        let mut rng = StdRng::seed_from_u64(21);
        let mut block = || Block([rng.next_u64(), rng.next_u64()]);
        let edges = [Block::ZERO, Block([1, 0]), Block([0, 1 << 63]), Block([u64::MAX; 2])];
        let (a, b, c) = (block(), block(), block());
        // X^128 is X^7 + X^2 + X + 1; products commute and distribute.
        assert!(naive(Block([2, 0]), Block([0, 1 << 63])) == Block([0x87, 0]));
        assert!(naive(a, b) == naive(b, a) && naive(a, naive(b, c)) == naive(naive(a, b), c));
        assert!(naive(a, b ^ c) == naive(a, b) ^ naive(a, c));
        for simd in kernels::all() {
            for x in edges.into_iter().chain([a, b]) {
                for y in edges.into_iter().chain([b, c]) {
                    let mut product = [Block::ZERO];
                    kernels::combine(simd, &[x], &[y], &mut product);
                    assert!(product[0] == naive(x, y), "{simd:?}");
                }
            }
            for (n, count) in [(1, 3), (2, 2), (3, 5), (7, 1), (16, 128), (64, 1), (127, 2), (512, 2)] {
                let coefficients: Vec<Block> = (0..n).map(|_| block()).collect();
                let data: Vec<Block> = (0..n * count).map(|_| block()).collect();
                let before: Vec<Block> = (0..count).map(|_| block()).collect();
                let mut sums = before.clone();
                kernels::combine(simd, &coefficients, &data, &mut sums);
                for (c, data) in data.chunks(n).enumerate() {
                    let odd = coefficients.iter().zip(data).fold(Block::ZERO, |odd, (c, x)| odd ^ c.times(x.lsb()));
                    assert!(kernels::combine_odd(simd, &coefficients, data) == [sums[c] ^ before[c], odd]);
                    let terms = data.iter().zip(&coefficients).map(|(x, y)| naive(*x, *y));
                    assert!(sums[c] == terms.fold(before[c], |sum, term| sum ^ term), "{n} blocks, {simd:?}");
                }
            }
        }
    }
}
