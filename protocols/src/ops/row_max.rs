//! The largest entry of every row, by a tournament of groups.
//!
//! **Functionality.** Shares of rows of words modulo 2^w, of different public lengths -> shares of the largest entry
//! of every row modulo 2^w.
//!
//! **Source.** A tournament whose rounds have groups of up to g entries:
//!
//! ```text
//! while a row has more than one entry:
//!     cut every row into groups of up to g entries
//!     compare every pair i < j of a group once: i wins it if x_i >= x_j
//!     select x_i - x_last of every i but the last that wins all its pairs
//!     the winner is x_last plus what was selected
//! ```
//!
//! The comparisons ([`compare`]) are exact, so exactly one entry of a group wins all its pairs. The selection is
//! [`mux_all`] by the outcomes of the entry's k = g - 1 comparisons. In smaller groups some of these bits are the
//! public bit 1. Neighbouring messages of one party are one flow, so a round takes four flows.
//!
//! Larger groups take fewer rounds and more comparisons of each entry. The parties choose the rounds that take the
//! least time for the given lengths and link. Groups are small on fast links and for many rows.
//!
//! **Range.** Entries, and differences of entries of a row, are signed w-bit values. Every row has at least one
//! entry. **Error.** None. **Revealed.** Nothing.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use crate::Lengths;
use crate::lengths::Counts;
use crate::operation::prelude::*;
use crate::ops::{compare, mux_all};
use crate::plans::RoundPrices;

/// The largest entry of every row of `lengths` in the vector x, exactly: (rows) modulo 2^`width`.
#[derive(Clone, Copy, Debug)]
pub struct RowMax<'l> {
    /// Entries of every row, each at least 1.
    pub lengths: &'l Lengths,
    /// Bits of the ring, 2..=64.
    pub width: u32,
}

impl Operation for RowMax<'_> {
    type Input<'a, F: Form> = &'a F::Words;
    type Output<F: Form> = F::Words;
    type Size = ();

    fn size<F: Form>(&self, x: &&F::Words) {
        assert_eq!(x.shape(), [self.lengths.total()], "entries of the rows");
    }

    fn cost(&self, _: &(), _: bool, plans: &mut Plans) -> Result<Cost, Error> {
        let (mut rows, mut cost) = (self.lengths.counts().clone(), Cost::free());
        for &arity in &*rounds(&rows, self.width, plans) {
            let Round { pairs, items, bits } = Round::of(rows.iter(), arity);
            cost = cost.then(compare::cost(pairs, 1, self.width)).then(mux_all::cost(items, bits, self.width));
            rows = rows.divided(arity);
        }
        Ok(cost)
    }

    fn run(&self, s: &mut Session, x: &ArrayD<u64>, _: Option<&[u64]>) -> Result<ArrayD<u64>, Error> {
        let (mut x, mut lengths) = (flat(x), self.lengths.clone());
        for &arity in &*rounds(lengths.counts(), self.width, s.plans()) {
            x = round(s, &x, &lengths, arity, self.width)?;
            lengths = lengths.map(|n| n.div_ceil(arity));
        }
        Ok(shaped(&[self.lengths.rows()], x))
    }

    fn reference(&self, reference: &mut Reference, x: &ArrayD<u64>) -> Result<ArrayD<u64>, Error> {
        let mut values = x.iter().map(|&v| signed(v, self.width));
        let span = (1i128 << (self.width - 1)) - 1;
        let mut maxima = Vec::with_capacity(self.lengths.rows());
        for n in self.lengths.iter() {
            let row = values.by_ref().take(n);
            let (least, most) = row.fold((i64::MAX, i64::MIN), |(least, most), v| (least.min(v), most.max(v)));
            let difference = i128::from(most) - i128::from(least);
            if difference > span {
                return Err(reference.out_of_range("row_max", difference, 0, span));
            }
            maxima.push(most as u64);
        }
        Ok(shaped(&[self.lengths.rows()], maxima))
    }

    fn planned(&self, _: ()) -> Shape {
        Shape(vec![self.lengths.rows()])
    }
}

/// Number of entries of the largest group. In larger groups, the tables cost more than the saved rounds are worth.
const LARGEST_GROUP: usize = 8;

/// Flows of a round. The last message of a round and the first message of the next one come from the same party, so
/// they are one flow.
const ROUND_FLOWS: u64 = 4;

