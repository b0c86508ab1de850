//! Comparison of a shared value with public thresholds, at any width.
//!
//! **Functionality.** Shares of a signed w-bit value x and J public thresholds c_j -> XOR shares of [x >= c_j].
//!
//! **Source.** Sign by carry. Let v = x - c and l = w - 1, and let v_s and v_c be the low l bits of the server's and
//! the client's share of v. The top bit of v is the exclusive-or of the top bits of both shares and of the carry from
//! their low bits, [v_s + v_c >= 2^l]. The carry is `[a < b]` for a = 2^l - 1 - v_s (server) and b = v_c (client).
//! The parties compare a and b digit by digit:
//!
//! ```text
//! cut a and b into digits of up to 5 bits
//! share (less, equal) = ([a_i < b_i], [a_i = b_i]) of every digit i, by one 1-of-2^bits OT each
//! while there is more than one pair:                                    (a level)
//!     join groups of up to four neighbouring pairs, by one 1-of-N OT each
//! the last "less" is the carry
//! ```
//!
//! This is the millionaires' protocol of CrypTFlow2 (eprint 2020/1002, algorithm 1) with three departures:
//! 1. The thresholds shift only the server's share, so the client's digits serve all of them: one OT per digit
//!    carries J answers (the batched comparison of BumbleBee, eprint 2023/1678).
//! 2. The pairs are joined not by AND gates but by OTs over the joint truth table of the group. The OT sender of a
//!    level picks its output shares itself. At the next level it is the receiver, so it can send its choices for that
//!    level in the same message: d levels cost d + 1 flows instead of 2 d.
//! 3. The number of digits is chosen for the least cost (`digits`): 14 bits are cut into 5 + 5 + 4, for instance.
//!
//! **Range.** x and x - c_j signed w-bit values, 2 <= w <= 64, J <= 32. **Error.** None. **Revealed.** Nothing.

use std::sync::OnceLock;

use rand::Rng;
use waggle_ot::{Bits, ChosenKeys, LookupShape};

use crate::operation::prelude::*;
use crate::ops::carry::{self, Carry};
use crate::ops::fss::threshold::{self, Comparison};
use crate::ops::{batch_items, batched_cost};

/// (...) -> (..., thresholds): whether the signed `width`-bit value x >= threshold, exactly, for each threshold. If
/// the session has two phases and its link is slow, short words are compared by FSS keys ([`threshold`]). With a
/// helper, all other words are compared by products of bits ([`carry`]).
#[derive(Clone, Copy, Debug)]
pub struct AtLeast<'t> {
    /// Public thresholds, up to 32; x - threshold is a signed `width`-bit value for each.
    pub thresholds: &'t [i64],
    /// Bits of the ring of x, 2..=64.
    pub width: u32,
}

