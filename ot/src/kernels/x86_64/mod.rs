//! The kernels of x86-64. The loops are those of [`driver`], for vectors of one block ([`aesni`]) or of four
//! ([`vaes`]); what does not differ is here. A [`Simd`] is the proof that the features of one of the two sets are
//! there.

#![allow(
    clippy::needless_range_loop,
    reason = "indexed loops of constant length stay in registers, iterators do not"
)]

use std::arch::x86_64::*;

use bits::cpu::{Cpu, Feature};
use zeroize::Zeroize;

use super::code::{CODE_WEIGHT, TABLE};
use super::leaves::{self, Lane};
use super::planes::Shape;
use super::transpose::{BATCH, TILES};
use crate::Block;
use crate::ggm::half;

mod aesni;
mod driver;
mod vaes;

/// Proof that the features of a set of kernels were detected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Simd(Set);

#[derive(Clone, Copy, Debug)]
enum Set {
    /// AES-NI and AVX-512 F, BW, DQ and VL.
    AesNi,
    /// These and VAES.
    Vaes,
}

/// Round keys of AES-128.
#[derive(Clone, Default, Zeroize)]
pub(crate) struct Key([Block; 11]);

/// Wraps a kernel in a method that only the holder of a [`Simd`] can call.
macro_rules! kernels {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),*);)*) => {
        $($(#[$doc])*
        #[allow(clippy::too_many_arguments, reason = "of the kernel")]
        pub(crate) fn $name(self, $($arg: $ty),*) {
            // SAFETY: a Simd exists only where all features of its set were detected.
            unsafe {
                match self.0 {
                    Set::AesNi => aesni::$name($($arg),*),
                    Set::Vaes => vaes::$name($($arg),*),
                }
            }
        })*
    };
}

impl Simd {
    /// The fastest kernels that [`Cpu::get`] allows.
    pub(crate) fn detect() -> Option<Self> {
        match Simd::aesni() {
            Some(_) if Cpu::get().has(Feature::Vaes) => Some(Simd(Set::Vaes)),
            simd => simd,
        }
    }

    /// The kernels that need least.
    fn aesni() -> Option<Self> {
        Cpu::get().has_all(&[Feature::AesNi, Feature::Avx512]).then_some(Simd(Set::AesNi))
    }

    /// All kernels that [`Cpu::get`] allows.
    #[cfg(any(test, feature = "probe"))]
    pub(crate) fn all() -> Vec<Self> {
        let mut all: Vec<Simd> = Simd::aesni().into_iter().collect();
        all.extend(Simd::detect().filter(|simd| matches!(simd.0, Set::Vaes)));
        all
    }

    /// The instructions, by name.
    pub(crate) fn name(self) -> &'static str {
        match self.0 {
            Set::AesNi => "AVX-512 and AES-NI",
            Set::Vaes => "AVX-512 and VAES",
        }
    }

    /// AES of one block.
    pub(crate) fn encrypt(self, key: &Key, block: Block) -> Block {
        // SAFETY: every set needs AES-NI and AVX-512 F, and a Simd exists only where the features of one were
        // detected.
        unsafe { encrypt(key, block) }
    }

    /// [`super::transpose::transpose`].
    pub(crate) fn transpose(self, rows: &mut [Block; BATCH]) {
        // SAFETY: every set needs AVX-512 F, and a Simd exists only where the features of one were detected.
        unsafe { transpose(rows) }
    }

    /// [`leaves::children`].
    pub(crate) fn children(self, nodes: &[Block], hashes: &[Block], correction: Block, out: &mut [Block]) {
        // SAFETY: every set needs AVX-512 F, DQ and VL, and a Simd exists only where the features of one were
        // detected.
        unsafe { children(nodes, hashes, correction, out) }
    }

    /// [`Lane::correct`].
    pub(crate) fn correct<L: Lane>(self, pads: &[Block], nodes: &[Block], last: Block, sign: u64, out: &mut [L]) {
        // SAFETY: every set needs AVX-512 F, DQ and VL, and a Simd exists only where the features of one were
        // detected.
        unsafe { correct(pads, nodes, last, sign, out) }
    }

    kernels! {
        /// [`super::planes::receive_batch`] with the PRGs `keys` from the counter `first` on.
        receive_batch(shape: &Shape, keys: &[Key], first: u64, rows: &mut [Block; BATCH], message: &mut [u8]);
        /// [`super::planes::send_batch`] with the PRGs `keys` from the counter `first` on.
        send_batch(
            shape: &Shape, keys: &[Key], first: u64, delta: Block, rows: &mut [Block; BATCH], message: &[u8]
        );
        /// `x = pi(x) ^ x` for every block.
        davies_meyer(pi: &Key, blocks: &mut [Block]);
        /// The hash of [`crate::ggm::half`] of every node.
        tree_hash(pi: &Key, nodes: &[Block], out: &mut [Block]);
        /// The hash of [`crate::hash`] of `blocks[i] ^ offset` at OT `first + i`, counter 0, in one epoch.
        hash(pi: &Key, first: u64, offset: Block, blocks: &[Block], out: &mut [Block]);
        /// [`half::grow`] with the key `pi`.
        grow(pi: &Key, root: Block, delta: Block, sums: &mut [Block], nodes: &mut [Block]);
        /// [`half::regrow`] with the key `pi`.
        regrow(pi: &Key, away: u64, sums: &[Block], nodes: &mut [Block]);
        /// [`super::code::add_code_words`] with the PRG `prg`.
        add_code_words(prg: &Key, place: u64, table: &[Block; TABLE], out: &mut [Block]);
    }
}

