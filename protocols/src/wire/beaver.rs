//! Products with prepared random factors (Beaver's triples, CRYPTO 1991).
//!
//! ```text
//! offline:  share random a, b and a b
//! online:   open d = x - a and e = y - b in one exchange
//!           x y = d e + d b + a e + a b
//! ```
//!
//! d and e are uniform, because every a and b is used once.

use rand::Rng;

use crate::kernel;
use crate::session::Session;
use crate::words::mask;

/// This party's share of random words modulo 2^`width`.
pub(crate) fn random(s: &mut Session, count: usize, width: u32) -> Vec<u64> {
    (0..count).map(|_| s.rng().next_u64() & mask(width)).collect()
}

pub(crate) fn minus(x: &[u64], a: impl IntoIterator<Item = u64>) -> impl Iterator<Item = u64> {
    x.iter().zip(a).map(|(x, a)| x.wrapping_sub(a))
}

/// (x - a) (y - b) + (x - a) b + a (y - b) + a b for one product m x k x n. Each factor comes as its opened
/// difference and its mask; `ab` is this party's share of a b.
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
