//! Equality with public values.
//!
//! [x = c] = [x >= c] xor [x >= c + 1]. Both thresholds ride on the same OTs of one batched comparison, see
//! [`AtLeast`]. Equality of two hidden words is that of their difference with 0.
//!
//! **Range.** x, x - c and x - c - 1 are signed `width`-bit values for each of up to 16 values c. **Error.**
//! None. **Revealed.** Nothing.

use crate::abb::Abb;
use crate::ops::compare::AtLeast;
use crate::{Error, Tensor};

/// (...) -> (..., values): whether the signed `width`-bit value x equals each of the public `values`.
pub fn equal<B: Abb>(b: &mut B, x: &B::Words, values: &[i64], width: u32) -> Result<B::Bits, Error> {
    b.scope("equal", |b| {
        let thresholds: Vec<i64> = values.iter().copied().chain(values.iter().map(|c| c + 1)).collect();
        let reached = b.apply(AtLeast { thresholds: &thresholds, width }, x)?;
        let (last, n) = (x.shape().len(), values.len());
        let (from, beyond) = (reached.slice(last, 0..n), reached.slice(last, n..2 * n));
        Ok(b.xor(&from, &beyond))
    })
}
