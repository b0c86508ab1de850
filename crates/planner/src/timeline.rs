//! The clocks of both parties of a planned session, moved by work and messages.
//!
//! The steps of a [`Cost`](waggle_protocols::cost::Cost) stand in the order in which both parties take them. Work
//! moves the clock of its party. A message leaves once its sender has come to it and the wire is free. Its receiver
//! goes on when the message has arrived. So computation at one party overlaps with the wire and with the other party
//! exactly where the protocol allows it. A separate thread encrypts and sends: sending costs processor time but does
//! not delay its party.
//!
//! # What is assumed
//! - Work in tasks of the thread pool is spread over as many cores of its party as there are tasks. Each core after
//!   the first adds [`Machine::speedup`] of the first one's speed.
//! - Parties on one machine share its cores: while one party computes, the other has the cores that are left.
//! - Each message wakes a thread at the other party, which takes [`Deployment::wake`].

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use waggle_net::{Direction, LinkShape, Phase, Role, Traffic};

use waggle_protocols::cost::Step;
use waggle_protocols::{Kernel, Rates, Work};

/// The machine of a party.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Seconds that one core takes for a unit of each kernel.
    pub rates: Rates,
    /// Number of cores, one for each thread of the thread pool.
    pub cores: u32,
    /// The speed that each further core adds, as a share of the first core's, where work is spread over all cores.
    pub speedup: f64,
}

/// Where a session runs: both parties' machines and the network between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Deployment {
    /// The client's machine and the server's.
    pub machines: [Machine; 2],
    /// Whether both parties run on one machine and share its cores. Both entries of `machines` are then the same.
    pub together: bool,
    /// The network, or `None` if its rate and delay do not matter.
    pub link: Option<LinkShape>,
    /// Whether the network is simulated in software, which takes processor time for every message.
    pub imitated: bool,
    /// Seconds from the arrival of a message until the waiting thread runs.
    pub wake: f64,
}

impl Deployment {
    /// Each party on a machine of its own, over a link that takes no time.
    pub fn apart(client: Machine, server: Machine) -> Self {
        Deployment { machines: [client, server], together: false, link: None, imitated: false, wake: 0.0 }
    }

    /// A deployment in which nothing takes any time, for plans that only count units.
    pub fn idle() -> Self {
        let machine = Machine { rates: Rates::zero(), cores: 1, speedup: 0.0 };
        Deployment::apart(machine.clone(), machine)
    }
}

/// Rounds of a repetition that are played one by one. The later rounds are extrapolated from the last of these.
const ROUNDS: u64 = 6;

/// The number of rounds from which later rounds are extrapolated. They are the last ones that were played.
const STEADY: u64 = 3;

/// Number of spans that are remembered of each party. Work of the other party shares its cores with these spans.
const SPANS: usize = 32;

/// A period in which a party uses some cores.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: f64,
    end: f64,
    cores: f64,
}

/// The state of both parties at one moment of a plan.
#[derive(Debug)]
pub(crate) struct Timeline {
    setting: Deployment,
    /// The clocks of client and server, in seconds since the session began.
    clocks: [f64; 2],
    /// When the outgoing wire of each party is free, in seconds since the session began.
    wires: [f64; 2],
    /// The latest work of each party, the oldest first.
    busy: [VecDeque<Span>; 2],
    /// Seconds by phase that were not booked in a ledger yet.
    unbooked: [Seconds; PHASES.len()],
    /// `Some` if units are counted by account.
    tally: Option<Tally>,
}

/// Units of every kernel by account, that is by phase and path: at the client and at the server.
pub type Tallies = BTreeMap<(Phase, String), [Units; 2]>;

/// Units of every kernel at one party, in the order of [`Kernel::ALL`].
pub type Units = Vec<f64>;

#[derive(Debug, Default)]
struct Tally {
    /// Units since the last booking.
    open: BTreeMap<(Phase, Kernel), [f64; 2]>,
    accounts: Tallies,
    /// How many rounds the round that is being played stands for.
    rounds: f64,
}

