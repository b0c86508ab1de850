//! A function of one positive variable over many octaves, by tables each of which is coarser than the one before.
//! After preparation two words are opened one after the other, and the rest is local.
//!
//! **Functionality.** Shares of x modulo 2^in_width -> shares of f(x) modulo 2^width, for a power of x such as 1 / x.
//!
//! **Source.** As in the [parent module](super). A table of equal windows has a bounded relative error from its
//! window `first` on. So a table of 2^b windows, a *rung*, serves b - log2(first) octaves. Rung k looks at x
//! 2^(-shift_k). Rung k + 1 begins a few windows before rung k ends.
//!
//! ```text
//! prepare:  for each rung a mask and a key with the payload (1, rho); random bits B_1, .., B_(K-1) and words
//!           rho_0, .., rho_(K-1), shares of their unit vector e_B, and of its products with the words
//! run:      open x 2^(-shift_k) - r_k for every rung: t_k, shares of its value, and b_k = [its window >= first],
//!           which is the sum of the payload's ones from `first` on
//!           open t_k - rho_k and b_k ^ B_k
//!           the result is t_k for the largest k with b_k = 1, or t_0
//! ```
//!
//! The last step is linear in the prepared products, because the opened bits say which entry of e_B counts for which
//! rung. The value of a rung for an x beyond its windows means nothing, because a later rung then decides.
//!
//! **Range.** x from the first window of rung 0 to the end of the last rung ([`Ladder::contains`]); other inputs give
//! garbage. **Error.** For x^-a, relative: 9/16 a (a + 1) / first^2 from the lines, and a 2^(-low_bits) / first from
//! the low bits that shares drop of x. Then one unit in the last place of the result, from the low bits that shares
//! drop of a value. The naive reference is the reference of [`Evaluate`](crate::ops::evaluate::Evaluate), which looks
//! at the rung that decides.
//!
//! **What each party sees.** Offline: as in the parent module, and multiplexers of random words. Online: masked words
//! and masked bits. Every mask is uniform and serves one word alone. **Revealed.** Nothing.

use rand::Rng;
use serde::{Deserialize, Serialize};

use super::table::{CurveSpec, FssShape, Lines, Payload};
use super::{Strand, StrandShape, finish, grow_cost, hidden_indices, key_words};
use crate::deal::dealing::{Dealing, woven};
use crate::operation::prelude::*;
use crate::ops::batch_items;
use crate::wire::opening;

/// The fewest fractional bits that a rung's value has beyond those of the result. Shares drop these bits.
const SPARE: u32 = 8;

/// Most rungs. 2^(rungs - 1) words are prepared for each rung.
const MOST_RUNGS: usize = 10;

/// The numbers on which the preparation of a ladder depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LadderShape {
    /// Number of tables, 1..=10.
    pub rungs: usize,
    /// log2 of the number of windows of each table, 2..=14.
    pub index_bits: u32,
    /// Bits of a table's input below the window index.
    pub low_bits: u32,
    /// Bits of the ring of the result, at most 64 - 8.
    pub width: u32,
}

impl LadderShape {
    /// The shape in which every rung's table is prepared.
    fn rung(&self) -> FssShape {
        let LadderShape { index_bits, low_bits, .. } = *self;
        FssShape { index_bits, low_bits, width: 64, payload: Payload::Line, cell_bits: 0 }
    }

    /// Number of the bits B, which choose among the rungs.
    fn bits(&self) -> usize {
        self.rungs - 1
    }

    /// log2 of the weight of each of the bits B in the index that they form, the highest first.
    fn weights(&self) -> Vec<u32> {
        (0..self.bits() as u32).rev().collect()
    }

    /// The shape of the unit vector of the bits B, together with the products of its entries.
    fn choice(&self) -> StrandShape {
        StrandShape { places: 0..self.bits(), words: Some((self.entry(), self.width)) }
    }

    /// Number of words for each entry of the unit vector: the entry itself, and its products with the words rho_k.
    fn entry(&self) -> usize {
        self.rungs + 1
    }

