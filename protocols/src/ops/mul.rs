//! Products of shared words: entry by entry, and of each row with one word.
//!
//! **Functionality.** Shares of x and y modulo 2^w -> shares of x y modulo 2^w.
//!
//! **Source.** *Direct.* The local products x_i y_i are free. The cross terms come from one of the following,
//! whichever sends fewer bytes for the shape; both parties compute the same choice:
//! - *OT*: correlated OTs on the bits of one factor (Gilboa, CRYPTO 1999). Bit j carries the other factor modulo
//!   2^(w-j). A word that multiplies a row of n shares its OTs with the whole row. Exact.
//! - *OLE*: RLWE with packed slots (BumbleBee, eprint 2023/1678; [`waggle_he::OlePlan`]). The client encrypts, the
//!   server multiplies. Error: 1 in the last place per product, or more where the caller drops the last places
//!   anyway ([`Mul::error_bits`]), which saves bytes.
//!
//! Rows times words have a third way: products of columns with 1 x 1 matrices by
//! `matmul::shared`, whose ciphertexts hold a product in every coefficient.
//!
//! *Prepared.* Offline, the parties share random a, b and a b in one of the same ways, in large batches. Online, the
//! parties open x - a and y - b in one exchange and use Beaver's formula (CRYPTO 1991).
//!
//! **Range.** Any; the result is modulo 2^w. **Error.** None by OT; by OLE at most 2^error_bits in the last place of
//! each product, which is 1 for 0 bits; by products of matrices twice [`waggle_he::ProductPlan::lsb_error`]. A
//! prepared product has the error of the a b that it takes.
//!
//! **Revealed.** Nothing: x - a and y - b are uniform, because every a and b is used once. By OLE this holds up to a
//! statistical distance of 2^-60 per message, see [`waggle_he::OlePlan`].

use std::sync::Arc;

use ndarray::Zip;
use serde::{Deserialize, Serialize};
use waggle_he::{MatmulShape, OleKind, OlePlan, Split};
use waggle_net::HEADER_BYTES;
use waggle_ot::Bits;

use crate::deal::dealing::{Dealing, counted, in_range, woven};
use crate::operation::prelude::*;
use crate::ops::{batch_items, batched_cost, matmul};
use crate::wire::beaver::{minus, random};
use crate::wire::{cross, opening};

/// x y modulo 2^`width`, entrywise; shapes equal. Error: at most 2^`error_bits` in the last place.
#[derive(Clone, Copy, Debug)]
pub struct Mul {
    /// Bits of the ring, 1..=64.
    pub width: u32,
    /// log2 of the error that the caller bears, less than `width`.
    pub error_bits: u32,
}

impl Operation for Mul {
    entrywise!(Words, Words -> Words);

    fn correlations(&self, shape: &Vec<usize>, options: &Options) -> Option<Need> {
        let product = RowProduct { n: 1, width: self.width, error_bits: self.error_bits };
        options.preprocess.then(|| Need::new(product, shape.iter().product()))
    }

    fn cost(&self, shape: &Vec<usize>, prepared: bool, plans: &mut Plans) -> Result<Cost, Error> {
        let n = shape.iter().product();
        if prepared { Ok(prepared_cost(n, 1, self.width)) } else { mul_cost(plans, n, *self) }
    }

    fn run(
        &self,
        s: &mut Session,
        (x, y): (&ArrayD<u64>, &ArrayD<u64>),
        correlations: Option<&[u64]>,
    ) -> Result<ArrayD<u64>, Error> {
        let shape = x.shape();
        let (x, y) = (flat(x), flat(y));
        let product = match correlations {
            Some(correlations) => prepared(s, &x, &y, 1, self.width, correlations)?,
            None => mul(s, &x, &y, *self)?,
        };
        Ok(shaped(shape, product))
    }

    fn reference(
        &self,
        reference: &mut Reference,
        (x, y): (&ArrayD<u64>, &ArrayD<u64>),
    ) -> Result<ArrayD<u64>, Error> {
        let value = |v: u64| i128::from(signed(v, self.width));
        reference.fitted("mul", Zip::from(x).and(y).map_collect(|&x, &y| value(x) * value(y)), self.width)
    }
}

/// (rows, n) times (rows): every row times one word of its own, modulo 2^`width`. Error: a few units in the last
/// place, and 2^`error_bits` by OLE.
#[derive(Clone, Copy, Debug)]
pub struct MulRows {
    /// Bits of the ring, 1..=64.
    pub width: u32,
    /// log2 of the error that the caller bears, less than `width`.
    pub error_bits: u32,
}

impl MulRows {
    fn product(self, n: usize) -> RowProduct {
        RowProduct { n, width: self.width, error_bits: self.error_bits }
    }
}

