//! The helper's end of a session.

use rand::Rng;
use waggle_net::{Channel, Phase, Role};
use zeroize::Zeroizing;

use super::dealing::{Dealing, GIVEN, Seat, Stream};
use super::demand::{Demand, Operands};
use crate::halves::Halves;
use crate::{Error, HelperDeals};

/// Bytes of the two seeds that a party gets: its own seed, and the public seed that both parties get.
pub const SEED_BYTES: usize = 64;

/// Step of the seeds that a helper sends first.
pub(super) const SEEDS: &str = "helper/seeds";

/// The helper's end of a session.
pub struct Helper {
    own: [Stream; 2],
    public: Stream,
    seeds: Zeroizing<[[u8; SEED_BYTES]; 2]>,
    operands: Operands,
}

impl Helper {
    /// Sends fresh seeds over the channels to the client and to the server. Booked as `setup`.
    ///
    /// # Errors
    /// Errors of the channels.
    pub fn open(channels: &mut [Channel; 2], deals: HelperDeals, rng: &mut impl Rng) -> Result<Self, Error> {
        let helper = Helper::new(deals, rng);
        for (channel, role) in channels.iter_mut().zip([Role::Client, Role::Server]) {
            channel.ledger_mut().set_phase(Phase::Setup);
            channel.send(SEEDS, helper.seeds(role))?;
            channel.flush(SEEDS)?;
        }
        Ok(helper)
    }

    /// Deals `demands`, which were checked, over the same channels. Each party gets a message for every batch in
    /// which it is given words. The messages are booked as `phase`, in the scope of the kind that is dealt. `halves`
    /// holds the halves of the weights in `demands` ([`rows`](super::rows)).
    ///
    /// # Errors
    /// Errors of the channels, [`Error::NoHalf`], and [`DemandError`](super::DemandError) for an operand if its form
    /// changes.
    pub fn serve(
        &mut self,
        channels: &mut [Channel; 2],
        phase: Phase,
        demands: &[Demand],
        halves: &Halves,
    ) -> Result<(), Error> {
        for channel in channels.iter_mut() {
            channel.ledger_mut().set_phase(phase);
        }
        for demand in demands {
            channels.iter_mut().for_each(|channel| channel.ledger_mut().enter(demand.scope()));
            self.deal(demand, halves, |messages| {
                for (channel, message) in channels.iter_mut().zip(messages).filter(|(_, words)| !words.is_empty()) {
                    channel.send_owned(GIVEN, message)?;
                    channel.flush(GIVEN)?;
                }
                Ok::<_, Error>(())
            })?;
            channels.iter_mut().for_each(|channel| channel.ledger_mut().leave());
        }
        Ok(())
    }

    /// A helper with seeds from `rng`.
    pub(super) fn new(deals: HelperDeals, rng: &mut impl Rng) -> Self {
        let mut seeds = Zeroizing::new([[0; SEED_BYTES]; 2]);
        let mut public = [0; SEED_BYTES / 2];
        rng.fill_bytes(&mut public);
        for seed in seeds.iter_mut() {
            let (own, shared) = seed.split_at_mut(SEED_BYTES / 2);
            rng.fill_bytes(own);
            shared.copy_from_slice(&public);
        }
        let own = [0, 1].map(|role: usize| Stream::new(&seeds[role][..SEED_BYTES / 2]));
        let operands = Operands { kept: deals == HelperDeals::Passes, ..Operands::default() };
        Helper { own, public: Stream::new(&public), seeds, operands }
    }

    /// The seeds that `role` gets: its own seed and the public one.
    pub(super) fn seeds(&self, role: Role) -> &[u8; SEED_BYTES] {
        &self.seeds[role as usize]
    }

    /// Deals `demand`, which was checked. `send` is called for each batch with the message to the client and the
    /// message to the server.
    ///
    /// # Errors
    /// Errors of `send`.
    pub(super) fn deal<E: From<Error>>(
        &mut self,
        demand: &Demand,
        halves: &Halves,
        mut send: impl FnMut([Vec<u8>; 2]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut rows = self.operands.of(demand)?;
        for batch in demand.batches(rows.tokens) {
            let (own, public) = (&mut self.own, &mut self.public);
            let seat = Seat::Helper { own, public, messages: Default::default(), halves };
            let mut dealing = Dealing { seat, bytes: [0; 2] };
            batch.deal(&mut dealing, &mut rows)?;
            if let Seat::Helper { messages, .. } = dealing.seat {
                send(messages)?;
            }
        }
        Ok(self.operands.keep(demand, rows)?)
    }
}
