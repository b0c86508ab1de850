//! What makes a model's input of words or pixels, and words of its tokens.

use tracing::warn;
use waggle_model::{ModelFiles, ModelSpec};
use waggle_session::party::PublicModel;
use waggle_tokenizer::{Tokenizer, TokenizerError};

use crate::pixels::Preprocessor;
use crate::{Error, worker};

/// The tokenizer of a model of one's own, if it has one.
pub fn tokenizer(files: &ModelFiles) -> Result<Option<Tokenizer>, Error> {
    match files.spec.image() {
        Some(_) => Err(waggle_model::Error::NoTexts.into()),
        None => Ok(files.tokenizer.as_deref().map(Tokenizer::from_bytes).transpose()?),
    }
}

/// What makes a model's input of words or of pixels.
pub enum Reader {
    /// Texts, by a tokenizer if there is one.
    Texts(Option<Tokenizer>),
    /// Images, by their settings if there are any.
    Images(Option<Preprocessor>),
}

impl Reader {
    /// That of a model of one's own.
    pub fn of(files: &ModelFiles) -> Result<Self, Error> {
        match files.spec.image() {
            Some(_) => Reader::images(files.tokenizer.as_deref()),
            None => Ok(Reader::Texts(tokenizer(files)?)),
        }
    }

    /// That of a server's model. What it cannot read is refused before it is encoded.
    pub fn foreign(model: &PublicModel) -> Result<Self, Error> {
        let bytes = model.tokenizer.as_deref();
        match model.spec.image() {
            Some(_) => Reader::images(bytes),
            None => {
                let tokenizer = bytes.map(worker::foreign).transpose()?;
                Ok(Reader::Texts(tokenizer.map(|tokenizer| tokenizer.within(model.spec.max_positions()))))
            }
        }
    }

    /// By the text of a `preprocessor_config.json`, if there is one.
    pub fn images(bytes: Option<&[u8]>) -> Result<Self, Error> {
        Ok(Reader::Images(bytes.map(Preprocessor::from_bytes).transpose()?))
    }

    /// The tokenizer, if it is one.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        match self {
            Reader::Texts(tokenizer) => tokenizer.as_ref(),
            Reader::Images(_) => None,
        }
    }
}

/// Logs what the model cannot read of `text`.
pub(crate) fn log_unread(tokenizer: &Tokenizer, text: &str) -> Result<(), Error> {
    let unread = tokenizer.unread(text)?;
    if !unread.is_empty() {
        let unread = unread.iter().map(|c| format!("`{c}`")).collect::<Vec<_>>().join(", ");
        warn!("the model has no token for {unread} and does not see what stands there");
    }
    Ok(())
}

/// The text of `tokens`: words if there is a tokenizer, and the names of an encoder's classes, a line each.
pub fn text_of(
    spec: &ModelSpec,
    tokenizer: Option<&Tokenizer>,
    tokens: &[u32],
) -> Result<Option<String>, TokenizerError> {
    match spec.labels() {
        Some(labels) => {
            let names: Vec<&str> = tokens.iter().filter_map(|token| Some(&**labels.get(*token as usize)?)).collect();
            Ok(Some(names.join("\n")))
        }
        None => tokenizer.map(|tokenizer| tokenizer.decode(tokens)).transpose(),
    }
}

/// Text without control characters except line ends and tabs, because the tokenizer may be the server's and the
/// terminal is ours.
pub fn harmless(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect()
}
