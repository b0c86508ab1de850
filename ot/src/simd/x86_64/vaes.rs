//! The kernels for VAES: four blocks an instruction.

use std::arch::x86_64::*;

use super::{Key, add_at, add_code_word, expand, load, load4, store, store4};
use crate::silent::lpn::{CODE_WEIGHT, TABLE};
use crate::silent::tree;
use crate::transpose::{BATCH, TILES};
use crate::{Block, softspoken};

/// Registers of four blocks that a loop keeps in flight: a round takes up to 4 cycles, and up to two can begin in each.
const WIDE: usize = 8;

/// Their blocks.
const CHUNK: usize = 4 * WIDE;

/// One block in all four places.
#[inline]
#[target_feature(enable = "avx512f")]
fn broadcast(block: &Block) -> __m512i {
    _mm512_broadcast_i32x4(load(block))
}

/// The 64-bit words of the first `blocks` blocks of a register, at most four.
#[inline]
fn words(blocks: usize) -> __mmask8 {
    debug_assert!(blocks <= 4);
    ((1_u32 << (2 * blocks)) - 1) as __mmask8
}

/// Up to four blocks, and zeros.
#[inline]
#[target_feature(enable = "avx512f")]
fn load_some(blocks: &[Block]) -> __m512i {
    assert!(blocks.len() <= 4);
    // SAFETY: the load touches the words of the mask alone: those of `blocks`.
    unsafe { _mm512_maskz_loadu_epi64(words(blocks.len()), blocks.as_ptr().cast()) }
}

