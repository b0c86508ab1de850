//! Products of shared words: entry by entry, rows by a word each, sums of squares.
//!
//! **Functionality.** Shares of x and y modulo 2^w -> shares of x y modulo 2^w. The local products x_i y_i are free; the
//! cross terms come from one of the following, whichever sends fewer bytes for the shape (both parties compute the same):
//! - *OT*: correlated OTs on the bits of one factor (Gilboa, CRYPTO 1999): bit j carries the other factor modulo 2^(w-j).
//!   A word that multiplies a row of n shares its OTs with the whole row. Exact.
//! - *OLE*: RLWE with packed slots (BumbleBee, eprint 2023/1678; [`he::OlePlan`]): the client encrypts, the server
//!   multiplies. Error: 1 in the last place per product.
//!
//! Rows times words have a third: [`matmul::shared`](super::matmul::shared) of columns with 1 x 1 matrices, whose
//! ciphertexts hold a product in every coefficient.
//!
//! **Range.** Any; the result is modulo 2^w. **Error.** None by OT, at most 1 in the last place of each product by OLE, twice
//! [`he::MatmulPlan::lsb_error`] by products of matrices.
//!
//! **Revealed.** Nothing; by OLE up to a statistical distance of 2^-60 per message, see [`he::OlePlan`].

use std::sync::Arc;

use he::{MatmulShape, OleKind, OlePlan};
use net::{HEADER_BYTES, Role};
use ot::{Bits, Correlation};

use crate::Error;
use crate::cost::Cost;
use crate::ops::cross::{self, Side};
use crate::ops::{batch_items, batched_cost, matmul};
use crate::session::{Plans, Session};
use crate::words::mask;

const UPLOAD: &str = "mul/upload";
const DOWNLOAD: &str = "mul/download";

/// Shares of x y modulo 2^`width`, entry by entry.
pub fn mul(s: &mut Session, x: &[u64], y: &[u64], width: u32) -> Result<Vec<u64>, Error> {
    if x.is_empty() {
        return Ok(Vec::new());
    }
    let mut out = match ole_if_cheaper(s.plans(), x.len(), width, OleKind::Merged)? {
        Some(plan) => ole(s, &plan, &[x, y])?,
        None => return rows_by_ot(s, x, y, 1, width),
    };
    out.iter_mut().zip(x.iter().zip(y)).for_each(|(out, (x, y))| *out = out.wrapping_add(x.wrapping_mul(*y)));
    Ok(out)
}

/// Cost of [`mul`] of `n` words.
pub fn mul_cost(plans: &mut Plans, n: usize, width: u32) -> Result<Cost, Error> {
    if n == 0 {
        return Ok(Cost::free());
    }
    Ok(match ole_if_cheaper(plans, n, width, OleKind::Merged)? {
        Some(plan) => ole_cost(&plan),
        None => rows_by_ot_cost(n, 1, width),
    })
}

/// How products of rows and words are made.
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
    fn cheapest(plans: &mut Plans, rows: usize, n: usize, width: u32) -> Result<(Self, Cost), Error> {
        let by_ot = (RowProducts::Rows, rows_by_ot_cost(rows, n, width));
        if rows * n == 0 {
            return Ok(by_ot);
        }
        let mut ways = vec![(RowProducts::Entries, mul_cost(plans, rows * n, width)?)];
        // A single word keeps the smaller error of the other two.
        if n > 1 {
            let shape = MatmulShape { batch: rows, m: n, k: 1, n: 1 };
            ways.push((RowProducts::Columns(shape), matmul::shared_cost(plans, shape, width)?));
        }
        let other = ways.into_iter().min_by_key(|(_, cost)| wire_bytes(plans, cost));
        Ok(other.filter(|(_, cost)| wire_bytes(plans, cost) < wire_bytes(plans, &by_ot.1)).unwrap_or(by_ot))
    }
}

/// Shares of row r of x (`n` words each, row-major) times y_r, modulo 2^`width`.
pub fn rows(s: &mut Session, x: &[u64], y: &[u64], n: usize, width: u32) -> Result<Vec<u64>, Error> {
    match RowProducts::cheapest(s.plans(), y.len(), n, width)?.0 {
        RowProducts::Entries => {
            let spread: Vec<u64> = y.iter().flat_map(|&y| std::iter::repeat_n(y, n)).collect();
            mul(s, x, &spread, width)
        }
        RowProducts::Rows => rows_by_ot(s, x, y, n, width),
        RowProducts::Columns(shape) => matmul::shared(s, shape, x, y, width),
    }
}

