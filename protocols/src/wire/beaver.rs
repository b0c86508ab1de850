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
use waggle_he::MatmulShape;

use crate::session::Session;
use crate::times;
use crate::words::mask;

/// This party's share of random words modulo 2^`width`.
pub(crate) fn random(s: &mut Session, count: usize, width: u32) -> Vec<u64> {
    (0..count).map(|_| s.rng().next_u64() & mask(width)).collect()
}

pub(crate) fn minus(x: &[u64], a: impl IntoIterator<Item = u64>) -> impl Iterator<Item = u64> {
    x.iter().zip(a).map(|(x, a)| x.wrapping_sub(a))
}

/// This party's share of x y for every product of `shape`: (x - a) (y - b) + (x - a) b + a (y - b) + a b. Each factor
/// comes as its opened difference and this party's share of its mask; `ab` is this party's share of a b.
pub(crate) fn open_products(
    MatmulShape { batch, m, k, n }: MatmulShape,
    server: bool,
    [d, a]: [&[u64]; 2],
    [e, b]: [&[u64]; 2],
    ab: &[u64],
) -> Vec<u64> {
    let mut out = ab.to_vec();
    for item in 0..batch {
        let (left, right) = (item * m * k..(item + 1) * m * k, item * k * n..(item + 1) * k * n);
        let (e, b) = (&e[right.clone()], &b[right]);
        let sum: Vec<u64> =
            if server { e.iter().zip(b).map(|(e, b)| e.wrapping_add(*b)).collect() } else { b.to_vec() };
        let terms = [times::times_words(&d[left.clone()], &sum, k, n), times::times_words(&a[left], e, k, n)];
        for terms in terms {
            let out = &mut out[item * m * n..(item + 1) * m * n];
            out.iter_mut().zip(terms).for_each(|(out, term)| *out = out.wrapping_add(term));
        }
    }
    out
}
