//! A tabulated function of one variable, on every entry.
//!
//! **Functionality.** Shares of x -> shares of f(x) modulo the ring of the result.
//!
//! **Source.** A [`Function`] holds its table for one of three protocols: [`lookup`], which is direct, and [`fss`]
//! and [`fss::ladder`], which are prepared. The options of a session decide which one it uses
//! ([`Options::evaluation`]); the choice is made when the table is fitted.
//!
//! **Range.** The range of the table; other inputs give garbage, which the caller muxes away. **Error.** The error of
//! the table. **Revealed.** Nothing.

use crate::operation::prelude::*;
use crate::ops::fss::ladder::{self, Ladder};
use crate::ops::fss::table::{FssShape, FssTable};
use crate::ops::lookup::{Table, TableShape};
use crate::ops::{fss, lookup};
use crate::reference::mixed;

/// A function of one variable with the table by which it is evaluated.
pub struct Function {
    method: Method,
    /// Fractional bits of the result.
    out_frac: u32,
}

/// A method to evaluate a function.
enum Method {
    /// By transfers of table rows.
    Lookup(Box<dyn Table + Send>),
    /// By FSS keys, on masked inputs.
    Masked(FssTable),
    /// By FSS keys for several tables, on masked inputs.
    Ladder(Ladder),
}

impl Function {
    /// A function evaluated by look-up. The result has `out_frac` fractional bits.
    pub fn lookup(table: impl Table + Send + 'static, out_frac: u32) -> Self {
        Function { method: Method::Lookup(Box::new(table)), out_frac }
    }

    /// A function evaluated by FSS keys on masked inputs. The result has `out_frac` fractional bits.
    pub fn masked(table: FssTable, out_frac: u32) -> Self {
        Function { method: Method::Masked(table), out_frac }
    }

    /// A function evaluated by the tables of a ladder. The result has `out_frac` fractional bits.
    pub fn ladder(ladder: Ladder, out_frac: u32) -> Self {
        Function { method: Method::Ladder(ladder), out_frac }
    }

    /// Fractional bits of the result.
    pub fn out_frac(&self) -> u32 {
        self.out_frac
    }

    /// Bits of the ring of the result.
    pub fn out_width(&self) -> u32 {
        match &self.method {
            Method::Lookup(table) => table.shape().out_width,
            Method::Masked(table) => table.shape().width,
            Method::Ladder(ladder) => ladder.shape().width,
        }
    }

    /// Number of leaves of keys that each party expands for an entry.
    pub fn leaves(&self) -> u64 {
        match &self.method {
            Method::Lookup(_) => 0,
            Method::Masked(table) => 1 << table.shape().index_bits,
            Method::Ladder(ladder) => ladder.shape().leaves(),
        }
    }

    /// The cost of `n` entries under `options`, their correlations included.
    pub fn cost(&self, options: &Options, n: usize) -> Cost {
        self.prepared_cost(options, n).then(self.online_cost(n))
    }

    /// The cost of the correlations of `n` entries.
    pub(crate) fn prepared_cost(&self, options: &Options, n: usize) -> Cost {
        match &self.method {
            Method::Lookup(_) => Cost::free(),
            Method::Masked(table) => fss::prepare_cost(&table.shape(), options, n),
            Method::Ladder(ladder) => ladder::prepare_cost(&ladder.shape(), options, n),
        }
    }

    pub(crate) fn online_cost(&self, n: usize) -> Cost {
        match &self.method {
            Method::Lookup(table) => lookup::cost(&**table, n),
            Method::Masked(table) => fss::run_cost(table, n),
            Method::Ladder(ladder) => ladder::run_cost(&ladder.shape(), n),
        }
    }

    /// Number of bits that both parties together send online for one entry.
    pub fn online_bits(&self) -> u64 {
        (8 * self.online_cost(1 << 10).total_bytes()) >> 10
    }

    /// The value of the function at the word `v`, which is entry number `i`, or `None` outside the range.
    fn value(&self, v: u64, i: usize) -> Option<u64> {
        match &self.method {
            Method::Lookup(table) => looked_up(&**table, v, i),
            Method::Masked(table) => masked(table, v, i),
            Method::Ladder(ladder) => climbed(ladder, v, i),
        }
    }
}

