//! The mix of values by a softmax, with the division after the mix.
//!
//! **Functionality.** Shares of scores x_j and of values v_j -> shares of sum e^(x_j - m) v_j / sum e^(x_j - m).
//!
//! **Source.** FlashAttention (Dao et al., arXiv 2205.14135) defers the division in the same way:
//!
//! ```text
//! e_j = e^(x_j - m) and S = sum e_j             functions::softmax
//! M = sum e_j v_j                               a product with the cached values
//! M / S                                         a product of a row with a word
//! ```
//!
//! A row with n visible entries so takes `head_dim` products with 1 / S in place of n. Rows that are shorter on
//! average keep their probabilities, and so do those of short texts, because products in the wider ring take larger
//! ciphertexts (`MixSize::ring`).
//!
//! **Rings.** Terms have [`MIX_FRAC`] fractional bits and lie below e; values have [`FRAC`] and lie below
//! 2^[`MAGNITUDE`]. So M lies below e n 2^9 and takes 46 + log2 (e n) bits ([`width`]): 55 bits for 128 tokens, 58 for
//! 1024, 64 for 2^16. Masks of values are made in this ring for the number of tokens that the whole text may have.
//! Longer rows keep their probabilities.
//!
//! **Range.** Scores as in [`softmax_each`](super::softmax_each), |v| < 2^9, and up to 2^16 columns -> |mix| < 2^9.
//!
//! **Error.** S is the sum of the same rounded terms that mix the values, so only the weights of the mix are off. A
//! term is off by half a unit of 2^-17 from its last rounding, or a whole unit between two parties, and by
//! [`MAX_WHOLE_ERROR`](super::exp::MAX_WHOLE_ERROR) from its table. S is at least 1 / e. Let V bound |v_j - mix|, and
//! let n be the number of visible entries. The mix is off by at most ([`MAX_MIX_ERROR`] + n [`MAX_MIX_TERM_ERROR`]) V,
//! where two parties may add n [`MAX_MIX_TERM_ERROR`] V once more. The division adds at most (3e-5 + 1.5 n 2^-22) |mix|
//! and 1e-5. Probabilities have the same error of division. They lose 2^-16 |v_j| an entry when a product with values
//! takes them at 15 fractional bits, besides the rounding of their terms.
//!
//! **Revealed.** Nothing.
//!
//! *Cost.* The terms and reciprocals of a softmax; a product with the cached values; a truncation, a product and a
//! truncation for each number of the result.

use waggle_engine::{Axis, Visible};
use waggle_he::MatmulShape;
use waggle_net::Role;

use crate::abb::Abb;
use crate::cached::{self, CachedMatmul, CachedProduct, Event, Events, Operand, OperandForm};
use crate::cost::Cost;
use crate::error::of_words;
use crate::functions::ring_for;
use crate::functions::softmax::{self, Rows, TermForm, Terms, reciprocal_frac, terms};
use crate::operation::Operation;
use crate::ops::{Matmul, MulRows, Truncation};
use crate::plans::Plans;
use crate::wire::opening;
use crate::{Error, FRAC, Tensor};

/// Fractional bits of the terms that mix values.
pub const MIX_FRAC: u32 = 17;

/// log2 of the bound on values.
pub const MAGNITUDE: u32 = 9;

/// Largest error of a mix for values that are at most 1 away from it, not counting [`MAX_MIX_TERM_ERROR`].
pub const MAX_MIX_ERROR: f64 = 1e-4;

/// What each visible entry may add to [`MAX_MIX_ERROR`].
pub const MAX_MIX_TERM_ERROR: f64 = std::f64::consts::E * 0.5 / (1u64 << MIX_FRAC) as f64;

/// Bits of the ring in which up to `tokens` terms mix values. `None` if it would have more than 64.
pub fn width(tokens: usize) -> Option<u32> {
    // A sum of terms is below e n < 2.719 n, and a truncation takes words below a quarter of the ring.
    let sum = (tokens.max(1) as u128 * 2719).div_ceil(1000).next_power_of_two().trailing_zeros();
    let bits = MIX_FRAC + FRAC + MAGNITUDE + 2 + sum;
    (bits <= 64).then_some(bits)
}

