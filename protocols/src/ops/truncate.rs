//! Truncation with change of ring, for values whose sign can be made known.
//!
//! **Functionality.** Shares of x modulo 2^w -> shares of x / 2^s modulo 2^o, with w, s, o of [`Truncation`].
//!
//! **Source.** One-bit-error truncation with known most significant bit (BumbleBee, eprint 2023/1678, section on
//! truncation; Cheetah, eprint 2022/207, section 4.3).
//!
//! ```text
//! x' = x + 2^(w-2) - [s > 0], which lies in [0, 2^(w-1))
//! a, b = the top bits of the shares x_0' and x_1'
//! wrap = a or b = a + b - a b
//! x / 2^s ~ (x_0' >> s) + (x_1' >> s) - wrap 2^(w-s) + [s > 0] - (2^(w-2) >> s)
//! ```
//!
//! The shares of x' wrap around 2^w exactly if at least one of them has its top bit set. Sharing a b takes **one**
//! correlated OT of u = o - w + s bits, since wrap counts 2^(w-s) modulo 2^o. With u <= 0 nothing is sent.
//!
//! *Prepared.* a is a bit of the server, and b one of the client. Offline, the server draws a bit alpha and the
//! client a bit beta, and they share alpha beta by a random correlated OT (`Wrap`). Online, both open their bits
//! under these masks at once, a' = a ^ alpha and b' = b ^ beta (Beaver, CRYPTO 1991):
//!
//! a b = a b' + (1 - 2 b') (a' beta + (1 - 2 a') alpha beta)
//!
//! So a truncation is one exchange of a bit.
//!
//! **Range.** |x| < 2^(w-2). Other words give wrong results, but never above [`ceiling`]. **Error.** The sum of
//! `x_0' >> s` and `x_1' >> s` misses the carry of the low halves, and one is added for it. There is no carry with
//! probability (x' mod 2^s + 1) / 2^s over the choice of shares. So the result is one of the two neighbours of
//! x / 2^s at random, and x / 2^s on average, because x' is one less than the shifted x. Sums need that: without the
//! one, every term would be too large by 2^-s on average, and thousands of probabilities that lose three bits would
//! have a sum well above 1. A multiple of 2^s is exact, and so is all for s = 0.
//!
//! **Revealed.** Nothing. Opened bits are masked by bits that are uniform and mask nothing else.

use rand::Rng;
use serde::{Deserialize, Serialize};
use waggle_ot::Bits;

use crate::deal::dealing::{Dealing, in_range};
use crate::operation::prelude::*;
use crate::ops::BATCH_OTS;
use crate::wire::{cross, opening};

/// A signed truncation with change of ring: from words modulo 2^`width` to words modulo 2^`out`.
///
/// Range: |x| < 2^(width-2). Result: x / 2^shift rounded to one of the two neighbouring integers (floor(x / 2^shift)
/// or that plus 1; exact when `shift` is 0), modulo 2^`out`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truncation {
    /// Bits of the ring of the input, 3..=64.
    pub width: u32,
    /// Bits dropped, less than `width - 1`.
    pub shift: u32,
    /// Bits of the ring of the result, 1..=64.
    pub out: u32,
}

impl Truncation {
    fn check(self) {
        let Truncation { width, shift, out } = self;
        assert!((3..=64).contains(&width) && shift < width - 1 && (1..=64).contains(&out), "{self:?}");
    }
}

impl Operation for Truncation {
    entrywise!(Words -> Words);

    fn correlations(&self, shape: &Vec<usize>, options: &Options) -> Option<Need> {
        let (n, bits) = (shape.iter().product(), wrap_bits(*self).filter(|_| options.preprocess)?);
        (n > 0).then(|| Need::new(Wrap { bits }, n))
    }

    fn cost(&self, shape: &Vec<usize>, prepared: bool, _: &mut Plans) -> Result<Cost, Error> {
        let n: usize = shape.iter().product();
        Ok(if prepared { prepared_cost(n) } else { cost(n, *self) })
    }

    fn run(&self, s: &mut Session, x: &ArrayD<u64>, correlations: Option<&[u64]>) -> Result<ArrayD<u64>, Error> {
        let mut words = flat(x);
        match correlations {
            Some(wraps) => {
                let bits = wrap_bits(*self).unwrap_or_default();
                truncate_by(s, &mut words, *self, |s, tops| prepared(s, tops, wraps, bits))?;
            }
            None => truncate(s, &mut words, *self)?,
        }
        Ok(shaped(x.shape(), words))
    }

