//! A tabulated function of one variable by FSS keys: after preparation one masked word is opened.
//!
//! **Functionality.** Shares of x modulo 2^(index_bits + low_bits) -> shares of f(x) modulo 2^width. The table writes
//! f as sum_k c_k(n, low(y)) p_k(rho); see [`FssTable`]. `run` spends a correlation for each word.
//!
//! **Source.** Function secret sharing (FSS) with preparation (Boyle, Gilboa and Ishai, TCC 2019, eprint 2019/1095;
//! splines: eprint 2020/1392), without a dealer. A function is a vector with an entry for each window:
//!
//! ```text
//! prepare:  share a random mask r = R 2^low_bits + rho_0 + rho_1, and a key that expands to shares
//!           of the vector v with the payload p_k(rho) at position R and zeros elsewhere (ot::dpf)
//! run:      open y = x - r
//!           turn v by high(y); its inner product with the coefficients c_k for low(y) is the share of f(x)
//! ```
//!
//! Both parties touch all windows.
//!
//! *Preparation.* The bits of R are the parties' choices in random OTs. One correlated OT for each product of a pair
//! of bits makes additive shares of R modulo 2^index_bits. The payload is one of these:
//! - 1, or (1, rho), known in shares;
//! - (1, rho, rho^2), where the cross term of rho^2 is a product of two private numbers (Gilboa, CRYPTO 1999);
//! - a power e^-rho, which takes a product and a truncation.
//!
//! As a leaf of the tree has room for several windows, multiplexers by the last bits of R choose within it;
//! multiplexers by the first bits make the trees' first levels. A further level is one exchange. The sign of the
//! final correction is a multiplexer.
//!
//! **Range.** x in [0, (2^index_bits - 2) 2^low_bits); other inputs give garbage. **Error.** Lines and parabolas:
//! that of the table. Powers: a payload is off by less than a unit in its last place.
//!
//! **What each party sees.** While preparing: masked choices, pads and corrections, as `ot::dpf` says. Online: y,
//! which is used once and uniform modulo 2^(index_bits + low_bits), since R and the other party's rho are uniform.
//! The peer's share of y follows from y and its own. **Revealed.** Nothing.

pub mod counts;
mod dot;
pub mod ladder;
mod parabola;
pub mod table;
pub mod tails;
pub mod threshold;

use ot::dpf::{BLOCK_BITS, DpfShape, Expander, Generation, Lane, level_bytes};
use ot::{Bits, ChosenKeys, SenderKeys};
use rand::Rng;
use rayon::prelude::*;

use crate::operation::prelude::*;
use crate::ops::{Truncation, batch_items, batched_cost, mux, truncate};
use crate::wire::{cross, opening};
pub(crate) use parabola::Square;
use table::{FACTOR_FRAC, FssShape, FssTable, Payload, Powers, Windows, factor};

const INDEX: &str = "masked/index";
const TOP: &str = "masked/first levels";
const LEVEL: &str = "masked/level";

/// Leaves of the trees that grow at once, a bound on memory: 64 MiB of nodes.
const BATCH_LEAVES: usize = 1 << 23;

/// Inputs at once of which the bits of a leaf are prepared, a word each.
const BIT_LEAVES_AT_ONCE: usize = 1 << 13;

/// Bits of the ring of a product of two factors, which is below 2^(2 FACTOR_FRAC).
const POWER_WIDTH: u32 = 2 * FACTOR_FRAC + 2;

/// Most entries of one task of the thread pool.
const TASK: usize = 64;

/// Leaves of the largest trees of which a task has so many.
const TASK_LEAVES: usize = 1 << 8;

impl FssShape {
    /// log2 of the number of windows in a leaf.
    fn leaf_bits(&self) -> u32 {
        let room = self.leaf_words() / self.payload.words();
        room.ilog2().min(self.index_bits - 1)
    }

