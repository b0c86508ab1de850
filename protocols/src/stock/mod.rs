//! Correlations made ahead of the data they will serve.
//!
//! In a two-phase session ([`Options::preprocess`](crate::Options)) every operation is a correlation and an online step
//! that sends masked words only. A [`Demand`] names a kind of correlation; a party's [`Stock`] holds them in order, the
//! same number on both sides, and hands each out once. Where the stock is short the correlation is made on the spot by
//! the same protocol and booked as `offline` all the same, so that the stock decides *when* and never *whether*.
//!
//! [`Needs`] is what a whole run will take, in order: [`Planner`](crate::Planner) writes it down, and
//! [`prepare_all`] fills the stock by it in large batches, which is what makes the offline phase cheap.
//!
//! A stock waits in a temporary file, encrypted, but for a chunk of each queue at either end.
//!
//! A stock may outlive its session: [`Stock::drain`] hands out its words in the order that the needs define, and
//! [`Stock::refill`] takes them back. Whoever keeps them in between must see to it that they come back once: a
//! correlation that serves twice opens the difference of two secrets.

mod spill;

use std::collections::{BTreeMap, HashMap};

use he::MatmulShape;
use net::Role;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::cost::Cost;
use crate::ops::growing::Masks;
use crate::ops::masked::table::MaskedShape;
use crate::ops::masked::threshold;
use crate::ops::{beaver, growing, linear, masked};
use crate::session::{Plans, Session};
use crate::weight::FixedWeight;
use crate::{EMBED_WIDTH, Error, LINEAR_WIDTH};
pub use spill::StockError;
pub(crate) use spill::{Queue, Spill};

/// A kind of correlation; its unit is what one entry, row or product of the operation consumes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Demand {
    /// Shares of r W for the client's random r. Unit: a row. See [`linear`].
    Linear {
        /// Published name of the matrix.
        weight: String,
        /// Rows of the matrix.
        inputs: usize,
        /// Columns of the matrix.
        outputs: usize,
        /// Ring.
        width: u32,
    },
    /// Random a and the sum of its squares. Unit: a row of n. See [`beaver`].
    SumSquares {
        /// Entries of a row.
        n: usize,
        /// Ring.
        width: u32,
    },
    /// A random row a, a random word b and a b. Unit: a row of n. See [`beaver`].
    RowProduct {
        /// Entries of a row.
        n: usize,
        /// Ring.
        width: u32,
    },
    /// Random matrices A and B, and A B. Unit: a batch of products. See [`beaver`].
    Matmul {
        /// Independent products.
        batch: usize,
        /// Rows of A.
        m: usize,
        /// Columns of A.
        k: usize,
        /// Columns of B.
        n: usize,
        /// Ring.
        width: u32,
    },
    /// A random mask and a key that expands to its window's unit vector. Unit: an input. See [`masked`].
    Evaluation(MaskedShape),
    /// A random mask and a key that expands to its unit vector. Unit: an input. See [`threshold`].
    Comparison {
        /// Ring.
        width: u32,
    },
}

impl Demand {
    /// Rows of products with `weight`.
    pub(crate) fn linear(weight: &FixedWeight) -> Self {
        Demand::of_weight(weight, LINEAR_WIDTH)
    }

    /// Unit vectors times `table`.
    pub(crate) fn embed(table: &FixedWeight) -> Self {
        Demand::of_weight(table, EMBED_WIDTH)
    }

    fn of_weight(weight: &FixedWeight, width: u32) -> Self {
        let spec = &weight.spec;
        Demand::Linear { weight: spec.name.clone(), inputs: spec.inputs, outputs: spec.outputs, width }
    }

    /// Words per unit that `role` keeps.
    pub fn words(&self, role: Role) -> usize {
        match *self {
            Demand::Linear { inputs, outputs, .. } => outputs + if role == Role::Client { inputs } else { 0 },
            Demand::SumSquares { n, .. } => n + 1,
            Demand::RowProduct { n, .. } => 2 * n + 1,
            Demand::Matmul { batch, m, k, n, .. } => batch * (m * k + k * n + m * n),
            Demand::Evaluation(shape) => shape.correlation_words(),
            Demand::Comparison { width } => threshold::correlation_words(width),
        }
    }

