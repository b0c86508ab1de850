//! Negacyclic number-theoretic transforms, behind a trait that hides the processor.
//!
//! A [`NttBackend`] transforms polynomials modulo one prime and works on the transforms. `TfheNtt` is portable. The
//! other backends run the layers of `driver` on the vectors of one instruction set. A new backend takes a file with
//! an implementation of `driver::Kernel`, and a line in [`backends`].
//!
//! All backends order the transformed coefficients as `tfhe-ntt` does and reduce them below the prime, so parties
//! with different processors understand each other. The tests hold every backend to the portable one, word by word.

use crate::error::HeError;

mod backend;
mod portable;

#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod doubles;
#[cfg(target_arch = "x86_64")]
mod driver;
#[cfg(target_arch = "x86_64")]
mod float;
#[cfg(target_arch = "x86_64")]
mod float256;
#[cfg(target_arch = "x86_64")]
mod ifma;
#[cfg(target_arch = "x86_64")]
mod twiddles;

#[cfg(test)]
mod tests;

pub(crate) use backend::{LANES, MIN_POINTS, TILES, exact_terms};
pub use backend::{NttBackend, Product};
#[cfg(target_arch = "x86_64")]
use float::FloatNtt;
#[cfg(target_arch = "x86_64")]
use float256::Float256Ntt;
#[cfg(target_arch = "x86_64")]
use ifma::IfmaNtt;
use portable::TfheNtt;

// ANCHOR: best
/// Every backend that [`waggle_bits::cpu::Cpu::get`] allows, the fastest first.
///
/// # Errors
/// [`HeError::Degree`] and [`HeError::Modulus`].
pub fn backends(n: usize, p: u64) -> Result<Vec<Box<dyn NttBackend>>, HeError> {
    let portable = TfheNtt::new(n, p)?;
    let mut all: Vec<Box<dyn NttBackend>> = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        all.extend(IfmaNtt::new(n, &portable).map(|ntt| Box::new(ntt) as _));
        all.extend(FloatNtt::new(n, &portable).map(|ntt| Box::new(ntt) as _));
        all.extend(Float256Ntt::new(n, &portable).map(|ntt| Box::new(ntt) as _));
    }
    all.push(Box::new(portable));
    Ok(all)
}
// ANCHOR_END: best

/// The fastest of [`backends`]. Errors: the same.
pub(crate) fn best(n: usize, p: u64) -> Result<Box<dyn NttBackend>, HeError> {
    Ok(backends(n, p)?.swap_remove(0))
}
