//! Errors that end a command.

use std::path::{Path, PathBuf};

use thiserror::Error;
use waggle_session::pool::PoolId;

use super::record::RecordError;

/// An error that ends a command with a non-zero exit code.
#[derive(Debug, Error)]
pub(super) enum Error {
    #[error(transparent)]
    Library(waggle::Error),
    #[error(transparent)]
    Proxy(waggle_proxy::ProxyError),
    #[error(transparent)]
    Tables(#[from] super::tables::TablesError),
    #[error(transparent)]
    Study(#[from] EvalError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error("the page cannot be made: {0}")]
    Page(minijinja::Error),
    #[error("a plot: {0}")]
    Drawing(super::plot::DrawError),
    /// Standard output cannot be written.
    #[error("standard output: {0}")]
    Output(#[source] std::io::Error),
    #[error("no pool {id} in {}", paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", "))]
    NoSuchPool { id: PoolId, paths: Vec<PathBuf> },
    /// Three parties are asked for, but no third one is named.
    #[error("--parties 3 needs the third one: --helper, the address of a `waggle helper`")]
    ThirdParty,
    #[error("--stop-at-eos and --no-stop-at-eos exclude each other")]
    StopAndNot,
    /// All turns of the conversation were refused.
    #[error("no turn was taken; refused: {refused}")]
    AllRefused { refused: usize },
    #[error("{}: a prompt has at most {limit} bytes", path.display())]
    LongPrompt { path: PathBuf, limit: u64 },
    /// A file of public tokens is no list of ids.
    #[error("{}: a list of token ids is expected, as [1, 2, 3]: {what}", path.display())]
    PublicIds { path: PathBuf, what: String },
    /// The measurements of a machine cannot be used.
    #[error("{}: {source}", path.display())]
    Calibration { path: PathBuf, source: waggle_planner::ProfileError },
    /// Other programs compute on the machine that is to be measured.
    #[error(
        "this machine is busy: threads that compute get {percent:.0} % of its cores, and measured so it looks slower \
         than it is; end what else runs, or give --anyway"
    )]
    Busy { percent: f64 },
    #[error("predictions need a calibration: {0}")]
    NotCalibrated(String),
    /// A cell of a sweep failed.
    #[error("{cell}")]
    Cell { cell: String, source: Box<Error> },
    #[error("the keys and values of one text take {cache} bytes, more than --memory {memory}")]
    CacheTooLarge { cache: u64, memory: u64 },
    #[error("--positions raises those of shapes and of `config.json` files; {0} is neither")]
    PositionsOfWeights(String),
    #[error(transparent)]
    Column(waggle_report::table::LayoutError),
    #[error("{paper} has no row {row}, only 1 to {rows}")]
    NoRow { paper: String, row: usize, rows: usize },
    /// A run of a comparison failed.
    #[error("{program}: {what}")]
    Compared { program: String, what: String },
    #[error("cannot start the server's process")]
    Spawn(#[source] std::io::Error),
    /// The server of a demo ended or said something unexpected.
    #[error("the server's process failed: {0}")]
    Child(String),
}

/// Why the options of a study contradict each other.
#[derive(Debug, thiserror::Error)]
pub(super) enum EvalError {
    #[error("--{option} is no option of --task {task}, which takes --{}", .takes.join(", --"))]
    NotOfTask { option: &'static str, task: &'static str, takes: &'static [&'static str] },
    #[error("--budgets and --plots need a policy beside `full`, and --budgets one without a budget of its own")]
    NothingPruned,
    #[error("--text is missing")]
    NoText,
    #[error("--by echo judges heads on random words and takes no --text")]
    TextBesideEcho,
}

impl Error {
    pub(super) fn child(what: impl ToString) -> Self {
        Error::Child(what.to_string())
    }
}

impl<E: Into<waggle::Error>> From<E> for Error {
    fn from(error: E) -> Self {
        Error::Library(error.into())
    }
}

/// Makes the folder `dir`, with all folders above it.
pub(super) fn make_dir(dir: &Path) -> Result<(), Error> {
    Ok(std::fs::create_dir_all(dir).map_err(waggle_files::at(dir))?)
}
