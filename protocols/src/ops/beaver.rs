//! Products of two shared operands with random ones prepared ahead: Beaver's triples, for rows, squares and matrices.
//!
//! **Functionality.** Shares of x and y -> shares of x y modulo 2^w, where the product is that of a row and a word
//! ([`rows`]), the sum of squares of a row ([`sum_squares`]) or a product of matrices ([`matmul`]).
//!
//! **Source.** Beaver, CRYPTO 1991. Offline the parties share random a, b and a b, made by the one-phase protocols of
//! [`mul`](super::mul) and [`matmul`](super::matmul) on random shares in large batches. Online they open x - a and y - b in
//! one exchange; x y = (x - a)(y - b) + (x - a) b + a (y - b) + a b.
//!
//! **Range.** Any, modulo 2^w. **Error.** That of the protocol that made a b: at most 1 in the last place for a word, n for
//! a sum of n squares, [`he::MatmulPlan::lsb_error`] twice for matrices and for rows of more than one word.
//! The naive twins are the products themselves.
//!
//! **Revealed.** Nothing: what is opened is uniform, as every a and b is used once.

use he::MatmulShape;
use rand::Rng;

use crate::Error;
use crate::cost::Cost;
use crate::kernel;
use crate::ops::{matmul as he_matmul, mul, opening, reveal};
use crate::session::{Plans, Session};
use crate::words::mask;

/// This party's share of random words modulo 2^`width`.
pub(crate) fn random(s: &mut Session, count: usize, width: u32) -> Vec<u64> {
    (0..count).map(|_| s.rng().next_u64() & mask(width)).collect()
}

fn minus(x: &[u64], a: impl IntoIterator<Item = u64>) -> impl Iterator<Item = u64> {
    x.iter().zip(a).map(|(x, a)| x.wrapping_sub(a))
}

/// For each of `units` rows of n: a and the sum of its squares.
pub fn prepare_sum_squares(s: &mut Session, units: usize, n: usize, width: u32) -> Result<Vec<u64>, Error> {
    let a = random(s, units * n, width);
    let squares = mul::square(s, &a, width)?;
    let rows = a.chunks_exact(n).zip(squares.chunks_exact(n));
    let sum = |squares: &[u64]| squares.iter().fold(0u64, |sum, x| sum.wrapping_add(*x));
    Ok(rows.flat_map(|(a, squares)| a.iter().copied().chain([sum(squares)])).collect())
}

/// Cost of [`prepare_sum_squares`], `offline`.
pub fn prepare_sum_squares_cost(plans: &mut Plans, units: usize, n: usize, width: u32) -> Result<Cost, Error> {
    Ok(mul::square_cost(plans, units * n, width)?.offline())
}

