//! Kernels for AVX-512 with AES-NI or VAES, chosen at run time. Each has a portable twin that gives the same bytes.

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{Cpu, Key};

#[cfg(not(target_arch = "x86_64"))]
mod other;
#[cfg(not(target_arch = "x86_64"))]
pub(crate) use other::{Cpu, Key};

/// Which code computes. The results are the same to the bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kernels {
    /// The fastest that this processor can run.
    #[default]
    Detected,
    /// Portable code only; the `aes` crate may still use instructions for AES.
    Portable,
}

impl Kernels {
    /// The processor's permission to run the kernels of this module, if it has what they need.
    pub(crate) fn cpu(self) -> Option<Cpu> {
        match self {
            Kernels::Detected => Cpu::detect(),
            Kernels::Portable => None,
        }
    }

    /// What runs here, in a word.
    pub fn name(self) -> &'static str {
        self.cpu().map_or("portable", Cpu::name)
    }
}

/// The kernels of every set that this processor runs, and none: the portable code.
#[cfg(any(test, feature = "probe"))]
pub(crate) fn all() -> impl Iterator<Item = Option<Cpu>> {
    Cpu::all().into_iter().map(Some).chain([None])
}
