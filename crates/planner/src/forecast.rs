//! Predicts what a session sends from the costs of its operations.

mod passage;
mod pools;

use waggle_he::{GaloisKeys, ParamSet, PublicKey};
use waggle_net::{Direction, HEADER_BYTES, Ledger, Phase, Role};
use waggle_ot::Wire;

use waggle_protocols::cost::{Cost, Run, Step};
use waggle_protocols::{Kernel, Options, Work};

use crate::room;
use crate::timeline::{Tallies, Timeline};
pub(crate) use passage::Passage;
use pools::{Draw, Pools};

/// The state on which a session's traffic depends, besides its operations: the levels of the pools and the keys
/// already sent. It plays costs into a ledger exactly as [`Session`](waggle_protocols::Session) would book them.
#[derive(Debug)]
pub(crate) struct Forecast {
    pools: Pools,
    keys: Vec<(Role, ParamSet)>,
    galois: Vec<(Role, ParamSet)>,
    /// `Some` if times are predicted too.
    timeline: Option<Timeline>,
    /// The most bytes that pools and an operation held at once, by party. Zero unless times are predicted.
    room: [u64; 2],
}

impl Forecast {
    /// The state after [`Session::new`](waggle_protocols::Session::new). Books the traffic of that call in `ledger`.
    pub(crate) fn new(options: Options, ledger: &mut Ledger) -> Self {
        ledger.enter("base OT");
        // The messages are booked as exchanges, all bytes with the first one: no account shows how they are divided.
        let mut bytes = options.ot.setup_bytes();
        for _ in 0..options.ot.setup_messages() {
            ledger.book_exchange([bytes; 2]);
            bytes = 0;
        }
        ledger.leave();
        let (keys, galois) = (Vec::new(), Vec::new());
        Forecast { pools: Pools::new(options.ot), keys, galois, timeline: None, room: [0; 2] }
    }

    /// From now on books times by `timeline` too. The times of everything that `ledger` holds are booked now.
    pub(crate) fn time(&mut self, mut timeline: Timeline, ledger: &mut Ledger) {
        let before = ledger.total();
        timeline.work(Work { kernel: Kernel::BaseOts, units: [1; 2], offline: false }, Phase::Setup);
        for flow in 0..before.flows {
            // The bytes are spread evenly, as only their sum matters.
            let bytes = [before.bytes_client_to_server, before.bytes_server_to_client].map(|all| all / before.flows);
            let sender = if flow % 2 == 0 { Role::Client } else { Role::Server };
            timeline.message(sender.sends(), 2 * bytes[sender as usize], 1, Phase::Setup);
        }
        self.timeline = Some(timeline);
        self.book_times(ledger);
    }

    /// Whether times are predicted, so that work must be counted.
    pub(crate) fn is_timed(&self) -> bool {
        self.timeline.is_some()
    }

    /// The most bytes that the pools and an operation held at once, by party. Zero unless times are predicted.
    pub(crate) fn room(&self) -> [u64; 2] {
        self.room
    }

    fn note_room(&mut self, cost: &Cost) {
        if self.timeline.is_some() {
            let pools = self.pools.held().iter().map(|held| *held as u64 * room::POOLED_OT).sum::<u64>();
            let taken = room::of(cost);
            self.room.iter_mut().zip(taken).for_each(|(most, taken)| *most = (*most).max(pools + taken));
        }
    }

    /// The units of kernels by account, if they are counted.
    pub(crate) fn tallies(&self) -> Option<&Tallies> {
        self.timeline.as_ref().and_then(Timeline::tallies)
    }

    /// Books the times of what was played.
    fn book_times(&mut self, ledger: &mut Ledger) {
        let Some(timeline) = &mut self.timeline else { return };
        let last = ledger.last();
        timeline.take_unbooked(ledger.path()).for_each(|(phase, times)| ledger.book_traffic(phase, &times, last));
    }

    pub(crate) fn play(&mut self, cost: &Cost, ledger: &mut Ledger) {
        if let Some(timeline) = &mut self.timeline {
            let phase = if cost.starts_offline() { Phase::Offline } else { ledger.phase() };
            timeline.work(Work { kernel: Kernel::Call, units: [1; 2], offline: false }, phase);
        }
        cost.runs().iter().for_each(|run| self.play_run(run, ledger));
        self.note_room(cost);
        self.book_times(ledger);
    }

