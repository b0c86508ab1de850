//! Errors of an engine.

use std::error::Error as StdError;

use thiserror::Error;

/// A failure of an engine.
///
/// Causes that any engine may have are variants of their own. A cause that only one kind of engine knows, such as a
/// broken link or a failed protocol, is an [`Error::Backend`].
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// Data whose shape is not the specified one.
    #[error("tensor `{tensor}` has shape {got:?}, expected {expected:?}")]
    Shape {
        /// Name of the tensor or the operation.
        tensor: String,
        /// Shape expected.
        expected: Vec<usize>,
        /// Shape found.
        got: Vec<usize>,
    },
    /// A weight holds a value that is not a finite number.
    #[error("tensor `{tensor}` holds {value} at position {position}")]
    NotFinite {
        /// Published name of the tensor.
        tensor: String,
        /// The value found.
        value: f32,
        /// Row-major position. Positions of the bias follow the last position of the matrix.
        position: usize,
    },
    /// An operation needs the values of a weight, but this party does not know them.
    #[error("the values of tensor `{tensor}` are needed but not known here")]
    NoValues {
        /// Published name of the tensor.
        tensor: String,
    },
    /// A token id outside the vocabulary.
    #[error("token id {id} is outside the vocabulary of {vocabulary}")]
    Token {
        /// The token id.
        id: u32,
        /// Size of the vocabulary.
        vocabulary: usize,
    },
    /// A value left the range that the operation supports. Only an engine that sees its values notices.
    #[error("{path}: value {value:.3} is outside [{low:.3}, {high:.3}]")]
    Range {
        /// Operation path.
        path: String,
        /// The value that is out of range.
        value: f64,
        /// Smallest value supported.
        low: f64,
        /// Largest value supported.
        high: f64,
    },
    /// A function that another crate defines was not registered for this engine.
    #[error("the function `{function}` is not registered for the engine {engine}")]
    NotRegistered {
        /// Name of the function.
        function: String,
        /// Type of the engine.
        engine: &'static str,
    },
    /// An operation needs an engine that [sees its values](crate::Engine::CLEAR).
    #[error("{operation} works only where values are seen, not between two parties or as a plan")]
    NotInTheClear {
        /// Name of the operation.
        operation: &'static str,
    },
    /// A cache policy told no weights of its attention, by which rows of a prompt are ranked.
    #[error("the cache policy told no weights of layer {layer}, by which rows of the prompt are ranked")]
    NoWeights {
        /// The layer, counted from 0.
        layer: usize,
    },
    /// A failure of a kind that only one engine knows. It is displayed unchanged.
    #[error(transparent)]
    Backend(Box<dyn StdError + Send + Sync>),
}

impl Error {
    /// The cause inside [`Error::Backend`], if it is an `E`.
    pub fn backend<E: StdError + 'static>(&self) -> Option<&E> {
        match self {
            Error::Backend(source) => source.downcast_ref(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_failure_of_a_backend_is_found_by_its_type_and_displayed_as_it_is() {
        let error = Error::Backend(Box::new(std::io::Error::other("the link is down")));
        assert_eq!(error.to_string(), "the link is down");
        assert!(error.backend::<std::io::Error>().is_some());
        assert!(error.backend::<std::fmt::Error>().is_none());
        assert!(Error::NotInTheClear { operation: "a study" }.backend::<std::io::Error>().is_none());
    }
}
