//! The trait of a backend, with portable code for everything but the transforms, and the sizes by which callers lay
//! out data.

use crate::modulus::Modulus;
use std::fmt::Debug;
use zeroize::Zeroizing;

/// Number of coefficients in one vector of words of [`NttBackend::matmul`].
pub(crate) const LANES: usize = 8;
/// The words of one vector of [`LANES`] coefficients.
#[cfg(target_arch = "x86_64")]
pub(super) type Lanes = [u64; LANES];
/// Number of columns of weights that [`NttBackend::matmul`] takes at a time.
pub(crate) const TILES: usize = 8;
/// Smallest degree of a subring that [`NttBackend::fwd_factor`] takes.
pub(crate) const MIN_POINTS: usize = 64;

/// The double-precision `matmul` splits residues modulo p into two halves. This is the number of bits of the lower
/// half, which is centred on zero.
pub(crate) fn half_bits(p: u64) -> u32 {
    (u64::BITS - p.leading_zeros()).div_ceil(2)
}

/// Number of products of two halves, or of two sums of both halves, that double precision adds up exactly.
pub(crate) fn exact_terms(p: u64) -> usize {
    1 << (f64::MANTISSA_DIGITS - 2 * half_bits(p))
}

/// The sums to which a product of matrices adds, and its right operand.
#[derive(Debug)]
pub struct Product<'a> {
    /// Sums, which are residues in `[0, p)` before and after.
    pub sums: &'a mut [u64],
    /// Weights in the form of [`NttBackend::weigh`]. They have `TILES` columns, even if `sums` has fewer.
    pub weights: &'a [u64],
}

/// Arithmetic in `Z_p[X] / (X^N + 1)` for one prime p. All backends order the transformed coefficients as `tfhe-ntt`
/// does, because transformed polynomials travel between parties.
pub trait NttBackend: Send + Sync + Debug {
    /// The backend's name in measurements.
    fn name(&self) -> &'static str;

    /// The prime p.
    fn modulus(&self) -> &Modulus;

    /// Transforms coefficients in `[0, p)` in place. The results are in `[0, p)`.
    fn fwd(&self, poly: &mut [u64]);

    /// The transform of coefficients in `(-p, p)`. Coefficients that are not given are zero, and the number of given
    /// ones is a multiple of 64.
    fn fwd_signed(&self, out: &mut [u64], signed: &[i64]);

    /// `x[i] = x[i] + e[i] mod p` for residues x and numbers e in `(-p, p)`.
    fn add_signed(&self, x: &mut [u64], e: &[i64]) {
        let p = self.modulus();
        x.iter_mut().zip(e).for_each(|(x, &e)| *x = p.add(*x, p.lift_small(e)));
    }

    /// The inverse of [`Self::fwd`], including the division by N: `[0, p) -> [0, p)`.
    fn inv(&self, poly: &mut [u64]);

    /// Brings transformed residues in `[0, p)` into the form that [`Self::dot`] takes, in place. The form is the
    /// backend's own.
    fn factor(&self, _poly: &mut [u64]) {}

    /// As [`Self::fwd_signed`], with the result in the form of [`Self::factor`].
    ///
    /// `out` may be shorter than N by a power of two r, down to `MIN_POINTS`: then `signed` gives u of the
    /// polynomial `u(X^r)`, whose transform holds every entry of `out` r times in a row.
    fn fwd_factor(&self, out: &mut [u64], signed: &[i64]);

    /// Number of words of a weight in the form that [`Self::matmul`] takes.
    fn weight_words(&self) -> usize {
        1
    }

    /// One row of weights in the form of [`Self::matmul`]: [`Self::fwd_factor`] of the polynomial of each of `TILES`
    /// tiles. `signed` has coefficient after coefficient, and for each coefficient all tiles side by side. `scratch`
    /// may hold anything and has `TILES` words for every point. The weights of point y go to `out[y * pitch ..]`.
    fn weigh(&self, signed: &[i64], scratch: &mut [u64], out: &mut [u64], pitch: usize) {
        transform_tiles(self, signed, scratch);
        for (tile, poly) in scratch.chunks_exact(scratch.len() / TILES).enumerate() {
            out[tile..].iter_mut().step_by(pitch).zip(poly).for_each(|(out, &x)| *out = x);
        }
    }

