//! Products of matrices whose weights are the same for a whole vector of coefficients, on halves of residues: three
//! fused multiply-adds a term, and a reduction per [`exact_terms`].

use super::*;
use crate::ntt::backend::{TILES, exact_terms};

impl FloatNtt {
    /// Adds the products with T tiles of weights, V vectors of coefficients at a time. The number of vectors is even.
    ///
    /// With `a = a1 2^s + a0` and w alike, `a w = h 4^s + (m - h - l) 2^s + l` of the products `h = a1 w1`,
    /// `l = a0 w0` and `m = (a0 + a1) (w0 + w1)` (Karatsuba). Halves are at most `2^(s-1)`, so [`exact_terms`] of
    /// these products stay within `2^53`: plain sums in double precision are exact, and only they are reduced. There
    /// h and l are below `2^51`, the middle below `2^52`, so the two products of [`mul_mod`] are below p, and all
    /// with the sum below p add up to less than `3 p + 2^51 < 2^53`.
    #[target_feature(enable = "avx512f,avx512dq")]
    pub(super) fn tiles<const T: usize, const V: usize>(&self, sums: &mut [u64], a: &[u64], w: &[u64]) {
        let terms = w.len() / (PARTS * TILES);
        let vectors = a.len() / (terms * LANES);
        assert!(w.len() == terms * PARTS * TILES && a.len() == vectors * terms * LANES);
        assert!(vectors.is_multiple_of(V) && sums.len() == T * vectors * LANES);
        let p = self.tables.modulus;
        let (prime, halves) = (Prime::new(p.value()), Halves::new(p.value()));
        let power = |bits: u32| factor(p.value(), p.pow(2, u64::from(bits)));
        let s = half_bits(p.value());
        let units = [power(s), power(2 * s)];
        let [middle_unit, high_unit] = units.map(|[w, quotient]| [_mm512_set1_pd(w), _mm512_set1_pd(quotient)]);
        let block = exact_terms(p.value());
        // Weights of a block, 24 KiB of them, stay in the first cache for all vectors.
        for (begin, w) in (0..terms).step_by(block).zip(w.chunks(block * PARTS * TILES)) {
            for (group, a) in a.chunks_exact(V * terms * LANES).enumerate() {
                let mut low = [[_mm512_setzero_pd(); V]; T];
                let mut high = low;
                let mut middle = low;
                let rows: [&[u64]; V] = std::array::from_fn(|v| &a[(v * terms + begin) * LANES..]);
                for (j, w) in w.chunks_exact(PARTS * TILES).enumerate() {
                    for v in 0..V {
                        let [a0, a1, sum] = halves.split(load(&rows[v].as_chunks().0[j]));
                        for t in 0..T {
                            low[t][v] = _mm512_fmadd_pd(a0, every(w[t]), low[t][v]);
                            high[t][v] = _mm512_fmadd_pd(a1, every(w[TILES + t]), high[t][v]);
                            middle[t][v] = _mm512_fmadd_pd(sum, every(w[2 * TILES + t]), middle[t][v]);
                        }
                    }
                }
                for t in 0..T {
                    for v in 0..V {
                        let (l, h) = (low[t][v], high[t][v]);
                        let cross = _mm512_sub_pd(_mm512_sub_pd(middle[t][v], l), h);
                        let upper = _mm512_add_pd(mul_mod(prime, h, high_unit), mul_mod(prime, cross, middle_unit));
                        let sum = &mut sums.as_chunks_mut().0[t * vectors + group * V + v];
                        store(sum, canonical(prime, _mm512_add_pd(load_integers(sum), _mm512_add_pd(upper, l))));
                    }
                }
            }
        }
    }
}