impl Operation for MulRows {
    type Input<'a, F: Form> = (&'a F::Words, &'a F::Words);
    type Output<F: Form> = F::Words;
    /// Number of rows, and number of entries of each row.
    type Size = [usize; 2];

    fn size<F: Form>(&self, (x, y): &(&F::Words, &F::Words)) -> [usize; 2] {
        match x.shape()[..] {
            [rows, n] => {
                assert_eq!(y.shape(), [rows], "a word for every row");
                [rows, n]
            }
            ref shape => panic!("{shape:?} is not (rows, n)"),
        }
    }

    fn correlations(&self, &[rows, n]: &[usize; 2], options: &Options) -> Option<Need> {
        (options.preprocess && n > 0).then(|| Need::new(self.product(n), rows))
    }

    fn cost(&self, &[rows, n]: &[usize; 2], prepared: bool, plans: &mut Plans) -> Result<Cost, Error> {
        if prepared { Ok(prepared_cost(rows, n, self.width)) } else { rows_cost(plans, rows, self.product(n)) }
    }

    fn run(
        &self,
        s: &mut Session,
        (x, y): (&ArrayD<u64>, &ArrayD<u64>),
        correlations: Option<&[u64]>,
    ) -> Result<ArrayD<u64>, Error> {
        let n = x.shape()[1];
        let product = match correlations {
            Some(correlations) => prepared(s, &flat(x), &flat(y), n, self.width, correlations)?,
            None => self::rows(s, &flat(x), &flat(y), self.product(n))?,
        };
        Ok(shaped(x.shape(), product))
    }

    fn reference(
        &self,
        reference: &mut Reference,
        (x, y): (&ArrayD<u64>, &ArrayD<u64>),
    ) -> Result<ArrayD<u64>, Error> {
        let value = |v: u64| i128::from(signed(v, self.width));
        let exact = ArrayD::from_shape_fn(x.raw_dim(), |at| value(x[&at]) * value(y[[at[0]]]));
        reference.fitted("mul_rows", exact, self.width)
    }

    fn planned(&self, [rows, n]: [usize; 2]) -> Shape {
        Shape(vec![rows, n])
    }
}

/// A random row a, a random word b, and a b, whose entries may be off by 2^`error_bits`. Unit: a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowProduct {
    /// Entries of the row, at least 1.
    pub n: usize,
    /// Bits of the ring.
    pub width: u32,
    /// log2 of the error in the last place, less than `width`.
    pub error_bits: u32,
}

impl Correlation for RowProduct {
    fn dealt_words(&self) -> Option<u64> {
        let words = in_range(self.width, counted(&[self.n, 2])?.checked_add(1)?)?;
        (self.error_bits < self.width).then_some(words)
    }

    /// Dealt products are exact.
    fn deal(&self, d: &mut Dealing<'_>, units: usize) -> Result<[Vec<u64>; 2], Error> {
        let RowProduct { n, width, .. } = *self;
        let a = d.draw_both(units * n, width);
        let [b, ab] = self.dealt(d, units, &a)?;
        Ok([0, 1].map(|role| woven(units, &[(&a[role], n), (&b[role], 1), (&ab[role], n)])))
    }

    fn scope(&self) -> &'static str {
        "products"
    }

    fn words(&self, _: Role) -> usize {
        2 * self.n + 1
    }

    fn batch(&self, _: &Options) -> usize {
        ((1 << 16) / self.n).max(1)
    }

    fn cost(&self, plans: &mut Plans, units: usize) -> Result<Cost, Error> {
        Ok(rows_cost(plans, units, *self)?.offline())
    }

    fn make(&self, s: &mut Session, units: usize, _: &mut Pipeline<'_>) -> Result<Vec<u64>, Error> {
        let RowProduct { n, width, .. } = *self;
        let (a, b) = (random(s, units * n, width), random(s, units, width));
        let ab = rows(s, &a, &b, *self)?;
        Ok(woven(units, &[(&a, n), (&b, 1), (&ab, n)]))
    }
}

impl RowProduct {
    /// The words b of `units` units, and a b for their rows `a`, each first at the client and then at the server.
    pub(super) fn dealt(
        &self,
        d: &mut Dealing<'_>,
        units: usize,
        a: &[Vec<u64>; 2],
    ) -> Result<[[Vec<u64>; 2]; 2], Error> {
        let RowProduct { n, width, .. } = *self;
        let b = d.draw_both(units, width);
        let client = d.draw(Role::Client, units * n, width);
        let server = d.give(Role::Server, units * n, &[width], || {
            let shape = MatmulShape { batch: units, m: n, k: 1, n: 1 };
            let whole = matmul::of_shares(shape, [&a[0], &a[1]], [&b[0], &b[1]]);
            minus(&whole, client.iter().copied()).collect()
        })?;
        Ok([b, [client, server]])
    }
}

