//! Methods to find the largest entries of a row.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::ceiling::Ceiling;

/// A method of [`Select::top_k`](crate::Select::top_k). All find the same entries; they differ in cost and in what
/// the parties see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TopK {
    /// All pairs are compared, and the ranks stay secret: n (n - 1) / 2 comparisons in one batch, nothing revealed.
    #[default]
    Rank,
    /// A secret-shared shuffle, then quickselect on opened comparisons: about 3 n comparisons in a few batches. Both
    /// parties see how the entries compare after a permutation that neither knows.
    ShuffleReveal,
    /// A sorting network on entries and indices: nothing revealed, many rounds.
    Sort,
}

/// A name that is no method.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown top-k method `{name}`; known are: rank, shuffle-reveal, sort")]
pub struct UnknownTopK {
    /// The name given.
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
    /// Entries wanted of each row, at least 1 and at most the row's length.
    pub k: usize,
    /// The method to find them.
    pub method: TopK,
    /// log2 of a bound on the magnitudes, at most 20. Larger ones spoil the choice. A clear engine does not need it.
    pub magnitude: u32,
    /// A bound that nothing can exceed, whatever weights and inputs: [`TopK::ShuffleReveal`] compares in a ring that
    /// holds it, because comparisons of values that wrapped would show something about them.
    pub ceiling: Ceiling,
    /// Fractional bits that are compared, at most those that the engine's activations have.
    pub frac: u32,
    /// Whether entries are first rounded to the nearest multiple of 2^-frac, by every engine alike, and equal ones
    /// are taken in their order. Rounding noise then decides only about entries beside the middle between two
    /// multiples. Otherwise entries closer than two such units are taken in either order, and an engine in floating
    /// point compares all it has.
    pub rounded: bool,
}

impl Ranking {
    /// The error that entries may have in an engine that rounds, in units of 2^-frac.
    pub fn noise(&self) -> f64 {
        // Dropped bits of the shares, and as much for what came before.
        if self.rounded { GRID_NOISE } else { 2.0 }
    }
}

/// The part of the distance between multiples by which entries that are [rounded](Ranking::rounded) may be off.
/// Whoever chooses the multiples chooses them so far apart. An entry changes its multiple only if it lies so close to
/// the middle between two, which two such parts of all positions do.
pub const GRID_NOISE: f64 = 1.0 / 16.0;