    /// Number of words of the correlation of one input. First come the words of the rungs, then B as one word, all
    /// rho_k, and the entries of the unit vector. With a single rung only its words are there, because there is
    /// nothing to choose.
    pub fn correlation_words(&self) -> usize {
        self.rungs * self.rung().correlation_words() + self.choice_words()
    }

    /// The words of the correlation of an input, separated by meaning.
    fn unit<'u>(&self, words: &'u [u64]) -> Unit<'u> {
        let (rungs, choice) = words.split_at(self.rungs * self.rung().correlation_words());
        let (bits, rest) = choice.split_at(choice.len().min(1));
        let (rho, entries) = rest.split_at(rest.len().min(self.rungs));
        Unit { rungs, bits: bits.first().copied().unwrap_or(0), rho, entries }
    }

    fn choice_words(&self) -> usize {
        if self.rungs == 1 { 0 } else { 1 + self.rungs + (self.entry() << self.bits()) }
    }

    /// Number of leaves that each party expands to evaluate an input.
    pub fn leaves(&self) -> u64 {
        (self.rungs as u64) << self.index_bits
    }
}

/// A party's words of the correlation of an input. With a single rung all but its words are empty, because there is
/// nothing to choose.
struct Unit<'u> {
    /// A mask and a key for every rung.
    rungs: &'u [u64],
    /// The bits B.
    bits: u64,
    rho: &'u [u64],
    /// The entries of the unit vector, each with its products.
    entries: &'u [u64],
}

impl LadderShape {
    /// Whether a helper deals this shape. It does not if a field is out of range, which can happen for a shape that a
    /// peer sent.
    pub(crate) fn is_served(&self) -> bool {
        (1..=MOST_RUNGS).contains(&self.rungs) && self.rung().is_served() && (1..=64 - SPARE).contains(&self.width)
    }
}

/// A random mask and key for every rung, and the words that choose among the rungs. Unit: an input.
impl Correlation for LadderShape {
    fn dealt_words(&self) -> Option<u64> {
        key_words(self, self.is_served())
    }

    fn deal(&self, d: &mut Dealing<'_>, n: usize) -> Result<[Vec<u64>; 2], Error> {
        let rungs = self.rung().deal(d, n * self.rungs)?;
        if self.rungs == 1 {
            return Ok(rungs);
        }
        let (entry, width) = (self.entry(), self.width);
        let (bits, rho) = (d.draw_both(n, self.bits() as u32), d.draw_both(n * self.rungs, width));
        let entries = entry << self.bits();
        let client = d.draw(Role::Client, n * entries, width);
        let server = d.give(Role::Server, n * entries, &[width], || {
            let mut out = Vec::with_capacity(n * entries);
            for (i, (client, server)) in bits[0].iter().zip(&bits[1]).enumerate() {
                let chosen = (client ^ server) as usize;
                let rho = (i * self.rungs..(i + 1) * self.rungs).map(|k| rho[0][k].wrapping_add(rho[1][k]));
                let mut unit = vec![0; entries];
                unit[chosen * entry] = 1;
                unit[chosen * entry + 1..].iter_mut().zip(rho).for_each(|(word, rho)| *word = rho);
                out.extend(unit);
            }
            out.iter().zip(&client).map(|(whole, client)| whole.wrapping_sub(*client)).collect()
        })?;
        let keys = self.rungs * self.rung().correlation_words();
        let unit = |role: Role, words: &[u64]| {
            let role = role as usize;
            woven(n, &[(&rungs[role], keys), (&bits[role], 1), (&rho[role], self.rungs), (words, entries)])
        };
        Ok([unit(Role::Client, &client), unit(Role::Server, &server)])
    }