impl Tally {
    fn add(&mut self, party: Role, kernel: Kernel, units: u64, phase: Phase) {
        self.open.entry((phase, kernel)).or_default()[party as usize] += self.rounds * units as f64;
    }

    /// Moves the units counted since the last call to the accounts of `path`.
    fn book(&mut self, path: &str) {
        for ((phase, kernel), units) in std::mem::take(&mut self.open) {
            let none = || [(); 2].map(|()| vec![0.0; Kernel::ALL.len()]);
            let account = self.accounts.entry((phase, path.to_owned())).or_insert_with(none);
            account.iter_mut().zip(units).for_each(|(account, units)| account[kernel as usize] += units);
        }
    }
}

/// All phases, in their order.
const PHASES: [Phase; 4] = [Phase::Setup, Phase::Offline, Phase::Prefill, Phase::Decode];

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Seconds {
    /// Seconds that passed on the client's clock.
    time: f64,
    cpu: [f64; 2],
}

impl Seconds {
    fn since(self, before: Seconds) -> Seconds {
        let cpu = |party: usize| self.cpu[party] - before.cpu[party];
        Seconds { time: self.time - before.time, cpu: [cpu(0), cpu(1)] }
    }

    fn add(&mut self, other: Seconds, times: f64) {
        self.time += times * other.time;
        (0..2).for_each(|party| self.cpu[party] += times * other.cpu[party]);
    }
}

impl Timeline {
    pub(crate) fn new(setting: Deployment) -> Self {
        Timeline {
            setting,
            clocks: [0.0; 2],
            wires: [0.0; 2],
            busy: Default::default(),
            unbooked: Default::default(),
            tally: None,
        }
    }

    /// This timeline, made to count the units of kernels by account.
    pub(crate) fn tallied(self) -> Self {
        Timeline { tally: Some(Tally { rounds: 1.0, ..Tally::default() }), ..self }
    }

    pub(crate) fn tallies(&self) -> Option<&Tallies> {
        self.tally.as_ref().map(|tally| &tally.accounts)
    }

    /// Plays the steps of a session in `phase`.
    pub(crate) fn play(&mut self, steps: &[Step], phase: Phase) {
        for step in steps {
            let of = |offline: bool| if offline { Phase::Offline } else { phase };
            match *step {
                Step::Message { direction, bytes, offline } => self.message(direction, bytes, 1, of(offline)),
                Step::Exchange { bytes, offline } => self.exchange(bytes, of(offline)),
                Step::Work(work) => self.work(work, of(work.offline)),
                // The forecast plays pools and keys.
                Step::Cots { .. } | Step::Pooled { .. } | Step::Key { .. } | Step::GaloisKeys { .. } => {}
            }
        }
    }

    /// Plays `steps` `times` times, see [`play`](Self::play). Rounds after the first [`ROUNDS`] are extrapolated.
    pub(crate) fn repeat(&mut self, steps: &[Step], times: u64, phase: Phase) {
        let single = times.min(ROUNDS);
        let mut before = (self.clocks, self.wires, self.unbooked);
        let each = times as f64 / single.max(1) as f64;
        self.tally.iter_mut().for_each(|tally| tally.rounds = each);
        for round in 0..single {
            if round == single.saturating_sub(STEADY) {
                before = (self.clocks, self.wires, self.unbooked);
            }
            self.play(steps, phase);
        }
        self.tally.iter_mut().for_each(|tally| tally.rounds = 1.0);
        let left = (times - single) as f64 / single.clamp(1, STEADY) as f64;
        for (at, started) in [(&mut self.clocks, before.0), (&mut self.wires, before.1)] {
            at.iter_mut().zip(started).for_each(|(at, started)| *at += left * (*at - started));
        }
        for (seconds, before) in self.unbooked.iter_mut().zip(before.2) {
            let steady = seconds.since(before);
            seconds.add(steady, left);
        }
    }

    /// Both parties compute `work`.
    pub(crate) fn work(&mut self, work: Work, phase: Phase) {
        for party in [Role::Client, Role::Server] {
            self.compute(party, work.kernel, work.units[party as usize], phase);
        }
    }

