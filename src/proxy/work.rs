//! The thread that talks to the server.
//!
//! It has one session at a time. A session of several turns stays open between requests: in two phases it makes
//! correlations for the next one while nobody asks. A conversation that goes on finds its cache there; anything else
//! begins with an empty one. Requests that wait go through the model side by side, in a session of their own, and so
//! do texts whose prompt is scored.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use model::{Generation, Lengths, Next, Sampler, check_lengths};
use mpcache::PolicySpec;
use ndarray::{ArrayView2, Axis};
use report::Phases;
use session::party::{ClientOptions, Prompt, PublicModel, Silent, Terms};
use tokenizer::Tokenizer;

use super::api::{Completion, Message, Refusal, Talk};
use super::spent::Spent;
use super::text::{Growing, Logprobs, Member, Out, Pass, Pieces, logprobs};
use super::{ProxyConfig, Shared};
use crate::error::{ChatError, Refusal as Refused, describe};
use crate::models::harmless;
use crate::{Chat, Error};

/// A request, and where its answer goes.
pub(super) struct Job {
    pub(super) work: Work,
    pub(super) out: Out,
}

/// What is asked for.
pub(super) enum Work {
    Completion(Completion),
    Talk(Talk),
}

/// One text of a request.
struct Text {
    ids: Vec<u32>,
    /// Most tokens of it.
    tokens: usize,
    sampler: Sampler,
    /// How many of the likeliest tokens are named.
    likeliest: Option<usize>,
    /// Whether the prompt is a part of the answer, with what its tokens are worth if that is asked.
    echo: bool,
    growing: Growing,
}

impl Text {
    /// Whether the logits of the prompt are wanted.
    fn scores(&self) -> bool {
        self.echo && self.likeliest.is_some()
    }

    /// Whether the server has nothing to do.
    fn is_there(&self) -> bool {
        self.tokens == 0 && !self.scores()
    }
}

/// A session of several turns.
struct Open {
    chat: Chat,
    /// The messages that its cache holds, if it is a conversation of messages.
    said: Option<Vec<Message>>,
    /// What opened it, until a request has paid.
    opening: Option<Phases>,
    /// The longest turn.
    turn: usize,
    tokens: usize,
    used: Instant,
}

impl Open {
    fn new(chat: Chat, turn: usize, tokens: usize) -> Self {
        let opening = Some(chat.opening().clone());
        Open { chat, said: None, opening, turn, tokens, used: Instant::now() }
    }
}

/// What the thread finds while it waits.
enum Found {
    Job(Job),
    /// Nobody can ask any more.
    Over,
    /// Nobody has asked for a while.
    Idle,
}

pub(super) struct Worker {
    config: ProxyConfig,
    terms: Terms,
    model: PublicModel,
    tokenizer: Arc<Tokenizer>,
    pieces: Pieces,
    jobs: Receiver<Job>,
    /// Those that were taken out of the channel to see what can go together.
    next: VecDeque<Job>,
    open: Option<Open>,
    /// Whether the server has sessions of several turns.
    talks: bool,
    shared: Arc<Shared>,
}

/// A text or a turn that came to nothing.
enum Failure {
    /// Nothing has happened, and another form may do.
    Refused(Error),
    /// The session is over.
    Broken(Error),
}

impl Failure {
    /// Of a session that has told nothing yet.
    fn of(error: Error) -> Self {
        if never_began(&error) { Failure::Refused(error) } else { Failure::Broken(error) }
    }

    fn into_error(self) -> Error {
        let (Failure::Refused(error) | Failure::Broken(error)) = self;
        error
    }
}

/// Whether no session was begun: this party or the server would not.
fn never_began(error: &Error) -> bool {
    match error {
        Error::Session(error) => {
            error.net().is_none() && !matches!(error, session::Error::Model(model::Error::Abandoned))
        }
        other => other.leaves_the_conversation(),
    }
}

/// What a program is told of `error`.
fn refusal(error: &Error) -> Refusal {
    let message = describe(error);
    let too_long = |error: &session::Error| {
        use session::Error::{Full, Model, Planning, TooWide};
        matches!(error, Full { .. } | Planning { .. } | TooWide { .. } | Model(model::Error::TooLong { .. }))
    };
    match error {
        Error::Session(error) if too_long(error) => Refusal::new(400, "context_length_exceeded", message),
        Error::Chat(ChatError::Refused(refused)) => match &**refused {
            Refused::Other(other) => refusal(other),
            _ => Refusal::new(400, "context_length_exceeded", message),
        },
        Error::Tokenizer(_) | Error::Prompt(_) | Error::Options(_) => Refusal::new(400, "invalid_value", message),
        error if never_began(error) => Refusal::new(400, "refused_by_server", message),
        _ => Refusal::new(502, "server_unreachable", message),
    }
}