/// The truncation that brings a quotient to [`FRAC`] fractional bits, for rows of up to `longest` entries.
fn rounding(longest: usize) -> Truncation {
    let shift = reciprocal_frac(longest);
    Truncation { width: ring_for(f64::from(1u32 << MAGNITUDE), FRAC + shift), shift, out: 64 }
}

/// The product of a mix with 1 / S before its `rounding`. Its error is at most a sixteenth of a unit of the result, so
/// that it takes smaller plaintexts.
fn division(rounding: Truncation) -> MulRows {
    MulRows { width: rounding.width, error_bits: rounding.shift - 4 }
}

/// Tokens whose masks are made together where a text goes on.
const FEW_TOKENS: usize = 64;

/// The sizes of a mix, all parts together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MixSize {
    /// Independent products.
    pub(crate) batch: usize,
    /// Rows of all products.
    pub(crate) rows: usize,
    /// Visible entries of all rows.
    pub(crate) entries: usize,
    /// Columns of the longest row.
    pub(crate) columns: usize,
    /// Numbers of a value.
    pub(crate) head_dim: usize,
}

impl MixSize {
    /// The rows of a text of `tokens` tokens, each of which attends to itself and to all before it; and the rows of a
    /// few tokens after it, whose masks are made alone. The number is rounded up to 5, 10, 20, .., so that a prompt of
    /// a common length takes one ring whatever comes after it.
    pub(crate) fn of_text(tokens: usize, batch: usize, head_dim: usize) -> [Self; 2] {
        let columns = 5 * tokens.div_ceil(5).next_power_of_two();
        let size = |tokens: usize, entries: usize| MixSize {
            batch,
            rows: batch * tokens,
            entries: batch * entries,
            columns,
            head_dim,
        };
        [size(columns, columns * (columns + 1) / 2), size(FEW_TOKENS, FEW_TOKENS * columns)]
    }

    /// Whether dividing every term takes more products than dividing the mixes.
    fn divides_fewer(self) -> bool {
        self.entries > self.rows * self.head_dim
    }

    /// The ring in which terms should mix values: [`width`], if the mix takes less time on the link than a product of
    /// probabilities modulo 2^`narrow`, preparation included. A box without plans counts products alone.
    pub(crate) fn ring<B: Abb>(self, b: &mut B, narrow: u32) -> Result<Option<u32>, Error> {
        let Some(ring) = width(self.columns).filter(|_| self.divides_fewer()) else { return Ok(None) };
        let Some(plans) = b.plans() else { return Ok(Some(ring)) };
        let of_terms = softmax::rounding(self.columns);
        let by = MulRows { width: of_terms.width, error_bits: 0 };
        let divided = self.product(plans, narrow)?.then(self.division(plans, self.entries, by, of_terms)?);
        let of_mixes = rounding(self.columns);
        let quotients = self.division(plans, self.rows * self.head_dim, division(of_mixes), of_mixes)?;
        let mixed = self.product(plans, ring)?.then(quotients);
        // Scores take the keys of the narrow products anyway. Whether a session has sent those of larger ciphertexts
        // before depends on its order, so they count.
        let keys = mixed.galois_bytes() as usize;
        let mixed = plans.options().wire_time(&mixed.message(Role::Client, keys));
        Ok((mixed < plans.options().wire_time(&divided)).then_some(ring))
    }

    /// Whether these rows should be mixed before they are divided, where masks for either are made already.
    pub(crate) fn pays(self, ring: u32) -> bool {
        self.divides_fewer() && width(self.columns).is_some_and(|needed| needed <= ring)
    }

    /// Cost of the products with the values modulo 2^`ring`, and of their preparation.
    fn product(self, plans: &mut Plans, ring: u32) -> Result<Cost, Error> {
        let MixSize { batch, rows, entries, columns, head_dim } = self;
        let m = rows / batch.max(1);
        if !plans.options().preprocess {
            let shape = MatmulShape { batch, m, k: columns, n: head_dim };
            return Matmul { width: ring }.cost(&shape, false, plans);
        }
        let form = OperandForm { batch, d: head_dim, axis: Axis::Rows, width: ring };
        let list = vec![Event { m: 1, tokens: columns }; m];
        Ok(cached::prepare_cost(plans, &Events { form, list })?.then(opening::open_cost(entries, &[ring])))
    }

