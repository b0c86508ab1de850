//! A tabulated function of one variable in one round trip.
//!
//! **Functionality.** Shares of x modulo 2^(index_bits + low_bits) -> shares of f(x) modulo 2^out_width. The table
//! writes f as sum_k c_k(n, low_s) p_k(low_c); [`Table`] explains this decomposition, which needs no carry.
//!
//! **Source.** Ours, from 1-of-N OT (Naor-Pinkas) and products by correlated OT (Gilboa, CRYPTO 1999).
//!
//! ```text
//! server:  draws masks r_k and tabulates the row of c_k(n, low_s) - r_k for every high part of the client
//! client:  takes the row of its high part by 1-of-N OT
//!          sum_k (c_k - r_k) p_k is local to it
//! both:    share r_k p_k by correlated OTs on the bits of p_k, in the same round trip
//! ```
//!
//! **Range.** x in [0, (2^index_bits - 1) 2^low_bits); other inputs give garbage. **Error.** The error of the table:
//! products are exact modulo 2^out_width. **Revealed.** Nothing: the masks r_k of the rows are fresh and uniform.

use rand::Rng;
use waggle_ot::{Bits, CotShape, LookupShape};

use crate::operation::prelude::*;
use crate::ops::{batch_items, batched_cost};

/// A function of one variable, tabulated for evaluation on shares by look-up.
///
/// The input is a word modulo 2^(index_bits + low_bits). The server, who is the OT sender, has the share x0; the
/// client, who is the receiver, has x1. Write x_i = high_i 2^low_bits + low_i and n = high_0 + high_1 mod
/// 2^index_bits, read as a number of [-1, 2^index_bits - 1). Then x = n 2^low_bits + (low_0 + low_1), without a carry
/// to compute, and
///
/// f(x) = sum_k c_k(n, low_0) p_k(low_1), with p_0 = 1.
///
/// Polynomials have this form (expand around low_0), and so have exponentials (a product of powers). The sender knows
/// low_0 and can tabulate the c_k over n; the receiver knows the p_k. Inputs must lie in [0, 2^(index_bits +
/// low_bits) - 2^low_bits). Other inputs give garbage, which the caller muxes away.
pub trait Table: Sync {
    /// The sizes of the table.
    fn shape(&self) -> TableShape;
    /// The factors p_k(low), k >= 1, for `low < 2^low_bits`.
    fn factors(&self, low: u64, out: &mut [u64]);
    /// The coefficients c_k for the window that begins at `window` 2^low_bits (`window` in [-1, 2^index_bits - 1))
    /// and the sender's `low < 2^low_bits`. c_0 comes first if there is a constant term.
    fn coefficients(&self, window: i64, low: u64, out: &mut [u64]);
}

/// The sizes of a [`Table`].
#[derive(Clone, Debug)]
pub struct TableShape {
    /// log2 of the number of windows, 1..=8.
    pub index_bits: u32,
    /// Bits of an input below the window index.
    pub low_bits: u32,
    /// Bits of the ring of coefficients and result: the result is the sum modulo 2^out_width.
    pub out_width: u32,
    /// Whether there is a constant term (k = 0).
    pub constant: bool,
    /// Bits of each of the factors p_k, k >= 1: p_k < 2^bits. Public.
    pub factor_bits: Vec<u32>,
}

const CHOICES: &str = "evaluate/choices";
const ANSWER: &str = "evaluate/answer";

pub(crate) fn evaluate(s: &mut Session, table: &dyn Table, x: &[u64]) -> Result<Vec<u64>, Error> {
    let mut out = Vec::with_capacity(x.len());
    for x in x.chunks(batch(table)) {
        let shape = Shape::new(table, x.len());
        s.reserve(Role::Server, shape.ots())?;
        out.extend(match s.role() {
            Role::Client => client(s, &shape, table, x)?,
            Role::Server => server(s, &shape, table, x)?,
        });
    }
    Ok(out)
}

fn batch(table: &dyn Table) -> usize {
    batch_items(Shape::new(table, 1).ots())
}

pub(crate) fn cost(table: &dyn Table, n: usize) -> Cost {
    batched_cost(n, batch(table), |n| {
        let shape = Shape::new(table, n);
        Cost::free()
            .cots(Role::Server, shape.ots())
            .message(Role::Client, shape.ots().div_ceil(8))
            .tabulates(Role::Server, &shape.lookup)
            .supplies(Role::Server, &shape.products)
            .message(Role::Server, shape.lookup.message_bytes() + shape.products.message_bytes())
            .picks(Role::Client, &shape.lookup)
            .chooses(Role::Client, &shape.products)
    })
}

struct Shape {
    lookup: LookupShape,
    /// One OT for each bit of a factor. They are ordered by entry, and by factor within an entry.
    products: CotShape,
    table: TableShape,
    constant: usize,
}

