//! Errors that end a call of this library.

use std::path::PathBuf;

use thiserror::Error;
use waggle_net::PublicKey;

use crate::pixels::ImageError;

/// An error that ends a session, a plan or a study.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A model, an engine or the peer failed.
    #[error(transparent)]
    Session(#[from] waggle_session::Error),
    /// A study of cache policies failed.
    #[error(transparent)]
    Study(#[from] waggle_study::eval::EvalError),
    /// A study of an encoder failed.
    #[error(transparent)]
    Glue(#[from] waggle_study::glue::GlueError),
    /// Learning from a text failed.
    #[error(transparent)]
    Fit(#[from] waggle_study::fit::FitError),
    /// A tokenizer is refused or failed.
    #[error(transparent)]
    Tokenizer(#[from] waggle_tokenizer::TokenizerError),
    /// The public model of a server is not the expected one, or has changed.
    #[error(transparent)]
    Pin(#[from] waggle_session::PinError),
    /// The network failed.
    #[error(transparent)]
    Net(#[from] waggle_net::NetError),
    /// A key or a file of keys cannot be used.
    #[error(transparent)]
    Key(#[from] waggle_net::KeyError),
    /// The environment names a family of kernels that the processor lacks.
    #[error(transparent)]
    Cpu(#[from] waggle_bits::cpu::CpuError),
    /// The processes that multiply together failed.
    #[error(transparent)]
    Spread(#[from] waggle_spread::SpreadError),
    /// The server's key is not trusted.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// A name stands for no model that can be used.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Options cannot be used, for example because they contradict each other.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The input makes no prompt.
    #[error(transparent)]
    Prompt(#[from] PromptError),
    /// An image cannot be read, or a model's preparation of images is not supported.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A conversation failed. After [`ChatError::Refused`] the conversation goes on.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// A server did not serve a client to the end.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] waggle_files::FileError),
    /// The system refuses what a session needs.
    #[error("cannot {what}: {source}")]
    System {
        /// The action that is refused.
        what: &'static str,
        /// The cause.
        source: std::io::Error,
    },
    /// A thread panicked, which is a bug.
    #[error("the session panicked")]
    Panicked,
}

impl Error {
    /// Whether a conversation goes on after this error.
    pub fn leaves_the_conversation(&self) -> bool {
        matches!(self, Error::Chat(ChatError::Refused(_)))
    }
}

impl From<waggle_model::Error> for Error {
    fn from(error: waggle_model::Error) -> Self {
        Error::Session(error.into())
    }
}

impl From<waggle_mpcache::PolicyError> for Error {
    fn from(error: waggle_mpcache::PolicyError) -> Self {
        waggle_model::Error::from(error).into()
    }
}

/// Why a client does not talk to a server.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TrustError {
    /// No directory for keys is known.
    #[error("no place for keys: set WAGGLE_HOME or HOME")]
    NoHome,
    /// The server ended the connection before it proved a key.
    #[error("{0}; perhaps the server runs in plaintext, or has too many connections from this address")]
    NoAnswer(#[source] waggle_net::NetError),
    /// Nobody has vouched for the server.
    #[error("the server at {address} is not known here; it proves the key {key}, which its owner can confirm")]
    Unknown {
        /// The server's address.
        address: String,
        /// The key that the server showed.
        key: PublicKey,
    },
    /// The server at a known address shows another key than the known one.
    #[error(
        "THE KEY OF THE SERVER AT {address} HAS CHANGED: it was {known} (in {}) and is {key}; somebody may pretend to be it. \
         Trust the new key only if its owner says that it is new",
        file.display()
    )]
    Changed {
        /// The server's address.
        address: String,
        /// The key remembered.
        known: PublicKey,
        /// The file that remembers the key.
        file: PathBuf,
        /// The key that the server showed.
        key: PublicKey,
    },
    /// The server shows another key than the one asked for.
    #[error("the server at {address} has the key {key}, not {given}")]
    Other {
        /// The server's address.
        address: String,
        /// The key asked for.
        given: PublicKey,
        /// The key that the server showed.
        key: PublicKey,
    },
}

/// Why a name stands for no model.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NameError {
    /// No model has this name.
    #[error(
        "`{}` is neither a directory nor a bundled model ({}) nor a published shape ({}){}",
        .0,
        waggle_model::bundled_names().collect::<Vec<_>>().join(", "),
        waggle_model::shape_names().collect::<Vec<_>>().join(", "),
        waggle_model::hints::of_name(.0)
    )]
    NoModel(String),
    /// The name stands for a shape, but weights are needed.
    #[error("`{0}` is a shape without weights, which can be planned and no more")]
    NoWeights(String),
    /// The model has no tokenizer.
    #[error("`{0}` has no tokenizer: neither tokenizer.json nor vocab.json with merges.txt nor vocab.txt")]
    NoTokenizer(String),
    /// The plaintext model for the comparison has another shape than the server's model.
    #[error("`{0}` has another shape than the server's model, so a check would compare different models")]
    CheckShape(String),
}

/// Why options cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// Logits are needed, but the session reveals none.
    #[error("the client learned tokens alone, and no logits")]
    NoLogits,
    /// The parties encrypt, but the helper's key is not named; or it is named, but nothing is encrypted.
    #[error("{}", match given {
        true => "nothing is encrypted, so the helper proves no key",
        false => "a helper is trusted by its key, and none is given",
    })]
    HelperKey {
        /// Whether a key is named.
        given: bool,
    },
    /// A text is not the address of a server.
    #[error("`{0}` is no address of a Waggle server: give HOST or HOST:PORT, without a scheme or a path")]
    NoAddress(String),
    /// A helper is named, but the session prepares nothing.
    #[error("a helper deals what is prepared, and this session prepares nothing")]
    HelperNeedsPreprocess,
    /// A helper is named, but both parties are in one process.
    #[error("parties in one process have no links to a helper")]
    HelperNeedsLinks,
    /// The policy needs to see values, so two parties cannot run it.
    #[error("cache policy `{0}` works only in the clear, not between two parties")]
    ClearOnly(String),
    /// Options of sampling are given, but nothing is sampled.
    #[error("a share of probability and a seed are for sampling, which needs a temperature above 0")]
    NothingToSample,
    /// A pool is named, but the session has one phase.
    #[error("pools belong to sessions in two phases")]
    PoolNeedsPreprocess,
    /// A pool is named, but both parties are in one process.
    #[error("a pool is filled and spent with a server, not within one process")]
    PoolNeedsServer,
    /// A link within one process is chosen for two processes.
    #[error("two processes have no memory in common")]
    NoMemory,
    /// A text is not the level of a log.
    #[error("there is no log level `{0}`: give off, error, warn, info, debug or trace")]
    Level(String),
    /// A report's session cannot be planned again, because of this option.
    #[error("its options cannot be planned: {0}")]
    Unplannable(&'static str),
}

/// Why an input makes no prompt.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PromptError {
    /// The prompt has words, but the model has no tokenizer.
    #[error("this model has no tokenizer: give the prompt as token ids")]
    NoTokenizer,
    /// A pair of texts is given where one text is read.
    #[error("two texts need an encoder, which reads them together")]
    Pair,
    /// The model fills in one mask, but the prompt has none or several.
    #[error("the model gives the word in the place of one {mask}; the text has {count}")]
    Masks {
        /// The mask as the tokenizer writes it.
        mask: &'static str,
        /// Number of masks in the prompt.
        count: usize,
    },
    /// The model fills in a mask, but its tokenizer knows none.
    #[error("the model gives the word in the place of a mask, and its tokenizer has none")]
    NoMask,
    /// The prompt has no tokens.
    #[error("the prompt has no tokens")]
    Empty,
    /// A class is asked for, but the model writes texts.
    #[error("the model writes texts, and gives no class")]
    NoClass,
    /// One of several inputs is refused.
    #[error("input {input}: {source}")]
    Input {
        /// Number of the input or the line, from 1.
        input: usize,
        /// Why the input is refused.
        source: Box<Error>,
    },
    /// The prompt is longer than all lengths to which it may be padded.
    #[error("the prompt has {tokens} tokens, and the longest length that it may be padded to is {longest}")]
    NoLength {
        /// Tokens of the prompt.
        tokens: usize,
        /// The longest padded prompt.
        longest: usize,
    },
    /// The file is not UTF-8 text.
    #[error("{}: not UTF-8", .0.display())]
    NotUtf8(PathBuf),
    /// The JSON file is not a list of texts.
    #[error("{}: not a list of texts: {what}", path.display())]
    NotTexts {
        /// The file.
        path: PathBuf,
        /// The fault.
        what: String,
    },
    /// A line in a file of inputs is not an input.
    #[error("{}: line {line}: {what}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// The fault.
        what: String,
    },
    /// The option is for one session, but the inputs need several.
    #[error("{option} is for one session, and these {inputs} inputs take {sessions}")]
    Batches {
        /// The option.
        option: &'static str,
        /// Number of sessions.
        sessions: usize,
        /// Number of inputs.
        inputs: usize,
    },
}