impl Key {
    /// Expands `key`.
    pub(crate) fn new(_: Simd, key: Block) -> Self {
        // SAFETY: every set needs AES-NI and AVX-512 F and VL, and a Simd exists only where the features of one were
        // detected.
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

/// AES of one block.
#[target_feature(enable = "aes,avx512f")]
fn encrypt(key: &Key, block: Block) -> Block {
    let mut x = _mm_xor_si128(load(&block), load(&key.0[0]));
    for round in &key.0[1..10] {
        x = _mm_aesenc_si128(x, load(round));
    }
    let mut out = Block::ZERO;
    store(&mut out, _mm_aesenclast_si128(x, load(&key.0[10])));
    out
}

/// The portable code, compiled for wider registers.
#[target_feature(enable = "avx512f,avx512dq,avx512vl")]
fn children(nodes: &[Block], hashes: &[Block], correction: Block, out: &mut [Block]) {
    leaves::children(nodes, hashes, correction, out);
}

/// The portable code, compiled for wider registers.
#[target_feature(enable = "avx512f,avx512dq,avx512vl")]
fn correct<L: Lane>(pads: &[Block], nodes: &[Block], last: Block, sign: u64, out: &mut [L]) {
    L::correct(pads, nodes, last, sign, out);
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

/// Swaps bit `i + SHIFT` of register `r` with bit `i` of register `r + S`, for all `i` in `mask` and all `r` with bit
/// S clear.
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

/// [`half::add_at`].
#[target_feature(enable = "avx512f")]
fn add_at(nodes: &mut [Block], at: u64, by: Block) {
    let (quads, rest) = nodes.as_chunks_mut::<4>();
    if !rest.is_empty() {
        return half::add_at(rest, at, by);
    }
    let (at, by) = (_mm512_set1_epi64(at as i64), _mm512_broadcast_i32x4(load(&by)));
    let mut index = _mm512_set_epi64(3, 3, 2, 2, 1, 1, 0, 0);
    for quad in quads {
        let x = load4(quad);
        store4(quad, _mm512_mask_xor_epi64(x, _mm512_cmpeq_epi64_mask(index, at), x, by));
        index = _mm512_add_epi64(index, _mm512_set1_epi64(4));
    }
}

/// The indices that blocks hold, 16 bits each.
#[inline]
fn indices(blocks: &[Block]) -> &[u16] {
    // SAFETY: a Block is 16 bytes, aligned to 16, and any bytes are integers of 16 bits; the integers are
    // little-endian on x86-64, as they are in the stream.
    unsafe { std::slice::from_raw_parts(blocks.as_ptr().cast(), 8 * blocks.len()) }
}

/// Adds the entries of `table` at `indices` to `out`.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
fn add_code_word(table: &[Block; TABLE], indices: &[u16; CODE_WEIGHT], out: &mut Block) {
    let entry = |j: usize| load(&table[usize::from(indices[j])]);
    let a = _mm_ternarylogic_epi64::<0x96>(load(out), entry(0), entry(1));
    let b = _mm_ternarylogic_epi64::<0x96>(entry(2), entry(3), entry(4));
    let c = _mm_ternarylogic_epi64::<0x96>(entry(5), entry(6), entry(7));
    let d = _mm_ternarylogic_epi64::<0x96>(entry(8), entry(9), a);
    store(out, _mm_ternarylogic_epi64::<0x96>(b, c, d));
}
