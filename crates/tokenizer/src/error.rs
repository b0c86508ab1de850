//! Errors of a tokenizer.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The longest piece of a file that an error quotes, in bytes.
pub(super) const MAX_QUOTE_BYTES: usize = 240;

/// Why a tokenizer cannot be used, or failed at a text.
///
/// An error's text quotes files without control characters and with a bounded length, so that a terminal may show it.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TokenizerError {
    /// The file is not JSON of the expected form.
    #[error("tokenizer.json: {what}")]
    Format {
        /// What is wrong with the file.
        what: String,
    },
    /// A file in the same directory as a `tokenizer.json` cannot be read, or is not of the expected form.
    #[error("{file}: {what}")]
    Beside {
        /// The name of the file.
        file: String,
        /// What is wrong with the file.
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
    /// A number of things, or a length, exceeds its limit.
    #[error("tokenizer: {got} {what} are more than {limit}")]
    TooMuch {
        /// What was counted, for example bytes of text.
        what: String,
        /// The number that was found.
        got: usize,
        /// The most that is allowed.
        limit: usize,
    },
    /// The tokenizer library returned an error.
    #[error("tokenizer: {what}")]
    Failed {
        /// The library's message.
        what: String,
    },
    /// The chat template cannot be used, or refuses a conversation.
    #[error("chat template: {what}")]
    Template {
        /// What is wrong with the template, or the message with which it refuses.
        what: String,
    },
    /// The process that is to run the tokenizer cannot be started.
    #[error("the tokenizer's process cannot be started: {what}")]
    Spawn {
        /// The cause.
        what: String,
    },
    /// The process of the tokenizer ended: it panicked or aborted, or it reached its limit of memory or processor
    /// time.
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
        /// The time in seconds after which it was killed.
        seconds: String,
    },
    /// The process of the tokenizer sent an answer that does not fit the request.
    #[error("the tokenizer's process was asked to {step} and answered with nonsense")]
    Nonsense {
        /// The step that the process was asked to do.
        step: String,
    },
}

impl TokenizerError {
    /// This error, which another process sent, without control characters and with its texts cut to a bounded length.
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

    /// Whether the process of the tokenizer failed. Otherwise the error concerns only the request.
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

/// Returns [`TokenizerError::TooMuch`] if `got` exceeds `limit`. `what` names the things that were counted.
pub(super) fn at_most(what: &str, got: usize, limit: usize) -> Result<(), TokenizerError> {
    if got <= limit { Ok(()) } else { Err(TokenizerError::TooMuch { what: what.into(), got, limit }) }
}

fn quoted(text: impl ToString) -> String {
    printable(&text.to_string(), MAX_QUOTE_BYTES)
}

/// `text` without control characters, cut to `max` bytes. The result is safe on a terminal, for example the peer's.
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
