//! What ends the ablation.

use std::path::PathBuf;

use mpcache::PolicyError;
use thiserror::Error;

use super::cells::RecordsError;
use crate::records::FileError;

/// What ends the ablation.
#[derive(Debug, Error)]
pub enum AblationError {
    /// A configuration that is none.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// An engine failed.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// A protocol failed.
    #[error(transparent)]
    Protocol(#[from] protocols::Error),
    /// The model failed.
    #[error(transparent)]
    Model(#[from] model::Error),
    /// The records could not be kept.
    #[error(transparent)]
    File(#[from] FileError),
    /// The records do not make a table.
    #[error(transparent)]
    Records(#[from] RecordsError),
    /// Table and records would overwrite each other.
    #[error("the table and its records cannot both be {path}", path = .0.display())]
    SameFile(PathBuf),
    /// The link between the parties, or a temporary directory, could not be made.
    #[error("cannot set up the run: {0}")]
    Link(std::io::Error),
    /// The table could not be written.
    #[error("cannot write {path}: {source}", path = .path.display())]
    Write {
        /// Where.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The parties' ledgers differ.
    #[error("{policy}: the ledgers of the two parties differ")]
    Ledgers {
        /// Which run.
        policy: String,
    },
    /// The plan is not what was sent.
    #[error("{policy}: the plan differs from the ledger at {at}")]
    Plan {
        /// Which run.
        policy: String,
        /// Phase, path and both accounts.
        at: String,
    },
    /// A wrong answer.
    #[error("{policy}: wrong by {error}")]
    Wrong {
        /// Which run.
        policy: String,
        /// By how much.
        error: f64,
    },
    /// A cache too short for the steps around it.
    #[error("a cache of {cache} tokens is too short for {steps} steps")]
    Short {
        /// Its length.
        cache: usize,
        /// Steps around it.
        steps: usize,
    },
}
