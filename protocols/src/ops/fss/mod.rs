//! A tabulated function of one variable by FSS keys: after preparation one masked word is opened.
//!
//! **Functionality.** Shares of x modulo 2^(index_bits + low_bits) -> shares of f(x) modulo 2^width. The table writes
//! f as sum_k c_k(n, low(y)) p_k(rho), where y is x under a mask, n a window, and rho the low part of the mask; see
//! [`FssTable`]. `run` spends a correlation for each word.
//!
//! **Source.** Function secret sharing (FSS) with preparation (Boyle, Gilboa and Ishai, TCC 2019, eprint 2019/1095;
//! splines: eprint 2020/1392), without a dealer. A function is a vector with an entry for each window:
//!
//! ```text
//! prepare:  share a random mask r = R 2^low_bits + rho_0 + rho_1, and a key that expands to shares
//!           of the vector v with the payload p_k(rho) at position R and zeros elsewhere (waggle_ot::dpf)
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
//! A leaf of the tree has room for several windows, so the last bits of R place the payload within the leaf. A unit
//! vector of the first bits makes the trees' first levels, and a unit vector of the cell's bits makes their
//! [`tails`]. All of these come from the OTs of R's bits themselves ([`waggle_ot::index`]). Every further level takes
//! one exchange, and a step of the vectors uses the same exchange. A batch of keys takes ten to fifteen exchanges.
//! The sign of the final correction is a multiplexer.
//!
//! **Range.** x in [0, (2^index_bits - 2) 2^low_bits); other inputs give garbage. **Error.** Lines and parabolas: the
//! error of the table. Powers: a payload is off by less than a unit in its last place.
//!
//! **What each party sees.** While preparing: masked choices, pads and corrections, as `waggle_ot::dpf` says. Online:
//! y, which is used once and uniform modulo 2^(index_bits + low_bits), since R and the other party's rho are uniform.
//! The peer's share of y follows from y and its own. **Revealed.** Nothing.

pub mod counts;
mod dot;
pub mod ladder;
mod parabola;
pub mod table;
pub mod tails;
pub mod threshold;

use std::ops::Range;
use std::time::Duration;

use rand::Rng;
use rayon::prelude::*;
use waggle_ot::Bits;
use waggle_ot::dpf::{BLOCK_BITS, DEALT_GROUP, DealtKeys, DpfShape, Expander, Generation, Lane, level_bytes};
use waggle_ot::index::{HiddenIndices, PlacedWords, UnitVectors, placed_bytes, sum_bytes, unit_bytes};

use crate::deal::dealing::Dealing;
use crate::operation::prelude::*;
use crate::ops::{Truncation, batch_items, batched_cost, mux, truncate};
use crate::wire::{cross, opening};
pub(crate) use parabola::Square;
use table::{FACTOR_FRAC, FssShape, FssTable, Payload, Powers, Windows, factor};

/// Step of all messages from which keys grow.
const GROW: &str = "masked/keys";
/// Step of the message that opens the corrections of leaves' bits.
const BITS: &str = "masked/bits";

/// Number of leaves of the trees that grow at once. Their nodes, 16 MiB, stay in the caches. Where the exchanges of a
/// batch take longer than its work, batches are larger.
const BATCH_LEAVES: usize = 1 << 20;
const FAR_BATCH_LEAVES: usize = 1 << 22;

/// If a round trip takes this long or longer, the exchanges of a batch take longer than its work.
const FAR: Duration = Duration::from_millis(1);

/// Bits of the ring of a product of two factors, which is below 2^(2 FACTOR_FRAC).
const POWER_WIDTH: u32 = 2 * FACTOR_FRAC + 2;

/// Most entries of one task of the thread pool.
const TASK: usize = 64;

/// Trees with at most this many leaves are small: then a task has [`TASK`] of them.
const TASK_LEAVES: usize = 1 << 8;

impl FssShape {
    /// log2 of the number of windows in a leaf.
    fn leaf_bits(&self) -> u32 {
        let room = self.leaf_words() / self.payload.words();
        room.ilog2().min(self.index_bits - 1)
    }

    /// Number of words of a leaf.
    fn leaf_words(&self) -> usize {
        match self.payload {
            Payload::One | Payload::Parabola => 4,
            Payload::Line | Payload::Power { .. } => 2,
        }
    }

    /// Number of words of a leaf that hold payloads of its windows.
    fn used_words(&self) -> usize {
        self.payload.words() << self.leaf_bits()
    }

