//! Bounds that hold for every word an operation returns, whatever it was given.

use crate::Error;
use crate::engine::ring::{MATMUL_ROUNDING, SCALE_FRAC};
use crate::functions::selection::payload_rounding;
use crate::functions::softmax;
use crate::ops::truncate;
use crate::ops::truncate::Truncation;

/// A bound on the magnitude of the words that operations between two parties return, also where their inputs left the range
/// that the operation supports: it follows from the ring of the truncation that made the words. Who opens comparisons needs
/// it, because a party may choose weights that drive scores out of any range that is merely expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ceiling(u64);

impl Ceiling {
    /// Of what `how` returns.
    fn of(how: Truncation) -> Self {
        Ceiling(truncate::ceiling(how))
    }

    /// Of what [`Engine::matmul`](crate::Engine::matmul) and [`matmul_growing`](crate::Engine::matmul_growing) return.
    pub fn product() -> Self {
        Ceiling::of(MATMUL_ROUNDING)
    }

    /// Of what [`Engine::softmax`](crate::Engine::softmax) returns.
    pub fn probability() -> Self {
        Ceiling::of(softmax::rounding())
    }

    /// Of what [`Engine::gather`](crate::Engine::gather) and [`scatter`](crate::Engine::scatter) return for this `magnitude`.
    ///
    /// # Errors
    /// [`Error::Width`] if they do not support it.
    pub fn moved(magnitude: u32) -> Result<Self, Error> {
        Ok(Ceiling::of(payload_rounding(magnitude)?))
    }

    /// Of what [`Engine::scale`](crate::Engine::scale) by `factor` returns for words below this.
    pub fn scaled(self, factor: f32) -> Self {
        // Below 2^62 the truncation is in range, and off by less than one.
        let product = self.0 as f64 * (f64::from(factor).abs() + 1.0);
        if product * f64::from(1u32 << SCALE_FRAC) < (1u64 << 62) as f64 {
            return Ceiling(product as u64 + 1);
        }
        Ceiling::of(Truncation { width: 64, shift: SCALE_FRAC, out: 64 })
    }

    /// Of sums of `terms` such words.
    pub fn times(self, terms: usize) -> Self {
        Ceiling(self.0.saturating_mul(terms as u64))
    }

    /// Of sums of a word below this and one below `other`.
    pub fn plus(self, other: Self) -> Self {
        Ceiling(self.0.saturating_add(other.0))
    }

    /// The bound, in units of the last place.
    pub(crate) fn units(self) -> u64 {
        self.0
    }
}
