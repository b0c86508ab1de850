//! One text that grows: its words as they come, and where it stops.

use std::sync::Arc;

use tokio::sync::mpsc::UnboundedSender;
use waggle::{Error, Flow, Sampling};
use waggle_model::Sampler;
use waggle_session::party::Terms;

use crate::logprobs::Logprobs;
use crate::refusal::Refusal;
use crate::spent::Spent;

/// What a program hears of its request.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// The text of this number goes on.
    Piece(usize, String),
    /// The text of this number is over.
    End(usize, Box<Ended>),
    /// Nothing more will come.
    Failed(Refusal),
}

/// A text that is over.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) text: String,
    /// Why it ends.
    pub(super) reason: &'static str,
    pub(super) logprobs: Option<Logprobs>,
    pub(super) prompt_tokens: usize,
    pub(super) tokens: usize,
    /// `None` where the server had nothing to do.
    pub(super) spent: Option<Arc<Spent>>,
}

/// Where the events of a request go. A program that has left takes none.
pub(super) type Out = UnboundedSender<Event>;

/// A text while it grows, and who hears it.
pub(super) struct Growing {
    out: Out,
    index: usize,
    stops: Vec<String>,
    text: String,
    /// Bytes of it that were told.
    told: usize,
    /// Whether one of its tokens was heard in part, or not at all, because of a stop.
    pub(super) cut: bool,
    /// Why it is over, if it is.
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

    /// Whether anybody hears it.
    pub(super) fn heard(&self) -> bool {
        !self.out.is_closed()
    }

    /// Whether the same request asked for `other`.
    pub(super) fn is_of_the_request_of(&self, other: &Growing) -> bool {
        self.out.same_channel(&other.out)
    }

    /// Whether nothing more is wanted.
    pub(super) fn over(&self) -> bool {
        self.reason.is_some() || !self.heard()
    }

    /// Tells `text`, in which nothing stops.
    pub(super) fn begin(&mut self, text: &str) {
        self.text.push_str(text);
        self.tell(self.text.len());
    }

    /// The text goes on with `piece`.
    pub(super) fn hear(&mut self, piece: &str) {
        if self.reason.is_some() {
            return;
        }
        let before = self.told;
        self.text.push_str(piece);
        // What was told holds no beginning of a stop.
        let new = &self.text[before..];
        // A search begins by looking through what it searches for.
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

    /// The answer of a conversation, which the chat gives as text.
    pub(super) fn watch(&mut self, event: waggle::Event<'_>) -> Flow {
        if let waggle::Event::Text(text) = event {
            self.hear(text);
        }
        if self.over() { Flow::EndText } else { Flow::GoOn }
    }

    /// The text ends here.
    pub(super) fn end(&mut self, reason: &'static str) {
        if self.reason.is_none() {
            self.reason = Some(reason);
            self.tell(self.text.len());
        }
    }

    /// Bytes at the end of the text, behind `from`, that may be the beginning of a stop.
    fn held_back(&self, from: usize) -> usize {
        let text = &self.text.as_bytes()[from..];
        let of = |stop: &String| {
            let stop = stop.as_bytes();
            (1..=text.len().min(stop.len() - 1)).rev().find(|n| text.ends_with(&stop[..*n])).unwrap_or(0)
        };
        let most = self.stops.iter().map(of).max().unwrap_or(0);
        // Only whole characters are told.
        (most..).find(|n| self.text.is_char_boundary(self.text.len() - n)).unwrap_or(most)
    }

    fn tell(&mut self, end: usize) {
        if end > self.told {
            // Whoever has left needs no piece.
            let _ = self.out.send(Event::Piece(self.index, self.text[self.told..end].to_owned()));
            self.told = end;
        }
    }

    /// Tells that the text is over.
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

    /// Tells that the request came to nothing.
    pub(super) fn fail(self, refusal: &Refusal) {
        let _ = self.out.send(Event::Failed(refusal.clone()));
    }
}

/// One text of a request.
pub(super) struct Text {
    /// The place of the key that asked.
    pub(super) who: usize,
    pub(super) ids: Vec<u32>,
    /// Most tokens of it.
    pub(super) tokens: usize,
    pub(super) sampling: Sampling,
    /// How many of the likeliest tokens are named.
    pub(super) likeliest: Option<usize>,
    /// Whether the prompt is a part of the answer, with what its tokens are worth if that is asked.
    pub(super) echo: bool,
    pub(super) growing: Growing,
}

impl Text {
    /// What picks its tokens, from the first on.
    pub(super) fn sampler(&self, terms: &Terms) -> Result<Sampler, Error> {
        self.sampling.sampler_of(self.growing.index, terms)
    }

    /// Whether the logits of the prompt are wanted.
    pub(super) fn scores(&self) -> bool {
        self.echo && self.likeliest.is_some()
    }

    /// Whether the server has nothing to do.
    pub(super) fn is_there(&self) -> bool {
        self.tokens == 0 && !self.scores()
    }

    /// Tells that the text is over, with so many tokens.
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

    /// However a text is cut into pieces, nobody hears a stop or the beginning of one that is there.
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