    fn scope(&self) -> &'static str {
        "functions"
    }

    fn words(&self, _: Role) -> usize {
        self.correlation_words()
    }

    fn batch(&self, _: &Options) -> usize {
        batch_items(self.choice_words().max(self.rungs))
    }

    fn cost(&self, plans: &mut Plans, n: usize) -> Result<Cost, Error> {
        Ok(prepare_cost(self, plans.options(), n))
    }

    fn make(&self, s: &mut Session, n: usize, _: &mut Pipeline<'_>) -> Result<Vec<u64>, Error> {
        let rungs = super::prepare(s, &self.rung(), n * self.rungs)?;
        if self.rungs == 1 {
            return Ok(rungs);
        }
        let choices = prepare_choices(s, self, n)?;
        let rungs = rungs.chunks_exact(self.rungs * self.rung().correlation_words());
        let choices = choices.chunks_exact(self.choice_words());
        Ok(rungs.zip(choices).flat_map(|(rungs, choice)| rungs.iter().chain(choice)).copied().collect())
    }
}

/// What a ladder is made for: the octaves that its rungs serve, and the units of its input and result.
#[derive(Clone, Copy, Debug)]
pub struct LadderSpec {
    /// log2 of the number of windows of a rung.
    pub index_bits: u32,
    /// Bits of a rung's input below the window index.
    pub low_bits: u32,
    /// Number of octaves that a rung serves. A window is then at most as wide as 2^(octaves - index_bits) times its
    /// distance from 0.
    pub octaves: u32,
    /// The smallest and the largest x, in units of its last place.
    pub range: [u64; 2],
    /// Bits of the ring of x.
    pub in_width: u32,
    /// Fractional bits of the result.
    pub out_frac: u32,
    /// Bits of the ring of the result.
    pub out_width: u32,
}

/// A function over many octaves, with a table for every few of them.
#[derive(Clone, Debug)]
pub struct Ladder {
    shape: LadderShape,
    /// For each rung, the number of low bits of x that it does not look at.
    shifts: Vec<u32>,
    /// The first window in which a rung other than rung 0 may decide.
    first: u64,
    tables: Vec<Lines>,
    /// Low bits of a table's value that are dropped.
    dropped: u32,
    /// The smallest x, in units of its last place.
    start: u64,
    /// Bits of the ring of x.
    in_width: u32,
}

impl Ladder {
    /// The ladder of `f`, a function of x in units of its last place. `f` must give the same results on every
    /// machine: it may use the basic operations and `libm`.
    ///
    /// # Panics
    /// If the range takes more than 10 rungs or reaches further than the bits of x allow, or if the ring of the
    /// result leaves no room for dropped bits.
    pub fn fit(spec: LadderSpec, f: impl Fn(f64) -> f64) -> Self {
        let LadderSpec { index_bits, low_bits, octaves, range: [start, end], in_width, out_frac, out_width } = spec;
        let windows = mask(index_bits) - 1;
        // Within three windows after `first`, a rung may still leave the decision to the rung below. The rung below
        // must still hold there.
        let first = (windows >> octaves) - 4;
        let lowest = (start / (first << low_bits)).max(1).ilog2();
        // The last rung may reach no further than the bits of x. It then shares more octaves with the rung below.
        let most = in_width - index_bits - low_bits;
        let shift = |rung: usize| (lowest + octaves * rung as u32).min(most);
        let reach = |rung: usize| u128::from(windows) << (low_bits + shift(rung));
        let rungs = (1..=MOST_RUNGS).find(|&rungs| reach(rungs - 1) > u128::from(end)).expect("a range of few rungs");
        assert!(out_width + SPARE <= 64, "a ring of {out_width} bits");
        let dropped = 64 - out_width;
        let table = |rung: usize| {
            let step = libm::exp2(f64::from(shift(rung)));
            // Lower windows are never used. The windows of rung 0 begin up to two windows below the start.
            let window = step * (1u64 << low_bits) as f64;
            let from = if rung == 0 { start as f64 - 3.0 * window } else { first as f64 * window };
            // Shares of x lose up to two units of a rung as they drop low bits, one on average.
            let base = if shift(rung) == 0 { 0.0 } else { step };
            let spec = CurveSpec { index_bits, low_bits, base, step, out_frac: out_frac + dropped, out_width: 64 };
            Lines::fit(spec, |x| f(x.max(from)))
        };
        Ladder {
            shape: LadderShape { rungs, index_bits, low_bits, width: out_width },
            shifts: (0..rungs).map(shift).collect(),
            first,
            tables: (0..rungs).map(table).collect(),
            dropped,
            start,
            in_width,
        }
    }

