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
    /// The conversation in the cache, if it consists of messages: the index of the key that sent them, and the
    /// messages.
    said: Option<(usize, Vec<Words>)>,
    /// The index of the key whose request came last. `shared` says whether different keys have used this session.
    asker: Option<usize>,
    shared: bool,
    /// The cost of opening the session; `None` once an answer has included it.
    pub(super) opening: Option<Phases>,
    /// The longest turn and answer for which the session is open.
    longest: Lengths,
    /// Whether the beginning of conversations is public.
    pub(super) head: bool,
    /// Whether the session was opened for the request that it answers now.
    fresh: bool,
    used: Instant,
}

/// What ends the wait between two answers.
pub(super) enum Found<T> {
    Job(T),
    /// The channel of requests is closed.
    Over,
    /// No request came for a while.
    Idle,
}

impl Kept {
    pub(super) fn new(chat: Chat, longest: Lengths, head: bool, fresh: bool) -> Self {
        let opening = Some(chat.opening().clone());
        Kept { chat, said: None, asker: None, shared: false, opening, longest, head, fresh, used: Instant::now() }
    }

    /// Whether the session is open, with room for a turn and an answer of these lengths.
    pub(super) fn takes(&self, Lengths { prompt, tokens }: Lengths) -> bool {
        prompt <= self.longest.prompt && tokens <= self.longest.tokens && self.chat.is_open()
    }

    /// This session for its next request, for which it was not opened.
    pub(super) fn again(self) -> Self {
        Kept { fresh: false, ..self }
    }

    /// Makes correlations until a job comes, or until none has come for `idle`.
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

    /// Generates a text after `ids` for the key `who`, in a conversation of its own. `pass` hears the text.
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

    /// Generates an answer of up to `tokens` tokens after `messages` for the key `who`. The first `public` of them
    /// stand before every conversation of this session. Returns the turn and its cost. If the turn is too long for
    /// this session, `longest` is set to the turn's length, so that a longer session can be opened.
    pub(super) fn turn(
        &mut self,
        who: usize,
        (messages, public): (&[Words], usize),
        tokens: usize,
        sampler: &mut Sampler,
        growing: &mut Growing,
        longest: &mut usize,
    ) -> Result<(TurnReport, Spent), Failure> {
        self.asked_by(who);
        // Only the same key continues a conversation. Otherwise a guess of another key's words could be confirmed.
        let said = self.said.as_ref().filter(|(key, said)| *key == who && messages.starts_with(said));
        let known = said.map_or(0, |(_, said)| said.len());
        let goes_on = (1..messages.len()).contains(&known);
        let new = if goes_on { &messages[known..] } else { &messages[public..] };
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
                // The conversation is kept, so that the same request is refused again. If all of it were read anew,
                // its length would tell the answers' lengths.
                Refused::Rereads => Failure::Refused(error),
                _ => {
                    self.said = None;
                    Failure::Refused(error)
                }
            },
            // If a text could not be shown, its session cannot be continued.
            _ if self.chat.is_open() => Failure::Broken(error),
            _ => self.failure(error, growing.text().len() > told),
        })?;
        let answer = ("assistant", growing.text().to_owned());
        // The cache may hold more than the program got: text after a stop, or characters that are not shown.
        let whole = turn.text == answer.1;
        self.said = whole.then(|| (who, messages.iter().cloned().chain([answer]).collect()));
        let count = turn.cost.phases.decode.per_token.len() + 1;
        let spent = self.spent(&turn.cost, [turn.prompt_tokens, count], goes_on);
        self.opening = None;
        Ok((turn, spent))
    }

    /// Notes that the key `who` asks in this session.
    fn asked_by(&mut self, who: usize) {
        self.shared |= self.asker.replace(who).is_some_and(|before| before != who);
    }

    fn spent(&self, cost: &TurnCost, saw: [usize; 2], goes_on: bool) -> Spent {
        Spent::of_turn(cost, saw, goes_on, self.opening.as_ref(), self.shared)
    }

    /// Sorts `error`, which ended a request, by what may be tried after it. `told` says whether a part of the answer
    /// was sent before. If the server has left a session that an earlier request opened, the request can be repeated
    /// in a new session.
    fn failure(&self, error: Error, told: bool) -> Failure {
        match self.chat.is_open() {
            true => Failure::Refused(error),
            false if self.fresh || told => Failure::Broken(error),
            false => Failure::Lost(error),
        }
    }
}