    /// Adds products of matrices with the same left operand `a`: `sums[t][v][i] += sum_j w[j][t] a[v][j][i] mod p`
    /// for each of `products`. Here t counts up to `TILES` columns of weights, v counts vectors of `LANES`
    /// coefficients (an even number of them), and j counts terms (the same number for all products, below `2^27`).
    /// `a` is in the form of [`Self::factor`].
    fn matmul(&self, a: &[u64], products: &mut [Product<'_>]) {
        for Product { sums, weights } in products {
            let (p, terms) = (self.modulus(), weights.len() / TILES);
            let vectors = a.chunks_exact(terms * LANES);
            let count = vectors.len();
            for (tile, sums) in sums.chunks_exact_mut(count * LANES).enumerate() {
                for (sums, a) in sums.chunks_exact_mut(LANES).zip(vectors.clone()) {
                    let mut wide = [0u128; LANES];
                    for (a, w) in a.chunks_exact(LANES).zip(weights.chunks_exact(TILES)) {
                        wide.iter_mut().zip(a).for_each(|(s, &a)| *s += u128::from(a) * u128::from(w[tile]));
                    }
                    sums.iter_mut().zip(wide).for_each(|(s, wide)| *s = p.reduce_wide(wide + u128::from(*s)));
                }
            }
        }
    }

    /// `sum[i] = sum[i] + a_0[i] b_0[i] + a_1[i] b_1[i] + ... mod p`, with sums in `[0, p)` before and after. The
    /// operands are in the form of [`Self::factor`]. All slices have the same length, a multiple of 64. Takes fewer
    /// than `2^27` terms and reduces once per output.
    fn dot(&self, sum: &mut [u64], a: &[&[u64]], b: &[&[u64]]) {
        let p = self.modulus();
        for (i, sum) in sum.iter_mut().enumerate() {
            // A product is below 2^100.
            let terms = a.iter().zip(b).map(|(a, b)| u128::from(a[i]) * u128::from(b[i]));
            *sum = p.reduce_wide(terms.fold(u128::from(*sum), |acc, x| acc + x));
        }
    }

    /// `(x[i], y[i]) = (x[i] + m[i] y[i], x[i] - m[i] y[i]) mod p`, where x and y are in `[0, p)` before and after
    /// and m is in the form of [`Self::factor`].
    fn butterfly(&self, x: &mut [u64], y: &mut [u64], m: &[u64]) {
        let p = self.modulus();
        for ((x, y), &m) in x.iter_mut().zip(y).zip(m) {
            let product = p.mul(*y, m);
            (*x, *y) = (p.add(*x, product), p.sub(*x, product));
        }
    }

    /// `a[i] = a[i] c mod p` for a residue c.
    fn scale(&self, a: &mut [u64], c: u64) {
        let p = self.modulus();
        let c = p.shoup(c);
        a.iter_mut().for_each(|a| *a = p.mul_shoup(*a, c));
    }

    /// `a[i] = a[i] b[i] mod p`.
    fn pointwise(&self, a: &mut [u64], b: &[u64]) {
        let p = self.modulus();
        for (a, &b) in a.iter_mut().zip(b) {
            *a = p.mul(*a, b);
        }
    }
}

/// [`NttBackend::fwd_factor`] of one row of weights, as [`NttBackend::weigh`] takes it. The results lie tile after
/// tile.
pub(super) fn transform_tiles(ntt: &(impl NttBackend + ?Sized), signed: &[i64], polys: &mut [u64]) {
    let points = polys.len() / TILES;
    let mut own = Zeroizing::new(vec![0; signed.len() / TILES]);
    for (tile, poly) in polys.chunks_exact_mut(points).enumerate() {
        own.iter_mut().zip(signed[tile..].iter().step_by(TILES)).for_each(|(own, &x)| *own = x);
        ntt.fwd_factor(poly, &own);
    }
}
