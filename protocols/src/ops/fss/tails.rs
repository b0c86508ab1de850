//! A tabulated function with two tails by FSS keys: after preparation one masked word is opened.
//!
//! **Functionality.** Shares of x modulo 2^(cell_bits + index_bits + low_bits) -> shares of f(x) modulo 2^width where
//! x is *near*, in the range of the table, and garbage elsewhere. Also XOR shares of two bits, which say whether x is
//! near and whether it is *beyond*, above the range.
//!
//! **Source.** As in the [parent module](super). All windows of the ring are numbered in order, and 2^index_bits of
//! them make a *cell*. The table has the windows of one cell, which are near; lower cells and higher ones are the
//! tails. A key hides the window of the mask in the words of its leaves, as in the parent module. In the bits of its
//! leaves, it hides the unit vector of the mask's cell ([`waggle_ot::dpf`]):
//!
//! ```text
//! prepare:  share a random mask r = R 2^low_bits + rho_0 + rho_1, and a key whose leaf i holds the payload and the
//!           unit vector of R / 2^index_bits if i = R modulo 2^index_bits, and zeros otherwise
//! run:      open y = x - r
//!           the window of x is n = high(y) + R. If leaf i is R's, the cell of x is that of high(y) + i, which is
//!           public, plus R's cell. So the cells that are near, and those beyond, are intervals of the unit vector
//! ```
//!
//! high(y) + i is in one cell for the first leaves and in the next one for the others, so each party adds up the bits
//! of both groups and looks at two intervals of each sum.
//!
//! **Range.** x from the first window of the table on to the last but two of 2^cell_bits cells; other inputs give
//! garbage. A window serves three times its width, as in [`FssTable`](super::table::FssTable): an x in the first two
//! windows of a cell may count as one of the cell before it. **Error.** The error of the table.
//!
//! **What each party sees.** While preparing: as in the parent module, and bits masked by further pads of leaves.
//! Online: y, which is used once and uniform. **Revealed.** Nothing.

use ndarray::{Array2, Axis};
use rayon::prelude::*;
use waggle_ot::dpf::{BLOCK_BITS, Expander};

use super::parabola::Parabolas;
use super::table::{CurveSpec, FssShape, Payload, fitted};
use super::threshold::parity_below;
use super::{TASK, open_inputs};
use crate::operation::prelude::*;
use crate::reference::mixed;
use crate::wire::opening;

/// A piecewise quadratic function of the words of one cell, which also tells on which side of this cell other words
/// lie.
#[derive(Clone, Debug)]
pub struct TailedTable {
    shape: FssShape,
    parabolas: Parabolas,
}

impl TailedTable {
    /// The piecewise quadratic interpolation of `f` on the middle one of 2^`cell_bits` cells, as
    /// [`FssTable::parabolas`](super::table::FssTable::parabolas) has it. Arguments count from word 0 of cell 0.
    ///
    /// # Panics
    /// As for parabolas, and unless there are 7 or 8 cell bits.
    pub fn fit(spec: CurveSpec, cell_bits: u32, f: impl Fn(f64) -> f64) -> Self {
        assert!((7..=8).contains(&cell_bits), "whole blocks of bits");
        let CurveSpec { index_bits, low_bits, out_width, .. } = spec;
        let shape = FssShape { index_bits, low_bits, width: out_width, payload: Payload::Parabola, cell_bits };
        let near = near(shape);
        TailedTable { shape, parabolas: fitted(spec, f, |n| (near << index_bits | n & mask(index_bits)) as i64) }
    }

    /// The shape, on which the preparation depends.
    pub fn shape(&self) -> FssShape {
        self.shape
    }

    /// Whether every party's split of the word `x` is in range.
    fn contains(&self, x: u64) -> bool {
        x >> self.shape.low_bits < mask(self.shape.hidden_bits()) - 1
    }

    /// For the word `x` and the server's and the client's rho: the value of the function if x is near, and the bits
    /// that say whether x is near and whether it is beyond.
    fn value(&self, x: u64, rho: [u64; 2]) -> (Option<u64>, [bool; 2]) {
        let FssShape { index_bits, low_bits, width, .. } = self.shape;
        let rest = x.wrapping_sub(rho[0]).wrapping_sub(rho[1]);
        let (n, low) = (rest >> low_bits & mask(self.shape.hidden_bits()), rest & mask(low_bits));
        let (cell, near) = (n >> index_bits, near(self.shape));
        let value = self.parabolas.value((n & mask(index_bits)) as usize, low, rho, low_bits);
        ((cell == near).then_some(value & mask(width)), [cell == near, cell > near])
    }
}

/// The cell whose windows a table of `shape` has: the middle one.
pub fn near(shape: FssShape) -> u64 {
    1 << (shape.cell_bits - 1)
}

