//! Predicts what a session sends from the costs of its operations.

use he::{GaloisKeys, ParamSet, PublicKey};
use net::{Direction, HEADER_BYTES, Ledger, Phase, Role, Traffic};
use ot::{PoolPlan, Wire};

use crate::Options;
use crate::cost::{Cost, Run, Step};
use crate::room;
use crate::timeline::{Setting, Tallies, Timeline};
use crate::work::{Kernel, Work};

/// The state on which a session's traffic depends, besides its operations: the levels of the pools and the keys
/// already sent. It plays costs into a ledger exactly as [`Session`](crate::Session) would book them.
#[derive(Debug)]
pub(crate) struct Forecast {
    pool: PoolPlan,
    levels: [Level; 2],
    keys: Vec<(Role, ParamSet)>,
    galois: Vec<(Role, ParamSet)>,
    /// There if times are predicted as well.
    timeline: Option<Timeline>,
    /// The most bytes that pools and an operation held at once, by party, where times are predicted.
    room: [u64; 2],
}

/// The pool of one direction.
#[derive(Clone, Copy, Debug, Default)]
struct Level {
    made: u64,
    held: usize,
}

impl Forecast {
    /// The state after [`Session::new`](crate::Session::new), whose own traffic is booked in `ledger`.
    pub(crate) fn new(options: Options, ledger: &mut Ledger) -> Self {
        ledger.enter("base OT");
        // Booked as exchanges: how the bytes are split among them does not show in any account.
        let mut bytes = options.ot.setup_bytes();
        for _ in 0..options.ot.setup_messages() {
            ledger.book_exchange([bytes; 2]);
            bytes = 0;
        }
        ledger.leave();
        let pool = PoolPlan { kind: options.ot, min_batch: options.ot.default_batch() };
        let (keys, galois) = (Vec::new(), Vec::new());
        Forecast { pool, levels: [Level::default(); 2], keys, galois, timeline: None, room: [0; 2] }
    }

    /// From now on books times in `setting` too, those of what `ledger` has included.
    pub(crate) fn time(&mut self, setting: Setting, tallied: bool, ledger: &mut Ledger) {
        let timeline = Timeline::new(setting);
        let mut timeline = if tallied { timeline.tallied() } else { timeline };
        let before = ledger.total();
        timeline.work(Work { kernel: Kernel::BaseOts, units: [1; 2], offline: false }, Phase::Setup);
        for flow in 0..before.flows {
            // Which messages have the bytes does not matter for the sum.
            let bytes = [before.bytes_client_to_server, before.bytes_server_to_client].map(|all| all / before.flows);
            let sender = if flow % 2 == 0 { Role::Client } else { Role::Server };
            timeline.message(sender.sends(), 2 * bytes[sender as usize], 1, Phase::Setup);
        }
        self.timeline = Some(timeline);
        self.book_times(ledger);
    }

    /// The most bytes that the pools and an operation held at once at the client and at the server, estimated where
    /// times are predicted.
    pub(crate) fn room(&self) -> [u64; 2] {
        self.room
    }

    /// Notes what playing `cost` held.
    fn note_room(&mut self, cost: &Cost) {
        if self.timeline.is_some() {
            let pools = self.levels.iter().map(|level| level.held as u64 * room::POOLED_OT).sum::<u64>();
            let taken = room::of(cost);
            self.room.iter_mut().zip(taken).for_each(|(most, taken)| *most = (*most).max(pools + taken));
        }
    }

    /// Units of kernels by account, if they are counted.
    pub(crate) fn tallies(&self) -> Option<&Tallies> {
        self.timeline.as_ref().and_then(Timeline::tallies)
    }

    /// Books the times of what was played.
    fn book_times(&mut self, ledger: &mut Ledger) {
        let Some(timeline) = &mut self.timeline else { return };
        let last = ledger.last();
        timeline.take_unbooked(ledger.path()).for_each(|(phase, times)| ledger.book_traffic(phase, &times, last));
    }

    /// Books `cost`.
    pub(crate) fn play(&mut self, cost: &Cost, ledger: &mut Ledger) {
        if let Some(timeline) = &mut self.timeline {
            let phase = if cost.starts_offline() { Phase::Offline } else { ledger.phase() };
            timeline.work(Work { kernel: Kernel::Call, units: [1; 2], offline: false }, phase);
        }
        for Run { steps, times } in cost.runs() {
            let draws = steps.iter().filter_map(Draw::of).count();
            if *times < MANY || draws > MOST_DRAWS {
                (0..*times).for_each(|_| self.play_once(steps, ledger));
            } else {
                // Keys are sent the first time.
                self.play_once(steps, ledger);
                self.play_again(steps, times - 1, ledger);
            }
        }
        self.note_room(cost);
        self.book_times(ledger);
    }

