//! The thread that talks to the server.
//!
//! It has one session at a time. A session of several turns stays open between requests: in two phases it makes
//! correlations for the next one while nobody asks. A conversation that goes on finds its cache there; anything else
//! begins with an empty one. Requests that wait go through the model side by side, in a session of their own. Texts
//! whose prompt is scored have sessions of their own, too.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use ndarray::{ArrayView2, Axis};
use waggle::program::Words;
use waggle::{Chat, ChatError, Error, PromptError, Refusal as Refused, describe};
use waggle_model::{Generation, Lengths, Next, Sampler, check_lengths};
use waggle_mpcache::PolicySpec;
use waggle_report::Phases;
use waggle_session::party::{ClientOptions, Prompt, PublicModel, Terms, nobody};
use waggle_tokenizer::{Tokenizer, TokenizerError};

use crate::api::{Completion, Talk};
use crate::logprobs::{Logprobs, Pieces, logprobs};
use crate::pass::{Member, Pass};
use crate::refusal::Refusal;
use crate::spent::{Own, Spent};
use crate::text::{Growing, Out, Text};
use crate::{ProxyConfig, Shared};

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

/// A session of several turns.
struct Open {
    chat: Chat,
    /// The messages that its cache holds, if it is a conversation of messages, and the key that said them.
    said: Option<(usize, Vec<Words>)>,
    /// The key that asked last, and whether there was another one before.
    asker: Option<usize>,
    shared: bool,
    /// What opened it, until a request has paid.
    opening: Option<Phases>,
    /// The longest turn and answer.
    longest: Lengths,
    used: Instant,
}

impl Open {
    fn new(chat: Chat, longest: Lengths) -> Self {
        let opening = Some(chat.opening().clone());
        Open { chat, said: None, asker: None, shared: false, opening, longest, used: Instant::now() }
    }

    /// The key `who` asks in this session.
    fn asked_by(&mut self, who: usize) {
        self.shared |= self.asker.replace(who).is_some_and(|before| before != who);
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
            error.net().is_none() && !matches!(error, waggle_session::Error::Model(waggle_model::Error::Abandoned))
        }
        other => other.leaves_the_conversation(),
    }
}

