//! Products with a matrix that the server knows, prepared before the vectors are known.
//!
//! **Functionality.** Shares of X (m x k) and the server's W (k x n) -> shares of X W modulo 2^w.
//!
//! **Source.** Delphi (Mishra et al., USENIX Security 2020, eprint 2020/050, section 4.1). Offline the client picks R
//! uniformly and the parties share R W by RLWE ([`matmul::private`]), many rows in one batch. Online the client sends
//! X_c - R; the server multiplies X_s + X_c - R = X - R by W in the clear.
//!
//! **Range.** Any, modulo 2^w. **Error.** That of [`matmul::private`]. The naive twin is the product itself.
//!
//! **Revealed.** Nothing: X_c - R is uniform for the server, and every R is used once.

use he::{MatmulShape, MatmulSpec};
use net::Role;
use rand::Rng;

use crate::Error;
use crate::cost::Cost;
use crate::kernel;
use crate::ops::{matmul, opening, packed};
use crate::session::{Plans, Session};
use crate::weight::WEIGHT_BITS;
use crate::words::mask;

const MASKED: &str = "linear/masked";

/// Rows of one batch of masks: many share the work on the matrix, their number bounds the memory.
pub(crate) fn batch(inputs: usize) -> usize {
    ((1 << 21) / inputs.max(1)).clamp(1, 128)
}

fn spec(rows: usize, inputs: usize, outputs: usize, width: u32) -> MatmulSpec {
    let shape = MatmulShape { batch: 1, m: rows, k: inputs, n: outputs };
    MatmulSpec { shape, width, weight_bits: WEIGHT_BITS }
}

/// Masks for `rows` rows, one after another: the client's r and its share of r W, the server's share of r W. The server
/// passes W row-major.
pub fn prepare(
    s: &mut Session,
    rows: usize,
    inputs: usize,
    outputs: usize,
    width: u32,
    matrix: Option<&[i32]>,
) -> Result<Vec<u64>, Error> {
    let spec = spec(rows, inputs, outputs, width);
    match matrix.filter(|_| s.role() == Role::Server) {
        Some(matrix) => matmul::private(s, spec, matmul::Operand::Server(None, matrix)),
        None => {
            let r: Vec<u64> = (0..rows * inputs).map(|_| s.rng().next_u64() & mask(width)).collect();
            let shares = matmul::private(s, spec, matmul::Operand::Client(&r))?;
            let rows = r.chunks_exact(inputs).zip(shares.chunks_exact(outputs));
            Ok(rows.flat_map(|(r, share)| r.iter().chain(share)).copied().collect())
        }
    }
}

/// Cost of [`prepare`], `offline`.
pub fn prepare_cost(
    plans: &mut Plans,
    rows: usize,
    inputs: usize,
    outputs: usize,
    width: u32,
) -> Result<Cost, Error> {
    Ok(matmul::private_cost(plans, spec(rows, inputs, outputs, width))?.offline())
}

/// What a party brings to [`run`].
pub enum Side<'a> {
    /// The client's share of X.
    Client(&'a [u64]),
    /// The server's share of X, if X is shared, and W row-major.
    Server(Option<&'a [u64]>, &'a [i32]),
}

/// Shares of X W with `masks` from [`prepare`] for as many rows.
pub fn run(
    s: &mut Session,
    inputs: usize,
    outputs: usize,
    width: u32,
    masks: &[u64],
    side: Side<'_>,
) -> Result<Vec<u64>, Error> {
    match side {
        Side::Client(x) => {
            let rows = x.chunks_exact(inputs).zip(masks.chunks_exact(inputs + outputs));
            let masked: Vec<u64> =
                rows.clone().flat_map(|(x, mask)| x.iter().zip(mask).map(|(x, r)| x.wrapping_sub(*r))).collect();
            s.deliver(MASKED, packed::pack(&masked, &[width]))?;
            Ok(rows.flat_map(|(_, mask)| &mask[inputs..]).copied().collect())
        }
        Side::Server(x, matrix) => {
            let count = masks.len() / outputs * inputs;
            let message = s.channel().recv(MASKED, packed::bytes(count, &[width]))?;
            let mut masked = packed::unpack(MASKED, &message, count, &[width])?;
            if let Some(x) = x {
                masked.iter_mut().zip(x).for_each(|(m, x)| *m = m.wrapping_add(*x));
            }
            opening::note(s, "", &masked, &[width]);
            let mut y = kernel::times_matrix(&masked, matrix, inputs, outputs);
            y.iter_mut().zip(masks).for_each(|(y, share)| *y = y.wrapping_add(*share));
            Ok(y)
        }
    }
}

/// Cost of [`run`] on `rows` rows.
pub fn cost(rows: usize, inputs: usize, width: u32) -> Cost {
    Cost::free().message(Role::Client, packed::bytes(rows * inputs, &[width]))
}