    /// Number of leaves that together hold any `windows` neighbouring windows.
    fn leaves_of(&self, windows: usize) -> usize {
        (windows + (1 << self.leaf_bits()) - 1).div_ceil(1 << self.leaf_bits())
    }

    fn tree(&self) -> DpfShape {
        let tree = DpfShape::new(self.index_bits - self.leaf_bits(), self.leaf_words(), self.width)
            .expect("2..=14 index bits, rings of 2..=64 or 32 bits");
        tree.with_bits((1 << self.cell_bits) / BLOCK_BITS).expect("at most 256 cells")
    }

    /// log2 of the weight of each bit of an index. The bits of the window come first, then the bits of its
    /// repetition, each from the highest bit on.
    fn weights(&self) -> Vec<u32> {
        (0..self.index_bits).rev().chain((self.index_bits..self.hidden_bits()).rev()).collect()
    }

    /// The shapes of the vectors that are made along with the trees: the payload at the window's place in its leaf,
    /// and the unit vector of the cell.
    fn strands(&self) -> Vec<StrandShape> {
        let within = self.tree().depth() as usize..self.index_bits as usize;
        let payload = StrandShape { places: within, words: Some((self.payload.words(), self.width)) };
        let cells = StrandShape { places: self.index_bits as usize..self.hidden_bits() as usize, words: None };
        vec![payload, cells]
    }

    /// Number of words of the correlation of one input: one for this party's share of the mask, and the key.
    pub fn correlation_words(&self) -> usize {
        1 + self.tree().key_words()
    }

    /// The shape of the OTs for `n` inputs that multiply the leading bits of the client's rho by the server's rho.
    fn square_products(&self, n: usize) -> waggle_ot::CotShape {
        let choices = Square::new(self.low_bits).choices() as usize;
        waggle_ot::CotShape::new(n * choices, 1, &[self.width]).expect("a width of 2..=32")
    }

    /// The truncation of a product of two factors to `frac` fractional bits. The product is below 2^(2 FACTOR_FRAC).
    fn power_truncation(&self, frac: u32) -> Truncation {
        Truncation { width: POWER_WIDTH, shift: 2 * FACTOR_FRAC - frac, out: self.width }
    }

    /// The shape of the OTs for `n` inputs that multiply the bits of the client's factor by the server's factor.
    fn power_products(&self, n: usize) -> waggle_ot::CotShape {
        let widths: Vec<u32> = (0..FACTOR_FRAC).map(|bit| POWER_WIDTH - bit).collect();
        waggle_ot::CotShape::new(n * widths.len(), 1, &widths).expect("widths up to 44")
    }
}

/// What a key hides: its leaf, the words of the leaf, and the bits of the leaf.
struct Hidden {
    leaf: usize,
    words: Vec<u64>,
    bits: Vec<u64>,
}

/// Deals `n` masks of `bits` bits, each with a key of the shape `tree`. `hidden` says what the key hides for the
/// client's and the server's part of the mask. Leaves use `used` words of `width` bits.
fn deal_keys(
    d: &mut Dealing<'_>,
    tree: DpfShape,
    n: usize,
    bits: u32,
    (used, width): (usize, u32),
    hidden: impl Fn([u64; 2]) -> Hidden + Sync,
) -> Result<[Vec<u64>; 2], Error> {
    let (masks, roots) = (d.draw_both(n, bits), d.draw_both(2 * n, 64));
    let ciphers = d.public(2 * n.div_ceil(DEALT_GROUP));
    let levels = tree.level_words();
    let widths: Vec<u32> = [(levels, 64), (used, width), (tree.bits_words(), 64)]
        .into_iter()
        .flat_map(|(words, width)| std::iter::repeat_n(width, words))
        .collect();
    let per = widths.len();
    let keys = |group: usize| DealtKeys::new(tree, [ciphers[2 * group], ciphers[2 * group + 1]]);
    let drawn = |role: Role, i: usize| [0, 1].map(|word| roots[role as usize][2 * i + word]);
    let corrections = d.give_both(n * per, &widths, || {
        let mut out = vec![0; n * per];
        out.par_chunks_mut(DEALT_GROUP * per).enumerate().for_each(|(group, out)| {
            let keys = keys(group);
            for (i, out) in (group * DEALT_GROUP..).zip(out.chunks_exact_mut(per)) {
                let Hidden { leaf, words, bits } = hidden([masks[0][i], masks[1][i]]);
                let drawn = [drawn(Role::Client, i), drawn(Role::Server, i)];
                out.copy_from_slice(&keys.corrections(drawn, leaf, &words, &bits));
            }
        });
        out
    })?;
    let entries = |role: Role| {
        let masks = masks[role as usize].par_chunks(DEALT_GROUP).enumerate();
        let groups = masks.map(|(group, masks)| {
            let keys = keys(group);
            let mut out = Vec::with_capacity(masks.len() * (1 + tree.key_words()));
            for (i, mask) in (group * DEALT_GROUP..).zip(masks) {
                let (head, rest) = corrections[i * per..(i + 1) * per].split_at(levels);
                let (last, bits) = rest.split_at(used);
                out.push(*mask);
                keys.append(role, drawn(role, i), head, last, bits, &mut out);
            }
            out
        });
        groups.collect::<Vec<_>>().concat()
    };
    Ok([entries(Role::Client), entries(Role::Server)])
}

