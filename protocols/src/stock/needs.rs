//! Needs of a whole run from a stock.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use waggle_net::Role;

use waggle_engine::OperandId;

use crate::cached::Events;
use crate::correlation::CorrelationKind;
use crate::stock::Uses;

/// The most OTs that are made ahead in each direction. An OT takes 16 bytes at each party. Further OTs are made when
/// these run out.
pub const MAX_COTS_AHEAD: u64 = 1 << 23;

/// Correlations that a run takes from the stock, as its plan lists them. Made in large batches, they are cheap.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Needs {
    /// Units of every kind of correlation.
    pub units: BTreeMap<CorrelationKind, usize>,
    /// Products with every cached operand.
    pub operands: BTreeMap<OperandId, Events>,
    /// Numbers of OTs of the online steps: first with the client as OT sender, then with the server.
    pub cots: [u64; 2],
    /// The amount of each need that each account takes.
    pub uses: Uses,
}

impl Needs {
    /// These needs without the OTs: those that a stock holds.
    pub fn stored(&self) -> Needs {
        Needs { cots: [0; 2], ..self.clone() }
    }

    /// The OTs of these needs alone, which the pools of a session hold.
    pub fn ots(&self) -> Needs {
        Needs { cots: self.cots, uses: self.uses.clone(), ..Needs::default() }
    }

    /// These needs without products with cached operands.
    pub fn without_operands(&self) -> Needs {
        Needs { operands: BTreeMap::new(), ..self.clone() }
    }

    /// The fraction `count` / `of` of these needs, rounded up, without products with cached operands.
    pub fn share(&self, count: usize, of: usize) -> Needs {
        let part = |all: u64| (u128::from(all) * count as u128).div_ceil(of.max(1) as u128) as u64;
        let units = self.units.iter().map(|(kind, units)| (kind.clone(), part(*units as u64) as usize));
        let (units, operands) = (units.collect(), BTreeMap::new());
        Needs { units, operands, cots: self.cots.map(part), uses: self.uses.clone() }
    }

    /// These needs without those of `before`, which lists the beginning of the same run.
    pub fn since(&self, before: &Needs) -> Needs {
        let units = self.units.iter().map(|(kind, units)| {
            let earlier = before.units.get(kind).copied().unwrap_or(0);
            (kind.clone(), units.saturating_sub(earlier))
        });
        let operands = self.operands.iter().map(|(id, events)| {
            let earlier = before.operands.get(id).map_or(0, |events| events.list.len());
            (*id, Events { list: events.list.iter().skip(earlier).copied().collect(), ..*events })
        });
        Needs {
            units: units.filter(|(_, units)| *units > 0).collect(),
            operands: operands.filter(|(_, events)| !events.list.is_empty()).collect(),
            cots: [0, 1].map(|role| self.cots[role].saturating_sub(before.cots[role])),
            uses: self.uses.since(&before.uses),
        }
    }

    /// Adds what `other` lists. The products of an operand that both list follow one another.
    pub fn add(&mut self, other: Needs) {
        for (kind, units) in other.units {
            *self.units.entry(kind).or_default() += units;
        }
        for (id, events) in other.operands {
            match self.operands.entry(id) {
                Entry::Vacant(place) => drop(place.insert(events)),
                Entry::Occupied(mut place) => place.get_mut().list.extend(events.list),
            }
        }
        self.cots.iter_mut().zip(other.cots).for_each(|(all, more)| *all += more);
        self.uses.add(&other.uses);
    }

    /// The most bytes that the temporary file of `role` takes.
    pub fn bytes(&self, role: Role) -> u64 {
        self.words(role).saturating_mul(8)
    }

    /// Words that `role` stores.
    pub fn words(&self, role: Role) -> u64 {
        let of_kind = |(kind, &units): (&CorrelationKind, &usize)| (units * kind.words(role)) as u64;
        let units: u64 = self.units.iter().map(of_kind).sum();
        units + self.operands.values().map(Events::words).sum::<u64>()
    }
}
