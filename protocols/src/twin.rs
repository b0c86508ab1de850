//! Common parts of the exact twins of operations: the path for error messages, and the checks of ranges.

use ndarray::{Array3, ArrayD, Axis};
use rayon::prelude::*;

use crate::Error;
use crate::words::signed;

/// State of a run in the clear.
///
/// A word is the value itself, sign-extended to 64 bits from the width of the operation that made it.
#[derive(Debug, Default)]
pub struct Twin {
    /// Scopes from the root to the operation at hand.
    pub(crate) path: Vec<String>,
    /// Permutations drawn so far. The number seeds the next one, so that runs are repeatable.
    pub(crate) drawn: u64,
}

impl Twin {
    /// The error for a value outside [`low`, `high`], found by the operation `step`.
    pub fn out_of_range(&self, step: &str, value: i128, low: i128, high: i128) -> Error {
        let path = self.path.iter().map(String::as_str).chain([step]).collect::<Vec<_>>().join("/");
        engine::Error::Range { path, value: value as f64, low: low as f64, high: high as f64 }.into()
    }

    /// x / 2^shift, rounded to nearest, of the signed `width`-bit values x.
    ///
    /// # Errors
    /// [`engine::Error::Range`] unless |x| < 2^(width - 2) for each.
    pub fn rounded(&self, step: &str, x: &ArrayD<u64>, width: u32, shift: u32) -> Result<ArrayD<i64>, Error> {
        let bound = 1i64 << (width - 2);
        if let Some(v) = x.iter().map(|&v| signed(v, width)).find(|&v| v >= bound || v <= -bound) {
            return Err(self.out_of_range(step, v.into(), (1 - bound).into(), (bound - 1).into()));
        }
        // |v| < 2^(width - 2) <= 2^62, so that adding half a unit does not overflow.
        let half = if shift == 0 { 0 } else { 1i64 << (shift - 1) };
        Ok(x.mapv(|v| (signed(v, width) + half) >> shift))
    }

    /// Exact values as words.
    ///
    /// # Errors
    /// [`engine::Error::Range`] unless each is a signed `width`-bit value.
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

/// The signed `width`-bit values of words.
pub(crate) fn integers(x: &ArrayD<u64>, width: u32) -> ArrayD<i64> {
    x.mapv(|v| signed(v, width))
}

/// A well mixed function of x and i. Shares of the same value differ from entry to entry, and runs are repeatable.
pub(crate) fn mixed(x: u64, i: usize) -> u64 {
    let z = (x ^ (i as u64).rotate_left(32)).wrapping_add(0x9E37_79B9_7F4A_7C15).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (z ^ (z >> 29)).wrapping_mul(0x94D0_49BB_1331_11EB) >> 20
}