    /// Most units made in one batch: a bound on memory.
    fn batch(&self) -> usize {
        match self {
            Demand::Linear { inputs, .. } => linear::batch(*inputs),
            Demand::SumSquares { n, .. } | Demand::RowProduct { n, .. } => ((1 << 16) / n).max(1),
            Demand::Matmul { .. } => 1,
            Demand::Evaluation(shape) => shape.batch(),
            Demand::Comparison { width } => threshold::batch(*width),
        }
    }

    /// What a batch of `units` sends; it is booked as `offline`.
    fn cost(&self, plans: &mut Plans, units: usize) -> Result<Cost, Error> {
        match *self {
            Demand::Linear { inputs, outputs, width, .. } => {
                linear::prepare_cost(plans, units, inputs, outputs, width)
            }
            Demand::SumSquares { n, width } => beaver::prepare_sum_squares_cost(plans, units, n, width),
            Demand::RowProduct { n, width } => beaver::prepare_rows_cost(plans, units, n, width),
            Demand::Matmul { batch, m, k, n, width } => {
                beaver::prepare_matmul_cost(plans, MatmulShape { batch, m, k, n }, width)
            }
            Demand::Evaluation(shape) => Ok(masked::prepare_cost(&shape, units)),
            Demand::Comparison { width } => Ok(threshold::prepare_cost(width, units)),
        }
    }

    /// Makes a batch of `units`; the server passes the values of the demand's weight.
    fn prepare(&self, s: &mut Session, units: usize, matrix: Option<&[i32]>) -> Result<Vec<u64>, Error> {
        match *self {
            Demand::Linear { ref weight, inputs, outputs, width } => {
                if matrix.is_none() && s.role() == Role::Server {
                    return Err(engine::Error::NoValues { tensor: weight.clone() }.into());
                }
                linear::prepare(s, units, inputs, outputs, width, matrix)
            }
            Demand::SumSquares { n, width } => beaver::prepare_sum_squares(s, units, n, width),
            Demand::RowProduct { n, width } => beaver::prepare_rows(s, units, n, width),
            Demand::Matmul { batch, m, k, n, width } => {
                beaver::prepare_matmul(s, MatmulShape { batch, m, k, n }, width)
            }
            Demand::Evaluation(shape) => masked::prepare(s, &shape, units),
            Demand::Comparison { width } => threshold::prepare(s, width, units),
        }
    }

    /// The batches that make `units`.
    fn batches(&self, units: usize) -> impl Iterator<Item = usize> + use<> {
        let batch = self.batch();
        (0..units).step_by(batch).map(move |start| batch.min(units - start))
    }
}

/// One party's correlations.
#[derive(Debug, Default)]
pub struct Stock {
    queues: HashMap<Demand, Queue>,
    /// Masks of growing operands by name, see [`growing`].
    pub(crate) operands: growing::Prepared,
    /// The file of all queues.
    pub(crate) spill: Spill,
}

impl Stock {
    /// Hands all words to `sink`, in pieces, in the order that `needs` defines; each piece is zeroized and freed after it.
    /// The stock must have been prepared by exactly these needs and not been used: anything else panics.
    ///
    /// # Errors
    /// Those of `sink`, and [`StockError`] if the temporary file fails.
    pub fn drain<E: From<StockError>>(
        mut self,
        needs: &Needs,
        role: Role,
        mut sink: impl FnMut(&[u64]) -> Result<(), E>,
    ) -> Result<(), E> {
        for (demand, &units) in &needs.units {
            let queue = self.queues.remove(demand).unwrap_or_default();
            assert_eq!(queue.len(), units * demand.words(role), "the stock of {demand:?}");
            queue.drain(&mut self.spill, &mut sink)?;
        }
        for (id, events) in &needs.operands {
            let masks = self.operands.remove(*id);
            assert_eq!(masks.as_ref().map(Masks::words), Some(events.words()), "the stock of {id}");
            if let Some(masks) = masks {
                masks.drain(&mut self.spill, &mut sink)?;
            }
        }
        Ok(())
    }

