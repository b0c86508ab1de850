//! The kernels. All need the same features; a [`Cpu`] is the proof that they are there.

#![allow(
    clippy::needless_range_loop,
    reason = "indexed loops of constant length stay in registers, iterators do not"
)]

use std::arch::x86_64::*;

use zeroize::Zeroize;

use crate::silent::lpn::{CODE_WEIGHT, TABLE};
use crate::silent::tree;
use crate::transpose::{BATCH, TILES};
use crate::{Block, softspoken};

/// Proof that AES-NI and AVX-512 F, BW, DQ and VL were detected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cpu(());

/// Round keys of AES-128.
#[derive(Clone, Default, Zeroize)]
pub(crate) struct Key([Block; 11]);

/// Wraps a kernel in a method that only the holder of a [`Cpu`] can call.
macro_rules! kernels {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),*);)*) => {
        $($(#[$doc])*
        #[allow(clippy::too_many_arguments, reason = "of the kernel")]
        pub(crate) fn $name(self, $($arg: $ty),*) {
            // SAFETY: a Cpu exists only where all features of the kernels were detected.
            unsafe { $name($($arg),*) }
        })*
    };
}

impl Cpu {
    /// Asks the processor.
    pub(crate) fn detect() -> Option<Self> {
        let all = is_x86_feature_detected!("aes")
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        all.then_some(Cpu(()))
    }

    kernels! {
        /// [`crate::transpose::transpose`].
        transpose(rows: &mut [Block; BATCH]);
        /// [`softspoken::receive_batch`] with the PRGs `keys` from the counter `first` on.
        receive_batch(shape: &softspoken::Shape, keys: &[Key], first: u64, rows: &mut [Block; BATCH], message: &mut [u8]);
        /// [`softspoken::send_batch`] with the PRGs `keys` from the counter `first` on.
        send_batch(
            shape: &softspoken::Shape, keys: &[Key], first: u64, delta: Block, rows: &mut [Block; BATCH], message: &[u8]
        );
        /// `x = pi(x) ^ x` for every block.
        davies_meyer(pi: &Key, blocks: &mut [Block]);
        /// [`crate::silent::tree::grow`] with the key `pi`.
        grow(pi: Block, root: Block, delta: Block, sums: &mut [Block], nodes: &mut [Block]);
        /// [`crate::silent::tree::regrow`] with the key `pi`.
        regrow(pi: Block, away: u64, sums: &[Block], nodes: &mut [Block]);
        /// [`crate::silent::lpn::add_code_words`] with the PRG `prg`.
        add_code_words(prg: &Key, place: u64, table: &[Block; TABLE], out: &mut [Block]);
    }
}