/// The value of `table` at the word `v`, or `None` outside its range. `v` is split into the parties' parts at random,
/// by a hash of `v` and `i`, so that tests meet all splits.
fn looked_up(table: &dyn Table, v: u64, i: usize) -> Option<u64> {
    let TableShape { index_bits, low_bits, constant, factor_bits, .. } = table.shape();
    let constant = usize::from(constant);
    let mut factors = vec![0; factor_bits.len()];
    let mut coefficients = vec![0; factor_bits.len() + constant];
    let v = v & mask(index_bits + low_bits);
    let (high, low) = (v >> low_bits, v & mask(low_bits));
    if high == mask(index_bits) {
        return None;
    }
    let receiver = mixed(v, i) & mask(low_bits);
    let sender = low.wrapping_sub(receiver) & mask(low_bits);
    let carry = (sender + receiver) >> low_bits;
    table.factors(receiver, &mut factors);
    table.coefficients(high as i64 - carry as i64, sender, &mut coefficients);
    debug_assert!(factors.iter().zip(&factor_bits).all(|(f, &b)| *f <= mask(b)), "factors exceed their size");
    let sum = if constant == 1 { coefficients[0] } else { 0 };
    let terms = coefficients[constant..].iter().zip(&factors);
    Some(terms.fold(sum, |sum, (c, p)| sum.wrapping_add(c.wrapping_mul(*p))))
}

/// Like [`looked_up`], for a table of FSS keys.
fn masked(table: &FssTable, v: u64, i: usize) -> Option<u64> {
    let FssShape { index_bits, low_bits, .. } = table.shape();
    let v = v & mask(index_bits + low_bits);
    if v >> low_bits >= mask(index_bits) - 1 {
        return None;
    }
    let rho = [mixed(v, i), mixed(!v, i)].map(|mixed| mixed & mask(low_bits));
    let rest = v.wrapping_sub(rho[0]).wrapping_sub(rho[1]);
    Some(table.value(rest >> low_bits, rest & mask(low_bits), rho))
}

/// Like [`looked_up`], for a ladder.
fn climbed(ladder: &Ladder, v: u64, i: usize) -> Option<u64> {
    let low = mask(ladder.shape().low_bits);
    let rho = |rung: usize| [mixed(v, i), mixed(!v, i)].map(|mixed| mixed >> rung & low);
    ladder.contains(v).then(|| ladder.value(v, rho))
}

/// f(x) of every entry.
#[derive(Clone, Copy)]
pub struct Evaluate<'f> {
    /// The function f.
    pub function: &'f Function,
}

impl Operation for Evaluate<'_> {
    entrywise!(Words -> Words);

    fn correlations(&self, shape: &Vec<usize>, _: &Options) -> Option<Need> {
        match &self.function.method {
            Method::Lookup(_) => None,
            Method::Masked(table) => Some(Need::new(table.shape(), shape.iter().product())),
            Method::Ladder(ladder) => Some(Need::new(ladder.shape(), shape.iter().product())),
        }
    }

    fn cost(&self, shape: &Vec<usize>, _: bool, _: &mut Plans) -> Result<Cost, Error> {
        Ok(self.function.online_cost(shape.iter().product()))
    }

    fn run(&self, s: &mut Session, x: &ArrayD<u64>, correlations: Option<&[u64]>) -> Result<ArrayD<u64>, Error> {
        let values = match &self.function.method {
            Method::Lookup(table) => lookup::evaluate(s, &**table, &flat(x))?,
            Method::Masked(table) => fss::run(s, table, correlations.unwrap_or_default(), &flat(x))?,
            Method::Ladder(ladder) => ladder::run(s, ladder, correlations.unwrap_or_default(), &flat(x))?,
        };
        Ok(shaped(x.shape(), values))
    }

    /// Outside the range the result can only be garbage: the largest value that a truncation takes, which is noticed
    /// where it is not muxed away. A table of all inputs that there may be refuses such an input, whatever its low
    /// bits are.
    fn reference(&self, reference: &mut Reference, x: &ArrayD<u64>) -> Result<ArrayD<u64>, Error> {
        let width = self.function.out_width();
        let garbage = (1u64 << (width - 2)) - 1;
        if let Method::Masked(table) = &self.function.method
            && table.is_whole()
            && let FssShape { index_bits, low_bits, .. } = table.shape()
            && let end = (mask(index_bits) - 1) << low_bits
            && let Some(&v) = x.iter().find(|&&v| v >= end)
        {
            return Err(reference.out_of_range("evaluate", (v as i64).into(), 0, i128::from(end) - 1));
        }
        let value = |(i, &v)| self.function.value(v, i).map_or(garbage, |v| signed(v, width) as u64);
        Ok(shaped(x.shape(), x.iter().enumerate().map(value).collect()))
    }
}
