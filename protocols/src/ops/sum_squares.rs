//! Sums of squares of rows.
//!
//! **Functionality.** Shares of rows of n words x -> shares of the sums of their squares modulo 2^w.
//!
//! **Source.** x^2 = x_s^2 + x_c^2 + 2 x_s x_c. The squares are local. The cross terms come by OT or by OLE
//! ([`he::OlePlan`]), whichever sends fewer bytes. The OTs are on the bits of one share (Gilboa, CRYPTO 1999), modulo
//! 2^(w-1), because half of a cross term is enough.
//!
//! *Prepared.* Offline, the parties share random rows a and the sums of their squares, in large batches. Online, they
//! open d = x - a (Beaver, CRYPTO 1991); the sum of x^2 is the sum of d^2 + 2 d a + a^2.
//!
//! **Range.** Any, modulo 2^w. **Error.** None by OT; by OLE at most 1 in the last place for every square.
//!
//! **Revealed.** Nothing: d is uniform, because every a is used once. By OLE this holds up to the statistical
//! distance of [`he::OlePlan`].

use he::OleKind;
use ndarray::Axis;
use ot::Bits;

use crate::operation::prelude::*;
use crate::ops::mul::{add_places, ole, ole_cost, ole_if_cheaper, rows_shape};
use crate::wire::beaver::{minus, random};
use crate::wire::{cross, opening};
use crate::words::Words;

/// (..., n) -> (...): sums of squares over the last axis modulo 2^`width`. Error: at most n in the last place.
#[derive(Clone, Copy, Debug)]
pub struct SumSquares {
    /// Bits of the ring, 1..=64.
    pub width: u32,
}

impl Operation for SumSquares {
    type Input<'a, F: Form> = &'a F::Words;
    type Output<F: Form> = F::Words;
    /// The shape of x.
    type Size = Vec<usize>;

    fn size<F: Form>(&self, x: &&F::Words) -> Vec<usize> {
        assert!(!x.shape().is_empty(), "sums over the last of no axes");
        x.shape()
    }

    fn correlations(&self, shape: &Vec<usize>, options: &Options) -> Option<Need> {
        let (&n, rows) = shape.split_last()?;
        options.preprocess.then(|| Need::new(Squares { n, width: self.width }, rows.iter().product()))
    }

    fn cost(&self, shape: &Vec<usize>, prepared: bool, plans: &mut Plans) -> Result<Cost, Error> {
        let entries = shape.iter().product();
        if prepared {
            Ok(opening::open_cost(entries, &[self.width]))
        } else {
            square_cost(plans, entries, self.width)
        }
    }

    fn run(&self, s: &mut Session, x: &ArrayD<u64>, correlations: Option<&[u64]>) -> Result<ArrayD<u64>, Error> {
        let (&n, rows) = x.shape().split_last().expect("at least one axis");
        match correlations {
            Some(correlations) => Ok(shaped(rows, prepared(s, &flat(x), n, self.width, correlations)?)),
            None => Ok(shaped(x.shape(), square(s, &flat(x), self.width)?).sum_last()),
        }
    }

    fn twin(&self, twin: &mut Twin, x: &ArrayD<u64>) -> Result<ArrayD<u64>, Error> {
        let squares = x.mapv(|v| i128::from(signed(v, self.width)).pow(2));
        let exact = squares.fold_axis(Axis(x.ndim() - 1), 0i128, |sum, v| sum.saturating_add(*v));
        twin.fitted("sum_squares", exact, self.width)
    }

    fn planned(&self, shape: Vec<usize>) -> Shape {
        Shape(shape).sum_last()
    }
}

/// A random row a and the sum of its squares. Unit: a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Squares {
    /// Entries of the row, at least 1.
    pub n: usize,
    /// Bits of the ring.
    pub width: u32,
}

impl Correlation for Squares {
    fn scope(&self) -> &'static str {
        "squares"
    }

    fn words(&self, _: Role) -> usize {
        self.n + 1
    }

    fn batch(&self, _: &Options) -> usize {
        ((1 << 16) / self.n).max(1)
    }

    fn cost(&self, plans: &mut Plans, units: usize) -> Result<Cost, Error> {
        Ok(square_cost(plans, units * self.n, self.width)?.offline())
    }

    fn make(&self, s: &mut Session, units: usize, _: Option<&FixedMatrix>) -> Result<Vec<u64>, Error> {
        let Squares { n, width } = *self;
        let a = random(s, units * n, width);
        let squares = square(s, &a, width)?;
        let rows = a.chunks_exact(n).zip(squares.chunks_exact(n));
        let sum = |squares: &[u64]| squares.iter().fold(0u64, |sum, x| sum.wrapping_add(*x));
        Ok(rows.flat_map(|(a, squares)| a.iter().copied().chain([sum(squares)])).collect())
    }
}

fn square(s: &mut Session, x: &[u64], width: u32) -> Result<Vec<u64>, Error> {
    if x.is_empty() {
        return Ok(Vec::new());
    }
    let cross_terms = match ole_if_cheaper(s.plans(), x.len(), width, OleKind::Square)? {
        Some(plan) => ole(s, &plan, &[x])?,
        None => {
            // 2 x_s x_c is computed as half of it modulo 2^(width-1), then doubled.
            let half = width - 1;
            let shape = rows_shape(x.len(), 1, half);
            let words = || x.iter().flat_map(|&x| std::iter::repeat_n(x, half as usize)).collect();
            let shares = cross::one_way(s, &shape, || Bits::from_values(x, half), words)?;
            let mut out = vec![0; x.len()];
            add_places(&mut out, &shares, 1, half);
            out.iter_mut().for_each(|out| *out <<= 1);
            out
        }
    };
    Ok(cross_terms.iter().zip(x).map(|(cross, x)| cross.wrapping_add(x.wrapping_mul(*x))).collect())
}

fn square_cost(plans: &mut Plans, n: usize, width: u32) -> Result<Cost, Error> {
    if n == 0 {
        return Ok(Cost::free());
    }
    Ok(match ole_if_cheaper(plans, n, width, OleKind::Square)? {
        Some(plan) => ole_cost(&plan),
        None => cross::one_way_cost(&rows_shape(n, 1, width - 1)),
    })
}

/// Shares of the sums of squares of rows of `n`, with as many units of `masks`.
fn prepared(s: &mut Session, x: &[u64], n: usize, width: u32, masks: &[u64]) -> Result<Vec<u64>, Error> {
    let a = masks.chunks_exact(n + 1).flat_map(|unit| unit[..n].iter().copied());
    let difference: Vec<u64> = minus(x, a.clone()).collect();
    let d = opening::masked(s, &difference, a, &[width])?;
    let server = s.is_server();
    let rows = d.chunks_exact(n).zip(masks.chunks_exact(n + 1));
    // d^2 + 2 d a + a^2
    let sum = |(d, unit): (&[u64], &[u64])| {
        let terms = d.iter().zip(unit).map(|(d, a)| {
            let own = if server { *d } else { 0 };
            d.wrapping_mul(a.wrapping_mul(2).wrapping_add(own))
        });
        terms.fold(unit[n], u64::wrapping_add)
    };
    Ok(rows.map(sum).collect())
}
