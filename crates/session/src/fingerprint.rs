//! The public facts of a model in one line. A client pins them, so that a server cannot change them.
//!
//! A server decides the shape, the tokens that end a text, the tokenizer and the chat template. All of them tell it
//! something: the number of tokens of a prompt depends on the tokenizer, with `--stop-at-eos` the length of a text
//! depends on the set of end tokens, and both depend on what a template adds to the words. A [`Fingerprint`] names
//! them all, which parts are public, and the public tokens that the server offers, in a line that a client can
//! remember beside the server's key.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use thiserror::Error;
use waggle_model::{ConfigError, ModelSpec};

/// Prefix of the digits of a fingerprint.
pub(crate) const PREFIX: &str = "waggle-model:";

/// Contexts for the key derivation of BLAKE3. They keep these hashes apart from each other, and from hashes of the
/// same bytes for other uses.
const SHAPE_CONTEXT: &str = "waggle model fingerprint 1, shape";
const TOKENIZER_CONTEXT: &str = "waggle model fingerprint 1, tokenizer";
const TEMPLATE_CONTEXT: &str = "waggle model fingerprint 1, chat template";
const PUBLIC_CONTEXT: &str = "waggle model fingerprint 1, public parts";
const OFFER_CONTEXT: &str = "waggle model fingerprint 1, offer of public text";
/// Precedes the digits of a chat template.
const TEMPLATE_MARK: char = '+';
/// Precedes the digits of public parts.
const PUBLIC_MARK: char = '~';
/// Precedes the digits of an offer of public tokens.
const OFFER_MARK: char = '=';

type Digest = [u8; 32];

/// Why a fingerprint, or the public model of a server, is refused.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PinError {
    /// The text is no fingerprint.
    #[error(
        "`{text}` is no fingerprint: `{PREFIX}` and 64 or 128 hexadecimal digits, and perhaps \
         `{TEMPLATE_MARK}` and 64 more, `{PUBLIC_MARK}` and 64 more, and `{OFFER_MARK}` and 64 more"
    )]
    Malformed {
        /// The text.
        text: String,
    },
    /// The server's model is not the one that was asked for.
    #[error("the server's {part} is not the expected one: expected {expected}, met {met}")]
    NotExpected {
        /// The part that differs: the shape, the tokenizer, the chat template, the list of public parts or the offer
        /// of public text.
        part: &'static str,
        /// The fingerprint expected.
        expected: Box<Fingerprint>,
        /// The fingerprint of the server's model.
        met: Box<Fingerprint>,
    },
    /// The server has another model than when it was met last.
    #[error(
        "the {part} of the model at {server} has changed: {known} is in {}, it now is {met}", path.display()
    )]
    Changed {
        /// The part that changed: the shape, the tokenizer, the chat template, the list of public parts or the offer
        /// of public text.
        part: &'static str,
        /// The server's name.
        server: String,
        /// The fingerprint remembered.
        known: Box<Fingerprint>,
        /// The fingerprint of the server's model.
        met: Box<Fingerprint>,
        /// The file in which the fingerprint is remembered.
        path: PathBuf,
    },
}

/// BLAKE3 of a public model's shape, and of its tokenizer and its chat template where these are known.
///
/// The shape is a [`ModelSpec`] as JSON: architecture, sizes, constants and the tokens that end a text. The tokenizer
/// is the text of `tokenizer.json`, the template a [`ChatTemplate`](waggle_tokenizer::ChatTemplate) as JSON, or
/// nothing where it is known that there is none. As text: `waggle-model:` and 64 hexadecimal digits, then 64 more if
/// the tokenizer is part of it, then `+` and 64 more if the template is, then `~` and 64 more of what a server states
/// of its public parts, if there are any, then `=` and 64 more of the public tokens that it offers, if it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    shape: Digest,
    tokenizer: Option<Digest>,
    template: Option<Digest>,
    public: Option<Digest>,
    offer: Option<Digest>,
}

impl Fingerprint {
    /// The fingerprint of a shape, the bytes of a `tokenizer.json` and the bytes of a chat template.
    ///
    /// # Errors
    /// If the shape cannot be written as JSON, which no shape that was read can be.
    pub fn new(spec: &ModelSpec, tokenizer: Option<&[u8]>, template: Option<&[u8]>) -> Result<Self, ConfigError> {
        let shape = serde_json::to_vec(spec).map_err(|e| ConfigError::Json(e.to_string()))?;
        Ok(Fingerprint {
            shape: blake3::derive_key(SHAPE_CONTEXT, &shape),
            tokenizer: tokenizer.map(|bytes| blake3::derive_key(TOKENIZER_CONTEXT, bytes)),
            template: template.map(|bytes| blake3::derive_key(TEMPLATE_CONTEXT, bytes)),
            public: None,
            offer: None,
        })
    }

    /// This fingerprint with a hash of what a server `stated` about its public parts, if it stated anything.
    pub(crate) fn with_public(self, stated: Option<&str>) -> Self {
        Fingerprint { public: stated.map(|text| blake3::derive_key(PUBLIC_CONTEXT, text.as_bytes())), ..self }
    }