impl Operation for AtLeast<'_> {
    entrywise!(Words);
    type Output<F: Form> = F::Bits;

    fn correlations(&self, shape: &Vec<usize>, options: &Options) -> Option<Need> {
        let (width, n) = (self.width, shape.iter().product());
        match Way::of(options, width)? {
            Way::Keys => Some(Need::new(Comparison { width }, n)),
            Way::Carry(kind) => Some(Need::new(kind, Carry::units(n * self.thresholds.len()))),
        }
    }

    fn cost(&self, shape: &Vec<usize>, prepared: bool, plans: &mut Plans) -> Result<Cost, Error> {
        let (n, thresholds) = (shape.iter().product(), self.thresholds.len());
        Ok(match Way::of(plans.options(), self.width).filter(|_| prepared) {
            Some(Way::Keys) => threshold::run_cost(self.width, n),
            Some(Way::Carry(kind)) => carry::run_cost(kind, n * thresholds),
            None => cost(n, thresholds, self.width),
        })
    }

    fn run(&self, s: &mut Session, x: &ArrayD<u64>, correlations: Option<&[u64]>) -> Result<ArrayD<u8>, Error> {
        let AtLeast { thresholds, width } = *self;
        let (shape, x) = (appended(x.shape(), thresholds.len()), flat(x));
        let bits = match (correlations, Way::of(s.options(), width)) {
            (Some(correlations), Some(Way::Keys)) => threshold::run(s, correlations, &x, thresholds, width)?,
            (Some(correlations), Some(Way::Carry(kind))) => {
                let mut bits = tops(s.role(), &x, thresholds, width);
                let carries = carry::run(s, kind, correlations, &numbers(s.role(), &x, thresholds, width))?;
                bits.iter_mut().zip(carries).for_each(|(bit, carry)| *bit ^= carry);
                bits
            }
            _ => at_least(s, &x, thresholds, width)?,
        };
        Ok(shaped(&shape, bits))
    }

    fn reference(&self, reference: &mut Reference, x: &ArrayD<u64>) -> Result<ArrayD<u8>, Error> {
        let AtLeast { thresholds, width } = *self;
        let few = (1..=MAX_THRESHOLDS).contains(&thresholds.len());
        assert!(few && (2..=64).contains(&width), "at_least of width {width}");
        let high = (1i128 << (width - 1)) - 1;
        let (least, most) = (thresholds.iter().min(), thresholds.iter().max());
        let least = i128::from(least.copied().unwrap_or(0).min(0));
        let most = i128::from(most.copied().unwrap_or(0).max(0));
        let inside = |v: i128| v - least <= high && v - most >= -high - 1;
        if let Some(v) = x.iter().map(|&v| i128::from(signed(v, width))).find(|&v| !inside(v)) {
            return Err(reference.out_of_range("at_least", v, most - high - 1, high + least));
        }
        let bits = x.iter().flat_map(|&v| thresholds.iter().map(move |&t| u8::from(signed(v, width) >= t))).collect();
        Ok(shaped(&appended(x.shape(), thresholds.len()), bits))
    }

    fn planned(&self, shape: Vec<usize>) -> crate::Shape {
        crate::Shape(appended(&shape, self.thresholds.len()))
    }
}

/// A way to compare by prepared words.
enum Way {
    Keys,
    Carry(Carry),
}

impl Way {
    /// The way in which a session of `options` compares words of `width` bits, if it prepares such comparisons.
    fn of(options: &Options, width: u32) -> Option<Self> {
        if threshold::applies(options, width) {
            return Some(Way::Keys);
        }
        options.helper.any().then_some(Way::Carry(Carry { bits: width - 1 }))
    }
}

/// What a party's share of the comparisons is without the carries: the top bit of its share of each word, which the
/// server negates.
fn tops(role: Role, x: &[u64], thresholds: &[i64], width: u32) -> Vec<u8> {
    let top = |x: u64| (x >> (width - 1) & 1) as u8;
    match role {
        Role::Server => {
            x.iter().flat_map(|&x| thresholds.iter().map(move |&c| 1 ^ top(x.wrapping_sub(c as u64)))).collect()
        }
        Role::Client => x.iter().flat_map(|&x| std::iter::repeat_n(top(x), thresholds.len())).collect(),
    }
}

/// This party's number in every comparison: a at the server, b at the client.
fn numbers(role: Role, x: &[u64], thresholds: &[i64], width: u32) -> Vec<u64> {
    let low = mask(width - 1);
    match role {
        Role::Server => {
            x.iter().flat_map(|&x| thresholds.iter().map(move |&c| low - (x.wrapping_sub(c as u64) & low))).collect()
        }
        Role::Client => x.iter().flat_map(|&x| std::iter::repeat_n(x & low, thresholds.len())).collect(),
    }
}

const LEAF_CHOICES: &str = "compare/choices";
const LEVEL: &str = "compare/level";

/// Most bits of a digit.
const LARGEST_DIGIT: u32 = 5;

const MAX_THRESHOLDS: usize = 32;

/// Results by the numbers of bits and thresholds. Each is computed once, because a plan asks for it thousands of
/// times.
type ByShape<T> = [[OnceLock<T>; MAX_THRESHOLDS]; 65];

/// The weight of an OT, in bits sent, when the sizes of digits are chosen. It stands for the OT's own bits and its
/// time.
const OT_BITS: usize = 16;

