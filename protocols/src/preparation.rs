//! The offline phase: fills a stock with everything that a run will take from it.

use std::collections::BTreeMap;
use std::sync::Arc;

use waggle_net::{Ledger, Phase, Role};
use zeroize::Zeroizing;

use crate::cached::{self, Events, OPERANDS, Operand, OperandMasks};
use crate::correlation::{CorrelationKind, Pipeline};
use crate::cost::Cost;
use crate::deal::{self, Demand};
use crate::matrix::FixedMatrix;
use crate::ops::dealt::Dealt;
use crate::options::HelperDeals;
use crate::plans::Plans;
use crate::stock::{MAX_COTS_AHEAD, Needs, Stock, Use};
use crate::two_party::TwoParty;
use crate::work::{Kernel, Rates, Work};
use crate::{Error, OperandId, Options};

/// Scope of the offline phase in the ledger.
pub const SCOPE: &str = "preprocess";

/// The phase in which a job is booked if the ledger is in phase `current` when it is made. A helper that deals pass
/// by pass makes nothing ahead, so its jobs stay in `current`.
pub fn phase(options: &Options, current: Phase) -> Phase {
    if options.helper == HelperDeals::Passes { current } else { Phase::Offline }
}

/// Progress of the offline phase.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Made {
    /// Bytes exchanged so far, without refills of the pools of OTs.
    pub bytes: u64,
    /// Bytes that the whole phase exchanges, without such refills.
    pub all_bytes: u64,
    /// The fraction of the work that is done, 0 to 1. Work is measured in seconds on a machine of reference. Bytes
    /// would tell less, because some correlations take much computation and few bytes.
    pub work: f64,
}

/// A piece of the offline phase.
pub enum Job<'a> {
    /// A kind of correlation, and the number of its units to make.
    Units(&'a CorrelationKind, usize),
    /// A cached operand, and the products for which its masks are made.
    Operand(OperandId, &'a Events),
    /// An OT sender whose pool is refilled, and the number of OTs to which it is refilled.
    Cots(Role, usize),
}

/// The demands for everything in `needs` that a helper deals, in the order of the jobs at both parties.
pub fn demands(needs: &Needs, plans: &Plans) -> Vec<Demand> {
    jobs(needs, plans.options()).iter().filter_map(|job| job.demand(plans)).collect()
}

/// The pieces of `needs`, in the order in which both parties make them. Pieces that a helper deals come first, so the
/// helper need not wait for the other pieces.
pub(crate) fn jobs<'a>(needs: &'a Needs, options: &Options) -> Vec<Job<'a>> {
    let units = needs.units.iter().map(|(kind, &units)| Job::Units(kind, units));
    let operands = needs.operands.iter().map(|(id, events)| Job::Operand(*id, events));
    let cots = [Role::Client, Role::Server]
        .map(|role| Job::Cots(role, needs.cots[role as usize].min(MAX_COTS_AHEAD) as usize));
    let mut jobs: Vec<Job> = units.chain(operands).chain(cots).collect();
    jobs.sort_by_key(|job| options.helper.any() && !job.is_dealt(options.helper));
    jobs
}

