//! Correlations from a helper: a third machine that deals them and never sees a value.
//!
//! **Functionality.** As [`Correlation::make`](crate::correlation::Correlation::make). Products with weights are
//! dealt by their [`halves`](crate::halves). Each party expands most of its words from a seed. The helper, who has
//! the seeds of both, computes the remaining words and sends each to the party that lacks it. For a product, for
//! instance, it sends one word to the server.
//!
//! **One code for three machines.** The helper and both parties run the same function `deal` of a kind. A `deal`
//! draws words, gives words, and puts them together. Words that a machine does not know are empty vectors there. A
//! fourth way to run a `deal` has no words at all and counts the bytes.
//!
//! **When.** Either everything before the session's first pass, or pass by pass
//! ([`HelperDeals::Passes`](crate::HelperDeals)). Pass by pass, the masks of a cached operand go on where those of
//! the previous pass ended.
//!
//! **What each party sees.** Its own seed, and words that are masked by draws of the other party or are uniform by
//! themselves. **What the helper sees.** Kinds and amounts, nothing that depends on data. Together with either party,
//! it could compute everything that the other party hides: no two of the three may collude.

pub(crate) mod dealing;
mod demand;
mod helper;
mod party;

pub use dealing::Dealing;
pub(crate) use demand::operand_name;
pub use demand::{Demand, DemandError, OperandName, rows};
pub use helper::{Helper, SEED_BYTES};
pub use party::HelperLink;

pub use crate::ops::dealt::Dealt;

#[cfg(test)]
mod tests {
    use waggle_net::Role;
    use zeroize::Zeroizing;

    use super::party::Receiver;
    use super::*;
    use crate::cached::{Event, Events, OperandForm};
    use crate::halves::Halves;
    use crate::ops::carry::Carry;
    use crate::ops::fss::threshold::Comparison;
    use crate::ops::matmul::Triple;
    use crate::ops::mul::RowProduct;
    use crate::ops::mux_columns::Selection;
    use crate::ops::scaled_squares::ScaledSquares;
    use crate::ops::sum_squares::Squares;
    use crate::ops::truncate::Wrap;
    use crate::words::mask;
    use crate::{Error, HelperDeals};

    /// The client's words and the server's for `demand`. `spoil` may change the two messages of each batch before the
    /// parties get them.
    fn dealt(demand: &Demand, spoil: impl Fn(&mut [Vec<u8>; 2])) -> [Vec<u64>; 2] {
        let mut helper = Helper::new(HelperDeals::Words, &mut rand::rng());
        let mut receivers =
            [Role::Client, Role::Server].map(|role| Receiver::new(role, helper.seeds(role), HelperDeals::Words));
        let mut messages: [Vec<Vec<u8>>; 2] = Default::default();
        helper
            .deal(demand, &Halves::default(), |mut batch| {
                spoil(&mut batch);
                messages.iter_mut().zip(batch).for_each(|(all, message)| all.push(message));
                Ok::<_, Error>(())
            })
            .unwrap();
        let mut words: [Vec<u64>; 2] = Default::default();
        for ((receiver, messages), words) in receivers.iter_mut().zip(messages).zip(&mut words) {
            let mut messages = messages.into_iter().filter(|message| !message.is_empty());
            let next = |bytes| {
                let message = messages.next().unwrap();
                assert_eq!(message.len(), bytes);
                Ok(message)
            };
            let keep = |batch: Zeroizing<Vec<u64>>| {
                words.extend_from_slice(&batch);
                Ok(())
            };
            receiver.take(demand, None, next, keep).unwrap();
        }
        words
    }

    #[test]
    fn products_are_right_in_uneven_batches_and_a_changed_bit_shows() {
        let (units, width) = (103, 37);
        let demand =
            Demand::Units { kind: Dealt::RowProduct(RowProduct { n: 1, width, error_bits: 0 }), units, batch: 40 };
        let wrong = |spoil: fn(&mut [Vec<u8>; 2])| {
            let [client, server] = dealt(&demand, spoil);
            let units = client.as_chunks::<3>().0.iter().zip(server.as_chunks::<3>().0);
            let sum = |a: u64, b: u64| a.wrapping_add(b);
            let right = |(c, s): (&[u64; 3], &[u64; 3])| {
                let [a, b, ab] = [0, 1, 2].map(|i| sum(c[i], s[i]));
                a.wrapping_mul(b).wrapping_sub(ab) & mask(width) == 0
            };
            assert_eq!(client.len(), 3 * 103);
            units.filter(|unit| !right(*unit)).count()
        };
        assert_eq!(wrong(|_| ()), 0);
        assert_eq!(wrong(|[_, server]| server[0] ^= 1), 3, "one in every batch");
    }

    #[test]
    fn a_session_has_seeds_of_its_own() {
        let demand = Demand::Units { kind: Dealt::Wrap(Wrap { bits: 40 }), units: 50, batch: 50 };
        let [a, b] = [(); 2].map(|()| dealt(&demand, |_| ()));
        assert_ne!(a[0], b[0]);
        assert_ne!(a[1], b[1]);
        assert_ne!(a[0], a[1]);
    }

    #[test]
    fn demands_out_of_range_are_refused() {
        let many = |kind, units, batch| Demand::Units { kind, units, batch };
        let units = |kind, batch| many(kind, 5000, batch);
        let batched = |list: &[[usize; 2]], batch| {
            let form = OperandForm { batch: 1, d: 8, axis: waggle_engine::Axis::Rows, width: 40 };
            let list = list.iter().map(|&[m, tokens]| Event { m, tokens }).collect();
            let name = (0, waggle_engine::OperandKind::Keys, 0, 0);
            Demand::Operand { name, events: Events { form, list }, batch }
        };
        let operand = |list: &[[usize; 2]]| batched(list, 1);
        assert!(units(Dealt::Wrap(Wrap { bits: 63 }), 1000).check().is_ok());
        assert!(operand(&[[1, 2], [1, 3]]).check().is_ok());
        for bad in [
            units(Dealt::Wrap(Wrap { bits: 64 }), 10),
            units(Dealt::Wrap(Wrap { bits: 5 }), 0),
            many(Dealt::Wrap(Wrap { bits: 5 }), usize::MAX, 1),
            many(Dealt::Wrap(Wrap { bits: 5 }), usize::MAX, usize::MAX),
            units(Dealt::Squares(Squares { n: 0, width: 8 }), 1),
            units(Dealt::Comparison(Comparison { width: 30 }), 1),
            units(Dealt::Carry(Carry { bits: 64 }), 1),
            units(Dealt::Triple(Triple { batch: usize::MAX, m: 2, k: 2, n: 2, width: 8 }), 1),
            units(Dealt::Squares(Squares { n: 4, width: 65 }), 1),
            units(Dealt::ScaledSquares(ScaledSquares { n: 4, width: 40, scaled: 41 }), 1),
            units(Dealt::ScaledSquares(ScaledSquares { n: usize::MAX, width: 40, scaled: 40 }), 1),
            units(Dealt::Selection(Selection { widths: vec![0], words: 1 }), 1),
            operand(&[[1, 3], [1, 2]]),
            operand(&[[1, usize::MAX]]),
            batched(&[[1, 2]], u64::MAX),
        ] {
            let error = bad.check().expect_err("out of range");
            assert!(error.demand.len() <= 200, "{error}");
        }
    }
}
