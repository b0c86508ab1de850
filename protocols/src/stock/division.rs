//! Divides needs into parts of about equal work. A session of its own makes each part.
//!
//! A division depends on the needs and the number of parts alone. So both parties find the same division. The session
//! that makes a part and the session that spends it do, too, even if their links and their plans of ciphertexts
//! differ.
//!
//! *Work* is estimated as the bytes that making a need sends under the default [`Options`], plus the bytes that a
//! party keeps of it: for a small model, the time is proportional to this sum within a third for every kind. A need
//! with more work than an equal share of all work is cut into ranges of units. A cached operand stays in one piece,
//! because all its products share a mask. The pieces are dealt out, the largest first, to whichever part has the
//! least work so far. Thus no part has more work than an equal share plus the largest piece.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use waggle_net::Role;

use crate::Error;
use crate::options::Options;
use crate::plans::Plans;
use crate::preparation::{Job, jobs};
use crate::stock::{Needs, Part};

impl Needs {
    /// The part `part` of these needs. Together the parts have exactly these needs, and equal needs have equal parts.
    ///
    /// # Errors
    /// If a kind cannot be made at all.
    pub fn part(&self, part: Part) -> Result<Needs, Error> {
        Ok(self.parts(part)?.swap_remove(part.index()))
    }

    /// The results of [`Needs::part`] for all parts of the division that `part` belongs to, in order.
    ///
    /// # Errors
    /// If a kind cannot be made at all.
    pub fn parts(&self, part: Part) -> Result<Vec<Needs>, Error> {
        let of = part.of() as usize;
        if part.is_whole() {
            return Ok(vec![self.clone()]);
        }
        let mut parts: Vec<Needs> = part.all().map(|part| self.cots_of(part)).collect();
        // Ties go to the earlier of two pieces with equal work, and to the earlier of two parts with equal loads.
        let mut pieces = self.pieces(of)?;
        pieces.sort_by_key(|(work, _)| Reverse(*work));
        let mut loads: BinaryHeap<_> = (0..of).map(|at| Reverse((0u128, at))).collect();
        for (work, piece) in pieces {
            let Some(Reverse((load, at))) = loads.pop() else { break };
            loads.push(Reverse((load + work, at)));
            match piece {
                Job::Units(kind, units) => *parts[at].units.entry(kind.clone()).or_default() += units,
                Job::Operand(id, events) => drop(parts[at].operands.insert(id, events.clone())),
                Job::Cots(sender, count) => parts[at].cots[sender as usize] += count as u64,
            }
        }
        Ok(parts)
    }

    /// All needs but the OTs, cut into pieces, each with its work. A piece of several units has at most 1 / `of` of
    /// all work.
    fn pieces(&self, of: usize) -> Result<Vec<(u128, Job<'_>)>, Error> {
        let mut plans = Plans::new(Options::default());
        let mut whole = Vec::with_capacity(self.units.len() + self.operands.len());
        for job in jobs(self, &Options::DEFAULT) {
            let kept = match job {
                // The mean of both parties, 8 bytes a word.
                Job::Units(kind, units) => 4 * (units * (kind.words(Role::Client) + kind.words(Role::Server))) as u64,
                Job::Operand(_, events) => 8 * events.words(),
                Job::Cots(..) => continue,
            };
            whole.push((u128::from(job.cost(&mut plans)?.total_bytes() + kept), job));
        }
        let total: u128 = whole.iter().map(|(work, _)| work).sum();
        let share = total.div_ceil(of as u128).max(1);
        let mut pieces = Vec::with_capacity(whole.len() + of);
        for (work, piece) in whole {
            let Job::Units(kind, units) = piece else {
                pieces.push((work, piece));
                continue;
            };
            let cuts = (work.div_ceil(share) as usize).clamp(1, units.max(1));
            pieces.extend((0..cuts).map(|cut| {
                let size = range(units as u64, cut, cuts) as usize;
                (work * size as u128 / units.max(1) as u128, Job::Units(kind, size))
            }));
        }
        Ok(pieces)
    }

    /// Needs that have the OTs of `part` and nothing else yet.
    fn cots_of(&self, part: Part) -> Needs {
        let cots = self.cots.map(|count| range(count, part.index(), part.of() as usize));
        Needs { cots, uses: self.uses.clone(), ..Needs::default() }
    }
}