impl<'a> Job<'a> {
    /// Scope in the ledger.
    pub fn scope(&self) -> &'static str {
        match self {
            Job::Units(kind, _) => kind.scope(),
            Job::Operand(..) => OPERANDS,
            Job::Cots(..) => "OTs",
        }
    }

    /// Ends the scope of this job in `ledger`. What was booked in it in `phase` is divided among the uses that
    /// `needs` list for the job.
    pub fn end(&self, needs: &Needs, phase: Phase, ledger: &mut Ledger) {
        let what = match self {
            Job::Units(kind, _) => Use::Units((*kind).clone()),
            Job::Operand(id, _) => Use::Operand(*id),
            Job::Cots(sender, _) => Use::Cots(*sender),
        };
        ledger.divide(phase, &needs.uses.shares(&what));
        ledger.leave();
    }

    /// Whether a helper deals this job if its part of the preparation is `helper`.
    fn is_dealt(&self, helper: HelperDeals) -> bool {
        match self {
            Job::Units(kind, _) if kind.weight().is_some() => helper.weights(),
            Job::Units(kind, _) => helper.any() && Dealt::of(kind).is_some(),
            Job::Operand(..) => helper.any(),
            Job::Cots(..) => false,
        }
    }

    /// The demand for what this job makes, or `None` if no helper of the session deals it.
    pub(crate) fn demand(&self, plans: &Plans) -> Option<Demand> {
        match self {
            _ if !self.is_dealt(plans.options().helper) => None,
            Job::Units(kind, units) => {
                let batch = kind.batch(plans.options()).max(1);
                Some(Demand::Units { kind: Dealt::of(kind)?, units: *units, batch })
            }
            Job::Operand(id, events) => {
                let (name, batch) = (deal::operand_name(*id), plans.operand_batch);
                Some(Demand::Operand { name, events: (*events).clone(), batch })
            }
            Job::Cots(..) => None,
        }
    }

    /// The kind of correlation and the number of its units, if this job makes units.
    fn units(&self) -> Option<(&'a CorrelationKind, usize)> {
        match *self {
            Job::Units(kind, units) => Some((kind, units)),
            Job::Operand(..) | Job::Cots(..) => None,
        }
    }

    /// Receives from the helper what it deals for `demand`, the demand of this job, and puts it into the stock.
    fn take(&self, party: &mut TwoParty, demand: &Demand, phase: Phase) -> Result<(), Error> {
        let TwoParty { session, stock: Stock { queues, operands, spill }, helper } = party;
        let helper = helper.as_mut().ok_or(Error::NoHelper)?;
        match *self {
            Job::Units(kind, _) => {
                let queue = queues.entry(kind.clone()).or_default();
                session.booked(phase, |_| helper.take(demand, phase, |words| Ok(queue.push(&words, spill)?)))
            }
            Job::Operand(id, events) => {
                let earlier = helper.tokens(&deal::operand_name(id));
                let mut batches = events.batches(session.plans().operand_batch).into_iter();
                let mut masks = OperandMasks::none(events.form);
                let keep = |words: Zeroizing<Vec<u64>>| {
                    batches.next().map_or(Ok(()), |batch| masks.add_dealt(spill, earlier, &batch, &words))
                };
                session.booked(phase, |_| helper.take(demand, phase, keep))?;
                drop(operands.insert(id, masks));
                Ok(())
            }
            Job::Cots(..) => Ok(()),
        }
    }

    /// Makes this job with the peer. `pipeline` says which batch comes after it.
    fn make(
        &self,
        party: &mut TwoParty,
        pipeline: &mut Pipeline<'a>,
        mut tell: impl FnMut(u64, f64),
    ) -> Result<(), Error> {
        let TwoParty { session, stock, .. } = party;
        match *self {
            Job::Units(kind, units) => {
                let (after, mut bytes, mut made) = (pipeline.next, 0, 0);
                let mut batches = kind.batches(units, session.options()).peekable();
                while let Some(batch) = batches.next() {
                    pipeline.next = batches.peek().map(|next| (kind, *next)).or(after);
                    stock.fill(session, kind, batch, pipeline)?;
                    bytes += kind.cost(session.plans(), batch)?.total_bytes();
                    made += batch;
                    tell(bytes, made as f64 / units as f64);
                }
                Ok(())
            }
            Job::Operand(id, events) => {
                let mut masks = OperandMasks::none(events.form);
                session.offline(|s| cached::extend(s, &mut stock.spill, &mut masks, events))?;
                drop(stock.operands.insert(id, masks));
                Ok(())
            }
            Job::Cots(sender, count) => session.reserve(sender, count),
        }
    }

    /// Seconds that this job of `cost` takes. The work of both parties is added up, because at most steps one party
    /// waits for the other.
    fn seconds(&self, rates: &Rates, cost: &Cost) -> f64 {
        // The number of OTs made at once depends on the contents of the pool.
        if let Job::Cots(_, count) = self {
            return *count as f64 * (rates.of(Kernel::SilentSend) + rates.of(Kernel::SilentReceive));
        }
        let both = |Work { kernel, units: [client, server], .. }| rates.of(kernel) * (client + server) as f64;
        cost.all_work().map(both).sum()
    }

    pub(crate) fn cost(&self, plans: &mut Plans) -> Result<Cost, Error> {
        match self {
            // The words come over the link to the helper, so only putting them into the stock is left.
            _ if self.is_dealt(plans.options().helper) => {
                let moved = match self {
                    Job::Units(kind, units) => kind.moved(*units),
                    Job::Operand(_, events) => Cost::free().work_at_both(Kernel::StockWord, events.words() as usize),
                    Job::Cots(..) => Cost::free(),
                };
                Ok(if plans.options().helper == HelperDeals::Passes { moved } else { moved.offline() })
            }
            Job::Units(kind, units) => kind.batched_cost(plans, *units),
            Job::Operand(_, events) => cached::prepare_cost(plans, events),
            Job::Cots(sender, count) => Ok(Cost::free().pooled(*sender, *count)),
        }
    }
}

