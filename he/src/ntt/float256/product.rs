//! Products of matrices whose weights are the same for a whole vector of coefficients, on halves of residues.
//!
//! With `a = a1 2^s + a0` and w alike, `a w = h 4^s + (m - h - l) 2^s + l` of the products `h = a1 w1`, `l = a0 w0`
//! and `m = (a0 + a1) (w0 + w1)` (Karatsuba): three fused multiply-adds a term. Sixteen registers do not hold the
//! accumulators of all three, but they are independent, so one is made after the other. The halves of the
//! coefficients are made once for all weights that meet them.

use super::*;
use crate::ntt::backend::{LANES, TILES, exact_terms, transform_tiles};

/// Number of terms whose halves are in memory at a time. The halves take 24 KiB.
const CHUNK: usize = 128;
/// The unit in which accumulators carry, if the modulus is wide.
const CARRY: f64 = (1u64 << 26) as f64;

/// For each part of [`Halves::split`] and each term, that part of one vector of eight coefficients.
#[repr(align(64))]
struct Scratch([[[f64; LANES]; CHUNK]; PARTS]);

/// For each tile, one vector of eight numbers. It takes two registers.
type Sums<const T: usize> = [[__m256d; 2]; T];

/// What a product of matrices needs besides its operands.
struct Constants {
    prime: Prime,
    /// `2^s` and `4^s`.
    units: [Root; 2],
    /// `2^26`, `2^26 2^s` and `2^26 4^s`.
    carries: [Root; 3],
    /// Number of terms that accumulators add up exactly.
    exact: usize,
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn store_doubles(to: &mut [f64], x: __m256d) {
    let to = &mut to[..QUAD];
    // SAFETY: the slice has four doubles; the store needs no alignment.
    unsafe { _mm256_storeu_pd(to.as_mut_ptr(), x) }
}

/// Two sums: accumulators after some terms, and what they have carried.
type Totals<const T: usize> = [Sums<T>; 2];

/// One of the three products of halves, that of part P of [`Halves::split`]: eight coefficients by T tiles, from tile
/// FIRST on. It takes U terms at a time, so that more additions are under way.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn part<const T: usize, const FIRST: usize, const P: usize, const U: usize>(
    mut sums: Sums<T>,
    a: &[[f64; LANES]],
    w: &[[u64; PARTS * TILES]],
) -> Sums<T> {
    let add = |sums: &mut Sums<T>, a: &[f64; LANES], w: &[u64; PARTS * TILES]| {
        let (x, y) = (doubles(&a.as_chunks().0[0]), doubles(&a.as_chunks().0[1]));
        for t in 0..T {
            let w = every(w[P * TILES + FIRST + t]);
            sums[t][0] = _mm256_fmadd_pd(x, w, sums[t][0]);
            sums[t][1] = _mm256_fmadd_pd(y, w, sums[t][1]);
        }
    };
    let mut others = [[[_mm256_setzero_pd(); 2]; T]; U];
    let ((a, a_rest), (w, w_rest)) = (a.as_chunks::<U>(), w.as_chunks::<U>());
    for (a, w) in a.iter().zip(w) {
        for u in 0..U {
            add(&mut others[u], &a[u], &w[u]);
        }
    }
    a_rest.iter().zip(w_rest).for_each(|(a, w)| add(&mut sums, a, w));
    for others in others {
        for t in 0..T {
            sums[t][0] = _mm256_add_pd(sums[t][0], others[t][0]);
            sums[t][1] = _mm256_add_pd(sums[t][1], others[t][1]);
        }
    }
    sums
}