impl Worker {
    pub(super) fn new(
        config: ProxyConfig,
        terms: Terms,
        model: PublicModel,
        tokenizer: Tokenizer,
        open: Option<Chat>,
        jobs: Receiver<Job>,
        shared: Arc<Shared>,
    ) -> Self {
        let (pieces, next, talks) = (Pieces::default(), VecDeque::new(), open.is_some());
        let open = open.map(|chat| Open::new(chat, config.turn_tokens, config.tokens));
        let tokenizer = Arc::new(tokenizer);
        Worker { config, terms, model, tokenizer, pieces, jobs, next, open, talks, shared }
    }

    /// Answers until nobody can ask any more.
    pub(super) fn run(mut self) {
        while let Some(Job { work, out }) = self.wait() {
            match work {
                _ if out.is_closed() => {}
                Work::Completion(asked) => self.complete(asked, out),
                Work::Talk(asked) => self.answer(asked, &out),
            }
        }
        self.close();
    }

    /// The next request. Until it comes, correlations are made.
    fn wait(&mut self) -> Option<Job> {
        let job = loop {
            if let Some(job) = self.next.pop_front() {
                break job;
            }
            let found = match &mut self.open {
                None => self.jobs.recv().map_or(Found::Over, Found::Job),
                Some(open) => match between(open, &self.jobs, self.config.idle) {
                    Ok(found) => found,
                    // The next request begins another session.
                    Err(error) => {
                        self.failed(&error);
                        self.open = None;
                        continue;
                    }
                },
            };
            match found {
                Found::Job(job) => break job,
                Found::Over => return None,
                Found::Idle => self.close(),
            }
        };
        self.shared.left_queue();
        Some(job)
    }

    fn failed(&self, error: &Error) {
        tracing::warn!("{}", describe(error));
        self.shared.set_health(Some(describe(error)));
    }

    fn paid(&self, spent: Spent) -> Arc<Spent> {
        self.shared.metrics.spent(&spent);
        self.shared.set_health(None);
        Arc::new(spent)
    }

    /// Ends the session that is open.
    fn close(&mut self) {
        if let Some(open) = self.open.take()
            && open.chat.is_open()
            && let Err(error) = open.chat.finish()
        {
            self.failed(&error);
        }
    }

    /// The texts of a request.
    fn texts(&self, asked: Completion, out: &Out) -> Result<Vec<Text>, Error> {
        let Completion { prompts, samples, tokens, echo, likeliest, wanted } = asked;
        let mut texts = Vec::new();
        for prompt in prompts {
            let ids = prompt.read()?.ids(Some(&self.tokenizer))?;
            self.model.spec.check_ids(&ids).map_err(Error::from)?;
            // Before there are copies of it.
            let lengths = Lengths { prompt: ids.len(), tokens: tokens.max(1) };
            check_lengths(lengths, self.model.spec.max_positions())?;
            let before = if echo { self.tokenizer.decode(&ids)? } else { String::new() };
            for _ in 0..samples {
                let sampler = wanted.sampling.sampler_of(texts.len(), &self.terms)?;
                let mut growing = Growing::new(out.clone(), texts.len(), wanted.stops.clone());
                growing.begin(&before);
                if tokens == 0 {
                    growing.reason = Some("length");
                }
                texts.push(Text { ids: ids.clone(), tokens, sampler, likeliest, echo, growing });
            }
        }
        Ok(texts)
    }

    /// The texts of a request that the model reads; the others are over at once.
    fn taken(&self, asked: Completion, out: &Out) -> Vec<Text> {
        let texts = match self.texts(asked, out) {
            Ok(texts) => texts,
            Err(error) => {
                let _ = out.send(super::text::Event::Failed(refusal(&error)));
                return Vec::new();
            }
        };
        let (there, texts): (Vec<_>, Vec<_>) = texts.into_iter().partition(Text::is_there);
        there.into_iter().for_each(|text| text.growing.finish(text.ids.len(), 0, None, None));
        texts
    }

