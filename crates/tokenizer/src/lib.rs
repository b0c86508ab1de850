#![doc = include_str!("../README.md")]
#![deny(missing_docs)]
#![deny(unsafe_code)]

mod classes;
mod error;
mod jinja;
mod published;
mod regex;
#[cfg(unix)]
mod sandbox;
mod settings;
mod template;
mod vet;
mod worker;

pub use error::{TokenizerError, printable};
pub use published::Published;
pub use template::{ChatTemplate, MAX_TEMPLATE_BYTES, Message, local_time};
pub use vet::MAX_TOKENIZER_BYTES;
pub use worker::{MAX_TEXT_BYTES, MAX_TEXT_IDS, WorkerCommand, run_worker};

/// The number of bytes that a text may have for each position of a model, unless the longest token has more bytes.
/// This number leaves room for white space that a tokenizer drops. It is the length of GPT-2's longest token.
const BYTES_PER_POSITION: usize = 128;

/// An Egyptian hieroglyph, as an example of an unknown character. Only a tokenizer with tokens for bytes can encode
/// it.
const UNKNOWN: char = '\u{13000}';

/// A tokenizer. It is public like the configuration, and a server may send its bytes to a client.
pub struct Tokenizer {
    place: Place,
    /// The longest text that may be encoded, in bytes.
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
    /// A [`TokenizerError`] that names the part of the file that Waggle does not support, or that exceeds a bound.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TokenizerError> {
        Ok(Tokenizer { place: Place::Here(Box::new(Local::from_bytes(bytes)?)), most: usize::MAX })
    }

    /// Reads the bytes of a `tokenizer.json` that somebody else sent. This takes place in a process that `command`
    /// starts and that runs [`run_worker`]. If the process has ended, the next request starts another.
    ///
    /// # Errors
    /// As [`Tokenizer::from_bytes`]; [`TokenizerError::Spawn`], [`TokenizerError::Died`] or
    /// [`TokenizerError::TimedOut`] if the process cannot be started, ends or takes too long.
    pub fn foreign(bytes: &[u8], command: &WorkerCommand) -> Result<Self, TokenizerError> {
        Ok(Tokenizer { place: Place::Worker(Box::new(worker::Worker::start(bytes, command)?)), most: MAX_TEXT_BYTES })
    }

    /// This tokenizer for a model of `positions` positions. It refuses a text that is too long for the model before
    /// encoding it. For each position a text may have as many bytes as the longest token, or 128 if that is more.
    pub fn within(self, positions: usize) -> Self {
        let longest = match &self.place {
            Place::Here(local) => local.longest,
            Place::Worker(worker) => worker.longest(),
        };
        let most = positions.saturating_mul(longest.max(BYTES_PER_POSITION));
        Tokenizer { most: self.most.min(most), ..self }
    }

    /// Why the process of a foreign tokenizer has limits but no sandbox, on a Linux that offers none. `None` if the
    /// process has a sandbox, if there is no process, and on other systems, which have limits alone.
    pub fn no_sandbox(&self) -> Option<&str> {
        match &self.place {
            Place::Here(_) => None,
            Place::Worker(worker) => worker.no_sandbox.as_deref(),
        }
    }

    /// The ids of a prompt, with the special tokens that the tokenizer puts around a text.
    ///
    /// # Errors
    /// An error if the library fails. [`TokenizerError::TooMuch`] for a text that is longer than
    /// [`within`](Tokenizer::within) allows. In a process also: [`TokenizerError::TooMuch`] for more than
    /// [`MAX_TEXT_BYTES`] or [`MAX_TEXT_IDS`], and an error if the process dies twice or takes too long.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.ids(text, true)
    }

    /// The ids of a text that follows another one, without the special tokens that the tokenizer puts around a whole
    /// text.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_more(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.ids(text, false)
    }

    /// The ids of two texts that an encoder reads together. Also returns the index at which the second text begins,
    /// if the tokenizer gives the two texts different segments.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`]. [`TokenizerError::Refused`] for a tokenizer that does not put one text after the
    /// other.
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

    /// Renders `messages` by `template`, in the tokenizer's process if it has one. `now` is the time that the
    /// template may ask for, as [`local_time`] returns it. With `generate` the text ends where an answer begins.
    ///
    /// # Errors
    /// [`TokenizerError::Template`] for a template that fails, refuses the messages or takes too many steps.
    /// [`TokenizerError::TooMuch`] for a text that is too long. An error if the process dies or takes too long.
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

    /// The characters of `text` for which there is no token. The ids leave them out, or contain the token for unknown
    /// words instead. White space and control characters do not count, because many tokenizers drop them on purpose.
    /// Only the first 64 different characters are checked, not counting ASCII letters.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn unread(&self, text: &str) -> Result<Vec<char>, TokenizerError> {
        let mut seen: Vec<char> = Vec::new();
        for c in text.chars().filter(|c| !(c.is_whitespace() || c.is_control() || c.is_ascii_alphabetic())) {
            if !seen.contains(&c) && seen.len() < 64 {
                seen.push(c);
            }
        }
        if seen.is_empty() {
            return Ok(seen);
        }
        // The character stands after another one, because some tokenizers begin every text with a token of their own.
        let alike = [self.encode_more("a")?, self.encode_more(&format!("a{UNKNOWN}"))?];
        let mut unread = Vec::new();
        for c in seen {
            if alike.contains(&self.encode_more(&format!("a{c}"))?) {
                unread.push(c);
            }
        }
        Ok(unread)
    }

    /// The text of `ids`, without special tokens.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        match &self.place {
            Place::Here(local) => local.decode(ids),
            Place::Worker(worker) => worker.decode(ids),
        }
    }

    /// The number of ids, including those of added tokens.
    pub fn vocabulary(&self) -> usize {
        match &self.place {
            Place::Here(local) => local.vocabulary(),
            Place::Worker(worker) => worker.vocabulary(),
        }
    }

    /// A stream that turns ids into text one by one. The ids follow those in `context`, whose text is not repeated.
    pub fn stream(&self, context: &[u32]) -> TextStream<'_> {
        TextStream { tokenizer: self, ids: context.to_vec(), start: 0, shown: context.len(), told: 0 }
    }
}