    /// Words that a leaf has.
    fn leaf_words(&self) -> usize {
        match self.payload {
            Payload::One | Payload::Parabola => 4,
            Payload::Line | Payload::Power { .. } => 2,
        }
    }

    /// Words of a leaf that are used, for its windows.
    fn used_words(&self) -> usize {
        self.payload.words() << self.leaf_bits()
    }

    /// Leaves that hold so many windows, wherever these begin.
    fn leaves_of(&self, windows: usize) -> usize {
        (windows + (1 << self.leaf_bits()) - 1).div_ceil(1 << self.leaf_bits())
    }

    fn tree(&self) -> DpfShape {
        let tree = DpfShape::new(self.index_bits - self.leaf_bits(), self.leaf_words(), self.width)
            .expect("2..=14 index bits, rings of 2..=64 or 32 bits");
        tree.with_bits((1 << self.cell_bits) / BLOCK_BITS).expect("at most 256 cells")
    }

    fn index(&self) -> Index {
        Index { high: self.hidden_bits() - self.index_bits, low: self.index_bits }
    }

    /// Words of the correlation of one input: this party's share of the mask, then a key.
    pub fn correlation_words(&self) -> usize {
        1 + self.tree().key_words()
    }

    /// The products of the leading bits of the client's rho with the server's.
    fn square_products(&self, n: usize) -> ot::CotShape {
        let choices = Square::new(self.low_bits).choices() as usize;
        ot::CotShape::new(n * choices, 1, &[self.width]).expect("a width of 2..=32")
    }

    /// The truncation of a product of two factors, below 2^(2 FACTOR_FRAC).
    fn power_truncation(&self, frac: u32) -> Truncation {
        Truncation { width: POWER_WIDTH, shift: 2 * FACTOR_FRAC - frac, out: self.width }
    }

    /// The products of the bits of the client's factor with the server's.
    fn power_products(&self, n: usize) -> ot::CotShape {
        let widths: Vec<u32> = (0..FACTOR_FRAC).map(|bit| POWER_WIDTH - bit).collect();
        ot::CotShape::new(n * widths.len(), 1, &widths).expect("widths up to 44")
    }
}

/// A random mask and a key that expands to the payload at the mask's window and zeros at the others. Unit: an input.
impl Correlation for FssShape {
    fn scope(&self) -> &'static str {
        "functions"
    }

    fn words(&self, _: Role) -> usize {
        self.correlation_words()
    }

    fn batch(&self) -> usize {
        let ots = match self.payload {
            Payload::One | Payload::Line | Payload::Parabola => self.hidden_bits(),
            Payload::Power { .. } => self.hidden_bits().max(FACTOR_FRAC),
        };
        let batch = batch_items(ots as usize).min((BATCH_LEAVES >> self.tree().depth()).max(1));
        if self.cell_bits > 0 { batch.min(BIT_LEAVES_AT_ONCE) } else { batch }
    }

    fn cost(&self, _: &mut Plans, units: usize) -> Result<Cost, Error> {
        Ok(prepare_cost(self, units))
    }

    fn make(&self, s: &mut Session, units: usize, _: Option<&FixedMatrix>) -> Result<Vec<u64>, Error> {
        prepare(s, self, units)
    }
}

/// Correlations for `n` inputs, [`FssShape::correlation_words`] each, usable in any order; booked as `offline`.
pub fn prepare(s: &mut Session, shape: &FssShape, n: usize) -> Result<Vec<u64>, Error> {
    let mut out = Vec::with_capacity(n * shape.correlation_words());
    let batch = shape.batch();
    s.offline(|s| {
        for start in (0..n).step_by(batch) {
            out.extend(prepare_batch(s, shape, batch.min(n - start))?);
        }
        Ok(out)
    })
}

pub(crate) fn prepare_cost(shape: &FssShape, n: usize) -> Cost {
    batched_cost(n, shape.batch(), |n| prepare_batch_cost(shape, n)).offline()
}