/// For every word of `x`: shares of the table's value modulo 2^width, and XOR shares of two bits, which say whether
/// the word is near and whether it is beyond. Each word uses up one of `correlations`.
pub(crate) fn run(
    s: &mut Session,
    table: &TailedTable,
    correlations: &[u64],
    x: &[u64],
) -> Result<(Vec<u64>, Vec<u8>), Error> {
    let shape = table.shape;
    let size = shape.correlation_words();
    let opened = open_inputs(s, correlations, size, x, shape.input_bits())?;
    let (mut out, mut bits) = (vec![0; x.len()], vec![0; 2 * x.len()]);
    let role = s.role();
    let tasks = out.par_chunks_mut(TASK).zip(bits.par_chunks_mut(2 * TASK));
    let tasks = tasks.zip(opened.par_chunks(TASK)).zip(correlations.par_chunks(TASK * size));
    tasks.for_each(|(((out, bits), opened), entries)| {
        let mut expander = Expander::new(shape.tree(), role);
        let mut values = vec![0u32; shape.tree().values()];
        let items = out.iter_mut().zip(bits.as_chunks_mut::<2>().0).zip(opened).zip(entries.chunks_exact(size));
        for (((out, bits), y), entry) in items {
            let (high, low) = (y >> shape.low_bits, y & mask(shape.low_bits));
            let (cell, window) = (high >> shape.index_bits, high & mask(shape.index_bits));
            // Leaves from here on lie in the next cell.
            let split = (1u64 << shape.index_bits) - window;
            let sums = expander.expand_with_bits(&entry[1..], split as usize, &mut values);
            *out = table.parabolas.apply(window as usize, low, &values);
            *bits = [0; 2];
            let (near, cells) = (near(shape), 1 << shape.cell_bits);
            for (sum, cell) in sums.into_iter().zip([cell, cell + 1]) {
                // The cell of x is `cell` plus the cell of the bit.
                bits[0] ^= parity(&sum, near.wrapping_sub(cell), 1, cells);
                bits[1] ^= parity(&sum, (near + 1).wrapping_sub(cell), cells - near - 1, cells);
            }
        }
    });
    Ok((out, bits))
}

/// The sum modulo 2 of `count` bits from the bit `first` on, where positions are modulo `all`, a power of two.
fn parity(bits: &[u64], first: u64, count: u64, all: u64) -> u8 {
    let (first, count) = (first & (all - 1), count & (all - 1));
    let (end, before) = (first + count, |end| parity_below(bits, end));
    if end <= all { before(end) ^ before(first) } else { before(all) ^ before(first) ^ before(end - all) }
}

pub(crate) fn run_cost(shape: &FssShape, n: usize) -> Cost {
    // Leaves are hashed again for each block of bits.
    let (depth, hashed) = (shape.tree().depth(), (n << shape.cell_bits) / BLOCK_BITS);
    opening::open_cost(n, &[shape.input_bits()])
        .work_at_both(Kernel::TreeExpanded, (n << depth) + (hashed << (depth - 1)))
        .work_at_both(Kernel::WindowTerm, n * shape.tree().values())
}

/// For every entry x of a vector: f(x) where x is near, and two bits, as (entries, 2), which say whether x is near
/// and whether it is beyond.
#[derive(Clone, Copy)]
pub struct EvaluateNear<'t> {
    /// The table of f.
    pub table: &'t TailedTable,
}

impl Operation for EvaluateNear<'_> {
    type Input<'a, F: Form> = &'a F::Words;
    type Output<F: Form> = (F::Words, F::Bits);
    type Size = usize;

    fn size<F: Form>(&self, x: &&F::Words) -> usize {
        assert_eq!(x.shape().len(), 1, "a vector");
        x.len()
    }

    fn correlations(&self, n: &usize, _: &Options) -> Option<Need> {
        Some(Need::new(self.table.shape, *n))
    }

    fn cost(&self, n: &usize, _: bool, _: &mut Plans) -> Result<Cost, Error> {
        Ok(run_cost(&self.table.shape, *n))
    }

    fn run(
        &self,
        s: &mut Session,
        x: &ArrayD<u64>,
        correlations: Option<&[u64]>,
    ) -> Result<(ArrayD<u64>, ArrayD<u8>), Error> {
        let (words, bits) = run(s, self.table, correlations.unwrap_or_default(), &flat(x))?;
        Ok((shaped(&[words.len()], words), shaped(&[x.len(), 2], bits)))
    }

    /// Where x is not near, the reference returns the largest value that a truncation takes. It is noticed unless a
    /// multiplexer removes it.
    fn reference(&self, reference: &mut Reference, x: &ArrayD<u64>) -> Result<(ArrayD<u64>, ArrayD<u8>), Error> {
        let FssShape { low_bits, width, .. } = self.table.shape;
        let input = self.table.shape.input_bits();
        let (mut words, mut bits) = (Vec::with_capacity(x.len()), Array2::zeros((x.len(), 2)));
        for ((i, &v), mut bits) in x.iter().enumerate().zip(bits.axis_iter_mut(Axis(0))) {
            if !self.table.contains(v & mask(input)) {
                let end = i128::from((mask(input - low_bits) - 1) << low_bits);
                return Err(reference.out_of_range("evaluate", signed(v, input + 1).into(), 0, end - 1));
            }
            let rho = [mixed(v, i), mixed(!v, i)].map(|mixed| mixed & mask(low_bits));
            let (value, side) = self.table.value(v & mask(input), rho);
            words.push(value.map_or((1 << (width - 2)) - 1, |value| signed(value, width) as u64));
            bits.iter_mut().zip(side).for_each(|(bit, is)| *bit = u8::from(is));
        }
        Ok((shaped(&[words.len()], words), bits.into_dyn()))
    }

    fn planned(&self, n: usize) -> (Shape, Shape) {
        (Shape(vec![n]), Shape(vec![n, 2]))
    }
}