/// An error that stops a conversation, or a turn of it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ChatError {
    /// The model has no tokenizer, so no conversation is possible.
    #[error("a conversation needs a tokenizer, and the server's model has none")]
    NoTokenizer,
    /// The model writes no texts.
    #[error("the server's model gives classes of texts or images, and writes none")]
    Encoder,
    /// The beginning of a conversation is to be public, but no text stands there.
    #[error("nothing stands before the first words of a conversation, so no part of it is public")]
    NoHead,
    /// The turn did not begin. Nothing has happened, and the conversation goes on.
    #[error(transparent)]
    Refused(Box<Refusal>),
    /// A session failed; the conversation is kept.
    #[error("{}; the conversation so far is in {}", describe(.source), file.display())]
    Broken {
        /// The session's error.
        source: Box<Error>,
        /// The file that keeps the conversation.
        file: PathBuf,
    },
    /// A session failed, and the conversation cannot be kept.
    #[error("{}; the conversation so far cannot be kept: {what}", describe(.source))]
    Lost {
        /// The session's error.
        source: Box<Error>,
        /// Why the conversation cannot be kept.
        what: String,
    },
    /// The caller interrupted the conversation.
    #[error("interrupted")]
    Interrupted,
}

/// Why a turn did not begin.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The model has too few positions left.
    #[error(transparent)]
    Full(waggle_session::Error),
    /// The turn has more new tokens than it may have.
    #[error("a turn of {got} tokens is longer than the {limit} that this conversation allows: {}", match system {
        Some(tokens) => format!("the system text, which stands before it, has {tokens} tokens"),
        None => "say it in parts, or begin with more".into(),
    })]
    Long {
        /// Tokens of the turn.
        got: usize,
        /// Most tokens of a turn.
        limit: usize,
        /// Tokens of the system text, if it belongs to the turn.
        system: Option<usize>,
    },
    /// The conversation would have to be read again, which would show the hidden lengths of its answers.
    #[error(
        "the chat template changes what was said before, and reading it again would show how long the answers were: \
         give another template, or pad no answers"
    )]
    Rereads,
    /// Any other error.
    #[error(transparent)]
    Other(Error),
}

