//! Errors that end a proxy, or keep it from beginning.

use std::net::SocketAddr;
use std::path::PathBuf;

use thiserror::Error;

/// Why there is no proxy.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProxyError {
    /// A session with the server, a file or the system.
    #[error(transparent)]
    Waggle(waggle::Error),
    /// A proxy that others reach, without a key.
    #[error(
        "{address} is reached from other machines, so the proxy needs keys of programs: prompts cross it in the clear"
    )]
    Open {
        /// The address on which the proxy would listen.
        address: SocketAddr,
    },
    /// A file without the keys that it should hold.
    #[error("{} holds no key: lines that programs give", .0.display())]
    NoKey(PathBuf),
    /// A file that is too long for a file of keys.
    #[error("{} has more than {most} bytes: keys that programs give, one a line", path.display())]
    LongKeys {
        /// The file.
        path: PathBuf,
        /// Most bytes of it.
        most: u64,
    },
    /// A key that no program can give.
    #[error("the key in line {line} of {} is none of up to {most} printable characters of ASCII", path.display())]
    ForeignKey {
        /// The file.
        path: PathBuf,
        /// The line, from 1 on.
        line: usize,
        /// Most characters of a key.
        most: usize,
    },
    /// A key that is soon guessed.
    #[error("a key in {} has {got} bytes, and {least} is the least", path.display())]
    ShortKey {
        /// The file.
        path: PathBuf,
        /// Bytes of the key.
        got: usize,
        /// Bytes of the shortest key that is taken.
        least: usize,
    },
    /// Conversations for which a model has no room.
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
