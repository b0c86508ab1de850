//! Constant-time arithmetic modulo one word-sized prime.

/// Largest prime size accepted, in bits. `tfhe-ntt` 0.7.1 returns wrong transforms for part of the 51-bit primes.
pub const MAX_MODULUS_BITS: u32 = 50;

/// A prime `p < 2^50` with the constants of the reductions by Barrett and by Shoup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Modulus {
    p: u64,
    /// `floor(2^64 / p)`.
    barrett: u64,
    /// `2^64 mod p` and the second number that Shoup's multiplication takes for it.
    word: Shoup,
}

/// A constant `w < p` with `floor(w 2^64 / p)`, for one multiplication without division (Shoup).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shoup {
    w: u64,
    quotient: u64,
}

impl Shoup {
    /// The constant w.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn value(&self) -> u64 {
        self.w
    }
}

impl Modulus {
    /// `p` must be odd and in `3..2^50`; callers check (see `Params::new`).
    pub(crate) fn new(p: u64) -> Self {
        debug_assert!(p % 2 == 1 && p >= 3 && p >> MAX_MODULUS_BITS == 0);
        // p is odd, so it does not divide 2^64 and floor((2^64 - 1) / p) = floor(2^64 / p).
        let barrett = u64::MAX / p;
        let word = shoup(p, (u64::MAX % p + 1) % p);
        Self { p, barrett, word }
    }

    /// The prime.
    pub fn value(&self) -> u64 {
        self.p
    }

    /// Number of bits of the prime. A residue takes this number of bits on the wire.
    pub fn bits(&self) -> u32 {
        64 - self.p.leading_zeros()
    }

    /// Brings a number in `[0, 2p)` into `[0, p)`.
    #[inline(always)]
    pub(crate) fn correct(&self, x: u64) -> u64 {
        debug_assert!(x < 2 * self.p);
        // For x < p the difference wraps to a value above x.
        x.min(x.wrapping_sub(self.p))
    }

    /// Reduces any word into `[0, p)`.
    #[inline(always)]
    pub(crate) fn reduce(&self, x: u64) -> u64 {
        // The estimated quotient q satisfies x/p - 2 < q <= x/p, so the remainder lies in [0, 2p).
        let q = ((u128::from(x) * u128::from(self.barrett)) >> 64) as u64;
        self.correct(x.wrapping_sub(q.wrapping_mul(self.p)))
    }

    /// Reduces any double word into `[0, p)`.
    #[inline(always)]
    pub(crate) fn reduce_wide(&self, x: u128) -> u64 {
        // x = hi 2^64 + lo; both summands below are in [0, 2p).
        let hi = self.mul_shoup_lazy((x >> 64) as u64, self.word);
        self.correct(self.correct(hi) + self.reduce(x as u64))
    }

    /// The sum modulo p of two residues in `[0, p)`.
    #[inline(always)]
    pub(crate) fn add(&self, a: u64, b: u64) -> u64 {
        self.correct(a + b)
    }

    /// The difference modulo p of two residues in `[0, p)`.
    #[inline(always)]
    pub(crate) fn sub(&self, a: u64, b: u64) -> u64 {
        self.correct(a + self.p - b)
    }

    /// The product of any two words modulo p, in `[0, p)`.
    #[inline(always)]
    pub(crate) fn mul(&self, a: u64, b: u64) -> u64 {
        self.reduce_wide(u128::from(a) * u128::from(b))
    }

    /// Prepares the constant `w < p` for [`Self::mul_shoup`].
    pub(crate) fn shoup(&self, w: u64) -> Shoup {
        shoup(self.p, w)
    }

    /// The product of any word with a prepared constant modulo p, in `[0, p)`.
    #[inline(always)]
    pub(crate) fn mul_shoup(&self, x: u64, w: Shoup) -> u64 {
        self.correct(self.mul_shoup_lazy(x, w))
    }

    /// The product of any word with a prepared constant modulo p, in `[0, 2p)`.
    #[inline(always)]
    pub(crate) fn mul_shoup_lazy(&self, x: u64, w: Shoup) -> u64 {
        // 0 <= x w / p - x quotient / 2^64 < x / 2^64 < 1, so flooring loses less than two multiples of p.
        let q = ((u128::from(x) * u128::from(w.quotient)) >> 64) as u64;
        x.wrapping_mul(w.w).wrapping_sub(q.wrapping_mul(self.p))
    }

    /// Reduces a signed word into `[0, p)`, without a branch on its sign.
    #[inline(always)]
    pub(crate) fn reduce_signed(&self, x: i64) -> u64 {
        // As unsigned, a negative x reads x + 2^64.
        let wrap = ((x >> 63) as u64) & self.word.w;
        self.sub(self.reduce(x as u64), wrap)
    }

    /// Brings a number in `(-p, p)` into `[0, p)`, without a branch on its sign.
    #[inline(always)]
    pub(crate) fn lift_small(&self, x: i64) -> u64 {
        debug_assert!(x.unsigned_abs() < self.p);
        x.wrapping_add(self.p as i64 & (x >> 63)) as u64
    }

    /// `base^exponent mod p`; for constants only (variable time in the exponent).
    pub(crate) fn pow(&self, base: u64, mut exponent: u64) -> u64 {
        let (mut square, mut result) = (self.reduce(base), 1);
        while exponent != 0 {
            if exponent & 1 == 1 {
                result = self.mul(result, square);
            }
            square = self.mul(square, square);
            exponent >>= 1;
        }
        result
    }

    /// `x^-1 mod p` for `x` not divisible by `p`; for constants only.
    pub(crate) fn inverse(&self, x: u64) -> u64 {
        self.pow(x, self.p - 2)
    }
}

fn shoup(p: u64, w: u64) -> Shoup {
    debug_assert!(w < p);
    Shoup { w, quotient: ((u128::from(w) << 64) / u128::from(p)) as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PRIMES: [u64; 4] = [0x3ffffff70001, 0x3ffffffdf0001, 12289, 3];

    fn check(x: u128, y: i64) {
        for p in PRIMES {
            let m = Modulus::new(p);
            assert_eq!(u128::from(m.reduce_wide(x)), x % u128::from(p));
            assert_eq!(m.reduce(x as u64), (x as u64) % p);
            assert_eq!(i128::from(m.reduce_signed(y)), i128::from(y).rem_euclid(i128::from(p)));
            let small = y % p as i64;
            assert_eq!(i128::from(m.lift_small(small)), i128::from(small).rem_euclid(i128::from(p)));
            let w = (x >> 64) as u64 % p;
            assert_eq!(
                u128::from(m.mul_shoup(x as u64, m.shoup(w))),
                (x & u128::from(u64::MAX)) * u128::from(w) % u128::from(p)
            );
        }
    }

    #[test]
    fn reductions_at_the_edges() {
        for p in PRIMES {
            let p = u128::from(p);
            for x in [0, 1, p - 1, p, p + 1, 2 * p - 1, (p - 1) * (p - 1), u128::MAX, u128::from(u64::MAX)] {
                for y in [0, -1, 1, i64::MIN, i64::MAX, -(p as i64), p as i64] {
                    check(x, y);
                }
            }
            let m = Modulus::new(p as u64);
            assert_eq!(m.mul(m.inverse(2), 2), 1);
        }
    }

    proptest! {
        #[test]
        fn reductions_agree_with_division(x: u128, y: i64) {
            check(x, y);
        }
    }
}
