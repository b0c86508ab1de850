//! Errors of policy texts.

use thiserror::Error;

/// Why a text names no policy.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// No policy has this name.
    #[error("unknown cache policy `{name}`; known are: {}", .known.join(", "))]
    Name {
        /// The name given.
        name: String,
        /// The names that exist.
        known: Vec<&'static str>,
    },
    /// The policy has no such option.
    #[error("cache policy `{policy}` has no option `{key}`; {}", list(.known))]
    Key {
        /// The policy.
        policy: &'static str,
        /// The key given.
        key: String,
        /// The keys that exist.
        known: &'static [&'static str],
    },
    /// An option is not `key=value`, or was given twice.
    #[error("cache policy option `{0}` is not one `key=value`")]
    Option(String),
    /// An option has a value that it does not take.
    #[error("cache policy `{policy}`: {key}={value}: expected {expected}")]
    Value {
        /// The policy.
        policy: &'static str,
        /// The option.
        key: &'static str,
        /// The value given.
        value: String,
        /// The values that the option takes.
        expected: String,
    },
    /// An option that the policy needs was not given.
    #[error("cache policy `{policy}` needs {key}=...: {expected}")]
    Missing {
        /// The policy.
        policy: &'static str,
        /// The option.
        key: &'static str,
        /// The values that the option takes, and where a user gets them from.
        expected: &'static str,
    },
    /// An option has no effect beside another one.
    #[error("cache policy `{policy}`: {key} has no effect with {with}")]
    NoEffect {
        /// The policy.
        policy: &'static str,
        /// The option.
        key: &'static str,
        /// The option that makes it idle.
        with: String,
    },
    /// An option names a layer that the model does not have.
    #[error("cache policy `{policy}`: {key} names layer {layer}, the model has {layers}, numbered from 0")]
    Layer {
        /// The policy.
        policy: &'static str,
        /// The option.
        key: &'static str,
        /// The layer.
        layer: usize,
        /// The number of layers of the model.
        layers: usize,
    },
}

fn list(keys: &[&str]) -> String {
    if keys.is_empty() { "it takes none".into() } else { format!("it takes: {}", keys.join(", ")) }
}

/// The error for a text that is none of the values of an option. Its message lists the valid values.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{expected}")]
pub struct UnknownValue {
    /// The values that the option takes.
    pub expected: String,
}

impl UnknownValue {
    /// The error for a text that is none of the values that `expected` describes.
    pub fn new(expected: impl Into<String>) -> Self {
        UnknownValue { expected: expected.into() }
    }
}
