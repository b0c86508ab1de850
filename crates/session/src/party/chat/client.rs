//! The client's side of a chat.

use std::time::{Duration, Instant};

use waggle_model::{Lengths, Model, Next, check_next};
use waggle_net::Channel;
use waggle_protocols::FixedWeight;
use waggle_report::Phases;

use super::super::opening::{complaining, receive_verdict};
use super::super::{Event, Outcome, PublicModel, Request, Terms, Watch, wire};
use super::conversation::{Conversation, Positions, TurnCost};
use super::messages::{Bounds, Command, MESSAGE_BYTES};
use super::{ANSWER, BOUNDS, COMMAND, SCOPE, Setting, Slices, Turn, slices};
use crate::Error;

/// A session of several turns, on the client's side.
pub struct ChatSession {
    talk: Conversation,
    subject: Subject,
    bounds: Bounds,
    /// When the session began.
    since: Instant,
    /// The last token of the last answer, which the model has not read.
    last: Option<u32>,
    /// The number of slices of the preparation that are made.
    ready: usize,
    /// Whether the parties are in step, so that the session goes on.
    open: bool,
    opening: Phases,
}

/// Owns what a [`Setting`] borrows.
struct Subject {
    public: PublicModel,
    terms: Terms,
    model: Model<FixedWeight>,
    bound: Request,
}

impl Subject {
    fn setting(&self) -> Setting<'_> {
        let Subject { public, terms, model, bound } = self;
        Setting { public, model, terms, bound }
    }
}

impl ChatSession {
    /// Begins the session on `channel`, after the server has accepted the request `bound`.
    pub(in super::super) fn begin(
        mut channel: Channel,
        public: PublicModel,
        terms: Terms,
        model: Model<FixedWeight>,
        bound: Request,
        since: Instant,
        watch: &mut Watch,
    ) -> Result<Self, Error> {
        channel.ledger_mut().enter(SCOPE);
        let bounds: Bounds = wire::receive(&mut channel, BOUNDS, MESSAGE_BYTES..=MESSAGE_BYTES)?;
        channel.ledger_mut().leave();
        watch(Event::Setup);
        let subject = Subject { public, terms, model, bound };
        let mut talk = Conversation::begin(channel, &subject.setting(), bounds.positions as usize)?;
        let opening = talk.settle(0);
        let (last, ready, open) = (None, 0, true);
        Ok(ChatSession { talk, subject, bounds, since, last, ready, open, opening })
    }

    /// The server's description of its model.
    pub fn model(&self) -> &PublicModel {
        &self.subject.public
    }

    /// The terms on which the parties agreed.
    pub fn terms(&self) -> &Terms {
        &self.subject.terms
    }

    /// The time that the server waits for a command of this party. [`stay`](ChatSession::stay) restarts this time.
    pub fn silence(&self) -> Duration {
        self.bounds.silence()
    }

    /// The cost of opening the session.
    pub fn opening(&self) -> &Phases {
        &self.opening
    }

    /// Whether the session goes on: true after a refused turn, false after a failure.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// The last token of the last answer. It is not read yet: the next turn begins with it.
    pub fn last(&self) -> Option<u32> {
        self.last
    }

    /// The positions of the conversation.
    pub fn positions(&self) -> Positions {
        self.talk.positions(&self.subject.public.spec)
    }

    /// Reads the new tokens `ids` and generates up to `tokens` tokens after them, which `next` picks. The server
    /// learns the number of new tokens, `tokens`, and how many tokens are generated in the end.
    ///
    /// # Errors
    /// [`Error::Full`] if the conversation has too few positions left, [`Error::Limit`] beyond the longest turn,
    /// [`waggle_model::Error::Nothing`], [`Error::Planning`], [`Error::SessionPlanning`] and [`Error::Refused`]: then
    /// nothing has happened, and the session goes on. After any other error the session is over.
    pub fn turn(&mut self, ids: &[u32], tokens: usize, next: Next, watch: &mut Watch) -> Result<Turn, Error> {
        self.subject.public.spec.check_ids(ids)?;
        check_next(&self.subject.public.spec, self.subject.terms.reveal, &next)?;
        let ids: Vec<u32> = self.last.into_iter().chain(ids.iter().copied()).collect();
        let lengths = Lengths { prompt: ids.len(), tokens };
        self.talk.check(&self.subject.setting(), lengths)?;
        let before = self.talk.settle(0);
        self.command(Command::Turn(lengths))?;
        let done = self.talk.turn(&self.subject.setting(), lengths, Some(&ids), next, watch);
        let turn = self.stepped(done)?;
        (self.last, self.ready) = (turn.generation.tokens.last().copied(), 0);
        let phases = self.talk.settle(turn.generation.count.saturating_sub(1));
        Ok(Turn { cost: TurnCost { before, phases }, ..turn })
    }

