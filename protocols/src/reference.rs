//! Common parts of the exact references of operations: the path for error messages, and the checks of ranges.

use ndarray::{Array3, ArrayD, Axis};
use rayon::prelude::*;

use crate::Error;
use crate::matrix::{FixedMatrix, WEIGHT_BITS};
use crate::words::signed;

/// State of a run in the clear.
///
/// A word is the value itself, sign-extended to 64 bits from the width of the operation that made it.
#[derive(Debug, Default)]
pub struct Reference {
    /// The path of the current operation: its scopes, from the root on.
    pub(crate) path: Vec<String>,
    /// Number of permutations drawn so far. It seeds the next permutation, so that runs are repeatable.
    pub(crate) drawn: u64,
}

impl Reference {
    /// The error for `value`, which the operation `step` finds outside [`low`, `high`].
    pub fn out_of_range(&self, step: &str, value: i128, low: i128, high: i128) -> Error {
        let path = self.path.iter().map(String::as_str).chain([step]).collect::<Vec<_>>().join("/");
        waggle_engine::Error::Range { path, value: value as f64, low: low as f64, high: high as f64 }.into()
    }

    /// x / 2^shift, rounded to nearest, of the signed `width`-bit values x.
    ///
    /// # Errors
    /// [`waggle_engine::Error::Range`] unless |x| < 2^(width - 2) for each.
    pub fn rounded(&self, step: &str, x: &ArrayD<u64>, width: u32, shift: u32) -> Result<ArrayD<i64>, Error> {
        let bound = 1i64 << (width - 2);
        if let Some(v) = x.iter().map(|&v| signed(v, width)).find(|&v| v >= bound || v <= -bound) {
            return Err(self.out_of_range(step, v.into(), (1 - bound).into(), (bound - 1).into()));
        }
        // |v| < 2^(width - 2) <= 2^62, so that adding half a unit does not overflow.
        let half = if shift == 0 { 0 } else { 1i64 << (shift - 1) };
        Ok(x.mapv(|v| (signed(v, width) + half) >> shift))
    }

    /// The values `exact` as words.
    ///
    /// # Errors
    /// [`waggle_engine::Error::Range`] unless each value is a signed `width`-bit value.
    pub fn fitted(&self, step: &str, exact: ArrayD<i128>, width: u32) -> Result<ArrayD<u64>, Error> {
        let high = (1i128 << (width - 1)) - 1;
        match exact.iter().find(|&&v| v > high || v < -high - 1) {
            Some(&v) => Err(self.out_of_range(step, v, -high - 1, high)),
            None => Ok(exact.mapv(|v| v as u64)),
        }
    }

    /// Exact (m, k) x (k, n) products over a batch, fitted into `width` bits.
    pub(crate) fn products(
        &self,
        step: &str,
        a: &Array3<i64>,
        b: &Array3<i64>,
        width: u32,
    ) -> Result<ArrayD<u64>, Error> {
        let (batch, m, k) = a.dim();
        let n = b.dim().2;
        let largest = |x: &Array3<i64>| x.iter().fold(0, |l, v| l.max(v.unsigned_abs()));
        let bound = (u128::from(largest(a)) * u128::from(largest(b))).saturating_mul(k as u128);
        let mut out = Array3::<i128>::zeros((batch, m, n));
        for ((a, b), mut out) in a.outer_iter().zip(b.outer_iter()).zip(out.outer_iter_mut()) {
            let block = n.div_ceil(rayon::current_num_threads()).max(1);
            let blocks: Vec<_> = out.axis_chunks_iter_mut(Axis(1), block).collect();
            blocks.into_par_iter().enumerate().for_each(|(j, mut out)| {
                let b = b.slice(ndarray::s![.., j * block..(j * block + out.ncols())]);
                for (a, mut out) in a.rows().into_iter().zip(out.rows_mut()) {
                    if bound < 1 << 63 {
                        let mut sums = vec![0i64; out.len()];
                        for (&a, b) in a.iter().zip(b.rows()) {
                            sums.iter_mut().zip(b).for_each(|(s, &b)| *s += a * b);
                        }
                        out.iter_mut().zip(sums).for_each(|(o, s)| *o = i128::from(s));
                    } else {
                        for (&a, b) in a.iter().zip(b.rows()) {
                            out.iter_mut().zip(b).for_each(|(o, &b)| *o += i128::from(a) * i128::from(b));
                        }
                    }
                }
            });
        }
        self.fitted(step, out.into_dyn(), width)
    }
}

/// The exact products of the rows (..., inputs) of x with a matrix, row by row.
pub(crate) fn times_matrix(x: &ArrayD<i64>, matrix: &FixedMatrix) -> Result<Vec<i128>, Error> {
    // With x of up to `room` bits, a sum of products fits a word of the kernel.
    let terms = matrix.shape().0.next_power_of_two().trailing_zeros();
    let room = i64::BITS - 1 - WEIGHT_BITS - terms;
    let largest = x.iter().fold(0, |l, v| l.max(v.unsigned_abs()));
    let mut rest: Vec<i64> = x.iter().copied().collect();
    let mut sums = vec![0i128; rest.len() / matrix.shape().0.max(1) * matrix.shape().1];
    let mut done = 0;
    // Piece by piece from the lowest bits on; the last one keeps the sign.
    loop {
        let last = largest >> done >> (room - 1) == 0;
        let piece: Vec<u64> =
            rest.iter().map(|v| if last { *v } else { v & ((1 << (room - 1)) - 1) } as u64).collect();
        let products = matrix.times(&piece)?;
        sums.iter_mut().zip(products).for_each(|(sum, y)| *sum += i128::from(y as i64) << done);
        if last {
            return Ok(sums);
        }
        rest.iter_mut().for_each(|v| *v >>= room - 1);
        done += room - 1;
    }
}

/// The signed `width`-bit values of words.
pub(crate) fn integers(x: &ArrayD<u64>, width: u32) -> ArrayD<i64> {
    x.mapv(|v| signed(v, width))
}

/// A well mixed function of a value x and the number i of its entry. Equal values in different entries thus get
/// different shares, and runs are repeatable.
pub(crate) fn mixed(x: u64, i: usize) -> u64 {
    let z = (x ^ (i as u64).rotate_left(32)).wrapping_add(0x9E37_79B9_7F4A_7C15).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (z ^ (z >> 29)).wrapping_mul(0x94D0_49BB_1331_11EB) >> 20
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::IxDyn;

    #[test]
    fn products_with_a_matrix_are_exact_at_any_magnitude() {
        let most = (1 << WEIGHT_BITS) - 1;
        let entries: Vec<i32> = (0..300 * 2).map(|i| if i % 3 == 0 { most } else { -i * 1000 }).collect();
        let matrix = FixedMatrix::integers(300, 2, entries.clone());
        for x in [1i64, -1, (1 << 33) - 1, -(1 << 33), 1 << 34, i64::MAX, i64::MIN, i64::MIN + 1] {
            let x = ArrayD::from_shape_fn(IxDyn(&[2, 300]), |at| x ^ (at[1] as i64 & 3));
            let want: Vec<i128> = (0..4)
                .map(|i| (0..300).map(|j| i128::from(x[[i / 2, j]]) * i128::from(entries[2 * j + i % 2])).sum())
                .collect();
            assert_eq!(times_matrix(&x, &matrix).unwrap(), want);
        }
    }
}
