#![doc = include_str!("../README.md")]
#![deny(missing_docs)]
#![deny(unsafe_code)]

mod classes;
mod error;
#[cfg(feature = "templates")]
mod jinja;
mod published;
mod regex;
#[cfg(unix)]
mod sandbox;
mod template;
mod vet;
mod worker;

pub use error::{TokenizerError, printable};
pub use published::Published;
#[cfg(feature = "templates")]
pub use template::local_time;
pub use template::{ChatTemplate, MAX_TEMPLATE_BYTES, Message};
pub use vet::MAX_TOKENIZER_BYTES;
pub use worker::{MAX_TEXT_BYTES, MAX_TEXT_IDS, WorkerCommand, run_worker};

/// Bytes of a text for each position of a model, at least: white space that a tokenizer drops counts, too. The
/// longest token of GPT-2 has as many.
const BYTES_PER_POSITION: usize = 128;

/// A tokenizer, public like the configuration: a server may send its bytes to a client.
pub struct Tokenizer {
    place: Place,
    /// Longest text that is encoded, in bytes.
    most: usize,
}

/// Where a tokenizer runs.
enum Place {
    Here(Box<Local>),
    Worker(Box<worker::Worker>),
}

impl Tokenizer {
    /// Reads the bytes of the user's own `tokenizer.json`.
    ///
    /// # Errors
    /// [`TokenizerError`] by the part of the file: what Waggle does not support or what exceeds a bound.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TokenizerError> {
        Ok(Tokenizer { place: Place::Here(Box::new(Local::from_bytes(bytes)?)), most: usize::MAX })
    }

    /// Reads the bytes of a `tokenizer.json` that somebody else sent, in a process that `command` starts and that
    /// runs [`run_worker`]. When it is gone, the next request starts another.
    ///
    /// # Errors
    /// As [`Tokenizer::from_bytes`]; [`TokenizerError::Spawn`], [`TokenizerError::Died`] or
    /// [`TokenizerError::TimedOut`] if the process cannot be started, ends or takes too long.
    pub fn foreign(bytes: &[u8], command: &WorkerCommand) -> Result<Self, TokenizerError> {
        Ok(Tokenizer { place: Place::Worker(Box::new(worker::Worker::start(bytes, command)?)), most: MAX_TEXT_BYTES })
    }

    /// This tokenizer for a model of so many positions: a text that is too long for it is refused before it is
    /// encoded. A token has at most the bytes of the longest one, or 128 if that is shorter.
    pub fn within(self, positions: usize) -> Self {
        let longest = match &self.place {
            Place::Here(local) => local.longest,
            Place::Worker(worker) => worker.longest(),
        };
        let most = positions.saturating_mul(longest.max(BYTES_PER_POSITION));
        Tokenizer { most: self.most.min(most), ..self }
    }

    /// Why the process of a foreign tokenizer has limits but no sandbox, on a Linux that has none. On other systems
    /// there are limits alone.
    pub fn no_sandbox(&self) -> Option<&str> {
        match &self.place {
            Place::Here(_) => None,
            Place::Worker(worker) => worker.no_sandbox.as_deref(),
        }
    }

    /// Ids of a prompt, with the special tokens that the tokenizer puts before a text.
    ///
    /// # Errors
    /// Those of the library; [`TokenizerError::TooMuch`] by [`within`](Tokenizer::within). From a process also above
    /// [`MAX_TEXT_BYTES`] or [`MAX_TEXT_IDS`], and those of a process that dies twice or takes too long.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.ids(text, true)
    }

    /// Ids of a text that follows another one: without the special tokens that begin a text.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_more(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.ids(text, false)
    }

    /// Ids of two texts that an encoder reads together, and the place where the second one begins, if the tokenizer
    /// tells it from the first.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`]; [`TokenizerError::Refused`] for a tokenizer that does not put one after the other.
    pub fn encode_pair(&self, first: &str, second: &str) -> Result<(Vec<u32>, Option<usize>), TokenizerError> {
        error::at_most("bytes of text", first.len() + second.len(), self.most)?;
        match &self.place {
            Place::Here(local) => local.encode_pair(first, second),
            Place::Worker(worker) => worker.encode_pair(first, second),
        }
    }

    fn ids(&self, text: &str, begins: bool) -> Result<Vec<u32>, TokenizerError> {
        error::at_most("bytes of text", text.len(), self.most)?;
        match &self.place {
            Place::Here(local) => local.encode(text, begins),
            Place::Worker(worker) => worker.encode(text, begins),
        }
    }

    /// The text of `messages` by `template` at the time `now` ([`local_time`]), in the process of the tokenizer if it
    /// has one. With `generate` it ends where an answer begins.
    ///
    /// # Errors
    /// [`TokenizerError::Template`] for a template that fails, refuses the messages or takes too many steps;
    /// [`TokenizerError::TooMuch`]; those of a process that dies or takes too long.
    pub fn render(
        &self,
        template: &ChatTemplate,
        messages: &[Message],
        generate: bool,
        now: &str,
    ) -> Result<String, TokenizerError> {
        error::at_most("bytes of text", messages.iter().map(|m| m.role.len() + m.content.len()).sum(), self.most)?;
        match &self.place {
            Place::Here(_) => {
                let text = template.render(messages, generate, now)?;
                error::at_most("bytes of text", text.len(), MAX_TEXT_BYTES)?;
                Ok(text)
            }
            Place::Worker(worker) => worker.render(template, messages, generate, now),
        }
    }

    /// Text of `ids`, special tokens left out.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        match &self.place {
            Place::Here(local) => local.decode(ids),
            Place::Worker(worker) => worker.decode(ids),
        }
    }

    /// Number of ids, those of added tokens included.
    pub fn vocabulary(&self) -> usize {
        match &self.place {
            Place::Here(local) => local.vocabulary(),
            Place::Worker(worker) => worker.vocabulary(),
        }
    }

    /// Decodes what follows the text of `context`, id by id.
    pub fn stream(&self, context: &[u32]) -> TextStream<'_> {
        TextStream { tokenizer: self, ids: context.to_vec(), start: 0, shown: context.len() }
    }
}