    /// Answers a request, and those behind it that can go with it.
    fn complete(&mut self, asked: Completion, out: Out) {
        let mut texts = self.taken(asked, &out);
        let most = if self.terms.policy.side_by_side() { self.config.texts.max(1) } else { 1 };
        while texts.len() < most {
            if self.next.is_empty() {
                self.next.extend(self.jobs.try_iter());
            }
            let Some(Job { work: Work::Completion(_), .. }) = self.next.front() else { break };
            let Some(Job { work: Work::Completion(asked), out }) = self.next.pop_front() else { break };
            self.shared.left_queue();
            texts.extend(self.taken(asked, &out));
        }
        texts.retain(|text| text.growing.heard());
        // Texts of one kind share a pass. Under most policies their prompts are of one length, too.
        let padded = self.terms.policy == PolicySpec::default();
        while let Some(first) = texts.first() {
            let (scores, length) = (first.scores(), first.ids.len());
            let alike = |text: &mut Text| text.scores() == scores && (padded || text.ids.len() == length);
            let mut all: Vec<Text> = texts.extract_if(.., alike).collect();
            while !all.is_empty() {
                let rest = all.split_off(most.min(all.len()));
                self.pass(std::mem::replace(&mut all, rest));
            }
        }
    }

    /// Texts of one kind, no more than may go together.
    fn pass(&mut self, mut texts: Vec<Text>) {
        let failure = match &mut texts[..] {
            [text] if self.talks && !text.scores() => match self.single(text) {
                // The server may have sessions of one text all the same.
                Err(Failure::Refused(_)) => self.together(&mut texts),
                done => done,
            },
            _ => self.together(&mut texts),
        };
        match failure {
            Ok((ended, spent)) => {
                let ended: Vec<(usize, Option<Logprobs>)> = ended;
                for (text, (tokens, logprobs)) in texts.into_iter().zip(ended) {
                    self.shared.metrics.tokens.inc_by(tokens as u64);
                    text.growing.finish(text.ids.len(), tokens, logprobs, Some(Arc::clone(&spent)));
                }
            }
            // The server may do for half of them what it does not for all.
            Err(Failure::Refused(_)) if texts.len() > 1 => {
                let half = texts.split_off(texts.len() / 2);
                self.pass(texts);
                self.pass(half);
            }
            Err(failure) => {
                let error = failure.into_error();
                if !never_began(&error) {
                    self.failed(&error);
                }
                let refusal = refusal(&error);
                texts.into_iter().for_each(|text| text.growing.fail(&refusal));
            }
        }
    }

    /// `texts` in a session of their own.
    fn together(&mut self, texts: &mut [Text]) -> Done {
        self.close();
        let early = Failure::of;
        let Worker { config, terms, model, tokenizer, pieces, shared: _, .. } = self;
        let longest = texts.iter().map(|text| text.ids.len()).max().unwrap_or(0);
        let tokens = texts.iter().map(|text| text.tokens).max().unwrap_or(0).max(1);
        let room = (model.spec.max_positions() + 1).saturating_sub(tokens);
        let length = config.pad_prompt.as_ref().map(|pads| pads.of(longest, room)).transpose();
        let length = length.map_err(|error| early(error.into()))?;
        let prompts: Vec<Prompt> = texts.iter().map(|text| text.ids.as_slice().into()).collect();
        let whole = Prompt::side_by_side(&prompts, length, false).map_err(|error| early(error.into()))?;
        let count = whole.input().count;
        let scores = texts.iter().any(Text::scores);
        let wanted = ClientOptions { expected: Some(&model.spec), ..ClientOptions::default() };
        let session = config.client.open(terms, wanted, &mut Silent).map_err(early)?.stopping_at_eos();
        let session = if config.pad_answer == Some(true) { session.padding_answers() } else { session };
        let session = if scores { session.scoring_prompt() } else { session };
        let members = texts.iter_mut().map(|text| member(text, tokenizer));
        let (members, samplers): (Vec<_>, Vec<_>) = members.unzip();
        let mut pass = Pass::new(members, model.spec.eos());
        let next = Next::Each(samplers.into_iter().map(Next::Pick).collect());
        let done = session.generate(whole, tokens, next, &mut pass);
        let answers: Vec<Vec<u32>> = pass.members.into_iter().map(|member| member.ids).collect();
        let outcome = done.map_err(|error| match answers.iter().all(Vec::is_empty) {
            true => early(error.into()),
            // What was told cannot be told again.
            false => Failure::Broken(error.into()),
        })?;
        let before = if scores { count - 1 } else { 0 };
        let rows = |text: usize| before + outcome.generation.lengths[text];
        let mut from = 0;
        let mut ended = Vec::new();
        for (at, (text, answer)) in texts.iter().zip(&answers).enumerate() {
            let rows = from..from + rows(at);
            from = rows.end;
            let logits = outcome.generation.logits.as_ref().map(|logits| logits.slice_axis(Axis(0), rows.into()));
            // The rows of the prompt begin with those of its padding.
            let place = if text.scores() { count - text.ids.len() } else { before };
            let worth = worth(text, answer, logits, place, tokenizer, pieces).map_err(|error| early(error.into()))?;
            ended.push((answer.len(), worth));
        }
        let spent = self.paid(Spent::of_pass(&outcome, texts.len()));
        Ok((ended, spent))
    }