    fn play_once(&mut self, steps: &[Step], ledger: &mut Ledger) {
        for step in steps {
            step.book(ledger);
            if let Some(draw) = Draw::of(step) {
                let made = self.pools.made()[draw.sender as usize];
                let amount = self.pools.refill(&draw);
                let wire = self.pools.wire(draw.sender, amount);
                self.pools.take(&draw, amount);
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

    /// Plays the times of the latest refills of the pool with OT sender `sender`. It had made `before` OTs before
    /// these refills, which sent `wire`.
    fn time_refill(&mut self, sender: Role, before: u64, wire: Wire) {
        let made = self.pools.made()[sender as usize] - before;
        let Some(timeline) = self.timeline.as_mut().filter(|_| made > 0) else { return };
        let waggle_ot::ExtendWork { silent, softspoken } = self.pools.kind().extend_work(before, made as usize);
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

    /// [`play`](Forecast::play) for a cost that is booked again and again. `passages` is empty in the first call for
    /// the cost. It is filled then, and spares later calls going through the steps. It is not used if times are
    /// predicted.
    pub(crate) fn play_again(&mut self, cost: &Cost, passages: &mut Vec<Passage>, ledger: &mut Ledger) {
        if self.timeline.is_some() {
            return self.play(cost, ledger);
        }
        if passages.is_empty() {
            passages.extend(cost.runs().iter().map(|run| Passage::new(&run.steps)));
        }
        for (run, passage) in cost.runs().iter().zip(passages) {
            if passage.can_be_repeated() && self.keys_are_sent(&run.steps) {
                self.repeat(passage, &run.steps, run.times, ledger);
            } else {
                self.play_run(run, ledger);
            }
        }
    }

    fn play_run(&mut self, Run { steps, times }: &Run, ledger: &mut Ledger) {
        let mut left = *times;
        if left >= MANY {
            let mut passage = Passage::new(steps);
            if passage.can_be_repeated() {
                // Keys are sent the first time.
                self.play_once(steps, ledger);
                self.repeat(&mut passage, steps, left - 1, ledger);
                left = 0;
            }
        }
        (0..left).for_each(|_| self.play_once(steps, ledger));
    }

    /// Books `steps`, which are those of `passage`, `times` times. All keys that they need must have been sent.
    fn repeat(&mut self, passage: &mut Passage, steps: &[Step], times: u64, ledger: &mut Ledger) {
        let made = self.pools.made();
        let wires = passage.play(steps, times, &mut self.pools, ledger);
        if let Some(timeline) = &mut self.timeline {
            timeline.repeat(steps, times, ledger.phase());
        }
        for sender in [Role::Client, Role::Server] {
            self.time_refill(sender, made[sender as usize], wires[sender as usize]);
        }
    }

    /// Whether all keys that `steps` need have been sent.
    fn keys_are_sent(&self, steps: &[Step]) -> bool {
        steps.iter().all(|step| match *step {
            Step::Key { holder, set } => self.keys.contains(&(holder, set)),
            Step::GaloisKeys { holder, set } => self.galois.contains(&(holder, set)),
            _ => true,
        })
    }
}

/// The kernels for a byte of a public key, and after them those for a byte of Galois keys: first the kernel that the
/// holder of the key runs, then that of the other party.
const MAKE_PUBLIC: [Kernel; 2] = [Kernel::PublicKey; 2];
const MAKE_GALOIS: [Kernel; 2] = [Kernel::MakeGalois, Kernel::ReadGalois];

/// Equal steps that are taken at least this many times are not played one by one.
const MANY: u64 = 4;

/// The messages of a refill of the pool with OT sender `sender`, in order.
fn runs(sender: Role, wire: Wire) -> [(Direction, waggle_ot::Run); 4] {
    let mut from = sender;
    wire.flows.map(|run| {
        from = from.peer();
        (from.sends(), run)
    })
}

/// Books what a refill of the pool with OT sender `sender` sends.
fn book_refill(sender: Role, wire: Wire, ledger: &mut Ledger) {
    let phase = ledger.set_phase(Phase::Offline);
    for (direction, run) in runs(sender, wire).into_iter().filter(|(_, run)| run.messages > 0) {
        ledger.book_run(direction, run.bytes, run.messages);
    }
    ledger.set_phase(phase);
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
    use proptest::prelude::*;
    use waggle_ot::{CotKind, SoftSpoken};

    use super::*;

    fn step() -> impl Strategy<Value = Step> {
        let role = prop::sample::select(vec![Role::Client, Role::Server]);
        // Counts that are an eighth of an extension, or a multiple of one, make short cycles.
        let part =
            waggle_ot::PoolPlan { kind: CotKind::Silent, min_batch: 1 }.refill_amount(u64::MAX / 2, 0, 1) as u64 / 8;
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
                (ledger.entries(), ledger.last(), forecast.pools.made(), forecast.pools.held())
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