/// [`part`] for all terms. If the modulus is wide, accumulators carry after every `exact` terms: what is above `2^26`
/// moves to the second result.
///
/// Halves of one sign are at most `2^24` and sums of both `2^25 - 1`: a residue whose upper half is `2^24` is at most
/// `2^49`, so its lower half is not positive. Hence eight products stay below `2^53 - 2^28`, and with the
/// `2^25` left over below `2^53`.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn totals<const WIDE: bool, const T: usize, const FIRST: usize, const P: usize, const U: usize>(
    exact: usize,
    a: &[[f64; LANES]],
    w: &[[u64; PARTS * TILES]],
) -> Totals<T> {
    let zero = [[_mm256_setzero_pd(); 2]; T];
    if !WIDE {
        return [part::<T, FIRST, P, U>(zero, a, w), zero];
    }
    // A unit in the last place of 2^26.
    let magic = _mm256_set1_pd(ROUND * CARRY);
    let (mut sums, mut over) = (zero, zero);
    for (a, w) in a.chunks(exact).zip(w.chunks(exact)) {
        sums = part::<T, FIRST, P, U>(sums, a, w);
        for t in 0..T {
            for v in 0..2 {
                let high = _mm256_sub_pd(_mm256_add_pd(sums[t][v], magic), magic);
                sums[t][v] = _mm256_sub_pd(sums[t][v], high);
                over[t][v] = _mm256_add_pd(over[t][v], high);
            }
        }
    }
    [sums, over]
}

/// Adds the products of one vector of coefficients and T tiles, from FIRST on, to sums `pitch` words apart.
///
/// Narrow moduli: h and l are below `2^51` in absolute value, the middle below `2^52`; products of [`mul_mod`] are
/// below p, and all with the sum below p add up to less than `3 p + 2^51`. Wide ones: what was carried, in units of
/// `2^26`, is below `2^33`, so its products are below p like those of the rest below `2^26`, and all with the sum
/// below p add up to less than `6 p`.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn columns<const WIDE: bool, const T: usize, const FIRST: usize, const U: usize>(
    k: &Constants,
    halves: [&[[f64; LANES]]; PARTS],
    w: &[[u64; PARTS * TILES]],
    sums: &mut [u64],
    pitch: usize,
) {
    let low = totals::<WIDE, T, FIRST, 0, U>(k.exact, halves[0], w);
    let high = totals::<WIDE, T, FIRST, 1, U>(k.exact, halves[1], w);
    let middle = totals::<WIDE, T, FIRST, 2, U>(k.exact, halves[2], w);
    let unit = _mm256_set1_pd(1.0 / CARRY);
    for t in 0..T {
        let sums = sums[(FIRST + t) * pitch..].as_chunks_mut().0;
        for v in 0..2 {
            let (l, h) = (low[0][t][v], high[0][t][v]);
            let cross = _mm256_sub_pd(_mm256_sub_pd(middle[0][t][v], l), h);
            let upper = _mm256_add_pd(mul_mod(k.prime, h, k.units[1]), mul_mod(k.prime, cross, k.units[0]));
            let mut sum = _mm256_add_pd(from_words(load(&sums[v])), _mm256_add_pd(upper, l));
            if WIDE {
                let (l, h) = (_mm256_mul_pd(low[1][t][v], unit), _mm256_mul_pd(high[1][t][v], unit));
                let m = _mm256_sub_pd(_mm256_sub_pd(_mm256_mul_pd(middle[1][t][v], unit), l), h);
                let over = _mm256_add_pd(mul_mod(k.prime, h, k.carries[2]), mul_mod(k.prime, m, k.carries[1]));
                sum = _mm256_add_pd(sum, _mm256_add_pd(mul_mod(k.prime, l, k.carries[0]), over));
            }
            store(&mut sums[v], canonical(k.prime, sum));
        }
    }
}