impl FssShape {
    /// Whether a helper deals this shape. It does not if a field is out of range, which can happen for a shape that a
    /// peer sent.
    pub(crate) fn is_served(&self) -> bool {
        let FssShape { index_bits, low_bits, width, payload, cell_bits } = *self;
        let payload = match payload {
            Payload::One => width <= 32,
            Payload::Line => width <= 64,
            Payload::Parabola => width <= 32 && (1..=16).contains(&low_bits),
            Payload::Power { unit, frac } => {
                width <= 64 && unit <= 24 && frac <= 2 * FACTOR_FRAC && low_bits <= unit + 5 && low_bits <= 29
            }
        };
        let cells = cell_bits == 0 || (7..=8).contains(&cell_bits);
        payload && cells && width >= 2 && (2..=14).contains(&index_bits) && low_bits + index_bits + cell_bits <= 63
    }

    /// The words of the payload for the client's and the server's low part of a mask.
    fn hidden_words(&self, [client, server]: [u64; 2]) -> Vec<u64> {
        let rho = client + server;
        match self.payload {
            Payload::One => vec![1],
            Payload::Line => vec![1, rho],
            Payload::Parabola => vec![1, rho, Square::new(self.low_bits).value([server, client])],
            Payload::Power { unit, frac } => {
                vec![(factor(client, unit) * factor(server, unit)) >> (2 * FACTOR_FRAC - frac)]
            }
        }
    }
}

/// A random mask and a key that expands to the payload at the mask's window and zeros at the others. Unit: an input.
impl Correlation for FssShape {
    fn dealt_words(&self) -> Option<u64> {
        key_words(self, self.is_served())
    }

    fn deal(&self, d: &mut Dealing<'_>, n: usize) -> Result<[Vec<u64>; 2], Error> {
        let FssShape { index_bits, low_bits, cell_bits, .. } = *self;
        let (words, used, leaf_bits) = (self.payload.words(), self.used_words(), self.leaf_bits());
        deal_keys(d, self.tree(), n, self.input_bits(), (used, self.width), |masks| {
            let [client, server] = masks.map(|pad| pad >> low_bits);
            let index = client.wrapping_add(server) & mask(self.hidden_bits());
            let window = index & mask(index_bits);
            let mut leaf = vec![0; used];
            let first = (window & mask(leaf_bits)) as usize * words;
            leaf[first..first + words].copy_from_slice(&self.hidden_words(masks.map(|pad| pad & mask(low_bits))));
            let mut bits = vec![0; self.tree().bits_words()];
            if cell_bits > 0 {
                let cell = index >> index_bits;
                bits[(cell / 64) as usize] = 1 << (cell % 64);
            }
            Hidden { leaf: (window >> leaf_bits) as usize, words: leaf, bits }
        })
    }

    fn scope(&self) -> &'static str {
        "functions"
    }

    fn words(&self, _: Role) -> usize {
        self.correlation_words()
    }

    fn batch(&self, options: &Options) -> usize {
        let ots = match self.payload {
            Payload::One | Payload::Line | Payload::Parabola => self.hidden_bits(),
            Payload::Power { .. } => self.hidden_bits().max(FACTOR_FRAC),
        };
        batch(self.tree(), ots, options)
    }

    fn cost(&self, plans: &mut Plans, units: usize) -> Result<Cost, Error> {
        Ok(prepare_cost(self, plans.options(), units))
    }

    fn make(&self, s: &mut Session, units: usize, _: &mut Pipeline<'_>) -> Result<Vec<u64>, Error> {
        prepare(s, self, units)
    }
}

