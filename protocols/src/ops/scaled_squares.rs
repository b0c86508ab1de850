//! Rows whose squares are summed up, and which are then scaled, under one mask.
//!
//! **Functionality.** Two steps. [`SquareRows`]: shares of rows of n words x modulo 2^w -> shares of the sums of
//! their squares modulo 2^w. [`ScaleRows`]: shares of the same rows, and of a word y for each -> shares of x y modulo
//! 2^v, with v <= w. Between the steps anything may happen; y usually follows from the sums.
//!
//! **Source.** *Direct.* [`SumSquares`], then [`MulRows`]. *Prepared.* Beaver, CRYPTO 1991. That one opened word
//! serves every use of a wire is from ABY2.0, eprint 2020/1225.
//!
//! ```text
//! offline:     share random a and the sum of a^2, a random b, and a b modulo 2^v
//! SquareRows:  open d = x - a, n words;  sum of x^2 = sum of d^2 + 2 d a + a^2
//! ScaleRows:   open e = y - b, one word;  x y = d y + e a + a b
//! ```
//!
//! The parties make a and the sum of a^2 as [`Squares`] does, and a b for this a as [`RowProduct`] does.
//!
//! **Range.** Any, modulo 2^w and 2^v. **Error.** That of the prepared sum and of the prepared product, as
//! [`sum_squares`] and [`mul`] state it.
//!
//! **Revealed.** Nothing. *Why d may serve twice.* All that a party sees of x is d. Both results are local functions
//! of d and of shares, so the second use sends nothing that depends on x. Given its own words of the correlation, the
//! other party's part of a is uniform, because the sum of a^2 and a b are shared afresh. Hence d is uniform whatever x
//! is. y may depend on d, as it does in a norm, but b is drawn apart from a and masks nothing else. Hence e is uniform
//! given d, a, x and y, and so is the pair (d, e). A second product of the same rows would need a b of its own:
//! [`SquaredRows`] is consumed by the first. By inner products and by OLE, shares are fresh up to the distances that
//! the files of those ways state.

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::deal::dealing::{Dealing, counted, in_range, woven};
use crate::operation::prelude::*;
use crate::ops::mul::{self, MulRows, RowProduct};
use crate::ops::sum_squares::{self, Squares, SumSquares};
use crate::wire::beaver::{minus, random};
use crate::wire::opening;

/// (rows, n) -> (rows): sums of squares modulo 2^`width`, and the rows to be scaled by a [`ScaleRows`]. Error: a few
/// units in the last place.
#[derive(Clone, Copy, Debug)]
pub struct SquareRows {
    /// Bits of the ring of the rows and of the sums, 1..=64.
    pub width: u32,
    /// Bits of the ring of the scaled rows, at most `width`.
    pub scaled: u32,
}

/// Hidden rows whose squares were summed up, to be scaled once.
pub struct SquaredRows<F: Form> {
    /// (rows, n).
    x: F::Words,
    /// Bits of the ring of the scaled rows.
    width: u32,
    /// Between two parties in two phases, what the product needs.
    masked: Option<Masked>,
}

/// Rows x as d = x - a, which is open, and the units of [`ScaledSquares`] with a.
struct Masked {
    d: Vec<u64>,
    units: Zeroizing<Vec<u64>>,
}

impl Operation for SquareRows {
    type Input<'a, F: Form> = &'a F::Words;
    type Output<F: Form> = (F::Words, SquaredRows<F>);
    /// Number of rows, and number of entries of each row.
    type Size = [usize; 2];

    fn size<F: Form>(&self, x: &&F::Words) -> [usize; 2] {
        assert!((1..=self.width).contains(&self.scaled), "{self:?}");
        rows_of(*x)
    }

    fn correlations(&self, &[rows, n]: &[usize; 2], options: &Options) -> Option<Need> {
        let SquareRows { width, scaled } = *self;
        is_prepared(n, options).then(|| Need::new(ScaledSquares { n, width, scaled }, rows))
    }

    fn cost(&self, &[rows, n]: &[usize; 2], prepared: bool, plans: &mut Plans) -> Result<Cost, Error> {
        SumSquares { width: self.width }.cost(&vec![rows, n], prepared, plans)
    }

