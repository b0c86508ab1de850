//! Errors of a study.

use thiserror::Error;
use waggle_mpcache::PolicyError;

/// Why a study cannot be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EvalError {
    /// The model or an engine failed.
    #[error(transparent)]
    Model(#[from] waggle_model::Error),
    /// A session between two parties failed.
    #[error(transparent)]
    Session(#[from] waggle_session::Error),
    /// A policy or one of its options is wrong.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A budget that is neither a share of the cache nor a number of tokens.
    #[error("a budget of {0} is neither a share in (0, 1] nor a whole number of tokens from 2 on")]
    Budget(f64),
    /// A prompt so long that no position would be scored.
    #[error("a prompt of {prompt} tokens in sequences of {context}: {}", prompts_of(*context))]
    Prompt {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens of a sequence.
        context: usize,
    },
    /// Sequences that are longer than the model's number of positions.
    #[error("sequences of {context} tokens for a model of {limit} positions")]
    Context {
        /// Tokens of a sequence.
        context: usize,
        /// Positions of the model.
        limit: usize,
    },
    /// Texts that are too short to judge heads: a streaming head would see all tokens, or there is no room for the
    /// copies of a repeated text.
    #[error("texts of {context} tokens are too short to judge heads by: give {least} or more")]
    Short {
        /// Tokens of the longest text.
        context: usize,
        /// Least number of tokens that is needed.
        least: usize,
    },
    /// A number that is not a share of the heads, from 0 to 1.
    #[error("a share of {0} of the heads is not between 0 and 1")]
    Share(f64),
    /// A model with more heads than a pattern can name.
    #[error("a pattern names up to 128 key/value heads of a layer")]
    Heads,
    /// A text that is too short to be cut into the wanted sequences.
    #[error("the text has {tokens} tokens; {sequences} sequences of {context} need {}", .sequences * .context)]
    TooShort {
        /// Tokens of the text.
        tokens: usize,
        /// Sequences wanted.
        sequences: usize,
        /// Tokens of each sequence.
        context: usize,
    },
    /// A file of queries that has fewer sequences than are wanted.
    #[error("the data has {got} sequences, {wanted} are wanted")]
    TooFew {
        /// Sequences in the data.
        got: usize,
        /// Sequences wanted.
        wanted: usize,
    },
    /// In a file of queries, a line that cannot be used.
    #[error("line {line}: {what}")]
    Query {
        /// The line's number, from 1.
        line: usize,
        /// What is wrong with the line.
        what: String,
    },
    /// A task that lacks an input.
    #[error("the task `{task}` needs {what}")]
    TaskNeeds {
        /// The task's name.
        task: &'static str,
        /// The missing input.
        what: &'static str,
    },
    /// A task whose shortest question is longer than the length wanted.
    #[error("the task `{task}` has no room in {length} tokens: it takes {least}")]
    TaskLength {
        /// The task's name.
        task: &'static str,
        /// Tokens wanted.
        length: usize,
        /// Least number of tokens that is needed.
        least: usize,
    },
    /// A number that is not the depth of a needle.
    #[error("a depth of {0} is not between 0 and 1")]
    Depth(f64),
    /// A file of prompts that cannot be used.
    #[error("the prompts are not an object of texts: {0}")]
    Prompts(String),
    /// A text that the tokenizer does not take.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// A policy that needs to see values, on an engine that does not show them.
    #[error("policy `{0}` looks at the true scores: it needs an engine that sees its values")]
    Blind(&'static str),
    /// A head to draw that is not in a layer that sees all tokens.
    #[error("layer {layer} has no head {head} that sees all tokens")]
    NoHead {
        /// The layer, from 0.
        layer: usize,
        /// The query head, from 0.
        head: usize,
    },
    /// Threads cannot be started.
    #[error("cannot start threads: {0}")]
    Threads(#[from] rayon::ThreadPoolBuildError),
}

impl From<waggle_engine::Error> for EvalError {
    fn from(error: waggle_engine::Error) -> Self {
        EvalError::Model(error.into())
    }
}

/// For errors: the lengths of a prompt that leave a position to score in a sequence of `context` tokens.
fn prompts_of(context: usize) -> String {
    match context.saturating_sub(2) {
        0 => "a sequence needs 3 or more".into(),
        most => format!("give 1 to {most}"),
    }
}