/// Number of inputs of a batch, where each input takes a tree and `ots` OTs.
fn batch(tree: DpfShape, ots: u32, options: &Options) -> usize {
    let far = options.slow_link() || options.link.round_trip >= FAR;
    let leaves = if far { FAR_BATCH_LEAVES } else { BATCH_LEAVES };
    batch_items(ots as usize).min((leaves >> tree.depth()).max(1))
}

/// Correlations for `n` inputs, [`FssShape::correlation_words`] each, usable in any order; booked as `offline`.
pub fn prepare(s: &mut Session, shape: &FssShape, n: usize) -> Result<Vec<u64>, Error> {
    let mut out = Vec::with_capacity(n * shape.correlation_words());
    let batch = shape.batch(s.options());
    s.offline(|s| {
        for start in (0..n).step_by(batch) {
            out.extend(prepare_batch(s, shape, batch.min(n - start))?);
        }
        Ok(out)
    })
}

pub(crate) fn prepare_cost(shape: &FssShape, options: &Options, n: usize) -> Cost {
    batched_cost(n, shape.batch(options), |n| prepare_batch_cost(shape, n)).offline()
}

fn prepare_batch_cost(shape: &FssShape, n: usize) -> Cost {
    let (tree, words) = (shape.tree(), shape.used_words());
    let payload = match shape.payload {
        Payload::One | Payload::Line => Cost::free(),
        Payload::Parabola => cross::one_way_cost(&shape.square_products(n)),
        Payload::Power { frac, .. } => {
            let truncation = truncate::cost(n, shape.power_truncation(frac));
            cross::one_way_cost(&shape.power_products(n)).then(truncation)
        }
    };
    let cost = payload
        .then(grow_cost(n, Some(tree), &shape.weights(), &shape.strands()))
        .work_at_both(Kernel::LeafWord, n * words)
        .then(mux::rows_cost(n, words, shape.width - 1))
        .then(opening::open_cost(n * words, &[shape.width]));
    if shape.cell_bits > 0 { cost.then(open_bits_cost(n << shape.cell_bits)) } else { cost }
}

fn prepare_batch(s: &mut Session, shape: &FssShape, n: usize) -> Result<Vec<u64>, Error> {
    let tree = shape.tree();
    let low: Vec<u64> = (0..n).map(|_| s.rng().next_u64() & mask(shape.low_bits)).collect();
    let payload = payload(s, shape, &low)?;
    let mut indices = hidden_indices(s, &shape.weights(), n)?;
    let [within, cells] = [0, 1].map(|strand| shape.strands()[strand].places.clone());
    let mut strands =
        [Strand::Words(indices.place(within, payload, shape.width)), Strand::Unit(indices.unit(cells.clone()))];
    let trees = grow(s, tree, &mut indices, &mut strands)?;
    let [Strand::Words(leaf), Strand::Unit(unit)] = strands else { unreachable!("as made above") };
    let mut leaf = leaf.into_words();
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
    let bits = if cells.is_empty() { vec![] } else { open_bits(s, unit.words(), &trees.bit_leaves(), 64)? };
    let masks: Vec<u64> =
        indices.sums().zip(&low).map(|(index, low)| (index << shape.low_bits).wrapping_add(*low)).collect();
    let (entries, room) = trees.finish(&masks, &corrections, &bits)?;
    s.room = room;
    Ok(entries)
}

/// Opens shared bits, `lanes` in every word. They are masked by the bits of `pads`.
pub(super) fn open_bits(s: &mut Session, bits: &[u64], pads: &[u64], lanes: u32) -> Result<Vec<u64>, Error> {
    opening::spend(s, "", pads.iter().copied(), &[64])?;
    let masked: Vec<u64> = bits.iter().zip(pads).map(|(bits, pads)| bits ^ pads).collect();
    let message = waggle_bits::pack(&masked, &[lanes]);
    let theirs = s.channel().exchange(BITS, &message, message.len())?;
    let theirs = waggle_bits::unpack(BITS, &theirs, masked.len(), &[lanes])?;
    let opened: Vec<u64> = masked.iter().zip(theirs).map(|(mine, theirs)| (mine ^ theirs) & mask(lanes)).collect();
    opening::note(s, "", 0, &opened, &[lanes]);
    Ok(opened)
}

fn open_bits_cost(bits: usize) -> Cost {
    Cost::free().work_at_both(Kernel::OpenWord, bits / 64).exchange(bits / 8, bits / 8)
}