    fn run(
        &self,
        s: &mut Session,
        x: &ArrayD<u64>,
        correlations: Option<&[u64]>,
    ) -> Result<(ArrayD<u64>, SquaredRows<Values>), Error> {
        let SquareRows { width, scaled } = *self;
        let kept = |masked| SquaredRows { x: x.clone(), width: scaled, masked };
        let Some(units) = correlations else {
            return Ok((SumSquares { width }.run(s, x, None)?, kept(None)));
        };
        let [rows, n] = rows_of(x);
        let each = units.chunks_exact(unit_words(n));
        let d = sum_squares::opened(s, &flat(x), each.clone().map(|unit| &unit[..n]), width)?;
        let server = s.is_server();
        let sums = d.chunks_exact(n).zip(each).map(|(d, unit)| sum_squares::of_opened(server, d, unit)).collect();
        Ok((shaped(&[rows], sums), kept(Some(Masked { d, units: Zeroizing::new(units.to_vec()) }))))
    }

    fn reference(
        &self,
        reference: &mut Reference,
        x: &ArrayD<u64>,
    ) -> Result<(ArrayD<u64>, SquaredRows<Values>), Error> {
        let sums = SumSquares { width: self.width }.reference(reference, x)?;
        Ok((sums, SquaredRows { x: x.clone(), width: self.scaled, masked: None }))
    }

    fn planned(&self, [rows, n]: [usize; 2]) -> (Shape, SquaredRows<Shapes>) {
        (Shape(vec![rows]), SquaredRows { x: Shape(vec![rows, n]), width: self.scaled, masked: None })
    }
}

/// (rows, n) times (rows): every row times one word of its own, in the ring that [`SquareRows`] was told. Error: a few
/// units in the last place.
#[derive(Clone, Copy, Debug)]
pub struct ScaleRows;

impl Operation for ScaleRows {
    type Input<'a, F: Form> = (SquaredRows<F>, &'a F::Words);
    type Output<F: Form> = F::Words;
    /// Number of rows, number of entries of each row, and the product that takes the direct form.
    type Size = ([usize; 2], MulRows);

    fn size<F: Form>(&self, (rows, y): &(SquaredRows<F>, &F::Words)) -> ([usize; 2], MulRows) {
        let direct = MulRows { width: rows.width, error_bits: 0 };
        (direct.size::<F>(&(&rows.x, *y)), direct)
    }

    fn cost(&self, (size, direct): &([usize; 2], MulRows), _: bool, plans: &mut Plans) -> Result<Cost, Error> {
        let [rows, n] = *size;
        // The words of the product came with those of the squares.
        if is_prepared(n, plans.options()) {
            return Ok(opening::open_cost(rows, &[direct.width]).work_at_both(Kernel::WordTerm, rows * n));
        }
        direct.cost(size, false, plans)
    }

    fn run(
        &self,
        s: &mut Session,
        (rows, y): (SquaredRows<Values>, &ArrayD<u64>),
        _: Option<&[u64]>,
    ) -> Result<ArrayD<u64>, Error> {
        let SquaredRows { x, width, masked } = rows;
        let Some(Masked { d, units }) = masked else {
            return MulRows { width, error_bits: 0 }.run(s, (&x, y), None);
        };
        let [_, n] = rows_of(&x);
        let (y, units) = (flat(y), units.chunks_exact(unit_words(n)));
        let e = open_factors(s, &y, units.clone().map(|unit| unit[n + 1]), width)?;
        let rows = d.chunks_exact(n).zip(units).zip(y.iter().zip(&e));
        let product = rows.flat_map(|((d, unit), (&y, &e))| {
            let terms = d.iter().zip(unit).zip(&unit[n + 2..]);
            terms.map(move |((d, a), ab)| d.wrapping_mul(y).wrapping_add(e.wrapping_mul(*a)).wrapping_add(*ab))
        });
        Ok(shaped(x.shape(), product.collect()))
    }

    fn reference(
        &self,
        reference: &mut Reference,
        (rows, y): (SquaredRows<Values>, &ArrayD<u64>),
    ) -> Result<ArrayD<u64>, Error> {
        MulRows { width: rows.width, error_bits: 0 }.reference(reference, (&rows.x, y))
    }

    fn planned(&self, (size, direct): ([usize; 2], MulRows)) -> Shape {
        direct.planned(size)
    }
}

