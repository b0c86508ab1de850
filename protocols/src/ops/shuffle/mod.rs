//! Shuffle of shared rows by a permutation that neither party knows, and its inverse.
//!
//! **Functionality.** Per batch row, shares of n items of w columns and two permutations, one known to each party ->
//! fresh shares of the permuted items. Column t is modulo 2^{w_t}; width 1 is exclusive-or. The items are permuted by
//! the client's permutation and then by the server's. The inverse shuffle permutes them by the inverse of the
//! server's permutation and then by the inverse of the client's, which restores the order.
//!
//! **Source.** A pass permutes by one party's permutation pi. That party is the permuter, the other is the supplier.
//! As in the permutation correlations of Chase, Ghosh and Poburinnaya (ASIACRYPT 2020):
//!
//! ```text
//! offline:  the supplier gets random a and b, the permuter gets c, with b + c = pi(a)
//! online:   the supplier sends x_s - a, of its share x_s
//!           the shares of the result are b and pi(x_p + x_s - a) + c
//! ```
//!
//! The correlation comes from a permutation network (as in Mohassel and Sadeghian, EUROCRYPT 2013; the wiring is that
//! of `waksman`). Each switch takes one correlated OT (Asharov et al., eprint 2013/552, section 5) of all columns:
//! out_0 = in_0 + s (in_1 - in_0), out_1 = in_0 + in_1 - out_0 for the permuter's bit s. The supplier's share of a
//! switch's outputs follows from its own pads, so it answers for the whole network at once.
//!
//! A party's own permutation decides neither branches nor addresses. It is drawn and routed by looking at all entries
//! each time, and applied by the switches of the network.
//!
//! **Range.** Any words, 1 <= w_t <= 64; n < 2^31. **Error.** None, modulo 2^{w_t}.
//!
//! **What each party sees.** Its own permutation; choice bits masked by random choice bits; OT answers under pads, of
//! which it knows one per switch; x_s - a for a fresh uniform a, which is a one-time pad. **Revealed.** Nothing: to
//! either party the composed permutation is uniform, because the other's is.
//!
//! *Cost.* Offline, each switch takes one OT, sum w_t bits and one choice bit; both passes together take three flows.
//! Online, each pass is one message of n sum w_t bits.

mod waksman;

use ndarray::s;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use waggle_ot::{Bits, ChosenKeys, SenderKeys};

use crate::operation::prelude::*;
use crate::ops::quickselect::random_orders;
use crate::ops::{batch_items, batched_cost};
use crate::wire::opening;
use waksman::{Network, same, select};

/// Uniformly random permutations of `items` items for each of `rows` rows. Between two parties neither knows them:
/// each is composed of two, of which each party knows one. Free.
#[derive(Clone, Copy, Debug)]
pub struct Permute {
    /// Rows.
    pub rows: usize,
    /// Items of a row, below 2^31.
    pub items: usize,
}

/// What a box knows of secret permutations of the items of several rows. Several tensors shuffled by the same
/// permutations keep corresponding items together. Every shuffle makes its own correlations.
#[derive(Clone)]
pub struct Permutations {
    rows: usize,
    items: usize,
    known: Known,
}

#[derive(Clone)]
enum Known {
    /// In a plan: nothing but the sizes.
    Sizes,
    /// In the clear: item j of a row comes from its item `orders[row][j]`.
    Orders(Vec<Vec<usize>>),
    /// Between two parties: this party's own permutations, as the settings of the network's switches for each row.
    Switches(Vec<Vec<bool>>),
}

impl Operation for Permute {
    type Input<'a, F: Form> = ();
    type Output<F: Form> = Permutations;
    type Size = ();

    fn size<F: Form>(&self, _: &()) {}

    fn cost(&self, _: &(), _: bool, _: &mut Plans) -> Result<Cost, Error> {
        Ok(Cost::free())
    }

    /// Addresses and branches do not depend on what is drawn.
    fn run(&self, s: &mut Session, _: (), _: Option<&[u64]>) -> Result<Permutations, Error> {
        let Permute { rows, items } = *self;
        Ok(Permutations { rows, items, known: Known::Switches(random(s.rng(), rows, items)) })
    }

    fn reference(&self, reference: &mut Reference, _: ()) -> Result<Permutations, Error> {
        reference.drawn += 1;
        let Permute { rows, items } = *self;
        let orders = random_orders(&mut StdRng::seed_from_u64(reference.drawn), rows, items);
        Ok(Permutations { rows, items, known: Known::Orders(orders) })
    }

