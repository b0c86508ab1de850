//! Extension of words to the ring of 64 bits, for columns of different rings at once.
//!
//! **Functionality.** Rows of signed words, the word in column i modulo `2^widths[i]` -> the same words modulo 2^64.
//!
//! **Source.** A [truncation](super::truncate) that drops nothing, in its prepared form: each party sends one bit for
//! each word, in one exchange.
//!
//! **Range.** |x| < 2^(width - 2). **Error.** None. **Revealed.** Nothing.

use crate::operation::prelude::*;
use crate::ops::truncate::{Wrap, prepared, prepared_cost};

/// Extension of (rows, columns) to words modulo 2^64.
#[derive(Clone, Copy, Debug)]
pub struct ExtendColumns<'w> {
    /// Bits of the ring of every column, each 3..=63.
    pub widths: &'w [u32],
}

impl ExtendColumns<'_> {
    /// Bits of the ring in which wraps of shares are counted: enough for the narrowest column.
    fn wrap_bits(&self) -> u32 {
        assert!(self.widths.iter().all(|width| (3..64).contains(width)), "{self:?}");
        64 - self.widths.iter().min().expect("a column")
    }
}

impl Operation for ExtendColumns<'_> {
    type Input<'a, F: Form> = &'a F::Words;
    type Output<F: Form> = F::Words;
    type Size = usize;

    fn size<F: Form>(&self, x: &&F::Words) -> usize {
        let n = x.shape().first().copied().unwrap_or(0);
        assert_eq!(x.shape(), [n, self.widths.len()], "columns of words");
        n
    }

    fn correlations(&self, n: &usize, _: &Options) -> Option<Need> {
        Some(Need::new(Wrap { bits: self.wrap_bits() }, n * self.widths.len()))
    }

    fn cost(&self, n: &usize, _: bool, _: &mut Plans) -> Result<Cost, Error> {
        Ok(prepared_cost(n * self.widths.len()))
    }

    fn run(&self, s: &mut Session, x: &ArrayD<u64>, correlations: Option<&[u64]>) -> Result<ArrayD<u64>, Error> {
        let widths = || self.widths.iter().cycle();
        let server = s.is_server();
        let offset = |width: u32| if server { 1u64 << (width - 2) } else { 0 };
        let raised: Vec<u64> =
            flat(x).iter().zip(widths()).map(|(x, &width)| x.wrapping_add(offset(width)) & mask(width)).collect();
        let tops: Vec<u64> = raised.iter().zip(widths()).map(|(x, width)| x >> (width - 1)).collect();
        let both = prepared(s, &tops, correlations.unwrap_or_default(), self.wrap_bits())?;
        // The shares wrap if either top bit is set: a + b - a b. This party's top bit is its share of a + b.
        let words = raised.into_iter().zip(tops.iter().zip(both)).zip(widths());
        let extended = words.map(|((x, (top, both)), &width)| {
            x.wrapping_sub(top.wrapping_sub(both) << width).wrapping_sub(offset(width))
        });
        Ok(shaped(x.shape(), extended.collect()))
    }

    fn reference(&self, reference: &mut Reference, x: &ArrayD<u64>) -> Result<ArrayD<u64>, Error> {
        let mut out = x.clone();
        for (column, &width) in self.widths.iter().enumerate() {
            let mut column = out.index_axis_mut(ndarray::Axis(1), column);
            let extended = reference.rounded("extend", &column.to_owned(), width, 0)?;
            column.assign(&extended.mapv(|x| x as u64));
        }
        Ok(out)
    }

    fn planned(&self, n: usize) -> Shape {
        Shape(vec![n, self.widths.len()])
    }
}
