//! Turns words or pixels into a model's input, and the model's tokens into words.

use tracing::warn;
use waggle_model::{ModelFiles, ModelSpec};
use waggle_session::party::PublicModel;
use waggle_tokenizer::{Tokenizer, TokenizerError};

use crate::pixels::Preprocessor;
use crate::{Error, worker};

/// The tokenizer of a model on this machine, if it has one.
pub fn tokenizer(files: &ModelFiles) -> Result<Option<Tokenizer>, Error> {
    match files.spec.image() {
        Some(_) => Err(waggle_model::Error::NoTexts.into()),
        None => Ok(files.tokenizer.as_deref().map(Tokenizer::from_bytes).transpose()?),
    }
}

/// Turns words or pixels into a model's input.
pub enum Reader {
    /// Reads texts; without a tokenizer, token ids alone.
    Texts(Option<Tokenizer>),
    /// Reads images, prepared as the model's `preprocessor_config.json` says, if there is one.
    Images(Option<Preprocessor>),
}

impl Reader {
    /// The reader of a model on this machine.
    pub fn of(files: &ModelFiles) -> Result<Self, Error> {
        match files.spec.image() {
            Some(_) => Reader::images(files.tokenizer.as_deref()),
            None => Ok(Reader::Texts(tokenizer(files)?)),
        }
    }

    /// The reader of a server's model. Texts that are too long for the model are refused before they are encoded.
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

    /// A reader of images. `bytes` is the text of a `preprocessor_config.json`, if there is one.
    pub fn images(bytes: Option<&[u8]>) -> Result<Self, Error> {
        Ok(Reader::Images(bytes.map(Preprocessor::from_bytes).transpose()?))
    }

    /// The tokenizer, if the reader has one.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        match self {
            Reader::Texts(tokenizer) => tokenizer.as_ref(),
            Reader::Images(_) => None,
        }
    }
}

/// Logs the characters of `text` for which the model has no token.
pub(crate) fn log_unread(tokenizer: &Tokenizer, text: &str) -> Result<(), Error> {
    let unread = tokenizer.unread(text)?;
    if !unread.is_empty() {
        let unread = unread.iter().map(|c| format!("`{c}`")).collect::<Vec<_>>().join(", ");
        warn!("the model has no token for {unread} and does not see what stands there");
    }
    Ok(())
}

/// The text of `tokens`: for a classifier the names of the classes, one on each line; otherwise words, if there is a
/// tokenizer.
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
