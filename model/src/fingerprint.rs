//! What is public about a model, in a line: pinned by a client, so that a server cannot change it.
//!
//! A server decides the shape, the tokens that end a text, and the tokenizer. All three tell it something: the number
//! of tokens of a prompt depends on the tokenizer, and with `--stop-at-eos` the length of a text on the set of end
//! tokens. A [`Fingerprint`] names them all, in a line that a client can remember beside the server's key.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use thiserror::Error;

use crate::config::ConfigError;
use crate::spec::ModelSpec;

/// What stands before the digits of a fingerprint.
pub(crate) const PREFIX: &str = "waggle-model:";

/// The keys of the two hashes, so that neither is that of the same bytes elsewhere.
const SHAPE_CONTEXT: &str = "waggle model fingerprint 1, shape";
const TOKENIZER_CONTEXT: &str = "waggle model fingerprint 1, tokenizer";

type Digest = [u8; 32];

/// A public model that is not the one that it should be.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PinError {
    /// A text that is no fingerprint.
    #[error("`{text}` is no fingerprint: `{PREFIX}` and 64 or 128 hexadecimal digits")]
    Malformed {
        /// The text.
        text: String,
    },
    /// The server's model is not the one that was asked for.
    #[error("the server's {part} is not the expected one: expected {expected}, met {met}")]
    NotExpected {
        /// What differs: the shape or the tokenizer.
        part: &'static str,
        /// What was expected.
        expected: Box<Fingerprint>,
        /// What the server has.
        met: Box<Fingerprint>,
    },
    /// The server has another model than when it was met last.
    #[error(
        "the {part} of the model at {server} has changed: {known} is in {}, it now is {met}; if that is right, \
         accept it once with --expect {met}", path.display()
    )]
    Changed {
        /// What changed: the shape or the tokenizer.
        part: &'static str,
        /// The server's name.
        server: String,
        /// What was remembered.
        known: Box<Fingerprint>,
        /// What the server has.
        met: Box<Fingerprint>,
        /// The file that remembers.
        path: PathBuf,
    },
}

/// BLAKE3 of a public model's shape, and of its tokenizer where that is known.
///
/// The shape is a [`ModelSpec`] as JSON: architecture, sizes, constants and the tokens that end a text. The tokenizer
/// is the text of `tokenizer.json`. As text: `waggle-model:` and 64 hexadecimal digits, then 64 more if the tokenizer
/// is part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    shape: Digest,
    tokenizer: Option<Digest>,
}

impl Fingerprint {
    /// Of a shape and of the bytes of a `tokenizer.json`.
    ///
    /// # Errors
    /// If the shape cannot be written as JSON, which no shape that was read can be.
    pub fn new(spec: &ModelSpec, tokenizer: Option<&[u8]>) -> Result<Self, ConfigError> {
        let shape = serde_json::to_vec(spec).map_err(|e| ConfigError::Json(e.to_string()))?;
        Ok(Fingerprint {
            shape: blake3::derive_key(SHAPE_CONTEXT, &shape),
            tokenizer: tokenizer.map(|bytes| blake3::derive_key(TOKENIZER_CONTEXT, bytes)),
        })
    }

    /// The first part that differs. A tokenizer that one side does not have differs from none: it is not used.
    fn difference(&self, other: &Self) -> Option<&'static str> {
        if self.shape != other.shape {
            return Some("shape");
        }
        match (self.tokenizer, other.tokenizer) {
            (Some(a), Some(b)) if a != b => Some("tokenizer"),
            _ => None,
        }
    }

    /// Refuses a model `met` that differs from this one.
    ///
    /// # Errors
    /// [`PinError::NotExpected`] by the part.
    pub fn expect(&self, met: &Self) -> Result<(), PinError> {
        match self.difference(met) {
            None => Ok(()),
            Some(part) => Err(PinError::NotExpected { part, expected: (*self).into(), met: (*met).into() }),
        }
    }

    /// Whether whoever states this fingerprint means `met`, the tokenizer included where `met` has one.
    pub fn names(&self, met: &Self) -> bool {
        self.shape == met.shape && met.tokenizer.is_none_or(|tokenizer| self.tokenizer == Some(tokenizer))
    }

    /// Compares this model, met at `server`, with what `file` remembers of it, and returns what is to be remembered
    /// if that is news. With `accepted`, which says that the user named this model, a changed one is news instead of
    /// refused.
    ///
    /// A session that has no use for the server's tokenizer neither compares nor forgets it.
    ///
    /// # Errors
    /// [`PinError::Changed`]; [`PinError::Malformed`] if `known` is no fingerprint.
    pub fn meet(
        &self,
        server: &str,
        known: Option<&str>,
        file: &Path,
        accepted: bool,
    ) -> Result<Option<Fingerprint>, PinError> {
        let Some(known) = known.map(str::parse::<Fingerprint>).transpose()? else { return Ok(Some(*self)) };
        match known.difference(self) {
            Some(part) if !accepted => {
                let (known, met) = (known.into(), (*self).into());
                Err(PinError::Changed { part, server: server.into(), known, met, path: file.into() })
            }
            Some(_) => Ok(Some(*self)),
            None => {
                let both = Fingerprint { shape: self.shape, tokenizer: self.tokenizer.or(known.tokenizer) };
                Ok((both != known).then_some(both))
            }
        }
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(PREFIX)?;
        self.shape.iter().chain(self.tokenizer.iter().flatten()).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Fingerprint {
    type Err = PinError;

    fn from_str(text: &str) -> Result<Self, PinError> {
        let digest = |digits: &str| blake3::Hash::from_hex(digits).ok().map(Digest::from);
        let parse = || {
            let digits = text.strip_prefix(PREFIX)?;
            // Byte positions may lie within a character, but not of hexadecimal digits.
            match digits.len() {
                64 => Some(Fingerprint { shape: digest(digits)?, tokenizer: None }),
                128 => Some(Fingerprint {
                    shape: digest(digits.get(..64)?)?,
                    tokenizer: Some(digest(digits.get(64..)?)?),
                }),
                _ => None,
            }
        };
        parse().ok_or_else(|| PinError::Malformed { text: crate::text::printable(text, 200) })
    }
}
