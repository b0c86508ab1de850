//! The portable references of the kernels of AES, on the crate `aes`.

use aes::Aes128Enc;
use aes::cipher::{Array, BlockCipherEncrypt, KeyInit};

pub(super) use super::code::add_code_words;
use super::leaves::{self, LeafRows, Words};
use super::transpose::TILES;
use crate::Block;
use crate::ggm::half;

/// Number of blocks per call of the cipher. It is a multiple of the eight that AES-NI keeps in flight.
const BATCH: usize = 16;

/// The cipher under `key`.
pub(super) fn cipher(key: Block) -> Aes128Enc {
    Aes128Enc::new(&Array::from(key.to_bytes()))
}

/// AES of one block.
#[inline]
pub(super) fn encrypt(pi: &Aes128Enc, block: Block) -> Block {
    let mut block = Array::from(block.to_bytes());
    pi.encrypt_block(&mut block);
    Block::from_bytes(block.into())
}

/// The linear orthomorphism of the hash.
#[inline]
pub(crate) fn sigma(x: Block) -> Block {
    Block([x.0[1], x.0[0] ^ x.0[1]])
}

/// `x = pi(x) ^ x` for every block.
#[inline]
pub(super) fn davies_meyer(pi: &Aes128Enc, blocks: &mut [Block]) {
    let (chunks, rest) = blocks.as_chunks_mut::<BATCH>();
    for chunk in chunks {
        let mut y = chunk.map(|x| Array::from(x.to_bytes()));
        pi.encrypt_blocks(&mut y);
        for (x, y) in chunk.iter_mut().zip(y) {
            *x ^= Block::from_bytes(y.into());
        }
    }
    let mut y = [aes::Block::default(); BATCH];
    let y = &mut y[..rest.len()];
    for (y, x) in y.iter_mut().zip(rest.iter()) {
        *y = Array::from(x.to_bytes());
    }
    pi.encrypt_blocks(y);
    for (x, y) in rest.iter_mut().zip(y) {
        *x ^= Block::from_bytes((*y).into());
    }
}

/// `out[i] = H(blocks[i] ^ offset, (first + i, 0))` of [`crate::hash`].
#[inline]
pub(super) fn hash(pi: &Aes128Enc, first: u64, offset: Block, blocks: &[Block], out: &mut [Block]) {
    for ((index, &x), out) in (first..).zip(blocks).zip(out.iter_mut()) {
        *out = sigma(x ^ offset) ^ Block([0, index]);
    }
    davies_meyer(pi, out);
}

/// `out[i] = H(nodes[i])` of [`crate::ggm::half`].
#[inline]
pub(super) fn tree_hash(pi: &Aes128Enc, nodes: &[Block], out: &mut [Block]) {
    debug_assert_eq!(nodes.len(), out.len());
    out.iter_mut().zip(nodes).for_each(|(out, node)| *out = sigma(*node));
    davies_meyer(pi, out);
}

/// One level of [`half::grow`].
#[inline]
pub(super) fn double(pi: &Aes128Enc, mask: Block, nodes: &mut [Block]) -> Block {
    let (lefts, rights) = nodes.split_at_mut(nodes.len() / 2);
    for (left, right) in lefts.iter_mut().zip(rights.iter_mut()) {
        (*left, *right) = (sigma(*left), *left);
    }
    davies_meyer(pi, lefts);
    let mut sum = Block::ZERO;
    for (left, right) in lefts.iter_mut().zip(rights) {
        [*left, *right] = half::children(*right, *left).map(|child| child & mask);
        sum ^= *left;
    }
    sum
}

/// [`half::grow`].
#[inline]
pub(super) fn grow(pi: &Aes128Enc, root: Block, delta: Block, sums: &mut [Block], nodes: &mut [Block]) {
    half::grow(root, delta, sums, nodes, |mask, nodes| double(pi, mask, nodes));
}

/// [`half::regrow`].
#[inline]
pub(super) fn regrow(pi: &Aes128Enc, away: u64, sums: &[Block], nodes: &mut [Block]) {
    let double = |mask, nodes: &mut [Block]| double(pi, mask, nodes);
    half::regrow(encrypt(pi, Block::ZERO), away, sums, nodes, double, half::add_at);
}

/// [`leaves::expand`].
#[inline]
pub(super) fn expand(
    pi: &Aes128Enc,
    nodes: [&mut [Block]; 2],
    size: usize,
    corrections: &[u64],
    last: Block,
    out: Words<'_>,
) {
    leaves::expand(nodes, size, corrections, last, out, |x, out| tree_hash(pi, x, out));
}

/// [`leaves::grow_rows`].
#[inline]
pub(super) fn grow_rows(pi: &Aes128Enc, nodes: &mut [Block], size: usize, corrections: &[Block], sums: &mut [Block]) {
    leaves::grow_rows(nodes, size, corrections, sums, |x, out| tree_hash(pi, x, out));
}

/// [`leaves::leaf_rows`].
#[inline]
pub(super) fn leaf_rows(
    pi: &Aes128Enc,
    nodes: &[Block],
    corrections: &[Block],
    lanes: usize,
    sums: &mut LeafRows<'_>,
) {
    leaves::leaf_rows(nodes, corrections, lanes, sums, |x, out| tree_hash(pi, x, out));
}

/// [`leaves::bit_sums`].
#[inline]
pub(super) fn bit_sums(pi: &Aes128Enc, tweak: Block, correction: Block, nodes: &[Block], split: usize) -> [Block; 2] {
    leaves::bit_sums(tweak, correction, nodes, split, |x, out| tree_hash(pi, x, out))
}

/// The PRG of `pi` at the counters `first, first + 1, ..`.
#[inline]
pub(super) fn counters(pi: &Aes128Enc, first: u64, out: &mut [Block; TILES]) {
    let mut blocks = std::array::from_fn::<_, TILES, _>(|t| Array::from(u128::from(first + t as u64).to_le_bytes()));
    pi.encrypt_blocks(&mut blocks);
    *out = blocks.map(|block| Block::from_bytes(block.into()));
}
