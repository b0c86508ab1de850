//! What an operation sends and consumes, known from shapes alone.

use he::ParamSet;
use net::{Direction, HEADER_BYTES, Ledger, Role};

/// One step of an operation, in the order in which it is booked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A message of `bytes` bytes, framing included.
    Message {
        /// Which way it goes.
        direction: Direction,
        /// Length on the wire.
        bytes: u64,
        /// Whether it belongs to a correlation that does not depend on the data, and is booked as `offline`.
        offline: bool,
    },
    /// Messages that both parties send at once.
    Exchange {
        /// Lengths on the wire of the client's and the server's, framing included.
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
    /// The pool of OTs with the OT sender `sender` is refilled if it holds fewer than `count`.
    Pooled {
        /// The party that holds both keys of every OT.
        sender: Role,
        /// Number of OTs.
        count: u64,
    },
    /// `holder` needs a key pair of `set`; its public key is sent once a session.
    Key {
        /// The party that encrypts.
        holder: Role,
        /// Parameter set.
        set: ParamSet,
    },
    /// The other party needs Galois keys of `holder`'s key pair of `set`; they are sent once a session.
    GaloisKeys {
        /// The party that encrypts.
        holder: Role,
        /// Parameter set.
        set: ParamSet,
    },
}

/// The cost of an operation: its messages and correlations in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    steps: Vec<Step>,
}

impl Cost {
    /// Nothing sent, nothing consumed.
    pub fn free() -> Self {
        Cost::default()
    }

    /// Adds a message of `payload` bytes from `from`.
    pub fn message(mut self, from: Role, payload: usize) -> Self {
        self.steps.push(Step::Message {
            direction: from.sends(),
            bytes: (payload + HEADER_BYTES) as u64,
            offline: false,
        });
        self
    }

    /// Adds an exchange: both parties send a message at once.
    pub fn exchange(mut self, client: usize, server: usize) -> Self {
        let bytes = [client, server].map(|payload| (payload + HEADER_BYTES) as u64);
        self.steps.push(Step::Exchange { bytes, offline: false });
        self
    }

    /// Adds `count` OTs with OT sender `sender`.
    pub fn cots(mut self, sender: Role, count: usize) -> Self {
        self.steps.push(Step::Cots { sender, count: count as u64 });
        self
    }

    /// Adds a refill of the pool with OT sender `sender` to at least `count`.
    pub fn pooled(mut self, sender: Role, count: usize) -> Self {
        self.steps.push(Step::Pooled { sender, count: count as u64 });
        self
    }

    /// Adds the need for `holder`'s key of `set`.
    pub fn key(mut self, holder: Role, set: ParamSet) -> Self {
        self.steps.push(Step::Key { holder, set });
        self
    }

    /// Adds the keys of `holder` that a plan over `set` needs: Galois keys too if it packs.
    pub fn keys(self, holder: Role, set: ParamSet, packed: bool) -> Self {
        let mut cost = self.key(holder, set);
        if packed {
            cost.steps.push(Step::GaloisKeys { holder, set });
        }
        cost
    }

    /// The same with every message booked as `offline`.
    pub fn offline(mut self) -> Self {
        for step in &mut self.steps {
            if let Step::Message { offline, .. } | Step::Exchange { offline, .. } = step {
                *offline = true;
            }
        }
        self
    }

    /// This cost followed by `other`.
    pub fn then(mut self, other: Cost) -> Self {
        self.steps.extend(other.steps);
        self
    }

    /// The steps in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Bytes on the wire in `direction`, online and offline, refills of the pools not included.
    pub fn bytes(&self, direction: Direction) -> u64 {
        self.steps
            .iter()
            .map(|step| match *step {
                Step::Message { direction: d, bytes, .. } if d == direction => bytes,
                Step::Exchange { bytes: [client, server], .. } => match direction {
                    Direction::ClientToServer => client,
                    Direction::ServerToClient => server,
                },
                _ => 0,
            })
            .sum()
    }

    /// Bytes on the wire both ways, refills of the pools not included.
    pub fn total_bytes(&self) -> u64 {
        self.bytes(Direction::ClientToServer) + self.bytes(Direction::ServerToClient)
    }

    /// OTs consumed with OT sender `sender`.
    pub fn cots_used(&self, sender: Role) -> u64 {
        self.steps
            .iter()
            .map(|step| match *step {
                Step::Cots { sender: s, count } if s == sender => count,
                _ => 0,
            })
            .sum()
    }

    /// The number of flows, maximal runs of messages in one direction, online and offline. It counts this cost on its
    /// own, as a ledger does.
    pub fn flows(&self) -> u64 {
        let mut ledger = Ledger::default();
        for step in &self.steps {
            match *step {
                Step::Message { direction, bytes, .. } => ledger.book(direction, bytes),
                Step::Exchange { bytes, .. } => ledger.book_exchange(bytes),
                _ => {}
            }
        }
        ledger.total().flows
    }
}
