//! The session that stays open between requests.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use waggle::program::Words;
use waggle::{Chat, ChatError, Error, Refusal as Refused, TurnReport};
use waggle_model::{Generation, Lengths, Sampler};
use waggle_report::Phases;
use waggle_session::party::chat::TurnCost;

use crate::pass::Pass;
use crate::refusal::Failure;
use crate::spent::Spent;
use crate::text::Growing;

/// A session of several turns.
pub(super) struct Kept {
    pub(super) chat: Chat,
    /// The messages that its cache holds, if it is a conversation of messages, and the key that said them.
    said: Option<(usize, Vec<Words>)>,
    /// The key that asked last, and whether there was another one before.
    asker: Option<usize>,
    shared: bool,
    /// What opened it, until a request has paid.
    pub(super) opening: Option<Phases>,
    /// The longest turn and answer.
    longest: Lengths,
    /// Whether it was opened for the request that it answers.
    fresh: bool,
    used: Instant,
}

/// What comes while nobody is answered.
pub(super) enum Found<T> {
    Job(T),
    /// Nobody can ask any more.
    Over,
    /// Nobody has asked for a while.
    Idle,
}

impl Kept {
    pub(super) fn new(chat: Chat, longest: Lengths, fresh: bool) -> Self {
        let opening = Some(chat.opening().clone());
        Kept { chat, said: None, asker: None, shared: false, opening, longest, fresh, used: Instant::now() }
    }

    /// Whether it is open for such a turn and answer.
    pub(super) fn takes(&self, Lengths { prompt, tokens }: Lengths) -> bool {
        prompt <= self.longest.prompt && tokens <= self.longest.tokens && self.chat.is_open()
    }

    /// This session, for another request.
    pub(super) fn again(self) -> Self {
        Kept { fresh: false, ..self }
    }

    /// Makes correlations until something comes of `jobs`, or nothing for so long.
    pub(super) fn wait<T>(&mut self, jobs: &Receiver<T>, idle: Duration) -> Result<Found<T>, Error> {
        let Kept { chat, used, .. } = self;
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

    /// The text that the key `who` asks for behind `ids`, in a conversation of its own; `pass` hears it.
    pub(super) fn complete(
        &mut self,
        who: usize,
        ids: &[u32],
        tokens: usize,
        sampler: &mut Sampler,
        pass: &mut Pass,
    ) -> Result<(Spent, Generation), Failure> {
        self.asked_by(who);
        self.said = None;
        let done = self.chat.complete(ids, tokens, sampler, &mut |event| pass.hear(event));
        self.used = Instant::now();
        let turn = done.map_err(|error| self.failure(error, pass.tokens() > 0))?;
        let spent = self.spent(&turn.cost, [turn.prompt_tokens, turn.generation.count], false);
        Ok((spent, turn.generation))
    }

    /// The answer of up to `tokens` tokens that the key `who` asks for after `messages`, and what it took. Of a turn
    /// that is longer than this session takes, `longest` is set to the length.
    pub(super) fn turn(
        &mut self,
        who: usize,
        messages: &[Words],
        tokens: usize,
        sampler: &mut Sampler,
        growing: &mut Growing,
        longest: &mut usize,
    ) -> Result<(TurnReport, Spent), Failure> {
        self.asked_by(who);
        // What another key has said is not confirmed to whoever guesses it.
        let said = self.said.as_ref().filter(|(key, said)| *key == who && messages.starts_with(said));
        let known = said.map_or(0, |(_, said)| said.len());
        let goes_on = (1..messages.len()).contains(&known);
        let new = if goes_on { &messages[known..] } else { messages };
        if !goes_on {
            self.said = None;
            self.chat.begin().map_err(|error| self.failure(error, false))?;
        }
        let told = growing.text().len();
        let done = self.chat.turn_of(new, tokens, sampler, &mut |event| growing.watch(event));
        self.used = Instant::now();
        let turn = done.map_err(|error| match &error {
            Error::Chat(ChatError::Refused(refused)) => match **refused {
                Refused::Long { got, .. } if *longest < got => {
                    *longest = got;
                    Failure::Lost(error)
                }
                // Asked again it is refused again: were all of it read, its length would tell that of the answers.
                Refused::Rereads => Failure::Refused(error),
                _ => {
                    self.said = None;
                    Failure::Refused(error)
                }
            },
            // A text that could not be shown leaves a session that nothing can follow.
            _ if self.chat.is_open() => Failure::Broken(error),
            _ => self.failure(error, growing.text().len() > told),
        })?;
        let answer = ("assistant", growing.text().to_owned());
        // A stop cut what the cache holds, or it has characters that nobody is shown.
        let whole = turn.text == answer.1;
        self.said = whole.then(|| (who, messages.iter().cloned().chain([answer]).collect()));
        let count = turn.cost.phases.decode.per_token.len() + 1;
        let spent = self.spent(&turn.cost, [turn.prompt_tokens, count], goes_on);
        self.opening = None;
        Ok((turn, spent))
    }

    /// The key `who` asks in this session.
    fn asked_by(&mut self, who: usize) {
        self.shared |= self.asker.replace(who).is_some_and(|before| before != who);
    }

    fn spent(&self, cost: &TurnCost, saw: [usize; 2], goes_on: bool) -> Spent {
        Spent::of_turn(cost, saw, goes_on, self.opening.as_ref(), self.shared)
    }

    /// What `error` means, if anything was `told` before it. A server that left while nobody asked is asked again.
    fn failure(&self, error: Error, told: bool) -> Failure {
        match self.chat.is_open() {
            true => Failure::Refused(error),
            false if self.fresh || told => Failure::Broken(error),
            false => Failure::Lost(error),
        }
    }
}
