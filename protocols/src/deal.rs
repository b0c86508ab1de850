//! Correlations from a helper: a third machine that deals them and never sees a value.
//!
//! **Functionality.** As [`Correlation::make`](crate::correlation::Correlation::make); for products with weights by
//! their [`halves`](crate::halves). Each party gets a seed, and from it most of its words. The helper, who has both
//! seeds, computes what is left and sends it to the party that lacks it: of a product, for instance, one word to the
//! server.
//!
//! **One text for three.** The helper and both parties run the same `deal` of a kind. A `deal` draws words, gives
//! words, and puts them together. Words that a machine does not know are empty vectors there. A fourth way to run a
//! `deal` has no words at all and counts the bytes.
//!
//! **When.** All before the session's first pass, or pass by pass ([`HelperDeals::Passes`](crate::HelperDeals)). Then
//! the masks of a cached operand go on where those of the pass before ended.
//!
//! **What each party sees.** Its own seed, and words that are masked by draws of the other or are uniform by
//! themselves. **What the helper sees.** Kinds and numbers, nothing that depends on data. With either party it could
//! compute all that the other hides: the three must not collude in pairs.

use std::collections::{BTreeSet, HashMap};

use rand::Rng;
use serde::{Deserialize, Serialize};
use waggle_engine::{OperandId, OperandKind};
use waggle_net::{Channel, Phase, Role};
use zeroize::Zeroizing;

use crate::Error;
use crate::HelperDeals;
use crate::cached::{self, Event, Events, OPERANDS, OperandForm};
pub use crate::dealing::Dealing;
use crate::dealing::{GIVEN, Seat, Stream};
use crate::halves::{Halves, HalvesSeed};
use crate::masked_row::MaskedRow;
pub use crate::ops::dealt::Dealt;

/// Bytes of a party's seeds: its own, and the public one that both have.
pub const SEED_BYTES: usize = 64;

/// The most words of either party that a helper deals at once.
const MOST_WORDS: u64 = 1 << 26;

/// The most batches of a demand.
const MOST_BATCHES: usize = 1 << 20;

/// The most words of masks of operands that a helper keeps from pass to pass, of both parties.
const MOST_KEPT: u64 = 1 << 30;

/// Step of the seeds that a helper sends first.
const SEEDS: &str = "helper/seeds";
/// What a helper is asked for: kinds and numbers, in the order in which it deals.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Demand {
    /// Units of a kind.
    Units {
        /// Which.
        kind: Dealt,
        /// How many.
        units: usize,
        /// How many at once.
        batch: usize,
    },
    /// Masks of the products with a cached operand.
    Operand {
        /// Which.
        name: OperandName,
        /// Its products.
        events: Events,
        /// Words of those that are dealt at once.
        batch: u64,
    },
}

/// An [`OperandId`] on the wire: layer, contents, generation, part.
pub type OperandName = (usize, OperandKind, usize, usize);

/// The name of `id` in demands.
pub(crate) fn operand_name(id: OperandId) -> OperandName {
    (id.layer, id.kind, id.generation, id.part)
}

/// A demand that no helper serves.
#[derive(Debug, thiserror::Error)]
#[error("a demand for correlations out of range: {demand}")]
pub struct DemandError {
    /// The demand.
    pub demand: String,
}

impl DemandError {
    fn of(demand: &Demand) -> Self {
        DemandError { demand: format!("{demand:?}").chars().take(200).collect() }
    }
}

/// One batch of a demand.
enum Batch<'d> {
    Units(&'d Dealt, usize),
    /// Products of an operand, and how many tokens came before.
    Products(Events, usize),
}

/// The masks of an operand's tokens so far, which later batches need.
#[derive(Default)]
struct Rows {
    tokens: usize,
    form: Option<OperandForm>,
    /// The client's and the server's, at the helper.
    words: [Vec<u64>; 2],
}

/// The masks of the tokens of all operands.
#[derive(Default)]
struct Operands {
    rows: HashMap<OperandName, Rows>,
    /// Whether the masks are kept for later demands.
    kept: bool,
}

impl Operands {
    /// The masks of the operand of `demand`, whose form must be what it was.
    fn of(&mut self, demand: &Demand) -> Result<Rows, Error> {
        let Demand::Operand { name, events, .. } = demand else { return Ok(Rows::default()) };
        let rows = self.rows.remove(name).unwrap_or_default();
        match rows.form {
            Some(form) if form != events.form => Err(DemandError::of(demand).into()),
            _ => Ok(Rows { form: Some(events.form), ..rows }),
        }
    }

