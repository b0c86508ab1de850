//! The texts of a session: which of them has which place, who hears the tokens, and who leaves.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use model::{Newcomer, Sampler, Step};
use report::Phases;
use session::party::Observer;
use tokenizer::{TextStream, Tokenizer, TokenizerError};

use super::api::Refusal;
use super::spent::{Own, Spent};
use super::text::Text;
use crate::generation::Listener;

/// One of the texts of a session.
pub(super) struct Member<'a> {
    /// The text until it is answered.
    pub(super) text: Option<Text>,
    /// Whether there was one, as in every place that is not free.
    pub(super) heard: bool,
    stream: Option<TextStream<'a>>,
    /// Tokens of the answer that count.
    pub(super) ids: Vec<u32>,
}

impl<'a> Member<'a> {
    pub(super) fn new(text: Text, tokenizer: &'a Tokenizer) -> Self {
        let stream = Some(tokenizer.stream(&text.ids));
        Member { text: Some(text), heard: true, stream, ids: Vec::new() }
    }

    /// A member for a place that is free: nobody hears it.
    pub(super) fn nobody() -> Self {
        Member { text: None, heard: false, stream: None, ids: Vec::new() }
    }

    /// Whether nothing more is wanted.
    fn over(&self) -> bool {
        self.text.as_ref().is_none_or(|text| text.growing.over())
    }

    /// A text that cannot be shown ends with an error.
    fn hear(&mut self, token: u32, ends: &[u32]) {
        if let Err(error) = self.show(token, ends)
            && let Some(text) = self.text.take()
        {
            tracing::warn!(%error, "a text ends");
            text.growing.fail(&Refusal::new(500, "tokenizer_failed", error.to_string()));
        }
    }

    fn show(&mut self, token: u32, ends: &[u32]) -> Result<(), TokenizerError> {
        let Some(Text { growing, tokens: most, .. }) = &mut self.text else { return Ok(()) };
        if growing.reason.is_some() || self.ids.len() >= *most {
            return Ok(());
        }
        self.ids.push(token);
        let end = match &mut self.stream {
            _ if ends.contains(&token) => Some("stop"),
            stream => {
                if let Some(stream) = stream {
                    growing.hear(&stream.push(token)?);
                }
                (self.ids.len() == *most).then_some("length")
            }
        };
        if let Some(reason) = end {
            // What is left of a character that is not whole.
            if let Some(stream) = self.stream.take() {
                growing.hear(&stream.finish()?);
            }
            growing.end(reason);
        }
        Ok(())
    }
}

/// The texts that go through the model side by side, and those that join them.
pub(super) struct Pass<'a> {
    /// First those of the prompt, then those that took the places of others, in the order in which they did.
    pub(super) members: Vec<Member<'a>>,
    /// The member in each place.
    places: Vec<usize>,
    /// Texts that have their place when it has read the padding of their prompt.
    pub(super) reserved: BTreeMap<usize, Text>,
    /// The tokens that end a text.
    ends: Vec<u32>,
    /// The place that the next token belongs to.
    at: usize,
    passes: usize,
    /// The session, if it is for these texts alone: a text is answered when it has ended, and the session may end
    /// without them, when nobody hears them any more.
    own: Option<Own>,
    /// Whether a text was answered.
    answered: bool,
}

impl<'a> Pass<'a> {
    pub(super) fn new(members: Vec<Member<'a>>, ends: Vec<u32>) -> Self {
        let (places, reserved) = ((0..members.len()).collect(), BTreeMap::new());
        Pass { members, places, reserved, ends, at: 0, passes: 0, own: None, answered: false }
    }

    /// This pass, in a session that serves nobody else.
    pub(super) fn in_own(self, own: Own) -> Self {
        Pass { own: Some(own), ..self }
    }

    /// Gives `place` to `text`.
    pub(super) fn seat(&mut self, place: usize, mut text: Text, tokenizer: &'a Tokenizer) -> Newcomer {
        let (ids, tokens) = (text.ids.clone(), text.tokens);
        let sampler = std::mem::take(&mut text.sampler);
        self.places[place] = self.members.len();
        self.members.push(Member::new(text, tokenizer));
        Newcomer { ids, tokens, sampler }
    }

    /// Keeps `place` for `text`, until it has read so many tokens that nobody hears.
    pub(super) fn reserve(&mut self, place: usize, text: Text, padding: usize) -> Newcomer {
        self.places[place] = self.members.len();
        self.members.push(Member::nobody());
        self.reserved.insert(place, text);
        Newcomer { ids: vec![0; padding], tokens: 1, sampler: Sampler::greedy() }
    }