/// The size of range number `at`, if `count` is divided into `of` ranges of about equal size.
fn range(count: u64, at: usize, of: usize) -> u64 {
    let end = |at: usize| (u128::from(count) * at as u128 / of as u128) as u64;
    end(at + 1) - end(at)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use waggle_engine::{Axis, OperandId, OperandKind};

    use super::*;
    use crate::cached::{Event, Events, OperandForm};
    use crate::correlation::CorrelationKind;
    use crate::ops::matmul::Triple;
    use crate::ops::mul::RowProduct;
    use crate::ops::private::MaskedRow;
    use crate::ops::sum_squares::Squares;
    use crate::stock::MAX_PARTS;

    /// A kind of correlation that differs for every `seed`. The seeds go through four types of kinds in turn.
    fn kind(seed: usize) -> CorrelationKind {
        let size = 1 + seed / 4;
        match seed % 4 {
            0 => CorrelationKind::new(MaskedRow {
                weight: format!("w{seed}"),
                inputs: 8 * size,
                outputs: 5,
                width: 56,
                bits: 20,
                blocks: 1,
            }),
            1 => CorrelationKind::new(Squares { n: size, width: 40 }),
            2 => CorrelationKind::new(RowProduct { n: size, width: 44, error_bits: 0 }),
            _ => CorrelationKind::new(Triple { batch: 1, m: size, k: 3, n: 4, width: 40 }),
        }
    }

    fn operand(layer: usize, products: usize) -> (OperandId, Events) {
        let form = OperandForm { batch: 2, d: 4, axis: Axis::Rows, width: 40 };
        let list = (0..products).map(|i| Event { m: 1, tokens: 3 + i }).collect();
        (OperandId { layer, kind: OperandKind::Values, generation: 0, part: 0 }, Events { form, list })
    }

    fn needs() -> impl Strategy<Value = Needs> {
        let units = prop::collection::btree_map(0usize..24, prop_oneof![0usize..4, 1usize..3000], 0..12);
        let operands = prop::collection::btree_map(0usize..8, 1usize..9, 0..5);
        (units, operands, any::<[u32; 2]>()).prop_map(|(units, operands, cots)| Needs {
            units: units.into_iter().map(|(seed, units)| (kind(seed), units)).collect(),
            operands: operands.into_iter().map(|(layer, products)| operand(layer, products)).collect(),
            cots: cots.map(u64::from),
            ..Needs::default()
        })
    }

    /// The sum of the needs of all parts. An operand in two parts is a failure.
    fn together(parts: &[Needs]) -> Needs {
        let mut all = Needs::default();
        for part in parts {
            for (kind, units) in &part.units {
                *all.units.entry(kind.clone()).or_default() += units;
            }
            for (id, events) in &part.operands {
                assert_eq!(all.operands.insert(*id, events.clone()), None, "{id}");
            }
            (0..2).for_each(|role| all.cots[role] += part.cots[role]);
        }
        all
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn the_parts_are_the_whole(needs in needs(), of in prop_oneof![1u32..9, 1u32..=MAX_PARTS]) {
            let first = Part::new(1, of).unwrap();
            let parts = needs.parts(first).unwrap();
            prop_assert_eq!(parts.len(), of as usize);
            prop_assert_eq!(&together(&parts), &needs);
            for role in [Role::Client, Role::Server] {
                prop_assert_eq!(parts.iter().map(|part| part.words(role)).sum::<u64>(), needs.words(role));
            }
            // A party that makes one part alone finds the same part.
            let last = Part::new(of, of).unwrap();
            prop_assert_eq!(&needs.part(last).unwrap(), &parts[last.index()]);
        }

        /// No part has more work than an equal share plus the largest piece. The largest piece has more than a share
        /// only if it cannot be cut.
        #[test]
        fn the_work_is_about_equal(needs in needs(), of in 2u32..40) {
            let part = Part::new(1, of).unwrap();
            let pieces = needs.pieces(of as usize).unwrap();
            let total: u128 = pieces.iter().map(|(work, _)| work).sum();
            let largest = pieces.iter().map(|(work, _)| *work).max().unwrap_or(0);
            for (work, piece) in &pieces {
                let whole = !matches!(piece, Job::Units(_, 2..));
                prop_assert!(whole || *work <= 2 * total.div_ceil(of.into()), "{work} of {total} in {of}");
            }
            // Work of one unit by kind, and of each operand as a whole.
            let mut each: BTreeMap<CorrelationKind, (u128, u128)> = BTreeMap::new();
            let mut operands = BTreeMap::new();
            for (work, piece) in pieces {
                match piece {
                    Job::Units(kind, units) => {
                        let sum = each.entry(kind.clone()).or_default();
                        *sum = (sum.0 + work, sum.1 + units as u128);
                    }
                    Job::Operand(id, _) => drop(operands.insert(id, work)),
                    Job::Cots(..) => unreachable!("no piece has OTs"),
                }
            }
            for part in needs.parts(part).unwrap() {
                let units = part.units.iter().map(|(kind, &units)| each[kind].0 * units as u128 / each[kind].1.max(1));
                let load = units.sum::<u128>() + part.operands.keys().map(|id| operands[id]).sum::<u128>();
                prop_assert!(load <= total / u128::from(of) + largest + 1, "{load} of {total} in {of}");
            }
        }
    }
}