impl Float256Ntt {
    /// [`NttBackend::weigh`]. For each term these are the lower halves for all tiles, then the upper halves, then the
    /// sums of both.
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn weigh_tiles(&self, signed: &[i64], polys: &mut [u64], out: &mut [u64], pitch: usize) {
        let points = polys.len() / TILES;
        assert!(points.is_multiple_of(QUAD));
        transform_tiles(self, signed, polys);
        let halves = Halves::new(self.modulus.value());
        for y in (0..points).step_by(QUAD) {
            let columns: [_; 2] = std::array::from_fn(|half| {
                let mut v = [_mm256_setzero_pd(); QUAD];
                for (tile, v) in (half * QUAD..TILES).zip(&mut v) {
                    *v = load(&polys[tile * points + y..].as_chunks().0[0]);
                }
                transpose(v)
            });
            for i in 0..QUAD {
                let parts = columns.map(|half| halves.split(half[i]));
                let out = out[(y + i) * pitch..][..PARTS * TILES].as_chunks_mut::<QUAD>().0;
                for (part, out) in out.chunks_exact_mut(2).enumerate() {
                    store(&mut out[0], parts[0][part]);
                    store(&mut out[1], parts[1][part]);
                }
            }
        }
    }

    #[target_feature(enable = "avx2,fma")]
    fn constants(&self) -> Constants {
        let (p, s) = (self.modulus.value(), half_bits(self.modulus.value()));
        let power = |bits: u32| factor(p, self.modulus.pow(2, u64::from(bits)));
        let (units, carries) = ([power(s), power(2 * s)], [power(26), power(26 + s), power(26 + 2 * s)]);
        Constants {
            prime: self.prime(),
            units: [splat(units[0]), splat(units[1])],
            carries: [splat(carries[0]), splat(carries[1]), splat(carries[2])],
            exact: exact_terms(p),
        }
    }

    /// [`NttBackend::matmul`].
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn matrix_products(&self, a: &[u64], products: &mut [Product<'_>]) {
        let Some(terms) = products.first().map(|product| product.weights.len() / (PARTS * TILES)) else { return };
        let vectors = a.len() / (terms * LANES);
        assert!(a.len() == vectors * terms * LANES);
        assert!(products.iter().all(|product| product.weights.len() == terms * PARTS * TILES));
        let (k, halves) = (self.constants(), Halves::new(self.modulus.value()));
        let mut scratch = Scratch([[[0.0; LANES]; CHUNK]; PARTS]);
        for (v, a) in a.as_chunks::<LANES>().0.chunks_exact(terms).enumerate() {
            for (chunk, a) in a.chunks(CHUNK).enumerate() {
                for (j, a) in a.iter().enumerate() {
                    for (half, a) in a.as_chunks().0.iter().enumerate() {
                        for (part, x) in halves.split(load(a)).into_iter().enumerate() {
                            store_doubles(&mut scratch.0[part][j][half * QUAD..], x);
                        }
                    }
                }
                let halves = [&scratch.0[0][..a.len()], &scratch.0[1][..a.len()], &scratch.0[2][..a.len()]];
                for product in &mut *products {
                    let w = &product.weights.as_chunks().0[chunk * CHUNK..][..a.len()];
                    self.tiles(&k, halves, w, &mut product.sums[v * LANES..], vectors * LANES);
                }
            }
        }
    }

    /// Adds the products for the tiles that `sums` has. More than four tiles are taken in two groups of nearly equal
    /// size.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn tiles(
        &self,
        k: &Constants,
        halves: [&[[f64; LANES]]; PARTS],
        w: &[[u64; PARTS * TILES]],
        sums: &mut [u64],
        pitch: usize,
    ) {
        macro_rules! each {
            ($(($tiles:literal, $first:literal, $at_once:literal)),*) => {{
                $(match self.wide {
                    true => columns::<true, $tiles, $first, $at_once>(k, halves, w, sums, pitch),
                    false => columns::<false, $tiles, $first, $at_once>(k, halves, w, sums, pitch),
                })*
            }};
        }
        match sums.len().div_ceil(pitch) {
            1 => each!((1, 0, 4)),
            2 => each!((2, 0, 2)),
            3 => each!((3, 0, 2)),
            4 => each!((4, 0, 1)),
            5 => each!((3, 0, 2), (2, 3, 2)),
            6 => each!((3, 0, 2), (3, 3, 2)),
            7 => each!((4, 0, 1), (3, 4, 2)),
            _ => each!((4, 0, 1), (4, 4, 1)),
        }
    }
}