fn prepare_batch_cost(shape: &FssShape, n: usize) -> Cost {
    let (tree, ots) = (shape.tree(), n * shape.hidden_bits() as usize);
    let mut cost = Cost::free()
        .cots(Role::Server, ots)
        .cots(Role::Client, ots)
        .then(plant_cost(n, tree))
        .then(index_cost(shape.index(), n));
    match shape.payload {
        Payload::One | Payload::Line => {}
        Payload::Parabola => cost = cost.then(cross::one_way_cost(&shape.square_products(n))),
        Payload::Power { frac, .. } => {
            let truncation = truncate::cost(n, shape.power_truncation(frac));
            cost = cost.then(cross::one_way_cost(&shape.power_products(n))).then(truncation);
        }
    }
    let words = shape.used_words();
    let cost = cost
        .then(placed_cost(n, shape.payload.words(), shape.width, shape.leaf_bits()))
        .then(grow_cost(n, tree))
        .work_at_both(Kernel::LeafWord, n * words);
    let cost =
        cost.then(mux::rows_cost(n, words, shape.width - 1)).then(opening::open_cost(n * words, &[shape.width]));
    if shape.cell_bits > 0 { cost.then(bit_leaves_cost(n, tree, shape.cell_bits)) } else { cost }
}

fn prepare_batch(s: &mut Session, shape: &FssShape, n: usize) -> Result<Vec<u64>, Error> {
    let (tree, bits) = (shape.tree(), shape.hidden_bits() as usize);
    s.reserve(Role::Server, n * bits)?;
    s.reserve(Role::Client, n * bits)?;
    let sender = s.sender().random(n * bits)?;
    let (index, chosen) = s.receiver().random(n * bits)?;
    let mut trees = plant(s, tree, &index, shape.hidden_bits(), (&sender, &chosen))?;
    let index_shares = index_shares(s, shape.index(), &index, sender, chosen)?;
    let low: Vec<u64> = (0..n).map(|_| s.rng().next_u64() & mask(shape.low_bits)).collect();

    // The payload at the window's place in its leaf.
    let places = tree.depth() as usize..shape.index_bits as usize;
    let payload = payload(s, shape, &low)?;
    let mut leaf = placed(s, payload, shape.width, &index, places, bits)?;
    grow(s, &mut trees)?;
    let (sums, negative) = trees.leaves();
    // The values of a leaf's unused words at the index do not matter.
    let (used, all) = (shape.used_words(), tree.words());
    for (leaf, sums) in leaf.chunks_exact_mut(used).zip(sums.chunks_exact(all)) {
        leaf.iter_mut().zip(sums).for_each(|(leaf, sum)| *leaf = leaf.wrapping_add(*sum));
    }
    let negated = mux::mux(s, &negative, &leaf, shape.width - 1)?;
    leaf.iter_mut().zip(negated).for_each(|(leaf, negated)| *leaf = leaf.wrapping_sub(negated << 1));
    let masks = sums.chunks_exact(all).flat_map(|sums| &sums[..used]).copied();
    let opened = opening::masked(s, &leaf, masks, &[shape.width])?;
    let mut corrections = vec![0; n * all];
    for (correction, opened) in corrections.chunks_exact_mut(all).zip(opened.chunks_exact(used)) {
        correction[..used].copy_from_slice(opened);
    }
    let cells = bits - shape.cell_bits as usize..bits;
    let last = if cells.is_empty() { vec![] } else { bit_leaves(s, &trees, &index, cells, bits)? };
    let keys = trees.finish(&corrections, &last)?;
    let masks = index_shares.iter().zip(&low).map(|(index, low)| (index << shape.low_bits).wrapping_add(*low));
    Ok(entries(masks, &keys, tree))
}

