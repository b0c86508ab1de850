//! Correlations made ahead of the data they will serve.
//!
//! In a two-phase session ([`Options::preprocess`](crate::Options)) every operation consists of a correlation and an
//! online step that sends masked words only. A [`CorrelationKind`] names a kind of correlation. A party's [`Stock`]
//! holds a queue of units for each kind, with as many units as the peer's, and hands out each unit once.
//!
//! ```text
//! take(kind, units):
//!     if the queue holds fewer: make the missing units now, booked as `offline`
//!     return the first `units` of the queue
//! ```
//!
//! So the stock decides *when* a correlation is made, never *whether*. Correlations wait in an encrypted temporary
//! file, except for a chunk at either end of each queue.
//!
//! A stock may outlive its session. [`Stock::drain`] hands out its words in the order that the [`Needs`] define, and
//! [`Stock::refill`] takes them back. Whoever keeps them in between must make sure that they come back only once: a
//! correlation that serves twice opens the difference of two secrets.
//!
//! The needs of a run are a list of independent demands, so several sessions may each make a [`Part`] of it
//! ([`Needs::part`]). [`Stock::add`] puts the parts together, in the same order at both parties.

mod division;
mod needs;
mod part;
mod uses;

use std::collections::BTreeMap;

use waggle_net::Role;
use zeroize::Zeroizing;

use crate::Error;
use crate::cached::{OperandMasks, PreparedMasks};
use crate::correlation::{CorrelationKind, Need, Pipeline};
use crate::cost::Cost;
use crate::matrix::FixedMatrix;
use crate::options::{HelperDeals, Options};
use crate::plans::Plans;
use crate::session::Session;
use crate::spill::{Queue, Spill, StockError};
pub use needs::{MAX_COTS_AHEAD, Needs};
pub use part::{MAX_PARTS, Part, PartError};
pub use uses::{Use, Uses};

/// One party's correlations.
#[derive(Debug, Default)]
pub struct Stock {
    pub(crate) queues: BTreeMap<CorrelationKind, Queue>,
    pub(crate) operands: PreparedMasks,
    pub(crate) spill: Spill,
}

impl Stock {
    /// Hands all words to `sink`, in pieces, in the order that `needs` defines. Each piece is zeroized and freed
    /// afterwards. Panics unless the stock was prepared for these needs and not used.
    ///
    /// # Errors
    /// Errors of `sink`, and [`StockError`] if the temporary file fails.
    pub fn drain<E: From<StockError>>(
        mut self,
        needs: &Needs,
        role: Role,
        mut sink: impl FnMut(&[u64]) -> Result<(), E>,
    ) -> Result<(), E> {
        for (kind, &units) in &needs.units {
            let queue = self.queues.remove(kind).unwrap_or_default();
            assert_eq!(queue.len(), units * kind.words(role), "the stock of {kind:?}");
            queue.drain(&mut self.spill, &mut sink)?;
        }
        for (id, events) in &needs.operands {
            let masks = self.operands.remove(*id);
            assert_eq!(masks.as_ref().map(OperandMasks::words), Some(events.words()), "the stock of {id}");
            if let Some(masks) = masks {
                masks.drain(&mut self.spill, &mut sink)?;
            }
        }
        Ok(())
    }

    /// A stock of the words that `source` fills in, in the order of [`Stock::drain`]. There are [`Needs::words`]
    /// words.
    ///
    /// # Errors
    /// Errors of `source`, and [`StockError`] if the temporary file fails.
    pub fn refill<E: From<StockError>>(
        needs: &Needs,
        role: Role,
        source: impl FnMut(&mut [u64]) -> Result<(), E>,
    ) -> Result<Self, E> {
        let mut stock = Stock::default();
        stock.add(needs, role, source)?;
        Ok(stock)
    }