/// Shares of [x >= c_j], each a byte 0 or 1. They are ordered by value, and by threshold within a value.
pub(crate) fn at_least(s: &mut Session, x: &[u64], thresholds: &[i64], width: u32) -> Result<Vec<u8>, Error> {
    let mut out = Vec::with_capacity(x.len() * thresholds.len());
    if thresholds.is_empty() {
        return Ok(out);
    }
    for x in x.chunks(batch(thresholds.len(), width)) {
        out.extend(compare(s, x, thresholds, width)?);
    }
    Ok(out)
}

fn batch(thresholds: usize, width: u32) -> usize {
    static KNOWN: ByShape<usize> = [const { [const { OnceLock::new() }; MAX_THRESHOLDS] }; 65];
    *KNOWN[width as usize][thresholds - 1].get_or_init(|| {
        let one = Shape::new(1, thresholds, width);
        batch_items(one.cots(Role::Server) + one.cots(Role::Client))
    })
}

fn compare(s: &mut Session, x: &[u64], thresholds: &[i64], width: u32) -> Result<Vec<u8>, Error> {
    let shape = Shape::new(x.len(), thresholds.len(), width);
    for role in [Role::Server, Role::Client] {
        s.reserve(role, shape.cots(role))?;
    }
    let mut out = tops(s.role(), x, thresholds, width);
    let carries = match s.role() {
        Role::Server => server(s, &shape, x, thresholds)?,
        Role::Client => client(s, &shape, x)?,
    };
    out.iter_mut().zip(carries).for_each(|(out, carry)| *out ^= carry & 1);
    Ok(out)
}

pub(crate) fn cost(n: usize, thresholds: usize, width: u32) -> Cost {
    if thresholds == 0 {
        return Cost::free();
    }
    batched_cost(n, batch(thresholds, width), |n| batch_cost(n, thresholds, width))
}

fn batch_cost(n: usize, thresholds: usize, width: u32) -> Cost {
    let shape = Shape::new(n, thresholds, width);
    let choices = |level: usize| shape.levels.get(level).map_or(0, |level| shape.level_ots(level).div_ceil(8));
    let mut cost = Cost::free()
        .cots(Role::Server, shape.cots(Role::Server))
        .cots(Role::Client, shape.cots(Role::Client))
        .message(Role::Client, shape.leaf_sum(|leaf| leaf.lookup.ots().div_ceil(8)));
    for leaf in &shape.leaves {
        cost = cost.tabulates(Role::Server, &leaf.lookup);
    }
    let digits = shape.leaf_sum(|leaf| leaf.digits) * shape.comparisons();
    cost = cost
        .work(Role::Server, Kernel::Digit, digits)
        .message(Role::Server, shape.leaf_sum(|leaf| leaf.lookup.message_bytes()) + choices(0))
        .work(Role::Client, Kernel::Digit, digits);
    for leaf in &shape.leaves {
        cost = cost.picks(Role::Client, &leaf.lookup);
    }
    for (k, level) in shape.levels.iter().enumerate() {
        let (sender, groups) = (level_sender(k), || joined(level).map(|(g, size)| shape.group(g, size)));
        cost = groups().fold(cost, |cost, lookup| cost.tabulates(sender, &lookup));
        cost = cost
            .work_at_both(Kernel::Digit, shape.comparisons() * level.iter().sum::<usize>())
            .message(sender, shape.level_bytes(level) + choices(k + 1));
        cost = groups().fold(cost, |cost, lookup| cost.picks(sender.peer(), &lookup));
    }
    cost
}

/// The OT sender of a level above the leaves.
fn level_sender(level: usize) -> Role {
    if level.is_multiple_of(2) { Role::Client } else { Role::Server }
}

/// The groups of neighbouring digits whose results are joined at one level: their sizes, the least significant first.
type Groups = Vec<usize>;

/// Everything that both parties derive from the public sizes.
struct Shape {
    values: usize,
    thresholds: usize,
    low_bits: u32,
    /// The digits, least significant first. Neighbouring digits of one size are held together.
    leaves: Vec<Leaf>,
    levels: Vec<Groups>,
}

/// Neighbouring digits of one size.
struct Leaf {
    digits: usize,
    bits: u32,
    /// The position of the lowest bit of the first digit.
    start: u32,
    lookup: LookupShape,
}

impl Leaf {
    fn digit(&self, x: u64, digit: usize) -> u64 {
        x >> (self.start + self.bits * digit as u32) & mask(self.bits)
    }
}