/// The jobs of the offline phase in order, each with its cost. Costs are `offline` and do not contain refills of the
/// pools of OTs.
pub fn costs<'a>(needs: &'a Needs, plans: &mut Plans) -> Result<Vec<(Job<'a>, Arc<Cost>)>, Error> {
    // The operands of all layers grow alike, so layers share a cost: that of a long prompt is large.
    let mut operands: Vec<(&Events, Arc<Cost>)> = Vec::new();
    let mut costs = Vec::new();
    for job in jobs(needs, plans.options()) {
        let known = match job {
            Job::Operand(_, events) => operands.iter().find(|(same, _)| *same == events),
            _ => None,
        };
        let cost = match known {
            Some((_, cost)) => cost.clone(),
            None => Arc::new(job.cost(plans)?),
        };
        if let (Job::Operand(_, events), None) = (&job, known) {
            operands.push((events, cost.clone()));
        }
        costs.push((job, cost));
    }
    Ok(costs)
}

impl TwoParty {
    /// The offline phase: makes all correlations of `needs`. On the server, `matrix` returns the values of a weight
    /// by its name. `progress` is called with what is done so far.
    pub fn prepare<'a>(
        &mut self,
        needs: &Needs,
        matrix: impl Fn(&str) -> Option<&'a FixedMatrix>,
        progress: &mut dyn FnMut(Made),
    ) -> Result<(), Error> {
        let jobs = costs(needs, self.session.plans())?;
        let rates = Rates::reference();
        let all_bytes = jobs.iter().map(|(_, cost)| cost.total_bytes()).sum();
        let all_seconds: f64 = jobs.iter().map(|(job, cost)| job.seconds(&rates, cost)).sum();
        let mut tell = |bytes: u64, seconds: f64| {
            let work = if all_seconds > 0.0 { (seconds / all_seconds).min(1.0) } else { 1.0 };
            progress(Made { bytes, all_bytes, work });
        };
        let (mut done, mut worked) = (0, 0.0);
        tell(done, worked);
        self.session.channel().ledger_mut().enter(SCOPE);
        let current = self.session.channel().ledger().phase();
        let phase = phase(self.session.options(), current);
        self.stock.operands.by_pass = self.session.options().helper == HelperDeals::Passes;
        let mut pipeline = Pipeline::default();
        for (at, (job, cost)) in jobs.iter().enumerate() {
            self.session.channel().ledger_mut().enter(job.scope());
            let (seconds, options) = (job.seconds(&rates, cost), self.session.options());
            let after = jobs.get(at + 1).and_then(|(job, _)| job.units());
            pipeline.next = after.and_then(|(kind, units)| Some((kind, kind.batches(units, options).next()?)));
            pipeline.matrix = job.units().and_then(|(kind, _)| kind.weight()).and_then(&matrix);
            match job.demand(self.session.plans()) {
                Some(demand) => job.take(self, &demand, phase)?,
                None => job.make(self, &mut pipeline, |bytes, part| tell(done + bytes, worked + seconds * part))?,
            }
            job.end(needs, phase, self.session.channel().ledger_mut());
            done += cost.total_bytes();
            worked += seconds;
            tell(done, worked);
        }
        self.session.channel().ledger_mut().leave();
        Ok(())
    }

    /// Makes the masks that `needs` list for further products with those of the `operands` that have had products
    /// before. The operands are served in the order of their names, which is the same at both parties.
    pub fn prepare_more<'a>(
        &mut self,
        needs: &Needs,
        operands: impl IntoIterator<Item = &'a mut Operand>,
    ) -> Result<(), Error> {
        let TwoParty { session, stock, .. } = self;
        let begun = operands.into_iter().filter(|operand| operand.has_begun());
        let mut begun: BTreeMap<OperandId, &mut Operand> = begun.map(|operand| (operand.id(), operand)).collect();
        session.channel().ledger_mut().enter(SCOPE);
        for (id, events) in &needs.operands {
            let Some(operand) = begun.get_mut(id) else { continue };
            let job = Job::Operand(*id, events);
            session.channel().ledger_mut().enter(job.scope());
            if let Some(masks) = operand.begin_again(events)? {
                session.offline(|s| cached::extend(s, &mut stock.spill, masks, events))?;
            }
            job.end(needs, Phase::Offline, session.channel().ledger_mut());
        }
        session.channel().ledger_mut().leave();
        Ok(())
    }
}