    fn planned(&self, _: ()) -> Permutations {
        let Permute { rows, items } = *self;
        Permutations { rows, items, known: Known::Sizes }
    }
}

/// One party's switches of uniform and independent permutations of `n` items, row by row.
pub(crate) fn random(rng: &mut impl Rng, rows: usize, n: usize) -> Vec<Vec<bool>> {
    let row = |_| {
        let mut switches = Vec::with_capacity(waksman::switches(n));
        waksman::route(&order(rng, n as u32), &mut switches);
        switches
    };
    (0..rows).map(row).collect()
}

/// (rows, n, w): the n items of every row, permuted by the row's permutation or, if `inverse`, moved back to their
/// original order.
#[derive(Clone, Copy, Debug)]
pub struct Shuffle<'w> {
    /// Column t of an item is a word modulo `2^widths[t]`; a single width stands for all columns.
    pub widths: &'w [u32],
    /// Whether the original order is restored.
    pub inverse: bool,
}

impl Shuffle<'_> {
    /// The width of every column.
    fn column_widths(&self, columns: usize) -> Vec<u32> {
        match *self.widths {
            [width] => vec![width; columns],
            _ => {
                assert_eq!(self.widths.len(), columns, "a width for every column");
                self.widths.to_vec()
            }
        }
    }
}

impl Operation for Shuffle<'_> {
    type Input<'a, F: Form> = (&'a Permutations, &'a F::Words);
    type Output<F: Form> = F::Words;
    /// Number of rows, of items of a row, and of columns of an item.
    type Size = [usize; 3];

    fn size<F: Form>(&self, (permutations, x): &(&Permutations, &F::Words)) -> [usize; 3] {
        let Permutations { rows, items, .. } = **permutations;
        match x.shape()[..] {
            [r, n, columns] if [r, n] == [rows, items] => [rows, items, columns],
            ref shape => panic!("{shape:?} for {rows} permutations of {items}"),
        }
    }

    fn cost(&self, &[rows, items, columns]: &[usize; 3], _: bool, _: &mut Plans) -> Result<Cost, Error> {
        Ok(cost(rows, items, &self.column_widths(columns), self.inverse))
    }

    fn run(
        &self,
        s: &mut Session,
        (permutations, x): (&Permutations, &ArrayD<u64>),
        _: Option<&[u64]>,
    ) -> Result<ArrayD<u64>, Error> {
        let Known::Switches(switches) = &permutations.known else { panic!("permutations of another box") };
        let widths = self.column_widths(x.shape()[2]);
        Ok(shaped(x.shape(), shuffle(s, switches, permutations.items, &flat(x), &widths, self.inverse)?))
    }

    /// Words stay as they are. A word that fits its width neither signed nor unsigned is refused.
    fn reference(
        &self,
        reference: &mut Reference,
        (permutations, x): (&Permutations, &ArrayD<u64>),
    ) -> Result<ArrayD<u64>, Error> {
        let Known::Orders(orders) = &permutations.known else { panic!("permutations of another box") };
        let widths = self.column_widths(x.shape()[2]);
        for (&v, &width) in x.iter().zip(widths.iter().cycle()) {
            if v != v & mask(width) && v != signed(v, width) as u64 {
                let high = i128::from(mask(width));
                return Err(reference.out_of_range("shuffle", (v as i64).into(), -(high + 1) / 2, high));
            }
        }
        let mut out = x.clone();
        for (row, order) in orders.iter().enumerate() {
            for (j, &i) in order.iter().enumerate() {
                let (from, to) = if self.inverse { (j, i) } else { (i, j) };
                out.slice_mut(s![row, to, ..]).assign(&x.view().slice(s![row, from, ..]));
            }
        }
        Ok(out)
    }

    fn planned(&self, shape: [usize; 3]) -> crate::Shape {
        crate::Shape(shape.to_vec())
    }
}

const CHOICES: &str = "shuffle/choices";
const ANSWER: &str = "shuffle/answer";
const ANSWER_AND_CHOICES: &str = "shuffle/answer and choices";
const DIFFERENCE: &str = "shuffle/difference";

/// A uniformly random order of 0..n, by Fisher and Yates' shuffle. Every exchange looks at all entries, so that no
/// address depends on the order.
fn order(rng: &mut impl Rng, n: u32) -> Vec<u32> {
    let mut order: Vec<u32> = (0..n).collect();
    for last in (1..n).rev() {
        let at = below(rng, last + 1);
        let [rest @ .., end] = &mut order[..=last as usize] else { unreachable!("two entries at least") };
        let mut picked = *end & same(last, at);
        for (i, entry) in (0..).zip(rest) {
            let here = same(i, at);
            picked |= *entry & here;
            *entry = select(here, *end, *entry);
        }
        *end = picked;
    }
    order
}