    fn play_once(&mut self, steps: &[Step], ledger: &mut Ledger) {
        for step in steps {
            book_message(step, ledger);
            if let Some(draw) = Draw::of(step) {
                let made = self.levels[draw.sender as usize].made;
                let wire = self.draw(&draw);
                book_refill(draw.sender, wire, ledger);
                self.time_refill(draw.sender, made, wire);
            }
            let key = match *step {
                Step::Key { holder, set } => {
                    let bytes = PublicKey::bytes(set);
                    send_once(&mut self.keys, (holder, set), bytes, ledger).then_some((holder, bytes, MAKE_PUBLIC))
                }
                Step::GaloisKeys { holder, set } => {
                    let bytes = GaloisKeys::bytes(set);
                    send_once(&mut self.galois, (holder, set), bytes, ledger).then_some((holder, bytes, MAKE_GALOIS))
                }
                _ => None,
            };
            if let (Some(timeline), Some((holder, bytes, kernels))) = (&mut self.timeline, key) {
                let made = Cost::free().work(holder, kernels[0], bytes).message(holder, bytes);
                let read = made.work(holder.peer(), kernels[1], bytes);
                read.runs().iter().for_each(|run| timeline.play(&run.steps, Phase::Setup));
            }
            if let Some(timeline) = &mut self.timeline {
                timeline.play(std::slice::from_ref(step), ledger.phase());
            }
        }
    }

    /// The time of refills of the pool with OT sender `sender` since it had made `before` OTs. They sent `wire`.
    fn time_refill(&mut self, sender: Role, before: u64, wire: Wire) {
        let made = self.levels[sender as usize].made - before;
        let Some(timeline) = self.timeline.as_mut().filter(|_| made > 0) else { return };
        let ot::ExtendWork { silent, softspoken } = self.pool.kind.extend_work(before, made as usize);
        let work = [
            (sender, Kernel::SilentSend, silent),
            (sender.peer(), Kernel::SilentReceive, silent),
            (sender, Kernel::SoftSpokenSend, softspoken),
            (sender.peer(), Kernel::SoftSpokenReceive, softspoken),
        ];
        for (role, kernel, units) in work {
            let mut of_both = [0; 2];
            of_both[role as usize] = units;
            timeline.work(Work { kernel, units: of_both, offline: true }, Phase::Offline);
        }
        for (direction, run) in runs(sender, wire).into_iter().filter(|(_, run)| run.messages > 0) {
            timeline.message(direction, run.bytes, run.messages, Phase::Offline);
        }
    }

    /// Books `steps`, whose keys have been sent, `times` times. What is sent is the same each time, but for refills
    /// of the pools. They also decide what begins a flow. So this counts how often which of the steps wait for a
    /// refill, and works the flows out once for each such pattern.
    fn play_again(&mut self, steps: &[Step], times: u64, ledger: &mut Ledger) {
        let draws: Vec<Draw> = steps.iter().filter_map(Draw::of).collect();
        let made = self.levels.map(|level| level.made);
        let mut patterns: Vec<Pattern> = Vec::new();
        let mut refilled = Refilled::default();
        let mut last = ledger.last();
        let mut left = times;
        let mut watch = Watch::default();
        while left > 0 {
            let mut waits = 0;
            for draw in &draws {
                let wire = self.draw(draw);
                waits = waits << 2 | refilled.add(draw.sender, wire);
            }
            let known = patterns.iter().position(|pattern| (pattern.waits, pattern.first) == (waits, last));
            let index = known.unwrap_or_else(|| {
                patterns.push(Pattern::new(steps, ledger.phase(), last, waits, draws.len()));
                patterns.len() - 1
            });
            let pattern = &mut patterns[index];
            // Without OTs all that is left is the same.
            let times = if draws.is_empty() && pattern.last == last { left } else { 1 };
            pattern.times += times;
            left -= times;
            last = pattern.last;
            if !draws.is_empty() && self.is_steady() {
                let state = (self.levels.map(|level| level.held), last);
                if let Some(begin) = watch.cycle(state, || self.place(&patterns, &refilled)) {
                    let period = watch.steps_since_mark();
                    let rounds = left / period;
                    left %= period;
                    self.skip(begin, rounds, &mut patterns, &mut refilled);
                    watch = Watch::finished();
                }
            }
        }
        for Pattern { once, times, .. } in patterns {
            once.into_iter().for_each(|(phase, traffic)| ledger.book_traffic(phase, &repeated(traffic, times), last));
        }
        if !draws.is_empty() {
            ledger.book_traffic(Phase::Offline, &refilled.traffic, last);
        }
        if let Some(timeline) = &mut self.timeline {
            timeline.repeat(steps, times, ledger.phase());
        }
        for sender in [Role::Client, Role::Server] {
            self.time_refill(sender, made[sender as usize], refilled.wires[sender as usize]);
        }
    }