    /// The stock whose words `source` fills in, in the order of [`Stock::drain`]: [`Needs::words`] in all.
    ///
    /// # Errors
    /// Those of `source`, and [`StockError`] if the temporary file fails.
    pub fn refill<E: From<StockError>>(
        needs: &Needs,
        role: Role,
        mut source: impl FnMut(&mut [u64]) -> Result<(), E>,
    ) -> Result<Self, E> {
        let mut stock = Stock::default();
        for (demand, &units) in &needs.units {
            let queue = Queue::fill(units * demand.words(role), &mut stock.spill, &mut source)?;
            stock.queues.insert(demand.clone(), queue);
        }
        for (id, events) in &needs.operands {
            let masks = Masks::fill(events, &mut stock.spill, &mut source)?;
            stock.operands.insert(*id, masks);
        }
        Ok(stock)
    }

    /// Units of `demand` in stock, by the words that `role` keeps.
    fn units(&self, demand: &Demand, role: Role) -> usize {
        self.queues.get(demand).map_or(0, |queue| queue.len() / demand.words(role))
    }
}

/// Takes `units` of `demand` from the stock, after making on the spot what is missing. They are zeroized when dropped.
pub(crate) fn take(
    s: &mut Session,
    demand: &Demand,
    units: usize,
    matrix: Option<&[i32]>,
) -> Result<Zeroizing<Vec<u64>>, Error> {
    let role = s.role();
    let missing = units.saturating_sub(s.stock.units(demand, role));
    for batch in demand.batches(missing) {
        fill(s, demand, batch, matrix)?;
    }
    let Stock { queues, spill, .. } = &mut s.stock;
    match queues.get_mut(demand) {
        Some(queue) => Ok(queue.take(units * demand.words(role), spill)?),
        None => Ok(Zeroizing::default()),
    }
}

fn fill(s: &mut Session, demand: &Demand, batch: usize, matrix: Option<&[i32]>) -> Result<(), Error> {
    let words = Zeroizing::new(s.offline(|s| demand.prepare(s, batch, matrix))?);
    debug_assert_eq!(words.len(), batch * demand.words(s.role()));
    let Stock { queues, spill, .. } = &mut s.stock;
    Ok(queues.entry(demand.clone()).or_default().push(&words, spill)?)
}

/// What a run takes from the stock.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Needs {
    /// Units of every demand.
    pub units: BTreeMap<Demand, usize>,
    /// Products with every growing operand.
    pub operands: BTreeMap<growing::OperandId, growing::Events>,
    /// OTs of the online steps with the client, the server as OT sender.
    pub cots: [u64; 2],
}

/// OTs that are made ahead in each direction, at most: 16 bytes each on either side. What a run needs beyond that is made
/// when the pool runs dry.
pub const MAX_COTS_AHEAD: u64 = 1 << 23;

/// A piece of the offline phase.
enum Job<'a> {
    Batch(&'a Demand, usize),
    Operand(growing::OperandId, &'a growing::Events),
    Cots(Role, usize),
}

impl Needs {
    /// All but the OTs: what a stock holds.
    pub fn stored(&self) -> Needs {
        Needs { cots: [0; 2], ..self.clone() }
    }

    /// The OTs alone, which live in the pools of a session.
    pub fn ots(&self) -> Needs {
        Needs { cots: self.cots, ..Needs::default() }
    }

    /// Words that `role` stores.
    pub fn words(&self, role: Role) -> u64 {
        let of_demand = |(demand, &units): (&Demand, &usize)| (units * demand.words(role)) as u64;
        let units: u64 = self.units.iter().map(of_demand).sum();
        units + self.operands.values().map(growing::Events::words).sum::<u64>()
    }

    /// The pieces in the order in which both parties work them off.
    fn jobs(&self) -> Vec<Job<'_>> {
        let batches =
            self.units.iter().flat_map(|(demand, &units)| demand.batches(units).map(move |b| Job::Batch(demand, b)));
        let operands = self.operands.iter().map(|(id, events)| Job::Operand(*id, events));
        let cots = [Role::Client, Role::Server]
            .map(|role| Job::Cots(role, self.cots[role as usize].min(MAX_COTS_AHEAD) as usize));
        batches.chain(operands).chain(cots).collect()
    }

    /// Cost of each piece of [`prepare_all`] in order, refills of the OT pools not included; all of it is `offline`.
    pub(crate) fn costs(&self, plans: &mut Plans) -> Result<Vec<(&'static str, Cost)>, Error> {
        let cost = |job: &Job| {
            Ok((
                job.name(),
                match job {
                    Job::Batch(demand, units) => demand.cost(plans, *units)?,
                    Job::Operand(_, events) => growing::prepare_cost(plans, events)?,
                    Job::Cots(sender, count) => Cost::free().pooled(*sender, *count),
                },
            ))
        };
        self.jobs().iter().map(cost).collect()
    }
}