/// `n` random hidden indices. `weights` has log2 of the weight of each bit in its index.
fn hidden_indices(s: &mut Session, weights: &[u32], n: usize) -> Result<HiddenIndices, Error> {
    let ots = n * weights.len();
    s.reserve(Role::Server, ots)?;
    s.reserve(Role::Client, ots)?;
    let sender = s.sender().random(ots)?;
    let (_, chosen) = s.receiver().random(ots)?;
    Ok(HiddenIndices::new(s.role(), weights, (sender, chosen))?)
}

/// The shape of vectors that hidden indices select. `places` are the bits of an index that select, and each takes one
/// step.
#[derive(Clone)]
struct StrandShape {
    places: Range<usize>,
    /// The number of the words that a vector holds at the selected place, and their width; `None` for a unit vector.
    words: Option<(usize, u32)>,
}

impl StrandShape {
    /// Bytes of a party's message for `n` indices in step `step`.
    fn bytes(&self, n: usize, step: usize) -> usize {
        match self.words {
            _ if step >= self.places.len() => 0,
            Some((words, width)) => placed_bytes(n, step, words, width),
            None => unit_bytes(n, step),
        }
    }

    /// Number of words of OTs that a party computes for `n` indices in step `step`.
    fn work(&self, n: usize, step: usize) -> usize {
        match self.words {
            Some((words, _)) if step < self.places.len() => (2 * n * words) << step,
            _ => 0,
        }
    }
}

/// Vectors of a [`StrandShape`] in the making.
enum Strand {
    Unit(UnitVectors),
    Words(PlacedWords),
}

impl Strand {
    fn is_done(&self) -> bool {
        match self {
            Strand::Unit(unit) => unit.is_done(),
            Strand::Words(words) => words.is_done(),
        }
    }

    fn offer(&mut self, indices: &HiddenIndices, message: &mut Vec<u8>) {
        match self {
            Strand::Unit(unit) => unit.offer(indices, message),
            Strand::Words(words) => words.offer(indices, message),
        }
    }

    fn accept(&mut self, indices: &HiddenIndices, theirs: &[u8]) -> Result<(), Error> {
        match self {
            Strand::Unit(unit) => unit.accept(indices, theirs)?,
            Strand::Words(words) => words.accept(indices, theirs)?,
        }
        Ok(())
    }
}

/// Grows the trees of `indices`, all levels, and takes all steps of `strands` in the same exchanges. In the first
/// exchange the client learns its shares of the indices.
fn grow(
    s: &mut Session,
    tree: DpfShape,
    indices: &mut HiddenIndices,
    strands: &mut [Strand],
) -> Result<Generation, Error> {
    let mut unit = indices.unit(0..tree.top() as usize);
    let mut first = true;
    while !unit.is_done() {
        let mut message = Vec::new();
        unit.offer(indices, &mut message);
        let theirs = exchange(s, indices, strands, std::mem::take(&mut first), message)?;
        unit.accept(indices, &theirs)?;
    }
    let ots = indices.len() * tree.top_ots();
    s.reserve(Role::Server, ots)?;
    s.reserve(Role::Client, ots)?;
    let (choices, chosen) = s.receiver().choose(&unit.rows(1..1 << tree.top()))?;
    let theirs = exchange(s, indices, strands, false, choices)?;
    let sender = s.sender().accept(ots, &theirs)?;
    let mut trees = Generation::new(tree, s.role(), indices, (sender, chosen), std::mem::take(&mut s.room))?;
    while !trees.is_grown() {
        let mut message = Vec::new();
        trees.offer(indices, &mut message);
        let theirs = exchange(s, indices, strands, false, message)?;
        trees.grow(&theirs)?;
    }
    finish(s, indices, strands)?;
    Ok(trees)
}

/// Takes the remaining steps of `strands`.
fn finish(s: &mut Session, indices: &mut HiddenIndices, strands: &mut [Strand]) -> Result<(), Error> {
    while !strands.iter().all(Strand::is_done) {
        exchange(s, indices, strands, false, Vec::new())?;
    }
    Ok(())
}

