//! What ends a command.

use std::path::PathBuf;

use session::pool::PoolId;
use thiserror::Error;

/// Why a client gets no place.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(super) enum Full {
    /// Everybody serves, and the queue is full.
    #[error("this server is busy: {waiting} clients wait already")]
    Queue {
        /// Clients that wait.
        waiting: usize,
    },
    /// The key has as many sessions as it may, those that wait included.
    #[error("this key has {limit} sessions here already")]
    Key {
        /// The most at once.
        limit: usize,
    },
    /// The server finishes what runs and then ends.
    #[error("this server is ending")]
    Ending,
}

/// The reason for a non-zero exit code.
#[derive(Debug, Error)]
pub(super) enum Error {
    /// A model, an engine or the peer.
    #[error(transparent)]
    Model(#[from] session::Error),
    /// Nothing is learned from a text.
    #[error(transparent)]
    Fit(#[from] study::fit::FitError),
    /// Processes that multiply together.
    #[error(transparent)]
    Spread(#[from] spread::SpreadError),
    /// A process that multiplies for another one.
    #[error("rank {rank} on {host}")]
    Rank {
        /// Which.
        rank: usize,
        /// Its machine.
        host: String,
        /// What happened.
        source: Box<Error>,
    },
    /// Options of a file.
    #[error(transparent)]
    Settings(#[from] super::settings::SettingsError),
    /// A family of kernels that the processor lacks.
    #[error(transparent)]
    Cpu(#[from] bits::cpu::CpuError),
    /// A tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] tokenizer::TokenizerError),
    /// Pages of results.
    #[error(transparent)]
    Tables(tables::TablesError),
    /// What a server's model must be, or was.
    #[error(transparent)]
    Pin(#[from] session::PinError),
    /// The network.
    #[error(transparent)]
    Net(#[from] net::NetError),
    /// A key or a file of keys.
    #[error(transparent)]
    Key(#[from] net::KeyError),
    /// Nowhere to look for keys.
    #[error("no place for keys: set WAGGLE_HOME or HOME, or give --identity")]
    NoHome,
    /// A server that ended the connection before it proved a key.
    #[error("{source}; perhaps the server runs in plaintext, or has too many connections from this address")]
    NoAnswer {
        /// The step.
        source: net::NetError,
    },
    /// A server that nobody has vouched for.
    #[error(
        "the server at {address} is not known here; if its owner says that its key is {key}, trust it with --server-key {key}"
    )]
    UnknownServer {
        /// The server's address.
        address: String,
        /// The key it showed.
        key: net::PublicKey,
    },
    /// A known server with another key.
    #[error(
        "THE KEY OF THE SERVER AT {address} HAS CHANGED: it was {known} (in {}) and is {key}; somebody may pretend to be it. \
         Only if its owner says that the key is new, trust it with --server-key {key}",
        file.display()
    )]
    ChangedServer {
        /// The server's address.
        address: String,
        /// The key remembered.
        known: net::PublicKey,
        /// Where it is remembered.
        file: PathBuf,
        /// The key it showed.
        key: net::PublicKey,
    },
    /// Another server than the one asked for.
    #[error("the server at {address} has the key {key}, not {given} as --server-key says")]
    OtherServer {
        /// The server's address.
        address: String,
        /// The key asked for.
        given: net::PublicKey,
        /// The key it showed.
        key: net::PublicKey,
    },
    /// A cache policy.
    #[error(transparent)]
    Policy(#[from] mpcache::PolicyError),
    /// A policy that needs to see values, between two parties.
    #[error("cache policy `{policy}` works only in the clear, not between two parties")]
    ClearOnly {
        /// The policy.
        policy: String,
    },
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
    #[error("no pool {id} in {}", places(.paths))]
    NoSuchPool {
        /// The id given.
        id: PoolId,
        /// Where it was looked for.
        paths: Vec<PathBuf>,
    },
    /// No such model.
    #[error(
        "`{name}` is neither a directory nor a bundled model ({}) nor a published shape ({}){}",
        model::bundled_names().collect::<Vec<_>>().join(", "),
        model::shape_names().collect::<Vec<_>>().join(", "),
        model::hints::of_name(.name)
    )]
    NoModel {
        /// The name given.
        name: String,
    },
    /// A shape where weights are needed.
    #[error(
        "`{name}` is a shape without weights, for `plan` and `sweep`: `waggle synth --config {name} --out DIR` makes random ones"
    )]
    NoWeights {
        /// The shape.
        name: String,
    },
    /// A prompt in words for a model that knows none.
    #[error("this model has no tokenizer: give the prompt as token ids, for example --prompt-ids 1,2,3")]
    NoTokenizer,
    /// A conversation with a model that knows no words.
    #[error("a conversation needs a tokenizer, and the server's model has none: give one with --tokenizer")]
    ChatNeedsTokenizer,
    /// A conversation that would be read again where the lengths of answers are hidden.
    #[error(
        "the chat template changes what was said before, and reading it again would show how long the answers were: \
         give another --template, or --no-pad-answer"
    )]
    Rereads,
    /// Answers that end and do not end.
    #[error("--stop-at-eos and --no-stop-at-eos exclude each other")]
    StopAndNot,
    /// A plaintext model that is not the server's.
    #[error("`{name}` has another shape than the server's model, so --check would compare different models")]
    CheckShape {
        /// The name given.
        name: String,
    },
    /// Ctrl-C in a conversation.
    #[error("interrupted")]
    Interrupted,
    /// A conversation without a turn.
    #[error("no turn was taken; refused: {refused}")]
    AllRefused {
        /// How many were refused.
        refused: usize,
    },
    /// A session with a conversation failed.
    #[error("{}; the conversation so far is in {}", describe(.source), file.display())]
    ChatBroken {
        /// What happened.
        source: Box<Error>,
        /// Where it is.
        file: PathBuf,
    },
    /// A session with a conversation failed, and the conversation cannot be kept.
    #[error("{}; the conversation so far cannot be kept: {what}", describe(.source))]
    ChatLost {
        /// What happened.
        source: Box<Error>,
        /// Why it cannot.
        what: String,
    },
    /// A prompt that no model takes.
    #[error("{}: a prompt has at most {limit} bytes", path.display())]
    LongPrompt {
        /// The file.
        path: PathBuf,
        /// The most bytes.
        limit: u64,
    },
    /// The tokenizer's process.
    #[error("tokenizer: {source}")]
    TokenizerWorker {
        /// The cause.
        source: std::io::Error,
    },
    /// The prompt has no tokens.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// A prompt longer than all lengths it may be padded to.
    #[error("the prompt has {tokens} tokens, the longest of --pad-prompt is {longest}")]
    NoLength {
        /// Tokens of the prompt.
        tokens: usize,
        /// The longest padded prompt.
        longest: usize,
    },
    /// Sampling where the client learns one token.
    #[error(
        "--temperature needs --reveal logits: with --reveal token the client learns the most probable token only"
    )]
    SamplingNeedsLogits,
    /// Measurements of a machine that cannot be used.
    #[error("{}: {source}", path.display())]
    Calibration {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: planner::ProfileError,
    },
    /// A file that is no report.
    #[error("{}: no report of a run: {what}", path.display())]
    NotReport {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// Plots of a study and of something else.
    #[cfg(feature = "plots")]
    #[error("{}: a study is plotted alone", path.display())]
    StudyBesideOthers {
        /// The study.
        path: PathBuf,
    },
    /// A sweep where it is of no use.
    #[error("{}: a sweep is a table, which `waggle report` shows; it has no plot and no page, and is not compared", path.display())]
    SweepAlone {
        /// The sweep.
        path: PathBuf,
    },
    /// A document without anything to draw.
    #[cfg(feature = "plots")]
    #[error("there is nothing to plot: a study needs a policy beside `full`, and a report costs")]
    NothingToPlot,
    /// A drawing.
    #[cfg(feature = "plots")]
    #[error("a plot: {0}")]
    Drawing(#[from] super::plot::DrawError),
    /// A page of HTML.
    #[error("the page cannot be made: {0}")]
    Page(#[from] minijinja::Error),
    /// A report of a run that cannot be planned again.
    #[error("its options cannot be planned: {what}")]
    Unplannable {
        /// Which option, or why.
        what: String,
    },
    /// Nothing to predict times with.
    #[error("predictions need a calibration: {what}")]
    NotCalibrated {
        /// What is wrong with it.
        what: String,
    },
    /// The figures of other systems.
    #[error("bench/published.json: {source}")]
    Published {
        /// What is wrong with them.
        source: serde_json::Error,
    },
    /// A cell of a sweep.
    #[error("{cell}")]
    Cell {
        /// Which.
        cell: String,
        /// What happened.
        source: Box<Error>,
    },
    /// Positions for a model that has weights for them.
    #[error("--positions raises those of shapes and of `config.json` files; {name} is neither")]
    PositionsOfWeights {
        /// The model.
        name: String,
    },
    /// Two files that cannot be compared.
    #[error("{} and {}: one is the report of a run, the other a study", paths[0].display(), paths[1].display())]
    Incomparable {
        /// Both.
        paths: [PathBuf; 2],
    },
    /// A run of a comparison failed.
    #[error("{program}: {what}")]
    Compared {
        /// The program.
        program: String,
        /// How it ended, and the end of what it said.
        what: String,
    },
    /// Sampling options without sampling.
    #[error("--top-p and --seed need a --temperature above 0")]
    NothingToSample,
    /// Pools in one-phase sessions.
    #[error("pools belong to sessions with --preprocess, not --preprocess false")]
    PoolNeedsPreprocess,
    /// A session of a server failed.
    #[error("session with {peer}")]
    Session {
        /// The client's address.
        peer: String,
        /// What happened.
        source: Box<Error>,
    },
    /// A study of cache policies.
    #[error(transparent)]
    Eval(#[from] study::eval::EvalError),
    /// An option that a task does not read.
    #[error("--{option} is no option of --task {task}, which takes --{}", .takes.join(", --"))]
    NotOfTask {
        /// The option.
        option: &'static str,
        /// The task.
        task: &'static str,
        /// The options that it reads.
        takes: &'static [&'static str],
    },
    /// Options about pruning where nothing is pruned.
    #[error("--budgets and --plots need a policy beside `full`, and --budgets one without a budget of its own")]
    NothingPruned,
    /// A text task without text.
    #[error("--text is missing")]
    NoText,
    /// A text for a measure that takes random words.
    #[error("--by echo judges heads on random words and takes no --text")]
    TextBesideEcho,
    /// A file that is no text.
    #[error("{}: not UTF-8", path.display())]
    NotUtf8 {
        /// The file.
        path: PathBuf,
    },
    /// A JSON file that is no list of texts.
    #[error("{}: not a list of texts: {what}", path.display())]
    NotTexts {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A client whose key is not on the list.
    #[error("{advice}")]
    Stranger {
        /// Its key.
        key: net::PublicKey,
        /// How to let it in.
        advice: String,
    },
    /// A client for which there is no place.
    #[error(transparent)]
    Full(#[from] Full),
    /// A client that waited and left.
    #[error("the client left the queue")]
    ClientLeft,
    /// A session that took too long.
    #[error("the session took longer than {seconds} s (--session-limit)")]
    SessionLimit {
        /// The limit.
        seconds: f64,
    },
    /// A server cannot listen.
    #[error(
        "cannot listen on {address}: {source}{}",
        if source.kind() == std::io::ErrorKind::AddrInUse { "; --listen takes another one, port 0 any that is free" } else { "" }
    )]
    Listen {
        /// Where.
        address: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The system refuses what a server needs.
    #[error("cannot {what}: {source}")]
    Serve {
        /// What.
        what: &'static str,
        /// The cause.
        source: std::io::Error,
    },
    /// A bug.
    #[error("the session panicked")]
    Panicked,
    /// The server of a demo cannot be started.
    #[error("cannot start the server's process")]
    Spawn {
        /// The cause.
        source: std::io::Error,
    },
    /// The server of a demo ended or said something unexpected.
    #[error("the server's process failed: {what}")]
    Child {
        /// How.
        what: String,
    },
}

impl From<model::Error> for Error {
    fn from(error: model::Error) -> Self {
        Error::Model(error.into())
    }
}

fn places(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// The error and its causes, in one line.
pub(super) fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let part = error.to_string();
        // Transparent errors and those that quote their cause say everything already.
        if !text.contains(&part) {
            text = format!("{text}: {part}");
        }
        cause = error.source();
    }
    // Lists that an error puts on lines of their own.
    text.replace(":\n", ": ").replace('\n', "; ").chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

impl From<tables::TablesError> for Error {
    fn from(error: tables::TablesError) -> Self {
        match error {
            tables::TablesError::Output(source) => Error::Output { source },
            error => Error::Tables(error),
        }
    }
}
