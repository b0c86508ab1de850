//! Failures of requests: which of them allow another attempt, and the refusal that the calling program gets, in the
//! form of OpenAI's interface.

use serde_json::{Value, json};
use waggle::{ChatError, Error, Refusal as Refused, describe};
use waggle_tokenizer::TokenizerError;

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// The HTTP status code.
    pub(super) status: u16,
    /// The reason, as a word for programs.
    pub(super) code: &'static str,
    /// The parameter that is wrong, if the refusal is about one.
    pub(super) param: Option<String>,
    /// The reason, as a sentence for people.
    pub(super) message: String,
}

impl Refusal {
    pub(super) fn new(status: u16, code: &'static str, message: impl Into<String>) -> Self {
        Refusal { status, code, param: None, message: message.into() }
    }

    /// The refusal of a wrong parameter.
    pub(super) fn of(param: &str, message: impl Into<String>) -> Self {
        Refusal { param: Some(param.into()), ..Refusal::new(400, "invalid_value", message) }
    }

    pub(super) fn unsupported(param: &str) -> Self {
        let message = format!("`{param}` is not supported here");
        Refusal { code: "unsupported_parameter", ..Refusal::of(param, message) }
    }

    pub(super) fn json(&self) -> Value {
        let kind = match self.status {
            401 | 403 => "authentication_error",
            429 => "rate_limit_error",
            400..500 => "invalid_request_error",
            _ => "server_error",
        };
        json!({"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}})
    }
}

/// The failure of a text or a turn.
pub(super) enum Failure {
    /// Nothing has happened. Another kind of session may work.
    Refused(Error),
    /// No part of the answer was sent. The same request may work in another session.
    Lost(Error),
    /// The session is over.
    Broken(Error),
}

impl Failure {
    /// The failure of a session that has not sent any part of an answer.
    pub(super) fn of(error: impl Into<Error>) -> Self {
        let error = error.into();
        if never_began(&error) { Failure::Refused(error) } else { Failure::Broken(error) }
    }

    pub(super) fn into_error(self) -> Error {
        let (Failure::Refused(error) | Failure::Lost(error) | Failure::Broken(error)) = self;
        error
    }
}

/// Whether `error` means that this party or the server refused a session before it began.
fn never_began(error: &Error) -> bool {
    match error {
        Error::Session(error) => {
            error.net().is_none() && !matches!(error, waggle_session::Error::Model(waggle_model::Error::Abandoned))
        }
        other => other.leaves_the_conversation(),
    }
}

/// The refusal that a program gets for `error`.
pub(super) fn refusal(error: &Error) -> Refusal {
    let message = describe(error);
    let too_long = |error: &waggle_session::Error| {
        use waggle_session::Error::{Full, Model, Planning, TooWide};
        matches!(error, Full { .. } | Planning { .. } | TooWide { .. } | Model(waggle_model::Error::TooLong { .. }))
    };
    match error {
        Error::Session(error) if too_long(error) => Refusal::new(400, "context_length_exceeded", message),
        Error::Chat(ChatError::Refused(refused)) => match &**refused {
            Refused::Other(other) => refusal(other),
            _ => Refusal::new(400, "context_length_exceeded", message),
        },
        Error::Tokenizer(TokenizerError::TooMuch { .. }) => Refusal::new(400, "context_length_exceeded", message),
        Error::Tokenizer(error) if error.of_process() => Refusal::new(500, "tokenizer_failed", message),
        Error::Tokenizer(_) | Error::Prompt(_) | Error::Options(_) => Refusal::new(400, "invalid_value", message),
        error if never_began(error) => Refusal::new(400, "refused_by_server", message),
        _ => Refusal::new(502, "server_unreachable", message),
    }
}

#[cfg(test)]
mod tests {
    use waggle::PromptError;

    use super::*;

    /// A program cannot mend a tokenizer that has died.
    #[test]
    fn what_is_not_the_programs_fault_is_an_error_of_ours() {
        let step = || "encode".to_owned();
        let died = || Error::Tokenizer(TokenizerError::Died { step: step(), status: "killed".into() });
        let inside = Error::Chat(ChatError::Refused(Box::new(Refused::Other(died()))));
        let late = Error::Tokenizer(TokenizerError::TimedOut { step: step(), seconds: "5".into() });
        for error in [died(), inside, late] {
            assert_eq!(refusal(&error).status, 500, "{error}");
        }
        let failed = Error::Tokenizer(TokenizerError::Failed { what: "no such token".into() });
        for error in [failed, PromptError::Empty.into(), waggle_model::Error::Nothing.into()] {
            assert_eq!(refusal(&error).status, 400, "{error}");
        }
    }
}
