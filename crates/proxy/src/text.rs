//! A growing text: sends its words as they come, and ends it at a stop.

use std::sync::Arc;

use tokio::sync::mpsc::UnboundedSender;
use waggle::{Error, Flow, Sampling};
use waggle_model::Sampler;
use waggle_session::party::Terms;

use crate::logprobs::Logprobs;
use crate::refusal::Refusal;
use crate::spent::Spent;

/// An event of a request, for the program that sent it.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// A piece of the text with this number.
    Piece(usize, String),
    /// The end of the text with this number.
    End(usize, Box<Ended>),
    /// The request failed. No event follows.
    Failed(Refusal),
}

/// A finished text.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) text: String,
    /// The reason for the end.
    pub(super) reason: &'static str,
    pub(super) logprobs: Option<Logprobs>,
    pub(super) prompt_tokens: usize,
    pub(super) tokens: usize,
    /// The cost; `None` if the server had nothing to do.
    pub(super) spent: Option<Arc<Spent>>,
}

/// The sender of a request's events. Sending fails if the program has left.
pub(super) type Out = UnboundedSender<Event>;

/// A growing text, and the sender of its pieces.
pub(super) struct Growing {
    out: Out,
    index: usize,
    stops: Vec<String>,
    text: String,
    /// Bytes of the text that were sent.
    told: usize,
    /// Whether a stop cut off text of a token that was generated.
    pub(super) cut: bool,
    /// The reason for the end; `None` while the text grows.
    pub(super) reason: Option<&'static str>,
}

impl Growing {
    /// The text `index` of a request, which ends before any of `stops`.
    pub(super) fn new(out: Out, index: usize, stops: Vec<String>) -> Self {
        Growing { out, index, stops, text: String::new(), told: 0, cut: false, reason: None }
    }

    /// The whole text so far.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Whether the program still waits for the text.
    pub(super) fn heard(&self) -> bool {
        !self.out.is_closed()
    }

    /// Whether `other` is a text of the same request.
    pub(super) fn is_of_the_request_of(&self, other: &Growing) -> bool {
        self.out.same_channel(&other.out)
    }

    /// Whether the text has ended or the program has left.
    pub(super) fn over(&self) -> bool {
        self.reason.is_some() || !self.heard()
    }

    /// Appends `text` and sends it, without looking for stops in it.
    pub(super) fn begin(&mut self, text: &str) {
        self.text.push_str(text);
        self.tell(self.text.len());
    }

    /// Appends `piece`, and ends the text if it contains a stop.
    pub(super) fn hear(&mut self, piece: &str) {
        if self.reason.is_some() {
            return;
        }
        let before = self.told;
        self.text.push_str(piece);
        // Text that was sent does not contain the beginning of a stop.
        let new = &self.text[before..];
        // A search first reads the whole stop, so stops that are too long are skipped.
        let short = self.stops.iter().filter(|stop| stop.len() <= new.len());
        let found = short.filter_map(|stop| new.find(&**stop)).min();
        match found {
            Some(at) => {
                self.text.truncate(before + at);
                (self.cut, self.reason) = (true, Some("stop"));
                self.tell(self.text.len());
            }
            None => self.tell(self.text.len() - self.held_back(before)),
        }
    }

    /// Takes the pieces of a conversation's answer from the chat's events.
    pub(super) fn watch(&mut self, event: waggle::Event<'_>) -> Flow {
        if let waggle::Event::Text(text) = event {
            self.hear(text);
        }
        if self.over() { Flow::EndText } else { Flow::GoOn }
    }

    /// Ends the text.
    pub(super) fn end(&mut self, reason: &'static str) {
        if self.reason.is_none() {
            self.reason = Some(reason);
            self.tell(self.text.len());
        }
    }

    /// Number of bytes at the end of the text that must not be sent yet, because they may be the beginning of a stop.
    /// The bytes before `from` are sent already.
    fn held_back(&self, from: usize) -> usize {
        let text = &self.text.as_bytes()[from..];
        let of = |stop: &String| {
            let stop = stop.as_bytes();
            (1..=text.len().min(stop.len() - 1)).rev().find(|n| text.ends_with(&stop[..*n])).unwrap_or(0)
        };
        let most = self.stops.iter().map(of).max().unwrap_or(0);
        // Only whole characters are sent.
        (most..).find(|n| self.text.is_char_boundary(self.text.len() - n)).unwrap_or(most)
    }

    fn tell(&mut self, end: usize) {
        if end > self.told {
            // A program that has left needs no piece.
            let _ = self.out.send(Event::Piece(self.index, self.text[self.told..end].to_owned()));
            self.told = end;
        }
    }

