//! Comparison of short words with public thresholds by FSS keys: after preparation one masked word is opened.
//!
//! **Functionality.** Shares of x modulo 2^w -> XOR shares of the bits [x >= c] for signed x and public thresholds c.
//!
//! **Source.** As in the [parent module](super), with a payload of one bit, 128 in a leaf of the tree:
//!
//! ```text
//! prepare:  share a random mask R and a key that expands to XOR shares of the unit vector of R
//! run:      open y = x - R
//!           the bit [x >= c] is the parity of the entries j with y + j >= c
//! ```
//!
//! These entries are an interval of the circle, so one vector serves all thresholds.
//!
//! **Range.** Any x; [`MIN_WIDTH`] <= w <= [`MAX_WIDTH`]. **Error.** None.
//!
//! **What each party sees.** While preparing: as in the parent module. Online: y, which is used once and uniform
//! modulo 2^w since R is. **Revealed.** Nothing.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use waggle_ot::dpf::{DpfShape, Expander};

use super::{
    Strand, StrandShape, TASK, batch, grow, grow_cost, hidden_indices, key_words, open_bits, open_bits_cost,
    open_inputs,
};
use crate::deal::dealing::Dealing;
use crate::operation::prelude::*;
use crate::wire::opening;

/// Bits of the index within a leaf.
const LEAF_BITS: u32 = 7;

/// The narrowest ring.
pub const MIN_WIDTH: u32 = LEAF_BITS + 1;

/// The widest ring. Beyond, expanding the vector takes longer than the messages it saves.
pub const MAX_WIDTH: u32 = 15;

/// Whether a session compares words of this width by FSS keys. It does so in two phases over slow links: there a word
/// saves 60 bytes and five flows online, which is worth the 300 bytes and the processor time of its preparation.
pub(crate) fn applies(options: &Options, width: u32) -> bool {
    options.preprocess && options.slow_link() && (MIN_WIDTH..=MAX_WIDTH).contains(&width)
}

/// A random mask and a key that expands to XOR shares of the mask's unit vector. Unit: an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Comparison {
    /// Bits of the ring.
    pub width: u32,
}

impl Comparison {
    /// Whether a helper deals this kind. It does not if a field is out of range, which can happen for a kind that a
    /// peer sent.
    pub(crate) fn is_served(&self) -> bool {
        (MIN_WIDTH..=MAX_WIDTH).contains(&self.width)
    }
}

impl Correlation for Comparison {
    fn dealt_words(&self) -> Option<u64> {
        key_words(self, self.is_served())
    }

    fn deal(&self, d: &mut Dealing<'_>, n: usize) -> Result<[Vec<u64>; 2], Error> {
        super::deal_keys(d, tree(self.width), n, self.width, (2, 64), |[client, server]| {
            let index = (client + server) & mask(self.width);
            let place = index & mask(LEAF_BITS);
            let mut words = vec![0; 2];
            words[(place / 64) as usize] = 1 << (place % 64);
            super::Hidden { leaf: (index >> LEAF_BITS) as usize, words, bits: Vec::new() }
        })
    }

    fn scope(&self) -> &'static str {
        "comparisons"
    }

    fn words(&self, _: Role) -> usize {
        1 + tree(self.width).key_words()
    }

    fn batch(&self, options: &Options) -> usize {
        batch(tree(self.width), self.width, options)
    }

    fn cost(&self, _: &mut Plans, n: usize) -> Result<Cost, Error> {
        let cost = grow_cost(n, Some(tree(self.width)), &self.weights(), &[self.leaf()])
            .work_at_both(Kernel::LeafWord, n << (LEAF_BITS - 6))
            .then(open_bits_cost(n << LEAF_BITS));
        Ok(if n == 0 { Cost::free() } else { cost.offline() })
    }

    fn make(&self, s: &mut Session, n: usize, _: &mut Pipeline<'_>) -> Result<Vec<u64>, Error> {
        let mut indices = hidden_indices(s, &self.weights(), n)?;
        let mut leaf = [Strand::Unit(indices.unit(self.leaf().places))];
        let trees = grow(s, tree(self.width), &mut indices, &mut leaf)?;
        let [Strand::Unit(unit)] = leaf else { unreachable!("as made above") };
        let corrections = open_bits(s, unit.words(), &trees.xor_leaves(), 64)?;
        let (entries, room) = trees.finish(&indices.sums().collect::<Vec<_>>(), &corrections, &[])?;
        s.room = room;
        Ok(entries)
    }
}

