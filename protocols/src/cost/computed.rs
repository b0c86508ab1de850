//! The work in a cost, by party and kernel.

use waggle_he::{MatmulWork, OleWork};
use waggle_net::Role;
use waggle_ot::{CotShape, LookupShape};

use super::{Cost, Step};
use crate::work::{Kernel, Work};

impl Cost {
    /// Adds `units` units of work of `kernel` at `party`, after the messages of this cost and before those added
    /// later.
    pub fn work(self, party: Role, kernel: Kernel, units: usize) -> Self {
        let mut of_both = [0; 2];
        of_both[party as usize] = units as u64;
        self.add_work(kernel, of_both)
    }

    /// Adds `units` units of work of `kernel` at both parties at once.
    pub fn work_at_both(self, kernel: Kernel, units: usize) -> Self {
        self.add_work(kernel, [units as u64; 2])
    }

    fn add_work(self, kernel: Kernel, units: [u64; 2]) -> Self {
        if units == [0; 2] { self } else { self.push(Step::Work(Work { kernel, units, offline: false })) }
    }

    /// Adds the work that the sender does in correlated OTs.
    pub(crate) fn supplies(self, sender: Role, shape: &CotShape) -> Self {
        self.work(sender, Kernel::Pad, 2 * shape.pad_blocks()).work(sender, Kernel::Word, shape.values())
    }

    /// Adds the work that the receiver does in correlated OTs.
    pub(crate) fn chooses(self, receiver: Role, shape: &CotShape) -> Self {
        self.work(receiver, Kernel::Pad, shape.pad_blocks()).work(receiver, Kernel::Word, shape.values())
    }

    /// Adds the work that the sender does in 1-of-N transfers.
    pub(crate) fn tabulates(self, sender: Role, shape: &LookupShape) -> Self {
        let entries = shape.count() * shape.entries() * shape.words();
        self.work(sender, Kernel::Pad, 2 * shape.pad_blocks()).work(sender, Kernel::TableEntry, entries)
    }

    /// Adds the work that the receiver does in 1-of-N transfers.
    pub(crate) fn picks(self, receiver: Role, shape: &LookupShape) -> Self {
        let blocks = (shape.count() * shape.item_bits()).div_ceil(128);
        self.work(receiver, Kernel::Pad, shape.window_pads())
            .work(receiver, Kernel::Word, shape.count() * shape.words())
            .work(receiver, Kernel::TableEntry, blocks)
    }

    /// Adds the work that the evaluator does in a matrix product.
    pub(crate) fn evaluates(self, evaluator: Role, work: &MatmulWork) -> Self {
        let kernels = [
            (Kernel::ReadUpload, work.read),
            (Kernel::TransformWeight, work.transformed),
            (Kernel::EncodeWeight, work.encoded),
            (Kernel::PlaceWeight, work.placed),
            (Kernel::Product, work.products),
            (Kernel::RunProduct, work.run_products),
            (Kernel::Merge, work.merged),
            (Kernel::Answer, work.answered),
        ];
        kernels.into_iter().fold(self, |cost, (kernel, units)| cost.work(evaluator, kernel, units as usize))
    }

    /// Adds the work that the evaluator does in elementwise products.
    pub(crate) fn multiplies(self, evaluator: Role, work: &OleWork) -> Self {
        self.work(evaluator, Kernel::OleMultiply, work.multiplied as usize).work(
            evaluator,
            Kernel::OleAnswer,
            work.answered as usize,
        )
    }

    /// Units of work of `kernel` at `party`, without the work for refills of the pools, for keys and for messages.
    pub fn units(&self, party: Role, kernel: Kernel) -> u64 {
        self.sum(|step| match step {
            Step::Work(work) if work.kernel == kernel => work.units[party as usize],
            _ => 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_adds_up_and_repeats() {
        let once = Cost::free()
            .work(Role::Server, Kernel::Pad, 5)
            .message(Role::Server, 100)
            .work_at_both(Kernel::Pad, 2)
            .work(Role::Client, Kernel::Word, 3);
        let units = |cost: &Cost| [Role::Client, Role::Server].map(|role| cost.units(role, Kernel::Pad));
        assert_eq!(units(&once), [2, 7]);
        assert_eq!(units(&once.clone().then(once.clone())), [4, 14]);
        let many = once.clone().times(1000).then(once.clone());
        assert_eq!((units(&many), many.units(Role::Client, Kernel::Word)), ([2002, 7007], 3003));
        assert_eq!(units(&once.clone().times(0)), [0, 0]);
        assert_eq!(once.clone().work(Role::Client, Kernel::Pad, 0), once, "no work leaves no step");
    }
}