    /// The shape, on which the preparation depends.
    pub fn shape(&self) -> LadderShape {
        self.shape
    }

    /// Whether the ladder serves `x`.
    pub fn contains(&self, x: u64) -> bool {
        let top = (mask(self.shape.index_bits) - 1) << self.shape.low_bits;
        x >= self.start && x >> self.shifts[self.shape.rungs - 1] < top
    }

    /// Whether a rung decides, unless a later rung does, if x lies in its window number `n`. The number is modulo the
    /// number of windows.
    fn counts(&self, n: u64) -> bool {
        (self.first..mask(self.shape.index_bits) - 1).contains(&n)
    }

    /// The value of the ladder at `x` by its definition. `rho` gives the server's and the client's low part of the
    /// mask for every rung.
    pub(crate) fn value(&self, x: u64, rho: impl Fn(usize) -> [u64; 2]) -> u64 {
        let LadderShape { rungs, index_bits, low_bits, width } = self.shape;
        let seen = |rung: usize| {
            let rho = rho(rung);
            let rest = (x >> self.shifts[rung]).wrapping_sub(rho[0]).wrapping_sub(rho[1]);
            (rest >> low_bits & mask(index_bits), rest & mask(low_bits), rho)
        };
        let rung = (1..rungs).rev().find(|&rung| self.counts(seen(rung).0)).unwrap_or(0);
        let (n, low, rho) = seen(rung);
        let half = 1u64 << (self.dropped - 1);
        self.tables[rung].value(n as usize, low, rho).wrapping_add(half) >> self.dropped & mask(width)
    }

    /// This party's share of the bit that says whether the window of x is `first` or later. `values` are its shares
    /// of the payload, rotated by the opened window `high`: those at every window n - `high`.
    fn decides(&self, high: usize, values: &[u64]) -> u64 {
        let windows = 1usize << self.shape.index_bits;
        let count = windows - 2 - self.first as usize;
        let from = (self.first as usize).wrapping_sub(high) & (windows - 1);
        let ones = |range: std::ops::Range<usize>| {
            values[2 * range.start..2 * range.end].iter().step_by(2).fold(0, |sum: u64, one| sum ^ one)
        };
        let wrapped = (from + count).saturating_sub(windows);
        (ones(from..from + count - wrapped) ^ ones(0..wrapped)) & 1
    }

    /// The number of the rung that decides, where bit k - 1 of `bits` says whether rung k counts.
    fn rung(bits: u64) -> usize {
        (u64::BITS - bits.leading_zeros()) as usize
    }
}

/// Cost of a batch of `n` correlations.
pub(crate) fn prepare_cost(shape: &LadderShape, options: &Options, n: usize) -> Cost {
    let rungs = super::prepare_cost(&shape.rung(), options, n * shape.rungs);
    if shape.rungs == 1 || n == 0 {
        return rungs;
    }
    rungs.then(grow_cost(n, None, &shape.weights(), &[shape.choice()]).offline())
}

/// The bits B, the words rho_k, and the unit vector of B with its products.
fn prepare_choices(s: &mut Session, shape: &LadderShape, n: usize) -> Result<Vec<u64>, Error> {
    let (bits, server) = (shape.bits(), s.is_server());
    let mut indices = hidden_indices(s, &shape.weights(), n)?;
    let mut words = Vec::with_capacity(n * shape.entry());
    for _ in 0..n {
        words.push(u64::from(server));
        words.extend((0..shape.rungs).map(|_| s.rng().next_u64() & mask(shape.width)));
    }
    let mut strands = [Strand::Words(indices.place(shape.choice().places, words.clone(), shape.width))];
    finish(s, &mut indices, &mut strands)?;
    let [Strand::Words(unit)] = strands else { unreachable!("as made above") };
    let (own, unit) = (indices.shares(), unit.into_words());
    let items = own.iter().zip(words.chunks_exact(shape.entry())).zip(unit.chunks_exact(shape.entry() << bits));
    Ok(items.flat_map(|((own, words), unit)| std::iter::once(own).chain(&words[1..]).chain(unit)).copied().collect())
}

