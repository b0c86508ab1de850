//! Layer norm and root-mean-square norm over the last axis.
//!
//! A layer norm takes d = x - mean(x) and returns d sqrt(n) / sqrt(sum d^2 + n eps). An RMS norm is the same with d =
//! x. Gain and bias belong to the next weight.
//!
//! **Range.** |x| < 2^11 and sum d^2 + n eps < 2^26 over each row -> |y| <= sqrt(n). n eps below 2^-18 is raised to
//! it.
//!
//! **Error.** At most [`MAX_NORM_ERROR`] sqrt(n), plus the effect of the input's own resolution: the mean is rounded
//! to a unit in the last place, 2^-18 (to n 2^-33 of itself where that is more), and a tiny variance magnifies this
//! by up to eps^(-1/2).
//!
//! **Revealed.** Nothing. *Cost.* One inverse root on one word per row, one truncation per row for the mean (layer
//! norm only), one sum of squares, one product of rows with words, one truncation.

use crate::abb::Abb;
use crate::functions::ring_for;
use crate::functions::rsqrt::{RSQRT_FRAC, rsqrt, smallest_square};
use crate::ops::mul::MulRows;
use crate::ops::sum_squares::SumSquares;
use crate::ops::truncate::Truncation;
use crate::words::Words;
use crate::{Error, FRAC, Tensor};

/// Largest error of an output relative to sqrt(n), besides that of the mean's resolution.
pub const MAX_NORM_ERROR: f64 = 5e-5;

/// log2 of the bound on |x|.
pub const NORM_RANGE_BITS: u32 = 11;

/// (x - mean) / sqrt(var + eps) over the last axis, modulo 2^64.
pub fn layer_norm<B: Abb>(b: &mut B, x: &B::Words, eps: f32) -> Result<B::Words, Error> {
    b.scope("layer norm", |b| {
        let n = last(x);
        // |sum| < n 2^(11 + FRAC) and factor <= 2^shift / n + 1/2, so the product is below 2^62.
        let shift = 61 - FRAC - NORM_RANGE_BITS;
        let factor = ((1u64 << shift) as f64 / n as f64).round() as u64;
        let mean = b.apply(Truncation { width: 64, shift, out: 64 }, &x.sum_last().times(factor))?;
        let d = x.minus(&mean.repeat_last(n));
        scale_to_unit(b, &d, eps)
    })
}

/// x / sqrt(mean(x^2) + eps) over the last axis, modulo 2^64.
pub fn rms_norm<B: Abb>(b: &mut B, x: &B::Words, eps: f32) -> Result<B::Words, Error> {
    b.scope("rms norm", |b| scale_to_unit(b, x, eps))
}

fn last<W: Tensor>(x: &W) -> usize {
    *x.shape().last().expect("at least one axis")
}

/// d sqrt(n) / sqrt(sum d^2 + n eps).
fn scale_to_unit<B: Abb>(b: &mut B, d: &B::Words, eps: f32) -> Result<B::Words, Error> {
    let (shape, n) = (d.shape(), last(d));
    let d = d.reshape(&[d.len() / n, n]);
    let smallest = smallest_square(n, eps);
    let q = b.apply(SumSquares { width: 64 }, &d)?;
    let q = b.add_public(&q, smallest);
    // |d| sqrt(n) / sqrt(sum d^2) <= sqrt(n).
    let width = ring_for((n as f64).sqrt(), FRAC + RSQRT_FRAC);
    let scale = rsqrt(b, &q, n, smallest, width)?;
    let y = b.apply(MulRows { width }, (&d, &scale))?;
    let y = b.apply(Truncation { width, shift: RSQRT_FRAC, out: 64 }, &y)?;
    Ok(y.reshape(&shape))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::functions::testing::{real, shaped};
    use crate::{Clear, Evaluation};
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    const EPS: f32 = 1e-5;

    /// Largest error of either norm over sqrt(n) on the rows, less what the mean's resolution explains.
    fn worst(evaluation: Evaluation, rows: &[Vec<f64>]) -> (f64, f64) {
        let n = rows[0].len();
        let words = shaped(&rows.concat(), &[rows.len(), n]);
        let layer = layer_norm(&mut Clear::evaluating(evaluation), &words, EPS).unwrap();
        let rms = rms_norm(&mut Clear::evaluating(evaluation), &words, EPS).unwrap();
        assert_eq!(layer.shape(), [rows.len(), n]);
        let (mut errors, eps) = ((0f64, 0f64), f64::from(EPS));
        for (i, row) in words.outer_iter().enumerate() {
            let x: Vec<f64> = row.iter().map(|&v| real(v)).collect();
            let mean = x.iter().sum::<f64>() / n as f64;
            let var = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n as f64;
            let square = x.iter().map(|v| v.powi(2)).sum::<f64>() / n as f64;
            for (j, v) in x.iter().enumerate() {
                let resolution =
                    (1.0 / (1u64 << FRAC) as f64 + mean.abs() * n as f64 / 33f64.exp2()) / (var + eps).sqrt();
                let error = (real(layer[[i, j]]) - (v - mean) / (var + eps).sqrt()).abs() - resolution;
                errors.0 = errors.0.max(error);
                errors.1 = errors.1.max((real(rms[[i, j]]) - v / (square + eps).sqrt()).abs());
            }
        }
        (errors.0 / (n as f64).sqrt(), errors.1 / (n as f64).sqrt())
    }

    #[test]
    fn error_over_deviations_from_small_to_huge() {
        let mut rng = StdRng::seed_from_u64(5);
        let mut largest = (0f64, 0f64);
        for n in [1usize, 2, 64, 768, 2048] {
            for exponent in -6..=11 {
                let scale = f64::from(exponent).exp2().min(0.9 * (26f64.exp2() / n as f64).sqrt()).min(2040.0);
                let flat = |rng: &mut StdRng| (0..n).map(|_| rng.random_range(-scale..scale)).collect::<Vec<_>>();
                let mut spike = vec![scale / 300.0; n];
                spike[n / 2] = scale;
                let rows = [flat(&mut rng), flat(&mut rng), spike];
                for evaluation in [Evaluation::Lookup, Evaluation::Masked] {
                    let (layer, rms) = worst(evaluation, &rows);
                    largest = (largest.0.max(layer), largest.1.max(rms));
                }
            }
        }
        println!("layer norm: {:.2e}, rms norm: {:.2e}", largest.0, largest.1);
        assert!(largest.0 < MAX_NORM_ERROR && largest.1 < MAX_NORM_ERROR, "{largest:?}");
    }

    #[test]
    fn rows_without_variance_are_zero_up_to_resolution() {
        let unit = 1.0 / (1u64 << FRAC) as f64;
        for value in [0.0f64, 1.0, -10.0, 2047.0] {
            let words = shaped(&vec![value; 768], &[1, 768]);
            let y = layer_norm(&mut Clear::new(), &words, EPS).unwrap();
            let resolution = (unit + value.abs() * 768.0 / 33f64.exp2()) / f64::from(EPS).sqrt();
            assert!(y.iter().all(|&y| real(y).abs() <= resolution + unit), "{value}: {}", real(y[[0, 0]]));
        }
    }
}