    /// Keeps `rows` as the masks of the operand of `demand`, if there is room for all operands.
    fn keep(&mut self, demand: &Demand, rows: Rows) -> Result<(), Error> {
        if let (Demand::Operand { name, .. }, true) = (demand, self.kept) {
            self.rows.insert(*name, rows);
        }
        let words = self.rows.values().flat_map(|rows| &rows.words).map(|words| words.len() as u64).sum::<u64>();
        if words > MOST_KEPT { Err(DemandError::of(demand).into()) } else { Ok(()) }
    }
}

impl Demand {
    /// Refuses what would take more memory than a helper gives, and shapes that there are not.
    ///
    /// # Errors
    /// [`DemandError`].
    pub fn check(&self) -> Result<(), DemandError> {
        let fits = match self {
            Demand::Units { kind, units, batch } => {
                let words =
                    kind.correlation().dealt_words().and_then(|words| words.checked_mul((*batch).min(*units) as u64));
                let few = *batch > 0 && units.div_ceil(*batch) <= MOST_BATCHES;
                few && words.is_some_and(|words| words <= MOST_WORDS)
            }
            Demand::Operand {
                events: Events { form: OperandForm { batch, d, width, .. }, list },
                batch: most,
                ..
            } => {
                let words = |event: &Event| {
                    let row = (*batch as u64).checked_mul(*d as u64).filter(|row| *row > 0)?;
                    let side = (event.m as u64).checked_mul(event.tokens as u64)?.checked_mul(*batch as u64)?;
                    let rows = row.checked_mul(event.tokens as u64)?;
                    row.checked_mul(event.m as u64)?.checked_add(side)?.checked_add(rows)
                };
                let grows = list.is_sorted_by_key(|event| event.tokens);
                let all = list.iter().try_fold(0u64, |all, event| all.checked_add(words(event)?));
                (1..=64).contains(width)
                    && grows
                    && *most <= MOST_WORDS
                    && all.is_some_and(|all| all <= 256 * MOST_WORDS)
                    && list.iter().all(|event| words(event).is_some_and(|words| words <= MOST_WORDS))
            }
        };
        if fits { Ok(()) } else { Err(DemandError::of(self)) }
    }

    /// Scope in the ledger: that of the kind where two parties make it.
    fn scope(&self) -> &'static str {
        match self {
            Demand::Operand { .. } => OPERANDS,
            Demand::Units { kind, .. } => kind.correlation().scope(),
        }
    }

    /// The batches, where so many tokens of an operand have masks already.
    fn batches(&self, tokens: usize) -> Vec<Batch<'_>> {
        match self {
            Demand::Units { kind, units, batch } => {
                (0..*units).step_by(*batch).map(|at| Batch::Units(kind, (*batch).min(units - at))).collect()
            }
            Demand::Operand { events, batch, .. } => {
                let mut before = tokens;
                let products = |events: Events| {
                    let first = before;
                    before = before.max(events.tokens());
                    Batch::Products(events, first)
                };
                events.batches(*batch).into_iter().map(products).collect()
            }
        }
    }

    /// Bytes of the words that the helper gives to the client and to the server, batch by batch.
    ///
    /// # Errors
    /// None for a demand that was checked.
    pub fn bytes(&self) -> Result<Vec<[usize; 2]>, Error> {
        let mut sizes: Vec<(usize, [usize; 2])> = Vec::new();
        let count = |batch: Batch<'_>| {
            if let Batch::Units(_, units) = batch
                && let Some((_, bytes)) = sizes.iter().find(|(same, _)| *same == units)
            {
                return Ok(*bytes);
            }
            let bytes = batch.counted()?;
            if let Batch::Units(_, units) = batch {
                sizes.push((units, bytes));
            }
            Ok(bytes)
        };
        self.batches(0).into_iter().map(count).collect()
    }
}

impl Batch<'_> {
    fn deal(&self, d: &mut Dealing<'_>, rows: &mut Rows) -> Result<[Vec<u64>; 2], Error> {
        match self {
            Batch::Units(kind, units) => kind.correlation().deal(d, *units),
            Batch::Products(events, before) => {
                rows.tokens = events.tokens().max(*before);
                cached::deal(d, events, *before, &mut rows.words)
            }
        }
    }

    fn counted(&self) -> Result<[usize; 2], Error> {
        let mut dealing = Dealing { seat: Seat::Counter, bytes: [0; 2] };
        self.deal(&mut dealing, &mut Rows::default())?;
        Ok(dealing.bytes)
    }
}

/// The products with weights in `demands`, each once.
pub fn rows(demands: &[Demand]) -> Vec<&MaskedRow> {
    let rows = demands.iter().filter_map(|demand| match demand {
        Demand::Units { kind: Dealt::Row(row), .. } => Some(row),
        Demand::Units { .. } | Demand::Operand { .. } => None,
    });
    rows.collect::<BTreeSet<_>>().into_iter().collect()
}

/// A party's link to the helper of its session. On this channel the party is the client, whichever it is of the two.
pub struct Helper {
    channel: Channel,
    receiver: Receiver,
    halves: Option<HalvesSeed>,
}