    /// Makes the next slice of what the longest turn needs, in a session of two phases; `None` if all slices are
    /// there.
    ///
    /// # Errors
    /// As [`ChatSession::turn`].
    pub fn prepare(&mut self, watch: &mut Watch) -> Result<Option<Slices>, Error> {
        let all = slices(self.subject.bound.lengths);
        if !self.subject.terms.protocol.preprocess || self.ready >= all {
            return Ok(None);
        }
        let count = self.ready + 1;
        self.talk.check_slices(&self.subject.setting(), count)?;
        self.command(Command::Prepare(count))?;
        let made = self.talk.prepare(&self.subject.setting(), count, watch);
        self.stepped(made)?;
        self.ready = count;
        Ok(Some(Slices { ready: count, of: all }))
    }

    /// Shows the server that this party is there, and this party that the server is.
    ///
    /// # Errors
    /// Errors of the link.
    pub fn stay(&mut self) -> Result<(), Error> {
        self.command(Command::Stay)
    }

    /// Begins another conversation: both parties drop their caches.
    ///
    /// # Errors
    /// Errors of the link.
    pub fn reset(&mut self) -> Result<(), Error> {
        self.command(Command::Reset)?;
        self.talk.reset(&self.subject.setting());
        (self.last, self.ready) = (None, 0);
        Ok(())
    }

    /// Ends the session and returns its outcome.
    ///
    /// # Errors
    /// Errors of the link.
    pub fn finish(mut self) -> Result<Outcome, Error> {
        self.command(Command::End)?;
        self.talk.engine.channel().confirm_transcript()?;
        Ok(self.talk.finish(&self.subject.setting()))
    }

    /// Sends `command` and receives the server's answer.
    fn command(&mut self, command: Command) -> Result<(), Error> {
        if !self.open {
            return Err(Error::ChatOver);
        }
        let channel = self.talk.engine.channel();
        let sent = wire::send(channel, COMMAND, &command, MESSAGE_BYTES).map_err(Error::from);
        let answered = sent.and_then(|()| receive_verdict(channel, ANSWER));
        let answered = complaining(channel, answered);
        if matches!(answered, Err(Error::Refused { .. })) { answered } else { self.stepped(answered) }
    }

    /// Ends the session if `done` is a failure, because the parties are then out of step. A failure of the link after
    /// the server's time limit becomes [`Error::TimeUp`].
    fn stepped<T>(&mut self, done: Result<T, Error>) -> Result<T, Error> {
        self.open = done.is_ok();
        done.map_err(|error| match self.bounds.session() {
            Some(limit)
                if error.net().is_some() && self.since.elapsed().as_secs_f64() > 0.95 * limit.as_secs_f64() =>
            {
                let (limit, took) = (limit.as_secs_f64(), self.since.elapsed().as_secs_f64());
                Error::TimeUp { source: Box::new(error), limit, took }
            }
            _ => error,
        })
    }
}

#[cfg(test)]
mod tests {
    use waggle_model::Sampler;
    use waggle_net::{Role, memory_pair};

    use super::*;
    use crate::party::{ClientOptions, ClientSession, Limits, ModelServer, Peer, nobody};

    /// The server enforces its bound on a client that ignores it.
    #[test]
    fn a_turn_beyond_the_servers_bound_is_refused_by_the_server() {
        let hosted = ModelServer::builder().load(waggle_model::bundled("shakespeare-gpt2").unwrap()).unwrap();
        let (client, server) = memory_pair(Duration::from_secs(60));
        let terms = Terms::default();
        std::thread::scope(|scope| {
            let (hosted, terms) = (&hosted, &terms);
            let served = scope.spawn(move || {
                let limits = Limits { conversation: Some(8), ..Limits::default() };
                hosted.serve(Channel::new(Role::Server, server), &Peer::default(), terms, &limits, &mut nobody)
            });
            let channel = Channel::new(Role::Client, client);
            let session = ClientSession::open(channel, &Peer::default(), terms, &ClientOptions::default()).unwrap();
            let mut chat = session.chat(Lengths { prompt: 9, tokens: 2 }, &mut nobody).unwrap();
            assert_eq!(
                (chat.positions(), chat.silence()),
                (Positions { used: 0, limit: 8 }, Duration::from_secs(60))
            );
            chat.talk.limit = usize::MAX;
            let refused = chat.turn(&[1; 8], 2, Next::Pick(&mut Sampler::greedy()), &mut nobody).unwrap_err();
            assert!(
                matches!(&refused, Error::Refused { reason } if reason.contains("0 of 8 positions")),
                "{refused}"
            );
            assert!(chat.is_open());
            chat.finish().unwrap();
            assert_eq!(served.join().unwrap().unwrap().generation.count, 0);
        });
    }
}
