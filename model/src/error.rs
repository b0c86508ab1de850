//! What can go wrong above the engines.

use std::path::{Path, PathBuf};

use mpcache::PolicyError;
use thiserror::Error;

use crate::fingerprint::PinError;
use crate::pool_error::PoolError;
use crate::{CheckpointError, ConfigError, TokenizerError};

/// A failure to load a model or to generate with it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The weights cannot be used.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// An operation failed.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// A value left the range of an operation in the run before the model is served.
    #[error("the model leaves the range of an operation on a text of {tokens} tokens: {source}")]
    Calibration {
        /// Tokens of the text.
        tokens: usize,
        /// The operation with its layer, the value and the range.
        source: engine::Error,
    },
    /// The tokenizer cannot be used or refused a text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A public model is not the one that it should be.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A directory without a configuration.
    #[error("{} holds no config.json{hint}", dir.display())]
    NoConfig {
        /// The directory.
        dir: PathBuf,
        /// What to do about what it holds, or nothing.
        hint: &'static str,
    },
    /// A file that was not downloaded.
    #[error("{}: {}", .0.display(), crate::hints::LFS)]
    Pointer(PathBuf),
    /// No bundled model has this name.
    #[error("no bundled model is called `{name}`; there are: {}", .known.join(", "))]
    NotBundled {
        /// The name given.
        name: String,
        /// The names that exist.
        known: Vec<&'static str>,
    },
    /// More positions than the model has.
    #[error("{positions} positions would go through a model that has {limit}")]
    TooLong {
        /// Positions wanted.
        positions: usize,
        /// Positions of the model.
        limit: usize,
    },
    /// A turn that does not fit the positions that a conversation has left.
    #[error("the conversation has taken {used} of {limit} positions, and this turn would take up to {wanted} more")]
    Full {
        /// Positions taken.
        used: usize,
        /// Positions of the turn.
        wanted: usize,
        /// Positions of the model, or those that the server allows.
        limit: usize,
    },
    /// A cache policy whose budget is a share of the prompt, in a conversation.
    #[error(
        "cache policy `{policy}` keeps a share of the first prompt alone; a conversation needs a budget in tokens, as `budget=128`, or `full`"
    )]
    TalkPolicy {
        /// The policy.
        policy: String,
    },
    /// A chat whose session failed before.
    #[error("the session is over")]
    ChatOver,
    /// More positions than the softmax in fixed point has columns for, in a model that has them.
    #[error("{got} positions are more than the {limit} that this program can attend to")]
    TooWide {
        /// Positions wanted.
        got: usize,
        /// [`MAX_SOFTMAX_COLUMNS`](protocols::functions::softmax::MAX_SOFTMAX_COLUMNS).
        limit: usize,
    },
    /// A prompt with padding, or a chat with padded answers, under a policy that does not see it.
    #[error("padding needs cache policy `full`: `{policy}` would choose among tokens that stand for nothing")]
    PaddedPolicy {
        /// The policy.
        policy: String,
    },
    /// A cache policy that the model does not fit.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A policy that ranks tokens by learned scores, and a family whose program gives none.
    #[error("cache policy `{policy}` needs learned scores, which only GPT-2 and LLaMA models give")]
    NoLearnedScores {
        /// The policy.
        policy: String,
    },
    /// A policy that ranks tokens by learned scores, and a model that gives none.
    #[error("the cache policy needs learned scores, and the model was loaded without their columns")]
    NotLearned,
    /// A model that is served for other policies.
    #[error(
        "the model was loaded {} columns for learned scores, and cache policy `{policy}` {}",
        if *.learned { "with" } else { "without" },
        if *.learned { "has no use for them" } else { "needs them" }
    )]
    OtherColumns {
        /// Whether the model gives learned scores.
        learned: bool,
        /// The policy of the session.
        policy: String,
    },
    /// A draft under a policy that cannot take tokens back.
    #[error(
        "a draft needs a policy that can take tokens back: `full`, or `snapkv`, `pyramid`, `squeeze` or `mpcache-2pc` with a share, not `{policy}`"
    )]
    DraftPolicy {
        /// The policy.
        policy: String,
    },
    /// A cache policy where no layer is left for it.
    #[error(
        "every layer of the model sees a window of the latest tokens alone, which cache policy `{policy}` cannot prune"
    )]
    WindowedPolicy {
        /// The policy.
        policy: String,
    },
    /// A draft in a generation from a pool.
    #[error("a pool is made for passes over one token, so a generation from a pool takes no draft")]
    DraftPool,
    /// A draft in a chat.
    #[error("a chat takes no draft")]
    DraftChat,
    /// A draft where answers are padded.
    #[error("an answer that is padded takes no draft: what its passes keep would tell where the text ends")]
    PaddedDraft,
    /// A number of guesses that no pass has.
    #[error("a draft has 1 to {limit} tokens, not {got}")]
    Draft {
        /// How many were asked for.
        got: usize,
        /// The most.
        limit: usize,
    },
    /// Passes that would keep no token, or more than they read.
    #[error("a pass over the last token and its draft keeps 1 to {most} tokens, not {rate}")]
    DraftRate {
        /// How many were expected.
        rate: f64,
        /// The most.
        most: usize,
    },
    /// The hooks of a generation keep another number of tokens than a pass gives.
    #[error("a pass that gives 1 to {most} tokens cannot keep {got}")]
    DraftKept {
        /// How many were to be kept.
        got: usize,
        /// The most.
        most: usize,
    },
    /// A model that guesses in another vocabulary.
    #[error("the model of the draft has {got} words, and the server's has {expected}")]
    DraftVocabulary {
        /// Words of the small model.
        got: usize,
        /// Words of the server's model.
        expected: usize,
    },
    /// A prompt that does not fit its padded length.
    #[error("the prompt has {got} tokens, more than the {length} that it is to be padded to")]
    Padding {
        /// Tokens of the prompt.
        got: usize,
        /// The padded length.
        length: usize,
    },
    /// A prompt without a word.
    #[error("{tokens} of the {prompt} tokens of the prompt are padding")]
    AllPadding {
        /// Tokens of padding.
        tokens: usize,
        /// Tokens of the prompt.
        prompt: usize,
    },
    /// A client asks for more than the server does for one.
    #[error("{got} {what} are more than the {limit} that this server allows")]
    Limit {
        /// What there is too much of.
        what: &'static str,
        /// How much was asked for.
        got: usize,
        /// The most that is allowed.
        limit: usize,
    },
    /// A client chooses a number of phases that the server does not offer.
    #[error("this server runs sessions with `preprocess` {expected} only, not {got}")]
    Phases {
        /// What the server offers.
        expected: bool,
        /// What the client chose.
        got: bool,
    },
    /// A client has had of something as much as it may.
    #[error("{wanted} more {what} would exceed the {limit} that this key may have in all; it has had {used}")]
    Quota {
        /// Of what.
        what: &'static str,
        /// How much it has had.
        used: u64,
        /// How much it asks for.
        wanted: u64,
        /// The most in all.
        limit: u64,
    },
    /// A session in two phases whose planning alone would take minutes.
    #[error("two phases of {tokens} tokens through {layers} layers take {steps} steps to plan, more than {limit}")]
    Planning {
        /// Tokens to generate.
        tokens: usize,
        /// Layers of the model.
        layers: usize,
        /// Their cost, see [`crate::party::Request::planning_steps`].
        steps: usize,
        /// [`crate::party::MAX_PLANNING_STEPS`].
        limit: usize,
    },
    /// A turn of a session that was kept busy with planning for long enough.
    #[error("this session has planned {spent} steps, and {steps} more are beyond its {limit}: begin another session")]
    SessionPlanning {
        /// Steps so far.
        spent: usize,
        /// Those of the turn.
        steps: usize,
        /// The most.
        limit: usize,
    },
    /// A conversation with a server that allows none.
    #[error("this server allows no conversations (--no-chat)")]
    NoChats,
    /// A session that broke when it had taken as long as the server allows.
    #[error("{source}; the server ends a session after {limit} s (--session-limit), and this one took {took:.1} s")]
    TimeUp {
        /// How it broke.
        source: Box<Error>,
        /// The limit.
        limit: f64,
        /// How long it took.
        took: f64,
    },
    /// The server refuses a request.
    #[error("the server refuses: {reason}")]
    Refused {
        /// Its words.
        reason: String,
    },
    /// The client cannot keep or use its part of a pool.
    #[error("the client gives up: {reason}")]
    Withdrawn {
        /// Its words.
        reason: String,
    },
    /// The file of a pool cannot be used or made.
    #[error("{}: {source}", path.display())]
    PoolFile {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: PoolError,
    },
    /// A pool cannot be used or made.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The channel failed.
    #[error(transparent)]
    Net(#[from] net::NetError),
    /// The observer of a session wants no more of it.
    #[error("the session was given up")]
    Abandoned,
    /// Nothing to read or nothing to write.
    #[error("a generation needs at least one prompt token and one token to generate")]
    Nothing,
    /// A sampling parameter outside its range.
    #[error("sampling: {what} = {value} is outside {range}")]
    Sampling {
        /// The parameter.
        what: &'static str,
        /// Its value.
        value: f32,
        /// The range.
        range: &'static str,
    },
}

impl From<protocols::Error> for Error {
    fn from(error: protocols::Error) -> Self {
        Error::Engine(error.into())
    }
}

impl Error {
    /// The failure of the link behind this one, if it is one: outside the operations or in one.
    pub(crate) fn net(&self) -> Option<&net::NetError> {
        match self {
            Error::Net(error) => Some(error),
            Error::Engine(error) => error.backend::<protocols::Error>()?.net(),
            _ => None,
        }
    }

    /// The error with the file that it is about, if it is one of a pool without its file.
    pub(crate) fn pool_at(self, path: &Path) -> Error {
        match self {
            Error::Pool(source) => source.at(path),
            other => other,
        }
    }
}

impl PoolError {
    /// The error with the file that it is about.
    pub fn at(self, path: &Path) -> Error {
        Error::PoolFile { path: path.into(), source: self }
    }
}
