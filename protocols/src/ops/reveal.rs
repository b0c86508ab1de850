//! Opening a shared value to one party, because the caller's protocol says so.
//!
//! **Functionality.** Shares of x modulo 2^w -> x to the party `to`, nothing to the other.
//!
//! **Range.** Any. **Error.** None. **Revealed.** x modulo 2^w to `to`: the low w bits of the share are sent, so that
//! higher bits, which may depend on more than x, never leave.

use net::Role;
use ot::Bits;

use crate::Error;
use crate::cost::Cost;
use crate::session::Session;
use crate::words::mask;

const STEP: &str = "reveal";

/// Opens `x` to `to`, which gets the values reduced modulo 2^`width`.
pub fn reveal(s: &mut Session, x: &[u64], width: u32, to: Role) -> Result<Option<Vec<u64>>, Error> {
    if s.role() != to {
        let low: Vec<u64> = x.iter().map(|x| x & mask(width)).collect();
        s.deliver(STEP, Bits::from_values(&low, width).to_bytes())?;
        return Ok(None);
    }
    let bytes = s.channel().recv(STEP, bytes(x.len(), width))?;
    let theirs = Bits::from_bytes(STEP, &bytes, x.len() * width as usize)?;
    let value =
        |i: usize| (0..width as usize).fold(0, |value, bit| value | theirs.get(i * width as usize + bit) << bit);
    Ok(Some(x.iter().enumerate().map(|(i, x)| x.wrapping_add(value(i)) & mask(width)).collect()))
}

/// Cost of [`reveal`] of `n` words.
pub fn cost(n: usize, width: u32, to: Role) -> Cost {
    Cost::free().message(to.peer(), bytes(n, width))
}

fn bytes(n: usize, width: u32) -> usize {
    (n * width as usize).div_ceil(8)
}
