//! Messages, correlations and work of an operation, known from shapes alone.

mod computed;

use waggle_he::{GaloisKeys, ParamSet};
use waggle_net::{Direction, HEADER_BYTES, Ledger, Phase, Role};

use crate::work::{Kernel, Work};

/// One step of an operation, in the order in which it is booked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A message of `bytes` bytes, framing included.
    Message {
        /// The direction in which it goes.
        direction: Direction,
        /// Length on the wire.
        bytes: u64,
        /// Whether it belongs to a correlation that does not depend on the data, and is booked as `offline`.
        offline: bool,
    },
    /// Messages that both parties send at once.
    Exchange {
        /// Length on the wire of the client's message and of the server's, framing included.
        bytes: [u64; 2],
        /// Whether they belong to a correlation that does not depend on the data, and are booked as `offline`.
        offline: bool,
    },
    /// `count` random correlated OTs with the OT sender `sender` are taken from the pool, which may need a refill.
    Cots {
        /// The party that holds both keys of every OT.
        sender: Role,
        /// Number of OTs.
        count: u64,
    },
    /// The pool with the OT sender `sender` is refilled to `count` OTs if it holds fewer.
    Pooled {
        /// The party that holds both keys of every OT.
        sender: Role,
        /// Number of OTs that the pool must hold.
        count: u64,
    },
    /// `holder` needs a key pair of `set`; its public key is sent once a session.
    Key {
        /// The party that encrypts.
        holder: Role,
        /// Parameter set.
        set: ParamSet,
    },
    /// The other party needs Galois keys of `holder`'s key pair of `set`. They are sent once a session.
    GaloisKeys {
        /// The party that encrypts.
        holder: Role,
        /// Parameter set.
        set: ParamSet,
    },
    /// The parties compute.
    Work(Work),
}

impl Step {
    /// Books the messages of this step in `ledger`.
    pub fn book(&self, ledger: &mut Ledger) {
        let (Step::Message { offline, .. } | Step::Exchange { offline, .. }) = *self else { return };
        let phase = ledger.phase();
        if offline {
            ledger.set_phase(Phase::Offline);
        }
        match *self {
            Step::Message { direction, bytes, .. } => ledger.book(direction, bytes),
            Step::Exchange { bytes, .. } => ledger.book_exchange(bytes),
            _ => {}
        }
        ledger.set_phase(phase);
    }
}

/// Steps that are repeated several times in a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The steps of one repetition.
    pub steps: Vec<Step>,
    /// Number of repetitions.
    pub times: u64,
}

/// The cost of an operation: its messages, correlations and work in order. Equal batches are stored once, because a
/// long prompt has millions of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    runs: Vec<Run>,
}

impl From<Vec<Step>> for Cost {
    fn from(steps: Vec<Step>) -> Self {
        Cost { runs: vec![Run { steps, times: 1 }] }
    }
}

impl Cost {
    /// Nothing sent, nothing consumed.
    pub fn free() -> Self {
        Cost::default()
    }

    /// Adds a message of `payload` bytes from `from`.
    pub fn message(self, from: Role, payload: usize) -> Self {
        self.push(Step::Message { direction: from.sends(), bytes: (payload + HEADER_BYTES) as u64, offline: false })
    }

    /// Adds an exchange: both parties send a message at once.
    pub fn exchange(self, client: usize, server: usize) -> Self {
        let bytes = [client, server].map(|payload| (payload + HEADER_BYTES) as u64);
        self.push(Step::Exchange { bytes, offline: false })
    }

    /// Adds `count` OTs with OT sender `sender`.
    pub fn cots(self, sender: Role, count: usize) -> Self {
        self.push(Step::Cots { sender, count: count as u64 }).work_at_both(Kernel::TakeOt, count)
    }

    /// Adds a step that fills the pool of OTs whose sender is `sender`, until it holds at least `count`.
    pub fn pooled(self, sender: Role, count: usize) -> Self {
        self.push(Step::Pooled { sender, count: count as u64 })
    }

    /// Adds the need for `holder`'s key of `set`.
    pub fn key(self, holder: Role, set: ParamSet) -> Self {
        self.push(Step::Key { holder, set })
    }

    /// Adds the need for the keys of `holder` that a plan over `set` takes: the public key and, if the plan is
    /// `packed`, the Galois keys.
    pub fn keys(self, holder: Role, set: ParamSet, packed: bool) -> Self {
        let cost = self.key(holder, set);
        if packed { cost.push(Step::GaloisKeys { holder, set }) } else { cost }
    }

    /// This cost with every message and all work booked as `offline`.
    pub fn offline(mut self) -> Self {
        for step in self.runs.iter_mut().flat_map(|run| &mut run.steps) {
            if let Step::Message { offline, .. } | Step::Exchange { offline, .. } | Step::Work(Work { offline, .. }) =
                step
            {
                *offline = true;
            }
        }
        self
    }

