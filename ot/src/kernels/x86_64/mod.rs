//! The kernels of x86-64. The loops are those of [`driver`] and [`points`], for vectors of one block ([`aesni`],
//! [`aesni512`]), of two ([`vaes`]) or of four ([`vaes512`]); what sets share is in [`avx2`] and [`avx512`]. A
//! [`Simd`] is the proof that the features of one of the four sets are there.

#![allow(
    clippy::needless_range_loop,
    reason = "indexed loops of constant length stay in registers, iterators do not"
)]

use waggle_bits::cpu::{Cpu, Feature};
use zeroize::Zeroize;

use super::code::{CODE_WEIGHT, TABLE};
use super::leaves::{LeafRows, Words};
use super::planes::Shape;
use super::transpose::BATCH;
use crate::Block;

mod aesni;
mod aesni512;
mod avx2;
mod avx512;
mod driver;
mod lanes;
mod points;
mod vaes;
mod vaes512;

/// Proof that the features of a set of kernels were detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Simd(Set);

/// The sets, from the slowest to the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Set {
    /// AES-NI and AVX2. PCLMULQDQ belongs to AES-NI here, VPCLMULQDQ to VAES.
    AesNi,
    /// AES-NI and AVX-512 F, BW, DQ and VL.
    AesNi512,
    /// AES-NI, VAES and AVX2.
    Vaes,
    /// AES-NI, VAES and AVX-512 F, BW, DQ and VL.
    Vaes512,
}

impl Set {
    const ALL: [Set; 4] = [Set::AesNi, Set::AesNi512, Set::Vaes, Set::Vaes512];

    fn needs(self) -> &'static [Feature] {
        match self {
            Set::AesNi => &[Feature::AesNi, Feature::Avx2],
            Set::AesNi512 => &[Feature::AesNi, Feature::Avx2, Feature::Avx512],
            Set::Vaes => &[Feature::AesNi, Feature::Vaes, Feature::Avx2],
            Set::Vaes512 => &[Feature::AesNi, Feature::Vaes, Feature::Avx2, Feature::Avx512],
        }
    }
}

/// Round keys of AES-128.
#[derive(Clone, Default, Zeroize)]
pub(crate) struct Key([Block; 11]);

/// Wraps kernels in methods that only the holder of a [`Simd`] can call.
macro_rules! dispatch {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),*) $(-> $out:ty)?;)*) => {
        $($(#[$doc])*
        #[allow(clippy::too_many_arguments, reason = "of the kernel")]
        pub(crate) fn $name(self, $($arg: $ty),*) $(-> $out)? {
            // SAFETY: a Simd exists only where all features of its set were detected.
            unsafe {
                match self.0 {
                    Set::AesNi => aesni::$name($($arg),*),
                    Set::AesNi512 => aesni512::$name($($arg),*),
                    Set::Vaes => vaes::$name($($arg),*),
                    Set::Vaes512 => vaes512::$name($($arg),*),
                }
            }
        })*
    };
}

impl Simd {
    /// The fastest kernels that [`Cpu::get`] allows.
    pub(crate) fn detect() -> Option<Self> {
        Simd::all().pop()
    }

    /// All kernels that [`Cpu::get`] allows, the fastest last.
    pub(crate) fn all() -> Vec<Self> {
        Set::ALL.into_iter().filter(|set| Cpu::get().has_all(set.needs())).map(Simd).collect()
    }

    /// The instructions, by name.
    pub(crate) fn name(self) -> &'static str {
        match self.0 {
            Set::AesNi => "AVX2 and AES-NI",
            Set::AesNi512 => "AVX-512 and AES-NI",
            Set::Vaes => "AVX2 and VAES",
            Set::Vaes512 => "AVX-512 and VAES",
        }
    }

    keyed_kernels!(dispatch);
    other_kernels!(dispatch);
}

/// Number of bytes of the stream that hold the indices of one output.
const INDEX_BYTES: usize = 2 * CODE_WEIGHT;

/// The bytes of the stream that hold the indices, output by output.
#[inline]
fn indices(blocks: &[Block]) -> &[[u8; INDEX_BYTES]] {
    // SAFETY: a Block is 16 bytes without padding; bytes need no alignment. Its words are little-endian on x86-64, as
    // they are in the stream.
    let bytes: &[u8] = unsafe { std::slice::from_raw_parts(blocks.as_ptr().cast(), size_of_val(blocks)) };
    bytes.as_chunks().0
}

/// Ten indices of 16 bits: four, four and two. Read like this they take fewer loads, which are what bounds the sums.
#[inline(always)]
fn index_words(stream: &[u8; INDEX_BYTES]) -> [u64; 3] {
    let (words, rest) = stream.as_chunks::<8>();
    let (last, _) = rest.as_chunks::<4>();
    [u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1]), u32::from_le_bytes(last[0]).into()]
}

/// Words of 64 bits as bytes, 16 for each leaf or block of a leaf.
#[inline]
fn bytes(words: &mut [u64]) -> &mut [[u8; 16]] {
    // SAFETY: bytes need no alignment, and any bytes are words; the borrow is passed on.
    let bytes: &mut [u8] = unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), size_of_val(words)) };
    bytes.as_chunks_mut().0
}

/// Words of 32 bits as bytes, 16 for each leaf.
#[inline]
fn bytes32(words: &mut [u32]) -> &mut [[u8; 16]] {
    // SAFETY: bytes need no alignment, and any bytes are words; the borrow is passed on.
    let bytes: &mut [u8] = unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), size_of_val(words)) };
    bytes.as_chunks_mut().0
}