/// Picoseconds of processor time for an OT and for a byte sent, both parties one after the other: measured, rounded.
const OT_PICOSECONDS: u128 = 90_000;
const BYTE_PICOSECONDS: u128 = 12_000;

/// The sizes of the groups of a row of `n` entries, as equal as possible: (larger size, number of such groups),
/// (smaller size, number of such groups).
fn groups(n: usize, arity: usize) -> [(usize, usize); 2] {
    let groups = n.div_ceil(arity);
    let (size, larger) = (n / groups, n % groups);
    [(size + 1, larger), (size, groups - larger)]
}

/// The sizes of all groups of all rows, in order.
fn sizes(lengths: &Lengths, arity: usize) -> impl Iterator<Item = usize> + '_ {
    lengths.iter().flat_map(move |n| groups(n, arity)).flat_map(|(size, count)| std::iter::repeat_n(size, count))
}

struct Round {
    pairs: usize,
    /// Number of entries that take part in a selection: all but the last of every group.
    items: usize,
    /// Number of bits by which each of these entries is selected.
    bits: usize,
}

impl Round {
    fn of(rows: impl IntoIterator<Item = (usize, usize)>, arity: usize) -> Self {
        let mut round = Round { pairs: 0, items: 0, bits: 0 };
        for (n, rows) in rows {
            for (size, count) in groups(n, arity).into_iter().filter(|&(_, count)| count > 0) {
                round.pairs += rows * count * (size * (size - 1) / 2);
                round.items += rows * count * (size - 1);
                round.bits = round.bits.max(size - 1);
            }
        }
        round
    }
}

/// [`arities`], searched for once for each width and `rows`.
fn rounds(rows: &Counts, width: u32, plans: &mut Plans) -> Arc<[usize]> {
    plans.rounds(rows, width, |options| prices(width, options), |prices| arities(rows, prices))
}

/// The prices of the parts of a round on words of `width` bits, for the rate and the delay of the link.
fn prices(width: u32, options: &Options) -> RoundPrices {
    let sample = 1 << 10;
    let price = |cost: Cost| {
        let cots = u128::from(cost.cots_used(waggle_net::Role::Client) + cost.cots_used(waggle_net::Role::Server));
        let bits = u128::from(8 * cost.total_bytes()) + cots * options.ot.bits_per_ot() as u128;
        let wire = bits * 125_000_000_000 / u128::from(options.link.bytes_per_second.max(1));
        (wire + cots * OT_PICOSECONDS + u128::from(cost.total_bytes()) * BYTE_PICOSECONDS) / sample as u128
    };
    RoundPrices {
        pair: price(compare::cost(sample, 1, width)),
        item: (1..LARGEST_GROUP).map(|bits| price(mux_all::cost(sample, bits, width))).collect(),
        delay: options.link.predict([0, 0], ROUND_FLOWS).as_nanos() * 1000,
    }
}

/// The fastest rounds that lead to a product: the sizes of their groups multiply to the entry with the same index in
/// the list of products.
#[derive(Clone, Copy, Debug)]
struct Path {
    time: u128,
    /// The index of the path that lacks the last round.
    before: usize,
    /// The size of the groups of the last round.
    arity: usize,
}

/// A product of sizes of groups, in a list of products.
#[derive(Clone)]
struct Product {
    value: usize,
    /// The indices in the list of this product's multiples by 2, 3, ... [`LARGEST_GROUP`], where the list has them.
    next: [Option<usize>; LARGEST_GROUP - 1],
}

/// All products of sizes of groups up to the first one that is at least `most`, ascending.
fn products_up_to(most: usize) -> Vec<Product> {
    let mut values = BTreeSet::from([1]);
    let mut value = 1;
    while value < most {
        values.extend((2..=LARGEST_GROUP).map(|arity| value * arity));
        value = values.range(value + 1..).next().copied().expect("twice the value");
    }
    let values: Vec<usize> = values.into_iter().take_while(|other| *other <= value).collect();
    let place = |value: usize| values.binary_search(&value).ok();
    let next = |value: usize| std::array::from_fn(|i| place(value * (i + 2)));
    values.iter().map(|&value| Product { value, next: next(value) }).collect()
}