/// The tokenizer library with a vetted file, in this process.
struct Local {
    library: tokenizers::Tokenizer,
    /// The largest factor by which encoding may lengthen a text before it is divided into tokens.
    growth: usize,
    /// Whether the tokenizer can encode two texts together, one after the other.
    pairs: bool,
    /// Bytes of the longest token.
    longest: usize,
}

impl Local {
    fn from_bytes(bytes: &[u8]) -> Result<Self, TokenizerError> {
        let vet::Vetted { json, growth, pairs, longest } = vet::vet(bytes)?;
        let library = tokenizers::Tokenizer::from_bytes(json).map_err(TokenizerError::failed)?;
        Ok(Local { library, growth, pairs, longest })
    }

    /// The ids of `text`. `begins` says whether the special tokens around a whole text are added.
    fn encode(&self, text: &str, begins: bool) -> Result<Vec<u32>, TokenizerError> {
        Ok(self.library.encode(text, begins).map_err(TokenizerError::failed)?.get_ids().to_vec())
    }

    /// The ids of two texts, and the index at which the second text begins: that of the first token in a later
    /// segment. The index is `None` if all tokens are in the same segment.
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

/// The largest number of bytes in an incomplete character. A decoder shows each of these bytes, or all of them
/// together, as one replacement character. Some decoders show all bytes before them in the same way.
const OPEN_BYTES: usize = 3;
/// The largest number of ids in a window without a whole character at its end. A longer one is cut.
const MOST_PENDING: usize = 16;

/// The text of ids that arrive one by one.
///
/// An id may stand for a part of a character, and its text may depend on the ids before it. A window of the latest
/// ids is therefore decoded again with each id, until it ends in a whole character. Only new text is handed out.
/// Bytes that are not UTF-8 hold back only text that might still become a character.
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    ids: Vec<u32>,
    /// Index of the window's first id.
    start: usize,
    /// Index of the first id whose text has not been handed out in full.
    shown: usize,
    /// Number of bytes that have been handed out of the text from `shown` on.
    told: usize,
}