    /// Rounds to nearest.
    fn reference(&self, reference: &mut Reference, x: &ArrayD<u64>) -> Result<ArrayD<u64>, Error> {
        self.check();
        let rounded = reference.rounded("truncate", x, self.width, self.shift)?;
        Ok(rounded.mapv(|v| signed(v as u64, self.out) as u64))
    }
}

/// A random bit of the server, a random bit of the client, and shares of their product modulo 2^`bits`. A party's
/// word holds its bit at the lowest position, and its share above. Unit: a word to truncate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wrap {
    /// Bits of the ring of the product, 1..=63.
    pub bits: u32,
}

const WRAP: &str = "truncate/wraps";
const TOPS: &str = "truncate/tops";

impl Wrap {
    fn products(&self, n: usize) -> waggle_ot::CotShape {
        waggle_ot::CotShape::new(n, 1, &[self.bits]).expect("a width of 1..=63")
    }
}

impl Correlation for Wrap {
    fn dealt_words(&self) -> Option<u64> {
        // A word of 64 bits has no bit to wrap into.
        in_range(self.bits + u32::from(self.bits == 64), 1)
    }

    fn deal(&self, d: &mut Dealing<'_>, n: usize) -> Result<[Vec<u64>; 2], Error> {
        let client = d.draw(Role::Client, n, self.bits + 1);
        let own = d.draw(Role::Server, n, 1);
        let shares = d.give(Role::Server, n, &[self.bits], || {
            client.iter().zip(&own).map(|(word, own)| (word & own).wrapping_sub(word >> 1)).collect()
        })?;
        let server = own.iter().zip(shares).map(|(bit, share)| share << 1 | bit).collect();
        Ok([client, server])
    }

    fn scope(&self) -> &'static str {
        "truncations"
    }

    fn words(&self, _: Role) -> usize {
        1
    }

    fn batch(&self, _: &Options) -> usize {
        BATCH_OTS
    }

    fn cost(&self, _: &mut Plans, n: usize) -> Result<Cost, Error> {
        let products = self.products(n);
        let cost = Cost::free().cots(Role::Server, n).supplies(Role::Server, &products);
        Ok(cost.message(Role::Server, products.message_bytes()).chooses(Role::Client, &products).offline())
    }

    fn make(&self, s: &mut Session, n: usize, _: &mut Pipeline<'_>) -> Result<Vec<u64>, Error> {
        let products = self.products(n);
        s.offline(|s| {
            s.reserve(Role::Server, n)?;
            let (own, shares): (Vec<u64>, Vec<u64>) = match s.role() {
                Role::Server => {
                    let keys = s.sender().random(n)?;
                    let drawn: Vec<u64> = (0..n.div_ceil(64)).map(|_| s.rng().next_u64()).collect();
                    let own: Vec<u64> = (0..n).map(|i| drawn[i / 64] >> (i % 64) & 1).collect();
                    let (message, shares) = keys.correlate(&products, &own)?;
                    s.deliver(WRAP, message)?;
                    (own, shares)
                }
                Role::Client => {
                    let (own, keys) = s.receiver().random(n)?;
                    let message = s.channel().recv(WRAP, products.message_bytes())?;
                    ((0..n).map(|i| own.get(i)).collect(), keys.decorrelate(&products, &message)?)
                }
            };
            Ok(own.iter().zip(shares).map(|(bit, share)| (share & mask(self.bits)) << 1 | bit).collect())
        })
    }
}

/// Shares of a b for the server's bits a and the client's bits b. `own` are this party's bits. Each product uses up
/// one of `wraps`, whose shares have `bits` bits.
pub(super) fn prepared(s: &mut Session, own: &[u64], wraps: &[u64], bits: u32) -> Result<Vec<u64>, Error> {
    assert_eq!(own.len(), wraps.len(), "a correlation for every word");
    opening::spend(s, "", wraps.iter().copied(), &[bits + 1])?;
    let masked: Vec<u64> = own.iter().zip(wraps).map(|(top, wrap)| (top ^ wrap) & 1).collect();
    let bytes = waggle_bits::packed_bytes(own.len(), &[1]);
    let message = s.channel().exchange(TOPS, &waggle_bits::pack(&masked, &[1]), bytes)?;
    let theirs = waggle_bits::unpack(TOPS, &message, own.len(), &[1])?;
    let (server, client) = if s.is_server() { (&masked, &theirs) } else { (&theirs, &masked) };
    let opened: Vec<u64> = server.iter().zip(client).map(|(a, b)| a << 1 | b).collect();
    opening::note(s, "", 0, &opened, &[2]);
    let sign = |bit: u64| 1u64.wrapping_sub(bit << 1);
    let is_server = s.is_server();
    let items = opened.iter().zip(own).zip(wraps);
    Ok(items
        .map(|((opened, own), wrap)| {
            let (a, b) = (opened >> 1, opened & 1);
            let product = sign(a).wrapping_mul(sign(b)).wrapping_mul(wrap >> 1);
            let known = if is_server { own * b } else { sign(b).wrapping_mul(a * (wrap & 1)) };
            product.wrapping_add(known)
        })
        .collect())
}