/// The words of correlations: a mask, then a key, input by input.
fn entries(masks: impl Iterator<Item = u64>, keys: &[u64], tree: DpfShape) -> Vec<u64> {
    let mut out = Vec::with_capacity(keys.len() + keys.len() / tree.key_words());
    for (mask, key) in masks.zip(keys.chunks_exact(tree.key_words())) {
        out.push(mask);
        out.extend_from_slice(key);
    }
    out
}

/// The final corrections of the bits of leaves, the unit vector of the bits `places` of every index, under pads.
fn bit_leaves(
    s: &mut Session,
    trees: &Generation,
    index: &Bits,
    places: std::ops::Range<usize>,
    bits: usize,
) -> Result<Vec<u64>, Error> {
    let one = vec![u64::from(s.is_server()); index.len() / bits];
    let unit = placed(s, one, 1, index, places, bits)?;
    open_bits(s, unit, &trees.bit_leaves())
}

fn bit_leaves_cost(n: usize, tree: DpfShape, cell_bits: u32) -> Cost {
    let hashed = ((n << cell_bits) / BLOCK_BITS) << (tree.depth() - 1);
    placed_cost(n, 1, 1, cell_bits)
        .work_at_both(Kernel::TreeMade, hashed)
        .then(opening::open_cost(n << cell_bits, &[1]))
}

/// Opens bits, one in every word, masked by those of `pads`, which has 64 in every word. The result has 64, too.
fn open_bits(s: &mut Session, mut bits: Vec<u64>, pads: &[u64]) -> Result<Vec<u64>, Error> {
    let pad = |i: usize| pads[i / 64] >> (i % 64);
    bits.iter_mut().enumerate().for_each(|(i, bit)| *bit ^= pad(i));
    let opened = opening::masked(s, &bits, (0..bits.len()).map(pad), &[1])?;
    let word = |bits: &[u64]| bits.iter().enumerate().fold(0, |word, (i, bit)| word | bit << i);
    Ok(opened.chunks_exact(64).map(word).collect())
}

/// The bits of an index in the order of the transfers: of the window, then above; the highest of each group first.
#[derive(Clone, Copy)]
struct Index {
    high: u32,
    low: u32,
}

impl Index {
    fn bits(self) -> u32 {
        self.high + self.low
    }

    /// log2 of what the bit at `place` counts.
    fn weight(self, place: u32) -> u32 {
        if place < self.low { self.low - 1 - place } else { self.bits() - 1 - (place - self.low) }
    }
}

/// The products of the bits of an index. One counts twice as much as its bit, modulo the index.
fn index_products(index: Index, n: usize) -> ot::CotShape {
    let widths: Vec<u32> = (0..index.bits()).map(|place| (index.bits() - 1 - index.weight(place)).max(1)).collect();
    ot::CotShape::new(n * widths.len(), 1, &widths).expect("widths below 64")
}

fn index_cost(index: Index, n: usize) -> Cost {
    let products = index_products(index, n);
    Cost::free()
        .supplies(Role::Server, &products)
        .message(Role::Server, products.message_bytes())
        .chooses(Role::Client, &products)
}

/// Puts the words of every item, modulo 2^width, at one place among 2^places.len(), and zeros at the others. The
/// place is spelled by bits `places` of the item's index, which has `bits` bits.
fn placed(
    s: &mut Session,
    mut words: Vec<u64>,
    width: u32,
    index: &Bits,
    places: std::ops::Range<usize>,
    bits: usize,
) -> Result<Vec<u64>, Error> {
    let n = index.len() / bits;
    // The lowest bit of the index first.
    for place in places.rev() {
        let bit: Vec<u8> = (0..n).map(|item| index.get(item * bits + place) as u8).collect();
        let upper = mux::mux(s, &bit, &words, width)?;
        let per = words.len() / n;
        let mut both = vec![0; 2 * words.len()];
        let items = both.chunks_exact_mut(2 * per).zip(words.chunks_exact(per).zip(upper.chunks_exact(per)));
        for (both, (all, upper)) in items {
            let (low, high) = both.split_at_mut(per);
            low.iter_mut().zip(all.iter().zip(upper)).for_each(|(low, (a, b))| *low = a.wrapping_sub(*b));
            high.copy_from_slice(upper);
        }
        words = both;
    }
    Ok(words)
}

