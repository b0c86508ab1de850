//! Products of activations, entry by entry.
//!
//! A *gated* product a u, of an activation's result a with u, goes into a product with a matrix. Where its
//! correlations are prepared, both factors are rounded to [`GATED_FRAC`] fractional bits, which sends nothing, and
//! their product may be off by one unit of the result. So plaintexts have 88 bits in place of 112, and two primes in
//! place of three.
//!
//! **Range.** |a u| < 2^18. **Error.** [`mul`]: less than 2^-17. [`gated`] where correlations are prepared: less than
//! 2^-15 (|a| + |u|) + 2^-17, so that rounding a adds a sixth to the effect of
//! [`MAX_SILU_ERROR`](super::activation::MAX_SILU_ERROR). **Revealed.** Nothing. *Cost.* One product and one
//! truncation.
//!
//! # Other forms
//! Bytes a gate of LLaMA-2 7B beyond the activation's 391, both parties together, and exchanges with the activation's:
//!
//! | form | prepared | online | exchanges |
//! |---|---|---|---|
//! | [`mul`] | 169 | 28 | 5 |
//! | [`gated`] | 118 | 25 | 5 |
//! | a extended within the product, where t0 t1 u is t0 (t1 u) for the top bits t0, t1 of its shares | 121 | 38 | 4 |
//! | the same with prepared products of t0, t1 and the mask of u | 141 | 25 | 4 |
//! | y and x selected and multiplied by u in one exchange | 290 | 38 | 3 |
//!
//! The form of four exchanges takes longer than [`gated`] over a link of 3 Gbit/s and 0.3 ms, and for prompts over
//! slower links, too. A payload (1, rho, rho^2) (1, s) of the activation's key, for a mask s of u, spares no product:
//! s rho and s rho^2 are products of shared words, and so is x u beyond the table. A mask r modulo 2^30 of the
//! activation's result needs the carry of the shares of r, which is a comparison. The truncation cannot be the one in
//! which a matrix takes its input: that needs products modulo 2^68 at 30 fractional bits.

use crate::abb::Abb;
use crate::error::of_words;
use crate::ops::{Mul, Truncation};
use crate::{Error, Evaluation, FRAC};

/// The product: |x y| < 2^(MUL.width - 2 - 2 FRAC) = 2^18.
const MUL: Mul = Mul { width: 56, error_bits: 0 };

/// Fractional bits of the factors of a gated product where correlations are prepared.
pub const GATED_FRAC: u32 = 15;

/// The gated product: |a u| < 2^(GATED.width - 2 - 2 GATED_FRAC) = 2^18. Its error is a unit of an activation.
const GATED: Mul = Mul { width: 50, error_bits: 2 * GATED_FRAC - FRAC };

/// x y entrywise, modulo 2^64.
pub fn mul<B: Abb>(b: &mut B, x: &B::Words, y: &B::Words) -> Result<B::Words, Error> {
    rounded(b, MUL, FRAC, x, y)
}

/// `gate` times `up` entrywise, modulo 2^64, for a product with a matrix.
pub fn gated<B: Abb>(b: &mut B, gate: &B::Words, up: &B::Words) -> Result<B::Words, Error> {
    if b.evaluation() != Evaluation::Masked {
        return mul(b, gate, up);
    }
    let narrow = Truncation { width: 64, shift: FRAC - GATED_FRAC, out: GATED.width };
    let [gate, up] = [gate, up].map(|x| b.apply(narrow, x).map_err(of_words(FRAC)));
    rounded(b, GATED, GATED_FRAC, &gate?, &up?)
}

/// The product of words with `frac` fractional bits, as an activation.
fn rounded<B: Abb>(b: &mut B, how: Mul, frac: u32, x: &B::Words, y: &B::Words) -> Result<B::Words, Error> {
    let product = b.apply(how, (x, y)).map_err(of_words(2 * frac))?;
    let how = Truncation { width: how.width, shift: 2 * frac - FRAC, out: 64 };
    b.apply(how, &product).map_err(of_words(2 * frac))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Clear;
    use crate::functions::testing::{fixed, real};

    /// Factors of every size, up to the ends of the range.
    #[test]
    fn errors_over_the_whole_range() {
        let sizes = (-15..=18).flat_map(|log| (0..40).map(move |i| (f64::from(log) + f64::from(i) / 40.0).exp2()));
        for size in sizes {
            let unit = (1u64 << FRAC) as f64;
            let other = ((1u32 << 18) as f64 / size * 0.999).min(262_000.0);
            let u: Vec<f64> = (-50..=50).map(|i| (other * f64::from(i) / 50.0 * unit).round() / unit).collect();
            let a = vec![(size * unit).round() / unit; u.len()];
            for evaluation in [Evaluation::Lookup, Evaluation::Masked] {
                let h = gated(&mut Clear::evaluating(evaluation), &fixed(&a), &fixed(&u)).expect("in range");
                for ((a, u), h) in a.iter().zip(&u).zip(&h) {
                    let rounding = if evaluation == Evaluation::Masked { (a.abs() + u.abs()) / 32768.0 } else { 0.0 };
                    let error = (real(*h) - a * u).abs();
                    assert!(error < rounding + 1.0 / 131_072.0, "{a} {u}: {error}");
                }
            }
        }
    }

    #[test]
    fn larger_products_are_refused() {
        for evaluation in [Evaluation::Lookup, Evaluation::Masked] {
            let x = fixed(&[512.1]);
            gated(&mut Clear::evaluating(evaluation), &x, &x).expect_err("above 2^18");
        }
    }
}