const UPLOAD: &str = "mul/upload";
const DOWNLOAD: &str = "mul/download";

fn mul(s: &mut Session, x: &[u64], y: &[u64], how: Mul) -> Result<Vec<u64>, Error> {
    if x.is_empty() {
        return Ok(Vec::new());
    }
    let mut out = match ole_if_cheaper(s.plans(), x.len(), how)? {
        Some(plan) => ole(s, &plan, &[x, y])?,
        None => return rows_by_ot(s, x, y, 1, how.width),
    };
    out.iter_mut().zip(x.iter().zip(y)).for_each(|(out, (x, y))| *out = out.wrapping_add(x.wrapping_mul(*y)));
    Ok(out)
}

fn mul_cost(plans: &mut Plans, n: usize, how: Mul) -> Result<Cost, Error> {
    if n == 0 {
        return Ok(Cost::free());
    }
    Ok(match ole_if_cheaper(plans, n, how)? {
        Some(plan) => ole_cost(&plan),
        None => rows_by_ot_cost(n, 1, how.width),
    })
}

enum RowProducts {
    /// Word by word, by [`mul`].
    Entries,
    /// Row by row, by OT.
    Rows,
    /// As products of columns with 1 x 1 matrices under RLWE.
    Columns(MatmulShape),
}

impl RowProducts {
    /// The way that sends the fewest bytes, and its cost.
    fn cheapest(plans: &mut Plans, rows: usize, kind: RowProduct) -> Result<(Self, Cost), Error> {
        let RowProduct { n, width, error_bits } = kind;
        let by_ot = (RowProducts::Rows, rows_by_ot_cost(rows, n, width));
        if rows * n == 0 {
            return Ok(by_ot);
        }
        let mut ways = vec![(RowProducts::Entries, mul_cost(plans, rows * n, Mul { width, error_bits })?)];
        // A single word keeps to the other two ways, which have the smaller error.
        if n > 1 {
            let shape = MatmulShape { batch: rows, m: n, k: 1, n: 1 };
            ways.push((RowProducts::Columns(shape), matmul::shared_cost(plans, shape, width)?));
        }
        let other = ways.into_iter().min_by_key(|(_, cost)| wire_bytes(plans, cost));
        Ok(other.filter(|(_, cost)| wire_bytes(plans, cost) < wire_bytes(plans, &by_ot.1)).unwrap_or(by_ot))
    }
}

/// Shares of row r of `x` times y_r. A row has `kind.n` words, and `x` is row-major.
pub(super) fn rows(s: &mut Session, x: &[u64], y: &[u64], kind: RowProduct) -> Result<Vec<u64>, Error> {
    let RowProduct { n, width, error_bits } = kind;
    match RowProducts::cheapest(s.plans(), y.len(), kind)?.0 {
        RowProducts::Entries => {
            let spread: Vec<u64> = y.iter().flat_map(|&y| std::iter::repeat_n(y, n)).collect();
            mul(s, x, &spread, Mul { width, error_bits })
        }
        RowProducts::Rows => rows_by_ot(s, x, y, n, width),
        RowProducts::Columns(shape) => matmul::shared(s, shape, x, y, width),
    }
}

fn rows_cost(plans: &mut Plans, rows: usize, kind: RowProduct) -> Result<Cost, Error> {
    Ok(RowProducts::cheapest(plans, rows, kind)?.1)
}

/// [`rows`] by OT, exact.
fn rows_by_ot(s: &mut Session, x: &[u64], y: &[u64], n: usize, width: u32) -> Result<Vec<u64>, Error> {
    let mut out = Vec::with_capacity(x.len());
    if x.is_empty() {
        return Ok(out);
    }
    let batch = rows_batch(n, width);
    for (x, y) in x.chunks(batch * n).zip(y.chunks(batch)) {
        out.extend(rows_by_ot_batch(s, x, y, n, width)?);
    }
    Ok(out)
}

/// Number of rows in a batch. A row takes as much memory as `n` OTs for every bit of its factor.
fn rows_batch(n: usize, width: u32) -> usize {
    batch_items(n * width as usize)
}

fn rows_by_ot_batch(s: &mut Session, x: &[u64], y: &[u64], n: usize, width: u32) -> Result<Vec<u64>, Error> {
    let shape = rows_shape(y.len(), n, width);
    let bits = Bits::from_values(y, width);
    let words: Vec<u64> = x.chunks_exact(n).flat_map(|row| row.repeat(width as usize)).collect();
    let shares = cross::two_way(s, &shape, &bits, &words)?;
    let mut out: Vec<u64> =
        x.chunks_exact(n).zip(y).flat_map(|(row, y)| row.iter().map(|x| x.wrapping_mul(*y))).collect();
    add_places(&mut out, &shares, n, width);
    Ok(out)
}