/// The first blocks of `value`, as many as there is room for, at most four.
#[inline]
#[target_feature(enable = "avx512f")]
fn store_some(blocks: &mut [Block], value: __m512i) {
    assert!(blocks.len() <= 4);
    // SAFETY: the store touches the words of the mask alone: those of `blocks`. Any bytes are Blocks.
    unsafe { _mm512_mask_storeu_epi64(blocks.as_mut_ptr().cast(), words(blocks.len()), value) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_chunk(blocks: &[Block; CHUNK]) -> [__m512i; WIDE] {
    let mut x = [_mm512_setzero_si512(); WIDE];
    for (x, quad) in x.iter_mut().zip(blocks.as_chunks().0) {
        *x = load4(quad);
    }
    x
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store_chunk(blocks: &mut [Block; CHUNK], x: [__m512i; WIDE]) {
    for (quad, x) in blocks.as_chunks_mut().0.iter_mut().zip(x) {
        store4(quad, x);
    }
}

/// Encrypts 4 N blocks, all in flight at once.
#[inline]
#[target_feature(enable = "vaes,avx512f")]
fn encrypt<const N: usize>(key: &Key, mut x: [__m512i; N]) -> [__m512i; N] {
    // As for single blocks: round keys are loaded once for all N and do not take registers from them over a loop.
    let key = std::hint::black_box(key);
    let k = broadcast(&key.0[0]);
    for i in 0..N {
        x[i] = _mm512_xor_si512(x[i], k);
    }
    for r in 1..10 {
        let k = broadcast(&key.0[r]);
        for i in 0..N {
            x[i] = _mm512_aesenc_epi128(x[i], k);
        }
    }
    let k = broadcast(&key.0[10]);
    for i in 0..N {
        x[i] = _mm512_aesenclast_epi128(x[i], k);
    }
    x
}

/// `x = pi(x) ^ x`.
#[inline]
#[target_feature(enable = "vaes,avx512f")]
fn feed_forward<const N: usize>(pi: &Key, x: [__m512i; N]) -> [__m512i; N] {
    let mut y = encrypt(pi, x);
    for i in 0..N {
        y[i] = _mm512_xor_si512(x[i], y[i]);
    }
    y
}

/// The blocks `(first + 4 i + j, high)` for place j of register i: low word first.
#[inline]
#[target_feature(enable = "avx512f")]
fn count_low<const N: usize>(first: u64, high: u64) -> [__m512i; N] {
    let start = _mm512_mask_set1_epi64(_mm512_set1_epi64(high as i64), 0b0101_0101, first as i64);
    let mut x = [_mm512_setzero_si512(); N];
    for i in 0..N as i64 {
        let i = 4 * i;
        x[i as usize / 4] = _mm512_add_epi64(start, _mm512_set_epi64(0, i + 3, 0, i + 2, 0, i + 1, 0, i));
    }
    x
}

#[target_feature(enable = "vaes,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn receive_batch(
    shape: &softspoken::Shape,
    keys: &[Key],
    first: u64,
    rows: &mut [Block; BATCH],
    message: &mut [u8],
) {
    softspoken::receive_batch(shape, |leaf, out| counters(&keys[leaf], first, out), rows, message);
}

#[target_feature(enable = "vaes,avx512f,avx512bw,avx512dq,avx512vl")]
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

/// The PRG `key` at the counters `first, first + 1, ..`. Four registers, and those of the next leaf, which does not depend
/// on this one.
#[inline]
#[target_feature(enable = "vaes,avx512f")]
fn counters(key: &Key, first: u64, out: &mut [Block; TILES]) {
    let x = encrypt::<{ TILES / 4 }>(key, count_low(first, 0));
    for (quad, x) in out.as_chunks_mut().0.iter_mut().zip(x) {
        store4(quad, x);
    }
}

#[target_feature(enable = "vaes,avx512f")]
pub(super) fn davies_meyer(pi: &Key, blocks: &mut [Block]) {
    let (chunks, rest) = blocks.as_chunks_mut::<CHUNK>();
    for chunk in chunks {
        store_chunk(chunk, feed_forward(pi, load_chunk(chunk)));
    }
    for some in rest.chunks_mut(4) {
        store_some(some, feed_forward(pi, [load_some(some)])[0]);
    }
}

#[target_feature(enable = "vaes,avx512f")]
pub(super) fn hash(pi: &Key, first: u64, offset: Block, blocks: &[Block], out: &mut [Block]) {
    let offset = broadcast(&offset);
    // The tweaks of the next four blocks: OT in the high word, counter 0.
    let (four, mut tweak) = (_mm512_set_epi64(4, 0, 4, 0, 4, 0, 4, 0), _mm512_set_epi64(3, 0, 2, 0, 1, 0, 0, 0));
    tweak = _mm512_add_epi64(tweak, _mm512_maskz_set1_epi64(0b1010_1010, first as i64));
    let ((chunks, rest), (out_chunks, out_rest)) = (blocks.as_chunks(), out.as_chunks_mut());
    for (chunk, out) in chunks.iter().zip(out_chunks) {
        let mut x = load_chunk(chunk);
        for x in &mut x {
            *x = _mm512_xor_si512(sigma(_mm512_xor_si512(*x, offset)), tweak);
            tweak = _mm512_add_epi64(tweak, four);
        }
        store_chunk(out, feed_forward(pi, x));
    }
    for (some, out) in rest.chunks(4).zip(out_rest.chunks_mut(4)) {
        let x = _mm512_xor_si512(sigma(_mm512_xor_si512(load_some(some), offset)), tweak);
        tweak = _mm512_add_epi64(tweak, four);
        store_some(out, feed_forward(pi, [x])[0]);
    }
}

#[target_feature(enable = "vaes,avx512f")]
pub(super) fn tree_hash(pi: &Key, nodes: &[Block], out: &mut [Block]) {
    let ((chunks, rest), (out_chunks, out_rest)) = (nodes.as_chunks(), out.as_chunks_mut());
    for (chunk, out) in chunks.iter().zip(out_chunks) {
        store_chunk(out, feed_forward(pi, load_chunk(chunk).map(|x| sigma(x))));
    }
    for (some, out) in rest.chunks(4).zip(out_rest.chunks_mut(4)) {
        store_some(out, feed_forward(pi, [sigma(load_some(some))])[0]);
    }
}

/// `sigma` of the hash, per block: `sigma(a || b) = (a ^ b) || a`.
#[inline]
#[target_feature(enable = "avx512f")]
fn sigma(x: __m512i) -> __m512i {
    // swapped ^ (x & high).
    let high = _mm512_set_epi64(-1, 0, -1, 0, -1, 0, -1, 0);
    _mm512_ternarylogic_epi64::<0x78>(_mm512_shuffle_epi32::<0b01_00_11_10>(x), x, high)
}

/// The children of 4 N nodes: left `H(x)`, right `x ^ H(x)`, both under `mask`.
#[inline]
#[target_feature(enable = "vaes,avx512f")]
fn double<const N: usize>(pi: &Key, mask: __m512i, nodes: [__m512i; N]) -> ([__m512i; N], [__m512i; N]) {
    let mut s = [_mm512_setzero_si512(); N];
    for i in 0..N {
        s[i] = sigma(nodes[i]);
    }
    let (mut left, mut right) = (encrypt(pi, s), nodes);
    for i in 0..N {
        // (y ^ s) & mask, (x ^ h) & mask.
        left[i] = _mm512_ternarylogic_epi64::<0x28>(left[i], s[i], mask);
        right[i] = _mm512_ternarylogic_epi64::<0x28>(left[i], nodes[i], mask);
    }
    (left, right)
}

/// One level: `nodes` holds the parents in its first half and, afterwards, all children. Returns the sum of the left
/// ones.
#[target_feature(enable = "vaes,avx512f,avx512dq,avx512vl")]
fn level(pi: &Key, mask: Block, nodes: &mut [Block]) -> Block {
    let half = nodes.len() / 2;
    let (left, right) = nodes.split_at_mut(half);
    let mask = broadcast(&mask);
    let mut sum = _mm512_setzero_si512();
    let ((left_chunks, left), (right_chunks, right)) = (left.as_chunks_mut(), right.as_chunks_mut());
    for (left, right) in left_chunks.iter_mut().zip(right_chunks) {
        let (lefts, rights) = double(pi, mask, load_chunk(left));
        store_chunk(left, lefts);
        store_chunk(right, rights);
        for i in 0..WIDE {
            sum = _mm512_xor_si512(sum, lefts[i]);
        }
    }
    for (left, right) in left.chunks_mut(4).zip(right.chunks_mut(4)) {
        let ([lefts], [rights]) = double(pi, mask, [load_some(left)]);
        store_some(left, lefts);
        store_some(right, rights);
        sum = _mm512_mask_xor_epi64(sum, words(left.len()), sum, lefts);
    }
    let sum = _mm256_xor_si256(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64::<1>(sum));
    let mut total = Block::ZERO;
    store(&mut total, _mm_xor_si128(_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum)));
    total
}

#[target_feature(enable = "vaes,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn grow(pi: Block, root: Block, delta: Block, sums: &mut [Block], nodes: &mut [Block]) {
    let pi = expand(pi);
    tree::grow_by(root, delta, sums, nodes, |mask, nodes| level(&pi, mask, nodes));
}

