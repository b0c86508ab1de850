//! For every value, the number of entries of a row that are at least this value, by FSS keys and one masked word for
//! each entry.
//!
//! **Functionality.** Shares of rows of words modulo 2^[`VALUE_BITS`], of different public lengths -> for every row
//! and every value v, shares modulo 2^width of the number of its entries that are at least v.
//!
//! **Source.** A histogram made of unit vectors. The key of each entry expands to shares of the unit vector that is 1
//! at the entry's mask and 0 elsewhere, as in the [parent module](super).
//!
//! ```text
//! prepare:  for every entry share a random mask R and a key that expands to shares of the unit vector of R
//! run:      open y = x - R; the unit vector, turned by y, is that of x
//!           add up the unit vectors of each row; then sum up the counters from the highest value down
//! ```
//!
//! **Range.** Any words; rows of less than 2^width entries. **Error.** None.
//!
//! **What each party sees.** While preparing: as in the parent module. Online: y, which is used once and uniform
//! modulo 2^[`VALUE_BITS`] since R is. **Revealed.** Nothing: the counts stay shared.

use rayon::prelude::*;
use waggle_ot::dpf::Expander;

use super::open_inputs;
use super::table::{FssShape, Payload};
use crate::Lengths;
use crate::operation::prelude::*;
use crate::wire::opening;

/// Bits of the ring of the entries.
pub const VALUE_BITS: u32 = 10;

/// Number of values.
pub const VALUES: usize = 1 << VALUE_BITS;

/// For rows of the `lengths` that lie one after another in a vector -> (rows, [`VALUES`]) modulo 2^`width`: for every
/// value, the number of the row's entries that are at least this value.
#[derive(Clone, Copy, Debug)]
pub struct CountAtLeast<'l> {
    /// Number of entries of every row, each below 2^width.
    pub lengths: &'l Lengths,
    /// Bits of the ring of a count, 2..=32.
    pub width: u32,
}

impl CountAtLeast<'_> {
    fn shape(&self) -> FssShape {
        FssShape { index_bits: VALUE_BITS, low_bits: 0, width: self.width, payload: Payload::One, cell_bits: 0 }
    }
}

/// Number of leaves of keys that each party expands for an entry.
pub const LEAVES: u64 = VALUES as u64 / 4;

impl Operation for CountAtLeast<'_> {
    type Input<'a, F: Form> = &'a F::Words;
    type Output<F: Form> = F::Words;
    type Size = ();

    fn size<F: Form>(&self, x: &&F::Words) {
        assert_eq!(x.shape(), [self.lengths.total()], "entries of the rows");
        assert!((self.lengths.counts().longest() as u64) < 1 << self.width, "a count fits {} bits", self.width);
    }

    fn correlations(&self, (): &(), _: &Options) -> Option<Need> {
        Some(Need::new(self.shape(), self.lengths.total()))
    }

    fn cost(&self, (): &(), _: bool, _: &mut Plans) -> Result<Cost, Error> {
        let (shape, n) = (self.shape(), self.lengths.total());
        Ok(opening::open_cost(n, &[shape.input_bits()])
            .work_at_both(Kernel::TreeExpanded, n << shape.tree().depth())
            .work_at_both(Kernel::WindowTerm, n * VALUES))
    }

    fn run(&self, s: &mut Session, x: &ArrayD<u64>, correlations: Option<&[u64]>) -> Result<ArrayD<u64>, Error> {
        let (shape, x, entries) = (self.shape(), flat(x), correlations.unwrap_or_default());
        let size = shape.correlation_words();
        let opened = open_inputs(s, entries, size, &x, shape.input_bits())?;
        let (role, spans): (_, Vec<_>) = (s.role(), self.lengths.spans().collect());
        let mut out = vec![0; spans.len() * VALUES];
        out.par_chunks_mut(VALUES).zip(spans).for_each(|(out, span)| {
            let mut expander = Expander::new(shape.tree(), role);
            let (mut unit, mut counts) = (vec![0u32; VALUES], vec![0u32; VALUES]);
            let keys = entries[span.start * size..span.end * size].chunks_exact(size);
            for (y, entry) in opened[span].iter().zip(keys) {
                expander.expand(&entry[1..], &mut unit);
                // Place R of the unit vector is place y + R of the sum.
                let (around, straight) = counts.split_at_mut(*y as usize);
                let (low, high) = unit.split_at(straight.len());
                for (counts, unit) in [(straight, low), (around, high)] {
                    counts.iter_mut().zip(unit).for_each(|(count, unit)| *count = count.wrapping_add(*unit));
                }
            }
            let mut sum = 0u32;
            for (out, count) in out.iter_mut().zip(counts).rev() {
                sum = sum.wrapping_add(count);
                *out = u64::from(sum) & mask(self.width);
            }
        });
        Ok(shaped(&[self.lengths.rows(), VALUES], out))
    }

    fn reference(&self, _: &mut Reference, x: &ArrayD<u64>) -> Result<ArrayD<u64>, Error> {
        let x = flat(x);
        let mut out = Vec::with_capacity(self.lengths.rows() * VALUES);
        for span in self.lengths.spans() {
            let row = x[span].iter().map(|x| x & mask(VALUE_BITS));
            let mut counts = [0u64; VALUES];
            row.for_each(|x| counts[x as usize] += 1);
            (0..VALUES - 1).rev().for_each(|v| counts[v] += counts[v + 1]);
            out.extend(counts);
        }
        Ok(shaped(&[self.lengths.rows(), VALUES], out))
    }

    fn planned(&self, (): ()) -> Shape {
        Shape(vec![self.lengths.rows(), VALUES])
    }
}