/// Shares of the function at every word of `x`, modulo 2^width. Each word uses up one of `correlations`.
pub(crate) fn run(s: &mut Session, ladder: &Ladder, correlations: &[u64], x: &[u64]) -> Result<Vec<u64>, Error> {
    let shape = ladder.shape;
    let LadderShape { rungs, width, .. } = shape;
    let size = shape.correlation_words();
    assert_eq!(correlations.len(), x.len() * size, "a correlation for every input");
    let units = || correlations.chunks_exact(size).map(|words| shape.unit(words));
    let keys: Vec<u64> = units().flat_map(|unit| unit.rungs).copied().collect();
    let masks = || keys.chunks_exact(shape.rung().correlation_words()).map(|rung| rung[0]);
    let seen = x.iter().flat_map(|x| ladder.shifts.iter().map(move |shift| (x & mask(ladder.in_width)) >> shift));
    let masked: Vec<u64> = seen.zip(masks()).map(|(seen, mask)| seen.wrapping_sub(mask)).collect();
    let opened = opening::masked(s, &masked, masks(), &[shape.rung().input_bits()])?;
    // One party rounds up and one down, so that the sum is right on average.
    let up = if s.is_server() { mask(ladder.dropped) } else { 0 };
    let seen: Vec<(u64, u64)> = super::expand(s.role(), &shape.rung(), &keys, &opened, |i, high, low, values| {
        let value = ladder.tables[i % rungs].apply(high, low, values).wrapping_add(up);
        (value >> ladder.dropped, ladder.decides(high, values))
    });
    if rungs == 1 {
        return Ok(seen.into_iter().map(|(value, _)| value).collect());
    }
    // Every t_k - rho_k, then every b_k ^ B_k.
    let difference: Vec<u64> = units()
        .zip(seen.chunks_exact(rungs))
        .flat_map(|(unit, seen)| {
            let words = seen.iter().zip(unit.rho).map(|((value, _), rho)| value.wrapping_sub(*rho));
            words.chain(seen[1..].iter().enumerate().map(move |(k, (_, bit))| bit ^ unit.bits >> k & 1))
        })
        .collect();
    let widths = widths(&shape);
    let used =
        units().flat_map(|unit| unit.rho.iter().copied().chain((0..shape.bits()).map(move |k| unit.bits >> k)));
    let opened = opening::masked(s, &difference, used, &widths)?;
    let choose = |(unit, opened): (Unit<'_>, &[u64])| {
        let (words, bits) = opened.split_at(rungs);
        let bits = bits.iter().enumerate().fold(0, |bits, (k, bit)| bits | bit << k);
        // If the mask of the bits is `at`, this rung decides.
        let entries = unit.entries.chunks_exact(shape.entry()).enumerate();
        entries.fold(0u64, |sum, (at, entry)| {
            let rung = Ladder::rung(bits ^ at as u64);
            sum.wrapping_add(words[rung].wrapping_mul(entry[0])).wrapping_add(entry[1 + rung])
        }) & mask(width)
    };
    Ok(units().zip(opened.chunks_exact(widths.len())).map(choose).collect())
}

/// Widths of the words that are opened to choose among the rungs.
fn widths(shape: &LadderShape) -> Vec<u32> {
    let mut widths = vec![shape.width; shape.rungs];
    widths.resize(shape.rungs + shape.bits(), 1);
    widths
}

pub(crate) fn run_cost(shape: &LadderShape, n: usize) -> Cost {
    let rungs = super::whole_cost(&shape.rung(), n * shape.rungs);
    if shape.rungs == 1 {
        return rungs;
    }
    let widths = widths(shape);
    rungs
        .then(opening::open_cost(n * widths.len(), &widths))
        .work_at_both(Kernel::WordTerm, (n * shape.entry()) << shape.bits())
}
