//! Errors that end a proxy, or keep it from starting.

use std::net::SocketAddr;
use std::path::PathBuf;

use thiserror::Error;

/// An error that ends a proxy or keeps it from starting.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProxyError {
    /// A session with the server, a file or the system failed.
    #[error(transparent)]
    Waggle(waggle::Error),
    /// Other machines can reach the proxy, but it has no key.
    #[error(
        "{address} is reached from other machines, so the proxy needs keys of programs: prompts cross it in the clear"
    )]
    Open {
        /// The address on which the proxy would listen.
        address: SocketAddr,
    },
    /// The file of keys contains no key.
    #[error("{} holds no key: lines that programs give", .0.display())]
    NoKey(PathBuf),
    /// The file of keys is too long.
    #[error("{} has more than {most} bytes: keys that programs give, one a line", path.display())]
    LongKeys {
        /// The file.
        path: PathBuf,
        /// Most bytes of a file of keys.
        most: u64,
    },
    /// A key is too long, or has characters that no program can send.
    #[error("the key in line {line} of {} is none of up to {most} printable characters of ASCII", path.display())]
    ForeignKey {
        /// The file.
        path: PathBuf,
        /// The line, from 1 on.
        line: usize,
        /// Most characters of a key.
        most: usize,
    },
    /// A key is so short that it is soon guessed.
    #[error("a key in {} has {got} bytes, and {least} is the least", path.display())]
    ShortKey {
        /// The file.
        path: PathBuf,
        /// Bytes of the key.
        got: usize,
        /// Least bytes of a key.
        least: usize,
    },
    /// The model has no room for turns and answers of these lengths.
    #[error(
        "turns of {turn} tokens and answers of {tokens} are more than the {limit} positions of the server's model"
    )]
    LongTurns {
        /// Tokens of a turn.
        turn: usize,
        /// Tokens of an answer.
        tokens: usize,
        /// Positions of the model.
        limit: usize,
    },
}

impl<E: Into<waggle::Error>> From<E> for ProxyError {
    fn from(error: E) -> Self {
        ProxyError::Waggle(error.into())
    }
}
