//! A party's end of its link to the helper.

use waggle_net::{Channel, Phase, Role};
use zeroize::Zeroizing;

use super::dealing::{Dealing, GIVEN, Seat, Stream};
use super::demand::{Demand, OperandName, Operands, Rows};
use super::helper::{SEED_BYTES, SEEDS};
use crate::halves::HalvesSeed;
use crate::{Error, HelperDeals};

/// A party's link to the helper of its session. On this channel the party has the role of the client, even if it is
/// the server.
pub struct HelperLink {
    channel: Channel,
    receiver: Receiver,
    halves: Option<HalvesSeed>,
}

impl HelperLink {
    /// The link of the party `role` to a helper behind `channel`. The helper has been told what to deal, and deals it
    /// as `deals` says. `halves` is the client's seed of halves, if the helper deals products with weights.
    ///
    /// # Errors
    /// Errors of the channel.
    pub fn new(
        role: Role,
        mut channel: Channel,
        deals: HelperDeals,
        halves: Option<HalvesSeed>,
    ) -> Result<Self, Error> {
        channel.ledger_mut().set_phase(Phase::Setup);
        let message = Zeroizing::new(channel.recv(SEEDS, SEED_BYTES).map_err(of_helper)?);
        let mut seeds = Zeroizing::new([0; SEED_BYTES]);
        seeds.copy_from_slice(&message);
        Ok(HelperLink { channel, receiver: Receiver::new(role, &seeds, deals), halves })
    }

    /// Takes what the helper deals for `demand`, the next of the demands that the helper was told. `keep` is called
    /// with the words of each batch; a rehearsal has no words and does not call it. Booked as `phase`.
    pub(crate) fn take(
        &mut self,
        demand: &Demand,
        phase: Phase,
        keep: impl FnMut(Zeroizing<Vec<u64>>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let HelperLink { channel, receiver, halves } = self;
        channel.ledger_mut().set_phase(phase);
        channel.ledger_mut().enter(demand.scope());
        let rehearses = channel.rehearses();
        let mut next = |bytes| channel.recv(GIVEN, bytes).map_err(of_helper);
        if rehearses {
            let given = demand.bytes()?.into_iter().map(|bytes| bytes[receiver.role as usize]);
            given.filter(|bytes| *bytes > 0).try_for_each(|bytes| next(bytes).map(drop))?;
        } else {
            receiver.take(demand, halves.as_ref(), next, keep)?;
        }
        channel.ledger_mut().leave();
        Ok(())
    }

    /// On a [rehearsal](Channel::rehearsal), receives the messages for `demands`, which carry no words.
    ///
    /// # Errors
    /// None for demands that were checked.
    pub fn rehearse(&mut self, demands: &[Demand], phase: Phase) -> Result<(), Error> {
        demands.iter().try_for_each(|demand| self.take(demand, phase, |_| Ok(())))
    }

    /// The number of tokens of the operand `name` whose masks were dealt.
    pub(crate) fn tokens(&self, name: &OperandName) -> usize {
        self.receiver.operands.rows.get(name).map_or(0, |rows| rows.tokens)
    }

    /// The channel to the helper, with its ledger.
    pub fn channel(&mut self) -> &mut Channel {
        &mut self.channel
    }
}

/// A failure of the link, as an error that names the helper.
fn of_helper(error: waggle_net::NetError) -> Error {
    Error::Helper(Box::new(error.into()))
}

/// The streams of words that a party draws, and the masks of operands that it was dealt.
pub(super) struct Receiver {
    role: Role,
    own: Stream,
    public: Stream,
    operands: Operands,
}

impl Receiver {
    /// The receiver of `role`, with the seeds that the helper sent.
    pub(super) fn new(role: Role, seeds: &[u8; SEED_BYTES], deals: HelperDeals) -> Self {
        let (own, public) = seeds.split_at(SEED_BYTES / 2);
        let operands = Operands { kept: deals == HelperDeals::Passes, ..Operands::default() };
        Receiver { role, own: Stream::new(own), public: Stream::new(public), operands }
    }

    /// Takes what the helper deals for `demand`. `next` receives a message of the length that it is passed. `keep` is
    /// called with the words of each batch. The words of a batch of masks of an operand begin with the masks of its
    /// tokens.
    ///
    /// # Errors
    /// Errors of `next` and `keep`; malformed words.
    pub(super) fn take(
        &mut self,
        demand: &Demand,
        halves: Option<&HalvesSeed>,
        mut next: impl FnMut(usize) -> Result<Vec<u8>, Error>,
        mut keep: impl FnMut(Zeroizing<Vec<u64>>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut rows = self.operands.of(demand)?;
        for (batch, bytes) in demand.batches(rows.tokens).into_iter().zip(demand.bytes()?) {
            let message = Zeroizing::new(match bytes[self.role as usize] {
                0 => Vec::new(),
                bytes => next(bytes)?,
            });
            let (own, public) = (&mut self.own, &mut self.public);
            let seat = Seat::Party { role: self.role, own, public, message: &message, halves };
            let words = batch.deal(&mut Dealing { seat, bytes: [0; 2] }, &mut rows)?;
            let [client, server] = words.map(Zeroizing::new);
            keep(if self.role == Role::Client { client } else { server })?;
        }
        // The words are in the stock, so only the number of tokens is kept.
        self.operands.keep(demand, Rows { words: Default::default(), ..rows })
    }
}
