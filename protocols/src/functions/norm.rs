//! Root-mean-square norm over the last axis: x sqrt(n) / sqrt(sum x^2 + n eps). Here n is the length of the axis. The
//! gain belongs to the next weight. A layer norm is this norm after the mean is folded into the matrix before it.
//!
//! **Range.** |x| < 2^11 and sum x^2 + n eps < 2^26 over each row -> |y| <= sqrt(n). n eps is 2^-18 at least.
//!
//! **Error.** At most [`MAX_NORM_ERROR`] sqrt(n).
//!
//! **Revealed.** Nothing. *Cost.* One inverse root on one word per row, one sum of squares, one product of rows with
//! words, one truncation.
//!
//! **In two phases.** A row of 768 words takes five exchanges where the inverse root is a
//! [`ladder`](crate::ops::fss::ladder), and each party sends
//!
//! | exchange | opened | bytes |
//! |---|---|---|
//! | sum of squares | 768 words of 64 bits | 6144 |
//! | rungs of the inverse root | 6 words of 23 bits | 18 |
//! | choice of a rung | 6 words of 49 bits and 5 bits | 38 |
//! | product | 1 word of 49 bits | 7 |
//! | truncation | 768 bits | 96 |
//!
//! The product opens no row, because the mask of the squares serves it, too
//! ([`scaled_squares`](crate::ops::scaled_squares)). A mask of its own would take 4704 bytes more each way.
//!
//! *Why not three exchanges.* Three would remain if the last truncation were part of the opening that follows, and if
//! the inverse root were one exchange. Neither fits:
//! - What follows is a product with a private matrix in a ring of [`LINEAR_WIDTH`](crate::LINEAR_WIDTH) = 56 bits. An
//!   opening that drops 24 bits leaves so many only in a ring of 80 bits, and words have 64. The opened word cannot be
//!   extended instead: the correction, a public bit times a hidden one, would have to be prepared times each entry of
//!   the matrix apart.
//! - q has 33 octaves, and a rung of 2^13 windows serves 6 of them. One table for all would need 2^40 windows. If the
//!   choice among rungs became a part of the product, each entry of a row would need prepared products with all 224
//!   words that choose: 1.4 MB a row.

use crate::abb::Abb;
use crate::error::of_words;
use crate::functions::ring_for;
use crate::functions::rsqrt::{RSQRT_FRAC, rsqrt, smallest_square};
use crate::ops::{ScaleRows, SquareRows, Truncation};
use crate::{Error, FRAC, Tensor};

/// Largest error of an output relative to sqrt(n).
pub const MAX_NORM_ERROR: f64 = 5e-5;

/// x / sqrt(mean(x^2) + eps) over the last axis, modulo 2^64.
pub fn rms_norm<B: Abb>(b: &mut B, x: &B::Words, eps: f32) -> Result<B::Words, Error> {
    b.scope("rms norm", |b| {
        let (shape, n) = (x.shape(), *x.shape().last().expect("at least one axis"));
        let x = x.reshape(&[x.len() / n, n]);
        let smallest = smallest_square(n, eps);
        // |x| sqrt(n) / sqrt(sum x^2) <= sqrt(n).
        let width = ring_for((n as f64).sqrt(), FRAC + RSQRT_FRAC);
        let (q, x) = b.apply(SquareRows { width: 64, scaled: width }, &x).map_err(of_words(2 * FRAC))?;
        let q = b.add_public(&q, smallest);
        let scale = rsqrt(b, &q, n, smallest, width)?;
        let y = b.apply(ScaleRows, (x, &scale))?;
        let y = b.apply(Truncation { width, shift: RSQRT_FRAC, out: 64 }, &y)?;
        Ok(y.reshape(&shape))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::functions::testing::{real, shaped};
    use crate::{Clear, Evaluation};
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    const EPS: f32 = 1e-5;

    /// Largest error on the rows, divided by sqrt(n).
    fn worst(evaluation: Evaluation, rows: &[Vec<f64>]) -> f64 {
        let n = rows[0].len();
        let words = shaped(&rows.concat(), &[rows.len(), n]);
        let normed = rms_norm(&mut Clear::evaluating(evaluation), &words, EPS).unwrap();
        assert_eq!(normed.shape(), [rows.len(), n]);
        let mut error = 0f64;
        for (i, row) in words.outer_iter().enumerate() {
            let square = row.iter().map(|&v| real(v).powi(2)).sum::<f64>() / n as f64;
            for (j, &v) in row.iter().enumerate() {
                error = error.max((real(normed[[i, j]]) - real(v) / (square + f64::from(EPS)).sqrt()).abs());
            }
        }
        error / (n as f64).sqrt()
    }

    #[test]
    fn error_over_deviations_from_small_to_huge() {
        let mut rng = StdRng::seed_from_u64(5);
        let mut largest = 0f64;
        for n in [1usize, 2, 64, 768, 2048] {
            for exponent in -6..=11 {
                let scale = f64::from(exponent).exp2().min(0.9 * (26f64.exp2() / n as f64).sqrt()).min(2040.0);
                let flat = |rng: &mut StdRng| (0..n).map(|_| rng.random_range(-scale..scale)).collect::<Vec<_>>();
                let mut spike = vec![scale / 300.0; n];
                spike[n / 2] = scale;
                let rows = [flat(&mut rng), flat(&mut rng), spike];
                for evaluation in [Evaluation::Lookup, Evaluation::Masked] {
                    largest = largest.max(worst(evaluation, &rows));
                }
            }
        }
        println!("rms norm: {largest:.2e}");
        assert!(largest < MAX_NORM_ERROR, "{largest}");
    }
}
