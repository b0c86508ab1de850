//! The generators of correlated OTs by name, and their traffic.

use crate::OtError;
use crate::silent;
use crate::softspoken::{self, SoftSpoken};
use crate::source::{ExtendWork, Wire};

/// A generator of correlated OTs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CotKind {
    /// Silent OT (Ferret): some 2.5 bits per OT, in large rounds. While few OTs are needed, they are made by
    /// SoftSpoken OT.
    #[default]
    Silent,
    /// SoftSpoken OT extension.
    SoftSpoken(SoftSpoken),
    /// The ideal dealer of [`crate::dealer`]: no traffic, no security, for tests only.
    #[cfg(feature = "dealer")]
    Dealer,
}

impl CotKind {
    /// The number of OTs that an extension makes after `made` in its direction, when at least `n` are needed.
    pub fn extend_amount(self, made: u64, n: usize) -> usize {
        match self {
            CotKind::Silent => silent::extend_amount(made, n),
            CotKind::SoftSpoken(_) => softspoken::extend_amount(n),
            #[cfg(feature = "dealer")]
            CotKind::Dealer => n.next_multiple_of(128),
        }
    }

    /// The traffic of an extension by `n` OTs (a result of [`extend_amount`](Self::extend_amount)) after `made` OTs.
    pub fn extend_wire(self, made: u64, n: usize) -> Wire {
        match self {
            CotKind::Silent => silent::extend_wire(made, n),
            CotKind::SoftSpoken(kind) => kind.extend_wire(n),
            #[cfg(feature = "dealer")]
            CotKind::Dealer => Wire::default(),
        }
    }

    /// Whether extensions after `made` OTs are the same for every larger `made`.
    pub(crate) fn is_steady(self, made: u64) -> bool {
        match self {
            CotKind::Silent => silent::is_steady(made),
            CotKind::SoftSpoken(_) => true,
            #[cfg(feature = "dealer")]
            CotKind::Dealer => true,
        }
    }

    /// The work of an extension by `n` OTs after `made` OTs, see [`extend_wire`](Self::extend_wire).
    pub fn extend_work(self, made: u64, n: usize) -> ExtendWork {
        match self {
            CotKind::Silent => silent::extend_work(made, n),
            CotKind::SoftSpoken(kind) => ExtendWork { silent: 0, softspoken: kind.leaves(n) },
            #[cfg(feature = "dealer")]
            CotKind::Dealer => ExtendWork::default(),
        }
    }

    /// Bits on the wire per OT, where many OTs are made. The number is rounded to the nearest integer.
    pub fn bits_per_ot(self) -> usize {
        let many = 1 << 20;
        let amount = self.extend_amount(many, many as usize);
        (8 * self.extend_wire(many, amount).bytes() as usize + amount / 2) / amount
    }

    /// The default of [`PoolPlan::min_batch`](crate::PoolPlan::min_batch).
    pub fn default_batch(self) -> usize {
        match self {
            CotKind::Silent | CotKind::SoftSpoken(_) => 1 << 13,
            #[cfg(feature = "dealer")]
            CotKind::Dealer => 1 << 10,
        }
    }

    /// The SoftSpoken extension that the set-up prepares for this generator.
    pub(crate) fn softspoken(self) -> Result<SoftSpoken, OtError> {
        match self {
            CotKind::Silent => Ok(silent::BOOTSTRAP),
            CotKind::SoftSpoken(kind) => Ok(kind),
            #[cfg(feature = "dealer")]
            CotKind::Dealer => Err(OtError::Parameter { what: "kind", allowed: "those with a set-up", got: 0 }),
        }
    }
}