    /// Whether another text may have `place`.
    pub(super) fn is_free(&self, place: usize) -> bool {
        !self.reserved.contains_key(&place) && self.members[self.places[place]].over()
    }
}

/// A [`Pass`] that its session watches, and the one who hands out its places as well.
pub(super) struct Watched<'r, 'a>(pub(super) &'r RefCell<Pass<'a>>);

impl Observer for Watched<'_, '_> {
    fn begin(&mut self, _: Step) {
        let mut pass = self.0.borrow_mut();
        pass.at = 0;
        pass.passes += 1;
    }

    fn token(&mut self, token: Option<u32>) {
        let Pass { members, places, ends, at, .. } = &mut *self.0.borrow_mut();
        if let (Some(place), Some(token)) = (places.get(*at), token) {
            members[*place].hear(token, ends);
        }
        *at += 1;
    }

    /// Answers texts that have ended. What tokens are worth is known at the end of the session.
    fn passed(&mut self, so_far: &mut dyn FnMut() -> Phases) {
        let Pass { members, places, passes, own, answered, .. } = &mut *self.0.borrow_mut();
        let Some(own) = own else { return };
        let ended = |text: &mut Text| text.growing.reason.is_some() && text.likeliest.is_none();
        let mut spent = None;
        for member in members {
            let Some(text) = member.text.take_if(ended) else { continue };
            let spent = spent.get_or_insert_with(|| Arc::new(Spent::so_far(*own, &so_far(), places.len(), *passes)));
            text.finish(member.ids.len(), None, Some(Arc::clone(spent)));
            *answered = true;
        }
    }

    fn stops(&self) -> bool {
        let pass = self.0.borrow();
        pass.reserved.is_empty() && pass.members.iter().all(Member::over)
    }

    fn abandoned(&self) -> bool {
        let pass = self.0.borrow();
        let mut texts = pass.members.iter().filter_map(|member| member.text.as_ref()).chain(pass.reserved.values());
        pass.own.is_some() && !pass.answered && !texts.any(|text| text.growing.heard())
    }
}

impl Listener for Watched<'_, '_> {}

#[cfg(all(test, unix))]
mod tests {
    use std::ffi::OsString;
    use std::path::Path;

    use tokenizer::WorkerCommand;
    use tokio::sync::mpsc::unbounded_channel;

    use super::super::text::{Event, Growing};
    use super::*;

    /// A tokenizer whose process dies of every request after the first `requests`.
    fn mortal(dir: &Path, requests: usize) -> Tokenizer {
        let asked = dir.join("asked");
        std::fs::write(&asked, "").unwrap();
        let asked = asked.display();
        let script = format!(
            "echo '{{\"ready\":null}}'; read line; echo '{{\"loaded\":{{\"vocabulary\":9,\"longest\":1}}}}'
             while read line; do
                 [ $(wc -l < {asked}) -lt {requests} ] || exit 3
                 echo >> {asked}
                 echo '{{\"text\":\"a\"}}'
             done"
        );
        let arguments = ["-c", &script].map(OsString::from).to_vec();
        let command = WorkerCommand { program: "sh".into(), arguments, time_out: WorkerCommand::TIME_OUT };
        Tokenizer::foreign(b"{}", &command).unwrap()
    }

    #[test]
    fn a_text_that_cannot_be_shown_ends_with_an_error() {
        // A token takes two requests, and the end two more.
        for requests in [0, 2, 3, 6, 7] {
            let dir = tempfile::tempdir().unwrap();
            let tokenizer = mortal(dir.path(), requests);
            let (out, mut heard) = unbounded_channel();
            let growing = Growing::new(out, 0, Vec::new());
            let (ids, sampler) = (vec![1], Sampler::greedy());
            let text = Text { ids, tokens: 3, sampler, likeliest: None, echo: false, growing };
            let mut pass = Pass::new(vec![Member::new(text, &tokenizer)], vec![8]);
            for _ in 0..3 {
                pass.members[0].hear(2, &pass.ends);
            }
            assert!(pass.members[0].text.is_none() && pass.members[0].over());
            let mut last = None;
            while let Ok(event) = heard.try_recv() {
                last = Some(event);
            }
            match last {
                Some(Event::Failed(refusal)) => assert_eq!((refusal.status, refusal.code), (500, "tokenizer_failed")),
                other => panic!("{requests}: {other:?}"),
            }
        }
    }
}
