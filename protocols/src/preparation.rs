//! The offline phase: fills a stock with everything that a run will take from it.

use std::collections::BTreeMap;
use std::sync::Arc;

use net::Role;

use crate::Error;
use crate::OperandId;
use crate::correlation::CorrelationKind;
use crate::cost::Cost;
use crate::matrix::FixedMatrix;
use crate::operands::Events;
use crate::ops::cached::{self, Operand};
use crate::plans::Plans;
use crate::session::Session;
use crate::stock::{MAX_COTS_AHEAD, Needs, Stock};

/// Scope of the offline phase in the ledger.
pub const SCOPE: &str = "preprocess";

/// A piece of the offline phase.
enum Job<'a> {
    Units(&'a CorrelationKind, usize),
    Operand(OperandId, &'a Events),
    Cots(Role, usize),
}

/// The pieces of `needs`, in the order in which both parties make them.
fn jobs(needs: &Needs) -> Vec<Job<'_>> {
    let units = needs.units.iter().map(|(kind, &units)| Job::Units(kind, units));
    let operands = needs.operands.iter().map(|(id, events)| Job::Operand(*id, events));
    let cots = [Role::Client, Role::Server]
        .map(|role| Job::Cots(role, needs.cots[role as usize].min(MAX_COTS_AHEAD) as usize));
    units.chain(operands).chain(cots).collect()
}

impl Job<'_> {
    /// Scope in the ledger.
    fn scope(&self) -> &'static str {
        match self {
            Job::Units(kind, _) => kind.scope(),
            Job::Operand(..) => "keys and values",
            Job::Cots(..) => "OTs",
        }
    }

    fn cost(&self, plans: &mut Plans) -> Result<Cost, Error> {
        match self {
            Job::Units(kind, units) => kind.batched_cost(plans, *units),
            Job::Operand(_, events) => cached::prepare_cost(plans, events),
            Job::Cots(sender, count) => Ok(Cost::free().pooled(*sender, *count)),
        }
    }
}

/// Scope and cost of each piece of [`prepare_all`], in order. All costs are `offline`; they do not include refills of
/// the OT pools.
pub(crate) fn costs(needs: &Needs, plans: &mut Plans) -> Result<Vec<(&'static str, Arc<Cost>)>, Error> {
    // The operands of all layers grow alike, and the cost of a long prompt's is large.
    let mut operands: Vec<(&Events, Arc<Cost>)> = Vec::new();
    let mut costs = Vec::new();
    for job in jobs(needs) {
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
        costs.push((job.scope(), cost));
    }
    Ok(costs)
}

/// Fills `stock` with everything in `needs`. On the server, `matrix` returns the values of a weight by its name.
/// `progress` is called with the bytes done so far and the total.
pub(crate) fn prepare_all<'a>(
    session: &mut Session,
    stock: &mut Stock,
    needs: &Needs,
    matrix: impl Fn(&str) -> Option<&'a FixedMatrix>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), Error> {
    let costs = costs(needs, session.plans())?;
    let total = costs.iter().map(|(_, cost)| cost.total_bytes()).sum();
    let mut done = 0;
    progress(done, total);
    session.channel().ledger_mut().enter(SCOPE);
    for (job, (scope, cost)) in jobs(needs).into_iter().zip(costs) {
        session.channel().ledger_mut().enter(scope);
        match job {
            Job::Units(kind, units) => {
                let mut made = done;
                for batch in kind.batches(units) {
                    stock.fill(session, kind, batch, kind.weight().and_then(&matrix))?;
                    made += kind.cost(session.plans(), batch)?.total_bytes();
                    progress(made, total);
                }
            }
            Job::Operand(id, events) => {
                let masks = session.offline(|s| cached::prepare(s, &mut stock.spill, events))?;
                drop(stock.operands.insert(id, masks));
            }
            Job::Cots(sender, count) => session.reserve(sender, count)?,
        }
        session.channel().ledger_mut().leave();
        done += cost.total_bytes();
        progress(done, total);
    }
    session.channel().ledger_mut().leave();
    Ok(())
}

/// [`prepare_all`] of the products in `needs` with those of the `operands` that have had products already. They follow
/// the order of their names, which is the same at both parties.
pub(crate) fn prepare_more<'a>(
    session: &mut Session,
    stock: &mut Stock,
    needs: &Needs,
    operands: impl IntoIterator<Item = &'a mut Operand>,
) -> Result<(), Error> {
    let begun = operands.into_iter().filter(|operand| operand.has_begun());
    let mut begun: BTreeMap<OperandId, &mut Operand> = begun.map(|operand| (operand.id(), operand)).collect();
    session.channel().ledger_mut().enter(SCOPE);
    for (id, events) in &needs.operands {
        let Some(operand) = begun.get_mut(id) else { continue };
        session.channel().ledger_mut().enter(Job::Operand(*id, events).scope());
        session.offline(|s| operand.prepare(s, &mut stock.spill, events))?;
        session.channel().ledger_mut().leave();
    }
    session.channel().ledger_mut().leave();
    Ok(())
}