    /// Whether refills no longer depend on how many OTs were made.
    fn is_steady(&self) -> bool {
        self.levels.iter().all(|level| self.pool.is_steady(level.made))
    }

    /// What was booked so far.
    fn place(&self, patterns: &[Pattern], refilled: &Refilled) -> Place {
        let times = patterns.iter().map(|pattern| pattern.times).collect();
        Place { times, made: self.levels.map(|level| level.made), refilled: *refilled }
    }

    /// Goes `rounds` more times around the cycle that began at `begin` and ends here.
    fn skip(&mut self, begin: Place, rounds: u64, patterns: &mut [Pattern], refilled: &mut Refilled) {
        let before = begin.times.into_iter().chain(std::iter::repeat(0));
        for (pattern, before) in patterns.iter_mut().zip(before) {
            pattern.times += rounds * (pattern.times - before);
        }
        for (level, before) in self.levels.iter_mut().zip(begin.made) {
            level.made += rounds * (level.made - before);
        }
        refilled.repeat(&begin.refilled, rounds);
    }

    /// Refills the pool of `draw` if it has to, and takes the OTs out. Returns what the refill sends.
    fn draw(&mut self, draw: &Draw) -> Wire {
        let Level { made, held } = &mut self.levels[draw.sender as usize];
        let amount = self.pool.refill_amount(*made, *held, draw.least);
        let wire = self.pool.refill_wire(*made, amount);
        *made += amount as u64;
        *held = *held + amount - draw.taken;
        wire
    }
}

/// What was booked up to some point.
#[derive(Debug)]
struct Place {
    /// How often each pattern happened.
    times: Vec<u64>,
    made: [u64; 2],
    refilled: Refilled,
}

/// All that the future depends on: what the pools hold, and the direction of the last message.
type State = ([usize; 2], Option<Direction>);

/// Watches for a state that comes again, by Brent's method (BIT 20, 1980): it compares with one earlier state, and
/// takes another one after 1, 2, 4, ... steps. Pools give equal numbers and are refilled by multiples of one, so
/// their states do come again.
#[derive(Debug, Default)]
struct Watch {
    mark: Option<(State, Place)>,
    /// Steps since the mark.
    steps: u64,
    /// After how many of them the next mark is set.
    most: u64,
    finished: bool,
}

impl Watch {
    /// A watch that sees nothing.
    fn finished() -> Self {
        Watch { finished: true, ..Watch::default() }
    }

    /// A step ends at `state`, which is `place`. Returns the place of the mark if the state there was the same.
    fn cycle(&mut self, state: State, place: impl FnOnce() -> Place) -> Option<Place> {
        if self.finished {
            return None;
        }
        self.steps += 1;
        if self.mark.as_ref().is_some_and(|(mark, _)| *mark == state) {
            return self.mark.take().map(|(_, place)| place);
        }
        if self.steps >= self.most {
            self.mark = Some((state, place()));
            (self.steps, self.most) = (0, (2 * self.most).max(1));
        }
        None
    }

    /// The length of the cycle that was found.
    fn steps_since_mark(&self) -> u64 {
        self.steps
    }
}

/// What a holder does for a byte of a key, and the other party.
const MAKE_PUBLIC: [Kernel; 2] = [Kernel::PublicKey; 2];
const MAKE_GALOIS: [Kernel; 2] = [Kernel::MakeGalois, Kernel::ReadGalois];

/// From how many times on equal steps are not played one by one.
const MANY: u64 = 4;

/// Draws of which a [`Pattern`] can tell whether they wait.
const MOST_DRAWS: usize = u64::BITS as usize / 2;

