//! Arithmetic modulo a prime in double precision, alike for vectors of any width. The bounds are proven in
//! [`float`](super::float).

/// The arithmetic on vectors `$vector`, whose instructions `$features` enable, by their intrinsics.
macro_rules! arithmetic {
    ($vector:ident, $features:literal, $splat:ident, $mul:ident, $add:ident, $sub:ident, $fmadd:ident, $fmsub:ident,
     $fnmadd:ident) => {
        /// The numbers p, 1 / p and [`ROUND`] in every lane. A value of this type proves that the processor has the
        /// features that the arithmetic needs.
        #[derive(Clone, Copy)]
        struct Prime {
            p: $vector,
            inverse: $vector,
            magic: $vector,
        }

        impl Prime {
            #[inline]
            #[target_feature(enable = $features)]
            fn new(p: u64) -> Self {
                let p = p as f64;
                Prime { p: $splat(p), inverse: $splat(1.0 / p), magic: $splat(ROUND) }
            }
        }

        /// `v w mod p`, within the bounds that [`float`](super::float) proves for one product.
        #[inline]
        #[target_feature(enable = $features)]
        fn mul_mod(prime: Prime, v: $vector, [w, quotient]: [$vector; 2]) -> $vector {
            let h = $mul(v, w);
            let l = $fmsub(v, w, h);
            let q = rounded_product(prime, v, quotient);
            $add($fnmadd(q, prime.p, h), l)
        }

        /// `x y` rounded to an integer, for a product below `2^51`.
        #[inline]
        #[target_feature(enable = $features)]
        fn rounded_product(prime: Prime, x: $vector, y: $vector) -> $vector {
            $sub($fmadd(x, y, prime.magic), prime.magic)
        }

        /// The residue of x with an absolute value of at most `p / 2 + 1`, for `|x| < 2^53`.
        #[inline]
        #[target_feature(enable = $features)]
        fn centre(prime: Prime, x: $vector) -> $vector {
            $fnmadd(rounded_product(prime, x, prime.inverse), prime.p, x)
        }

        /// The residue of x in `[0, p)` as a word, for `|x| < 2^53`.
        #[inline]
        #[target_feature(enable = $features)]
        fn canonical(prime: Prime, x: $vector) -> $vector {
            lifted(prime, centre(prime, x))
        }

        /// `a b mod p` for |a|, |b| < p: the quotient is below `2^50` and off by less than 1/4 before rounding, so
        /// the result is an integer of absolute value at most 3/4 p, up to the exact remainder of the rounded product
        /// below `2^47`.
        #[inline]
        #[target_feature(enable = $features)]
        fn multiply(prime: Prime, a: $vector, b: $vector) -> $vector {
            let h = $mul(a, b);
            let q = rounded_product(prime, h, prime.inverse);
            $add($fnmadd(q, prime.p, h), $fmsub(a, b, h))
        }

        /// Doubles per weight of a product of matrices: what [`Halves::split`] returns.
        const PARTS: usize = 3;

        /// Constants that split integers of up to twice [`half_bits`] bits, sign included, into two halves.
        #[derive(Clone, Copy)]
        struct Halves {
            unit: $vector,
            inverse: $vector,
            magic: $vector,
        }

        impl Halves {
            #[inline]
            #[target_feature(enable = $features)]
            fn new(p: u64) -> Self {
                let unit = f64::from(half_bits(p)).exp2();
                Halves { unit: $splat(unit), inverse: $splat(1.0 / unit), magic: $splat(ROUND) }
            }

            /// The lower half, which is centred on zero, the upper half, and the sum of both.
            #[inline]
            #[target_feature(enable = $features)]
            fn split(self, x: $vector) -> [$vector; PARTS] {
                let upper = $sub($fmadd(x, self.inverse, self.magic), self.magic);
                let lower = $fnmadd(upper, self.unit, x);
                [lower, upper, $add(lower, upper)]
            }
        }

        /// The double that `word` holds, in all lanes.
        #[inline]
        #[target_feature(enable = $features)]
        fn every(word: u64) -> $vector {
            $splat(f64::from_bits(word))
        }
    };
}
pub(super) use arithmetic;
