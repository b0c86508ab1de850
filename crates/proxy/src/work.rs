//! The thread that talks to the server.
//!
//! The thread has one session at a time. A session of several turns stays open between requests. In two phases it
//! makes correlations for the next request while none comes. A continued conversation finds its cache in this
//! session; any other request begins with an empty cache. Waiting requests go through the model side by side, in a
//! session of their own. Texts that need the logits of their prompts also have a session of their own.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use waggle::Error;
use waggle_model::{Lengths, check_lengths};

use crate::Shared;
use crate::api::{Completion, Talk};
use crate::kept::Found;
use crate::refusal::{Failure, Refusal, refusal};
use crate::sessions::{Sessions, Way};
use crate::text::{Event, Growing, Out, Text};

/// A request, and the sender of its answer.
pub(super) struct Job {
    /// The index of the key that asks.
    pub(super) who: usize,
    pub(super) work: Work,
    pub(super) out: Out,
}

/// The content of a request.
pub(super) enum Work {
    Completion(Completion),
    Talk(Talk),
}

/// Answers requests one after the other, or several at once if they can share a pass.
pub(super) struct Worker {
    sessions: Sessions,
    jobs: Receiver<Job>,
    /// Requests that were taken from the channel to find those that can share a pass.
    next: VecDeque<Job>,
    shared: Arc<Shared>,
}

impl Worker {
    pub(super) fn new(sessions: Sessions, jobs: Receiver<Job>, shared: Arc<Shared>) -> Self {
        Worker { sessions, jobs, next: VecDeque::new(), shared }
    }

    /// Answers requests until the channel is closed.
    pub(super) fn run(mut self) {
        while let Some(Job { who, work, out }) = self.wait() {
            match work {
                _ if out.is_closed() => {}
                Work::Completion(asked) => self.complete(who, asked, &out),
                Work::Talk(asked) => self.answer(who, &asked, &out),
            }
        }
        self.sessions.close();
    }

    /// Waits for the next request, and makes correlations until it comes.
    fn wait(&mut self) -> Option<Job> {
        let job = loop {
            if let Some(job) = self.next.pop_front() {
                break job;
            }
            let found = match &mut self.sessions.kept {
                None => self.jobs.recv().map_or(Found::Over, Found::Job),
                Some(kept) => match kept.wait(&self.jobs, self.sessions.config.idle) {
                    Ok(found) => found,
                    // The session has failed. The next request begins another one.
                    Err(error) => {
                        self.shared.failed(&error);
                        self.sessions.kept = None;
                        continue;
                    }
                },
            };
            match found {
                Found::Job(job) => break job,
                Found::Over => return None,
                Found::Idle => self.sessions.close(),
            }
        };
        self.shared.left_queue();
        Some(job)
    }

    /// The refusal that a program gets for `error`. An error of the program is a refusal of `param`; any other error
    /// is noted as the proxy's health.
    fn refused(&self, error: &Error, param: &str) -> Refusal {
        let mut refusal = refusal(error);
        if refusal.code == "context_length_exceeded" {
            // Programs look for these words of OpenAI's.
            let limit = self.sessions.model.spec.max_positions();
            refusal.message = format!("this model's maximum context length is {limit} tokens: {}", refusal.message);
        }
        if refusal.status == 400 {
            return Refusal { param: Some(param.into()), ..refusal };
        }
        let left = matches!(error, Error::Session(waggle_session::Error::Model(waggle_model::Error::Abandoned)));
        if refusal.status >= 500 && !left {
            self.shared.failed(error);
        }
        refusal
    }

    /// The texts of a request.
    fn texts(&self, who: usize, asked: Completion, out: &Out) -> Result<Vec<Text>, Error> {
        let Sessions { terms, model, public, tokenizer, .. } = &self.sessions;
        let Completion { prompts, samples, tokens, echo, likeliest, wanted } = asked;
        wanted.sampling.sampler(terms)?;
        let mut texts = Vec::new();
        for prompt in prompts {
            let ids = match public.prefix {
                Some(_) => prompt.later_ids(Some(tokenizer))?,
                None => prompt.ids(Some(tokenizer))?,
            };
            model.spec.check_ids(&ids).map_err(Error::from)?;
            // The lengths are checked before the prompt is copied.
            let lengths = Lengths { prompt: ids.len(), tokens: tokens.max(1) };
            check_lengths(lengths, public.room(&model.spec, false))?;
            let before = if echo { tokenizer.decode(&ids)? } else { String::new() };
            for _ in 0..samples {
                let mut growing = Growing::new(out.clone(), texts.len(), wanted.stops.clone());
                growing.begin(&before);
                if tokens == 0 {
                    growing.reason = Some("length");
                }
                let (ids, sampling) = (ids.clone(), wanted.sampling);
                texts.push(Text { who, ids, tokens, sampling, likeliest, echo, growing });
            }
        }
        Ok(texts)
    }