/// Exchanges `message`, together with the messages of the next step of each of `strands` and, if `sums`, the server's
/// message for the shares of the indices. Returns the peer's counterpart of `message`, which is as long.
fn exchange(
    s: &mut Session,
    indices: &mut HiddenIndices,
    strands: &mut [Strand],
    sums: bool,
    mut message: Vec<u8>,
) -> Result<Vec<u8>, Error> {
    let mut ends = vec![message.len()];
    let mut strands: Vec<_> = strands.iter_mut().filter(|strand| !strand.is_done()).collect();
    for strand in &mut strands {
        strand.offer(indices, &mut message);
        ends.push(message.len());
    }
    let mut expected = message.len();
    match (sums, s.role()) {
        (false, _) => {}
        (true, Role::Server) => message.extend(indices.offer_sums()),
        (true, Role::Client) => expected += indices.sum_bytes(),
    }
    let mut theirs = s.channel().exchange(GROW, &message, expected)?;
    for (strand, part) in strands.iter_mut().zip(ends.windows(2)) {
        strand.accept(indices, &theirs[part[0]..part[1]])?;
    }
    if sums && !s.is_server() {
        indices.accept_sums(&theirs[ends[ends.len() - 1]..])?;
    }
    theirs.truncate(ends[0]);
    Ok(theirs)
}

/// Cost of random hidden indices and of [`grow`], or without a `tree` of their `strands` alone.
fn grow_cost(n: usize, tree: Option<DpfShape>, weights: &[u32], strands: &[StrandShape]) -> Cost {
    let ots = n * weights.len();
    // For each OT, a pad of both keys of the sender and of the receiver's key.
    let mut cost = Cost::free().cots(Role::Server, ots).cots(Role::Client, ots).work_at_both(Kernel::Pad, 3 * ots);
    let steps = strands.iter().map(|strand| strand.places.len()).max().unwrap_or(0);
    let (top, rounds) = tree.map_or((0, 0), |tree| (tree.top(), 1 + tree.depth()));
    for round in 0..steps.max(rounds as usize) {
        let level = round as u32;
        let of_tree = match tree {
            Some(tree) if level == top => {
                let ots = n * tree.top_ots();
                cost = cost.cots(Role::Server, ots).cots(Role::Client, ots);
                ots.div_ceil(8)
            }
            Some(_) if level < top => unit_bytes(n, round),
            Some(_) if level < rounds => level_bytes(n),
            _ => 0,
        };
        let bytes = of_tree + strands.iter().map(|strand| strand.bytes(n, round)).sum::<usize>();
        let sums = if tree.is_some() && round == 0 { sum_bytes(n, weights) } else { 0 };
        cost = cost.exchange(bytes, bytes + sums);
        let words = strands.iter().map(|strand| strand.work(n, round)).sum();
        cost = cost.work_at_both(Kernel::Word, words);
    }
    let Some(tree) = tree else { return cost };
    // Nodes are hashed for the sums of their level and again for their children; a leaf once, and once for each block
    // of bits.
    let hashed = (1 << tree.top()) + (3 << tree.depth()) - (3 << tree.top()) + (tree.bit_blocks() << tree.depth());
    cost.work_at_both(Kernel::TreeMade, n * hashed)
}

/// Shares of the payload of every input, from `low`, this party's low parts of the masks.
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

/// Shares of the tabulated function at every word of `x`, modulo 2^width. Each word uses up one of `correlations`.
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
        Windows::Decay(powers) => decay(role, &shape, powers, correlations, &opened),
    })
}

/// Opens every word of `x`, modulo 2^`bits`, minus a mask. The mask is the first of the `size` words of the word's
/// correlation.
fn open_inputs(s: &mut Session, correlations: &[u64], size: usize, x: &[u64], bits: u32) -> Result<Vec<u64>, Error> {
    assert_eq!(correlations.len(), x.len() * size, "a correlation for every input");
    let masks = correlations.chunks_exact(size).map(|entry| entry[0]);
    let masked: Vec<u64> = x.iter().zip(masks.clone()).map(|(x, mask)| x.wrapping_sub(mask)).collect();
    opening::masked(s, &masked, masks, &[bits])
}

pub(crate) fn run_cost(table: &FssTable, n: usize) -> Cost {
    let shape = table.shape();
    let Windows::Decay(powers) = &table.windows else { return whole_cost(&shape, n) };
    // Nodes of two subtrees, and a node on every level above them.
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

/// Calls `apply`(i, high, low, values) for the opened word of every number i. `high` and `low` are its window and its
/// low part, and `values` are this party's shares of the payload at every window. Returns the results in order.
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

/// The share of a decay's value for every opened word. Only the leaves are expanded that hold windows with a height.
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

/// Number of words that a helper holds for a key of `kind`: draws, corrections and the words of both parties. `None`
/// if such keys are not `served`.
pub(crate) fn key_words(kind: &dyn Correlation, served: bool) -> Option<u64> {
    served.then(|| 4 * kind.words(Role::Client) as u64)
}