/// A step that needs OTs.
struct Draw {
    sender: Role,
    /// OTs that the pool must hold.
    least: usize,
    /// OTs that it gives.
    taken: usize,
}

impl Draw {
    fn of(step: &Step) -> Option<Self> {
        match *step {
            Step::Cots { sender, count } => Some(Draw { sender, least: count as usize, taken: count as usize }),
            Step::Pooled { sender, count } => Some(Draw { sender, least: count as usize, taken: 0 }),
            _ => None,
        }
    }
}

/// One way to go through steps.
struct Pattern {
    /// For every draw, the first in the highest bits, whether a refill sends something to the OT sender, and to the
    /// OT receiver.
    waits: u64,
    /// The direction of the last message before the steps.
    first: Option<Direction>,
    /// The direction of their last message.
    last: Option<Direction>,
    /// What is booked, without the bytes and messages of refills.
    once: Vec<(Phase, Traffic)>,
    /// How often this happens.
    times: u64,
}

impl Pattern {
    fn new(steps: &[Step], phase: Phase, first: Option<Direction>, waits: u64, draws: usize) -> Self {
        let mut ledger = Ledger::untimed_until(phase, first);
        let mut draws_left = draws;
        for step in steps {
            book_message(step, &mut ledger);
            if let Some(draw) = Draw::of(step) {
                draws_left -= 1;
                let bits = waits >> (2 * draws_left);
                let run = |bit: u64| ot::Run { bytes: 0, messages: bits >> bit & 1 };
                book_refill(draw.sender, Wire { to_sender: run(1), to_receiver: run(0) }, &mut ledger);
            }
        }
        let mut once: Vec<_> = ledger.entries().iter().map(|entry| (entry.phase, entry.traffic)).collect();
        if let Some((_, offline)) = once.iter_mut().find(|(phase, _)| *phase == Phase::Offline) {
            offline.messages -= u64::from(waits.count_ones());
        }
        Pattern { waits, first, last: ledger.last(), once, times: 0 }
    }
}

/// `traffic` `times` times.
fn repeated(traffic: Traffic, times: u64) -> Traffic {
    Traffic {
        bytes_client_to_server: traffic.bytes_client_to_server * times,
        bytes_server_to_client: traffic.bytes_server_to_client * times,
        messages: traffic.messages * times,
        flows: traffic.flows * times,
        ..Traffic::default()
    }
}

/// Bytes and messages of refills, without flows.
#[derive(Clone, Copy, Debug, Default)]
struct Refilled {
    traffic: Traffic,
    /// By OT sender.
    wires: [Wire; 2],
}

impl Refilled {
    /// Adds a refill of the pool with OT sender `sender`. Returns whether something is sent to the OT sender (bit 1),
    /// and to the OT receiver (bit 0).
    fn add(&mut self, sender: Role, wire: Wire) -> u64 {
        self.add_times(sender, wire, 1);
        u64::from(wire.to_sender.messages > 0) << 1 | u64::from(wire.to_receiver.messages > 0)
    }

    fn add_times(&mut self, sender: Role, wire: Wire, times: u64) {
        for (direction, run) in runs(sender, wire) {
            match direction {
                Direction::ClientToServer => self.traffic.bytes_client_to_server += times * run.bytes,
                Direction::ServerToClient => self.traffic.bytes_server_to_client += times * run.bytes,
            }
        }
        self.traffic.messages += times * wire.messages();
        let Wire { to_sender, to_receiver } = &mut self.wires[sender as usize];
        for (all, more) in [(to_sender, wire.to_sender), (to_receiver, wire.to_receiver)] {
            all.bytes += times * more.bytes;
            all.messages += times * more.messages;
        }
    }

    /// Adds `times` times what was added since `before`.
    fn repeat(&mut self, before: &Refilled, times: u64) {
        let run = |now: ot::Run, before: ot::Run| ot::Run {
            bytes: now.bytes - before.bytes,
            messages: now.messages - before.messages,
        };
        for sender in [Role::Client, Role::Server] {
            let (now, before) = (self.wires[sender as usize], before.wires[sender as usize]);
            let once = Wire {
                to_sender: run(now.to_sender, before.to_sender),
                to_receiver: run(now.to_receiver, before.to_receiver),
            };
            self.add_times(sender, once, times);
        }
    }
}