/// [`best_digits`], computed once for each pair of arguments.
fn digits(bits: u32, thresholds: usize) -> &'static [u32] {
    static KNOWN: ByShape<Vec<u32>> = [const { [const { OnceLock::new() }; MAX_THRESHOLDS] }; 65];
    KNOWN[bits as usize][thresholds - 1].get_or_init(|| best_digits(bits, thresholds))
}

/// Sizes of the digits of `bits` bits, least significant first. They differ by at most one. Their number is the one
/// that takes the fewest levels and then, with `thresholds` thresholds, the fewest bits.
fn best_digits(bits: u32, thresholds: usize) -> Vec<u32> {
    let split = |count: u32| (0..count).map(|i| (bits - i).div_ceil(count)).collect::<Vec<_>>();
    let cost = |sizes: &Vec<u32>| {
        let leaves = sizes.iter().map(|&size| ((2 * thresholds) << size) + OT_BITS * size as usize);
        let levels = levels(sizes.len());
        let joins = levels.iter().flat_map(joined).map(|(g, size)| {
            let (index, out) = group_bits(g, size);
            thresholds * ((out << index) as usize + OT_BITS * index as usize)
        });
        (levels.len(), leaves.chain(joins).sum::<usize>())
    };
    (bits.div_ceil(LARGEST_DIGIT)..=bits.div_ceil(3)).map(split).min_by_key(cost).unwrap_or_else(|| vec![bits])
}

/// The groups of every level, if there are `items` digits.
fn levels(mut items: usize) -> Vec<Groups> {
    let mut levels = Vec::new();
    while items > 1 {
        let groups = groups(items);
        items = groups.len();
        levels.push(groups);
    }
    levels
}

/// Numbers of bits of the index and of the result of group number `g`. The index consists of (less, equal) of its
/// `size` members, least significant first. The group of the least significant digit has no "equal", neither of its
/// first member nor as a result.
fn group_bits(g: usize, size: usize) -> (u32, u32) {
    let least = u32::from(g == 0);
    (2 * size as u32 - least, 2 - least)
}

impl Shape {
    fn new(values: usize, thresholds: usize, width: u32) -> Self {
        assert!(
            (2..=64).contains(&width) && (1..=MAX_THRESHOLDS).contains(&thresholds),
            "width {width}, {thresholds} thresholds"
        );
        let low_bits = width - 1;
        let sizes = digits(low_bits, thresholds);
        let (j, mut start) = (thresholds as u32, 0);
        let leaves = sizes.chunk_by(|a, b| a == b).map(|same| {
            let (digits, bits, first) = (same.len(), same[0], start);
            start += digits as u32 * bits;
            let lookup = LookupShape::new(values * digits, bits, &[j, j]).expect("a table of two words");
            Leaf { digits, bits, start: first, lookup }
        });
        Shape { values, thresholds, low_bits, leaves: leaves.collect(), levels: levels(sizes.len()) }
    }

    fn leaf_sum(&self, of: impl Fn(&Leaf) -> usize) -> usize {
        self.leaves.iter().map(of).sum()
    }

    fn comparisons(&self) -> usize {
        self.values * self.thresholds
    }

    /// The 1-of-N OTs of group number `g`, of `size` members, of a level ([`group_bits`]).
    fn group(&self, g: usize, size: usize) -> LookupShape {
        let (index, out) = group_bits(g, size);
        LookupShape::new(self.comparisons(), index, &[out]).expect("up to 8 index bits")
    }

    fn level_ots(&self, level: &Groups) -> usize {
        joined(level).map(|(g, size)| self.group(g, size).ots()).sum()
    }

    fn level_bytes(&self, level: &Groups) -> usize {
        joined(level).map(|(g, size)| self.group(g, size).message_bytes()).sum()
    }

    fn cots(&self, sender: Role) -> usize {
        let leaves = if sender == Role::Server { self.leaf_sum(|leaf| leaf.lookup.ots()) } else { 0 };
        let levels = self.levels.iter().enumerate().filter(|(k, _)| level_sender(*k) == sender);
        leaves + levels.map(|(_, level)| self.level_ots(level)).sum::<usize>()
    }
}

