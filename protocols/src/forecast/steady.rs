//! Pools that are refilled by the least sufficient multiple of a step.

use net::Role;
use ot::Wire;

use super::passage::{add, waiting};
use super::pools::{Draw, Pools};

/// The draws of a passage where every refill makes the least multiple of a step that will do ([`Pools::step`]), and
/// pools hold less than a step. Then what a pool has made follows from what was taken, and a draw of less than a step
/// waits if and only if the pool holds less.
#[derive(Clone, Debug)]
pub(super) struct Steady {
    step: usize,
    /// The draws that always wait, as [`Pattern::waits`].
    always: u64,
    /// Those that wait or do not.
    changing: Vec<Changing>,
    /// OTs of all draws, by OT sender.
    taken: [u64; 2],
    /// Whether all draws take what they need.
    takes_all: bool,
    /// What a step sends, by OT sender.
    wires: [Wire; 2],
}

/// A draw of less than a step.
#[derive(Clone, Copy, Debug)]
struct Changing {
    sender: Role,
    /// What the draws before it take from the pool, without whole steps.
    before: usize,
    count: usize,
    /// What it adds to [`Pattern::waits`] if it waits.
    waits: u64,
}

impl Steady {
    pub(super) fn new(draws: &[Draw], step: usize, pools: &Pools) -> Self {
        let wires = [Role::Client, Role::Server].map(|sender| pools.wire(sender, step));
        let (mut always, mut changing, mut taken) = (0, Vec::new(), [0; 2]);
        for (place, &Draw { sender, least, taken: count }) in draws.iter().enumerate() {
            let waits = waiting(&wires[sender as usize]) << (2 * (draws.len() - 1 - place));
            if least >= step {
                always |= waits;
            } else if count > 0 {
                let before = (taken[sender as usize] % step as u64) as usize;
                changing.push(Changing { sender, before, count, waits });
            }
            taken[sender as usize] += count as u64;
        }
        let takes_all = draws.iter().all(|draw| draw.taken == draw.least);
        Steady { step, always, changing, taken, takes_all, wires }
    }

    /// Whether the same draws wait every time.
    pub(super) fn is_constant(&self) -> bool {
        self.changing.is_empty()
    }

    /// Whether `pools` are as they have to be.
    pub(super) fn applies(&self, pools: &Pools) -> bool {
        self.takes_all && pools.step() == Some(self.step) && pools.held().iter().all(|held| *held < self.step)
    }

    /// [`Passage::take`].
    pub(super) fn take(&self, pools: &mut Pools, wires: &mut [Wire; 2]) -> u64 {
        let held = pools.held();
        let waits = self.changing.iter().fold(self.always, |waits, draw| {
            let held = held[draw.sender as usize];
            let held = if held < draw.before { held + self.step - draw.before } else { held - draw.before };
            if held < draw.count { waits | draw.waits } else { waits }
        });
        self.take_times(pools, wires, 1);
        waits
    }

    /// Takes the OTs of all draws `times` times.
    pub(super) fn take_times(&self, pools: &mut Pools, wires: &mut [Wire; 2], times: u64) {
        for sender in [Role::Client, Role::Server] {
            let steps = pools.take_by_steps(sender, times * self.taken[sender as usize], self.step);
            add(&mut wires[sender as usize], &self.wires[sender as usize], steps);
        }
    }
}
