//! The text of a generation, piece by piece, for the function that watches it.

use waggle_session::party::{Event, Flow, Watch};
use waggle_tokenizer::{TextStream, Tokenizer, TokenizerError};

use crate::Error;
use crate::reader::harmless;

/// A watcher that hands the pieces of a text to a function and ignores all other events.
pub fn on_text(mut text: impl FnMut(&str)) -> impl FnMut(Event<'_>) -> Flow {
    move |event| {
        if let Event::Text(piece) = event {
            text(piece);
        }
        Flow::GoOn
    }
}

/// A function that gets a text in addition to the watcher.
type Keep = Box<dyn Fn(&str)>;

/// Turns the tokens of a generation into text: names of classes, words, or without a tokenizer ids with commas
/// between them.
pub(crate) struct Heard<'a> {
    labels: Option<Vec<String>>,
    stream: Option<TextStream<'a>>,
    count: usize,
    /// Whether several texts grow at once. The watcher then hears no words before all texts have ended.
    several: bool,
    watch: &'a mut Watch<'a>,
    /// A function that hears the text with its control characters.
    kept: Option<Keep>,
    /// Why the text cannot be shown any more.
    failed: Option<TokenizerError>,
}

impl<'a> Heard<'a> {
    pub(crate) fn new(
        labels: Option<Vec<String>>,
        tokenizer: Option<&'a Tokenizer>,
        before: &[u32],
        watch: &'a mut Watch<'a>,
    ) -> Self {
        let stream = tokenizer.filter(|_| labels.is_none()).map(|tokenizer| tokenizer.stream(before));
        Heard { labels, stream, count: 0, several: false, watch, kept: None, failed: None }
    }

    /// Sets the number of texts. With several, the watcher hears no words before all texts have ended; it hears names
    /// of classes at once.
    pub(crate) fn of_texts(self, texts: usize) -> Self {
        Heard { several: texts > 1 && self.labels.is_none(), ..self }
    }

    /// Hands the text to `keep` too.
    pub(crate) fn kept_by(self, keep: impl Fn(&str) + 'static) -> Self {
        Heard { kept: Some(Box::new(keep)), ..self }
    }

    /// Passes a session's `event` on to the watcher, with the text that it brings.
    pub(crate) fn hear(&mut self, event: Event<'_>) -> Flow {
        match event {
            Event::GoesOn if self.failed.is_some() => Flow::Abandon,
            Event::Token(token) => {
                let flow = (self.watch)(Event::Token(token));
                match token.filter(|_| !self.several).and_then(|token| self.text(token)) {
                    Some(text) => self.tell(&text, flow),
                    None => flow,
                }
            }
            event => (self.watch)(event),
        }
    }

    /// Ends the text. Returns the session's result `done`, or, if the text could not be shown, the error for it.
    pub(crate) fn finish<T>(mut self, done: Result<T, waggle_session::Error>) -> Result<T, Error> {
        let rest = match (self.failed.take(), self.stream.take()) {
            (Some(error), _) => Err(error),
            (None, stream) => stream.map_or(Ok(String::new()), TextStream::finish),
        };
        self.tell(rest.as_deref().unwrap_or_default(), Flow::GoOn);
        (self.watch)(Event::TextOver);
        rest?;
        Ok(done?)
    }

    /// The text of the next token; `None` once the text cannot be shown any more.
    fn text(&mut self, token: u32) -> Option<String> {
        self.count += 1;
        if let Some(label) = self.labels.as_ref().and_then(|labels| labels.get(token as usize)) {
            return Some(if self.count > 1 { format!("\n{label}") } else { label.clone() });
        }
        if self.failed.is_some() {
            return None;
        }
        match &mut self.stream {
            Some(stream) => stream.push(token).map_err(|error| self.failed = Some(error)).ok(),
            None if self.count == 1 => Some(token.to_string()),
            None => Some(format!(",{token}")),
        }
    }

    /// Hands on `text`, and returns the watcher's answer to it. `flow` is the watcher's answer to the token of this
    /// text. If that ended the text, the watcher does not hear `text`, and `flow` is returned.
    fn tell(&mut self, text: &str, flow: Flow) -> Flow {
        if text.is_empty() {
            return flow;
        }
        if let Some(keep) = &self.kept {
            keep(text);
        }
        match flow {
            Flow::GoOn => (self.watch)(Event::Text(&harmless(text))),
            ended => ended,
        }
    }
}
