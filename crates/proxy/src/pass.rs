//! The texts of a session: hands each token to its text, and answers texts that have ended.

use std::sync::Arc;

use waggle::{Event, Flow};
use waggle_report::Phases;
use waggle_tokenizer::{TextStream, Tokenizer, TokenizerError};

use crate::refusal::Refusal;
use crate::spent::{Own, Spent};
use crate::text::Text;

/// One of the texts of a session.
pub(super) struct Member<'a> {
    /// The text; `None` once it is answered.
    pub(super) text: Option<Text>,
    stream: Option<TextStream<'a>>,
    /// Tokens of the answer, without those that were generated unseen after its end.
    pub(super) ids: Vec<u32>,
}

impl<'a> Member<'a> {
    fn new(text: Text, tokenizer: &'a Tokenizer) -> Self {
        let stream = Some(tokenizer.stream(&text.ids));
        Member { text: Some(text), stream, ids: Vec::new() }
    }

    /// Whether the text needs no further token.
    fn over(&self) -> bool {
        self.text.as_ref().is_none_or(|text| text.growing.over())
    }

    /// Hands `token` to the text. A text that cannot be shown ends with an error.
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
            // The rest of an incomplete character.
            if let Some(stream) = self.stream.take() {
                growing.hear(&stream.finish()?);
            }
            growing.end(reason);
        }
        Ok(())
    }
}

/// The texts that go through the model side by side.
pub(super) struct Pass<'a> {
    pub(super) members: Vec<Member<'a>>,
    /// The tokens that end a text.
    ends: Vec<u32>,
    /// The member that hears the next token.
    at: usize,
    passes: usize,
    /// The session, if it is for these texts alone. Each text is then answered when it has ended, and the session may
    /// be abandoned when nobody waits for any of its texts.
    own: Option<Own>,
    /// Whether any text was answered already.
    answered: bool,
}

impl<'a> Pass<'a> {
    /// A pass of `texts`, which end at any token of `ends`.
    pub(super) fn new(texts: impl Iterator<Item = Text>, tokenizer: &'a Tokenizer, ends: Vec<u32>) -> Self {
        let members = texts.map(|text| Member::new(text, tokenizer)).collect();
        Pass { members, ends, at: 0, passes: 0, own: None, answered: false }
    }

    /// This pass, in the session `own`, which is for its texts alone.
    pub(super) fn in_own(self, own: Own) -> Self {
        Pass { own: Some(own), ..self }
    }

    /// Number of tokens of all texts, without unseen ones.
    pub(super) fn tokens(&self) -> usize {
        self.members.iter().map(|member| member.ids.len()).sum()
    }
}

impl Pass<'_> {
    /// Hands each token of the session to its text.
    pub(super) fn hear(&mut self, event: Event<'_>) -> Flow {
        match event {
            Event::GoesOn if self.is_abandoned() => return Flow::Abandon,
            Event::Begins(_) => {
                self.at = 0;
                self.passes += 1;
            }
            Event::Token(token) => {
                if let (Some(member), Some(token)) = (self.members.get_mut(self.at), token) {
                    member.hear(token, &self.ends);
                }
                self.at += 1;
                if self.members.iter().all(Member::over) {
                    return Flow::EndText;
                }
            }
            Event::Passed(so_far) => self.answer(so_far),
            _ => (),
        }
        Flow::GoOn
    }

    /// Answers texts that have ended, if the session is for the texts of this pass alone. Texts with
    /// log-probabilities wait, as these are known only at the end of the session.
    fn answer(&mut self, so_far: &mut dyn FnMut() -> Phases) {
        let Pass { members, passes, own: Some(own), answered, .. } = self else { return };
        let ended = |text: &mut Text| text.growing.reason.is_some() && text.likeliest.is_none();
        let (places, mut spent) = (members.len(), None);
        for member in members {
            let Some(text) = member.text.take_if(ended) else { continue };
            let spent = spent.get_or_insert_with(|| Arc::new(Spent::so_far(*own, &so_far(), places, *passes)));
            text.finish(member.ids.len(), None, Some(Arc::clone(spent)));
            *answered = true;
        }
    }

    /// Whether the session is for these texts alone, none of them was answered, and nobody waits for any of them any
    /// more.
    fn is_abandoned(&self) -> bool {
        let mut texts = self.members.iter().filter_map(|member| member.text.as_ref());
        self.own.is_some() && !self.answered && !texts.any(|text| text.growing.heard())
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::ffi::OsString;
    use std::path::Path;

    use tokio::sync::mpsc::unbounded_channel;
    use waggle::Sampling;
    use waggle_tokenizer::WorkerCommand;

    use super::*;
    use crate::text::{Event, Growing};

    /// A tokenizer whose process dies at every request after the first `requests`.
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
            let (ids, sampling) = (vec![1], Sampling::default());
            let text = Text { who: 0, ids, tokens: 3, sampling, likeliest: None, echo: false, growing };
            let mut pass = Pass::new([text].into_iter(), &tokenizer, vec![8]);
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
