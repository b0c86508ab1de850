//! Predicts what a session sends from the costs of its operations.

use he::{GaloisKeys, ParamSet, PublicKey};
use net::{HEADER_BYTES, Phase, Role};
use ot::PoolPlan;

use crate::Options;
use crate::cost::{Cost, Step};

/// The state on which a session's traffic depends, besides its operations: the levels of the pools and the keys
/// already sent. It plays costs into a ledger exactly as [`Session`](crate::Session) would book them.
#[derive(Debug)]
pub(crate) struct Forecast {
    pool: PoolPlan,
    levels: [Level; 2],
    keys: Vec<(Role, ParamSet)>,
    galois: Vec<(Role, ParamSet)>,
}

/// The pool of one direction.
#[derive(Clone, Copy, Debug, Default)]
struct Level {
    made: u64,
    held: usize,
}

impl Forecast {
    /// The state after [`Session::new`](crate::Session::new), whose own traffic is booked in `ledger`.
    pub(crate) fn new(options: Options, ledger: &mut net::Ledger) -> Self {
        ledger.enter("base OT");
        // Booked as exchanges: how the bytes are split among them does not show in any account.
        let mut bytes = options.ot.setup_bytes();
        for _ in 0..options.ot.setup_messages() {
            ledger.book_exchange([bytes; 2]);
            bytes = 0;
        }
        ledger.leave();
        let pool = PoolPlan { kind: options.ot, min_batch: options.ot.default_batch() };
        Forecast { pool, levels: [Level::default(); 2], keys: Vec::new(), galois: Vec::new() }
    }

    /// Books `cost`.
    pub(crate) fn play(&mut self, cost: &Cost, ledger: &mut net::Ledger) {
        for step in cost.steps() {
            match *step {
                Step::Message { direction, bytes, offline } => {
                    booked(ledger, offline, |ledger| ledger.book(direction, bytes));
                }
                Step::Exchange { bytes, offline } => booked(ledger, offline, |ledger| ledger.book_exchange(bytes)),
                Step::Cots { sender, count } => {
                    self.refill(sender, count, ledger);
                    self.levels[sender as usize].held -= count as usize;
                }
                Step::Pooled { sender, count } => self.refill(sender, count, ledger),
                Step::Key { holder, set } => {
                    send_once(&mut self.keys, (holder, set), PublicKey::bytes(set), ledger);
                }
                Step::GaloisKeys { holder, set } => {
                    send_once(&mut self.galois, (holder, set), GaloisKeys::bytes(set), ledger);
                }
            }
        }
    }

    /// Books a refill of the pool with OT sender `sender` to at least `count`.
    fn refill(&mut self, sender: Role, count: u64, ledger: &mut net::Ledger) {
        let Level { made, held } = &mut self.levels[sender as usize];
        let amount = self.pool.refill_amount(*made, *held, count as usize);
        let wire = self.pool.refill_wire(*made, amount);
        let phase = ledger.set_phase(Phase::Offline);
        for (direction, run) in [(sender.peer().sends(), wire.to_sender), (sender.sends(), wire.to_receiver)] {
            if run.messages > 0 {
                ledger.book_run(direction, run.bytes, run.messages);
            }
        }
        ledger.set_phase(phase);
        *made += amount as u64;
        *held += amount;
    }
}

/// Runs `book`, in the offline phase if `offline` says so.
fn booked(ledger: &mut net::Ledger, offline: bool, book: impl FnOnce(&mut net::Ledger)) {
    let phase = ledger.phase();
    if offline {
        ledger.set_phase(Phase::Offline);
    }
    book(ledger);
    if offline {
        ledger.set_phase(phase);
    }
}

/// Books the message of a key as `setup` unless it was sent before.
fn send_once(sent: &mut Vec<(Role, ParamSet)>, key: (Role, ParamSet), bytes: usize, ledger: &mut net::Ledger) {
    if !sent.contains(&key) {
        sent.push(key);
        let phase = ledger.set_phase(Phase::Setup);
        ledger.book(key.0.sends(), (bytes + HEADER_BYTES) as u64);
        ledger.set_phase(phase);
    }
}
