//! Refusals of requests, as the interface has them.

use serde_json::{Value, json};

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// The code of HTTP.
    pub(super) status: u16,
    /// For programs.
    pub(super) code: &'static str,
    /// The parameter that is wrong.
    pub(super) param: Option<String>,
    /// For people.
    pub(super) message: String,
}

impl Refusal {
    pub(super) fn new(status: u16, code: &'static str, message: impl Into<String>) -> Self {
        Refusal { status, code, param: None, message: message.into() }
    }

    /// A parameter that is wrong.
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