fn placed_cost(n: usize, words: usize, width: u32, places: u32) -> Cost {
    (0..places).fold(Cost::free(), |cost, place| cost.then(mux::rows_cost(n, words << place, width)))
}

/// The trees of the indices, with their first levels. Each index has `bits` bits, which are the choices of the OTs.
fn plant(
    s: &mut Session,
    tree: DpfShape,
    index: &Bits,
    bits: u32,
    ots: (&SenderKeys, &ChosenKeys),
) -> Result<Generation, Error> {
    let n = index.len() / bits as usize;
    let one = vec![u64::from(s.is_server()); n];
    let unit = placed(s, one, 1, index, 0..tree.top() as usize, bits as usize)?;
    let (size, per) = (1 << tree.top(), tree.top_ots());
    // All entries but the first.
    let rest = |unit: &[u64]| (0..).zip(&unit[1..]).fold(0, |rest, (place, entry)| rest | (entry & 1) << place);
    let entries = Bits::from_values(&unit.chunks_exact(size).map(rest).collect::<Vec<_>>(), per as u32);
    s.reserve(Role::Server, entries.len())?;
    s.reserve(Role::Client, entries.len())?;
    let (message, chosen) = s.receiver().choose(&entries)?;
    let theirs = s.channel().exchange(TOP, &message, message.len())?;
    let sender = s.sender().accept(entries.len(), &theirs)?;
    Ok(Generation::new(tree, s.role(), bits, ots, (sender, chosen))?)
}

fn plant_cost(n: usize, tree: DpfShape) -> Cost {
    let ots = n * tree.top_ots();
    let choices = ots.div_ceil(8);
    let entries = Cost::free().cots(Role::Server, ots).cots(Role::Client, ots).exchange(choices, choices);
    let first = entries.work_at_both(Kernel::Pad, 3 * ots).work_at_both(Kernel::TreeMade, n << tree.top());
    placed_cost(n, 1, 1, tree.top()).then(first)
}

/// Grows all levels of the trees, one exchange each.
fn grow(s: &mut Session, trees: &mut Generation) -> Result<(), Error> {
    while !trees.is_grown() {
        let theirs = s.channel().exchange(LEVEL, &trees.offer(), level_bytes(trees.len()))?;
        trees.grow(&theirs)?;
    }
    Ok(())
}

fn grow_cost(n: usize, tree: DpfShape) -> Cost {
    (tree.top()..tree.depth()).fold(Cost::free(), |cost, level| {
        cost.exchange(level_bytes(n), level_bytes(n)).work_at_both(Kernel::TreeMade, n << level)
    })
}

/// Additive shares of the indices whose bits `index` are shared by the choices of the OTs, which are spent.
fn index_shares(
    s: &mut Session,
    how: Index,
    index: &Bits,
    sender: SenderKeys,
    chosen: ChosenKeys,
) -> Result<Vec<u64>, Error> {
    let bits = how.bits() as usize;
    let products = index_products(how, index.len() / bits);
    let shares = match s.role() {
        Role::Client => {
            let message = s.channel().recv(INDEX, products.message_bytes())?;
            chosen.decorrelate(&products, &message)?
        }
        Role::Server => {
            let own: Vec<u64> = (0..index.len()).map(|i| index.get(i)).collect();
            let (message, shares) = sender.correlate(&products, &own)?;
            s.deliver(INDEX, message)?;
            shares
        }
    };
    // The exclusive-or of two bits is their sum minus twice their product.
    let place = |place: usize, i: usize| index.get(i).wrapping_sub(shares[i] << 1) << how.weight(place as u32);
    let item = |item: usize| (0..bits).fold(0u64, |sum, at| sum.wrapping_add(place(at, item * bits + at)));
    Ok((0..index.len() / bits).map(|i| item(i) & mask(how.bits())).collect())
}