/// A uniform number below `bound`, which is at least 1: the whole part of the bound times a random fraction (Lemire,
/// 2019). A few fractions are drawn again. That says nothing about the number, because every number keeps equally
/// many fractions.
fn below(rng: &mut impl Rng, bound: u32) -> u32 {
    let excess = bound.wrapping_neg() % bound;
    loop {
        let product = u64::from(rng.next_u32()) * u64::from(bound);
        if product as u32 >= excess {
            return (product >> 32) as u32;
        }
    }
}

/// The shape of rows: `n` items, with columns of the widths `widths`. Also the network that permutes the items.
struct Shape<'a> {
    n: usize,
    widths: &'a [u32],
    network: Network,
}

impl<'a> Shape<'a> {
    fn new(n: usize, widths: &'a [u32], inverse: bool) -> Self {
        let network = Network::new(n);
        Shape { n, widths, network: if inverse { network.reversed() } else { network } }
    }

    fn columns(&self) -> usize {
        self.widths.len()
    }

    /// Number of words of a row.
    fn words(&self) -> usize {
        self.n * self.columns()
    }

    fn switches(&self) -> usize {
        self.network.switches.len()
    }

    /// Bytes of the answers for `rows` rows.
    fn answer_bytes(&self, rows: usize) -> usize {
        waggle_bits::packed_bytes(rows * self.switches() * self.columns(), self.widths)
    }
}

/// This party's half of a permutation correlation for all rows.
enum Half {
    /// a and b.
    Supplier(Vec<u64>, Vec<u64>),
    /// The settings of the switches, and c.
    Permuter(Bits, Vec<u64>),
}

/// Shares of the permuted `x`, reduced to their widths. `x` has a row for each of `switches`, a row has `n` items,
/// and an item has a word for each of `widths`.
fn shuffle(
    s: &mut Session,
    switches: &[Vec<bool>],
    n: usize,
    x: &[u64],
    widths: &[u32],
    inverse: bool,
) -> Result<Vec<u64>, Error> {
    assert_eq!(x.len(), switches.len() * n * widths.len(), "words of the rows to shuffle");
    let reduce = |x: u64, i: usize| x & mask(widths[i % widths.len()]);
    let mut x: Vec<u64> = x.iter().enumerate().map(|(i, &x)| reduce(x, i)).collect();
    if n < 2 || x.is_empty() {
        return Ok(x);
    }
    let shape = Shape::new(n, widths, inverse);
    // Correlations of both passes: the one in which the client permutes, and the one in which the server does.
    let mut halves: [Vec<Half>; 2] = [vec![], vec![]];
    for rows in switches.chunks(batch_rows(n, widths.len())) {
        // The inverse network has its switches in the reverse order.
        let place = |i: usize| if inverse { shape.switches() - 1 - i } else { i };
        let bit = |i: usize| rows[i / shape.switches()][place(i % shape.switches())];
        let switches = Bits::from_fn(rows.len() * shape.switches(), bit);
        let [client, server] = s.offline(|s| correlations(s, &shape, &switches, rows.len()))?;
        halves[0].push(client);
        halves[1].push(server);
    }
    let [client, server] = halves;
    let passes = if inverse {
        [(Role::Server, server), (Role::Client, client)]
    } else {
        [(Role::Client, client), (Role::Server, server)]
    };
    for (permuter, halves) in passes {
        x = pass(s, &shape, permuter, halves, &x)?;
    }
    Ok(x)
}

fn cost(rows: usize, n: usize, widths: &[u32], inverse: bool) -> Cost {
    if n < 2 || rows == 0 || widths.is_empty() {
        return Cost::free();
    }
    let bytes = |rows: usize| waggle_bits::packed_bytes(rows * waksman::switches(n) * widths.len(), widths);
    let offline = batched_cost(rows, batch_rows(n, widths.len()), |rows| {
        let ots = rows * waksman::switches(n);
        let choices = ots.div_ceil(8);
        Cost::free()
            .cots(Role::Server, ots)
            .cots(Role::Client, ots)
            .message(Role::Client, choices)
            .work(Role::Server, Kernel::Pad, 2 * ots * widths.len().div_ceil(2))
            .work(Role::Server, Kernel::Word, ots * widths.len())
            .message(Role::Server, bytes(rows) + choices)
            .work(Role::Client, Kernel::Pad, 3 * ots * widths.len().div_ceil(2))
            .work(Role::Client, Kernel::Word, 2 * ots * widths.len())
            .message(Role::Client, bytes(rows))
            .work(Role::Server, Kernel::Pad, ots * widths.len().div_ceil(2))
            .work(Role::Server, Kernel::Word, ots * widths.len())
    });
    let difference = waggle_bits::packed_bytes(rows * n * widths.len(), widths);
    let (first, second) = if inverse { (Role::Client, Role::Server) } else { (Role::Server, Role::Client) };
    let words = rows * n * widths.len();
    offline
        .offline()
        .work_at_both(Kernel::OpenWord, words)
        .message(first, difference)
        .message(second, difference)
        .work_at_both(Kernel::OpenWord, words)
}

