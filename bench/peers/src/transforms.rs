//! Transforms of polynomials modulo X^N + 1 and a prime, on one core.

use waggle_he::{NttBackend, ParamSet};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::{Row, median, timed};

/// Transforms in one timed run.
const REPEAT: usize = 400;

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for set in [ParamSet::Small, ParamSet::Full] {
        let (n, prime) = (set.degree(), set.primes()[0]);
        let mut rng = StdRng::seed_from_u64(1);
        let poly: Vec<u64> = (0..n).map(|_| rng.random_range(0..prime)).collect();
        let bits = 64 - prime.leading_zeros();
        for (side, ntt) in ours(n, prime) {
            let back = |values: &mut [u64]| ntt.inv(values);
            rows.extend(both(side, n, bits, &poly, |values| ntt.fwd(values), back, &scale_one));
        }
        #[cfg(feature = "peer-concrete-ntt")]
        {
            let plan = concrete_ntt::prime64::Plan::try_new(n, prime).expect("a prime of a parameter set");
            // Its inverse leaves the factor N.
            let unscale = |values: &mut [u64]| plan.normalize(values);
            let (forward, inverse) = (|values: &mut [u64]| plan.fwd(values), |values: &mut [u64]| plan.inv(values));
            rows.extend(both("concrete-ntt 0.2.0", n, bits, &poly, forward, inverse, &unscale));
        }
    }
    rows
}

/// Our transforms are inverses of each other.
fn scale_one(_: &mut [u64]) {}

/// The backends of this processor by name.
fn ours(n: usize, prime: u64) -> impl Iterator<Item = (&'static str, Box<dyn NttBackend>)> {
    let side = |name| match name {
        "ifma" => "Waggle, IFMA",
        "float" => "Waggle, AVX-512",
        "float256" => "Waggle, AVX2",
        _ => "Waggle, portable (tfhe-ntt 0.7.1)",
    };
    let all = waggle_he::backends(n, prime).expect("a prime of a parameter set");
    all.into_iter().map(move |ntt| (side(ntt.name()), ntt))
}

/// Rows of both directions. The polynomial must come back.
fn both(
    side: &'static str,
    n: usize,
    bits: u32,
    poly: &[u64],
    forward: impl Fn(&mut [u64]),
    inverse: impl Fn(&mut [u64]),
    unscale: &dyn Fn(&mut [u64]),
) -> [Row; 2] {
    let mut values = poly.to_vec();
    forward(&mut values);
    inverse(&mut values);
    unscale(&mut values);
    assert_eq!(values, poly, "{side}, N = {n}");
    // Values are reduced after either direction, hence an input of the next call.
    let mut run = |transform: &dyn Fn(&mut [u64])| {
        median(REPEAT, || timed(|| (0..REPEAT).for_each(|_| transform(std::hint::black_box(&mut values)))).1)
    };
    let row = |name: &str, seconds| Row {
        what: format!("{name} transform, N = {n}, {bits} bits, one core"),
        side,
        seconds,
        bytes: None,
    };
    [row("forward", run(&forward)), row("inverse", run(&inverse))]
}
