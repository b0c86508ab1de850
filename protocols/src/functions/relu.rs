//! ReLU: an entry where it is positive, and 0 elsewhere.
//!
//! **Range.** |x| < 2^10. **Error.** At most [`MAX_RELU_ERROR`], and only near 0: the comparison drops the
//! [`DROPPED`] low bits of the shares, and so loses their carry. **Revealed.** Nothing. *Cost.* One comparison and
//! one multiplexer.

use crate::abb::Abb;
use crate::ops::{AtLeast, Mux};
use crate::words::Words;
use crate::{Error, FRAC, Tensor};

/// Largest error.
pub const MAX_RELU_ERROR: f64 = 1.3e-4;

/// |x| < 2^RANGE_BITS, so that comparisons with one bit to spare do not overflow.
const RANGE_BITS: u32 = 10;
const COMPARED_WIDTH: u32 = FRAC + RANGE_BITS + 2;

/// Low bits that the comparison ignores. They make up 2^-13, which is half the error that other activations have.
pub const DROPPED: u32 = 5;

const _: () = assert!(MAX_RELU_ERROR > 1.0 / (1u64 << (FRAC - DROPPED)) as f64, "a unit of the comparison");

/// max(x, 0) entrywise, modulo 2^64.
pub fn relu<B: Abb>(b: &mut B, x: &B::Words) -> Result<B::Words, Error> {
    b.scope("relu", |b| {
        let (shape, n) = (x.shape(), x.len());
        let x = x.reshape(&[n]);
        b.expect_below(&x, 1 << (COMPARED_WIDTH - 2), FRAC)?;
        let coarse = x.drop_low(DROPPED, COMPARED_WIDTH);
        let positive = b.apply(AtLeast { thresholds: &[0], width: COMPARED_WIDTH - DROPPED }, &coarse)?.reshape(&[n]);
        Ok(b.apply(Mux { width: 64 }, (&positive, &x))?.reshape(&shape))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Evaluation;
    use crate::functions::testing::within;

    #[test]
    fn error_over_the_whole_range() {
        let ranges = [(-1023.99, 1023.99, 100_001), (-0.01, 0.01, 100_001)];
        within(MAX_RELU_ERROR, &[Evaluation::Lookup, Evaluation::Masked], &ranges, relu, |x| x.max(0.0));
    }
}