    /// `text` in the session that stays open, in a conversation of its own.
    fn single(&mut self, text: &mut Text) -> Done {
        let (turn, tokens) = (text.ids.len(), text.tokens);
        let fresh = self.ensure(turn, tokens)?;
        let Worker { model, tokenizer, pieces, open, .. } = self;
        let Some(Open { chat, said, used, .. }) = open else { return Err(Failure::Broken(Error::Panicked)) };
        *said = None;
        let (done, answer) = {
            let ids = text.ids.clone();
            let (member, sampler) = member(text, tokenizer);
            let mut pass = Pass::new(vec![member], model.spec.eos()).never_abandoned();
            let done = chat.complete(&ids, tokens, sampler, &mut pass);
            (done, pass.members.pop().map(|member| member.ids).unwrap_or_default())
        };
        *used = Instant::now();
        let turn = match done {
            Ok(turn) => turn,
            Err(error) => {
                let goes_on = chat.is_open();
                // A server that left while nobody asked is asked again.
                if !goes_on {
                    self.open = None;
                    if !fresh && answer.is_empty() {
                        return self.single(text);
                    }
                }
                return Err(if goes_on { Failure::Refused(error) } else { Failure::Broken(error) });
            }
        };
        let Generation { logits, .. } = &turn.generation;
        let logits = logits.as_ref().map(|logits| logits.view());
        let worth = worth(text, &answer, logits, 0, tokenizer, pieces);
        let worth = worth.map_err(|error| Failure::Broken(error.into()))?;
        let opening = self.open.as_mut().and_then(|open| open.opening.take());
        let spent = Spent::of_turn(&turn.cost, [turn.prompt_tokens, turn.generation.count], false, opening.as_ref());
        Ok((vec![(answer.len(), worth)], self.paid(spent)))
    }

    /// Sees to it that a session is open for a turn of `turn` new tokens and an answer of `tokens`. Whether it is
    /// new.
    fn ensure(&mut self, turn: usize, tokens: usize) -> Result<bool, Failure> {
        if self.open.as_ref().is_some_and(|open| turn <= open.turn && tokens <= open.tokens && open.chat.is_open()) {
            return Ok(false);
        }
        self.close();
        let (turn, tokens) = (turn.max(self.config.turn_tokens), tokens.max(self.config.tokens));
        let chat = self.config.talk(turn, tokens).map_err(Failure::of)?;
        self.open = Some(Open::new(chat, turn, tokens));
        Ok(true)
    }

    /// The next answer of a conversation.
    fn answer(&mut self, asked: Talk, out: &Out) {
        let mut growing = Growing::new(out.clone(), 0, asked.wanted.stops.clone());
        match self.turn(&asked, &mut growing) {
            Ok((read, tokens, spent)) => {
                self.shared.metrics.tokens.inc_by(tokens as u64);
                growing.finish(read, tokens, None, Some(spent));
            }
            Err(error) => {
                if !never_began(&error) {
                    self.failed(&error);
                }
                growing.fail(&refusal(&error));
            }
        }
    }