/// Number of rows whose correlations are made at once.
fn batch_rows(n: usize, columns: usize) -> usize {
    batch_items(waksman::switches(n) * columns.div_ceil(4))
}

/// The correlations of a batch of rows: those of the client's permutations, then those of the server's.
fn correlations(s: &mut Session, shape: &Shape<'_>, bits: &Bits, rows: usize) -> Result<[Half; 2], Error> {
    let ots = rows * shape.switches();
    let (choices, answer) = (ots.div_ceil(8), shape.answer_bytes(rows));
    s.reserve(Role::Server, ots)?;
    s.reserve(Role::Client, ots)?;
    let (permuter, supplier) = match s.role() {
        Role::Client => {
            let (message, keys) = s.receiver().choose(bits)?;
            s.deliver(CHOICES, message)?;
            let reply = s.channel().recv(ANSWER_AND_CHOICES, answer + choices)?;
            let (theirs, choices) = reply.split_at(answer);
            let accepted = s.sender().accept(ots, choices)?;
            let (message, supplier) = supply(s, shape, rows, accepted)?;
            s.deliver(ANSWER, message)?;
            (permute(shape, rows, keys, theirs)?, supplier)
        }
        Role::Server => {
            let theirs = s.channel().recv(CHOICES, choices)?;
            let accepted = s.sender().accept(ots, &theirs)?;
            let (mut message, supplier) = supply(s, shape, rows, accepted)?;
            let (mine, keys) = s.receiver().choose(bits)?;
            message.extend_from_slice(&mine);
            s.deliver(ANSWER_AND_CHOICES, message)?;
            let answer = s.channel().recv(ANSWER, answer)?;
            (permute(shape, rows, keys, &answer)?, supplier)
        }
    };
    Ok(match s.role() {
        Role::Client => [permuter, supplier],
        Role::Server => [supplier, permuter],
    })
}

/// The supplier's answers for whole networks on random inputs a, and its half of the correlation.
fn supply(s: &mut Session, shape: &Shape<'_>, rows: usize, keys: SenderKeys) -> Result<(Vec<u8>, Half), Error> {
    let columns = shape.columns();
    let a: Vec<u64> =
        (0..rows * shape.words()).map(|i| s.rng().next_u64() & mask(shape.widths[i % columns])).collect();
    let [pads0, pads1] = keys.into_rows(shape.widths)?;
    let per_row = shape.switches() * columns;
    let mut answers = vec![0; rows * per_row];
    let mut b = Vec::with_capacity(a.len());
    for (row, a) in a.chunks_exact(shape.words()).enumerate() {
        let mut wires = place(shape, a);
        for (switch, &[upper, lower]) in shape.network.switches.iter().enumerate() {
            let at = row * per_row + switch * columns;
            for t in 0..columns {
                let (x, y) = (wires[upper * columns + t], wires[lower * columns + t]);
                let difference = y.wrapping_sub(x);
                // The share of s (y - x) is minus the pad of choice 0.
                answers[at + t] = pads0[at + t].wrapping_add(pads1[at + t]).wrapping_add(difference);
                let first = x.wrapping_sub(pads0[at + t]);
                wires[upper * columns + t] = first;
                wires[lower * columns + t] = x.wrapping_add(y).wrapping_sub(first);
            }
        }
        collect(shape, &wires, &mut b);
    }
    Ok((waggle_bits::pack(&answers, shape.widths), Half::Supplier(a, b)))
}