    /// This fingerprint with a hash of the `digest` of the public tokens that a server offers, if it offers some.
    pub(crate) fn with_offer(self, digest: Option<&str>) -> Self {
        Fingerprint { offer: digest.map(|text| blake3::derive_key(OFFER_CONTEXT, text.as_bytes())), ..self }
    }

    /// The name of the first part that differs; `None` if none does. A part that one side does not have counts as
    /// equal, because it is not used.
    fn difference(&self, other: &Self) -> Option<&'static str> {
        let differ = |a: Option<Digest>, b: Option<Digest>| a.zip(b).is_some_and(|(a, b)| a != b);
        [
            ("shape", self.shape != other.shape),
            ("tokenizer", differ(self.tokenizer, other.tokenizer)),
            ("chat template", differ(self.template, other.template)),
            ("list of public parts", differ(self.public, other.public)),
            ("offer of public text", differ(self.offer, other.offer)),
        ]
        .into_iter()
        .find_map(|(part, differs)| differs.then_some(part))
    }

    /// Whether this fingerprint has a chat template, and `known` has none or another one.
    pub fn has_new_template(&self, known: Option<&Self>) -> bool {
        self.template.is_some() && known.is_none_or(|known| known.template != self.template)
    }

    /// Refuses a model `met` that differs from this one.
    ///
    /// # Errors
    /// [`PinError::NotExpected`] with the part that differs.
    pub fn expect(&self, met: &Self) -> Result<(), PinError> {
        match self.difference(met) {
            None => Ok(()),
            Some(part) => Err(PinError::NotExpected { part, expected: (*self).into(), met: (*met).into() }),
        }
    }

    /// Whether this fingerprint states the shape of `met`, and every other part that `met` has.
    pub fn names(&self, met: &Self) -> bool {
        let all = |stated, met: Option<Digest>| met.is_none() || stated == met;
        self.shape == met.shape
            && all(self.tokenizer, met.tokenizer)
            && all(self.template, met.template)
            && all(self.public, met.public)
            && all(self.offer, met.offer)
    }

    /// Compares this model, met at `server`, with the `known` one that `file` remembers of that server. Returns what
    /// the file is to remember, if that has changed. With `accepted` the user has named this model, so a changed
    /// model is remembered instead of refused.
    ///
    /// If the session has no use for the server's tokenizer, template or offer, the known one is neither compared nor
    /// forgotten.
    ///
    /// # Errors
    /// [`PinError::Changed`].
    pub fn meet(
        &self,
        server: &str,
        known: Option<&Fingerprint>,
        file: &Path,
        accepted: bool,
    ) -> Result<Option<Fingerprint>, PinError> {
        let Some(known) = known else { return Ok(Some(*self)) };
        match known.difference(self) {
            Some(part) if !accepted => {
                let (known, met) = ((*known).into(), (*self).into());
                Err(PinError::Changed { part, server: server.into(), known, met, path: file.into() })
            }
            _ => {
                let all = Fingerprint {
                    shape: self.shape,
                    tokenizer: self.tokenizer.or(known.tokenizer),
                    template: self.template.or(known.template),
                    public: self.public.or(known.public),
                    offer: self.offer.or(known.offer),
                };
                Ok((all != *known).then_some(all))
            }
        }
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(PREFIX)?;
        let mut digits = |digest: &Digest| digest.iter().try_for_each(|byte| write!(f, "{byte:02x}"));
        digits(&self.shape)?;
        self.tokenizer.iter().try_for_each(&mut digits)?;
        let mut marked = |mark: char, digest: &Option<Digest>| match digest {
            Some(digest) => write!(f, "{mark}{}", blake3::Hash::from(*digest)),
            None => Ok(()),
        };
        marked(TEMPLATE_MARK, &self.template)?;
        marked(PUBLIC_MARK, &self.public)?;
        marked(OFFER_MARK, &self.offer)
    }
}

impl FromStr for Fingerprint {
    type Err = PinError;

    fn from_str(text: &str) -> Result<Self, PinError> {
        let digest = |digits: &str| blake3::Hash::from_hex(digits).ok().map(Digest::from);
        let parse = || {
            let digits = text.strip_prefix(PREFIX)?;
            let marked = |digits, mark| match str::split_once(digits, mark) {
                Some((digits, marked)) => Some((digits, Some(digest(marked)?))),
                None => Some((digits, None)),
            };
            let (digits, offer) = marked(digits, OFFER_MARK)?;
            let (digits, public) = marked(digits, PUBLIC_MARK)?;
            let (digits, template) = marked(digits, TEMPLATE_MARK)?;
            // A byte position may lie within a character, but not in a text of hexadecimal digits.
            let tokenizer = match digits.get(64..)? {
                "" => None,
                tokenizer => Some(digest(tokenizer)?),
            };
            Some(Fingerprint { shape: digest(digits.get(..64)?)?, tokenizer, template, public, offer })
        };
        parse().ok_or_else(|| PinError::Malformed { text: waggle_tokenizer::printable(text, 200) })
    }
}