/// All products of group sizes, from 1 to the least one that is `longest` or more. The list may go on beyond it.
fn products(longest: usize) -> Cow<'static, [Product]> {
    const MOST: usize = 1 << 20;
    static KNOWN: LazyLock<Vec<Product>> = LazyLock::new(|| products_up_to(MOST));
    if longest <= MOST { Cow::Borrowed(&**KNOWN) } else { Cow::Owned(products_up_to(longest)) }
}

/// The sizes of the groups in each round, for the rounds that take least time on the link.
fn arities(rows: &Counts, prices: &RoundPrices) -> Vec<usize> {
    assert!(rows.iter().all(|(n, _)| n > 0), "entries of every row");
    // A round of g and one of h leave as many winners of a row as one of g h. So this is the shortest path over
    // products to the longest row. All products that are no less are one end.
    let products = products(rows.longest());
    let end = products.partition_point(|product| product.value < rows.longest());
    let mut paths: Vec<Option<Path>> = vec![None; end + 1];
    paths[0] = Some(Path { time: 0, before: 0, arity: 1 });
    // Numbers of winners that are left here, and at the last path that was continued.
    let (mut left, mut left_last, mut time_last) = (Vec::new(), Vec::new(), 0);
    for (place, product) in products[..end].iter().enumerate() {
        let Some(Path { time, .. }) = paths[place] else { continue };
        rows.divide_into(product.value, &mut left);
        // A path cannot become the best if a faster one leads to the end, or to as many winners.
        let ended = paths[end].is_some_and(|best| best.time <= time);
        let known = left == left_last && time_last <= time;
        if ended || known {
            continue;
        }
        for arity in 2..=LARGEST_GROUP {
            let Round { pairs, items, bits } = Round::of(left.iter().copied(), arity);
            let time = time + prices.delay + pairs as u128 * prices.pair + items as u128 * prices.item[bits - 1];
            let after = &mut paths[product.next[arity - 2].map_or(end, |next| next.min(end))];
            if after.is_none_or(|best| time < best.time) {
                *after = Some(Path { time, before: place, arity });
            }
        }
        std::mem::swap(&mut left, &mut left_last);
        time_last = time;
    }
    let mut arities = Vec::new();
    let mut place = end;
    while let Some(Path { before, arity, .. }) = paths[place].filter(|_| place > 0) {
        arities.push(arity);
        place = before;
    }
    arities.reverse();
    arities
}

/// The winners of all groups of up to `arity` entries, row by row.
fn round(s: &mut Session, x: &[u64], lengths: &Lengths, arity: usize, width: u32) -> Result<Vec<u64>, Error> {
    let mut groups = Vec::new();
    let mut rest = x;
    for size in sizes(lengths, arity) {
        let (group, others) = rest.split_at(size);
        rest = others;
        groups.push(group);
    }
    let pairs = |size: usize| (0..size).flat_map(move |i| (i + 1..size).map(move |j| (i, j)));
    let differences: Vec<u64> =
        groups.iter().flat_map(|group| pairs(group.len()).map(|(i, j)| group[i].wrapping_sub(group[j]))).collect();
    let first_wins = compare::at_least(s, &differences, &[0], width)?;

    let one = u8::from(s.is_server());
    let most = groups.iter().map(|group| group.len() - 1).max().unwrap_or(0);
    let (mut bits, mut words) = (Vec::new(), Vec::new());
    let mut outcomes = &first_wins[..];
    for group in &groups {
        let size = group.len();
        let (own, others) = outcomes.split_at(size * (size - 1) / 2);
        outcomes = others;
        // The outcome of pair (i, j). It lies after those of all pairs of entries before i.
        let wins = |i: usize, j: usize| own[i * (2 * size - i - 1) / 2 + j - i - 1];
        for i in 0..size - 1 {
            bits.extend((0..i).map(|j| wins(j, i) ^ one));
            bits.extend((i + 1..size).map(|j| wins(i, j)));
            bits.extend(std::iter::repeat_n(one, most - (size - 1)));
            words.push(group[i].wrapping_sub(group[size - 1]));
        }
    }
    let mut selected = mux_all::mux_all(s, &bits, &words, width)?.into_iter();
    let winner = |group: &&[u64]| {
        let (last, others) = group.split_last().expect("groups of at least one");
        selected.by_ref().take(others.len()).fold(*last, u64::wrapping_add)
    };
    Ok(groups.iter().map(winner).collect())
}
