//! Matrix products under RLWE: with a matrix that the server knows, and of two shared matrices.
//!
//! **Functionality.** [`private`]: shares of X (m x k) and the server's W (k x n) -> shares of X W. [`shared`]: shares of
//! A and B, batches of them -> shares of A B. All modulo 2^w.
//!
//! **Source.** Coefficient packing of Cheetah (eprint 2022/207, section 3) with responses masked over Z_q
//! ([`he::MatmulPlan`]), packed by automorphisms (BumbleBee, NDSS 2025) where the plan says so. One phase: the client encrypts its share, the server adds its own and multiplies. For two shared
//! matrices A B = A_c B_c + A_s B_s + A_c B_s + A_s B_c: each party encrypts its share of one operand (the one whose
//! encryption takes less time by the planner's reckoning) and multiplies what it receives by its share of the other; both directions run
//! at once.
//!
//! **Range.** Any, modulo 2^w; entries of W below 2^weight_bits in absolute value. **Error.**
//! [`he::MatmulPlan::lsb_error`] in the last place, twice that for shared matrices.
//!
//! **Revealed.** Nothing (see the module documentation of he's products for the argument).

use std::sync::Arc;

use he::{MatmulPlan, MatmulShape, MatmulSpec, Weights};
use net::Role;
use rayon::prelude::*;

use crate::Error;
use crate::cost::Cost;
use crate::session::{Plans, Session};
use crate::words::mask;

const UPLOAD: &str = "matmul/upload";
const DOWNLOAD: &str = "matmul/download";

/// What a party brings to [`private`].
pub enum Operand<'a> {
    /// A share of X; `None` on the server if X is the client's alone.
    Client(&'a [u64]),
    /// The server's share of X, if X is shared, and W row-major (k x n).
    Server(Option<&'a [u64]>, &'a [i32]),
}

/// Shares of X W; `spec` has batch 1.
pub fn private(s: &mut Session, spec: MatmulSpec, operand: Operand<'_>) -> Result<Vec<u64>, Error> {
    let plan = s.plans().matmul(spec)?;
    let set = plan.set();
    s.ensure_keys(Role::Client, &plan)?;
    match operand {
        Operand::Client(x) => {
            let x = reduce(x, spec.width);
            let (key, rng) = s.secret_key(set);
            let upload = plan.encrypt(key, &x, rng)?;
            s.deliver(UPLOAD, upload)?;
            let download = s.channel().recv(DOWNLOAD, plan.download_bytes())?;
            Ok(plan.decrypt(s.secret_key(set).0, &download)?)
        }
        Operand::Server(x, w) => {
            let x = x.map(|x| reduce(x, spec.width));
            let upload = s.channel().recv(UPLOAD, plan.upload_bytes())?;
            let (keys, rng) = s.evaluation_keys(set);
            let (download, share) = plan.evaluate(keys, &upload, x.as_deref(), Weights::I32(w), rng)?;
            s.deliver(DOWNLOAD, download)?;
            Ok(share)
        }
    }
}

/// Cost of [`private`].
pub fn private_cost(plans: &mut Plans, spec: MatmulSpec) -> Result<Cost, Error> {
    let plan = plans.matmul(spec)?;
    Ok(Cost::free()
        .keys(Role::Client, &plan)
        .message(Role::Client, plan.upload_bytes())
        .message(Role::Server, plan.download_bytes()))
}

/// Shares of A B modulo 2^`width` from this party's shares, row-major: A (batch, m, k), B (batch, k, n).
pub fn shared(s: &mut Session, shape: MatmulShape, a: &[u64], b: &[u64], width: u32) -> Result<Vec<u64>, Error> {
    let (plan, transposed) = cheaper(s.plans(), shape, width)?;
    let set = plan.set();
    s.ensure_keys(Role::Client, &plan)?;
    s.ensure_keys(Role::Server, &plan)?;
    let MatmulShape { batch, m, k, n } = shape;
    let (a, b) = (reduce(a, width), reduce(b, width));
    let (mine, other) =
        if transposed { (transpose(&b, batch, k, n), transpose(&a, batch, m, k)) } else { (a.clone(), b.clone()) };
    let (key, rng) = s.secret_key(set);
    let upload = plan.encrypt(key, &mine, rng)?;
    let theirs = s.channel().exchange(UPLOAD, &upload, plan.upload_bytes())?;
    let (keys, rng) = s.evaluation_keys(set);
    let (download, mut cross) = plan.evaluate(keys, &theirs, None, Weights::U64(&other), rng)?;
    let response = s.channel().exchange(DOWNLOAD, &download, plan.download_bytes())?;
    let opened = plan.decrypt(s.secret_key(set).0, &response)?;
    cross.iter_mut().zip(opened).for_each(|(c, o)| *c = c.wrapping_add(o));
    if transposed {
        cross = transpose(&cross, batch, n, m);
    }
    let local = multiply(shape, &a, &b);
    cross.iter_mut().zip(local).for_each(|(c, l)| *c = c.wrapping_add(l));
    Ok(cross)
}

/// Cost of [`shared`].
pub fn shared_cost(plans: &mut Plans, shape: MatmulShape, width: u32) -> Result<Cost, Error> {
    let (plan, _) = cheaper(plans, shape, width)?;
    let (up, down) = (plan.upload_bytes(), plan.download_bytes());
    Ok(Cost::free().keys(Role::Client, &plan).keys(Role::Server, &plan).exchange(up, up).exchange(down, down))
}

/// The plan that encrypts A, or the one that encrypts B (and multiplies transposed), whichever takes less time.
fn cheaper(plans: &mut Plans, shape: MatmulShape, width: u32) -> Result<(Arc<MatmulPlan>, bool), Error> {
    let MatmulShape { batch, m, k, n } = shape;
    let straight = plans.matmul(MatmulSpec { shape, width, weight_bits: width })?;
    let turned = MatmulShape { batch, m: n, k, n: m };
    let transposed = plans.matmul(MatmulSpec { shape: turned, width, weight_bits: width })?;
    Ok(if transposed.seconds() < straight.seconds() { (transposed, true) } else { (straight, false) })
}

fn reduce(x: &[u64], width: u32) -> Vec<u64> {
    x.iter().map(|x| x & mask(width)).collect()
}

/// (batch, rows, columns) -> (batch, columns, rows).
fn transpose(x: &[u64], batch: usize, rows: usize, columns: usize) -> Vec<u64> {
    let mut out = Vec::with_capacity(x.len());
    for item in 0..batch {
        for c in 0..columns {
            out.extend((0..rows).map(|r| x[(item * rows + r) * columns + c]));
        }
    }
    out
}

/// The product in the clear modulo 2^64: for the local terms, and the naive twin of both protocols.
pub(crate) fn multiply(shape: MatmulShape, a: &[u64], b: &[u64]) -> Vec<u64> {
    let MatmulShape { m, k, n, .. } = shape;
    let mut out = vec![0u64; shape.batch * m * n];
    out.par_chunks_mut(n).enumerate().for_each(|(row, out)| {
        let b = &b[row / m * k * n..];
        for (j, &a) in a[row * k..(row + 1) * k].iter().enumerate() {
            out.iter_mut().zip(&b[j * n..(j + 1) * n]).for_each(|(o, b)| *o = o.wrapping_add(a.wrapping_mul(*b)));
        }
    });
    out
}