impl Job<'_> {
    /// Scope in the ledger.
    fn name(&self) -> &'static str {
        match self {
            Job::Batch(Demand::Linear { .. }, _) => "linear",
            Job::Batch(Demand::SumSquares { .. }, _) => "squares",
            Job::Batch(Demand::RowProduct { .. }, _) => "products",
            Job::Batch(Demand::Matmul { .. }, _) => "matrix products",
            Job::Batch(Demand::Evaluation(_), _) => "functions",
            Job::Batch(Demand::Comparison { .. }, _) => "comparisons",
            Job::Operand(..) => "keys and values",
            Job::Cots(..) => "OTs",
        }
    }
}

/// Scope of the offline phase in the ledger.
pub const SCOPE: &str = "preprocess";

/// Fills the stock with all that `needs` says. `matrix` gives the server the values of a weight by name; `progress` is
/// called with bytes done and bytes in all.
pub(crate) fn prepare_all<'a>(
    s: &mut Session,
    needs: &Needs,
    matrix: impl Fn(&str) -> Option<&'a [i32]>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), Error> {
    let costs = needs.costs(s.plans())?;
    let total = costs.iter().map(|(_, cost)| cost.total_bytes()).sum();
    let mut done = 0;
    progress(done, total);
    s.channel().ledger_mut().enter(SCOPE);
    for (job, (name, cost)) in needs.jobs().into_iter().zip(costs) {
        s.channel().ledger_mut().enter(name);
        match job {
            Job::Batch(demand, units) => {
                let values = match demand {
                    Demand::Linear { weight, .. } => matrix(weight),
                    _ => None,
                };
                fill(s, demand, units, values)?;
            }
            Job::Operand(id, events) => {
                let masks = s.offline(|s| growing::prepare(s, events))?;
                s.stock.operands.insert(id, masks);
            }
            Job::Cots(sender, count) => s.reserve(sender, count)?,
        }
        s.channel().ledger_mut().leave();
        done += cost.total_bytes();
        progress(done, total);
    }
    s.channel().ledger_mut().leave();
    Ok(())
}

/// A stock without words: how many units of each demand there are.
#[derive(Debug, Default)]
pub(crate) struct Levels {
    units: HashMap<Demand, usize>,
    /// Masks of growing operands, their sizes alone.
    pub(crate) operands: growing::Prepared,
}

impl Levels {
    /// All that `needs` says.
    pub(crate) fn of(needs: &Needs) -> Self {
        Levels {
            units: needs.units.iter().map(|(demand, &units)| (demand.clone(), units)).collect(),
            operands: growing::Prepared::planned(&needs.operands),
        }
    }

    /// Takes `units`; returns the costs of what is made on the spot.
    pub(crate) fn take(&mut self, plans: &mut Plans, demand: &Demand, units: usize) -> Result<Vec<Cost>, Error> {
        let level = self.units.entry(demand.clone()).or_default();
        let missing = units.saturating_sub(*level);
        *level = level.saturating_sub(units);
        demand.batches(missing).map(|batch| demand.cost(plans, batch)).collect()
    }
}