    /// `party` computes `units` units of `kernel`.
    fn compute(&mut self, party: Role, kernel: Kernel, units: u64, phase: Phase) {
        self.count(party, kernel, units, phase);
        let machine = &self.setting.machines[party as usize];
        let cpu = units as f64 * machine.rates.of(kernel);
        if cpu == 0.0 {
            return;
        }
        let tasks = kernel.grain().map_or(1.0, |grain| (units / grain).max(1) as f64);
        let cores = tasks.min(f64::from(machine.cores.max(1)));
        let start = self.clocks[party as usize];
        let end = if self.setting.together {
            let end = self.shared(party, start, cpu, cores);
            self.remember(party, Span { start, end, cores });
            end
        } else {
            start + cpu / spread(cores, machine.speedup)
        };
        self.unbooked[phase as usize].cpu[party as usize] += cpu;
        self.advance(party, end, phase);
    }

    /// Adds units to the tally, if there is one.
    fn count(&mut self, party: Role, kernel: Kernel, units: u64, phase: Phase) {
        if let Some(tally) = self.tally.as_mut().filter(|_| units > 0) {
            tally.add(party, kernel, units, phase);
        }
    }

    /// The time at which `party` has done work of `cpu` seconds on up to `cores` cores. The work begins at `start`,
    /// and the other party's work may take some of the cores.
    fn shared(&mut self, party: Role, start: f64, cpu: f64, cores: f64) -> f64 {
        let machine = &self.setting.machines[party as usize];
        let (all, speedup) = (f64::from(machine.cores.max(1)), machine.speedup);
        let others = &mut self.busy[party.peer() as usize];
        while others.front().is_some_and(|span| span.end <= start) {
            others.pop_front();
        }
        let (mut now, mut left) = (start, cpu);
        for span in others.iter() {
            let alone = (span.start - now).max(0.0) * spread(cores, speedup);
            if alone >= left {
                break;
            }
            (now, left) = (now.max(span.start), left - alone);
            // A busy machine leaves less than a core: the system divides its time.
            let free = (all - span.cores).max(0.0).min(cores);
            let rate = if free < 1.0 { free } else { spread(free, speedup) };
            let done = rate * (span.end - now);
            if done >= left {
                return now + left / rate;
            }
            (now, left) = (span.end, left - done);
        }
        now + left / spread(cores, speedup)
    }

    /// Remembers the period `span`, in which `party` uses some cores.
    fn remember(&mut self, party: Role, span: Span) {
        let spans = &mut self.busy[party as usize];
        match spans.back_mut() {
            Some(last) if last.end == span.start && last.cores == span.cores => last.end = span.end,
            _ => spans.push_back(span),
        }
        if spans.len() > SPANS {
            spans.pop_front();
        }
    }

    /// Moves the clock of `party` to `at`, unless it is later already.
    fn advance(&mut self, party: Role, at: f64, phase: Phase) {
        let clock = &mut self.clocks[party as usize];
        let passed = (at - *clock).max(0.0);
        *clock += passed;
        if party == Role::Client {
            self.unbooked[phase as usize].time += passed;
        }
    }

    /// Sends `messages` messages of `bytes` bytes in total one way.
    pub(crate) fn message(&mut self, direction: Direction, bytes: u64, messages: u64, phase: Phase) {
        let sender = if direction == Role::Client.sends() { Role::Client } else { Role::Server };
        let arrival = self.send(sender, bytes, messages, phase);
        self.receive(sender.peer(), bytes, messages, arrival, phase);
    }

    /// Both parties send, then both receive.
    fn exchange(&mut self, bytes: [u64; 2], phase: Phase) {
        let arrivals = [Role::Client, Role::Server].map(|role| self.send(role, bytes[role as usize], 1, phase));
        for role in [Role::Client, Role::Server] {
            let from = role.peer() as usize;
            self.receive(role, bytes[from], 1, arrivals[from], phase);
        }
    }