impl Shape {
    fn new(table: &dyn Table, n: usize) -> Self {
        let table = table.shape();
        let (width, constant) = (table.out_width, usize::from(table.constant));
        let words = vec![width; constant + table.factor_bits.len()];
        let widths: Vec<u32> = table.factor_bits.iter().flat_map(|&bits| (0..bits).map(move |j| width - j)).collect();
        let lookup = LookupShape::new(n, table.index_bits, &words).expect("index bits 1..=8, words up to 64 bits");
        let products = CotShape::new(n * widths.len(), 1, &widths).expect("factors narrower than the ring");
        Shape { lookup, products, table, constant }
    }

    fn ots(&self) -> usize {
        self.lookup.ots() + self.products.ots()
    }

    /// Adds up the shares of r_k times each bit of p_k, so that each entry has one share.
    fn gather(&self, shares: &[u64], out: &mut [u64]) {
        let per_entry = shares.len() / out.len();
        for (out, shares) in out.iter_mut().zip(shares.chunks_exact(per_entry)) {
            let places = self.table.factor_bits.iter().flat_map(|&bits| 0..bits);
            *out = shares.iter().zip(places).fold(*out, |sum, (share, j)| sum.wrapping_add(share << j));
        }
    }
}

fn client(s: &mut Session, shape: &Shape, table: &dyn Table, x: &[u64]) -> Result<Vec<u64>, Error> {
    let TableShape { index_bits, low_bits, .. } = shape.table;
    let mut chosen = Vec::with_capacity(shape.ots());
    let high = |x: u64| x >> low_bits & mask(index_bits);
    x.iter().for_each(|&x| chosen.extend((0..index_bits).map(|bit| high(x) >> bit & 1 == 1)));
    let terms = shape.table.factor_bits.len();
    let mut factors = vec![0; x.len() * terms];
    for (x, factors) in x.iter().zip(factors.chunks_exact_mut(terms)) {
        table.factors(x & mask(low_bits), factors);
        for (&p, &bits) in factors.iter().zip(&shape.table.factor_bits) {
            debug_assert!(p <= mask(bits), "factor {p} of {bits} bits");
            chosen.extend((0..bits).map(|bit| p >> bit & 1 == 1));
        }
    }
    let (message, mut keys) = s.receiver().choose(&Bits::from_fn(chosen.len(), |i| chosen[i]))?;
    s.deliver(CHOICES, message)?;
    let answer = s.channel().recv(ANSWER, shape.lookup.message_bytes() + shape.products.message_bytes())?;
    let (rows, products) = answer.split_at(shape.lookup.message_bytes());
    let product_keys = keys.split_off(shape.lookup.ots());
    let rows = keys.lookup(&shape.lookup, rows)?;
    let shares = product_keys.decorrelate(&shape.products, products)?;
    let mut out: Vec<u64> = rows
        .chunks_exact(shape.constant + terms)
        .zip(factors.chunks_exact(terms))
        .map(|(row, factors)| {
            let constant = row[..shape.constant].iter().copied().sum::<u64>();
            let pairs = row[shape.constant..].iter().zip(factors);
            pairs.fold(constant, |sum, (c, p)| sum.wrapping_add(c.wrapping_mul(*p)))
        })
        .collect();
    shape.gather(&shares, &mut out);
    Ok(out)
}

fn server(s: &mut Session, shape: &Shape, table: &dyn Table, x: &[u64]) -> Result<Vec<u64>, Error> {
    let (low_bits, windows) = (shape.table.low_bits, 1i64 << shape.table.index_bits);
    let words = shape.constant + shape.table.factor_bits.len();
    let masks: Vec<u64> = (0..x.len() * words).map(|_| s.rng().next_u64()).collect();
    let message = s.channel().recv(CHOICES, shape.ots().div_ceil(8))?;
    let mut keys = s.sender().accept(shape.ots(), &message)?;
    let product_keys = keys.split_off(shape.lookup.ots());
    let mut answer = keys.lookup(&shape.lookup, |item, row| {
        let low = x[item] & mask(low_bits);
        let high = (x[item] >> low_bits) as i64;
        for (entry, row) in row.chunks_exact_mut(words).enumerate() {
            // n = 2^index_bits - 1 stands for -1: inputs end one window earlier.
            let n = (high.wrapping_add(entry as i64 + 1) & (windows - 1)) - 1;
            table.coefficients(n, low, row);
            let own = &masks[item * words..(item + 1) * words];
            row.iter_mut().zip(own).for_each(|(c, r)| *c = c.wrapping_sub(*r));
        }
    })?;
    let corr: Vec<u64> = masks
        .chunks_exact(words)
        .flat_map(|own| {
            let terms = own[shape.constant..].iter().zip(&shape.table.factor_bits);
            terms.flat_map(|(&r, &bits)| std::iter::repeat_n(r, bits as usize))
        })
        .collect();
    let (products, shares) = product_keys.correlate(&shape.products, &corr)?;
    answer.extend_from_slice(&products);
    s.deliver(ANSWER, answer)?;
    let mut out: Vec<u64> = masks.chunks_exact(words).map(|own| own[..shape.constant].iter().sum()).collect();
    shape.gather(&shares, &mut out);
    Ok(out)
}