/// The groups of a level with `items` digits or groups: one group of all if there are up to four, and groups of at
/// most three otherwise. So tables have up to 2^7 entries in the least significant group and 2^6 in the others.
fn groups(items: usize) -> Groups {
    if items <= 4 {
        return vec![items];
    }
    (0..items.div_ceil(3)).map(|g| (items - 3 * g).min(3)).collect()
}

/// The groups of a level that need OTs, each as its number and its size. A group of one member passes through.
fn joined(level: &Groups) -> impl Iterator<Item = (usize, usize)> + '_ {
    level.iter().copied().enumerate().filter(|&(_, size)| size > 1)
}

/// Shares of (less, equal) of all digits or groups of digits: bit 0 is "less", and bit 1 is "equal". The outer index
/// is the digit or group, the inner one the comparison.
type Items = Vec<Vec<u8>>;

fn client(s: &mut Session, shape: &Shape, x: &[u64]) -> Result<Vec<u8>, Error> {
    let low = mask(shape.low_bits);
    let (mut message, mut keys) = (Vec::new(), Vec::new());
    for leaf in &shape.leaves {
        let digits = x.iter().flat_map(|x| (0..leaf.digits).map(move |d| leaf.digit(x & low, d)));
        let (choices, chosen) = s.receiver().choose(&Bits::from_values(&digits.collect::<Vec<_>>(), leaf.bits))?;
        message.extend(choices);
        keys.push(chosen);
    }
    s.deliver(LEAF_CHOICES, message)?;
    let tables = shape.leaf_sum(|leaf| leaf.lookup.message_bytes());
    let choices = shape.levels.first().map_or(0, |level| shape.level_ots(level).div_ceil(8));
    let reply = s.channel().recv(LEVEL, tables + choices)?;
    let (mut tables, choices) = reply.split_at(tables);
    let mut items = Items::new();
    for (leaf, keys) in shape.leaves.iter().zip(keys) {
        let (table, rest) = tables.split_at(leaf.lookup.message_bytes());
        tables = rest;
        items.extend(leaf_items(shape, leaf, &keys.lookup(&leaf.lookup, table)?));
    }
    if shape.levels.is_empty() {
        return Ok(items.into_iter().next().unwrap_or_default());
    }
    send_level(s, shape, 0, items, choices)
}

fn server(s: &mut Session, shape: &Shape, x: &[u64], thresholds: &[i64]) -> Result<Vec<u8>, Error> {
    let low = mask(shape.low_bits);
    let j_mask = mask(shape.thresholds as u32);
    let message = s.channel().recv(LEAF_CHOICES, shape.leaf_sum(|leaf| leaf.lookup.ots().div_ceil(8)))?;
    let (mut choices, mut reply, mut items) = (&message[..], Vec::new(), Items::new());
    for leaf in &shape.leaves {
        let masks: Vec<u64> = (0..2 * x.len() * leaf.digits).map(|_| s.rng().next_u64() & j_mask).collect();
        items.extend(leaf_items(shape, leaf, &masks));
        let ots = leaf.lookup.ots();
        let (mine, rest) = choices.split_at(ots.div_ceil(8));
        choices = rest;
        let keys = s.sender().accept(ots, mine)?;
        let digit = |item: usize, c: i64| {
            leaf.digit(low - (x[item / leaf.digits].wrapping_sub(c as u64) & low), item % leaf.digits)
        };
        reply.extend(if leaf.lookup.item_bits() <= 128 {
            let table = Unary::new(shape.thresholds, leaf.bits);
            keys.lookup_short(&leaf.lookup, |item| {
                let digits = thresholds.iter().map(|&c| digit(item, c));
                table.of(digits, [masks[2 * item], masks[2 * item + 1]])
            })?
        } else {
            keys.lookup(&leaf.lookup, |item, row| {
                row.chunks_exact_mut(2).for_each(|words| words.copy_from_slice(&masks[2 * item..2 * item + 2]));
                for (j, &c) in thresholds.iter().enumerate() {
                    let a = digit(item, c);
                    for (entry, words) in (0..).zip(row.chunks_exact_mut(2)) {
                        words[0] ^= u64::from(a < entry) << j;
                        words[1] ^= u64::from(a == entry) << j;
                    }
                }
            })?
        });
    }
    let pending = choose_level(s, shape, 0, &items, &mut reply)?;
    s.deliver(LEVEL, reply)?;
    match pending {
        Some(keys) => receive_level(s, shape, 0, items, keys),
        None => Ok(items.into_iter().next().unwrap_or_default()),
    }
}

