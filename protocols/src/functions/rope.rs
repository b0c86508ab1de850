//! Rotary position embedding: a rotation of pairs by public angles.
//!
//! Sines and cosines are public, so the products are local. One truncation takes both halves back to [`FRAC`] bits.
//!
//! **Range.** |x| < 2^12. **Error.** At most [`MAX_ROPE_ERROR`] for |x| <= 1, and in proportion above: the angles are
//! rounded to [`ANGLE_FRAC`] bits. **Revealed.** Nothing. *Cost.* One truncation.

use ndarray::Array2;

use crate::abb::Abb;
use crate::ops::Truncation;
use crate::words::Words;
use crate::{Error, FRAC, Tensor};

/// Fractional bits of the sines and cosines.
pub const ANGLE_FRAC: u32 = 16;

/// Largest error for inputs of magnitude up to 1.
pub const MAX_ROPE_ERROR: f64 = 2e-5;

/// Bits of the ring of the products: |x1 cos - x2 sin| < 2^13 at FRAC + ANGLE_FRAC fractional bits, and two bits for
/// the truncation.
const WIDTH: u32 = FRAC + ANGLE_FRAC + 13 + 2;

/// x of shape (count, heads, d) -> (x1 cos - x2 sin, x2 cos + x1 sin) for the halves x1, x2 of the last axis. `cos`
/// and `sin` have shape (count, d / 2). Modulo 2^64.
pub fn rope<B: Abb>(b: &mut B, x: &B::Words, cos: &Array2<f32>, sin: &Array2<f32>) -> Result<B::Words, Error> {
    let shape = x.shape();
    let (count, half) = (shape[0], shape[2] / 2);
    assert!(shape.len() == 3 && shape[2] == 2 * half, "rope of {shape:?}");
    assert_eq!((cos.dim(), sin.dim()), ((count, half), (count, half)), "shapes of the angles");
    b.scope("rope", |b| {
        let turn = |x: &B::Words, angles: &Array2<f32>| {
            x.times_each(|at| (f64::from(angles[[at[0], at[2]]]) * (1u64 << ANGLE_FRAC) as f64).round() as i64 as u64)
        };
        let (x1, x2) = (x.slice(2, 0..half), x.slice(2, half..2 * half));
        let first = turn(&x1, cos).minus(&turn(&x2, sin));
        let second = turn(&x2, cos).plus(&turn(&x1, sin));
        let turned = B::Words::concat(2, &[&first, &second]);
        b.expect_below(&turned, 1 << (WIDTH - 2), FRAC + ANGLE_FRAC)?;
        b.apply(Truncation { width: WIDTH, shift: ANGLE_FRAC, out: 64 }, &turned)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Clear;
    use crate::functions::testing::{real, shaped};
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    #[test]
    fn equals_the_truth() {
        let mut rng = StdRng::seed_from_u64(7);
        for magnitude in [1.0, 4095.0] {
            let (count, heads, d) = (5, 3, 8);
            let x: Vec<f64> = (0..count * heads * d).map(|_| rng.random_range(-magnitude..=magnitude)).collect();
            let angle = Array2::from_shape_simple_fn((count, d / 2), || rng.random_range(-4.0f32..4.0));
            let (cos, sin) = (angle.mapv(f32::cos), angle.mapv(f32::sin));
            let words = shaped(&x, &[count, heads, d]);
            let got = rope(&mut Clear::new(), &words, &cos, &sin).unwrap();
            for (at, &got) in got.indexed_iter() {
                let (pair, i) = ((at[0] * heads + at[1]) * d, at[2] % (d / 2));
                let (x1, x2) = (x[pair + i], x[pair + d / 2 + i]);
                let (sin, cos) = f64::from(angle[[at[0], i]]).sin_cos();
                let want = if at[2] < d / 2 { x1 * cos - x2 * sin } else { x2 * cos + x1 * sin };
                let error = (real(got) - want).abs();
                assert!(error < MAX_ROPE_ERROR * magnitude, "{error} at magnitude {magnitude}");
            }
        }
    }
}