/// Number of rows, and number of entries of each row.
fn rows_of(x: &impl Tensor) -> [usize; 2] {
    let shape = x.shape();
    <[usize; 2]>::try_from(&shape[..]).unwrap_or_else(|_| panic!("{shape:?} is not (rows, n)"))
}

/// Whether both steps on rows of `n` entries take their prepared forms.
fn is_prepared(n: usize, options: &Options) -> bool {
    options.preprocess && n > 0
}

/// Opens e = y - b for the masks `b`, which must mask nothing else.
pub(crate) fn open_factors(
    s: &mut Session,
    y: &[u64],
    b: impl Iterator<Item = u64> + Clone,
    width: u32,
) -> Result<Vec<u64>, Error> {
    let difference: Vec<u64> = minus(y, b.clone()).collect();
    opening::masked(s, &difference, b, &[width])
}

#[cfg(test)]
impl SquaredRows<Values> {
    /// The opened d of two parties, and this party's units.
    pub(crate) fn opened(&self) -> [&[u64]; 2] {
        self.masked.as_ref().map_or([&[], &[]], |masked| [&masked.d, &masked.units])
    }
}

/// Number of words of a unit: a, the sum of a^2, b, and a b.
fn unit_words(n: usize) -> usize {
    2 * n + 2
}

/// A random row a, the sum of its squares, a random word b, and a b. Unit: a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScaledSquares {
    /// Entries of the row, at least 1.
    pub n: usize,
    /// Bits of the ring of a and of the sum.
    pub width: u32,
    /// Bits of the ring of b and of a b, at most `width`.
    pub scaled: u32,
}

impl ScaledSquares {
    fn squares(&self) -> Squares {
        Squares { n: self.n, width: self.width }
    }

    fn products(&self) -> RowProduct {
        RowProduct { n: self.n, width: self.scaled, error_bits: 0 }
    }

    /// Units from their parts, of which a machine may lack some.
    fn units(&self, units: usize, [a, sums, b, ab]: [&[u64]; 4]) -> Vec<u64> {
        woven(units, &[(a, self.n), (sums, 1), (b, 1), (ab, self.n)])
    }
}

impl Correlation for ScaledSquares {
    fn dealt_words(&self) -> Option<u64> {
        let words = counted(&[self.n, 2])?.checked_add(2)?;
        in_range(self.scaled, in_range(self.width, words)?).filter(|_| self.scaled <= self.width)
    }

    fn deal(&self, d: &mut Dealing<'_>, units: usize) -> Result<[Vec<u64>; 2], Error> {
        let [a, sums] = self.squares().dealt(d, units)?;
        let [b, ab] = self.products().dealt(d, units, &a)?;
        Ok([0, 1].map(|role| self.units(units, [&a[role], &sums[role], &b[role], &ab[role]])))
    }

    fn scope(&self) -> &'static str {
        "scaled squares"
    }

    fn words(&self, _: Role) -> usize {
        unit_words(self.n)
    }

    /// Squares take few bytes in large batches. The products of such a batch are made in several smaller ones.
    fn batch(&self, options: &Options) -> usize {
        self.squares().batch(options)
    }

    fn cost(&self, plans: &mut Plans, units: usize) -> Result<Cost, Error> {
        let (squares, products) = (self.squares().cost(plans, units)?, self.products());
        let batch = products.batch(plans.options());
        Ok(squares.then(Cost::in_batches(units, batch, |size| products.cost(plans, size))?))
    }

    fn make(&self, s: &mut Session, units: usize, _: &mut Pipeline<'_>) -> Result<Vec<u64>, Error> {
        // The next batch does not begin under the squares, because messages of the products come before it.
        let [a, sums] = self.squares().made(s, units, &mut Pipeline::default())?;
        let b = random(s, units, self.scaled);
        let (batch, mut ab) = (self.products().batch(s.options()), Vec::with_capacity(a.len()));
        for (a, b) in a.chunks(batch * self.n).zip(b.chunks(batch)) {
            ab.extend(mul::rows(s, a, b, self.products())?);
        }
        Ok(self.units(units, [&a, &sums, &b, &ab]))
    }
}
