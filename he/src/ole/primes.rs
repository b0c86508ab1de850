//! Plaintext primes.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use crate::modulus::{MAX_MODULUS_BITS, Modulus};
use crate::set::ParamSet;

/// The `count` smallest primes `= 1 mod 2N` that are at least `2^(bits / count)` and do not divide q, or `None` if
/// they exceed 50 bits. A process searches for them once.
pub(super) fn plaintext_primes(set: ParamSet, bits: u32, count: usize) -> Option<Vec<u64>> {
    type Found = HashMap<(ParamSet, u32, usize), Option<Vec<u64>>>;
    static FOUND: LazyLock<Mutex<Found>> = LazyLock::new(Mutex::default);
    // Another thread that panics leaves only whole entries.
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    found.entry((set, bits, count)).or_insert_with(|| find(set, bits, count)).clone()
}

fn find(set: ParamSet, bits: u32, count: usize) -> Option<Vec<u64>> {
    let step = 2 * set.degree() as u64;
    let exponent = f64::from(bits) / count as f64;
    if exponent >= f64::from(MAX_MODULUS_BITS) {
        return None;
    }
    // The ceiling and one more step make up for the rounding of exp2, whose relative error 2^-52 is below one step.
    let lower = exponent.exp2().ceil() as u64;
    let first = (lower / step + 1) * step + 1;
    let candidates = (0..).map(|i| first + i * step).take_while(|p| p >> MAX_MODULUS_BITS == 0);
    let primes: Vec<u64> = candidates.filter(|&p| is_prime(p) && !set.primes().contains(&p)).take(count).collect();
    (primes.len() == count).then_some(primes)
}

/// Miller-Rabin; the first twelve primes as bases decide every 64-bit number (Sorenson and Webster 2015).
fn is_prime(p: u64) -> bool {
    const BASES: [u64; 12] = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37];
    if p < 2 || BASES.iter().any(|&b| p != b && p.is_multiple_of(b)) {
        return false;
    }
    if BASES.contains(&p) {
        return true;
    }
    let m = Modulus::new(p);
    let twos = (p - 1).trailing_zeros();
    BASES.iter().all(|&base| {
        let mut x = m.pow(base, (p - 1) >> twos);
        if x == 1 || x == p - 1 {
            return true;
        }
        (1..twos).any(|_| {
            x = m.mul(x, x);
            x == p - 1
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn primality_agrees_with_trial_division() {
        let slow = |p: u64| p >= 2 && (2..).take_while(|d| d * d <= p).all(|d| !p.is_multiple_of(d));
        assert!((0..20_000).all(|p| is_prime(p) == slow(p)));
        // Carmichael numbers and strong pseudoprimes to base 2.
        assert!([561, 2047, 3_215_031_751, 3_474_749_660_383].iter().all(|&p| !is_prime(p)));
        assert!(ParamSet::ALL.iter().flat_map(|s| s.primes()).all(|&p| is_prime(p)));
    }

    #[test]
    fn plaintext_primes_multiply_to_the_range() {
        for bits in 1..=128 {
            for count in 1..=5 {
                let Some(primes) = plaintext_primes(ParamSet::Full, bits, count) else { continue };
                let log: f64 = primes.iter().map(|&p| (p as f64).log2()).sum();
                assert!(log >= f64::from(bits), "{primes:?}");
                assert!(primes.iter().all(|p| p % 16384 == 1));
            }
        }
    }
}