/// Shares of the payload of every input, from this party's low parts.
fn payload(s: &mut Session, shape: &FssShape, low: &[u64]) -> Result<Vec<u64>, Error> {
    let server = s.role() == Role::Server;
    match shape.payload {
        Payload::One => Ok(vec![u64::from(server); low.len()]),
        Payload::Line => Ok(low.iter().flat_map(|&low| [u64::from(server), low]).collect()),
        Payload::Parabola => {
            let (square, role) = (Square::new(shape.low_bits), s.role());
            let products = shape.square_products(low.len());
            let bits = square.choices();
            let choices = || Bits::from_values(&low.iter().map(|&rho| square.chosen(rho)).collect::<Vec<_>>(), bits);
            let products_of = |&rho: &u64| (0..bits).map(move |bit| square.product(rho, bit));
            let shares = cross::one_way(s, &products, choices, || low.iter().flat_map(products_of).collect())?;
            let sum = |shares: &[u64]| shares.iter().fold(0u64, |sum, x| sum.wrapping_add(*x));
            let squares = low.iter().zip(shares.chunks_exact(bits as usize));
            let words = |(&rho, shares): (&u64, &[u64])| {
                [u64::from(server), rho, square.own(role, rho).wrapping_add(sum(shares))]
            };
            Ok(squares.flat_map(words).collect())
        }
        Payload::Power { unit, frac } => {
            let products = shape.power_products(low.len());
            let own: Vec<u64> = low.iter().map(|&low| factor(low, unit)).collect();
            let bits = FACTOR_FRAC as usize;
            let words = || own.iter().flat_map(|&word| std::iter::repeat_n(word, bits)).collect();
            let shares = cross::one_way(s, &products, || Bits::from_values(&own, FACTOR_FRAC), words)?;
            let sum = |shares: &[u64]| (0..).zip(shares).fold(0u64, |sum, (bit, x)| sum.wrapping_add(x << bit));
            let mut power = shares.chunks_exact(bits).map(sum).collect::<Vec<u64>>();
            truncate::truncate(s, &mut power, shape.power_truncation(frac))?;
            Ok(power)
        }
    }
}

/// Shares of the tabulated function of every word of `x`, modulo 2^width. Each word takes one of `correlations`.
pub(crate) fn run(s: &mut Session, table: &FssTable, correlations: &[u64], x: &[u64]) -> Result<Vec<u64>, Error> {
    let shape = table.shape();
    let size = shape.correlation_words();
    let opened = open_inputs(s, correlations, size, x, shape.input_bits())?;
    let role = s.role();
    Ok(match &table.windows {
        Windows::Lines(lines) => {
            expand(role, &shape, correlations, &opened, |_, high, low, v| lines.apply(high, low, v))
        }
        Windows::Parabolas(parabolas) => {
            expand(role, &shape, correlations, &opened, |_, high, low, v| parabolas.apply(high, low, v))
        }
        Windows::Powers(powers) => {
            expand(role, &shape, correlations, &opened, |_, high, low, v| powers.apply(high, low, v))
        }
        Windows::Decay(powers) => decay(role, &shape, powers, correlations, &opened),
    })
}

/// Opens every word of `x`, modulo 2^`bits`, less the mask with which its correlation of `size` words begins.
fn open_inputs(s: &mut Session, correlations: &[u64], size: usize, x: &[u64], bits: u32) -> Result<Vec<u64>, Error> {
    assert_eq!(correlations.len(), x.len() * size, "a correlation for every input");
    let masks = correlations.chunks_exact(size).map(|entry| entry[0]);
    let masked: Vec<u64> = x.iter().zip(masks.clone()).map(|(x, mask)| x.wrapping_sub(mask)).collect();
    opening::masked(s, &masked, masks, &[bits])
}

