//! Sequences of steps that are taken many times.

use waggle_net::{Direction, Ledger, Phase, Role, Traffic};
use waggle_ot::{Run, Wire};

use super::pools::{Draw, Pools, add, flows, waiting};
use super::{book_refill, runs};
use waggle_protocols::cost::Step;

/// Largest number of draws that the bits of [`Pattern::waits`] can describe.
const MOST_DRAWS: usize = u64::BITS as usize / 2;

/// Rounds before [`Passage::walk`] marks a state for the first time. A mark costs more than some rounds.
const FIRST_MARK: u64 = 64;

/// Steps that are played many times. Each time they send the same messages, apart from refills. Refills also decide
/// which messages begin a flow. So a passage counts how often each pattern of refills occurs and works out the flows
/// once for each pattern.
#[derive(Clone, Debug)]
pub(crate) struct Passage {
    draws: Vec<Draw>,
    phase: Phase,
    patterns: Vec<Pattern>,
}

/// One way in which a passage can run: which draws wait for which flows of a refill.
#[derive(Clone, Debug)]
struct Pattern {
    /// Two bits for every draw, the first draw in the highest bits: which flows the refill before the draw has, see
    /// [`waiting`].
    waits: u64,
    /// The direction of the last message before the steps.
    first: Option<Direction>,
    /// The direction of the last message of the steps.
    last: Option<Direction>,
    /// The traffic of one pass through the steps, without the bytes and messages of refills.
    once: Vec<(Phase, Traffic)>,
    times: u64,
}

/// How often each pattern happened up to some point of a passage, and what refills had sent and made by then.
#[derive(Debug)]
struct Place {
    patterns: Vec<u64>,
    wires: [Wire; 2],
    made: [u64; 2],
}

/// The state of a passage that is being played.
#[derive(Debug)]
struct Walk {
    last: Option<Direction>,
    left: u64,
    /// Bytes and messages that refills have sent, by OT sender.
    wires: [Wire; 2],
}

impl Passage {
    pub(super) fn new(steps: &[Step]) -> Self {
        let draws = steps.iter().filter_map(Draw::of).collect();
        Passage { draws, phase: Phase::Setup, patterns: Vec::new() }
    }

    /// Whether the steps have few enough draws for a [`Pattern`].
    pub(super) fn can_be_repeated(&self) -> bool {
        self.draws.len() <= MOST_DRAWS
    }

    /// Books `steps`, the steps of this passage, `times` times. Returns what refills sent, by OT sender.
    pub(super) fn play(&mut self, steps: &[Step], times: u64, pools: &mut Pools, ledger: &mut Ledger) -> [Wire; 2] {
        if self.phase != ledger.phase() {
            (self.phase, self.patterns) = (ledger.phase(), Vec::new());
        }
        let mut walk = Walk { last: ledger.last(), left: times, wires: Default::default() };
        self.walk(steps, &mut walk, pools);
        self.book(&walk, ledger);
        walk.wires
    }

    /// Plays the passage one time after the other until a state recurs, and extrapolates from there to the end.
    ///
    /// The future depends only on what the pools hold and on the direction of the last message. The same numbers of
    /// OTs are taken each time and refills are multiples of one number, so states do recur. Each state is compared
    /// with one marked state. A new mark is set after 1, 2, 4, ... times [`FIRST_MARK`] rounds (Brent, BIT 20, 1980).
    fn walk(&mut self, steps: &[Step], walk: &mut Walk, pools: &mut Pools) {
        let (mut mark, mut since, mut most) = (None, 0, FIRST_MARK);
        while walk.left > 0 {
            let waits = self.take(pools, &mut walk.wires);
            let pattern = self.pattern(steps, walk.last, waits);
            let Pattern { times, first, last, .. } = &mut self.patterns[pattern];
            *times += 1;
            walk.left -= 1;
            walk.last = *last;
            if first == last && self.draws.is_empty() {
                // All remaining times are the same.
                *times += std::mem::take(&mut walk.left);
            } else if pools.are_steady() {
                since += 1;
                let state = (pools.held(), walk.last);
                match &mark {
                    Some((known, begin)) if *known == state => {
                        self.repeat_since(begin, walk.left / since, walk, pools);
                        walk.left %= since;
                        mark = None;
                    }
                    _ if since >= most => {
                        mark = Some((state, Place { patterns: self.times(), wires: walk.wires, made: pools.made() }));
                        (since, most) = (0, 2 * most);
                    }
                    _ => {}
                }
            }
        }
    }