/// Cost of [`rows`] on `rows` rows of `n` words.
pub fn rows_cost(plans: &mut Plans, rows: usize, n: usize, width: u32) -> Result<Cost, Error> {
    Ok(RowProducts::cheapest(plans, rows, n, width)?.1)
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

/// Rows of one batch: a row occupies memory as `n` OTs for every bit of its factor.
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

/// Cost of [`rows_by_ot`] on `rows` rows of `n` words.
fn rows_by_ot_cost(rows: usize, n: usize, width: u32) -> Cost {
    if n == 0 {
        return Cost::free();
    }
    batched_cost(rows, rows_batch(n, width), |rows| cross::two_way_cost(&rows_shape(rows, n, width)))
}

/// Shares of x^2 modulo 2^`width`, entry by entry.
pub fn square(s: &mut Session, x: &[u64], width: u32) -> Result<Vec<u64>, Error> {
    if x.is_empty() {
        return Ok(Vec::new());
    }
    let cross_terms = match ole_if_cheaper(s.plans(), x.len(), width, OleKind::Square)? {
        Some(plan) => ole(s, &plan, &[x])?,
        None => {
            // 2 x_s x_c: half of it modulo 2^(width-1), doubled.
            let half = width - 1;
            let shape = rows_shape(x.len(), 1, half);
            let shares = match s.role() {
                Role::Client => cross::one_way(s, &shape, Side::Choose(&Bits::from_values(x, half)))?,
                Role::Server => {
                    let words: Vec<u64> = x.iter().flat_map(|&x| std::iter::repeat_n(x, half as usize)).collect();
                    cross::one_way(s, &shape, Side::Supply(&words))?
                }
            };
            let mut out = vec![0; x.len()];
            add_places(&mut out, &shares, 1, half);
            out.iter_mut().for_each(|out| *out <<= 1);
            out
        }
    };
    Ok(cross_terms.iter().zip(x).map(|(cross, x)| cross.wrapping_add(x.wrapping_mul(*x))).collect())
}

/// Cost of [`square`] of `n` words.
pub fn square_cost(plans: &mut Plans, n: usize, width: u32) -> Result<Cost, Error> {
    if n == 0 {
        return Ok(Cost::free());
    }
    Ok(match ole_if_cheaper(plans, n, width, OleKind::Square)? {
        Some(plan) => ole_cost(&plan),
        None => cross::one_way_cost(&rows_shape(n, 1, width - 1)),
    })
}

/// Bytes of `cost` on the wire, refills of the pools estimated: to compare strategies.
fn wire_bytes(plans: &Plans, cost: &Cost) -> usize {
    let cots = cost.cots_used(Role::Client) + cost.cots_used(Role::Server);
    cost.total_bytes() as usize + cots as usize * plans.cot_bits / 8
}

/// OTs for `rows` words times rows of `n`: bit j carries `n` words modulo 2^(width-j).
fn rows_shape(rows: usize, n: usize, width: u32) -> Correlation {
    let widths: Vec<u32> = (0..width).map(|j| width - j).collect();
    Correlation::new(rows * width as usize, n, &widths).expect("widths of 1..=64")
}

/// Adds the shares of bit j, times 2^j, to rows of `n` words.
fn add_places(out: &mut [u64], shares: &[u64], n: usize, width: u32) {
    for (row, shares) in out.chunks_exact_mut(n).zip(shares.chunks_exact(n * width as usize)) {
        for (j, shares) in shares.chunks_exact(n).enumerate() {
            row.iter_mut().zip(shares).for_each(|(out, share)| *out = out.wrapping_add(share << j));
        }
    }
}

/// The OLE plan, if it sends fewer bytes than OTs would.
fn ole_if_cheaper(plans: &mut Plans, n: usize, width: u32, kind: OleKind) -> Result<Option<Arc<OlePlan>>, Error> {
    let plan = plans.ole(n, width, kind)?;
    let ot = match kind {
        OleKind::Merged => rows_by_ot_cost(n, 1, width),
        OleKind::Product | OleKind::Square => cross::one_way_cost(&rows_shape(n, 1, width - 1)),
    };
    let ot_bytes = wire_bytes(plans, &ot);
    let ole_bytes = plan.upload_bytes() + plan.download_bytes() + 2 * HEADER_BYTES;
    Ok((ole_bytes < ot_bytes).then_some(plan))
}

/// Shares of the cross terms of `plan`'s kind, reduced modulo its ring by the caller.
fn ole(s: &mut Session, plan: &OlePlan, operands: &[&[u64]]) -> Result<Vec<u64>, Error> {
    let set = plan.set();
    s.ensure_key(Role::Client, set)?;
    let width = plan.width();
    let reduced: Vec<Vec<u64>> = operands.iter().map(|x| x.iter().map(|x| x & mask(width)).collect()).collect();
    let operands: Vec<&[u64]> = reduced.iter().map(Vec::as_slice).collect();
    match s.role() {
        Role::Client => {
            let (key, rng) = s.secret_key(set);
            let upload = plan.encrypt(key, &operands, rng)?;
            s.deliver(UPLOAD, upload)?;
            let download = s.channel().recv(DOWNLOAD, plan.download_bytes())?;
            Ok(plan.decrypt(s.secret_key(set).0, &download)?)
        }
        Role::Server => {
            let upload = s.channel().recv(UPLOAD, plan.upload_bytes())?;
            let (key, rng) = s.peer_key(set);
            let (download, share) = plan.evaluate(key, &upload, &operands, rng)?;
            s.deliver(DOWNLOAD, download)?;
            Ok(share)
        }
    }
}

fn ole_cost(plan: &OlePlan) -> Cost {
    Cost::free()
        .key(Role::Client, plan.set())
        .message(Role::Client, plan.upload_bytes())
        .message(Role::Server, plan.download_bytes())
}
