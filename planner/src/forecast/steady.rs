//! Pools that are refilled by the least sufficient multiple of a step.

use net::Role;
use ot::Wire;

use super::pools::{Draw, Pools, add, waiting};

/// The draws of a passage where every refill makes the least multiple of a step that will do ([`Pools::step`]), and
/// pools hold less than a step. A draw waits if the pool holds less than it needs. So which draws of a pool wait
/// depends on what the pool holds when the passage begins, and a few numbers cut that range into pieces of one answer
/// each.
#[derive(Clone, Debug)]
pub(super) struct Steady {
    step: usize,
    /// By OT sender.
    sides: [Side; 2],
    /// Whether all draws take what they need.
    takes_all: bool,
}

/// The draws from one pool.
#[derive(Clone, Debug)]
struct Side {
    sender: Role,
    /// OTs of all draws.
    taken: u64,
    /// The same without whole steps.
    rest: usize,
    /// The first number of every piece but the first, in ascending order.
    cuts: Vec<usize>,
    /// For every piece which draws wait, as patterns of a passage have it.
    waits: Vec<u64>,
    /// What a step sends.
    wire: Wire,
}

impl Steady {
    pub(super) fn new(draws: &[Draw], step: usize, pools: &Pools) -> Self {
        let sides = [Role::Client, Role::Server].map(|sender| Side::new(draws, sender, step, pools));
        Steady { step, sides, takes_all: draws.iter().all(|draw| draw.taken == draw.least) }
    }

    /// Whether `pools` are as they have to be.
    pub(super) fn applies(&self, pools: &Pools) -> bool {
        self.takes_all && pools.step() == Some(self.step) && pools.held().iter().all(|held| *held < self.step)
    }

    /// Number of pieces of both pools together.
    pub(super) fn pieces(&self) -> usize {
        self.sides.iter().map(|side| side.waits.len()).product()
    }

    /// Whether the same draws wait every time.
    pub(super) fn is_constant(&self) -> bool {
        self.pieces() == 1
    }

    /// The piece of pools that hold `held`.
    pub(super) fn piece(&self, held: [usize; 2]) -> usize {
        let [client, server] = [0, 1].map(|side| self.sides[side].piece(held[side]));
        client * self.sides[1].waits.len() + server
    }

    /// Which draws wait in a piece.
    pub(super) fn waits(&self, piece: usize) -> u64 {
        let [client, server] = &self.sides;
        client.waits[piece / server.waits.len()] | server.waits[piece % server.waits.len()]
    }

    /// What pools hold after the draws that held `held` before.
    pub(super) fn after(&self, held: [usize; 2]) -> [usize; 2] {
        [0, 1].map(|side| {
            let (held, rest) = (held[side], self.sides[side].rest);
            if held < rest { held + self.step - rest } else { held - rest }
        })
    }

    /// Takes the OTs of all draws `times` times, and adds what refills send to `wires`.
    pub(super) fn take(&self, times: u64, pools: &mut Pools, wires: &mut [Wire; 2]) {
        for Side { sender, taken, wire, .. } in &self.sides {
            let steps = pools.take_by_steps(*sender, times * taken, self.step);
            add(&mut wires[*sender as usize], wire, steps);
        }
    }
}

impl Side {
    fn new(draws: &[Draw], sender: Role, step: usize, pools: &Pools) -> Self {
        let wire = pools.wire(sender, step);
        // Of each draw: what those before take, what it needs, and what it adds to patterns if it waits.
        let (mut own, mut taken) = (Vec::new(), 0);
        for (place, draw) in draws.iter().enumerate().filter(|(_, draw)| draw.sender == sender) {
            own.push((taken % step, draw.least, waiting(&wire) << (2 * (draws.len() - 1 - place))));
            taken += draw.taken;
        }
        // A draw begins to wait, or ceases to, where the pool holds nothing before it, or just enough.
        let mut cuts: Vec<usize> = own
            .iter()
            .flat_map(|(before, count, _)| [*before, (before + count) % step])
            .filter(|cut| *cut > 0)
            .collect();
        cuts.sort();
        cuts.dedup();
        let waits = |held: usize| {
            let waiting = own.iter().filter(|(before, count, _)| (held + step - before) % step < *count);
            waiting.fold(0, |waits, (_, _, own)| waits | own)
        };
        let waits = std::iter::once(0).chain(cuts.iter().copied()).map(waits).collect();
        Side { sender, taken: taken as u64, rest: taken % step, cuts, waits, wire }
    }

    fn piece(&self, held: usize) -> usize {
        self.cuts.iter().filter(|cut| **cut <= held).count()
    }
}
