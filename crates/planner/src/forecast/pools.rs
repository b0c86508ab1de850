//! The pools of OTs, of which a forecast keeps only the numbers of OTs.

use waggle_net::Role;
use waggle_ot::{CotKind, PoolPlan, Run, Wire};

use waggle_protocols::cost::Step;

/// The pools of both directions, by OT sender.
#[derive(Debug)]
pub(super) struct Pools {
    plan: PoolPlan,
    levels: [Level; 2],
}

#[derive(Clone, Copy, Debug, Default)]
struct Level {
    made: u64,
    held: usize,
}

/// A step that needs OTs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draw {
    pub(super) sender: Role,
    /// Number of OTs that the pool must hold before the step.
    pub(super) least: usize,
    /// Number of OTs that the step takes out of the pool.
    pub(super) taken: usize,
}

impl Draw {
    pub(super) fn of(step: &Step) -> Option<Self> {
        match *step {
            Step::Cots { sender, count } => Some(Draw { sender, least: count as usize, taken: count as usize }),
            Step::Pooled { sender, count } => Some(Draw { sender, least: count as usize, taken: 0 }),
            _ => None,
        }
    }
}

impl Pools {
    pub(super) fn new(kind: CotKind) -> Self {
        Pools { plan: PoolPlan { kind, min_batch: kind.default_batch() }, levels: Default::default() }
    }

    pub(super) fn kind(&self) -> CotKind {
        self.plan.kind
    }

    pub(super) fn made(&self) -> [u64; 2] {
        self.levels.map(|level| level.made)
    }

    pub(super) fn held(&self) -> [usize; 2] {
        self.levels.map(|level| level.held)
    }

    /// Whether refills no longer depend on how many OTs were made.
    pub(super) fn are_steady(&self) -> bool {
        self.levels.iter().all(|level| self.plan.is_steady(level.made))
    }

    /// The number of OTs that a refill makes before `draw`: 0 if the pool holds enough.
    pub(super) fn refill(&self, draw: &Draw) -> usize {
        let Level { made, held } = self.levels[draw.sender as usize];
        self.plan.refill_amount(made, held, draw.least)
    }

    /// The messages of a refill that makes `amount` OTs for the pool with OT sender `sender`.
    pub(super) fn wire(&self, sender: Role, amount: usize) -> Wire {
        self.plan.refill_wire(self.levels[sender as usize].made, amount)
    }

    /// Adds `refill` OTs and takes out those that `draw` takes.
    pub(super) fn take(&mut self, draw: &Draw, refill: usize) {
        let Level { made, held } = &mut self.levels[draw.sender as usize];
        *made += refill as u64;
        *held = *held + refill - draw.taken;
    }

    /// Extrapolates from the refills since the pools had made `before` OTs, by OT sender: what was made since then is
    /// counted `times` more times. The numbers of OTs held stay the same.
    pub(super) fn repeat(&mut self, before: [u64; 2], times: u64) {
        for (level, before) in self.levels.iter_mut().zip(before) {
            level.made += times * (level.made - before);
        }
    }
}

/// Whether a refill has the first flow (bit 1) and whether it has the other flows (bit 0).
pub(super) fn waiting(wire: &Wire) -> u64 {
    u64::from(wire.flows[0].messages > 0) << 1 | u64::from(wire.flows[1].messages > 0)
}

/// The flows of a refill for which [`waiting`] gives `bits`. Each flow is one message without bytes.
pub(super) fn flows(bits: u64) -> Wire {
    let run = |bit: u64| Run { bytes: 0, messages: bits >> bit & 1 };
    Wire { flows: [run(1), run(0), run(0), run(0)] }
}

pub(super) fn add(sum: &mut Wire, wire: &Wire, times: u64) {
    for (sum, run) in sum.flows.iter_mut().zip(wire.flows) {
        sum.bytes += times * run.bytes;
        sum.messages += times * run.messages;
    }
}