    /// Sends the end of the text.
    pub(super) fn finish(
        mut self,
        prompt_tokens: usize,
        tokens: usize,
        logprobs: Option<Logprobs>,
        spent: Option<Arc<Spent>>,
    ) {
        self.end("length");
        let Growing { out, index, text, reason, .. } = self;
        let reason = reason.unwrap_or("length");
        let _ = out.send(Event::End(index, Box::new(Ended { text, reason, logprobs, prompt_tokens, tokens, spent })));
    }

    /// Sends the failure of the request.
    pub(super) fn fail(self, refusal: &Refusal) {
        let _ = self.out.send(Event::Failed(refusal.clone()));
    }
}

/// One text of a request.
pub(super) struct Text {
    /// The index of the key that asked.
    pub(super) who: usize,
    pub(super) ids: Vec<u32>,
    /// Most tokens of the text.
    pub(super) tokens: usize,
    pub(super) sampling: Sampling,
    /// Number of the likeliest tokens to name.
    pub(super) likeliest: Option<usize>,
    /// Whether the answer begins with the prompt, including the prompt's log-probabilities if they are asked for.
    pub(super) echo: bool,
    pub(super) growing: Growing,
}

impl Text {
    /// The sampler of the text's tokens, from the first on.
    pub(super) fn sampler(&self, terms: &Terms) -> Result<Sampler, Error> {
        self.sampling.sampler_of(self.growing.index, terms)
    }

    /// Whether the logits of the prompt are needed.
    pub(super) fn scores(&self) -> bool {
        self.echo && self.likeliest.is_some()
    }

    /// Whether the text needs no work of the server, because it has no tokens and needs no logits.
    pub(super) fn is_there(&self) -> bool {
        self.tokens == 0 && !self.scores()
    }

    /// Sends the end of the text, which has `tokens` tokens.
    pub(super) fn finish(self, tokens: usize, logprobs: Option<Logprobs>, spent: Option<Arc<Spent>>) {
        self.growing.finish(self.ids.len(), tokens, logprobs, spent);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    use super::*;

    fn growing(stops: &[&str]) -> (Growing, UnboundedReceiver<Event>) {
        let (out, heard) = unbounded_channel();
        (Growing::new(out, 0, stops.iter().map(|stop| (*stop).to_owned()).collect()), heard)
    }

    fn pieces(heard: &mut UnboundedReceiver<Event>) -> Vec<String> {
        let mut all = Vec::new();
        while let Ok(Event::Piece(0, piece)) = heard.try_recv() {
            all.push(piece);
        }
        all
    }

    /// However a text is cut into pieces, no piece contains a stop, or the beginning of a stop that occurs.
    #[test]
    fn a_text_ends_before_its_stop() {
        for (stops, cuts, told) in [
            (&["END"][..], &["a", "bE", "N", "Dc"][..], "ab"),
            (&["END"], &["a", "bE", "NX", "c"], "abENXc"),
            (&["END", "b"], &["abEND"], "a"),
            (&["aab"], &["aaa", "ab", "x"], "aa"),
            (&["\u{e9}\u{e9}"], &["x\u{e9}", "\u{e9}y"], "x"),
            (&["\u{e9}a"], &["x\u{e8}", "\u{e9}", "b"], "x\u{e8}\u{e9}b"),
            (&[], &["a", "b"], "ab"),
        ] {
            let (mut text, mut heard) = growing(stops);
            cuts.iter().for_each(|cut| text.hear(cut));
            let stopped = text.reason == Some("stop");
            text.end("length");
            assert_eq!(pieces(&mut heard).concat(), told, "{stops:?} {cuts:?}");
            assert_eq!(text.text, told);
            assert_eq!(stopped, cuts.concat() != told);
        }
        let (mut text, mut heard) = growing(&["END"]);
        text.begin("an END of the prompt, ");
        text.hear("E");
        assert_eq!(pieces(&mut heard), ["an END of the prompt, "]);
        drop(heard);
        assert!(text.over());
    }

    #[test]
    fn a_long_stop_costs_no_more_than_its_length() {
        let stop = "a".repeat(100_000);
        let (mut text, mut heard) = growing(&[&stop, &format!("{stop}b"), "c"]);
        (0..2000).for_each(|_| text.hear("aa"));
        assert_eq!(pieces(&mut heard).concat(), "");
        text.hear("c");
        assert_eq!((text.reason, text.text.len()), (Some("stop"), 4000));
    }
}