/// Tables of digits, as strings of up to 128 bits. For each threshold j with a digit a_j, entry e holds the bit [a_j
/// < e] and, after these bits, the bit [a_j = e].
struct Unary {
    thresholds: u32,
    /// A 1 at the lowest bit of every entry.
    ones: u128,
}

impl Unary {
    fn new(thresholds: usize, bits: u32) -> Self {
        let thresholds = thresholds as u32;
        let ones = (0..1u32 << bits).fold(0, |ones, entry| ones | 1 << (2 * thresholds * entry));
        Unary { thresholds, ones }
    }

    /// The table for the digits a_j. The bits "less" and the bits "equal" of every entry are masked by one word each.
    /// Computed without branches on secrets.
    fn of(&self, digits: impl Iterator<Item = u64>, [less, equal]: [u64; 2]) -> u128 {
        let entry = 2 * self.thresholds;
        let masks = u128::from(less | equal << self.thresholds).wrapping_mul(self.ones);
        (0..).zip(digits).fold(masks, |table, (j, a)| {
            let at = entry * a as u32;
            table ^ self.ones << at << entry << j ^ 1 << (at + self.thresholds + j)
        })
    }
}

/// The shares of (less, equal) of the digits of `leaf`. `words` has two words for every value and digit, with a bit
/// for every threshold.
fn leaf_items(shape: &Shape, leaf: &Leaf, words: &[u64]) -> Items {
    let pair = |value: usize, digit: usize, j: usize| {
        let at = 2 * (value * leaf.digits + digit);
        (words[at] >> j & 1 | (words[at + 1] >> j & 1) << 1) as u8
    };
    let comparisons =
        |digit| (0..shape.values).flat_map(move |value| (0..shape.thresholds).map(move |j| (value, digit, j)));
    (0..leaf.digits).map(|digit| comparisons(digit).map(|(v, d, j)| pair(v, d, j)).collect()).collect()
}

/// Sends level `k` as OT sender, with the choices for the next level, and continues with that level.
fn send_level(s: &mut Session, shape: &Shape, k: usize, items: Items, choices: &[u8]) -> Result<Vec<u8>, Error> {
    let level = &shape.levels[k];
    let mut keys = s.sender().accept(shape.level_ots(level), choices)?;
    let mut message = Vec::with_capacity(shape.level_bytes(level));
    let mut next = Items::new();
    let mut first = 0;
    for (g, &size) in level.iter().enumerate() {
        let members = &items[first..first + size];
        first += size;
        if size == 1 {
            next.push(members[0].clone());
            continue;
        }
        let lookup = shape.group(g, size);
        let rest = keys.split_off(lookup.ots());
        let this = std::mem::replace(&mut keys, rest);
        let mut output = vec![0; shape.comparisons()];
        s.rng().fill_bytes(&mut output);
        let keep = if g == 0 { 1 } else { 3 };
        output.iter_mut().for_each(|bits| *bits &= keep);
        let truth = Truth::new(size, g == 0);
        message.extend(this.lookup_short(&lookup, |item| truth.of(index(members, item, g == 0), output[item]))?);
        next.push(output);
    }
    let pending = choose_level(s, shape, k + 1, &next, &mut message)?;
    s.deliver(LEVEL, message)?;
    match pending {
        Some(keys) => receive_level(s, shape, k + 1, next, keys),
        None => Ok(next.into_iter().next().unwrap_or_default()),
    }
}

