//! What is public about a model, in a line: pinned by a client, so that a server cannot change it.
//!
//! A server decides the shape, the tokens that end a text, and the tokenizer. All three tell it something: the number of tokens
//! of a prompt depends on the tokenizer, and with `--stop-at-eos` the length of a text on the set of end tokens. A
//! [`Fingerprint`] names them all, in a line that a client can remember beside the server's key.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use thiserror::Error;

use crate::party::PublicModel;
use crate::{ConfigError, Error, ModelFiles, ModelSpec, bundled, bundled_names};

/// What stands before the digits of a fingerprint.
const PREFIX: &str = "waggle-model:";

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
/// The shape is a [`ModelSpec`] as JSON: architecture, sizes, constants and the tokens that end a text. The tokenizer is
/// the text of `tokenizer.json`. As text: `waggle-model:` and 64 hexadecimal digits, then 64 more if the tokenizer is part
/// of it.
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
    pub fn new(spec: &ModelSpec, tokenizer: Option<&[u8]>) -> Result<Self, Error> {
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

    /// Compares this model, met at `server`, with what `file` remembers of it, and returns what is to be remembered if that
    /// is news. With `accepted`, which says that the user named this model, a changed one is news instead of refused.
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

impl PublicModel {
    /// Its fingerprint; without the tokenizer if the server was not asked for it.
    ///
    /// # Errors
    /// See [`Fingerprint::new`].
    pub fn fingerprint(&self) -> Result<Fingerprint, Error> {
        Fingerprint::new(&self.spec, self.tokenizer.as_deref())
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

/// What a client insists on.
#[derive(Clone, Debug, PartialEq)]
pub struct Expectation {
    /// The shape, where it is known and not its hash alone: then the handshake compares it too.
    pub spec: Option<ModelSpec>,
    /// What the server's model must be.
    pub fingerprint: Fingerprint,
}

impl Expectation {
    /// From a fingerprint, a `config.json`, a directory with one and perhaps a tokenizer, or the name of a bundled model.
    ///
    /// # Errors
    /// [`PinError::Malformed`] for a text that begins as a fingerprint does; [`Error`] by the file.
    pub fn named(name: &str) -> Result<Self, Error> {
        if name.starts_with(PREFIX) {
            return Ok(Expectation { spec: None, fingerprint: name.parse()? });
        }
        let path = Path::new(name);
        let (spec, tokenizer) = if !path.exists() && bundled_names().any(|bundled| bundled == name) {
            let ModelFiles { spec, tokenizer, .. } = bundled(name)?;
            (spec, tokenizer)
        } else {
            let file = path.join("tokenizer.json");
            let read = |path: PathBuf| std::fs::read(&path).map_err(|source| Error::File { path, source });
            (ModelSpec::open(path)?, file.is_file().then(|| read(file)).transpose()?)
        };
        let fingerprint = Fingerprint::new(&spec, tokenizer.as_deref())?;
        Ok(Expectation { spec: Some(spec), fingerprint })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(eos: u32) -> ModelSpec {
        ModelSpec::from_config_json(format!(r#"{{"model_type":"gpt2","eos_token_id":{eos}}}"#).as_bytes()).unwrap()
    }

    fn print(eos: u32, tokenizer: Option<&str>) -> Fingerprint {
        Fingerprint::new(&spec(eos), tokenizer.map(str::as_bytes)).unwrap()
    }

    #[test]
    fn shape_end_tokens_and_tokenizer_are_in_it() {
        let all = print(1, Some("t"));
        assert_eq!(all, print(1, Some("t")));
        assert_eq!(
            all.expect(&print(2, Some("t"))).unwrap_err().to_string().split(" is not").next(),
            Some("the server's shape")
        );
        assert!(matches!(all.expect(&print(1, Some("u"))), Err(PinError::NotExpected { part: "tokenizer", .. })));
        // A tokenizer that is not used need not be the expected one.
        all.expect(&print(1, None)).unwrap();
        print(1, None).expect(&all).unwrap();
        assert!(all.names(&all) && all.names(&print(1, None)));
        assert!(!print(1, None).names(&all), "a shape alone accepts no tokenizer");
    }

    #[test]
    fn a_fingerprint_is_a_line_of_text() {
        for fingerprint in [print(1, None), print(1, Some("t"))] {
            let text = fingerprint.to_string();
            assert_eq!(text.parse::<Fingerprint>().unwrap(), fingerprint);
            assert_eq!(Expectation::named(&text).unwrap(), Expectation { spec: None, fingerprint });
            for wrong in [&text[1..], &text[..text.len() - 1], &text.replace(|c: char| c.is_ascii_digit(), "ä")] {
                assert!(matches!(wrong.parse::<Fingerprint>(), Err(PinError::Malformed { .. })), "{wrong}");
            }
        }
    }

    #[test]
    fn a_model_is_expected_by_file_directory_or_name() {
        let by_name = Expectation::named("shakespeare-gpt2").unwrap();
        let assets = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/shakespeare-gpt2");
        assert_eq!(Expectation::named(assets).unwrap(), by_name);
        let by_config = Expectation::named(&format!("{assets}/config.json")).unwrap();
        assert_eq!(by_config.spec, by_name.spec);
        assert_eq!(by_config.fingerprint.tokenizer, None);
        by_config.fingerprint.expect(&by_name.fingerprint).unwrap();
        assert!(matches!(Expectation::named("/nonexistent"), Err(Error::File { .. })));
        assert!(matches!(Expectation::named("waggle-model:12"), Err(Error::Pin(PinError::Malformed { .. }))));
    }

    #[test]
    fn a_server_that_changes_its_model_is_refused_until_the_change_is_accepted() {
        let meet = |known: Option<&Fingerprint>, met: &Fingerprint, accepted| {
            let known = known.map(Fingerprint::to_string);
            met.meet("a:1", known.as_deref(), Path::new("known_servers"), accepted)
        };
        let (shape, old, new) = (print(1, None), print(1, Some("t")), print(1, Some("u")));
        assert_eq!(meet(None, &shape, false).unwrap(), Some(shape));
        assert_eq!(meet(Some(&shape), &old, false).unwrap(), Some(old), "its tokenizer was not known");
        assert_eq!(meet(Some(&old), &old, false).unwrap(), None);
        assert_eq!(meet(Some(&old), &shape, false).unwrap(), None, "its tokenizer was not asked for");
        let message = meet(Some(&old), &new, false).unwrap_err().to_string();
        for part in ["tokenizer", "a:1", &old.to_string(), &new.to_string(), "--expect", "known_servers"] {
            assert!(message.contains(part), "{part}: {message}");
        }
        assert!(!message.contains('\n'));
        let other = print(2, None);
        assert!(matches!(meet(Some(&old), &other, false), Err(PinError::Changed { part: "shape", .. })));
        assert_eq!(meet(Some(&old), &new, true).unwrap(), Some(new));
        assert_eq!(meet(Some(&old), &other, true).unwrap(), Some(other));
        assert!(matches!(
            shape.meet("a:1", Some("sha256:12"), Path::new("f"), true),
            Err(PinError::Malformed { .. })
        ));
    }
}
