//! Products of matrices whose weights are the same for a whole vector of coefficients: two multiply-adds a term, and
//! a reduction per [`NEAR`].

use super::*;
use crate::ntt::backend::TILES;

/// Terms between reductions: 16 KiB of weights, which every vector of coefficients reads again, and 16 KiB of
/// coefficients stay in the first-level cache. The number is below [`DOT_BLOCK`], so sums are bounded as those of a
/// dot product are.
const NEAR: usize = 256;

impl IfmaNtt {
    /// Adds the products with T tiles of weights, V vectors of coefficients at a time. The number of vectors is even.
    #[target_feature(enable = "avx512f,avx512ifma")]
    pub(super) fn tiles<const T: usize, const V: usize>(&self, sums: &mut [u64], a: &[u64], w: &[u64]) {
        let (a, w, sums) = (a.as_chunks::<LANES>().0, w.as_chunks::<TILES>().0, sums.as_chunks_mut::<LANES>().0);
        let (terms, vectors) = (w.len(), a.len() / w.len());
        assert!(a.len() == vectors * terms && vectors.is_multiple_of(V) && sums.len() == T * vectors);
        let prime = self.prime();
        for (block, w) in w.chunks(NEAR).enumerate() {
            for (group, a) in a.chunks_exact(V * terms).enumerate() {
                let mut low = [[_mm512_setzero_si512(); V]; T];
                let mut high = low;
                let rows: [&[Lanes]; V] = std::array::from_fn(|v| &a[v * terms + block * NEAR..][..w.len()]);
                for (j, w) in w.iter().enumerate() {
                    for v in 0..V {
                        let a = load(&rows[v][j]);
                        for t in 0..T {
                            let w = every(w[t]);
                            low[t][v] = _mm512_madd52lo_epu64(low[t][v], a, w);
                            high[t][v] = _mm512_madd52hi_epu64(high[t][v], a, w);
                        }
                    }
                }
                for t in 0..T {
                    for v in 0..V {
                        let sum = &mut sums[t * vectors + group * V + v];
                        store(sum, self.add_wide(prime, load(sum), low[t][v], high[t][v]));
                    }
                }
            }
        }
    }
}