    /// Cost of `words` products with the words of their rows and of their rounding, and of the preparation.
    fn division(self, plans: &mut Plans, words: usize, by: MulRows, how: Truncation) -> Result<Cost, Error> {
        let options = *plans.options();
        let sizes = [self.rows, words.div_ceil(self.rows.max(1))];
        let mut cost = by.cost(&sizes, options.preprocess, plans)?;
        cost = cost.then(how.cost(&vec![words], options.preprocess, plans)?);
        let needs = [by.correlations(&sizes, &options), how.correlations(&vec![words], &options)];
        for need in needs.into_iter().flatten() {
            cost = cost.then(need.kind.batched_cost(plans, need.units)?);
        }
        Ok(cost)
    }
}

/// The mixes of several parts, (batch, rows, columns) of scores and (batch, columns, n) of values each, in products
/// modulo 2^`ring`. All parts share messages.
///
/// # Panics
/// If the ring is too narrow for the longest row.
pub fn mix_each<B: Abb>(
    b: &mut B,
    parts: &[Visible<B::Words>],
    values: Vec<(&B::Words, &mut Operand)>,
    ring: u32,
) -> Result<Vec<B::Words>, Error> {
    let (rows, Terms { e, inverse }, rounding) = b.scope("softmax", |b| {
        let rows = Rows::of(parts)?;
        let longest = rows.lengths.counts().longest();
        assert!(width(longest).is_some_and(|needed| needed <= ring), "{longest} terms in a ring of {ring} bits");
        let rounding = rounding(longest);
        let (inverse_frac, inverse_width) = (rounding.shift, rounding.width);
        let terms = terms(b, &rows, TermForm { frac: MIX_FRAC, width: ring, inverse_frac, inverse_width })?;
        Ok((rows, terms, rounding))
    })?;
    let e: Vec<B::Words> = rows.back(&e).iter().zip(parts).map(|(e, part)| part.without_sink(e)).collect();
    let mixed = b.scope("values", |b| {
        let product = |(a, (tensor, operand))| CachedProduct { a, b: tensor, axis: Axis::Rows, operand };
        let products = e.iter().zip(values).map(product).collect();
        let products = b.apply(CachedMatmul { width: ring }, products).map_err(of_words(MIX_FRAC + FRAC))?;
        let shapes: Vec<Vec<usize>> = products.iter().map(Tensor::shape).collect();
        let flat: Vec<B::Words> =
            products.iter().zip(&shapes).map(|(x, shape)| x.reshape(&[shape[0] * shape[1], shape[2]])).collect();
        let all = B::Words::concat(0, &flat.iter().collect::<Vec<_>>());
        let how = Truncation { width: ring, shift: MIX_FRAC, out: rounding.width };
        Ok((b.apply(how, &all).map_err(of_words(MIX_FRAC + FRAC))?, shapes))
    });
    let (mixed, shapes) = mixed?;
    let quotients = b.scope("softmax", |b| {
        let quotients = b.apply(division(rounding), (&mixed, &inverse))?;
        b.apply(rounding, &quotients).map_err(of_words(FRAC + rounding.shift))
    })?;
    let mut start = 0;
    let parts = shapes.iter().map(|shape| {
        let end = start + shape[0] * shape[1];
        let part = quotients.slice(0, start..end).reshape(shape);
        start = end;
        part
    });
    Ok(parts.collect())
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};
    use waggle_engine::{OperandId, OperandKind};

    use super::*;
    use crate::functions::testing::{real, shaped};
    use crate::{Clear, Evaluation};

    const VALUES: OperandId = OperandId { layer: 0, kind: OperandKind::Values, generation: 0, part: 0 };

    /// Mixes the `values` (columns, n) by one row of `scores`.
    fn mixed(b: &mut Clear, scores: &[f64], values: &[f64], ring: u32) -> Vec<f64> {
        let (columns, n) = (scores.len(), values.len() / scores.len());
        let (scores, values) = (shaped(scores, &[1, 1, columns]), shaped(values, &[1, columns, n]));
        let part = Visible { scores: &scores, seen: &[0..columns], sink: false, hidden: false };
        let mixed = mix_each(b, &[part], vec![(&values, &mut Operand::new(VALUES))], ring).unwrap().remove(0);
        mixed.iter().map(|word| real(*word)).collect()
    }

    /// The bound of the file's head, from a naive mix.
    fn check(b: &mut Clear, scores: &[f64], values: &[f64]) {
        let (columns, n) = (scores.len(), values.len() / scores.len());
        let got = mixed(b, scores, values, width(columns).expect("a ring"));
        let max = scores.iter().copied().fold(f64::MIN, f64::max);
        let terms: Vec<f64> = scores.iter().map(|x| (x - max).exp()).collect();
        let sum: f64 = terms.iter().sum();
        for (i, got) in got.into_iter().enumerate() {
            let column = || values.iter().skip(i).step_by(n);
            let want = terms.iter().zip(column()).map(|(e, v)| e * v).sum::<f64>() / sum;
            let away = column().map(|v| (v - want).abs()).fold(0.0, f64::max);
            let bound = (MAX_MIX_ERROR + columns as f64 * MAX_MIX_TERM_ERROR) * away
                // The division: a relative error of 1 / S and its last place, and the last rounding.
                + (3e-5 + columns as f64 * 1.5 / f64::from(1u32 << 22)) * want.abs() + 1e-5;
            assert!((got - want).abs() < bound, "{columns} columns: {got}, {want} expected up to {bound}");
        }
    }

    #[test]
    fn error_over_lengths_and_spreads() {
        let mut rng = StdRng::seed_from_u64(3);
        for evaluation in [Evaluation::Lookup, Evaluation::Masked] {
            let b = &mut Clear::evaluating(evaluation);
            for columns in [2, 3, 129, 1000, 4097, 1 << 16] {
                for spread in [0.0, 1.0, 12.0, 200.0] {
                    let scores: Vec<f64> = (0..columns).map(|_| spread * rng.random_range(-1.0..1.0)).collect();
                    for largest in [1.0, 511.9] {
                        let values: Vec<f64> =
                            (0..2 * columns).map(|_| largest * rng.random_range(-1.0..1.0)).collect();
                        check(b, &scores, &values);
                        check(b, &scores, &vec![largest; columns]);
                    }
                }
            }
            // A single large score against many small ones, at every distance around the clip and the cut.
            for half in 0..70 {
                let scores: Vec<f64> = (0..300).map(|j| if j == 5 { f64::from(half) / 2.0 } else { 0.0 }).collect();
                let values: Vec<f64> = (0..300).map(|j| if j == 5 { -300.0 } else { 300.0 }).collect();
                check(b, &scores, &values);
            }
        }
    }

    /// Equal values stay what they are, whatever their weights were rounded to.
    #[test]
    fn a_mix_of_equal_values_is_this_value() {
        let mut rng = StdRng::seed_from_u64(4);
        let scores: Vec<f64> = (0..1000).map(|_| rng.random_range(-9.0..9.0)).collect();
        let got = mixed(&mut Clear::evaluating(Evaluation::Masked), &scores, &[3.25; 1000], 58);
        assert!((got[0] - 3.25).abs() < 1e-3, "{got:?}");
    }

    #[test]
    #[should_panic(expected = "terms in a ring of 55 bits")]
    fn a_ring_for_shorter_rows_is_refused() {
        mixed(&mut Clear::new(), &[0.0; 189], &[0.0; 189], 55);
    }

    #[test]
    fn rings_by_length() {
        assert_eq!([1, 2, 128, 188, 189, 1024, 1 << 16].map(width), [48, 49, 55, 55, 56, 58, 64].map(Some));
        assert_eq!(width(1 << 17), None);
    }

    /// Long rows divide a mix; short rows, and rows of long values, divide their terms.
    #[test]
    fn rows_that_are_short_on_average_keep_their_probabilities() {
        let [short, long] = [80, 81].map(|tokens| MixSize::of_text(tokens, 12, 64)[0]);
        assert!(!short.divides_fewer() && long.divides_fewer());
        let row = MixSize { batch: 12, rows: 12, entries: 12 * 128, columns: 128, head_dim: 64 };
        assert!(row.pays(55) && !row.pays(54) && !MixSize { head_dim: 128, ..row }.pays(64));
    }
}
