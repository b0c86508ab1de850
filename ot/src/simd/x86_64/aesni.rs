//! The kernels for AES-NI: one block an instruction.

use std::arch::x86_64::*;

use super::{Key, add_at, add_code_word, expand, load, store};
use crate::silent::lpn::{CODE_WEIGHT, TABLE};
use crate::silent::tree;
use crate::transpose::{BATCH, TILES};
use crate::{Block, softspoken};

/// Encrypts N blocks, all in flight at once: a round takes 4 cycles and one can begin in each.
#[inline]
#[target_feature(enable = "aes,avx512f,avx512vl")]
fn encrypt<const N: usize>(key: &Key, mut x: [__m128i; N]) -> [__m128i; N] {
    // Round keys kept in registers over a loop would leave room for few blocks, and the compiler would encrypt them one
    // after the other; behind this address they are loaded once for all N.
    let key = std::hint::black_box(key);
    let k = load(&key.0[0]);
    for i in 0..N {
        x[i] = _mm_xor_si128(x[i], k);
    }
    for r in 1..10 {
        let k = load(&key.0[r]);
        for i in 0..N {
            x[i] = _mm_aesenc_si128(x[i], k);
        }
    }
    let k = load(&key.0[10]);
    for i in 0..N {
        x[i] = _mm_aesenclast_si128(x[i], k);
    }
    x
}

#[target_feature(enable = "aes,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn receive_batch(
    shape: &softspoken::Shape,
    keys: &[Key],
    first: u64,
    rows: &mut [Block; BATCH],
    message: &mut [u8],
) {
    softspoken::receive_batch(shape, |leaf, out| counters(&keys[leaf], first, out), rows, message);
}

#[target_feature(enable = "aes,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn send_batch(
    shape: &softspoken::Shape,
    keys: &[Key],
    first: u64,
    delta: Block,
    rows: &mut [Block; BATCH],
    message: &[u8],
) {
    softspoken::send_batch(shape, |leaf, out| counters(&keys[leaf], first, out), delta, rows, message);
}

/// The PRG `key` at the counters `first, first + 1, ..`.
#[inline]
#[target_feature(enable = "aes,avx512f,avx512vl")]
fn counters(key: &Key, first: u64, out: &mut [Block; TILES]) {
    // Sixteen blocks at once would not leave a register for the key.
    for (half, out) in (0..).zip(out.as_chunks_mut::<8>().0) {
        let mut x = [_mm_setzero_si128(); 8];
        for t in 0..8 {
            x[t] = _mm_set_epi64x(0, first.wrapping_add(8 * half + t as u64) as i64);
        }
        let x = encrypt(key, x);
        for t in 0..8 {
            store(&mut out[t], x[t]);
        }
    }
}

#[target_feature(enable = "aes,avx512f,avx512vl")]
pub(super) fn davies_meyer(pi: &Key, blocks: &mut [Block]) {
    let (chunks, rest) = blocks.as_chunks_mut::<8>();
    for chunk in chunks {
        davies_meyer_chunk(pi, chunk);
    }
    for block in rest {
        davies_meyer_chunk::<1>(pi, std::array::from_mut(block));
    }
}

#[inline]
#[target_feature(enable = "aes,avx512f,avx512vl")]
fn davies_meyer_chunk<const N: usize>(pi: &Key, blocks: &mut [Block; N]) {
    let mut x = [_mm_setzero_si128(); N];
    for i in 0..N {
        x[i] = load(&blocks[i]);
    }
    let y = encrypt(pi, x);
    for i in 0..N {
        store(&mut blocks[i], _mm_xor_si128(x[i], y[i]));
    }
}

#[target_feature(enable = "aes,avx512f,avx512vl")]
pub(super) fn hash(pi: &Key, first: u64, offset: Block, blocks: &[Block], out: &mut [Block]) {
    let ((chunks, rest), (out_chunks, out_rest)) = (blocks.as_chunks::<8>(), out.as_chunks_mut::<8>());
    let mut index = first;
    for (chunk, out) in chunks.iter().zip(out_chunks) {
        hash_chunk(pi, index, offset, chunk, out);
        index += 8;
    }
    for (block, out) in rest.iter().zip(out_rest) {
        hash_chunk::<1>(pi, index, offset, std::array::from_ref(block), std::array::from_mut(out));
        index += 1;
    }
}

#[inline]
#[target_feature(enable = "aes,avx512f,avx512vl")]
fn hash_chunk<const N: usize>(pi: &Key, first: u64, offset: Block, blocks: &[Block; N], out: &mut [Block; N]) {
    let offset = load(&offset);
    let mut x = [_mm_setzero_si128(); N];
    for i in 0..N {
        let tweak = _mm_set_epi64x((first + i as u64) as i64, 0);
        x[i] = _mm_xor_si128(sigma(_mm_xor_si128(load(&blocks[i]), offset)), tweak);
    }
    let y = encrypt(pi, x);
    for i in 0..N {
        store(&mut out[i], _mm_xor_si128(x[i], y[i]));
    }
}

#[target_feature(enable = "aes,avx512f,avx512vl")]
pub(super) fn tree_hash(pi: &Key, nodes: &[Block], out: &mut [Block]) {
    let ((chunks, rest), (out_chunks, out_rest)) = (nodes.as_chunks::<8>(), out.as_chunks_mut::<8>());
    for (chunk, out) in chunks.iter().zip(out_chunks) {
        tree_hash_chunk(pi, chunk, out);
    }
    for (node, out) in rest.iter().zip(out_rest) {
        tree_hash_chunk::<1>(pi, std::array::from_ref(node), std::array::from_mut(out));
    }
}