impl Helper {
    /// The helper of `role` behind `channel`, who has been told what to deal, and does so as `deals` says. A client
    /// whose helper deals products with weights has the seed of its `halves`.
    ///
    /// # Errors
    /// Those of the channel.
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
        Ok(Helper { channel, receiver: Receiver::new(role, &seeds, deals), halves })
    }

    /// Takes `demand`, the next of those that it was told; `keep` gets the words of each batch, and nothing in a
    /// rehearsal. Booked as `phase`.
    pub(crate) fn take(
        &mut self,
        demand: &Demand,
        phase: Phase,
        keep: impl FnMut(Zeroizing<Vec<u64>>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Helper { channel, receiver, halves } = self;
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

    /// Receives what `demands` name on a [rehearsal](Channel::rehearsal), where nothing comes of it.
    ///
    /// # Errors
    /// None for demands that were checked.
    pub fn rehearse(&mut self, demands: &[Demand], phase: Phase) -> Result<(), Error> {
        demands.iter().try_for_each(|demand| self.take(demand, phase, |_| Ok(())))
    }

    /// How many tokens of the operand of `demand` have masks.
    pub(crate) fn tokens(&self, name: &OperandName) -> usize {
        self.receiver.operands.rows.get(name).map_or(0, |rows| rows.tokens)
    }

    /// The channel, with its account.
    pub fn channel(&mut self) -> &mut Channel {
        &mut self.channel
    }
}

/// An error that names the helper.
fn of_helper(error: waggle_net::NetError) -> Error {
    Error::Helper(Box::new(error.into()))
}

/// The helper's end of a session.
pub struct Dealer {
    own: [Stream; 2],
    public: Stream,
    seeds: Zeroizing<[[u8; SEED_BYTES]; 2]>,
    operands: Operands,
}

impl Dealer {
    /// Sends fresh seeds over the channels to the client and to the server. Booked as `setup`.
    ///
    /// # Errors
    /// Those of the channels.
    pub fn open(channels: &mut [Channel; 2], deals: HelperDeals, rng: &mut impl Rng) -> Result<Self, Error> {
        let dealer = Dealer::new(deals, rng);
        for (channel, role) in channels.iter_mut().zip([Role::Client, Role::Server]) {
            channel.ledger_mut().set_phase(Phase::Setup);
            channel.send(SEEDS, dealer.seeds(role))?;
            channel.flush(SEEDS)?;
        }
        Ok(dealer)
    }

    /// Deals `demands`, which were checked, over the same channels: to each a message of every batch in which it is
    /// given words. Booked as `phase`, under what is dealt. `halves` has those of the weights in `demands`
    /// ([`rows`]).
    ///
    /// # Errors
    /// Those of the channels, [`Error::NoHalf`], and [`DemandError`] for an operand whose form changes.
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

    /// A dealer with seeds from `rng`.
    fn new(deals: HelperDeals, rng: &mut impl Rng) -> Self {
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
        Dealer { own, public: Stream::new(&public), seeds, operands }
    }

    /// What `role` draws from.
    fn seeds(&self, role: Role) -> &[u8; SEED_BYTES] {
        &self.seeds[role as usize]
    }

    /// Deals `demand`, which was checked. `send` gets the client's and the server's part of each batch.
    ///
    /// # Errors
    /// Those of `send`.
    fn deal<E: From<Error>>(
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

/// What a party draws from.
struct Receiver {
    role: Role,
    own: Stream,
    public: Stream,
    operands: Operands,
}

impl Receiver {
    /// The end of `role`, with the seeds that the helper sent.
    fn new(role: Role, seeds: &[u8; SEED_BYTES], deals: HelperDeals) -> Self {
        let (own, public) = seeds.split_at(SEED_BYTES / 2);
        let operands = Operands { kept: deals == HelperDeals::Passes, ..Operands::default() };
        Receiver { role, own: Stream::new(own), public: Stream::new(public), operands }
    }

    /// Takes `demand` in. `next` receives a message of so many bytes; `keep` gets the words of each batch, for masks
    /// of operands those of the tokens first.
    ///
    /// # Errors
    /// Those of `next` and `keep`, and malformed words.
    fn take(
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
        // The stock has the words.
        self.operands.keep(demand, Rows { words: Default::default(), ..rows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::carry::Carry;
    use crate::ops::fss::threshold::Comparison;
    use crate::ops::matmul::Triple;
    use crate::ops::mul::RowProduct;
    use crate::ops::mux_columns::Selection;
    use crate::ops::sum_squares::Squares;
    use crate::ops::truncate::Wrap;
    use crate::words::mask;

    /// The words of both parties for `demand`, each batch of which `spoil` may change on its way.
    fn dealt(demand: &Demand, spoil: impl Fn(&mut [Vec<u8>; 2])) -> [Vec<u64>; 2] {
        let mut dealer = Dealer::new(HelperDeals::Words, &mut rand::rng());
        let mut receivers =
            [Role::Client, Role::Server].map(|role| Receiver::new(role, dealer.seeds(role), HelperDeals::Words));
        let mut messages: [Vec<Vec<u8>>; 2] = Default::default();
        dealer
            .deal(demand, &Halves::default(), |mut batch| {
                spoil(&mut batch);
                messages.iter_mut().zip(batch).for_each(|(all, message)| all.push(message));
                Ok::<_, Error>(())
            })
            .unwrap();
        let mut words: [Vec<u64>; 2] = Default::default();
        for ((receiver, messages), words) in receivers.iter_mut().zip(messages).zip(&mut words) {
            let mut messages = messages.into_iter().filter(|message| !message.is_empty());
            let next = |bytes| {
                let message = messages.next().unwrap();
                assert_eq!(message.len(), bytes);
                Ok(message)
            };
            let keep = |batch: Zeroizing<Vec<u64>>| {
                words.extend_from_slice(&batch);
                Ok(())
            };
            receiver.take(demand, None, next, keep).unwrap();
        }
        words
    }

    #[test]
    fn products_are_right_in_uneven_batches_and_a_changed_bit_shows() {
        let (units, width) = (103, 37);
        let demand = Demand::Units { kind: Dealt::RowProduct(RowProduct { n: 1, width }), units, batch: 40 };
        let wrong = |spoil: fn(&mut [Vec<u8>; 2])| {
            let [client, server] = dealt(&demand, spoil);
            let units = client.as_chunks::<3>().0.iter().zip(server.as_chunks::<3>().0);
            let sum = |a: u64, b: u64| a.wrapping_add(b);
            let right = |(c, s): (&[u64; 3], &[u64; 3])| {
                let [a, b, ab] = [0, 1, 2].map(|i| sum(c[i], s[i]));
                a.wrapping_mul(b).wrapping_sub(ab) & mask(width) == 0
            };
            assert_eq!(client.len(), 3 * 103);
            units.filter(|unit| !right(*unit)).count()
        };
        assert_eq!(wrong(|_| ()), 0);
        assert_eq!(wrong(|[_, server]| server[0] ^= 1), 3, "one in every batch");
    }

    #[test]
    fn a_session_has_seeds_of_its_own() {
        let demand = Demand::Units { kind: Dealt::Wrap(Wrap { bits: 40 }), units: 50, batch: 50 };
        let [a, b] = [(); 2].map(|()| dealt(&demand, |_| ()));
        assert_ne!(a[0], b[0]);
        assert_ne!(a[1], b[1]);
        assert_ne!(a[0], a[1]);
    }

    #[test]
    fn demands_out_of_range_are_refused() {
        let many = |kind, units, batch| Demand::Units { kind, units, batch };
        let units = |kind, batch| many(kind, 5000, batch);
        let batched = |list: &[[usize; 2]], batch| {
            let form = OperandForm { batch: 1, d: 8, axis: waggle_engine::Axis::Rows, width: 40 };
            let list = list.iter().map(|&[m, tokens]| Event { m, tokens }).collect();
            let name = (0, waggle_engine::OperandKind::Keys, 0, 0);
            Demand::Operand { name, events: Events { form, list }, batch }
        };
        let operand = |list: &[[usize; 2]]| batched(list, 1);
        assert!(units(Dealt::Wrap(Wrap { bits: 63 }), 1000).check().is_ok());
        assert!(operand(&[[1, 2], [1, 3]]).check().is_ok());
        for bad in [
            units(Dealt::Wrap(Wrap { bits: 64 }), 10),
            units(Dealt::Wrap(Wrap { bits: 5 }), 0),
            many(Dealt::Wrap(Wrap { bits: 5 }), usize::MAX, 1),
            many(Dealt::Wrap(Wrap { bits: 5 }), usize::MAX, usize::MAX),
            units(Dealt::Squares(Squares { n: 0, width: 8 }), 1),
            units(Dealt::Comparison(Comparison { width: 30 }), 1),
            units(Dealt::Carry(Carry { bits: 64 }), 1),
            units(Dealt::Triple(Triple { batch: usize::MAX, m: 2, k: 2, n: 2, width: 8 }), 1),
            units(Dealt::Squares(Squares { n: 4, width: 65 }), 1),
            units(Dealt::Selection(Selection { widths: vec![0], words: 1 }), 1),
            operand(&[[1, 3], [1, 2]]),
            operand(&[[1, usize::MAX]]),
            batched(&[[1, 2]], u64::MAX),
        ] {
            let error = bad.check().expect_err("out of range");
            assert!(error.demand.len() <= 200, "{error}");
        }
    }
}