fn rows_by_ot_cost(rows: usize, n: usize, width: u32) -> Cost {
    if n == 0 {
        return Cost::free();
    }
    batched_cost(rows, rows_batch(n, width), |rows| cross::two_way_cost(&rows_shape(rows, n, width)))
}

/// Shares of each row of `n` words of `x` times its word of `y`. Uses up one unit of `masks` for each row.
fn prepared(s: &mut Session, x: &[u64], y: &[u64], n: usize, width: u32, masks: &[u64]) -> Result<Vec<u64>, Error> {
    let units = masks.chunks_exact(2 * n + 1);
    let a = units.clone().flat_map(|unit| unit[..n].iter().copied());
    let b = units.clone().map(|unit| unit[n]);
    let difference: Vec<u64> = minus(x, a.clone()).chain(minus(y, b.clone())).collect();
    let opened = opening::masked(s, &difference, a.chain(b), &[width])?;
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

fn prepared_cost(rows: usize, n: usize, width: u32) -> Cost {
    opening::open_cost(rows * (n + 1), &[width]).work_at_both(Kernel::WordTerm, rows * n)
}

/// Bytes of `cost` on the wire, with an estimate for refills of the pools. Used to compare ways.
pub(super) fn wire_bytes(plans: &Plans, cost: &Cost) -> usize {
    let cots = cost.cots_used(Role::Client) + cost.cots_used(Role::Server);
    cost.total_bytes() as usize + cots as usize * plans.cot_bits / 8
}

/// The OTs for `rows` rows of `n` words, each multiplied by one word. Bit j of that word carries `n` words modulo
/// 2^(width-j).
pub(super) fn rows_shape(rows: usize, n: usize, width: u32) -> waggle_ot::CotShape {
    let widths: Vec<u32> = (0..width).map(|j| width - j).collect();
    waggle_ot::CotShape::new(rows * width as usize, n, &widths).expect("widths of 1..=64")
}

/// Adds shares to rows of `n` words. Each row has shares for every bit j of its factor, which count 2^j.
pub(super) fn add_places(out: &mut [u64], shares: &[u64], n: usize, width: u32) {
    for (row, shares) in out.chunks_exact_mut(n).zip(shares.chunks_exact(n * width as usize)) {
        for (j, shares) in shares.chunks_exact(n).enumerate() {
            row.iter_mut().zip(shares).for_each(|(out, share)| *out = out.wrapping_add(share << j));
        }
    }
}

/// The OLE plan, if it sends fewer bytes than OTs would.
fn ole_if_cheaper(plans: &mut Plans, n: usize, how: Mul) -> Result<Option<Arc<OlePlan>>, Error> {
    let plan = plans.ole(n, how.width, how.error_bits, OleKind::Merged)?;
    let ot_bytes = wire_bytes(plans, &rows_by_ot_cost(n, 1, how.width));
    let ole_bytes = plan.upload_bytes() + plan.download_bytes() + 2 * HEADER_BYTES;
    Ok((ole_bytes < ot_bytes).then_some(plan))
}

/// Shares of the cross terms. The caller reduces them modulo its ring.
pub(super) fn ole(s: &mut Session, plan: &OlePlan, operands: &[&[u64]]) -> Result<Vec<u64>, Error> {
    let (set, width) = (plan.set(), plan.width());
    let reduced: Vec<Vec<u64>> = operands.iter().map(|x| x.iter().map(|x| x & mask(width)).collect()).collect();
    let operands: Vec<&[u64]> = reduced.iter().map(Vec::as_slice).collect();
    match s.role() {
        Role::Client => {
            let key = s.own_key(set, false)?;
            let upload = plan.encrypt(&key, &operands, s.rng())?;
            s.deliver(UPLOAD, upload)?;
            let download = s.channel().recv(DOWNLOAD, plan.download_bytes())?;
            Ok(plan.decrypt(&key, &download)?)
        }
        Role::Server => {
            let keys = s.peer_keys(set, false)?;
            let upload = s.channel().recv(UPLOAD, plan.upload_bytes())?;
            let Split { message, share } = plan.evaluate(keys.public(), &upload, &operands, s.rng())?;
            s.deliver(DOWNLOAD, message)?;
            Ok(share)
        }
    }
}

pub(super) fn ole_cost(plan: &OlePlan) -> Cost {
    let work = plan.work();
    Cost::free()
        .key(Role::Client, plan.set())
        .work(Role::Client, Kernel::OleEncrypt, work.encrypted as usize)
        .message(Role::Client, plan.upload_bytes())
        .multiplies(Role::Server, &work)
        .message(Role::Server, plan.download_bytes())
        .work(Role::Client, Kernel::OleOpen, work.opened as usize)
}