impl TextStream<'_> {
    /// The text that `id` adds; empty while a character is incomplete.
    pub fn push(&mut self, id: u32) -> Result<String, TokenizerError> {
        self.ids.push(id);
        let (told, text) = self.window(false)?;
        let whole = text.trim_end_matches(char::REPLACEMENT_CHARACTER).len();
        if whole == text.len() {
            (self.start, self.shown, self.told) = (self.shown, self.ids.len(), 0);
            return Ok(text.get(told..).unwrap_or_default().to_owned());
        }
        let first = self.ids.len().saturating_sub(OPEN_BYTES);
        if first <= self.shown {
            let piece = text.get(told..whole).unwrap_or_default();
            self.told += piece.len();
            return Ok(piece.to_owned());
        }
        // If the last ids are parts of a character, one of them ends it. Text that is the same wherever the character
        // ends is final.
        let mut end = text.len();
        for last in first..self.ids.len() {
            let before = self.decode(self.start, last)?;
            let same = text.chars().zip(before.chars()).take_while(|(a, b)| a == b);
            end = end.min(same.map(|(c, _)| c.len_utf8()).sum());
        }
        let end = end.max(whole).max(told);
        let piece = text.get(told..end).unwrap_or_default();
        self.told += piece.len();
        // A long window is cut if the texts of its two halves make its text, as no character then lies across the
        // cut.
        if self.ids.len() - self.shown > MOST_PENDING {
            let (before, after) = (self.decode(self.start, first)?, self.decode(first, self.ids.len())?);
            if before.len() <= end && text == before.clone() + &after {
                (self.start, self.shown, self.told) = (self.shown, first, end - before.len());
            }
        }
        Ok(piece.to_owned())
    }

    /// Returns the rest of the text, which is an incomplete character.
    pub fn finish(mut self) -> Result<String, TokenizerError> {
        let (told, text) = self.window(true)?;
        Ok(text.get(told..).unwrap_or_default().to_owned())
    }

    /// The number of bytes of the window's text that were handed out, and the window's text. `ends` says that no
    /// further ids follow.
    fn window(&mut self, ends: bool) -> Result<(usize, String), TokenizerError> {
        let (old, new) = (self.decode(self.start, self.shown)?, self.decode(self.start, self.ids.len())?);
        let pending = self.ids.len() - self.shown;
        if new.starts_with(&old) {
            return Ok((old.len() + self.told, new));
        }
        if !ends && new.ends_with(char::REPLACEMENT_CHARACTER) && pending <= OPEN_BYTES {
            return Ok((new.len(), new));
        }
        // A byte that is not UTF-8 has changed earlier text, so the new ids are decoded by themselves.
        self.start = self.shown;
        Ok((self.told, self.decode(self.start, self.ids.len())?))
    }

    fn decode(&self, start: usize, end: usize) -> Result<String, TokenizerError> {
        self.tokenizer.decode(&self.ids[start..end])
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn byte_level() -> Value {
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false})
    }

    fn tokenizer(decoder: Value, vocab: &Value) -> Tokenizer {
        let model = json!({"type": "WordLevel", "unk_token": "unknown", "vocab": vocab});
        Tokenizer::from_bytes(json!({"decoder": decoder, "model": model}).to_string().as_bytes()).unwrap()
    }

    /// A tokenizer in which each id is a byte. `name` is the byte's token, and `decoder` turns tokens into text.
    fn bytes(decoder: Value, name: impl Fn(u8) -> String) -> Tokenizer {
        let mut vocab: Value = (0..=255).map(|byte| (name(byte), json!(byte))).collect();
        vocab["unknown"] = json!(256);
        tokenizer(decoder, &vocab)
    }

    /// The pieces of text that a stream of `ids` hands out, the rest at the end included. Also returns the largest
    /// number of ids that were decoded at once.
    fn streamed(tokenizer: &Tokenizer, ids: impl IntoIterator<Item = u32>) -> (Vec<String>, usize) {
        let (mut stream, mut widest) = (tokenizer.stream(&[]), 0);
        let mut pieces = Vec::new();
        for id in ids {
            pieces.push(stream.push(id).unwrap());
            widest = widest.max(stream.ids.len() - stream.start);
        }
        pieces.push(stream.finish().unwrap());
        (pieces, widest)
    }

    #[test]
    fn a_stream_goes_on_behind_bytes_that_are_no_text() {
        // The bytes that GPT-2's alphabet leaves out come after the others, in order.
        let shown = |byte: &u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..);
        let hidden: Vec<u8> = (0..=255).filter(|byte| !shown(byte)).collect();
        let level = |byte: u8| match hidden.iter().position(|other| *other == byte) {
            Some(at) => char::from_u32(256 + at as u32).unwrap().to_string(),
            None => char::from(byte).to_string(),
        };
        let level = bytes(byte_level(), level);
        let fallback = json!({"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]});
        let fallback = bytes(fallback, |byte| format!("<0x{byte:02X}>"));
        let good = "a\u{e9}\u{4f60}\u{fffd}\u{1f41d}z".as_bytes();
        let bad: &[u8] = b"\xff\xf0\x9f\x98x\xe4\xbd\xe4\xbd\xa0y\xf0\x9f\x98\x80\x80\x80\x80\x80\x80\xc3";
        for (tokenizer, whole) in [(&level, true), (&fallback, false)] {
            let (pieces, _) = streamed(tokenizer, good.iter().map(|byte| (*byte).into()));
            assert_eq!(pieces.concat().as_bytes(), good);
            let (pieces, _) = streamed(tokenizer, bad.iter().map(|byte| (*byte).into()));
            // One decoder shows a replacement character for each byte that is not UTF-8, the other one for each
            // broken character.
            let shown = if whole { String::from_utf8_lossy(bad).into_owned() } else { "\u{fffd}".repeat(bad.len()) };
            assert_eq!(pieces.concat(), shown);
            // An endless run of such bytes is handed out as it grows, and little of it is decoded again.
            let (pieces, widest) = streamed(tokenizer, b"ab".iter().map(|byte| (*byte).into()).chain([0xff; 100]));
            assert_eq!(pieces.concat(), "ab".to_owned() + &"\u{fffd}".repeat(100));
            assert!(
                pieces[5..102].iter().all(|piece| piece == "\u{fffd}") && widest <= 2 * MOST_PENDING,
                "{widest} {pieces:?}"
            );
            // A byte after a character may change how the decoder shows it, but not the text handed out.
            let (pieces, _) = streamed(tokenizer, "\u{4f60}".bytes().chain([0xff, b'x']).map(u32::from));
            assert_eq!(pieces.concat(), "\u{4f60}".to_owned() + &tokenizer.decode(&[0xff, b'x'.into()]).unwrap());
        }
    }

    #[test]
    fn tokens_that_end_within_characters_are_told_up_to_the_last_whole_one() {
        // The tokens: `a` with the first byte of U+1F600; its middle two bytes; its last byte with the first; its
        // last byte.
        let vocab = json!({"a\u{f0}": 0, "\u{141}\u{13a}": 1, "\u{122}\u{f0}": 2, "\u{122}": 3, "unknown": 4});
        let (pieces, _) = streamed(&tokenizer(byte_level(), &vocab), [0, 1, 2, 1, 2, 1, 3]);
        assert_eq!(pieces, ["a", "", "\u{1f600}", "", "\u{1f600}", "", "\u{1f600}", ""]);
    }
}
