//! The inner loops over blocks: portable code, and kernels for AVX2 or AVX-512 with AES-NI or VAES that give the same
//! bytes.
//!
//! The layers above reach both through [`Permutation`] (AES under one key) and [`Prgs`] (AES under many), which hold
//! the choice. Kernels are the methods of [`Simd`], a proof that the processor runs them; the portable twin of each
//! stands in the other files of this module, and tests hold the two together.

mod code;
mod leaves;
mod permutation;
mod planes;
mod portable;
mod transpose;

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{Key, Simd};

#[cfg(not(target_arch = "x86_64"))]
mod other;
#[cfg(not(target_arch = "x86_64"))]
pub(crate) use other::{Key, Simd};

pub(crate) use code::TABLE;
pub use leaves::Lane;
pub(crate) use leaves::{Sums, Words};
pub(crate) use permutation::{Permutation, Prgs};
pub(crate) use planes::Shape;
pub(crate) use portable::sigma;
#[cfg(feature = "probe")]
pub(crate) use transpose::transpose;
pub(crate) use transpose::{BATCH, TILES};

/// Which code computes. The results are the same to the bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kernels {
    /// The fastest that [`bits::cpu::Cpu::get`] allows.
    #[default]
    Detected,
    /// Portable code only; the `aes` crate may still use instructions for AES.
    Portable,
    /// One of [`Kernels::families`].
    Family(Family),
}

/// A set of kernels that this processor runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family(Simd);

impl Kernels {
    /// The portable code and every set of kernels that [`bits::cpu::Cpu::get`] allows, the fastest last.
    pub fn families() -> Vec<Kernels> {
        let sets = Simd::all().into_iter().map(|simd| Kernels::Family(Family(simd)));
        std::iter::once(Kernels::Portable).chain(sets).collect()
    }

    /// The permission to run kernels, if there are any to run.
    pub(crate) fn simd(self) -> Option<Simd> {
        match self {
            Kernels::Detected => Simd::detect(),
            Kernels::Portable => None,
            Kernels::Family(Family(simd)) => Some(simd),
        }
    }

    /// The kernels that run here, by name.
    pub fn name(self) -> &'static str {
        self.simd().map_or("portable", Simd::name)
    }
}

/// The kernels of every set that this processor runs, and none: the portable code.
#[cfg(any(test, feature = "probe"))]
pub(crate) fn all() -> impl Iterator<Item = Option<Simd>> {
    Simd::all().into_iter().map(Some).chain([None])
}