    /// Puts messages on the wire. Returns when the last byte reaches the waiting thread of the other party.
    fn send(&mut self, sender: Role, bytes: u64, messages: u64, phase: Phase) -> f64 {
        self.compute(sender, Kernel::Message, messages, phase);
        self.count(sender, Kernel::ByteSent, bytes, phase);
        let rates = &self.setting.machines[sender as usize].rates;
        let encrypting = bytes as f64 * rates.of(Kernel::ByteSent);
        let imitating = messages as f64 * rates.of(Kernel::Imitated);
        self.unbooked[phase as usize].cpu[sender as usize] += encrypting;
        if self.setting.imitated {
            self.unbooked[phase as usize].cpu[sender as usize] += imitating;
            self.count(sender, Kernel::Imitated, messages, phase);
        }
        let (per_byte, crossing) = self.setting.link.map_or((0.0, 0.0), |link| {
            (1.0 / link.bytes_per_second.max(1) as f64, link.round_trip.as_secs_f64() / 2.0)
        });
        let wire = &mut self.wires[sender as usize];
        *wire = wire.max(self.clocks[sender as usize]) + (bytes as f64 * per_byte).max(encrypting);
        *wire + crossing + self.setting.wake
    }

    /// `receiver` waits until `arrival` for messages and reads them.
    fn receive(&mut self, receiver: Role, bytes: u64, messages: u64, arrival: f64, phase: Phase) {
        self.advance(receiver, arrival, phase);
        self.compute(receiver, Kernel::Message, messages, phase);
        self.compute(receiver, Kernel::ByteReceived, bytes, phase);
    }

    /// Takes the times that were not booked yet, by phase. They all belong to `path`.
    pub(crate) fn take_unbooked(&mut self, path: &str) -> impl Iterator<Item = (Phase, Traffic)> + use<> {
        if let Some(tally) = &mut self.tally {
            tally.book(path);
        }
        let unbooked = std::mem::take(&mut self.unbooked);
        PHASES.into_iter().zip(unbooked).filter(|(_, seconds)| *seconds != Seconds::default()).map(
            |(phase, seconds)| {
                let [cpu, peer_cpu] = seconds.cpu.map(duration);
                (phase, Traffic { time: duration(seconds.time), cpu, peer_cpu, ..Traffic::default() })
            },
        )
    }
}

/// The speed of `cores` cores, in units of one core's.
fn spread(cores: f64, speedup: f64) -> f64 {
    1.0 + (cores - 1.0) * speedup
}