#[target_feature(enable = "vaes,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn regrow(pi: Block, away: u64, sums: &[Block], nodes: &mut [Block]) {
    let pi = expand(pi);
    let mut of_zero = Block::ZERO;
    store_some(std::slice::from_mut(&mut of_zero), encrypt(&pi, [_mm512_setzero_si512()])[0]);
    tree::regrow_by(
        of_zero,
        away,
        sums,
        nodes,
        |mask, nodes| level(&pi, mask, nodes),
        |nodes, at, by| add_at(nodes, at, by),
    );
}

/// Outputs whose indices are drawn at once: five registers of blocks.
const GROUP: usize = 16;

/// Registers of blocks of one group: an index takes two bytes.
const DRAWN: usize = GROUP * CODE_WEIGHT / 32;

/// The indices of one group.
#[repr(C, align(64))]
struct Indices([u16; GROUP * CODE_WEIGHT]);

#[target_feature(enable = "vaes,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn add_code_words(prg: &Key, place: u64, table: &[Block; TABLE], out: &mut [Block]) {
    let (groups, rest) = out.as_chunks_mut::<GROUP>();
    debug_assert!(rest.is_empty());
    let mut indices = Indices([0; GROUP * CODE_WEIGHT]);
    for (g, out) in groups.iter_mut().enumerate() {
        draw(prg, place, (g * 4 * DRAWN) as u64, &mut indices);
        for (out, i) in out.iter_mut().zip(indices.0.as_chunks::<CODE_WEIGHT>().0) {
            add_code_word(table, i, out);
        }
    }
}

/// The blocks `first, first + 1, ..` of the stream at `place`. Not inlined, so that indices go through memory, as for
/// single blocks.
#[inline(never)]
#[target_feature(enable = "vaes,avx512f")]
fn draw(prg: &Key, place: u64, first: u64, out: &mut Indices) {
    let x = encrypt::<DRAWN>(prg, count_low(first, place));
    let (chunks, _) = out.0.as_chunks_mut::<32>();
    for (out, x) in chunks.iter_mut().zip(x) {
        // SAFETY: 32 integers of 16 bits are 64 bytes; the store needs no alignment.
        unsafe { _mm512_storeu_si512(std::ptr::from_mut(out).cast(), x) }
    }
}
