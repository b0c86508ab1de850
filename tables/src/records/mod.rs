//! Records: one line of JSON for every number that was found.
//!
//! A line stands for itself, so files can be joined, cut and searched by line. Lines keep the order in which they
//! were made, which is that of the rows of the table.

mod file;

use report::provenance::Provenance;
use serde::{Deserialize, Serialize};

pub use file::FileError;
pub(crate) use file::{Book, parse, read};

/// A number, and what it is the number of. `C` is what a table varies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record<C> {
    /// The table that it belongs to.
    pub(crate) table: Table,
    /// What was chosen.
    pub(crate) configuration: C,
    /// What was counted: parts, phases and quantities, separated by `/`.
    pub(crate) metric: String,
    /// The number.
    pub(crate) value: f64,
    /// Its unit.
    pub(crate) unit: Unit,
    /// Whether it was computed instead of observed in a run, as the numbers of a plan are.
    pub(crate) estimated: bool,
    /// What made it.
    pub(crate) run: Provenance,
}

/// The tables that can be rendered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Table {
    /// What each part of MPCache saves.
    Ablation,
}

/// Units of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Unit {
    /// Bytes on the wire, framing included.
    Bytes,
    /// Changes of direction.
    Flows,
    /// Wall-clock seconds.
    Seconds,
    /// A share of one.
    Share,
    /// A number times that of something else.
    Times,
    /// A difference between two numbers without a unit.
    Difference,
}
