//! The thread that talks to the server.
//!
//! It has one session at a time. A session of several turns stays open between requests: in two phases it makes
//! correlations for the next one while nobody asks. A conversation that goes on finds its cache there; anything else
//! begins with an empty one. Requests that wait go through the model side by side, in a session of their own. Texts
//! whose prompt is scored have sessions of their own, too.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use waggle::Error;
use waggle_model::{Lengths, check_lengths};
use waggle_mpcache::PolicySpec;

use crate::Shared;
use crate::api::{Completion, Talk};
use crate::kept::Found;
use crate::refusal::{Failure, Refusal, refusal};
use crate::sessions::{Sessions, Way};
use crate::text::{Event, Growing, Out, Text};

/// A request, and where its answer goes.
pub(super) struct Job {
    /// The place of the key that asks.
    pub(super) who: usize,
    pub(super) work: Work,
    pub(super) out: Out,
}

/// What is asked for.
pub(super) enum Work {
    Completion(Completion),
    Talk(Talk),
}

/// Takes requests one after the other, or several that can go together.
pub(super) struct Worker {
    sessions: Sessions,
    jobs: Receiver<Job>,
    /// The requests that were taken out of the channel to see what can go together.
    next: VecDeque<Job>,
    shared: Arc<Shared>,
}

impl Worker {
    pub(super) fn new(sessions: Sessions, jobs: Receiver<Job>, shared: Arc<Shared>) -> Self {
        Worker { sessions, jobs, next: VecDeque::new(), shared }
    }

    /// Answers until nobody can ask any more.
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

    /// The next request. Until it comes, correlations are made.
    fn wait(&mut self) -> Option<Job> {
        let job = loop {
            if let Some(job) = self.next.pop_front() {
                break job;
            }
            let found = match &mut self.sessions.kept {
                None => self.jobs.recv().map_or(Found::Over, Found::Job),
                Some(kept) => match kept.wait(&self.jobs, self.sessions.config.idle) {
                    Ok(found) => found,
                    // The next request begins another session.
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

    /// What a program is told of `error`, which is one of the proxy's health unless it is the program's: then it is
    /// one of `param`.
    fn refused(&self, error: &Error, param: &str) -> Refusal {
        let mut refusal = refusal(error);
        if refusal.code == "context_length_exceeded" {
            // Programs look for these words, which are OpenAI's.
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
        let Sessions { terms, model, tokenizer, .. } = &self.sessions;
        let Completion { prompts, samples, tokens, echo, likeliest, wanted } = asked;
        wanted.sampling.sampler(terms)?;
        let mut texts = Vec::new();
        for prompt in prompts {
            let ids = prompt.ids(Some(tokenizer))?;
            model.spec.check_ids(&ids).map_err(Error::from)?;
            // Before there are copies of it.
            let lengths = Lengths { prompt: ids.len(), tokens: tokens.max(1) };
            check_lengths(lengths, model.spec.max_positions())?;
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

    /// The texts of a request that the model reads; the others are over at once.
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

    /// The texts of the next request, if one waits that is no conversation.
    fn arrived(&mut self) -> Option<Vec<Text>> {
        if self.next.is_empty() {
            self.next.extend(self.jobs.try_iter());
        }
        let Some(Job { work: Work::Completion(_), .. }) = self.next.front() else { return None };
        let Some(Job { who, work: Work::Completion(asked), out }) = self.next.pop_front() else { return None };
        self.shared.left_queue();
        Some(self.taken(who, asked, &out))
    }

    /// Answers a request, and those behind it that can go with it.
    fn complete(&mut self, who: usize, asked: Completion, out: &Out) {
        let mut texts = self.taken(who, asked, out);
        let policy = &self.sessions.terms.policy;
        let most = if policy.side_by_side() { self.sessions.config.texts.max(1) } else { 1 };
        // Texts of one kind share a pass. Under most policies their prompts are of one length, too.
        let padded = *policy == PolicySpec::default();
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

    /// Answers texts of one kind, no more than may go together. Where one way is refused, another is tried.
    fn read(&mut self, mut texts: Vec<Text>) {
        let mut way = Way::of(&texts, self.sessions.talks);
        loop {
            let Err(failure) = self.sessions.read(way, &mut texts) else { return };
            way = match (way, failure) {
                (_, Failure::Lost(_)) => way,
                // The server may have sessions of one text all the same.
                (Way::Kept, Failure::Refused(_)) => Way::Own,
                // The server may do for half of them what it does not for all.
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

    /// The next answer of a conversation.
    fn answer(&mut self, who: usize, asked: &Talk, out: &Out) {
        let mut growing = Growing::new(out.clone(), 0, asked.wanted.stops.clone());
        // What a turn adds is known when it is written: a session that is too short for it is opened anew.
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