    /// Tokens that were read and generated in a turn, and what it took.
    fn turn(&mut self, asked: &Talk, growing: &mut Growing) -> Result<(usize, usize, Arc<Spent>), Error> {
        let Talk { before, words, tokens, wanted } = asked;
        let tokens = tokens.unwrap_or(self.config.tokens);
        let mut sampler = wanted.sampling.sampler(&self.terms)?;
        // What a turn adds is known when it is written: a session that is too short for it is opened anew.
        let mut turn = 0;
        loop {
            let fresh = self.ensure(turn, tokens).map_err(Failure::into_error)?;
            let Some(open) = &mut self.open else { return Err(Error::Panicked) };
            let goes_on = open.said.as_ref() == Some(before);
            if !goes_on {
                let said = before.iter().map(|message| (message.role, message.text.clone())).collect();
                let begun = open.chat.begin_after(said);
                open.said = begun.is_ok().then(|| before.clone());
                if begun.is_err() && !fresh {
                    self.open = None;
                    continue;
                }
                begun?;
            }
            let told = growing.text().len();
            let done = open.chat.turn_of(words, tokens, &mut sampler, growing);
            open.used = Instant::now();
            let is_open = open.chat.is_open();
            match done {
                Ok(done) => {
                    if done.tokens.last().is_some_and(|token| self.model.spec.eos().contains(token)) {
                        growing.end("stop");
                    }
                    growing.end("length");
                    let user = Message { role: "user", text: words.clone() };
                    let model = Message { role: "assistant", text: growing.text().to_owned() };
                    // A stop cut what the cache holds.
                    let whole = harmless(&done.text) == growing.text();
                    open.said = whole.then(|| before.iter().cloned().chain([user, model]).collect());
                    let opening = open.opening.take();
                    let count = done.cost.phases.decode.per_token.len() + 1;
                    let spent = Spent::of_turn(
                        &done.cost,
                        [done.prompt_tokens, count],
                        goes_on && !before.is_empty(),
                        opening.as_ref(),
                    );
                    return Ok((done.prompt_tokens, done.tokens.len(), self.paid(spent)));
                }
                Err(Error::Chat(ChatError::Refused(refused))) => match *refused {
                    Refused::Long { got, .. } if turn < got => turn = got,
                    // All of it is read again, as a conversation that somebody else kept.
                    Refused::Rereads if goes_on => open.said = None,
                    other => {
                        open.said = None;
                        return Err(ChatError::Refused(Box::new(other)).into());
                    }
                },
                // A server that left while nobody asked is asked again.
                Err(_) if !is_open && !fresh && growing.text().len() == told => self.open = None,
                Err(error) => {
                    if !is_open {
                        self.open = None;
                    }
                    return Err(error);
                }
            }
        }
    }
}

/// Of each text the tokens that were generated and what they were worth, and what the pass took.
type Done = Result<(Vec<(usize, Option<Logprobs>)>, Arc<Spent>), Failure>;

/// What a pass needs of `text`.
fn member<'a>(text: &'a mut Text, tokenizer: &'a Tokenizer) -> (Member<'a>, &'a mut Sampler) {
    let Text { ids, tokens, sampler, growing, .. } = text;
    (Member { growing, stream: Some(tokenizer.stream(ids)), ids: Vec::new(), most: *tokens }, sampler)
}

/// What the tokens of `text` and its `answer` were worth, if that is asked; the row of `logits` at `place` is the
/// first that counts.
fn worth(
    text: &Text,
    answer: &[u32],
    logits: Option<ArrayView2<f32>>,
    place: usize,
    tokenizer: &Tokenizer,
    pieces: &mut Pieces,
) -> Result<Option<Logprobs>, tokenizer::TokenizerError> {
    let (Some(likeliest), Some(logits)) = (text.likeliest, logits) else { return Ok(None) };
    let prompt: &[u32] = if text.scores() { &text.ids } else { &[] };
    let ids = [prompt, answer].concat();
    let rows = ids.len() - usize::from(text.scores());
    logprobs(tokenizer, pieces, &ids, logits.slice_axis(Axis(0), (place..place + rows).into()), likeliest).map(Some)
}

/// What comes between requests, in a session that stays open.
fn between(open: &mut Open, jobs: &Receiver<Job>, idle: Duration) -> Result<Found, Error> {
    let Open { chat, used, .. } = open;
    let received = |limit: Duration| match jobs.recv_timeout(limit) {
        Ok(job) => Some(Found::Job(job)),
        Err(RecvTimeoutError::Timeout) => (used.elapsed() >= idle).then_some(Found::Idle),
        Err(RecvTimeoutError::Disconnected) => Some(Found::Over),
    };
    if let Some(found) = chat.prepare_until(|| received(Duration::ZERO), |_| ())? {
        return Ok(found);
    }
    chat.stay_until(|limit| received(limit.min(idle.saturating_sub(used.elapsed()))))
}
