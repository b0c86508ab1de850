//! An answer as it comes.

use std::sync::Mutex;

use protocols::Made;
use session::party::Observer;
use tokenizer::{TextStream, Tokenizer};

use super::transcript::{Transcript, lock};

/// Hears the answer of a turn.
pub trait Listener {
    /// The answer goes on with `text`.
    fn text(&mut self, text: &str);

    /// The chat template changes what was said before: the model reads the conversation from its beginning.
    fn rereads(&mut self) {}

    /// A part of the work is done: a layer of the model, or some correlations.
    fn tick(&mut self) {}

    /// The answer is over.
    fn end(&mut self) {}

    /// Whether nobody wants to hear more of this answer. It ends where the server learns its end anyway, and what
    /// comes until then is not told.
    fn stops(&self) -> bool {
        false
    }

    /// Whether nobody wants the rest; asked before each token. The session then ends.
    fn abandoned(&self) -> bool {
        false
    }
}

/// Makes text of the tokens of an answer, for a listener and the transcript.
pub(super) struct Answer<'a> {
    stream: TextStream<'a>,
    transcript: &'a Mutex<Transcript>,
    listener: &'a mut dyn Listener,
}

impl<'a> Answer<'a> {
    /// The answer after the tokens `before`.
    pub(super) fn new(
        tokenizer: &'a Tokenizer,
        before: &[u32],
        transcript: &'a Mutex<Transcript>,
        listener: &'a mut dyn Listener,
    ) -> Self {
        Answer { stream: tokenizer.stream(before), transcript, listener }
    }

    /// Tells the rest.
    pub(super) fn finish(self) {
        let Answer { stream, transcript, listener } = self;
        tell(&stream.finish().unwrap_or_default(), transcript, listener);
        listener.end();
    }
}

fn tell(text: &str, transcript: &Mutex<Transcript>, listener: &mut dyn Listener) {
    if text.is_empty() {
        return;
    }
    lock(transcript).hear(text);
    if !listener.stops() {
        listener.text(text);
    }
}

impl Observer for Answer<'_> {
    fn stops(&self) -> bool {
        self.listener.stops()
    }

    fn abandoned(&self) -> bool {
        self.listener.abandoned()
    }

    fn prepare(&mut self, _: Made) {
        self.listener.tick();
    }

    fn layer(&mut self, _: usize, _: usize) {
        self.listener.tick();
    }

    fn token(&mut self, token: Option<u32>) {
        let Some(token) = token else { return };
        // The tokenizer has taken these ids before; what it cannot show is left out.
        let text = self.stream.push(token).unwrap_or_default();
        tell(&text, self.transcript, self.listener);
    }
}
