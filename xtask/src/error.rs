//! What can go wrong in a command.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// A command that did not do what it was asked, or found what it looks for.
#[derive(Debug, Error)]
pub(crate) enum Error {
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A source file is not Rust.
    #[error("{}: {source}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Why.
        source: syn::Error,
    },
    /// A report of criterion has another form than expected.
    #[error("{}: {source}", path.display())]
    Report {
        /// The file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// The file of a module that a source file declares is not there.
    #[error("{}: no file for `mod {module};`", path.display())]
    NoModule {
        /// The file with the declaration.
        path: PathBuf,
        /// The module.
        module: String,
    },
    /// A line of the list of allowed cycles that cannot be read.
    #[error("{}:{line}: expected `CRATE: MODULE MODULE ...`", path.display())]
    Allowance {
        /// The list.
        path: PathBuf,
        /// Number of the line.
        line: usize,
    },
    /// A program cannot be started.
    #[error("`{line}` did not start: {source}")]
    Start {
        /// The command line.
        line: String,
        /// Why.
        source: io::Error,
    },
    /// A program failed.
    #[error("`{line}` failed")]
    Failed {
        /// The command line.
        line: String,
    },
    /// A check found something, and has printed it.
    #[error("{0}")]
    Found(String),
}
