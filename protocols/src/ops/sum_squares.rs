//! Sums of squares of rows.
//!
//! **Functionality.** Shares of rows of n words x -> shares of the sums of their squares modulo 2^w.
//!
//! **Source.** For the server's share x_s and the client's share x_c of a row, the sum of x^2 is the sum of x_s^2
//! plus the sum of x_c^2, which are local, plus 2 <x_s, x_c>. Many rows take the inner product under RLWE
//! ([`super::private`]): a ciphertext of the request holds many entries, and a ciphertext of the response holds the
//! products of many rows. Few rows take OTs on the bits of one share (Gilboa, CRYPTO 1999) or OLE
//! ([`waggle_he::OlePlan`]), where these send fewer bytes than the product and its keys. Inner products are modulo
//! 2^(w-1), because <x_s, x_c> is doubled.
//!
//! *Prepared.* Offline, the parties share random rows a and the sums of their squares, in large batches. The client's
//! share of a follows from the seeds of a request ([`waggle_he::SeededPlan`]), and its top bit is a random bit.
//! Online, they open d = x - a (Beaver, CRYPTO 1991); the sum of x^2 is the sum of d^2 + 2 d a + a^2.
//!
//! **Range.** Any, modulo 2^w. **Error.** None by OT; by inner products twice [`waggle_he::ProductPlan::lsb_error`];
//! by OLE at most 2 in the last place for every square.
//!
//! **Revealed.** Nothing: d is uniform, because every a is used once. By OLE this holds up to the statistical
//! distance of [`waggle_he::OlePlan`]; for inner products see the module documentation of he's products.

use std::sync::Arc;

use ndarray::Axis;
use serde::{Deserialize, Serialize};
use waggle_he::{MatmulShape, MatmulSpec, OleKind, OlePlan};
use waggle_ot::Bits;

use crate::deal::dealing::{Dealing, counted, in_range, woven};
use crate::operation::prelude::*;
use crate::ops::mul::{add_places, ole, ole_cost, rows_shape, wire_bytes};
use crate::ops::private::{self, Factor, reduced};
use crate::wire::beaver::{minus, random};
use crate::wire::{cross, opening};
use crate::words::Words;

/// (..., n) -> (...): sums of squares over the last axis modulo 2^`width`. Error: a few units in the last place.
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
        let Some((&n, rows)) = shape.split_last() else { return Ok(Cost::free()) };
        let rows: usize = rows.iter().product();
        if prepared {
            return Ok(opening::open_cost(rows * n, &[self.width]));
        }
        Ok(Way::cheapest(plans, [rows, n], self.width, private::direct_cost)?.1)
    }

    fn run(&self, s: &mut Session, x: &ArrayD<u64>, correlations: Option<&[u64]>) -> Result<ArrayD<u64>, Error> {
        let (&n, rows) = x.shape().split_last().expect("at least one axis");
        match correlations {
            Some(correlations) => Ok(shaped(rows, prepared(s, &flat(x), n, self.width, correlations)?)),
            None => Ok(shaped(rows, direct(s, &flat(x), [rows.iter().product(), n], self.width)?)),
        }
    }

    fn reference(&self, reference: &mut Reference, x: &ArrayD<u64>) -> Result<ArrayD<u64>, Error> {
        let squares = x.mapv(|v| i128::from(signed(v, self.width)).pow(2));
        let exact = squares.fold_axis(Axis(x.ndim() - 1), 0i128, |sum, v| sum.saturating_add(*v));
        reference.fitted("sum_squares", exact, self.width)
    }

    fn planned(&self, shape: Vec<usize>) -> Shape {
        Shape(shape).sum_last()
    }
}

/// A random row a and the sum of its squares. Unit: a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Squares {
    /// Entries of the row, at least 1.
    pub n: usize,
    /// Bits of the ring.
    pub width: u32,
}

impl Correlation for Squares {
    fn dealt_words(&self) -> Option<u64> {
        in_range(self.width, counted(&[self.n])?.checked_add(1)?)
    }

    fn deal(&self, d: &mut Dealing<'_>, units: usize) -> Result<[Vec<u64>; 2], Error> {
        let n = self.n;
        let [a, sums] = self.dealt(d, units)?;
        Ok([0, 1].map(|role| woven(units, &[(&a[role], n), (&sums[role], 1)])))
    }