#[inline]
#[target_feature(enable = "aes,avx512f,avx512vl")]
fn tree_hash_chunk<const N: usize>(pi: &Key, nodes: &[Block; N], out: &mut [Block; N]) {
    let mut x = [_mm_setzero_si128(); N];
    for i in 0..N {
        x[i] = sigma(load(&nodes[i]));
    }
    let y = encrypt(pi, x);
    for i in 0..N {
        store(&mut out[i], _mm_xor_si128(x[i], y[i]));
    }
}

/// `sigma` of the hash: `sigma(a || b) = (a ^ b) || a`.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
fn sigma(x: __m128i) -> __m128i {
    // swapped ^ (x & high).
    let high = _mm_set_epi64x(-1, 0);
    _mm_ternarylogic_epi64::<0x78>(_mm_shuffle_epi32::<0b01_00_11_10>(x), x, high)
}

/// The children of N nodes: left `H(x)`, right `x ^ H(x)`, both under `mask`. Returns the sum of the left ones.
#[inline]
#[target_feature(enable = "aes,avx512f,avx512vl")]
fn double<const N: usize>(pi: &Key, mask: __m128i, nodes: &mut [Block; N], right: &mut [Block; N]) -> __m128i {
    let mut s = [_mm_setzero_si128(); N];
    for i in 0..N {
        s[i] = sigma(load(&nodes[i]));
    }
    let y = encrypt(pi, s);
    let mut sum = _mm_setzero_si128();
    for i in 0..N {
        // (y ^ s) & mask, (x ^ h) & mask.
        let h = _mm_ternarylogic_epi64::<0x28>(y[i], s[i], mask);
        store(&mut right[i], _mm_ternarylogic_epi64::<0x28>(h, load(&nodes[i]), mask));
        store(&mut nodes[i], h);
        sum = _mm_xor_si128(sum, h);
    }
    sum
}

/// One level: `nodes` holds the parents in its first half and, afterwards, all children. Returns the sum of the left
/// ones.
#[target_feature(enable = "aes,avx512f,avx512vl")]
fn level(pi: &Key, mask: Block, nodes: &mut [Block]) -> Block {
    let half = nodes.len() / 2;
    let (left, right) = nodes.split_at_mut(half);
    let mask = load(&mask);
    let mut sum = _mm_setzero_si128();
    let (left8, left) = left.as_chunks_mut::<8>();
    let (right8, right) = right.as_chunks_mut::<8>();
    for (left, right) in left8.iter_mut().zip(right8) {
        sum = _mm_xor_si128(sum, double(pi, mask, left, right));
    }
    let (left4, left) = left.as_chunks_mut::<4>();
    let (right4, right) = right.as_chunks_mut::<4>();
    for (left, right) in left4.iter_mut().zip(right4) {
        sum = _mm_xor_si128(sum, double(pi, mask, left, right));
    }
    let (left2, _) = left.as_chunks_mut::<2>();
    let (right2, _) = right.as_chunks_mut::<2>();
    for (left, right) in left2.iter_mut().zip(right2) {
        sum = _mm_xor_si128(sum, double(pi, mask, left, right));
    }
    let mut total = Block::ZERO;
    store(&mut total, sum);
    total
}

#[target_feature(enable = "aes,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn grow(pi: Block, root: Block, delta: Block, sums: &mut [Block], nodes: &mut [Block]) {
    let pi = expand(pi);
    tree::grow_by(root, delta, sums, nodes, |mask, nodes| level(&pi, mask, nodes));
}

#[target_feature(enable = "aes,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn regrow(pi: Block, away: u64, sums: &[Block], nodes: &mut [Block]) {
    let pi = expand(pi);
    let mut of_zero = Block::ZERO;
    store(&mut of_zero, encrypt(&pi, [_mm_setzero_si128()])[0]);
    tree::regrow_by(
        of_zero,
        away,
        sums,
        nodes,
        |mask, nodes| level(&pi, mask, nodes),
        |nodes, at, by| add_at(nodes, at, by),
    );
}

/// Outputs whose indices are drawn at once: ten blocks of the cipher keep it busy and leave the rest of the window to
/// the loads of the outputs before.
const GROUP: usize = 8;

/// The indices of one group.
#[repr(C, align(16))]
struct Indices([u16; GROUP * CODE_WEIGHT]);

#[target_feature(enable = "aes,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn add_code_words(prg: &Key, place: u64, table: &[Block; TABLE], out: &mut [Block]) {
    let (groups, rest) = out.as_chunks_mut::<GROUP>();
    debug_assert!(rest.is_empty());
    let mut indices = Indices([0; GROUP * CODE_WEIGHT]);
    for (g, out) in groups.iter_mut().enumerate() {
        draw(prg, place, (g * CODE_WEIGHT) as u64, &mut indices);
        for (out, i) in out.iter_mut().zip(indices.0.as_chunks::<CODE_WEIGHT>().0) {
            add_code_word(table, i, out);
        }
    }
}

/// The blocks `first, first + 1, ..` of the stream at `place`. Not inlined, so that indices go through memory: the
/// compiler would take them out of vector registers one by one, on the cipher's own port.
#[inline(never)]
#[target_feature(enable = "aes,avx512f,avx512vl")]
fn draw(prg: &Key, place: u64, first: u64, out: &mut Indices) {
    let mut x = [_mm_setzero_si128(); CODE_WEIGHT];
    for c in 0..CODE_WEIGHT {
        x[c] = _mm_set_epi64x(place as i64, (first + c as u64) as i64);
    }
    let x = encrypt(prg, x);
    let (chunks, _) = out.0.as_chunks_mut::<8>();
    for (out, x) in chunks.iter_mut().zip(x) {
        // SAFETY: eight 16-bit integers are 16 bytes; the store needs no alignment.
        unsafe { _mm_storeu_si128(std::ptr::from_mut(out).cast(), x) }
    }
}
