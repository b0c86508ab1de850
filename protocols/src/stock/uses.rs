//! Things made ahead, and the accounts that take them.
//!
//! Correlations of one kind are made in large batches, over all layers at once, so that one message serves many
//! operations. The ledger then divides what was sent for a kind among the accounts of the operations that take it.
//! Each gets a part in proportion to the amount that it takes, in whole bytes ([`waggle_net::Ledger::divide`]).
//! Amounts are units of a kind of correlation, words of the masks of a product with a cached operand, or OTs of
//! online steps. Both parties count them in the same plan, so both ledgers and the plan of a session divide alike, to
//! the byte.
//!
//! - Refills of the pools of OTs while a kind is made are booked as a part of this kind.
//! - Keys of homomorphic encryption are booked as `setup`. They stay with the kind that first needs them: they are
//!   sent once, and serve everything that follows.
//! - If only a part of a pool or of a turn is made, its account is divided as the whole would be.
//! - What is made on the spot is booked from the start in the account that needs it.

use std::collections::BTreeMap;
use std::sync::Arc;

use waggle_engine::OperandId;
use waggle_net::Role;

use crate::correlation::CorrelationKind;

/// A kind of things that are made ahead together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Use {
    /// Units of a kind of correlation.
    Units(CorrelationKind),
    /// Masks of a cached operand.
    Operand(OperandId),
    /// OTs with this OT sender.
    Cots(Role),
}

/// For each of the things made ahead, the accounts that take it, by path, and the amount that each takes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Uses(Arc<BTreeMap<Use, BTreeMap<String, u64>>>);

impl Uses {
    /// Notes that the account `path` takes `amount` of `what`.
    pub fn note(&mut self, what: Use, path: &str, amount: u64) {
        let accounts = Arc::make_mut(&mut self.0).entry(what).or_default();
        match accounts.get_mut(path) {
            Some(all) => *all += amount,
            None => drop(accounts.insert(path.to_owned(), amount)),
        }
    }

    /// The accounts that take `what`, and the amount that each takes.
    pub(crate) fn shares(&self, what: &Use) -> Vec<(&str, u64)> {
        let accounts = self.0.get(what).into_iter().flatten();
        accounts.map(|(path, amount)| (&path[..], *amount)).collect()
    }

    pub(crate) fn add(&mut self, other: &Uses) {
        other.each(|what, path, amount| self.note(what.clone(), path, amount));
    }

    /// The amounts by which these exceed those in `before`.
    pub(crate) fn since(&self, before: &Uses) -> Uses {
        let mut since = Uses::default();
        self.each(|what, path, amount| {
            let earlier = before.0.get(what).and_then(|accounts| accounts.get(path)).copied().unwrap_or(0);
            if amount > earlier {
                since.note(what.clone(), path, amount - earlier);
            }
        });
        since
    }

    /// Calls `see` for every amount: what is taken, by which account, and how much of it.
    pub fn each(&self, mut see: impl FnMut(&Use, &str, u64)) {
        for (what, accounts) in &*self.0 {
            accounts.iter().for_each(|(path, amount)| see(what, path, *amount));
        }
    }
}
