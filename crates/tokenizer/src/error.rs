//! Errors of a tokenizer.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Longest piece of a file, in bytes, that an error quotes.
pub(super) const MAX_QUOTE_BYTES: usize = 240;

/// A tokenizer that cannot be used, or that failed at a text.
///
/// Quotes of a file in its text have no control characters and a bounded length, so that a terminal may show them.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TokenizerError {
    /// The file is not JSON of the expected form.
    #[error("tokenizer.json: {what}")]
    Format {
        /// The fault.
        what: String,
    },
    /// A file beside a `tokenizer.json` cannot be read, or is not of the expected form.
    #[error("{file}: {what}")]
    Beside {
        /// The name of the file.
        file: String,
        /// The fault.
        what: String,
    },
    /// The file asks for something that Waggle refuses.
    #[error("tokenizer.json: `{part}` is refused: {why}")]
    Refused {
        /// The part of the file.
        part: String,
        /// The reason.
        why: String,
    },
    /// The number of some things exceeds its limit.
    #[error("tokenizer: {got} {what} are more than {limit}")]
    TooMuch {
        /// The things that are too many.
        what: String,
        /// Their number.
        got: usize,
        /// The most that is allowed.
        limit: usize,
    },
    /// The tokenizer library gave up.
    #[error("tokenizer: {what}")]
    Failed {
        /// The library's message.
        what: String,
    },
    /// The chat template cannot be used, or refuses a conversation.
    #[error("chat template: {what}")]
    Template {
        /// The fault.
        what: String,
    },
    /// The process that is to run the tokenizer cannot be started.
    #[error("the tokenizer's process cannot be started: {what}")]
    Spawn {
        /// The cause.
        what: String,
    },
    /// The process of the tokenizer ended: a panic, an abort, or a limit of memory or processor time.
    #[error("the tokenizer's process ended when it was asked to {step}: {status}")]
    Died {
        /// The step that the process was asked to do.
        step: String,
        /// The status with which it ended.
        status: String,
    },
    /// The process of the tokenizer took too long and was killed.
    #[error("the tokenizer was asked to {step} and had no answer after {seconds} s")]
    TimedOut {
        /// The step that the process was asked to do.
        step: String,
        /// The time-out, in seconds.
        seconds: String,
    },
    /// The process of the tokenizer answered with something that was not asked for.
    #[error("the tokenizer's process was asked to {step} and answered with nonsense")]
    Nonsense {
        /// The step that the process was asked to do.
        step: String,
    },
}

impl TokenizerError {
    /// This error, which came from another process, without control characters and of bounded length.
    pub(super) fn sanitized(self) -> Self {
        use TokenizerError::*;
        match self {
            Format { what } => Format { what: quoted(what) },
            Beside { file, what } => Beside { file: quoted(file), what: quoted(what) },
            Refused { part, why } => Refused { part: quoted(part), why: quoted(why) },
            TooMuch { what, got, limit } => TooMuch { what: quoted(what), got, limit },
            Failed { what } => Failed { what: quoted(what) },
            Template { what } => Template { what: quoted(what) },
            Spawn { what } => Spawn { what: quoted(what) },
            Died { step, status } => Died { step: quoted(step), status: quoted(status) },
            TimedOut { step, seconds } => TimedOut { step: quoted(step), seconds: quoted(seconds) },
            Nonsense { step } => Nonsense { step: quoted(step) },
        }
    }

    /// Whether the tokenizer's process itself failed. Otherwise the request did.
    pub fn of_process(&self) -> bool {
        use TokenizerError::*;
        matches!(self, Spawn { .. } | Died { .. } | TimedOut { .. } | Nonsense { .. })
    }

    pub(super) fn format(error: impl ToString) -> Self {
        TokenizerError::Format { what: quoted(error) }
    }

    pub(super) fn template(error: impl ToString) -> Self {
        TokenizerError::Template { what: quoted(error) }
    }

    pub(super) fn refused(part: impl ToString, why: impl ToString) -> Self {
        TokenizerError::Refused { part: quoted(part), why: quoted(why) }
    }

    pub(super) fn failed(error: impl ToString) -> Self {
        TokenizerError::Failed { what: quoted(error) }
    }
}

/// Refuses more than `limit` things called `what`.
pub(super) fn at_most(what: &str, got: usize, limit: usize) -> Result<(), TokenizerError> {
    if got <= limit { Ok(()) } else { Err(TokenizerError::TooMuch { what: what.into(), got, limit }) }
}

fn quoted(text: impl ToString) -> String {
    printable(&text.to_string(), MAX_QUOTE_BYTES)
}

/// `text` without control characters, cut to `max` bytes: it may end up on the peer's terminal.
pub fn printable(text: &str, max: usize) -> String {
    let mut out = String::new();
    for c in text.chars().map(|c| if c.is_control() { ' ' } else { c }) {
        if out.len() + c.len_utf8() > max {
            break;
        }
        out.push(c);
    }
    out
}