/// The library on a file that was vetted.
struct Local {
    library: tokenizers::Tokenizer,
    /// By how much encoding may lengthen a text.
    growth: usize,
    /// Whether it puts two texts one after the other.
    pairs: bool,
    /// Its longest token, in bytes.
    longest: usize,
}

impl Local {
    fn from_bytes(bytes: &[u8]) -> Result<Self, TokenizerError> {
        let vet::Vetted { json, growth, pairs, longest } = vet::vet(bytes)?;
        let library = tokenizers::Tokenizer::from_bytes(json).map_err(TokenizerError::failed)?;
        Ok(Local { library, growth, pairs, longest })
    }

    /// `begins` says whether the special tokens that begin a text are put before it.
    fn encode(&self, text: &str, begins: bool) -> Result<Vec<u32>, TokenizerError> {
        Ok(self.library.encode(text, begins).map_err(TokenizerError::failed)?.get_ids().to_vec())
    }

    /// The place of the second text is that of the first token of another segment than the first.
    fn encode_pair(&self, first: &str, second: &str) -> Result<(Vec<u32>, Option<usize>), TokenizerError> {
        if !self.pairs {
            return Err(TokenizerError::refused("post_processor", "it does not put one text after another"));
        }
        let encoding = self.library.encode((first, second), true).map_err(TokenizerError::failed)?;
        let begins = encoding.get_type_ids().iter().position(|segment| *segment != 0);
        Ok((encoding.get_ids().to_vec(), begins.filter(|at| *at > 0)))
    }

    fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        self.library.decode(ids, true).map_err(TokenizerError::failed)
    }

    fn vocabulary(&self) -> usize {
        self.library.get_vocab_size(true)
    }
}

/// Text that grows token by token.
///
/// An id may be a part of a character, and its text may depend on the ids before it. A window of ids is therefore
/// decoded again until it ends in a whole character, and only the new text is handed out.
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
    pub fn push(&mut self, id: u32) -> Result<String, TokenizerError> {
        self.ids.push(id);
        let (old, new) = self.window()?;
        if new.ends_with(char::REPLACEMENT_CHARACTER) {
            return Ok(String::new());
        }
        (self.start, self.shown) = (self.shown, self.ids.len());
        Ok(new.strip_prefix(&old).unwrap_or(&new).to_owned())
    }

    /// The rest of the text, an incomplete character.
    pub fn finish(mut self) -> Result<String, TokenizerError> {
        let (old, new) = self.window()?;
        self.shown = self.ids.len();
        Ok(new.strip_prefix(&old).unwrap_or_default().to_owned())
    }

    fn window(&self) -> Result<(String, String), TokenizerError> {
        let decode = |end: usize| self.tokenizer.decode(&self.ids[self.start..end]);
        Ok((decode(self.shown)?, decode(self.ids.len())?))
    }
}