/// Shares of the sums of squares of rows of `n`, with as many units of `masks`.
pub fn sum_squares(s: &mut Session, x: &[u64], n: usize, width: u32, masks: &[u64]) -> Result<Vec<u64>, Error> {
    let a = masks.chunks_exact(n + 1).flat_map(|unit| unit[..n].iter().copied());
    let difference: Vec<u64> = minus(x, a).collect();
    let d = opening::masked(s, &difference, width)?;
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

/// Cost of [`sum_squares`] of `rows` rows.
pub fn sum_squares_cost(rows: usize, n: usize, width: u32) -> Cost {
    reveal::open_cost(rows * n, width)
}

/// For each of `units` rows of n: a, b and a b.
pub fn prepare_rows(s: &mut Session, units: usize, n: usize, width: u32) -> Result<Vec<u64>, Error> {
    let (a, b) = (random(s, units * n, width), random(s, units, width));
    let products = mul::rows(s, &a, &b, n, width)?;
    let rows = a.chunks_exact(n).zip(&b).zip(products.chunks_exact(n));
    Ok(rows.flat_map(|((a, b), ab)| a.iter().chain([b]).chain(ab)).copied().collect())
}

/// Cost of [`prepare_rows`], `offline`.
pub fn prepare_rows_cost(plans: &mut Plans, units: usize, n: usize, width: u32) -> Result<Cost, Error> {
    Ok(mul::rows_cost(plans, units, n, width)?.offline())
}

/// Shares of rows of `n` times their words `y`, with as many units of `masks`.
pub fn rows(s: &mut Session, x: &[u64], y: &[u64], n: usize, width: u32, masks: &[u64]) -> Result<Vec<u64>, Error> {
    let units = masks.chunks_exact(2 * n + 1);
    let mut difference: Vec<u64> = minus(x, units.clone().flat_map(|unit| unit[..n].iter().copied())).collect();
    difference.extend(minus(y, units.clone().map(|unit| unit[n])));
    let opened = opening::masked(s, &difference, width)?;
    let (d, e) = opened.split_at(x.len());
    let server = s.is_server();
    let rows = d.chunks_exact(n).zip(e).zip(units);
    Ok(rows
        .flat_map(|((d, &e), unit)| {
            let (a, b, ab) = (&unit[..n], unit[n], &unit[n + 1..]);
            let factor = b.wrapping_add(if server { e } else { 0 });
            let terms = d.iter().zip(a).zip(ab);
            terms.map(move |((d, a), ab)| d.wrapping_mul(factor).wrapping_add(a.wrapping_mul(e)).wrapping_add(*ab))
        })
        .collect())
}

/// Cost of [`rows`] of `rows` rows.
pub fn rows_cost(rows: usize, n: usize, width: u32) -> Cost {
    reveal::open_cost(rows * (n + 1), width)
}

/// A, B and A B.
pub fn prepare_matmul(s: &mut Session, shape: MatmulShape, width: u32) -> Result<Vec<u64>, Error> {
    let MatmulShape { batch, m, k, n } = shape;
    let mut out = random(s, batch * (m * k + k * n), width);
    let (a, b) = out.split_at(batch * m * k);
    let product = he_matmul::shared(s, shape, a, b, width)?;
    out.extend(product);
    Ok(out)
}

/// Cost of [`prepare_matmul`], `offline`.
pub fn prepare_matmul_cost(plans: &mut Plans, shape: MatmulShape, width: u32) -> Result<Cost, Error> {
    Ok(he_matmul::shared_cost(plans, shape, width)?.offline())
}

/// Shares of X Y with one unit of `masks`.
pub fn matmul(
    s: &mut Session,
    shape: MatmulShape,
    x: &[u64],
    y: &[u64],
    width: u32,
    masks: &[u64],
) -> Result<Vec<u64>, Error> {
    let MatmulShape { batch, m, k, n } = shape;
    let (a, rest) = masks.split_at(batch * m * k);
    let (b, ab) = rest.split_at(batch * k * n);
    let mut difference: Vec<u64> = minus(x, a.iter().copied()).collect();
    difference.extend(minus(y, b.iter().copied()));
    let opened = opening::masked(s, &difference, width)?;
    let (d, e) = opened.split_at(x.len());
    let server = s.is_server();
    let mut out = Vec::with_capacity(ab.len());
    for item in 0..batch {
        let left = item * m * k..(item + 1) * m * k;
        let right = item * k * n..(item + 1) * k * n;
        let result = item * m * n..(item + 1) * m * n;
        out.extend(open_product(
            [m, k, n],
            server,
            [&d[left.clone()], &a[left]],
            [&e[right.clone()], &b[right]],
            &ab[result],
        ));
    }
    Ok(out)
}

/// (x - a) (y - b) + (x - a) b + a (y - b) + a b for one product m x k x n, from the opened difference and the mask of
/// either factor and this party's share of a b.
pub(crate) fn open_product(
    [m, k, n]: [usize; 3],
    server: bool,
    [d, a]: [&[u64]; 2],
    [e, b]: [&[u64]; 2],
    ab: &[u64],
) -> Vec<u64> {
    debug_assert!(d.len() == m * k && e.len() == k * n && ab.len() == m * n);
    let right: Vec<u64> =
        if server { e.iter().zip(b).map(|(e, b)| e.wrapping_add(*b)).collect() } else { b.to_vec() };
    let mut out = kernel::times_words(d, &right, k, n);
    let other = kernel::times_words(a, e, k, n);
    for ((out, other), ab) in out.iter_mut().zip(other).zip(ab) {
        *out = out.wrapping_add(other).wrapping_add(*ab);
    }
    out
}

/// Cost of [`matmul`].
pub fn matmul_cost(shape: MatmulShape, width: u32) -> Cost {
    let MatmulShape { batch, m, k, n } = shape;
    reveal::open_cost(batch * (m * k + k * n), width)
}
