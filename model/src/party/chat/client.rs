//! The party with the words.

use net::Channel;
use protocols::FixedWeight;

use super::super::opening::{complaining, receive_verdict};
use super::super::recorder::Booked;
use super::super::{Observer, Outcome, PublicModel, Request, Terms};
use super::command::Command;
use super::conversation::{Conversation, Setting, TurnCost};
use super::{ANSWER, COMMAND, Turn, slices};
use crate::report::Phases;
use crate::{Error, Lengths, Model, Next};

/// A session of several turns, on the client's side.
pub struct ChatSession {
    talk: Conversation,
    public: PublicModel,
    terms: Terms,
    model: Model<FixedWeight>,
    bound: Request,
    /// The last token of the last answer, which was not read.
    last: Option<u32>,
    /// Slices of preparation that are there.
    ready: usize,
    /// Whether the parties are in step.
    open: bool,
    opening: Phases,
}

impl ChatSession {
    /// The session on `channel`, after the request `bound` was accepted.
    pub(in super::super) fn begin(
        channel: Channel,
        public: PublicModel,
        terms: Terms,
        model: Model<FixedWeight>,
        bound: Request,
        observer: &mut dyn Observer,
    ) -> Result<Self, Error> {
        observer.setup();
        let setting = Setting { public: &public, model: &model, terms: &terms, bound: &bound };
        let mut talk = Conversation::begin(channel, &setting)?;
        let opening = talk.settle(0);
        Ok(ChatSession { talk, public, terms, model, bound, last: None, ready: 0, open: true, opening })
    }

    /// What the server says about its model.
    pub fn model(&self) -> &PublicModel {
        &self.public
    }

    /// What it took to open the session.
    pub fn opening(&self) -> &Phases {
        &self.opening
    }

    /// Whether the session goes on. It does after a refused turn, and not after a failure.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// The last token of the last answer. It is not read yet: the next turn begins with it.
    pub fn last(&self) -> Option<u32> {
        self.last
    }

    /// Positions that the conversation has taken, and those that there are.
    pub fn positions(&self) -> (usize, usize) {
        self.talk.positions(&self.public.spec)
    }

    /// Reads the new tokens `ids` and generates up to `tokens` tokens after them, which `next` picks. The server
    /// learns both numbers, and how many tokens there are in the end.
    ///
    /// # Errors
    /// [`Error::Full`] if the model has too few positions left, [`Error::Limit`] beyond the longest turn,
    /// [`Error::Nothing`], [`Error::Planning`] and [`Error::Refused`]: then nothing has happened, and the session
    /// goes on. After all others it is over.
    pub fn turn(
        &mut self,
        ids: &[u32],
        tokens: usize,
        next: Next,
        observer: &mut dyn Observer,
    ) -> Result<Turn, Error> {
        self.public.spec.check_ids(ids)?;
        let ids: Vec<u32> = self.last.into_iter().chain(ids.iter().copied()).collect();
        let lengths = Lengths { prompt: ids.len(), tokens };
        self.talk.check(&self.setting(), lengths)?;
        let before = self.talk.settle(0);
        self.command(Command::Turn(lengths))?;
        let ChatSession { talk, public, model, terms, bound, .. } = self;
        let setting = Setting { public, model, terms, bound };
        let done = talk.turn(&setting, lengths, Some(&ids), next, observer);
        let turn = self.stepped(done)?;
        (self.last, self.ready) = (turn.generation.tokens.last().copied(), 0);
        let phases = self.talk.settle(turn.generation.count.saturating_sub(1));
        Ok(Turn { cost: TurnCost { before, phases }, ..turn })
    }

    /// Makes the next slice of what the longest turn needs, in a session of two phases; returns how many of how many
    /// slices are there, and `None` if all are.
    ///
    /// # Errors
    /// As [`ChatSession::turn`].
    pub fn prepare(&mut self, observer: &mut dyn Observer) -> Result<Option<(usize, usize)>, Error> {
        let all = slices(self.bound.lengths);
        if !self.terms.protocol.preprocess || self.ready >= all {
            return Ok(None);
        }
        let count = self.ready + 1;
        self.talk.check_slices(&self.setting(), count)?;
        self.command(Command::Prepare(count))?;
        let ChatSession { talk, public, model, terms, bound, .. } = self;
        let made = talk.prepare(&Setting { public, model, terms, bound }, count, observer);
        self.stepped(made)?;
        self.ready = count;
        Ok(Some((count, all)))
    }

    /// Shows the server that this party is there, and that the server is.
    ///
    /// # Errors
    /// Those of the link.
    pub fn stay(&mut self) -> Result<(), Error> {
        self.command(Command::Stay)
    }

    /// Begins another conversation: both parties drop their caches.
    ///
    /// # Errors
    /// Those of the link.
    pub fn reset(&mut self) -> Result<(), Error> {
        self.command(Command::Reset)?;
        let ChatSession { talk, public, model, terms, bound, .. } = self;
        talk.reset(&Setting { public, model, terms, bound });
        (self.last, self.ready) = (None, 0);
        Ok(())
    }

    /// Ends the session; returns what it took in all.
    ///
    /// # Errors
    /// Those of the link.
    pub fn finish(mut self) -> Result<Outcome, Error> {
        self.command(Command::End)?;
        self.talk.engine.confirm_transcript()?;
        let ChatSession { talk, public, model, terms, bound, .. } = self;
        Ok(talk.finish(&Setting { public: &public, model: &model, terms: &terms, bound: &bound }))
    }

    fn setting(&self) -> Setting<'_> {
        let ChatSession { public, model, terms, bound, .. } = self;
        Setting { public, model, terms, bound }
    }

    /// Sends `command` and hears what the server says to it.
    fn command(&mut self, command: Command) -> Result<(), Error> {
        if !self.open {
            return Err(Error::ChatOver);
        }
        let channel = self.talk.engine.channel();
        let sent = channel.send(COMMAND, &command.encode()).map_err(Error::from);
        let answered = sent.and_then(|()| receive_verdict(channel, ANSWER));
        let answered = complaining(channel, answered);
        self.open = matches!(answered, Ok(()) | Err(Error::Refused { .. }));
        answered
    }

    /// Remembers a failure, after which the parties are out of step.
    fn stepped<T>(&mut self, done: Result<T, Error>) -> Result<T, Error> {
        self.open = done.is_ok();
        done
    }
}