    fn scope(&self) -> &'static str {
        "squares"
    }

    fn words(&self, _: Role) -> usize {
        self.n + 1
    }

    fn batch(&self, _: &Options) -> usize {
        ((1 << 18) / self.n).max(1)
    }

    fn cost(&self, plans: &mut Plans, units: usize) -> Result<Cost, Error> {
        Ok(Way::cheapest(plans, [units, self.n], self.width, private::masks_cost)?.1.offline())
    }

    fn make(&self, s: &mut Session, units: usize, pipeline: &mut Pipeline<'_>) -> Result<Vec<u64>, Error> {
        let [a, sums] = self.made(s, units, pipeline)?;
        Ok(woven(units, &[(&a, self.n), (&sums, 1)]))
    }
}

impl Squares {
    /// The rows a of `units` units and the sums of their squares, each first at the client and then at the server.
    pub(super) fn dealt(&self, d: &mut Dealing<'_>, units: usize) -> Result<[[Vec<u64>; 2]; 2], Error> {
        let Squares { n, width } = *self;
        let a = d.draw_both(units * n, width);
        let client = d.draw(Role::Client, units, width);
        let server = d.give(Role::Server, units, &[width], || {
            let rows = a[0].chunks_exact(n).zip(a[1].chunks_exact(n)).zip(&client);
            let whole = |a: &[u64], b: &[u64]| {
                a.iter()
                    .zip(b)
                    .map(|(a, b)| a.wrapping_add(*b))
                    .fold(0u64, |sum, x| sum.wrapping_add(x.wrapping_mul(x)))
            };
            rows.map(|((a, b), client)| whole(a, b).wrapping_sub(*client)).collect()
        })?;
        Ok([a, [client, server]])
    }

    /// This party's shares of the rows a of `units` units, and of the sums of their squares.
    pub(super) fn made(
        &self,
        s: &mut Session,
        units: usize,
        pipeline: &mut Pipeline<'_>,
    ) -> Result<[Vec<u64>; 2], Error> {
        let Squares { n, width } = *self;
        let (way, _) = Way::cheapest(s.plans(), [units, n], width, private::masks_cost)?;
        let mut a = random(s, units * n, width);
        let half = match way {
            Way::Entries(entries) => entries.half(s, &a, n, width)?,
            Way::Inner(spec) if s.is_server() => {
                let a = reduced(&a, spec.width);
                private::share(s, spec, Factor::Words(&a), pipeline.next.is_some())?
            }
            Way::Inner(spec) => {
                let [r, shares] = private::masks(s, spec, pipeline)?;
                a.iter_mut().zip(r).for_each(|(a, r)| *a = *a & !mask(spec.width) | r);
                shares
            }
        };
        let sums = whole(&a, n, half).collect();
        Ok([a, sums])
    }
}

/// How the parties share the inner products of their own rows, modulo 2^(width - 1).
enum Way {
    /// Entry by entry.
    Entries(Entries),
    /// By products under encryption: each row of the client with one row of the server.
    Inner(MatmulSpec),
}

enum Entries {
    /// By OTs on the bits of the client's entries.
    Ots,
    Ole(Arc<OlePlan>),
}

impl Way {
    /// The way that sends the fewest bytes for `rows` rows of `n` entries, keys included, and its cost. `inner`
    /// returns the cost of the product of rows under encryption.
    fn cheapest(
        plans: &mut Plans,
        [rows, n]: [usize; 2],
        width: u32,
        inner: impl FnOnce(&mut Plans, MatmulSpec) -> Result<Cost, Error>,
    ) -> Result<(Self, Cost), Error> {
        if rows * n == 0 {
            return Ok((Way::Entries(Entries::Ots), Cost::free()));
        }
        let mut ways = vec![(Way::Entries(Entries::Ots), cross::one_way_cost(&rows_shape(rows * n, 1, width - 1)))];
        if width > 1 {
            let plan = plans.ole(rows * n, width - 1, 0, OleKind::Product)?;
            let cost = ole_cost(&plan);
            ways.push((Way::Entries(Entries::Ole(plan)), cost));
            let shape = MatmulShape { batch: rows, m: 1, k: n, n: 1 };
            let spec = MatmulSpec { shape, width: width - 1, weight_bits: width - 1 };
            ways.push((Way::Inner(spec), inner(plans, spec)?));
        }
        let bytes = |cost: &Cost| wire_bytes(plans, cost) as u64 + cost.galois_bytes();
        let least = ways.into_iter().min_by_key(|(_, cost)| bytes(cost));
        Ok(least.unwrap_or((Way::Entries(Entries::Ots), Cost::free())))
    }
}