/// Books the messages of `step`.
fn book_message(step: &Step, ledger: &mut Ledger) {
    match *step {
        Step::Message { direction, bytes, offline } => {
            booked(ledger, offline, |ledger| ledger.book(direction, bytes))
        }
        Step::Exchange { bytes, offline } => booked(ledger, offline, |ledger| ledger.book_exchange(bytes)),
        Step::Cots { .. } | Step::Pooled { .. } | Step::Key { .. } | Step::GaloisKeys { .. } | Step::Work(_) => {}
    }
}

/// The messages of a refill of the pool with OT sender `sender`, in order.
fn runs(sender: Role, wire: Wire) -> [(Direction, ot::Run); 2] {
    [(sender.peer().sends(), wire.to_sender), (sender.sends(), wire.to_receiver)]
}

/// Books what a refill of the pool with OT sender `sender` sends.
fn book_refill(sender: Role, wire: Wire, ledger: &mut Ledger) {
    let phase = ledger.set_phase(Phase::Offline);
    for (direction, run) in runs(sender, wire).into_iter().filter(|(_, run)| run.messages > 0) {
        ledger.book_run(direction, run.bytes, run.messages);
    }
    ledger.set_phase(phase);
}

/// Runs `book`, in the offline phase if `offline` says so.
fn booked(ledger: &mut Ledger, offline: bool, book: impl FnOnce(&mut Ledger)) {
    let phase = ledger.phase();
    if offline {
        ledger.set_phase(Phase::Offline);
    }
    book(ledger);
    if offline {
        ledger.set_phase(phase);
    }
}

/// Books the message of a key as `setup` unless it was sent before. Returns whether it is sent now.
fn send_once(sent: &mut Vec<(Role, ParamSet)>, key: (Role, ParamSet), bytes: usize, ledger: &mut Ledger) -> bool {
    let new = !sent.contains(&key);
    if new {
        sent.push(key);
        let phase = ledger.set_phase(Phase::Setup);
        ledger.book(key.0.sends(), (bytes + HEADER_BYTES) as u64);
        ledger.set_phase(phase);
    }
    new
}

#[cfg(test)]
mod tests {
    use ot::{CotKind, SoftSpoken};
    use proptest::prelude::*;

    use super::*;

    fn step() -> impl Strategy<Value = Step> {
        let role = prop::sample::select(vec![Role::Client, Role::Server]);
        // Parts of an extension make short cycles.
        let part = ot::PoolPlan { kind: CotKind::Silent, min_batch: 1 }.refill_amount(u64::MAX / 2, 0, 1) as u64 / 8;
        let count = prop_oneof![1u64..600_000, (1u64..6).prop_map(move |parts| parts * part)];
        (0..4, role, count, any::<bool>()).prop_map(|(kind, role, count, offline)| match kind {
            0 => Step::Message { direction: role.sends(), bytes: count, offline },
            1 => Step::Exchange { bytes: [count, 2 * count], offline },
            2 => Step::Pooled { sender: role, count },
            _ => Step::Cots { sender: role, count },
        })
    }

    proptest! {
        #[test]
        fn steps_in_a_row_are_those_one_by_one(
            steps in prop::collection::vec(step(), 1..8),
            times in prop_oneof![MANY..60, 60u64..400],
            kind in prop::sample::select(vec![CotKind::Silent, CotKind::SoftSpoken(SoftSpoken::K4)]),
        ) {
            let play = |many: bool| {
                let mut ledger = Ledger::default().without_clocks();
                let mut forecast = Forecast::new(Options { ot: kind, ..Options::default() }, &mut ledger);
                ledger.set_phase(Phase::Prefill);
                ledger.enter("batches");
                if many {
                    let once = Cost::from(steps.clone());
                    forecast.play(&once.times(times as usize), &mut ledger);
                } else {
                    (0..times).for_each(|_| forecast.play_once(&steps, &mut ledger));
                }
                (ledger.entries(), ledger.last(), forecast.levels.map(|Level { made, held }| (made, held)))
            };
            prop_assert_eq!(play(true), play(false));
            let many = Cost::from(steps.clone()).times(times as usize);
            let written_out = Cost::from(steps.repeat(times as usize));
            let sums = |cost: &Cost| (cost.total_bytes(), cost.cots_used(Role::Client), cost.flows());
            prop_assert_eq!(sums(&many), sums(&written_out));
            prop_assert_eq!(sums(&many.clone().then(many.clone()).times(2)), sums(&written_out.times(4)));
        }
    }
}
