//! Opening a shared value to one party or to both, because the caller's protocol says so.
//!
//! **Functionality.** Shares of x modulo 2^w -> x to the party `to`, nothing to the other ([`reveal`]); or x to both
//! ([`open`]); or x, rounded at random to a multiple of 2^d on a random grid, to the party `to` ([`reveal_rounded`]).
//!
//! **Range.** Any; for [`reveal_rounded`] |x| < 2^(w - 2), and d < w - 1. **Error.** None; for [`reveal_rounded`] below 2^d in
//! magnitude, with mean 0.
//!
//! **Revealed.** x modulo 2^w to `to`, or to both: the low w bits of the share are sent, so that higher bits, which may
//! depend on more than x, never leave.
//!
//! # Rounding what is revealed
//!
//! A product with a weight carries bits below the unit of the result. Truncating it first would not hide them: the
//! receiver knows its own share, so the carry between the low halves of the two shares tells it how x compares with a
//! number that it knows. [`reveal_rounded`] leaves the carry to chance instead. Let c be the share of the receiver, which
//! is uniform, and s that of the sender. The sender draws u uniformly in [0, 2^d) and sends floor((s + u) / 2^d); the
//! receiver adds that multiple of 2^d to c. With t = (x - c) mod 2^d the result is
//!
//! x - t with probability 1 - t / 2^d, and x - t + 2^d with probability t / 2^d:
//!
//! x rounded at random to the grid c + 2^d Z, whose expectation is x. The view of the receiver is a function of c and of
//! this result alone, so it can be simulated from the functionality. One result tells x to about d bits less than a plain
//! opening; the average of many results for the same x tells more, as any rounding with mean 0 does.

use net::Role;
use rand::Rng;

use crate::Error;
use crate::cost::Cost;
use crate::ops::packed;
use crate::session::Session;
use crate::words::mask;

const STEP: &str = "reveal";

/// Opens `x` to `to`, which gets the values reduced modulo 2^`width`.
pub fn reveal(s: &mut Session, x: &[u64], width: u32, to: Role) -> Result<Option<Vec<u64>>, Error> {
    if s.role() != to {
        s.deliver(STEP, packed::pack(x, &[width]))?;
        return Ok(None);
    }
    let message = s.channel().recv(STEP, bytes(x.len(), width))?;
    Ok(Some(added(x, width, &message)?))
}

/// Opens `x` to `to`, rounded at random to a multiple of 2^`drop` away from its own share: see the module. The values
/// are reduced modulo 2^`width`; `drop` < `width`.
pub fn reveal_rounded(
    s: &mut Session,
    x: &[u64],
    width: u32,
    drop: u32,
    to: Role,
) -> Result<Option<Vec<u64>>, Error> {
    let kept = width - drop;
    if s.role() != to {
        let high = x.iter().map(|x| x.wrapping_add(s.rng().next_u64() & mask(drop)) >> drop).collect::<Vec<_>>();
        s.deliver(STEP, packed::pack(&high, &[kept]))?;
        return Ok(None);
    }
    let message = s.channel().recv(STEP, bytes(x.len(), kept))?;
    let high = packed::unpack(STEP, &message, x.len(), &[kept])?;
    Ok(Some(x.iter().zip(high).map(|(x, high)| x.wrapping_add(high << drop) & mask(width)).collect()))
}

/// Opens `x` to both parties, who get the values reduced modulo 2^`width`.
pub fn open(s: &mut Session, x: &[u64], width: u32) -> Result<Vec<u64>, Error> {
    if x.is_empty() {
        return Ok(Vec::new());
    }
    let message = s.channel().exchange(STEP, &packed::pack(x, &[width]), bytes(x.len(), width))?;
    added(x, width, &message)
}

/// The sums of the words with those of the peer's message.
fn added(x: &[u64], width: u32, message: &[u8]) -> Result<Vec<u64>, Error> {
    let theirs = packed::unpack(STEP, message, x.len(), &[width])?;
    Ok(x.iter().zip(theirs).map(|(x, y)| x.wrapping_add(y) & mask(width)).collect())
}

/// Cost of [`open`] of `n` words.
pub fn open_cost(n: usize, width: u32) -> Cost {
    if n == 0 { Cost::free() } else { Cost::free().exchange(bytes(n, width), bytes(n, width)) }
}

/// Cost of [`reveal`] of `n` words.
pub fn cost(n: usize, width: u32, to: Role) -> Cost {
    Cost::free().message(to.peer(), bytes(n, width))
}

/// Cost of [`reveal_rounded`] of `n` words.
pub fn rounded_cost(n: usize, width: u32, drop: u32, to: Role) -> Cost {
    cost(n, width - drop, to)
}

fn bytes(n: usize, width: u32) -> usize {
    packed::bytes(n, &[width])
}