impl Entries {
    /// Shares of the inner product of each of this party's rows of `n` entries with the peer's row, modulo 2^(width -
    /// 1).
    fn half(&self, s: &mut Session, x: &[u64], n: usize, width: u32) -> Result<Vec<u64>, Error> {
        let half = width - 1;
        let products = match self {
            Entries::Ole(plan) => ole(s, plan, &[x])?,
            Entries::Ots => {
                let shape = rows_shape(x.len(), 1, half);
                let words = || x.iter().flat_map(|&x| std::iter::repeat_n(x, half as usize)).collect();
                let shares = cross::one_way(s, &shape, || Bits::from_values(x, half), words)?;
                let mut out = vec![0; x.len()];
                add_places(&mut out, &shares, 1, half);
                out
            }
        };
        Ok(products.chunks_exact(n).map(|row| row.iter().fold(0u64, |sum, x| sum.wrapping_add(*x))).collect())
    }
}

/// Shares of the sums of squares of rows of `n` entries. `x` holds this party's shares of the rows, and `half` its
/// shares of the inner products of the parties' rows.
fn whole(x: &[u64], n: usize, half: Vec<u64>) -> impl Iterator<Item = u64> {
    let own = x.chunks_exact(n).map(|row| row.iter().fold(0u64, |sum, x| sum.wrapping_add(x.wrapping_mul(*x))));
    own.zip(half).map(|(own, half)| own.wrapping_add(half << 1))
}

/// Shares of the sums of squares of rows of `n` entries, without preparation.
fn direct(s: &mut Session, x: &[u64], [rows, n]: [usize; 2], width: u32) -> Result<Vec<u64>, Error> {
    if x.is_empty() {
        return Ok(vec![0; rows]);
    }
    let half = match Way::cheapest(s.plans(), [rows, n], width, private::direct_cost)?.0 {
        Way::Entries(entries) => entries.half(s, x, n, width)?,
        Way::Inner(spec) if s.is_server() => private::answer(s, spec, None, Factor::Words(&reduced(x, spec.width)))?,
        Way::Inner(spec) => private::ask(s, spec, x)?,
    };
    Ok(whole(x, n, half).collect())
}

/// Shares of the sums of squares of rows of `n` entries. Uses up one unit of `masks` for each row.
fn prepared(s: &mut Session, x: &[u64], n: usize, width: u32, masks: &[u64]) -> Result<Vec<u64>, Error> {
    let units = masks.chunks_exact(n + 1);
    let d = opened(s, x, units.clone().map(|unit| &unit[..n]), width)?;
    let rows = d.chunks_exact(n).zip(units);
    Ok(rows.map(|(d, unit)| of_opened(s.is_server(), d, unit)).collect())
}

/// Opens d = x - a for the rows `a` of masks, which must mask nothing else.
pub(super) fn opened<'a>(
    s: &mut Session,
    x: &[u64],
    a: impl Iterator<Item = &'a [u64]> + Clone,
    width: u32,
) -> Result<Vec<u64>, Error> {
    let a = a.flatten().copied();
    let difference: Vec<u64> = minus(x, a.clone()).collect();
    opening::masked(s, &difference, a, &[width])
}

/// This party's share of the sum of squares of a row, d^2 + 2 d a + a^2. `unit` begins with a and the sum of a^2.
pub(super) fn of_opened(server: bool, d: &[u64], unit: &[u64]) -> u64 {
    let terms = d.iter().zip(unit).map(|(d, a)| {
        let own = if server { *d } else { 0 };
        d.wrapping_mul(a.wrapping_mul(2).wrapping_add(own))
    });
    terms.fold(unit[d.len()], u64::wrapping_add)
}