/// Why a client was not served to the end.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The client's key is not on the list.
    #[error("{advice}")]
    Stranger {
        /// The client's key.
        key: PublicKey,
        /// Advice on letting the client in.
        advice: String,
    },
    /// There is no place for the client.
    #[error(transparent)]
    Full(#[from] Full),
    /// The client left while it waited.
    #[error("the client left the queue")]
    Left,
    /// The session took longer than this number of seconds.
    #[error("the session took longer than {0} s")]
    TooLong(f64),
    /// A session failed.
    #[error("session with {peer}")]
    Session {
        /// The client's address.
        peer: String,
        /// The session's error.
        source: Box<Error>,
    },
    /// A server cannot listen.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// The cause.
        source: std::io::Error,
    },
    /// A process that multiplies for rank 0 failed.
    #[error("rank {rank} on {host}")]
    Rank {
        /// The rank of the process.
        rank: usize,
        /// The machine of the process.
        host: String,
        /// The process's error.
        source: Box<Error>,
    },
}

/// Why a client gets no place.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Full {
    /// The queue is full. It has this number of clients.
    #[error("this server is busy: {0} clients wait already")]
    Queue(usize),
    /// The key has this number of sessions, as many as it may have, waiting ones included.
    #[error("this key has {0} sessions here already")]
    Key(usize),
    /// The server finishes its running sessions and then ends.
    #[error("this server is ending")]
    Ending,
}

impl From<Full> for Error {
    fn from(full: Full) -> Self {
        ServeError::Full(full).into()
    }
}

/// The error and its causes, in one line without control characters.
pub fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let part = error.to_string();
        // A transparent error, or one that quotes its cause, has the cause's text already.
        if !text.contains(&part) {
            text = format!("{text}: {part}");
        }
        cause = error.source();
    }
    // Joins lists that an error writes on several lines.
    text.replace(":\n", ": ").replace('\n', "; ").chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