/// Receives level `k`, for which this party has sent its choices, and continues with the next level.
fn receive_level(s: &mut Session, shape: &Shape, k: usize, items: Items, keys: ChosenKeys) -> Result<Vec<u8>, Error> {
    let level = &shape.levels[k];
    let bytes = shape.level_bytes(level);
    let choices = shape.levels.get(k + 1).map_or(0, |level| shape.level_ots(level).div_ceil(8));
    let message = s.channel().recv(LEVEL, bytes + choices)?;
    let (mut tables, choices) = message.split_at(bytes);
    let mut keys = keys;
    let mut next = Items::new();
    let mut first = 0;
    for (g, &size) in level.iter().enumerate() {
        if size == 1 {
            next.push(items[first].clone());
        } else {
            let lookup = shape.group(g, size);
            let rest = keys.split_off(lookup.ots());
            let (table, others) = tables.split_at(lookup.message_bytes());
            tables = others;
            next.push(keys.lookup(&lookup, table)?.into_iter().map(|bits| bits as u8).collect());
            keys = rest;
        }
        first += size;
    }
    if k + 1 < shape.levels.len() {
        return send_level(s, shape, k + 1, next, choices);
    }
    Ok(next.into_iter().next().unwrap_or_default())
}

/// Appends this party's choices for level `k` to `message`, if there is such a level.
fn choose_level(
    s: &mut Session,
    shape: &Shape,
    k: usize,
    items: &Items,
    message: &mut Vec<u8>,
) -> Result<Option<ChosenKeys>, Error> {
    let Some(level) = shape.levels.get(k) else { return Ok(None) };
    let mut chosen = Vec::with_capacity(shape.level_ots(level));
    let mut first = 0;
    for (g, &size) in level.iter().enumerate() {
        let members = &items[first..first + size];
        first += size;
        if size > 1 {
            let bits = 2 * size - usize::from(g == 0);
            for item in 0..shape.comparisons() {
                let own = index(members, item, g == 0);
                chosen.extend((0..bits).map(|bit| own >> bit & 1 == 1));
            }
        }
    }
    let (choices, keys) = s.receiver().choose(&Bits::from_fn(chosen.len(), |i| chosen[i]))?;
    message.extend(choices);
    Ok(Some(keys))
}

/// The index of comparison number `item` in a group: (less, equal) of every member, least significant first. If the
/// group holds the `least` significant digit, the "equal" of this digit is left out.
fn index(members: &[Vec<u8>], item: usize, least: bool) -> usize {
    let all = members.iter().rev().fold(0, |index, pairs| index << 2 | usize::from(pairs[item] & 3));
    if least { all & 1 | all >> 2 << 1 } else { all }
}

/// The table of a group, as a string of up to 128 bits. The entry at each index ([`group_bits`]) is the joint (less,
/// equal) of the group.
struct Truth {
    /// Bits of an entry.
    out: u32,
    table: u128,
    /// For every bit of the index, the entries where it is 0.
    zeros: Vec<u128>,
    /// A 1 at the lowest bit of every entry.
    ones: u128,
}

impl Truth {
    fn new(size: usize, least: bool) -> Self {
        let (bits, out) = group_bits(usize::from(!least), size);
        let join = |index: u32| {
            let all = if least { index & 1 | index >> 1 << 2 } else { index };
            let (mut less, mut equal) = (0, 1);
            for member in (0..size).rev() {
                let pair = all >> (2 * member) & 3;
                less |= equal & pair & 1;
                equal &= pair >> 1;
            }
            if least { less } else { less | equal << 1 }
        };
        let string = |entry: &dyn Fn(u32) -> u32| {
            (0..1u32 << bits).fold(0, |string, e| string | u128::from(entry(e)) << (out * e))
        };
        let whole = (1 << out) - 1;
        let zeros = (0..bits).map(|bit| string(&|e| if e >> bit & 1 == 0 { whole } else { 0 })).collect();
        Truth { out, table: string(&join), zeros, ones: string(&|_| 1) }
    }

    /// The table with its entries permuted and masked: entry e is the entry of index e ^ `own`, under `mask`. Each
    /// bit of `own` swaps halves of the table or leaves them.
    fn of(&self, own: usize, mask: u8) -> u128 {
        let turned = self.zeros.iter().enumerate().fold(self.table, |table, (bit, zeros)| {
            let (step, turn) = (self.out << bit, 0u128.wrapping_sub((own >> bit & 1) as u128));
            let change = (table ^ table >> step) & zeros & turn;
            table ^ change ^ change << step
        });
        turned ^ self.ones.wrapping_mul(u128::from(mask))
    }
}
