//! Text to ids and back, by a Hugging Face `tokenizer.json`.

use crate::Error;

/// A tokenizer, public like the configuration: a server may send its bytes to a client.
pub struct Tokenizer(tokenizers::Tokenizer);

impl Tokenizer {
    /// Reads the bytes of a `tokenizer.json`.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        tokenizers::Tokenizer::from_bytes(bytes).map(Tokenizer).map_err(failed)
    }

    /// Ids of a prompt, with the special tokens that the tokenizer puts before a text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Error> {
        Ok(self.0.encode(text, true).map_err(failed)?.get_ids().to_vec())
    }

    /// Text of `ids`, special tokens left out.
    pub fn decode(&self, ids: &[u32]) -> Result<String, Error> {
        self.0.decode(ids, true).map_err(failed)
    }

    /// Number of ids, those of added tokens included.
    pub fn vocabulary(&self) -> usize {
        self.0.get_vocab_size(true)
    }

    /// Decodes what follows the text of `context`, id by id.
    pub fn stream(&self, context: &[u32]) -> TextStream<'_> {
        TextStream { tokenizer: self, ids: context.to_vec(), start: 0, shown: context.len() }
    }
}

/// Text that grows token by token.
///
/// An id may be a part of a character, and its text may depend on the ids before it. So a window of ids is decoded
/// again until it ends in a whole character, and only what is new is handed out.
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    ids: Vec<u32>,
    /// The window starts here...
    start: usize,
    /// ...and the ids before this one have been shown.
    shown: usize,
}

impl TextStream<'_> {
    /// The text that `id` adds; empty while a character is incomplete.
    pub fn push(&mut self, id: u32) -> Result<String, Error> {
        self.ids.push(id);
        let (old, new) = self.window()?;
        if new.ends_with(char::REPLACEMENT_CHARACTER) {
            return Ok(String::new());
        }
        (self.start, self.shown) = (self.shown, self.ids.len());
        Ok(new.strip_prefix(&old).unwrap_or(&new).to_owned())
    }

    /// What is left of an incomplete character.
    pub fn finish(mut self) -> Result<String, Error> {
        let (old, new) = self.window()?;
        self.shown = self.ids.len();
        Ok(new.strip_prefix(&old).unwrap_or_default().to_owned())
    }

    fn window(&self) -> Result<(String, String), Error> {
        let decode = |end: usize| self.tokenizer.decode(&self.ids[self.start..end]);
        Ok((decode(self.shown)?, decode(self.ids.len())?))
    }
}

fn failed(error: tokenizers::Error) -> Error {
    Error::Tokenizer(error.to_string())
}