/// The permuter's half of the correlation from the supplier's answers.
fn permute(shape: &Shape<'_>, rows: usize, keys: ChosenKeys, message: &[u8]) -> Result<Half, Error> {
    let columns = shape.columns();
    let per_row = shape.switches() * columns;
    let answers = waggle_bits::unpack(ANSWER, message, rows * per_row, shape.widths)?;
    let bits = keys.choices().clone();
    let pads = keys.into_rows(shape.widths)?;
    let mut c = Vec::with_capacity(rows * shape.words());
    for row in 0..rows {
        let mut wires = vec![0u64; shape.words()];
        for (switch, &[upper, lower]) in shape.network.switches.iter().enumerate() {
            let set = bits.get(row * shape.switches() + switch).wrapping_neg();
            let at = row * per_row + switch * columns;
            for t in 0..columns {
                let (x, y) = (wires[upper * columns + t], wires[lower * columns + t]);
                let pad = pads[at + t];
                // For choice 0, the pad. For choice 1, the answer minus the pad, plus this party's own y - x.
                let extra = answers[at + t].wrapping_sub(pad).wrapping_sub(pad).wrapping_add(y.wrapping_sub(x));
                let first = x.wrapping_add(pad).wrapping_add(set & extra);
                wires[upper * columns + t] = first;
                wires[lower * columns + t] = x.wrapping_add(y).wrapping_sub(first);
            }
        }
        collect(shape, &wires, &mut c);
    }
    Ok(Half::Permuter(bits, c))
}

/// Puts the items of a row on their input wires.
fn place(shape: &Shape<'_>, row: &[u64]) -> Vec<u64> {
    let columns = shape.columns();
    let mut wires = vec![0; row.len()];
    for (wire, item) in shape.network.inputs.iter().zip(row.chunks_exact(columns)) {
        wires[wire * columns..(wire + 1) * columns].copy_from_slice(item);
    }
    wires
}

/// Appends the items on the output wires to `out`, reduced to their widths.
fn collect(shape: &Shape<'_>, wires: &[u64], out: &mut Vec<u64>) {
    for wire in &shape.network.outputs {
        let item = &wires[wire * shape.columns()..(wire + 1) * shape.columns()];
        out.extend(item.iter().zip(shape.widths).map(|(x, &width)| x & mask(width)));
    }
}

/// One pass over all rows: shares of the items permuted by `permuter`'s permutations.
fn pass(s: &mut Session, shape: &Shape<'_>, permuter: Role, halves: Vec<Half>, x: &[u64]) -> Result<Vec<u64>, Error> {
    if s.role() == permuter {
        let message = s.channel().recv(DIFFERENCE, waggle_bits::packed_bytes(x.len(), shape.widths))?;
        let theirs = waggle_bits::unpack(DIFFERENCE, &message, x.len(), shape.widths)?;
        opening::note(s, "", 0, &theirs, shape.widths);
        let sum: Vec<u64> = x.iter().zip(theirs).map(|(x, d)| x.wrapping_add(d)).collect();
        let mut out = Vec::with_capacity(x.len());
        let mut rows = sum.chunks_exact(shape.words());
        for half in halves {
            let Half::Permuter(bits, c) = half else { unreachable!("the permuter's correlations") };
            let mut c = c.chunks_exact(shape.words());
            let mut set = (0..bits.len()).map(|i| bits.get(i).wrapping_neg());
            let mut moved = Vec::with_capacity(shape.words());
            for (c, row) in c.by_ref().zip(rows.by_ref()) {
                // Through the network once more, so that no address depends on the permutation.
                let mut wires = place(shape, row);
                for (&[upper, lower], set) in shape.network.switches.iter().zip(set.by_ref()) {
                    for t in 0..shape.columns() {
                        let (x, y) = (upper * shape.columns() + t, lower * shape.columns() + t);
                        let change = (wires[x] ^ wires[y]) & set;
                        wires[x] ^= change;
                        wires[y] ^= change;
                    }
                }
                moved.clear();
                collect(shape, &wires, &mut moved);
                let words = moved.iter().zip(c).zip(shape.widths.iter().cycle());
                out.extend(words.map(|((x, c), &width)| x.wrapping_add(*c) & mask(width)));
            }
        }
        return Ok(out);
    }
    let (mut difference, mut out) = (Vec::with_capacity(x.len()), Vec::with_capacity(x.len()));
    for half in halves {
        let Half::Supplier(a, b) = half else { unreachable!("the supplier's correlations") };
        opening::spend(s, "", a.iter().copied(), shape.widths)?;
        let x = &x[difference.len()..];
        difference.extend(x.iter().zip(a).map(|(x, a)| x.wrapping_sub(a)));
        out.extend(b);
    }
    s.deliver(DIFFERENCE, waggle_bits::pack(&difference, shape.widths))?;
    Ok(out)
}
