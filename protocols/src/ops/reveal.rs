//! Opening a shared value to one party or to both, because the caller's protocol says so.
//!
//! **Functionality.** Shares of x modulo 2^w -> x to the party `to`, nothing to the other ([`reveal`]); or x to both
//! ([`open`]).
//!
//! **Range.** Any. **Error.** None. **Revealed.** x modulo 2^w to `to`, or to both: the low w bits of the share are sent, so that
//! higher bits, which may depend on more than x, never leave.

use net::Role;

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

fn bytes(n: usize, width: u32) -> usize {
    packed::bytes(n, &[width])
}
