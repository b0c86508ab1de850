//! The memory of an operation while its steps run, estimated from its cost.
//!
//! An operation holds what it sends and receives, the OTs that it uses and the operands of its kernels, always for
//! one batch. The sizes below are those of the buffers in the code, rounded up for copies that exist at the same
//! time.

use waggle_net::{Direction, Role};

use waggle_protocols::cost::{Cost, Run, Step};
use waggle_protocols::{Kernel, Work};

/// Bytes of an OT in a pool.
pub(crate) const POOLED_OT: u64 = 16;

/// Bytes of an OT taken out of a pool, with its keys and choices.
const TAKEN_OT: u64 = 40;

/// Bytes that a unit of `kernel` holds until the batch ends.
fn held(kernel: Kernel) -> u64 {
    match kernel {
        Kernel::Encrypt | Kernel::Request | Kernel::Answer | Kernel::OleEncrypt | Kernel::OleAnswer => 24,
        Kernel::ReadUpload | Kernel::OleMultiply => 32,
        Kernel::Decrypt | Kernel::OleOpen | Kernel::TreeMade | Kernel::Word => 16,
        Kernel::OpenWord => 24,
        Kernel::CachedWord | Kernel::StockWord | Kernel::LeafWord => 8,
        _ => 0,
    }
}

/// The most bytes that an operation of `cost` holds, at the client and at the server.
pub(crate) fn of(cost: &Cost) -> [u64; 2] {
    cost.runs().iter().map(of_run).fold([0; 2], |most, run| [most[0].max(run[0]), most[1].max(run[1])])
}

fn of_run(run: &Run) -> [u64; 2] {
    let mut bytes = [0u64; 2];
    let mut add = |role: Role, more: u64| bytes[role as usize] = bytes[role as usize].saturating_add(more);
    for step in &run.steps {
        match *step {
            Step::Message { direction, bytes, .. } => {
                let sender = if direction == Direction::ClientToServer { Role::Client } else { Role::Server };
                // The queue of the link holds a copy.
                add(sender, bytes.saturating_mul(2));
                add(sender.peer(), bytes);
            }
            Step::Exchange { bytes, .. } => {
                for role in [Role::Client, Role::Server] {
                    add(role, bytes[role as usize].saturating_mul(2).saturating_add(bytes[role.peer() as usize]));
                }
            }
            Step::Cots { count, .. } => {
                [Role::Client, Role::Server].into_iter().for_each(|role| add(role, count.saturating_mul(TAKEN_OT)));
            }
            Step::Work(Work { kernel, units, .. }) => {
                for role in [Role::Client, Role::Server] {
                    add(role, units[role as usize].saturating_mul(held(kernel)));
                }
            }
            Step::Pooled { .. } | Step::Key { .. } | Step::GaloisKeys { .. } => {}
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_follow_one_another_and_steps_add_up() {
        let message = Cost::free().message(Role::Client, 1000 - waggle_net::HEADER_BYTES);
        assert_eq!(of(&message), [2000, 1000]);
        let both = message.clone().cots(Role::Server, 10).work(Role::Server, Kernel::OpenWord, 5);
        assert_eq!(of(&both), [2000 + 400, 1000 + 400 + 120]);
        assert_eq!(of(&both.clone().times(1000)), of(&both), "one batch at a time");
    }
}