    /// The texts of a request that the model must read. Texts without work for the model are finished at once. A
    /// request that is wrong is refused and has no texts here.
    fn taken(&self, who: usize, asked: Completion, out: &Out) -> Vec<Text> {
        let texts = match self.texts(who, asked, out) {
            Ok(texts) => texts,
            Err(error) => {
                let _ = out.send(Event::Failed(self.refused(&error, "prompt")));
                return Vec::new();
            }
        };
        let (there, texts): (Vec<_>, Vec<_>) = texts.into_iter().partition(Text::is_there);
        there.into_iter().for_each(|text| text.finish(0, None, None));
        texts
    }

    /// Takes the next waiting request, if it is not a conversation. Returns its texts that the model must read.
    fn arrived(&mut self) -> Option<Vec<Text>> {
        if self.next.is_empty() {
            self.next.extend(self.jobs.try_iter());
        }
        let Some(Job { work: Work::Completion(_), .. }) = self.next.front() else { return None };
        let Some(Job { who, work: Work::Completion(asked), out }) = self.next.pop_front() else { return None };
        self.shared.left_queue();
        Some(self.taken(who, asked, &out))
    }

    /// Answers a request, together with later ones that can share its pass.
    fn complete(&mut self, who: usize, asked: Completion, out: &Out) {
        let mut texts = self.taken(who, asked, out);
        let policy = &self.sessions.terms.policy;
        let most = if policy.side_by_side() { self.sessions.config.texts.max(1) } else { 1 };
        // Texts of one kind share a pass. Under most policies, and behind public text, their prompts must also have
        // one length.
        let padded = policy.keeps_all() && self.sessions.public.prefix.is_none();
        while texts.len() < most
            && let Some(more) = self.arrived()
        {
            texts.extend(more);
        }
        loop {
            texts.retain(|text| text.growing.heard());
            let Some(first) = texts.first() else { return };
            let (scores, length) = (first.scores(), first.ids.len());
            let alike = |text: &mut Text| text.scores() == scores && (padded || text.ids.len() == length);
            let together = texts.extract_if(.., alike).take(most).collect();
            self.read(together);
        }
    }

    /// Answers texts of one kind, as many at once as may share a pass. If the server refuses a kind of session,
    /// another kind is tried, or half of the texts at a time.
    fn read(&mut self, mut texts: Vec<Text>) {
        let mut way = Way::of(&texts, self.sessions.talks);
        loop {
            let Err(failure) = self.sessions.read(way, &mut texts) else { return };
            way = match (way, failure) {
                (_, Failure::Lost(_)) => way,
                // The server may still accept a session of one text.
                (Way::Kept, Failure::Refused(_)) => Way::Own,
                // The server may accept half of the texts when it refuses all.
                (Way::Own, Failure::Refused(_)) if texts.len() > 1 => {
                    let half = texts.split_off(texts.len() / 2);
                    self.read(texts);
                    return self.read(half);
                }
                (_, failure) => {
                    let refusal = self.refused(&failure.into_error(), "prompt");
                    return texts.into_iter().for_each(|text| text.growing.fail(&refusal));
                }
            };
        }
    }

    /// Answers the next turn of a conversation.
    fn answer(&mut self, who: usize, asked: &Talk, out: &Out) {
        let mut growing = Growing::new(out.clone(), 0, asked.wanted.stops.clone());
        // A turn's length is known only when the template has written it. If the session is too short, a longer one
        // is opened.
        let mut longest = 0;
        let done = loop {
            match self.sessions.turn(who, asked, &mut longest, &mut growing) {
                Err(Failure::Lost(_)) => {}
                done => break done,
            }
        };
        match done {
            Ok((read, tokens, spent)) => {
                self.shared.metrics.tokens.inc_by(tokens as u64);
                growing.finish(read, tokens, None, Some(spent));
            }
            Err(failure) => growing.fail(&self.refused(&failure.into_error(), "messages")),
        }
    }
}