/// A duration of `seconds`. Too large a number gives the longest duration.
fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use waggle_protocols::cost::Cost;

    /// A kernel that runs in one thread, and after it a kernel that runs in tasks of the pool.
    const SINGLE: Kernel = Kernel::Call;
    const SPREAD: Kernel = Kernel::Pad;

    fn machine(cores: u32) -> Machine {
        // A millisecond a unit, so that a million units of SPREAD are many tasks.
        Machine { rates: Rates::zero().with(SINGLE, 1e-3).with(SPREAD, 1e-6), cores, speedup: 1.0 }
    }

    fn link(rate: u64, delay_ms: u64) -> LinkShape {
        LinkShape { bytes_per_second: rate, round_trip: Duration::from_millis(delay_ms) }
    }

    /// Seconds that `cost` takes on the client's clock, on the client's processor and on the server's processor.
    fn played(setting: &Deployment, cost: &Cost) -> [f64; 3] {
        let mut timeline = Timeline::new(setting.clone());
        cost.runs().iter().for_each(|run| timeline.repeat(&run.steps, run.times, Phase::Decode));
        let booked: Vec<_> = timeline.take_unbooked("").collect();
        assert!(booked.iter().all(|(phase, _)| *phase == Phase::Decode));
        let sum = |of: fn(&Traffic) -> Duration| booked.iter().map(|(_, t)| of(t).as_secs_f64()).sum();
        [sum(|t| t.time), sum(|t| t.cpu), sum(|t| t.peer_cpu)]
    }

    fn close(a: [f64; 3], b: [f64; 3]) {
        assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6), "{a:?} and {b:?}");
    }

    #[test]
    fn turns_add_up_and_simultaneous_work_overlaps() {
        let setting = Deployment { link: Some(link(1_000_000, 20)), ..Deployment::apart(machine(1), machine(1)) };
        // The client works 10 ms, its message takes 10 ms on the wire and 10 ms across, the server works 30 ms and
        // answers.
        let turn =
            Cost::free().work(Role::Client, SINGLE, 10).message(Role::Client, 10_000 - waggle_net::HEADER_BYTES);
        let turn = turn.work(Role::Server, SINGLE, 30).message(Role::Server, 0);
        let back = 0.01 + waggle_net::HEADER_BYTES as f64 * 1e-6;
        close(played(&setting, &turn), [0.06 + back, 0.01, 0.03]);
        // Both parties work at once, so the longer work counts.
        let both = Cost::free().work(Role::Server, SINGLE, 30).work(Role::Client, SINGLE, 10).exchange(0, 0);
        close(played(&setting, &both), [0.03 + back, 0.01, 0.03]);
        // A party that does not wait for a message goes on.
        let stream = Cost::free().message(Role::Client, 1_000_000).work(Role::Client, SINGLE, 5);
        close(played(&setting, &stream), [0.005, 0.005, 0.0]);
    }

    #[test]
    fn parties_on_one_machine_share_its_cores() {
        let cost = Cost::free().work_at_both(SPREAD, 1_000_000).exchange(0, 0);
        let apart = Deployment::apart(machine(2), machine(2));
        close(played(&apart, &cost), [0.5, 1.0, 1.0]);
        close(played(&Deployment { together: true, ..apart.clone() }, &cost), [1.0, 1.0, 1.0]);
        // Parties with one thread each do not disturb each other.
        let single = Cost::free().work_at_both(SINGLE, 1000).exchange(0, 0);
        close(played(&Deployment { together: true, ..apart }, &single), [1.0, 1.0, 1.0]);
    }

    #[test]
    fn units_are_counted_by_account() {
        let mut timeline = Timeline::new(Deployment::idle()).tallied();
        let round = Cost::free().work(Role::Server, SPREAD, 7).message(Role::Client, 92);
        timeline.repeat(&round.clone().times(1000).runs()[0].steps, 1000, Phase::Offline);
        timeline.take_unbooked("a").for_each(drop);
        round.runs().iter().for_each(|run| timeline.play(&run.steps, Phase::Decode));
        timeline.take_unbooked("b").for_each(drop);
        let tallies = timeline.tallies().unwrap();
        let of = |phase, path: &str, party: Role, kernel: Kernel| {
            tallies[&(phase, path.to_owned())][party as usize][kernel as usize]
        };
        assert_eq!(tallies.len(), 2);
        assert!((of(Phase::Offline, "a", Role::Server, SPREAD) - 7000.0).abs() < 1e-6);
        assert!((of(Phase::Offline, "a", Role::Client, Kernel::Message) - 1000.0).abs() < 1e-6);
        assert_eq!(of(Phase::Decode, "b", Role::Server, SPREAD), 7.0);
        assert_eq!(of(Phase::Decode, "b", Role::Client, Kernel::ByteSent), (92 + waggle_net::HEADER_BYTES) as f64);
        assert_eq!(of(Phase::Decode, "b", Role::Client, Kernel::ByteReceived), 0.0);
    }

    #[test]
    fn rounds_in_a_row_are_those_one_by_one() {
        let setting =
            Deployment { link: Some(link(1_000_000, 2)), wake: 1e-4, ..Deployment::apart(machine(2), machine(1)) };
        let round = Cost::free()
            .work(Role::Client, SPREAD, 20_000)
            .message(Role::Client, 5000)
            .work(Role::Server, SINGLE, 3)
            .exchange(100, 7000);
        let many = played(&setting, &round.clone().times(500));
        let one_by_one = (0..500).fold(Cost::free(), |cost, _| cost.then(round.clone()));
        assert_eq!(one_by_one.runs().len(), 1);
        close(many, played(&setting, &one_by_one));
    }
}