pub(crate) fn run_cost(table: &FssTable, n: usize) -> Cost {
    let shape = table.shape();
    let Windows::Decay(powers) = &table.windows else { return whole_cost(&shape, n) };
    // Two subtrees, and a node on every level above them.
    let leaves = shape.leaves_of(powers.windows());
    let hashed = 4 * leaves.next_power_of_two() + shape.tree().depth() as usize;
    opening::open_cost(n, &[shape.input_bits()])
        .work_at_both(Kernel::TreeExpanded, n * hashed)
        .work_at_both(Kernel::WindowTerm, n * powers.windows())
}

/// [`run_cost`] for tables whose keys are expanded whole.
fn whole_cost(shape: &FssShape, n: usize) -> Cost {
    opening::open_cost(n, &[shape.input_bits()])
        .work_at_both(Kernel::TreeExpanded, n << shape.tree().depth())
        .work_at_both(Kernel::WindowTerm, n * shape.tree().values())
}

/// `apply`(i, high, low, shares of the payload at every window) for every opened word, which is the i-th.
fn expand<L: Lane, T: Copy + Default + Send>(
    role: Role,
    shape: &FssShape,
    correlations: &[u64],
    opened: &[u64],
    apply: impl Fn(usize, usize, u64, &[L]) -> T + Sync,
) -> Vec<T> {
    let size = shape.correlation_words();
    let mut out = vec![T::default(); opened.len()];
    // Large trees are work enough for a task each.
    let task = ((TASK * TASK_LEAVES) >> shape.tree().depth()).clamp(1, TASK);
    let tasks = out.par_chunks_mut(task).zip(opened.par_chunks(task)).zip(correlations.par_chunks(task * size));
    tasks.enumerate().for_each(|(at, ((out, opened), entries))| {
        let mut expander = Expander::new(shape.tree(), role);
        let mut values = vec![L::default(); shape.tree().values()];
        let items = out.iter_mut().zip(opened).zip(entries.chunks_exact(size)).enumerate();
        for (i, ((out, y), entry)) in items {
            expander.expand(&entry[1..], &mut values);
            *out = apply(at * task + i, (y >> shape.low_bits) as usize, y & mask(shape.low_bits), &values);
        }
    });
    out
}

/// The share of a decay for every opened word. Only the leaves of windows that have a height are expanded.
fn decay(role: Role, shape: &FssShape, powers: &Powers, correlations: &[u64], opened: &[u64]) -> Vec<u64> {
    let (size, windows) = (shape.correlation_words(), powers.windows());
    let (leaf, words) = (shape.leaf_bits(), shape.leaf_words());
    let mut out = vec![0; opened.len()];
    let tasks = out.par_chunks_mut(TASK).zip(opened.par_chunks(TASK)).zip(correlations.par_chunks(TASK * size));
    tasks.for_each(|((out, opened), entries)| {
        let mut expander = Expander::new(shape.tree(), role);
        let mut values = vec![0u64; shape.leaves_of(windows) * words];
        for ((out, y), entry) in out.iter_mut().zip(opened).zip(entries.chunks_exact(size)) {
            // The payload of window -2 lies at -2 - high(y).
            let first = 0u64.wrapping_sub(2).wrapping_sub(y >> shape.low_bits) & mask(shape.index_bits);
            expander.expand_part(&entry[1..], (first >> leaf) as usize, &mut values);
            let near = &values[(first & mask(leaf)) as usize..][..windows];
            *out = powers.apply_near(y & mask(shape.low_bits), near);
        }
    });
    out
}

/// This party's shares of the payload at every window, window by window.
#[cfg(test)]
pub(crate) fn expanded<L: Lane>(role: Role, shape: &FssShape, entry: &[u64]) -> Vec<L> {
    let mut values = vec![L::default(); shape.tree().values()];
    Expander::new(shape.tree(), role).expand(&entry[1..], &mut values);
    values
}