    /// This cost followed by `other`.
    pub fn then(mut self, other: Cost) -> Self {
        for run in other.runs {
            match self.runs.last_mut() {
                Some(last) if last.times == 1 && run.times == 1 => last.steps.extend(run.steps),
                _ => self.runs.push(run),
            }
        }
        self
    }

    /// This cost repeated `times` times.
    pub fn times(mut self, times: usize) -> Self {
        match (times, &mut self.runs[..]) {
            (0, _) => Cost::free(),
            (1, _) => self,
            (_, [run]) => {
                run.times *= times as u64;
                self
            }
            (_, runs) => {
                let written_out = runs.iter().flat_map(|run| (0..run.times).flat_map(|_| run.steps.iter().copied()));
                Cost::from(written_out.collect::<Vec<_>>()).times(times)
            }
        }
    }

    /// The cost of `n` items that are treated in batches of `batch`. `cost` returns the cost of a batch of the size
    /// that it is passed.
    pub(crate) fn in_batches<E>(
        n: usize,
        batch: usize,
        mut cost: impl FnMut(usize) -> Result<Cost, E>,
    ) -> Result<Self, E> {
        let mut total = Cost::free();
        for (size, times) in [(batch, n / batch), (n % batch, 1)] {
            if size * times > 0 {
                total = total.then(cost(size)?.times(times));
            }
        }
        Ok(total)
    }

    /// The runs in order.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    pub(crate) fn push(mut self, step: Step) -> Self {
        match self.runs.last_mut() {
            Some(last) if last.times == 1 => last.steps.push(step),
            _ => {
                // Operations have a dozen steps.
                let mut steps = Vec::with_capacity(16);
                steps.push(step);
                self.runs.push(Run { steps, times: 1 });
            }
        }
        self
    }

    pub(crate) fn sum(&self, of: impl Fn(&Step) -> u64) -> u64 {
        self.runs.iter().map(|run| run.times * run.steps.iter().map(&of).sum::<u64>()).sum()
    }

    /// All work, with the work of equal batches summed up.
    pub(crate) fn all_work(&self) -> impl Iterator<Item = Work> {
        self.runs.iter().flat_map(|run| {
            run.steps.iter().filter_map(|step| match *step {
                Step::Work(work) => Some(Work { units: work.units.map(|units| units * run.times), ..work }),
                _ => None,
            })
        })
    }

    /// Bytes on the wire in `direction`, online and offline, refills of the pools not included.
    pub fn bytes(&self, direction: Direction) -> u64 {
        self.sum(|step| match *step {
            Step::Message { direction: d, bytes, .. } if d == direction => bytes,
            Step::Exchange { bytes: [client, server], .. } => match direction {
                Direction::ClientToServer => client,
                Direction::ServerToClient => server,
            },
            _ => 0,
        })
    }

    /// Bytes on the wire both ways, refills of the pools not included.
    pub fn total_bytes(&self) -> u64 {
        self.bytes(Direction::ClientToServer) + self.bytes(Direction::ServerToClient)
    }

    /// Bytes of the Galois keys that a session sends for this cost, unless it has sent them before.
    pub(crate) fn galois_bytes(&self) -> u64 {
        self.sum(|step| match *step {
            Step::GaloisKeys { set, .. } => GaloisKeys::bytes(set) as u64,
            _ => 0,
        })
    }

    /// OTs consumed with OT sender `sender`.
    pub fn cots_used(&self, sender: Role) -> u64 {
        self.sum(|step| match *step {
            Step::Cots { sender: s, count } if s == sender => count,
            _ => 0,
        })
    }

    /// Whether this cost begins with a message or with work that belongs to a correlation.
    pub fn starts_offline(&self) -> bool {
        let flags = self.runs.iter().flat_map(|run| &run.steps).filter_map(|step| match *step {
            Step::Message { offline, .. } | Step::Exchange { offline, .. } | Step::Work(Work { offline, .. }) => {
                Some(offline)
            }
            _ => None,
        });
        flags.take(1).any(|offline| offline)
    }

    /// The number of flows if this cost is taken alone, online and offline together. A flow is a maximal run of
    /// messages in one direction.
    pub fn flows(&self) -> u64 {
        let (mut flows, mut last) = (0, None);
        for Run { steps, times } in &self.runs {
            let mut left = *times;
            while left > 0 {
                let mut ledger = Ledger::untimed_until(Phase::Setup, last);
                steps.iter().for_each(|step| step.book(&mut ledger));
                // Runs that begin and end after messages in the same direction take equally many flows.
                let alike = if ledger.last() == last { left } else { 1 };
                flows += alike * ledger.total().flows;
                left -= alike;
                last = ledger.last();
            }
        }
        flows
    }
}
