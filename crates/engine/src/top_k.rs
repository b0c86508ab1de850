//! Methods to find the largest entries of a row.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::ceiling::Ceiling;

/// A method of [`Select::top_k`](crate::Select::top_k). All methods find the same entries. They differ in cost and in
/// what the parties see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TopK {
    /// All pairs of the n entries are compared and the ranks stay secret: n (n - 1) / 2 comparisons in one batch.
    /// Nothing is revealed.
    #[default]
    Rank,
    /// A secret-shared shuffle, then quickselect on opened comparisons: about 3 n comparisons for n entries, in a few
    /// batches. Both parties see how the shuffled entries compare; neither knows the permutation.
    ShuffleReveal,
    /// A sorting network on entries and indices, in many rounds. Nothing is revealed.
    Sort,
}

/// The error for a name that no method has.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown top-k method `{name}`; known are: rank, shuffle-reveal, sort")]
pub struct UnknownTopK {
    /// The name that was given.
    pub name: String,
}

impl TopK {
    /// All methods.
    pub const ALL: [Self; 3] = [Self::Rank, Self::ShuffleReveal, Self::Sort];
}

impl fmt::Display for TopK {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Self::Rank => "rank",
            Self::ShuffleReveal => "shuffle-reveal",
            Self::Sort => "sort",
        })
    }
}

impl FromStr for TopK {
    type Err = UnknownTopK;

    fn from_str(name: &str) -> Result<Self, UnknownTopK> {
        let named = |method: &Self| method.to_string() == name;
        Self::ALL.into_iter().find(named).ok_or_else(|| UnknownTopK { name: name.into() })
    }
}

/// A request to [`Select::top_k`](crate::Select::top_k).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranking {
    /// Entries to find in each row, at least 1 and at most the row's length.
    pub k: usize,
    /// The method to find them.
    pub method: TopK,
    /// log2 of a bound on the entries' magnitudes, at most 20. An entry above the bound spoils the choice. A clear
    /// engine ignores it.
    pub magnitude: u32,
    /// A bound that no entry can exceed, whatever the weights and inputs are. [`TopK::ShuffleReveal`] compares in a
    /// ring that holds this bound, because comparisons of wrapped values would reveal something about them.
    pub ceiling: Ceiling,
    /// Fractional bits that are compared, at most as many as the engine's activations have.
    pub frac: u32,
    /// Whether every engine first rounds entries to the nearest multiple of 2^-frac and takes equal ones in the order
    /// of their positions. Noise then matters only to entries that lie about halfway between two multiples. If this
    /// is false, entries that differ by less than 2 * 2^-frac are taken in either order, and an engine in floating
    /// point compares all its bits.
    pub rounded: bool,
}

impl Ranking {
    /// The error that entries may have in an engine that rounds, in units of 2^-frac.
    pub fn noise(&self) -> f64 {
        // One unit for dropped bits of the shares, one for the error of earlier operations.
        if self.rounded { GRID_NOISE } else { 2.0 }
    }
}

/// The error that an entry may have before it is [rounded](Ranking::rounded), as a share of the distance 2^-frac
/// between multiples. A caller must choose `frac` accordingly. Only an entry that lies within this error of the
/// middle between two multiples can be rounded to another multiple. That is a share of twice `GRID_NOISE` of all
/// values.
pub const GRID_NOISE: f64 = 1.0 / 16.0;
