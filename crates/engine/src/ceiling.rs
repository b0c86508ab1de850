//! Bounds that hold for every entry that an operation returns, whatever its input.

/// A bound on the magnitudes that an operation returns. It holds even for inputs outside the range that the operation
/// supports.
///
/// A protocol that opens comparisons needs such a bound, because a party may choose weights that drive scores out of
/// any expected range. [`Select::ceiling`](crate::Select::ceiling) states the bounds of an engine's operations.
/// [`plus`](Ceiling::plus) and [`times`](Ceiling::times) derive the bounds of sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ceiling(u64);

impl Ceiling {
    /// No bound.
    pub const NONE: Self = Ceiling(u64::MAX);

    /// A bound of `units`, for an engine that can prove it. The engine chooses the unit, for instance its lowest bit.
    pub fn of_units(units: u64) -> Self {
        Ceiling(units)
    }

    /// The bound, in the engine's units.
    pub fn units(self) -> u64 {
        self.0
    }

    /// The bound of sums of `terms` entries, each within this bound.
    pub fn times(self, terms: usize) -> Self {
        Ceiling(self.0.saturating_mul(terms as u64))
    }

    /// The bound of sums of two entries, one within this bound and one within `other`.
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
    /// [`Select::gather`](crate::Select::gather) or [`scatter`](crate::Select::scatter).
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
