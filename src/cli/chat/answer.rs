//! An answer as it comes.

use model::party::Observer;
use model::{TextStream, Tokenizer};

use crate::cli::progress::harmless;
use crate::cli::{Error, out};

/// Prints an answer token by token, and remembers it.
pub(super) struct Answer<'a> {
    stream: TextStream<'a>,
    text: String,
    /// Why standard output took no more.
    failed: Option<Error>,
}

impl<'a> Answer<'a> {
    /// The answer after the tokens `before`.
    pub(super) fn new(tokenizer: &'a Tokenizer, before: Vec<u32>) -> Self {
        Answer { stream: tokenizer.stream(&before), text: String::new(), failed: None }
    }

    fn print(&mut self, text: &str) {
        if self.failed.is_none() {
            self.failed = out::print(harmless(text)).err();
        }
    }

    /// Ends the line. Returns the text, and what standard output said.
    pub(super) fn finish(self) -> (String, Result<(), Error>) {
        let Answer { stream, text, failed } = self;
        let rest = stream.finish().unwrap_or_default();
        let text = text + &rest;
        let printed = match failed {
            Some(error) => Err(error),
            None if text.is_empty() => Ok(()),
            None => out::print(harmless(&rest) + if text.ends_with('\n') { "" } else { "\n" }),
        };
        (text, printed)
    }
}

impl Observer for Answer<'_> {
    fn abandoned(&self) -> bool {
        self.failed.is_some()
    }

    fn token(&mut self, token: Option<u32>) {
        let Some(token) = token else { return };
        // The tokenizer has taken these ids before; what it cannot show is left out.
        let text = self.stream.push(token).unwrap_or_default();
        self.print(&text);
        self.text.push_str(&text);
    }
}