impl Comparison {
    /// log2 of the weight of each bit of a mask, the highest first.
    fn weights(self) -> Vec<u32> {
        (0..self.width).rev().collect()
    }

    /// The shape of the unit vector of a mask within its leaf.
    fn leaf(self) -> StrandShape {
        StrandShape { places: (self.width - LEAF_BITS) as usize..self.width as usize, words: None }
    }
}

fn tree(width: u32) -> DpfShape {
    assert!((MIN_WIDTH..=MAX_WIDTH).contains(&width), "comparison of {width} bits");
    DpfShape::of_bits(width - LEAF_BITS).expect("1..=8 levels")
}

/// XOR shares of [x >= c] for every word x of `x` and every c of `thresholds`. Each word uses up one of
/// `correlations`.
pub(crate) fn run(
    s: &mut Session,
    correlations: &[u64],
    x: &[u64],
    thresholds: &[i64],
    width: u32,
) -> Result<Vec<u8>, Error> {
    let size = 1 + tree(width).key_words();
    let opened = open_inputs(s, correlations, size, x, width)?;
    let (role, count) = (s.role(), thresholds.len());
    let mut out = vec![0; x.len() * count];
    let tasks =
        out.par_chunks_mut(TASK * count).zip(opened.par_chunks(TASK)).zip(correlations.par_chunks(TASK * size));
    tasks.for_each(|((out, opened), entries)| {
        let mut expander = Expander::new(tree(width), role);
        let mut unit = vec![0; tree(width).values()];
        for ((out, y), entry) in out.chunks_exact_mut(count).zip(opened).zip(entries.chunks_exact(size)) {
            expander.expand_xor(&entry[1..], &mut unit);
            // x >= c for the signed values from c to the largest: the entries from c - y up to 2^(width-1) - y,
            // around the circle.
            let at = |value: u64| value.wrapping_sub(*y) & mask(width);
            let end = at(1 << (width - 1));
            let (all, below_end) = (parity_below(&unit, unit.len() as u64 * 64), parity_below(&unit, end));
            for (out, c) in out.iter_mut().zip(thresholds) {
                let start = at(*c as u64);
                let around = all & u8::from(start >= end);
                *out = below_end ^ parity_below(&unit, start) ^ around;
            }
        }
    });
    Ok(out)
}

pub(crate) fn run_cost(width: u32, n: usize) -> Cost {
    opening::open_cost(n, &[width]).work_at_both(Kernel::TreeExpanded, n << tree(width).depth())
}

/// The parity of the first `count` bits.
pub(super) fn parity_below(bits: &[u64], count: u64) -> u8 {
    let (words, rest) = ((count / 64) as usize, (count % 64) as u32);
    let whole = bits[..words].iter().fold(0, |sum, word| sum ^ word);
    let part = bits.get(words).map_or(0, |word| word & mask(rest));
    ((whole ^ part).count_ones() & 1) as u8
}

/// [x != 0] of words modulo 2^`width`, of [`MIN_WIDTH`]..=[`MAX_WIDTH`] bits.
#[derive(Clone, Copy, Debug)]
pub struct NonZero {
    /// Bits of the ring.
    pub width: u32,
}

impl Operation for NonZero {
    entrywise!(Words -> Bits);

    fn correlations(&self, shape: &Vec<usize>, _: &Options) -> Option<Need> {
        Some(Need::new(Comparison { width: self.width }, shape.iter().product()))
    }

    fn cost(&self, shape: &Vec<usize>, _: bool, _: &mut Plans) -> Result<Cost, Error> {
        Ok(run_cost(self.width, shape.iter().product()))
    }

    fn run(&self, s: &mut Session, x: &ArrayD<u64>, correlations: Option<&[u64]>) -> Result<ArrayD<u8>, Error> {
        // The least signed word is 0, and all others are above it.
        let least = -(1i64 << (self.width - 1));
        let lowered: Vec<u64> = match s.is_server() {
            true => x.iter().map(|x| x.wrapping_add(least as u64)).collect(),
            false => flat(x),
        };
        Ok(shaped(x.shape(), run(s, correlations.unwrap_or_default(), &lowered, &[least + 1], self.width)?))
    }

    fn reference(&self, _: &mut Reference, x: &ArrayD<u64>) -> Result<ArrayD<u8>, Error> {
        Ok(x.mapv(|x| u8::from(x & mask(self.width) != 0)))
    }
}
