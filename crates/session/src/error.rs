//! Errors of a session.

use std::path::{Path, PathBuf};

use thiserror::Error;
use waggle_model::{CheckpointError, ConfigError};
use waggle_mpcache::PolicyError;
use waggle_tokenizer::TokenizerError;

use crate::fingerprint::PinError;
use crate::pool_error::PoolError;

/// Why a session fails or is refused.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The peer speaks another protocol.
    #[error(
        "this party speaks protocol {ours} of Waggle, and the peer {}: use releases with one protocol",
        .theirs.map_or("states none".to_owned(), |number| format!("protocol {number}"))
    )]
    Protocol {
        /// This party's number, [`PROTOCOL`](crate::party::PROTOCOL).
        ours: u32,
        /// The peer's number, if it states one.
        theirs: Option<u32>,
    },
    /// One party wants a session of three parties, and the other one of two.
    #[error("the server runs sessions of {server} parties, and the client asks for another number")]
    Parties {
        /// The number of parties of the server's sessions.
        server: u32,
    },
    /// A failure of the model, a file, an engine or an operation.
    #[error(transparent)]
    Model(#[from] waggle_model::Error),
    /// In the run that checks a model before it is served, a value left the range of an operation.
    #[error("the model leaves the range of an operation on a text of {tokens} tokens: {source}")]
    Ranges {
        /// Number of tokens of the text.
        tokens: usize,
        /// The operation with its layer, the value and the range.
        source: waggle_engine::Error,
    },
    /// The tokenizer cannot be used or refused a text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A fingerprint is malformed, or the server's model is not the one that the client expects or remembers.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The parties do not agree on the public parts of the model.
    #[error(transparent)]
    Base(#[from] crate::BaseError),
    /// A turn does not fit the positions that the conversation has left.
    #[error("the conversation has taken {used} of {limit} positions, and this turn would take up to {wanted} more")]
    Full {
        /// Positions taken.
        used: usize,
        /// Positions of the turn.
        wanted: usize,
        /// The most positions: those of the model, or those that the server allows.
        limit: usize,
    },
    /// A conversation has a cache policy whose budget is a share of the prompt.
    #[error(
        "cache policy `{policy}` keeps a share of the first prompt alone; a conversation needs a budget in tokens, as `budget=128`, or `full`"
    )]
    TalkPolicy {
        /// The policy.
        policy: String,
    },
    /// Public tokens do not go with something else.
    #[error("public tokens before a text do not go with {what}")]
    Prefix {
        /// The other thing.
        what: &'static str,
    },
    /// The session of this chat failed before.
    #[error("the session is over")]
    ChatOver,
    /// The texts to be read side by side, or their positions together, are more than this program reads.
    #[error(
        "{texts} texts with {positions} positions in all are more than the {} with {} that this program reads side by side",
        limits[0], limits[1]
    )]
    TooMany {
        /// The number of texts.
        texts: usize,
        /// Positions of all texts together.
        positions: usize,
        /// The most texts, and the most positions of all texts together.
        limits: [usize; 2],
    },
    /// A session needs more positions than the softmax in fixed point has columns, although the model has that many
    /// positions.
    #[error("{got} positions are more than the {limit} that this program can attend to")]
    TooWide {
        /// Positions wanted.
        got: usize,
        /// [`MAX_SOFTMAX_COLUMNS`](waggle_protocols::functions::softmax::MAX_SOFTMAX_COLUMNS).
        limit: usize,
    },
    /// The model was loaded for other policies than that of the session.
    #[error(
        "the model was loaded {}, and cache policy `{policy}` wants something else",
        learned.map_or_else(|| "without columns for learned scores".into(), |of| format!("with the columns of `{of}`"))
    )]
    OtherColumns {
        /// The scoring head with which the model was loaded.
        learned: Option<&'static str>,
        /// The policy of the session.
        policy: String,
    },
    /// A generation from a pool takes no draft.
    #[error("a pool is made for passes over one token, so a generation from a pool takes no draft")]
    DraftPool,
    /// The client wants logits, and the server permits tokens alone.
    #[error("the server reveals tokens alone to this key, and the client asks for logits")]
    TokensAlone,
    /// The client wants the logits of the prompt in a session in which nobody may learn them.
    #[error("the logits of a prompt need a session that reveals logits, takes no pool and is no chat")]
    PromptLogits,
    /// A chat takes no draft.
    #[error("a chat takes no draft")]
    DraftChat,
    /// An answer that is padded takes no draft.
    #[error("an answer that is padded takes no draft: what its passes keep would tell where the text ends")]
    PaddedDraft,
    /// The texts cannot be read side by side.
    #[error("text {text} is not of the kind and the length of the first, so that they cannot be read side by side")]
    Unlike {
        /// The number of the text that is unlike the first one, counted from 1; 0 if there is no text.
        text: usize,
    },
    /// The prompt is longer than the length that it is to be padded to.
    #[error("the prompt has {got} tokens, more than the {length} that it is to be padded to")]
    Padding {
        /// Tokens of the prompt.
        got: usize,
        /// The padded length.
        length: usize,
    },
    /// A client asks for more than the server does for one client.
    #[error("{got} {what} are more than the {limit} that this server allows")]
    Limit {
        /// The counted things, in the plural.
        what: &'static str,
        /// The number asked for.
        got: usize,
        /// The most that is allowed.
        limit: usize,
    },
    /// A client chooses a number of phases that the server does not offer.
    #[error("this server runs sessions with `preprocess` {expected} only, not {got}")]
    Phases {
        /// The server's choice.
        expected: bool,
        /// The client's choice.
        got: bool,
    },
    /// A client asks for more of something than it may have in all sessions together.
    #[error("{wanted} more {what} would exceed the {limit} that this key may have in all; it has had {used}")]
    Quota {
        /// The counted things, in the plural.
        what: &'static str,
        /// The amount that the client has had so far.
        used: u64,
        /// The amount that the client asks for.
        wanted: u64,
        /// The most that the client may have in all sessions together.
        limit: u64,
    },
    /// The planning alone of a session in two phases would take minutes.
    #[error("two phases of {tokens} tokens through {layers} layers take {steps} steps to plan, more than {limit}")]
    Planning {
        /// Tokens to generate.
        tokens: usize,
        /// Layers of the model.
        layers: usize,
        /// The steps of planning, see [`crate::party::Request::planning_steps`].
        steps: usize,
        /// [`crate::party::MAX_PLANNING_STEPS`].
        limit: usize,
    },
    /// The planning of a turn would exceed what one session may plan.
    #[error("this session has planned {spent} steps, and {steps} more are beyond its {limit}: begin another session")]
    SessionPlanning {
        /// Steps that the session has planned so far.
        spent: usize,
        /// Steps that the turn takes to plan.
        steps: usize,
        /// The most steps that one session may plan.
        limit: usize,
    },
    /// The server allows no conversations.
    #[error("this server allows no conversations")]
    NoChats,
    /// The session broke when it had taken as long as the server allows.
    #[error("{source}; the server ends a session after {limit} s, and this one took {took:.1} s")]
    TimeUp {
        /// The failure that broke the session.
        source: Box<Error>,
        /// The limit in seconds.
        limit: f64,
        /// The seconds that the session took.
        took: f64,
    },
    /// The helper refuses to deal.
    #[error("the helper refuses: {reason}")]
    HelperRefused {
        /// The helper's words.
        reason: String,
    },
    /// The helper does not know this party's key.
    #[error("the helper does not know this party's key")]
    HelperStranger,
    /// A server, or another program of Waggle's, answers at the helper's address.
    #[error("what answers at the helper's address is no helper")]
    NoHelper,
    /// Two of three parties that must not collude have one key, so they are one.
    #[error(
        "{} and {} have one key: two parties and their helper have three",
        parties[0], parties[1]
    )]
    KeysAlike {
        /// The two parties with one key.
        parties: [&'static str; 2],
    },
    /// Halves of weights would travel over a link without encryption.
    #[error("halves of weights travel over encrypted links alone, and nothing is encrypted here")]
    PlainHalves,
    /// A conversation takes no helper.
    #[error("a conversation takes no helper: each of its turns is prepared anew, and a helper deals once a session")]
    HelperChat,
    /// A session of three parties takes no pool.
    #[error("three parties take no pool: the helper deals each pass right before it, and nothing is prepared ahead")]
    PassesPool,
    /// A session of three parties takes no guesses.
    #[error("three parties take no guesses: a helper deals each pass, and must know how long it is")]
    PassesDraft,
    /// The server refuses a request.
    #[error("the server refuses: {reason}")]
    Refused {
        /// The server's words.
        reason: String,
    },
    /// The client cannot keep or use its part of a pool.
    #[error("the client gives up: {reason}")]
    Withdrawn {
        /// The client's words.
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
    Net(#[from] waggle_net::NetError),
}

/// Makes an [`Error::Model`] of each of these errors.
macro_rules! of_the_model {
    ($($error:ty),*) => {$(
        impl From<$error> for Error {
            fn from(error: $error) -> Self {
                Error::Model(error.into())
            }
        }
    )*};
}

of_the_model!(waggle_engine::Error, CheckpointError, ConfigError, PolicyError, waggle_model::PartsError);

impl From<waggle_protocols::Error> for Error {
    fn from(error: waggle_protocols::Error) -> Self {
        waggle_engine::Error::from(error).into()
    }
}

impl Error {
    /// The failure of the link that caused this error, in an operation or outside of all; `None` if no link failed.
    pub fn net(&self) -> Option<&waggle_net::NetError> {
        match self {
            Error::Net(error) => Some(error),
            Error::Model(waggle_model::Error::Engine(error)) => error.backend::<waggle_protocols::Error>()?.net(),
            Error::TimeUp { source, .. } => source.net(),
            _ => None,
        }
    }

    /// Adds `path` to an error of a pool that names no file yet. Other errors stay as they are.
    pub(crate) fn pool_at(self, path: &Path) -> Error {
        match self {
            Error::Pool(source) => source.at(path),
            other => other,
        }
    }
}

impl PoolError {
    /// This error as one about the file at `path`.
    pub fn at(self, path: &Path) -> Error {
        Error::PoolFile { path: path.into(), source: self }
    }
}