impl Key {
    /// Expands `key`.
    pub(crate) fn new(cpu: Cpu, key: Block) -> Self {
        let Cpu(()) = cpu;
        // SAFETY: a Cpu exists only where all features of the kernels were detected.
        unsafe { expand(key) }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(block: &Block) -> __m128i {
    // SAFETY: a Block is 16 bytes, aligned to 16.
    unsafe { _mm_load_si128(std::ptr::from_ref(block).cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(block: &mut Block, value: __m128i) {
    // SAFETY: a Block is 16 bytes, aligned to 16, and any bytes are a Block.
    unsafe { _mm_store_si128(std::ptr::from_mut(block).cast(), value) }
}

/// Four blocks.
#[inline]
#[target_feature(enable = "avx512f")]
fn load4(blocks: &[Block; 4]) -> __m512i {
    // SAFETY: four Blocks are 64 bytes; the load needs no alignment.
    unsafe { _mm512_loadu_si512(std::ptr::from_ref(blocks).cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store4(blocks: &mut [Block; 4], value: __m512i) {
    // SAFETY: four Blocks are 64 bytes, and any bytes are Blocks; the store needs no alignment.
    unsafe { _mm512_storeu_si512(std::ptr::from_mut(blocks).cast(), value) }
}

/// The key schedule of FIPS 197.
#[target_feature(enable = "aes,avx512f,avx512vl")]
fn expand(key: Block) -> Key {
    #[inline]
    #[target_feature(enable = "aes,avx512f,avx512vl")]
    fn next<const RCON: i32>(k: __m128i) -> __m128i {
        let g = _mm_shuffle_epi32::<0xff>(_mm_aeskeygenassist_si128::<RCON>(k));
        let k = _mm_xor_si128(k, _mm_slli_si128::<4>(k));
        let k = _mm_xor_si128(k, _mm_slli_si128::<8>(k));
        _mm_xor_si128(k, g)
    }
    let mut keys = Key::default();
    let mut k = load(&key);
    store(&mut keys.0[0], k);
    macro_rules! rounds {
        ($($i:literal: $rcon:literal),*) => { $(k = next::<$rcon>(k); store(&mut keys.0[$i], k);)* };
    }
    rounds!(1: 0x01, 2: 0x02, 3: 0x04, 4: 0x08, 5: 0x10, 6: 0x20, 7: 0x40, 8: 0x80, 9: 0x1b, 10: 0x36);
    keys
}

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
fn receive_batch(shape: &softspoken::Shape, keys: &[Key], first: u64, rows: &mut [Block; BATCH], message: &mut [u8]) {
    softspoken::receive_batch(shape, |leaf, out| counters(&keys[leaf], first, out), rows, message);
}

#[target_feature(enable = "aes,avx512f,avx512bw,avx512dq,avx512vl")]
fn send_batch(
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
fn davies_meyer(pi: &Key, blocks: &mut [Block]) {
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

/// Both layers of the butterfly that the portable code goes through one swap after the other: rows at distances 1, 2
/// and 4 in eight registers, then those at distances 8 to 64 in sixteen.
#[target_feature(enable = "avx512f")]
fn transpose(rows: &mut [Block; BATCH]) {
    let (quads, _) = rows.as_chunks_mut::<4>();
    // The four tiles at q of row r are quads[r * STRIDE + q].
    const STRIDE: usize = TILES / 4;
    for r in (0..128).step_by(8) {
        for q in 0..STRIDE {
            let mut x = [_mm512_setzero_si512(); 8];
            for (i, x) in x.iter_mut().enumerate() {
                *x = load4(&quads[(r + i) * STRIDE + q]);
            }
            swap::<8, 1, 1>(&mut x, 0x5555_5555_5555_5555);
            swap::<8, 2, 2>(&mut x, 0x3333_3333_3333_3333);
            swap::<8, 4, 4>(&mut x, 0x0f0f_0f0f_0f0f_0f0f);
            for (i, x) in x.into_iter().enumerate() {
                store4(&mut quads[(r + i) * STRIDE + q], x);
            }
        }
    }
    for r in 0..8 {
        for q in 0..STRIDE {
            let mut x = [_mm512_setzero_si512(); 16];
            for (i, x) in x.iter_mut().enumerate() {
                *x = load4(&quads[(r + 8 * i) * STRIDE + q]);
            }
            swap::<16, 1, 8>(&mut x, 0x00ff_00ff_00ff_00ff);
            swap::<16, 2, 16>(&mut x, 0x0000_ffff_0000_ffff);
            swap::<16, 4, 32>(&mut x, 0x0000_0000_ffff_ffff);
            for i in 0..8 {
                let (a, b) = (x[i], x[i + 8]);
                x[i] = _mm512_unpacklo_epi64(a, b);
                x[i + 8] = _mm512_unpackhi_epi64(a, b);
            }
            for (i, x) in x.into_iter().enumerate() {
                store4(&mut quads[(r + 8 * i) * STRIDE + q], x);
            }
        }
    }
}

/// Swaps bit `i + SHIFT` of register `r` with bit `i` of register `r + S`, for all `i` in `mask` and all `r` with bit S
/// clear.
#[inline]
#[target_feature(enable = "avx512f")]
fn swap<const N: usize, const S: usize, const SHIFT: u32>(x: &mut [__m512i; N], mask: u64) {
    let mask = _mm512_set1_epi64(mask as i64);
    for r in 0..N {
        if r & S == 0 {
            let (a, b) = (x[r], x[r + S]);
            // (a >> SHIFT ^ b) & mask.
            let t = _mm512_ternarylogic_epi64::<0x28>(_mm512_srli_epi64::<SHIFT>(a), b, mask);
            x[r + S] = _mm512_xor_si512(b, t);
            x[r] = _mm512_xor_si512(a, _mm512_slli_epi64::<SHIFT>(t));
        }
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
fn grow(pi: Block, root: Block, delta: Block, sums: &mut [Block], nodes: &mut [Block]) {
    let pi = expand(pi);
    tree::grow_by(root, delta, sums, nodes, |mask, nodes| level(&pi, mask, nodes));
}

#[target_feature(enable = "aes,avx512f,avx512bw,avx512dq,avx512vl")]
fn regrow(pi: Block, away: u64, sums: &[Block], nodes: &mut [Block]) {
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

/// [`tree::add_at`].
#[target_feature(enable = "avx512f")]
fn add_at(nodes: &mut [Block], at: u64, by: Block) {
    let (quads, rest) = nodes.as_chunks_mut::<4>();
    if !rest.is_empty() {
        return tree::add_at(rest, at, by);
    }
    let (at, by) = (_mm512_set1_epi64(at as i64), _mm512_broadcast_i32x4(load(&by)));
    let mut index = _mm512_set_epi64(3, 3, 2, 2, 1, 1, 0, 0);
    for quad in quads {
        let x = load4(quad);
        store4(quad, _mm512_mask_xor_epi64(x, _mm512_cmpeq_epi64_mask(index, at), x, by));
        index = _mm512_add_epi64(index, _mm512_set1_epi64(4));
    }
}

/// Outputs whose indices are drawn at once: ten blocks of the cipher keep it busy and leave the rest of the window to
/// the loads of the outputs before.
const GROUP: usize = 8;

/// The indices of one group.
#[repr(C, align(16))]
struct Indices([u16; GROUP * CODE_WEIGHT]);

#[target_feature(enable = "aes,avx512f,avx512bw,avx512dq,avx512vl")]
fn add_code_words(prg: &Key, place: u64, table: &[Block; TABLE], out: &mut [Block]) {
    let (groups, rest) = out.as_chunks_mut::<GROUP>();
    debug_assert!(rest.is_empty());
    let mut indices = Indices([0; GROUP * CODE_WEIGHT]);
    for (g, out) in groups.iter_mut().enumerate() {
        draw(prg, place, (g * CODE_WEIGHT) as u64, &mut indices);
        for (out, i) in out.iter_mut().zip(indices.0.as_chunks::<CODE_WEIGHT>().0) {
            let entry = |j: usize| load(&table[usize::from(i[j])]);
            let a = _mm_ternarylogic_epi64::<0x96>(load(out), entry(0), entry(1));
            let b = _mm_ternarylogic_epi64::<0x96>(entry(2), entry(3), entry(4));
            let c = _mm_ternarylogic_epi64::<0x96>(entry(5), entry(6), entry(7));
            let d = _mm_ternarylogic_epi64::<0x96>(entry(8), entry(9), a);
            store(out, _mm_ternarylogic_epi64::<0x96>(b, c, d));
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
