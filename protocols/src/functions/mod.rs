//! Composite functions, written once over [`Abb`](crate::Abb).
//!
//! Words have [`FRAC`](crate::FRAC) fractional bits and are taken and returned modulo 2^64 unless a function says
//! otherwise. Each module states functionality, source, range, the error over the whole range (a test fails above
//! it), what is revealed (nothing, throughout) and the operations spent.

pub mod activation;
pub mod argmax;
pub mod compact;
pub mod embed;
pub mod exp;
pub mod extrema;
pub mod fit;
pub mod grid;
pub mod hide;
pub mod max;
pub mod mix;
pub mod norm;
pub mod product;
pub mod reciprocal;
pub mod relu;
pub mod rope;
pub mod rsqrt;
pub mod selection;
pub mod soft_cap;
pub mod softmax;
pub mod spline;
pub mod top_k;
mod tournament;

pub use activation::{gelu, silu};
pub use argmax::argmax;
pub use embed::{embed, own_rows, rows};
pub use extrema::{abs, extrema};
pub use hide::hide;
pub use norm::rms_norm;
pub use product::{gated, mul};
pub use relu::relu;
pub use rope::rope;
pub use soft_cap::soft_cap;
pub use softmax::{softmax, softmax_each};

/// Bits of the narrowest ring in which a truncation takes magnitudes up to `bound`, and a few units of rounding
/// beyond it, at `frac` fractional bits.
pub(crate) fn ring_for(bound: f64, frac: u32) -> u32 {
    let width = (bound * 1.001).log2() + f64::from(frac) + 2.0;
    debug_assert!(width <= 64.0, "{bound} at {frac} fractional bits needs a ring of {width} bits");
    width.ceil() as u32
}

#[cfg(test)]
pub(crate) mod testing {
    use ndarray::{ArrayD, IxDyn};

    use crate::{Clear, Error, Evaluation, FRAC, Tensor};

    /// The numbers `x` as a vector of words at FRAC fractional bits.
    pub(crate) fn fixed(x: &[f64]) -> ArrayD<u64> {
        ArrayD::from_shape_fn(IxDyn(&[x.len()]), |i| (x[i[0]] * (1u64 << FRAC) as f64).round() as i64 as u64)
    }

    /// [`fixed`], as a tensor of `shape`.
    pub(crate) fn shaped(x: &[f64], shape: &[usize]) -> ArrayD<u64> {
        Tensor::reshape(&fixed(x), shape)
    }

    /// The number that a word at FRAC fractional bits stands for.
    pub(crate) fn real(word: u64) -> f64 {
        word as i64 as f64 / (1u64 << FRAC) as f64
    }

    /// Asserts that `f` in the clear, by each of `evaluations`, is off by less than `bound` from `truth`. Looks at
    /// equally spaced numbers of each of `ranges`, which states the first number, the last, and how many there are.
    pub(crate) fn within(
        bound: f64,
        evaluations: &[Evaluation],
        ranges: &[(f64, f64, usize)],
        f: impl Fn(&mut Clear, &ArrayD<u64>) -> Result<ArrayD<u64>, Error>,
        truth: impl Fn(f64) -> f64,
    ) {
        let unit = (1u64 << FRAC) as f64;
        let all = evaluations.iter().flat_map(|&evaluation| ranges.iter().map(move |range| (evaluation, *range)));
        for (evaluation, (low, high, count)) in all {
            let number = |i: usize| ((low + (high - low) * i as f64 / (count - 1) as f64) * unit).round() / unit;
            let x: Vec<f64> = (0..count).map(number).collect();
            let y = f(&mut Clear::evaluating(evaluation), &fixed(&x)).expect("inputs are in range");
            assert_eq!(y.shape(), [count]);
            let error = x.iter().zip(&y).map(|(&x, &y)| (real(y) - truth(x)).abs()).fold(0.0, f64::max);
            println!("{evaluation:?} on [{low}, {high}]: {error:.2e} of {bound:.2e}");
            assert!(error < bound, "{evaluation:?} on [{low}, {high}]: {error}");
        }
    }
}