    /// Adds the words of another part in the order of [`Stock::refill`], behind the words that are there. No cached
    /// operand may come twice, as none does among the parts of [`Needs::parts`]; otherwise this panics.
    ///
    /// # Errors
    /// Errors of `source`, and [`StockError`] if the temporary file fails. The stock must not be used then.
    pub fn add<E: From<StockError>>(
        &mut self,
        needs: &Needs,
        role: Role,
        mut source: impl FnMut(&mut [u64]) -> Result<(), E>,
    ) -> Result<(), E> {
        for (kind, &units) in &needs.units {
            let queue = self.queues.entry(kind.clone()).or_default();
            queue.fill(units * kind.words(role), &mut self.spill, &mut source)?;
        }
        for (id, events) in &needs.operands {
            let masks = OperandMasks::fill(events, &mut self.spill, &mut source)?;
            assert!(self.operands.insert(*id, masks).is_none(), "the masks of {id} come twice");
        }
        Ok(())
    }

    /// The part of `needs` that is not in this stock. OTs and operands are listed in full, whatever the stock holds:
    /// a pool of OTs is filled up to a total, and the masks of an operand fit the products of one run alone.
    pub fn missing(&self, needs: &Needs, role: Role) -> Needs {
        let units = needs.units.iter().filter_map(|(kind, &units)| {
            let held = self.queues.get(kind).map_or(0, |queue| queue.len() / kind.words(role));
            (units > held).then(|| (kind.clone(), units - held))
        });
        Needs { units: units.collect(), ..needs.clone() }
    }

    /// Forgets all cached operands, and all masks that no product has asked for. Other operands may then take the
    /// same names.
    pub fn forget_operands(&mut self) {
        self.operands = PreparedMasks::default();
    }

    /// Takes `need` out of the stock, after making the units that are missing. `matrix` is the server's matrix, if
    /// the kind has one.
    pub(crate) fn take(
        &mut self,
        session: &mut Session,
        need: &Need,
        matrix: Option<&FixedMatrix>,
    ) -> Result<Zeroizing<Vec<u64>>, Error> {
        let Need { kind, units } = need;
        let words = kind.words(session.role());
        let held = self.queues.get(kind).map_or(0, |queue| queue.len() / words);
        let mut alone = Pipeline { matrix, ..Pipeline::default() };
        for batch in kind.batches(units.saturating_sub(held), session.options()) {
            self.fill(session, kind, batch, &mut alone)?;
        }
        let Some(queue) = self.queues.get_mut(kind) else { return Ok(Zeroizing::default()) };
        let taken = queue.take(units * words, &mut self.spill)?;
        #[cfg(any(test, feature = "audit"))]
        let taken = session.audit.hand_out(format!("{kind:?}"), kind.words(session.role()), taken)?;
        Ok(taken)
    }

    /// Makes `batch` units of `kind`, and puts them at the end of the kind's queue.
    pub(crate) fn fill(
        &mut self,
        session: &mut Session,
        kind: &CorrelationKind,
        batch: usize,
        pipeline: &mut Pipeline<'_>,
    ) -> Result<(), Error> {
        // Putting units into the stock counts as a part of making them.
        session.offline(|s| {
            let words = Zeroizing::new(kind.make(s, batch, pipeline)?);
            debug_assert_eq!(words.len(), batch * kind.words(s.role()));
            Ok(self.queues.entry(kind.clone()).or_default().push(&words, &mut self.spill)?)
        })
    }
}

/// A stock without words, which only counts the units of each kind.
#[derive(Debug, Default)]
pub struct Levels {
    units: BTreeMap<CorrelationKind, usize>,
    /// The sizes of the masks of cached operands.
    pub operands: PreparedMasks,
}

impl Levels {
    /// A stock that holds everything in `needs`, for a session of `options`.
    pub fn of(needs: &Needs, options: &Options) -> Self {
        let mut operands = PreparedMasks::planned(&needs.operands);
        operands.by_pass = options.helper == HelperDeals::Passes;
        Levels { units: needs.units.clone(), operands }
    }

    /// Takes `need` out, and returns the cost of making the units that are missing.
    pub fn take(&mut self, plans: &mut Plans, need: &Need) -> Result<Cost, Error> {
        let Need { kind, units } = need;
        let mut missing = *units;
        if let Some(held) = self.units.get_mut(kind) {
            let taken = missing.min(*held);
            *held -= taken;
            missing -= taken;
        }
        kind.batched_cost(plans, missing)
    }
}
