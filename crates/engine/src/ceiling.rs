//! Bounds that hold for every entry an operation returns, whatever it was given.

/// A bound on the magnitudes that an operation returns, also where its inputs left the range that it supports.
///
/// Whoever opens comparisons needs one: a party may choose weights that drive scores out of any range that is merely
/// expected. [`Select::ceiling`](crate::Select::ceiling) states the bounds of an engine's operations; sums follow
/// from these by [`plus`](Ceiling::plus) and [`times`](Ceiling::times).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ceiling(u64);

impl Ceiling {
    /// No bound.
    pub const NONE: Self = Ceiling(u64::MAX);

    /// A bound of `units`, for an engine that can prove it. The engine chooses the unit: its last place, for
    /// instance.
    pub fn of_units(units: u64) -> Self {
        Ceiling(units)
    }

    /// The bound, in the engine's units.
    pub fn units(self) -> u64 {
        self.0
    }

    /// Of sums of `terms` such entries.
    pub fn times(self, terms: usize) -> Self {
        Ceiling(self.0.saturating_mul(terms as u64))
    }

    /// Of sums of an entry below this and one below `other`.
    pub fn plus(self, other: Self) -> Self {
        Ceiling(self.0.saturating_add(other.0))
    }
}

/// The operation that entries come from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Origin {
    /// [`Engine::matmul`](crate::Engine::matmul).
    Product,
    /// [`Engine::softmax`](crate::Engine::softmax).
    Probability,
    /// [`Select::sum_squares`](crate::Select::sum_squares), also of entries that were negated.
    Squares,
    /// [`Select::gather`](crate::Select::gather) or [`scatter`](crate::Select::scatter) of entries of this magnitude.
    Moved {
        /// The `magnitude` that the operation was given.
        magnitude: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_unbounded_entries_have_no_bound() {
        let one = Ceiling::of_units(1);
        assert_eq!(one.times(3).plus(one).units(), 4);
        assert_eq!(Ceiling::NONE.plus(one), Ceiling::NONE);
        assert_eq!(Ceiling::NONE.times(2), Ceiling::NONE);
        assert!(one < Ceiling::NONE);
    }
}