    /// Takes the OTs of all draws, and adds what refills sent to `wires`. Returns which draws waited for which flows
    /// of a refill, as [`Pattern::waits`] does.
    fn take(&self, pools: &mut Pools, wires: &mut [Wire; 2]) -> u64 {
        self.draws.iter().fold(0, |waits, draw| {
            let amount = pools.refill(draw);
            let wire = pools.wire(draw.sender, amount);
            pools.take(draw, amount);
            add(&mut wires[draw.sender as usize], &wire, 1);
            waits << 2 | waiting(&wire)
        })
    }

    fn pattern(&mut self, steps: &[Step], first: Option<Direction>, waits: u64) -> usize {
        let known = self.patterns.iter().position(|pattern| (pattern.waits, pattern.first) == (waits, first));
        known.unwrap_or_else(|| {
            self.patterns.push(Pattern::new(steps, self.phase, first, waits, self.draws.len()));
            self.patterns.len() - 1
        })
    }

    fn times(&self) -> Vec<u64> {
        self.patterns.iter().map(|pattern| pattern.times).collect()
    }

    /// Counts everything that happened since `begin` another `rounds` times.
    fn repeat_since(&mut self, begin: &Place, rounds: u64, walk: &mut Walk, pools: &mut Pools) {
        let before = begin.patterns.iter().chain(std::iter::repeat(&0));
        for (pattern, before) in self.patterns.iter_mut().zip(before) {
            pattern.times += rounds * (pattern.times - before);
        }
        for (wire, before) in walk.wires.iter_mut().zip(&begin.wires) {
            let mut since = *wire;
            for (since, before) in since.flows.iter_mut().zip(before.flows) {
                since.bytes -= before.bytes;
                since.messages -= before.messages;
            }
            add(wire, &since, rounds);
        }
        pools.repeat(begin.made, rounds);
    }

    /// Books every pattern as often as it happened, and resets the counts.
    fn book(&mut self, &Walk { last, ref wires, .. }: &Walk, ledger: &mut Ledger) {
        for Pattern { once, times, .. } in self.patterns.iter_mut().filter(|pattern| pattern.times > 0) {
            let times = std::mem::take(times);
            once.iter().for_each(|(phase, traffic)| ledger.book_traffic(*phase, &repeated(traffic, times), last));
        }
        if wires.iter().any(|wire| wire.messages() > 0) {
            ledger.book_traffic(Phase::Offline, &refill_traffic(wires), last);
        }
    }
}

/// The bytes and messages of refills that sent `wires`, by OT sender. No flows are counted, because the patterns
/// already include the flows of refills.
fn refill_traffic(wires: &[Wire; 2]) -> Traffic {
    let mut traffic = Traffic::default();
    for sender in [Role::Client, Role::Server] {
        for (direction, Run { bytes, messages }) in runs(sender, wires[sender as usize]) {
            match direction {
                Direction::ClientToServer => traffic.bytes_client_to_server += bytes,
                Direction::ServerToClient => traffic.bytes_server_to_client += bytes,
            }
            traffic.messages += messages;
        }
    }
    traffic
}

impl Pattern {
    fn new(steps: &[Step], phase: Phase, first: Option<Direction>, waits: u64, draws: usize) -> Self {
        let mut ledger = Ledger::untimed_until(phase, first);
        let (mut draws_left, mut messages) = (draws, 0);
        for step in steps {
            step.book(&mut ledger);
            if let Some(draw) = Draw::of(step) {
                draws_left -= 1;
                let wire = flows(waits >> (2 * draws_left));
                messages += wire.messages();
                book_refill(draw.sender, wire, &mut ledger);
            }
        }
        let mut once: Vec<_> = ledger.entries().iter().map(|entry| (entry.phase, entry.traffic)).collect();
        if let Some((_, offline)) = once.iter_mut().find(|(phase, _)| *phase == Phase::Offline) {
            offline.messages -= messages;
        }
        Pattern { waits, first, last: ledger.last(), once, times: 0 }
    }
}

fn repeated(traffic: &Traffic, times: u64) -> Traffic {
    Traffic {
        bytes_client_to_server: traffic.bytes_client_to_server * times,
        bytes_server_to_client: traffic.bytes_server_to_client * times,
        messages: traffic.messages * times,
        flows: traffic.flows * times,
        ..Traffic::default()
    }
}
