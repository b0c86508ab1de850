//! Errors that end a command.

use std::path::PathBuf;

use session::pool::PoolId;
use thiserror::Error;

use super::eval::EvalError;
use super::record::RecordError;
use super::settings::SettingsError;

/// The reason for a non-zero exit code.
#[derive(Debug, Error)]
pub(super) enum Error {
    /// An error of the library.
    #[error(transparent)]
    Library(crate::Error),
    /// Options of a file.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// Pages of results.
    #[error(transparent)]
    Tables(#[from] super::tables::TablesError),
    /// Options of a study.
    #[error(transparent)]
    Study(#[from] EvalError),
    /// Documents of other commands.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// A page of HTML.
    #[error("the page cannot be made: {0}")]
    Page(#[from] minijinja::Error),
    /// A plot.
    #[cfg(feature = "plots")]
    #[error("a plot: {0}")]
    Drawing(#[from] super::plot::DrawError),
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// Standard output takes no more.
    #[error("standard output: {source}")]
    Output {
        /// The cause.
        source: std::io::Error,
    },
    /// A pool that is not there.
    #[error("no pool {id} in {}", paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", "))]
    NoSuchPool {
        /// The id given.
        id: PoolId,
        /// Where it was looked for.
        paths: Vec<PathBuf>,
    },
    /// Answers that end and do not end.
    #[error("--stop-at-eos and --no-stop-at-eos exclude each other")]
    StopAndNot,
    /// A conversation without a turn.
    #[error("no turn was taken; refused: {refused}")]
    AllRefused {
        /// Turns that were refused.
        refused: usize,
    },
    /// A prompt that no model takes.
    #[error("{}: a prompt has at most {limit} bytes", path.display())]
    LongPrompt {
        /// The file.
        path: PathBuf,
        /// The most bytes.
        limit: u64,
    },
    /// Measurements of a machine that cannot be used.
    #[error("{}: {source}", path.display())]
    Calibration {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: planner::ProfileError,
    },
    /// Nothing to predict times with.
    #[error("predictions need a calibration: {what}")]
    NotCalibrated {
        /// The fault of the calibration.
        what: String,
    },
    /// The figures of other systems.
    #[error("src/cli/published.json: {source}")]
    Published {
        /// The cause.
        source: serde_json::Error,
    },
    /// A cell of a sweep.
    #[error("{cell}")]
    Cell {
        /// Which.
        cell: String,
        /// The cell's error.
        source: Box<Error>,
    },
    /// Positions for a model that has weights for them.
    #[error("--positions raises those of shapes and of `config.json` files; {name} is neither")]
    PositionsOfWeights {
        /// The model.
        name: String,
    },
    /// A run of a comparison failed.
    #[error("{program}: {what}")]
    Compared {
        /// The program.
        program: String,
        /// The program's exit status, and the end of its output.
        what: String,
    },
    /// The server of a demo cannot be started.
    #[error("cannot start the server's process")]
    Spawn {
        /// The cause.
        source: std::io::Error,
    },
    /// The server of a demo ended or said something unexpected.
    #[error("the server's process failed: {what}")]
    Child {
        /// The failure.
        what: String,
    },
}

impl<E: Into<crate::Error>> From<E> for Error {
    fn from(error: E) -> Self {
        Error::Library(error.into())
    }
}