/// What a program is told of `error`.
fn refusal(error: &Error) -> Refusal {
    let message = describe(error);
    let too_long = |error: &waggle_session::Error| {
        use waggle_session::Error::{Full, Model, Planning, TooWide};
        matches!(error, Full { .. } | Planning { .. } | TooWide { .. } | Model(waggle_model::Error::TooLong { .. }))
    };
    match error {
        Error::Session(error) if too_long(error) => Refusal::new(400, "context_length_exceeded", message),
        Error::Chat(ChatError::Refused(refused)) => match &**refused {
            Refused::Other(other) => refusal(other),
            _ => Refusal::new(400, "context_length_exceeded", message),
        },
        Error::Tokenizer(TokenizerError::TooMuch { .. }) => Refusal::new(400, "context_length_exceeded", message),
        Error::Tokenizer(error) if error.of_process() => Refusal::new(500, "tokenizer_failed", message),
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
    ) -> Result<Self, TokenizerError> {
        let pieces = Pieces::new(model.tokenizer.as_deref().unwrap_or_default())?;
        let (next, talks) = (VecDeque::new(), open.is_some());
        let open = open.map(|chat| Open::new(chat, config.usual(model.spec.max_positions())));
        let tokenizer = Arc::new(tokenizer);
        Ok(Worker { config, terms, model, tokenizer, pieces, jobs, next, open, talks, shared })
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

    /// What a program is told of `error`, which is one of the proxy's health unless it is the program's: then it is
    /// one of `param`.
    fn refused(&self, error: &Error, param: &str) -> Refusal {
        let mut refusal = refusal(error);
        if refusal.code == "context_length_exceeded" {
            // Programs look for these words, which are OpenAI's.
            let limit = self.model.spec.max_positions();
            refusal.message = format!("this model's maximum context length is {limit} tokens: {}", refusal.message);
        }
        if refusal.status == 400 {
            return Refusal { param: Some(param.into()), ..refusal };
        }
        let left = matches!(error, Error::Session(waggle_session::Error::Model(waggle_model::Error::Abandoned)));
        if refusal.status >= 500 && !left {
            self.failed(error);
        }
        refusal
    }

    fn failed(&self, error: &Error) {
        tracing::warn!("{}", describe(error));
        self.shared.set_health(Some(describe(error)));
    }

    /// A pass or turn is over that had so many texts.
    fn paid(&self, spent: Spent, texts: usize) -> Arc<Spent> {
        self.shared.metrics.spent(&spent, texts);
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
    fn texts(&self, who: usize, asked: Completion, out: &Out) -> Result<Vec<Text>, Error> {
        let Completion { prompts, samples, tokens, echo, likeliest, wanted } = asked;
        let mut texts = Vec::new();
        for prompt in prompts {
            let ids = prompt.ids(Some(&self.tokenizer))?;
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
                texts.push(Text { who, ids: ids.clone(), tokens, sampler, likeliest, echo, growing });
            }
        }
        Ok(texts)
    }

    /// The texts of a request that the model reads; the others are over at once.
    fn taken(&self, who: usize, asked: Completion, out: &Out) -> Vec<Text> {
        let texts = match self.texts(who, asked, out) {
            Ok(texts) => texts,
            Err(error) => {
                let _ = out.send(super::text::Event::Failed(self.refused(&error, "prompt")));
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
        let most = if self.terms.policy.side_by_side() { self.config.texts.max(1) } else { 1 };
        while texts.len() < most
            && let Some(more) = self.arrived()
        {
            texts.extend(more);
        }
        // Texts of one kind share a pass. Under most policies their prompts are of one length, too.
        let padded = self.terms.policy == PolicySpec::default();
        loop {
            texts.retain(|text| text.growing.heard());
            let Some(first) = texts.first() else { return };
            let (scores, length) = (first.scores(), first.ids.len());
            let alike = |text: &mut Text| text.scores() == scores && (padded || text.ids.len() == length);
            let together = texts.extract_if(.., alike).take(most).collect();
            self.pass(together);
        }
    }

    /// Texts of one kind, no more than may go together.
    fn pass(&mut self, mut texts: Vec<Text>) {
        match self.read(&mut texts) {
            Ok(()) => {}
            // The server may do for half of them what it does not for all.
            Err(Failure::Refused(_)) if texts.len() > 1 => {
                let half = texts.split_off(texts.len() / 2);
                self.pass(texts);
                self.pass(half);
            }
            Err(failure) => {
                let refusal = self.refused(&failure.into_error(), "prompt");
                texts.into_iter().for_each(|text| text.growing.fail(&refusal));
            }
        }
    }

    /// Answers `texts` in the form of session that suits them. If it fails, `texts` are those without an answer.
    fn read(&mut self, texts: &mut Vec<Text>) -> Done {
        if self.talks && matches!(&texts[..], [text] if !text.scores()) {
            match self.single(texts) {
                // It may have sessions of one text all the same.
                Err(Failure::Refused(_)) => {}
                done => return done,
            }
        }
        self.together(texts)
    }

    /// The lengths of a session for `texts`, padding included.
    fn lengths(&self, texts: &[Text]) -> Result<Lengths, PromptError> {
        let longest = texts.iter().map(|text| text.ids.len()).max().unwrap_or(0);
        let tokens = texts.iter().map(|text| text.tokens).max().unwrap_or(0).max(1);
        let room = (self.model.spec.max_positions() + 1).saturating_sub(tokens);
        let prompt = self.config.pad_prompt.as_ref().map_or(Ok(longest), |pads| pads.of(longest, room))?;
        Ok(Lengths { prompt, tokens })
    }

    /// `texts` side by side in a session of their own.
    fn together(&mut self, texts: &mut Vec<Text>) -> Done {
        self.close();
        let early = Failure::of;
        let lengths = self.lengths(texts).map_err(|error| early(error.into()))?;
        let count = texts.len();
        let prompts: Vec<Prompt> = texts.iter().map(|text| Prompt::from(&text.ids)).collect();
        let padded = self.config.pad_prompt.is_some().then_some(lengths.prompt);
        let whole = Prompt::side_by_side(&prompts, padded, false);
        let whole = whole.map_err(|error| early(error.into()))?;
        let length = whole.input().count;
        let scores = texts.iter().any(Text::scores);
        let wanted = ClientOptions { expected: Some(&self.model.spec), ..ClientOptions::default() };
        let session = self.config.client.open(&self.terms, wanted, &mut nobody).map_err(early)?.stopping_at_eos();
        let session = if self.config.pad_answer == Some(true) { session.padding_answers() } else { session };
        let session = if scores { session.scoring_prompt() } else { session };
        let tokenizer = Arc::clone(&self.tokenizer);
        let shared = !texts.iter().all(|text| text.growing.is_of_the_request_of(&texts[0].growing));
        let own = Own::new(shared, length);
        let mut samplers: Vec<Sampler> = texts.iter_mut().map(|text| std::mem::take(&mut text.sampler)).collect();
        let members = texts.drain(..).map(|text| Member::new(text, &tokenizer)).collect();
        let mut pass = Pass::new(members, self.model.spec.eos()).in_own(own);
        let next = Next::Each(samplers.iter_mut().map(Next::Pick).collect());
        let done = session.generate(whole, lengths.tokens, next, &mut |event| pass.hear(event));
        let Pass { mut members, .. } = pass;
        let tokens: usize = members.iter().map(|member| member.ids.len()).sum();
        self.shared.metrics.tokens.inc_by(tokens as u64);
        let worth = done.map_err(|error| match tokens {
            0 => early(error.into()),
            // What was told cannot be told again.
            _ => Failure::Broken(error.into()),
        });
        let worth = worth.and_then(|outcome| {
            let worth = self.worth(&members, &outcome.generation, length);
            Ok((outcome, worth.map_err(|error| Failure::Broken(error.into()))?))
        });
        let (outcome, worth) = match worth {
            Ok(done) => done,
            Err(failure) => {
                let all = members.iter_mut().filter_map(|member| member.text.take());
                texts.extend(all);
                texts.iter_mut().zip(samplers).for_each(|(text, sampler)| text.sampler = sampler);
                return Err(failure);
            }
        };
        let spent = self.paid(Spent::of_pass(own, &outcome, count), count);
        for (member, worth) in members.into_iter().zip(worth) {
            if let Some(text) = member.text {
                text.finish(member.ids.len(), worth, Some(Arc::clone(&spent)));
            }
        }
        Ok(())
    }

    /// The worth of the tokens of each of `members`, if that is asked; their prompts have `count` tokens.
    fn worth(
        &mut self,
        members: &[Member],
        generation: &Generation,
        count: usize,
    ) -> Result<Vec<Option<Logprobs>>, TokenizerError> {
        let Worker { tokenizer, pieces, .. } = self;
        let mut from = 0;
        let mut all = Vec::new();
        for (Member { text, ids, .. }, length) in members.iter().zip(&generation.lengths) {
            let scores = text.as_ref().is_some_and(Text::scores);
            let before = if scores { count - 1 } else { 0 };
            let rows = from..from + before + length;
            from = rows.end;
            all.push(match (text, &generation.logits) {
                (Some(text), Some(logits)) => {
                    // The rows of the prompt begin with those of its padding.
                    let place = if scores { count - text.ids.len() } else { 0 };
                    worth(text, ids, logits.slice_axis(Axis(0), rows.into()), place, tokenizer, pieces)?
                }
                _ => None,
            });
        }
        Ok(all)
    }

    /// The only one of `texts` in the session that stays open, in a conversation of its own.
    fn single(&mut self, texts: &mut Vec<Text>) -> Done {
        let [text] = &mut texts[..] else { return Err(Failure::Broken(Error::Panicked)) };
        let fresh = self.ensure(text.ids.len(), text.tokens)?;
        let Worker { model, open, .. } = self;
        let Some(open) = open else { return Err(Failure::Broken(Error::Panicked)) };
        open.asked_by(text.who);
        let Open { chat, said, used, shared, .. } = open;
        let shared = *shared;
        *said = None;
        let tokenizer = Arc::clone(&self.tokenizer);
        let (ids, tokens) = (text.ids.clone(), text.tokens);
        let mut sampler = std::mem::take(&mut text.sampler);
        let members = texts.drain(..).map(|text| Member::new(text, &tokenizer)).collect();
        let mut pass = Pass::new(members, model.spec.eos());
        let done = chat.complete(&ids, tokens, &mut sampler, &mut |event| pass.hear(event));
        let Pass { mut members, .. } = pass;
        let answer: Vec<u32> = members.iter().flat_map(|member| &member.ids).copied().collect();
        *used = Instant::now();
        let goes_on = chat.is_open();
        let told = done.map_err(|error| if goes_on { Failure::Refused(error) } else { Failure::Broken(error) });
        let worth = told.and_then(|turn| {
            let worth = self.worth(&members, &turn.generation, ids.len());
            Ok((turn, worth.map_err(|error| Failure::Broken(error.into()))?))
        });
        let text = members
            .iter_mut()
            .filter_map(|member| member.text.take())
            .map(|text| Text { sampler: std::mem::take(&mut sampler), ..text });
        texts.extend(text);
        let (turn, worth) = match worth {
            Ok(done) => done,
            Err(failure) => {
                // A server that left while nobody asked is asked again.
                if !goes_on {
                    self.open = None;
                    if !fresh && answer.is_empty() {
                        return self.single(texts);
                    }
                }
                return Err(failure);
            }
        };
        let opening = self.open.as_mut().and_then(|open| open.opening.take());
        let numbers = [turn.prompt_tokens, turn.generation.count];
        let spent = Spent::of_turn(&turn.cost, numbers, false, opening.as_ref(), shared);
        let spent = self.paid(spent, 1);
        self.shared.metrics.tokens.inc_by(answer.len() as u64);
        for (text, worth) in texts.drain(..).zip(worth) {
            text.finish(answer.len(), worth, Some(Arc::clone(&spent)));
        }
        Ok(())
    }

    /// Sees to it that a session is open for a turn of `turn` new tokens and an answer of `tokens`. Whether it is
    /// new.
    fn ensure(&mut self, turn: usize, tokens: usize) -> Result<bool, Failure> {
        let fits = |longest: Lengths| turn <= longest.prompt && tokens <= longest.tokens;
        if self.open.as_ref().is_some_and(|open| fits(open.longest) && open.chat.is_open()) {
            return Ok(false);
        }
        self.close();
        let usual = self.usual();
        let longest = Lengths { prompt: turn.max(usual.prompt), tokens: tokens.max(usual.tokens) };
        let chat = self.config.talk(longest).map_err(Failure::of)?;
        self.open = Some(Open::new(chat, longest));
        Ok(true)
    }

    fn usual(&self) -> Lengths {
        self.config.usual(self.model.spec.max_positions())
    }

    /// The next answer of a conversation.
    fn answer(&mut self, who: usize, asked: &Talk, out: &Out) {
        let mut growing = Growing::new(out.clone(), 0, asked.wanted.stops.clone());
        match self.turn(who, asked, &mut growing) {
            Ok((read, tokens, spent)) => {
                self.shared.metrics.tokens.inc_by(tokens as u64);
                growing.finish(read, tokens, None, Some(spent));
            }
            Err(error) => growing.fail(&self.refused(&error, "messages")),
        }
    }

    /// Tokens that were read and generated in a turn, and what it took.
    fn turn(&mut self, who: usize, asked: &Talk, growing: &mut Growing) -> Result<(usize, usize, Arc<Spent>), Error> {
        let Talk { messages, tokens, wanted } = asked;
        let tokens = tokens.unwrap_or(self.usual().tokens);
        let mut sampler = wanted.sampling.sampler(&self.terms)?;
        // What a turn adds is known when it is written: a session that is too short for it is opened anew.
        let mut turn = 0;
        loop {
            let fresh = self.ensure(turn, tokens).map_err(Failure::into_error)?;
            let Some(open) = &mut self.open else { return Err(Error::Panicked) };
            open.asked_by(who);
            // What another key has said is not confirmed to whoever guesses it.
            let said = open.said.as_ref().filter(|(key, said)| *key == who && messages.starts_with(said));
            let known = said.map_or(0, |(_, said)| said.len());
            let goes_on = (1..messages.len()).contains(&known);
            let new = if goes_on { &messages[known..] } else { &messages[..] };
            if !goes_on {
                open.said = None;
                match open.chat.begin() {
                    Err(_) if !fresh => {
                        self.open = None;
                        continue;
                    }
                    begun => begun?,
                }
            }
            let told = growing.text().len();
            let done = open.chat.turn_of(new, tokens, &mut sampler, &mut |event| growing.watch(event));
            open.used = Instant::now();
            let is_open = open.chat.is_open();
            match done {
                Ok(done) => {
                    if done.tokens.last().is_some_and(|token| self.model.spec.eos().contains(token)) {
                        growing.end("stop");
                    }
                    growing.end("length");
                    let answer = ("assistant", growing.text().to_owned());
                    // A stop cut what the cache holds, or it has characters that nobody is shown.
                    let whole = done.text == answer.1;
                    open.said = whole.then(|| (who, messages.iter().cloned().chain([answer]).collect()));
                    let opening = open.opening.take();
                    let count = done.cost.phases.decode.per_token.len() + 1;
                    let spent = Spent::of_turn(
                        &done.cost,
                        [done.prompt_tokens, count],
                        goes_on,
                        opening.as_ref(),
                        open.shared,
                    );
                    return Ok((done.prompt_tokens, done.tokens.len(), self.paid(spent, 1)));
                }
                Err(Error::Chat(ChatError::Refused(refused))) => match *refused {
                    Refused::Long { got, .. } if turn < got => turn = got,
                    // Asked again it is refused again: were all of it read, its length would tell that of the
                    // answers.
                    Refused::Rereads => return Err(ChatError::Refused(refused).into()),
                    other => {
                        open.said = None;
                        return Err(ChatError::Refused(Box::new(other)).into());
                    }
                },
                // A server that left while nobody asked is asked again.
                Err(_) if !is_open && !fresh && growing.text().len() == told => self.open = None,
                // A text that could not be shown leaves a session that nothing can follow.
                Err(error) => {
                    self.open = None;
                    return Err(error);
                }
            }
        }
    }
}

/// Texts that were answered.
type Done = Result<(), Failure>;

/// What the tokens of `text` and its `answer` were worth, if that is asked; the row of `logits` at `place` is the
/// first that counts.
fn worth(
    text: &Text,
    answer: &[u32],
    logits: ArrayView2<f32>,
    place: usize,
    tokenizer: &Tokenizer,
    pieces: &mut Pieces,
) -> Result<Option<Logprobs>, TokenizerError> {
    let Some(likeliest) = text.likeliest else { return Ok(None) };
    let prompt: &[u32] = if text.scores() { &text.ids } else { &[] };
    let ids = [prompt, answer].concat();
    let rows = ids.len() - usize::from(text.scores());
    let logits = logits.slice_axis(Axis(0), (place..place + rows).into());
    let mut found = logprobs(tokenizer, pieces, &ids, logits, likeliest, text.scores())?;
    if text.growing.cut {
        found.cut(text.growing.text().chars().count());
    }
    Ok(Some(found))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A tokenizer that has died is nothing that a program could mend.
    #[test]
    fn what_is_not_the_programs_fault_is_an_error_of_ours() {
        let step = || "encode".to_owned();
        let died = || Error::Tokenizer(TokenizerError::Died { step: step(), status: "killed".into() });
        let inside = Error::Chat(ChatError::Refused(Box::new(Refused::Other(died()))));
        let late = Error::Tokenizer(TokenizerError::TimedOut { step: step(), seconds: "5".into() });
        for error in [died(), inside, late] {
            assert_eq!(refusal(&error).status, 500, "{error}");
        }
        let failed = Error::Tokenizer(TokenizerError::Failed { what: "no such token".into() });
        for error in [failed, PromptError::Empty.into(), waggle_model::Error::Nothing.into()] {
            assert_eq!(refusal(&error).status, 400, "{error}");
        }
    }
}