pub(super) fn prepared_cost(n: usize) -> Cost {
    let bytes = waggle_bits::packed_bytes(n, &[1]);
    Cost::free().exchange(bytes, bytes).work_at_both(Kernel::OpenWord, n)
}

/// Truncates the shares `x` in place; the result is modulo 2^`how.out`.
pub(crate) fn truncate(s: &mut Session, x: &mut [u64], how: Truncation) -> Result<(), Error> {
    let n = x.len();
    truncate_by(s, x, how, |s, tops| match shape(n, how) {
        None => Ok(Vec::new()),
        Some(shape) => cross::one_way(s, &shape, || Bits::from_fn(n, |i| tops[i] == 1), || tops.to_vec()),
    })
}

/// Truncates as [`truncate`] does. If there is a wrap to correct, `both` is called with this party's top bits and
/// returns shares of a b.
fn truncate_by(
    s: &mut Session,
    x: &mut [u64],
    how: Truncation,
    both: impl FnOnce(&mut Session, &[u64]) -> Result<Vec<u64>, Error>,
) -> Result<(), Error> {
    how.check();
    let Truncation { width, shift, .. } = how;
    let offset = 1u64 << (width - 2);
    let carry = u64::from(shift > 0);
    let server = s.role() == Role::Server;
    if server {
        x.iter_mut().for_each(|x| *x = x.wrapping_add(offset - carry));
    }
    x.iter_mut().for_each(|x| *x &= mask(width));
    if wrap_bits(how).is_some() {
        // This party's own top bit is its share of a + b.
        let tops: Vec<u64> = x.iter().map(|x| x >> (width - 1)).collect();
        let both = both(s, &tops)?;
        for ((x, top), both) in x.iter_mut().zip(tops).zip(both) {
            *x = (*x >> shift).wrapping_sub(top.wrapping_sub(both) << (width - shift));
        }
    } else {
        x.iter_mut().for_each(|x| *x >>= shift);
    }
    if server {
        let correction = carry.wrapping_sub(offset >> shift);
        x.iter_mut().for_each(|x| *x = x.wrapping_add(correction));
    }
    Ok(())
}

/// The largest magnitude that `how` returns to a ring of 64 bits, for any input, in range or not.
///
/// The result is q + c - 2^(w-2-s). Here q = (x_0' >> s) + (x_1' >> s) - wrap 2^(w-s), c is 0 or 1, and wrap is the
/// "or" of the shares' top bits. Without a wrap both shares are below 2^(w-1), so 0 <= q <= 2^(w-s) - 2. With a wrap
/// one share is at least 2^(w-1) and both are below 2^w, so -2^(w-s-1) <= q <= 2^(w-s) - 2. The result therefore lies
/// within 3/4 2^(w-s) of zero.
pub fn ceiling(how: Truncation) -> u64 {
    let Truncation { width, shift, out } = how;
    assert!(out == 64 && shift < width - 1 && width - shift < 64, "{how:?}");
    3 << (width - shift - 2)
}

pub(crate) fn cost(n: usize, how: Truncation) -> Cost {
    shape(n, how).map_or_else(Cost::free, |shape| cross::one_way_cost(&shape))
}

/// Bits of the ring in which a wrap counts: it is worth 2^(width - shift) modulo 2^out. `None` if this is 0, so that
/// a wrap does not count.
fn wrap_bits(how: Truncation) -> Option<u32> {
    (how.out + how.shift).checked_sub(how.width).filter(|&bits| bits > 0)
}

/// The correlated OTs needed, if any.
fn shape(n: usize, how: Truncation) -> Option<waggle_ot::CotShape> {
    let bits = wrap_bits(how).filter(|_| n > 0)?;
    Some(waggle_ot::CotShape::new(n, 1, &[bits]).expect("a width of 1..=63"))
}
