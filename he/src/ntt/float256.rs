//! Transforms in double precision for AVX2 with FMA: the arithmetic of [`super::float`] on four lanes, with the
//! bounds proven there.

use super::backend::{MIN_POINTS, NttBackend, Product, half_bits};
use super::doubles::arithmetic;
use super::driver::MAX_DEGREE;
use super::float::{DOT_BLOCK, NUDGE, ROUND, factor, is_wide};
use super::portable::TfheNtt;
use super::twiddles;
use crate::modulus::Modulus;
use std::arch::x86_64::*;
use waggle_bits::cpu::{Cpu, Feature};

mod product;
mod transform;

/// Number of words of a sum of products that are computed together, so that several chains of additions are under
/// way.
const DOT_WORDS: usize = 4 * QUAD;
/// Lanes of a vector.
const QUAD: usize = 4;
/// `2^52`. If the bits of an integer below `2^52` are set in it, it becomes the double that is the sum of both.
const INTEGER: f64 = 4503599627370496.0;

/// The words of a vector.
type Quad = [u64; QUAD];
/// A root in a register, with its quotient by p.
type Root = [__m256d; 2];

/// The backend in double precision on AVX2 with FMA.
#[derive(Debug)]
pub(super) struct Float256Ntt {
    modulus: Modulus,
    n: usize,
    /// Whether the modulus [`is_wide`].
    wide: bool,
    forward: Roots,
    inverse: Roots,
    n_inverse: [f64; 2],
}

/// Roots of one direction, each with its quotient by p.
#[derive(Debug)]
struct Roots {
    /// The root of group i in the layer of m groups, at index `m + i`.
    tree: Vec<[f64; 2]>,
    /// The roots of the last two layers for the b-th run of 16 coefficients in a transform of n, at index
    /// `n / 16 + b`. Each vector has a lane for each of four groups.
    lanes: Vec<[[[f64; QUAD]; 2]; 3]>,
}

impl Roots {
    fn new(p: u64, roots: &[u64]) -> Self {
        let tree: Vec<[f64; 2]> = roots.iter().map(|&w| factor(p, w)).collect();
        let lanes = |b: usize| {
            std::array::from_fn(|k| {
                // Factors 0 | 1 2 belong to layers of m and 2m groups.
                let at = |lane: usize| tree[[1, 2, 2][k] * (b * QUAD + lane) + k / 2];
                [std::array::from_fn(|lane| at(lane)[0]), std::array::from_fn(|lane| at(lane)[1])]
            })
        };
        let lanes = (0..roots.len() / 8).map(lanes).collect();
        Self { tree, lanes }
    }
}

arithmetic!(
    __m256d,
    "avx2,fma",
    _mm256_set1_pd,
    _mm256_mul_pd,
    _mm256_add_pd,
    _mm256_sub_pd,
    _mm256_fmadd_pd,
    _mm256_fmsub_pd,
    _mm256_fnmadd_pd
);

/// Loads four lanes without a change.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn load(words: &Quad) -> __m256d {
    // SAFETY: four words are 32 bytes, all readable through the reference; the load needs no alignment.
    unsafe { _mm256_loadu_pd(std::ptr::from_ref(words).cast()) }
}

/// The reverse of [`load`].
#[inline]
#[target_feature(enable = "avx2,fma")]
fn store(words: &mut Quad, x: __m256d) {
    // SAFETY: four words are 32 bytes, all writable through the reference; the store needs no alignment.
    unsafe { _mm256_storeu_pd(std::ptr::from_mut(words).cast(), x) }
}

/// Loads four doubles.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn doubles(from: &[f64; QUAD]) -> __m256d {
    // SAFETY: the array has exactly four doubles; the load needs no alignment.
    unsafe { _mm256_loadu_pd(from.as_ptr()) }
}

/// A number and its quotient by p, each in every lane.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn splat([w, quotient]: [f64; 2]) -> Root {
    [_mm256_set1_pd(w), _mm256_set1_pd(quotient)]
}

/// Words below `2^52` as doubles. There is no instruction for 64-bit integers before AVX-512.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn from_words(x: __m256d) -> __m256d {
    let unit = _mm256_set1_pd(INTEGER);
    _mm256_sub_pd(_mm256_or_pd(x, unit), unit)
}

/// Integers from 0 to below `2^52` as words.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn to_words(x: __m256d) -> __m256d {
    let unit = _mm256_set1_pd(INTEGER);
    _mm256_xor_pd(_mm256_add_pd(x, unit), unit)
}

/// Integers of absolute value below `2^51` as doubles.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn from_signed(prime: Prime, from: &[i64; QUAD]) -> __m256d {
    // SAFETY: the array has exactly four words; the load needs no alignment.
    let x = unsafe { _mm256_loadu_si256(from.as_ptr().cast()) };
    let sum = _mm256_add_epi64(x, _mm256_castpd_si256(prime.magic));
    _mm256_sub_pd(_mm256_castsi256_pd(sum), prime.magic)
}

/// The residue in `[0, p)` as a word, for `|x| < p`. A zero of either sign is 0.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn lifted(prime: Prime, x: __m256d) -> __m256d {
    let negative = _mm256_cmp_pd::<_CMP_LT_OQ>(x, _mm256_setzero_pd());
    to_words(_mm256_add_pd(x, _mm256_and_pd(negative, prime.p)))
}

/// The residue in `[0, p)` as a word, for `|x| < 9 p` and narrow moduli. Then `x / p` is an integer or at least
/// `2^-46` away from one, and the product and the sum are off by less than `2^-49` together.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn floored(prime: Prime, x: __m256d) -> __m256d {
    let q = _mm256_fmadd_pd(x, prime.inverse, _mm256_set1_pd(NUDGE));
    to_words(_mm256_fnmadd_pd(_mm256_floor_pd(q), prime.p, x))
}

/// Transposes a 4 x 4 matrix: rows become columns.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn transpose([a, b, c, d]: [__m256d; 4]) -> [__m256d; 4] {
    let (ab, cd) = (_mm256_unpacklo_pd(a, b), _mm256_unpacklo_pd(c, d));
    let (ab1, cd1) = (_mm256_unpackhi_pd(a, b), _mm256_unpackhi_pd(c, d));
    [
        _mm256_permute2f128_pd::<0x20>(ab, cd),
        _mm256_permute2f128_pd::<0x20>(ab1, cd1),
        _mm256_permute2f128_pd::<0x31>(ab, cd),
        _mm256_permute2f128_pd::<0x31>(ab1, cd1),
    ]
}

impl Float256Ntt {
    /// `None` if [`Cpu::get`] lacks AVX2 or FMA, or if the degree is not a power of two in `64..=16384`. The modulus
    /// and the order of coefficients are those of `reference`.
    pub(super) fn new(n: usize, reference: &TfheNtt) -> Option<Self> {
        if !Cpu::get().has_all(&[Feature::Avx2, Feature::Fma]) {
            return None;
        }
        if !(MIN_POINTS..=MAX_DEGREE).contains(&n) || !n.is_power_of_two() {
            return None;
        }
        let modulus = *reference.modulus();
        let p = modulus.value();
        let roots = reference.roots();
        Some(Self {
            modulus,
            n,
            wide: is_wide(&modulus),
            forward: Roots::new(p, &roots),
            inverse: Roots::new(p, &twiddles::inverses(&modulus, &roots)),
            n_inverse: factor(p, modulus.inverse(n as u64)),
        })
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn prime(&self) -> Prime {
        Prime::new(self.modulus.value())
    }

    #[target_feature(enable = "avx2,fma")]
    fn centre_all(&self, poly: &mut [u64]) {
        assert_eq!(poly.len(), self.n);
        let prime = self.prime();
        for x in poly.as_chunks_mut().0 {
            store(x, centre(prime, from_words(load(x))));
        }
    }

    #[target_feature(enable = "avx2,fma")]
    fn butterflies(&self, x: &mut [u64], y: &mut [u64], m: &[u64]) {
        assert!(x.len() == self.n && y.len() == self.n && m.len() == self.n);
        let prime = self.prime();
        for ((x, y), m) in x.as_chunks_mut().0.iter_mut().zip(y.as_chunks_mut().0).zip(m.as_chunks().0) {
            let (u, r) = (from_words(load(x)), multiply(prime, from_words(load(y)), load(m)));
            // Below 2 p in absolute value.
            store(x, canonical(prime, _mm256_add_pd(u, r)));
            store(y, canonical(prime, _mm256_sub_pd(u, r)));
        }
    }

    #[target_feature(enable = "avx2,fma")]
    fn scale_all(&self, a: &mut [u64], c: u64) {
        assert!(a.len() == self.n && c < self.modulus.value());
        let (prime, c) = (self.prime(), splat(factor(self.modulus.value(), c)));
        for a in a.as_chunks_mut().0 {
            store(a, lifted(prime, mul_mod(prime, from_words(load(a)), c)));
        }
    }

    #[target_feature(enable = "avx2,fma")]
    fn products(&self, a: &mut [u64], b: &[u64]) {
        assert!(a.len() == self.n && b.len() == self.n);
        let prime = self.prime();
        for (a, b) in a.as_chunks_mut().0.iter_mut().zip(b.as_chunks().0) {
            store(a, lifted(prime, multiply(prime, from_words(load(a)), from_words(load(b)))));
        }
    }

    /// A sum of products of doubles as [`NttBackend::factor`] leaves them; the bounds of the sum on eight lanes hold
    /// here too: an integer of at most `(1/2 + 1/8) p` a term, [`DOT_BLOCK`] terms between reductions.
    #[target_feature(enable = "avx2,fma")]
    fn sum_of_products(&self, sum: &mut [u64], a: &[&[u64]], b: &[&[u64]]) {
        assert!(sum.len().is_multiple_of(DOT_WORDS) && a.len() == b.len());
        assert!(a.iter().chain(b).all(|x| x.len() == sum.len()));
        let prime = self.prime();
        for (i, sum) in sum.as_chunks_mut::<DOT_WORDS>().0.iter_mut().enumerate() {
            let sum = sum.as_chunks_mut().0;
            let mut total = [_mm256_setzero_pd(); DOT_WORDS / QUAD];
            for (total, sum) in total.iter_mut().zip(&*sum) {
                *total = from_words(load(sum));
            }
            for (a, b) in a.chunks(DOT_BLOCK).zip(b.chunks(DOT_BLOCK)) {
                let mut low = [_mm256_setzero_pd(); DOT_WORDS / QUAD];
                for (a, b) in a.iter().zip(b) {
                    let (a, b) = (&a.as_chunks::<DOT_WORDS>().0[i], &b.as_chunks::<DOT_WORDS>().0[i]);
                    let operands = a.as_chunks().0.iter().zip(b.as_chunks().0);
                    for ((total, low), (a, b)) in total.iter_mut().zip(&mut low).zip(operands) {
                        let (a, b) = (load(a), load(b));
                        let h = _mm256_mul_pd(a, b);
                        *low = _mm256_add_pd(*low, _mm256_fmsub_pd(a, b, h));
                        let q = rounded_product(prime, h, prime.inverse);
                        *total = _mm256_add_pd(*total, _mm256_fnmadd_pd(q, prime.p, h));
                    }
                }
                for (total, low) in total.iter_mut().zip(low) {
                    *total = centre(prime, _mm256_add_pd(*total, low));
                }
            }
            for (sum, total) in sum.iter_mut().zip(total) {
                store(sum, canonical(prime, total));
            }
        }
    }
}

/// Methods that call a function with the features.
macro_rules! forward_to {
    ($(fn $name:ident(&self $(, $arg:ident: $ty:ty)*) = $function:ident;)*) => {$(
        fn $name(&self $(, $arg: $ty)*) {
            // SAFETY: `new` found the features.
            unsafe { self.$function($($arg),*) }
        }
    )*};
}

impl NttBackend for Float256Ntt {
    fn name(&self) -> &'static str {
        "float256"
    }

    fn modulus(&self) -> &Modulus {
        &self.modulus
    }

    fn weight_words(&self) -> usize {
        PARTS
    }

    forward_to! {
        fn fwd(&self, poly: &mut [u64]) = forward;
        fn fwd_signed(&self, out: &mut [u64], signed: &[i64]) = forward_signed;
        fn fwd_factor(&self, out: &mut [u64], signed: &[i64]) = forward_factor;
        fn inv(&self, poly: &mut [u64]) = backward;
        fn factor(&self, poly: &mut [u64]) = centre_all;
        fn butterfly(&self, x: &mut [u64], y: &mut [u64], m: &[u64]) = butterflies;
        fn scale(&self, a: &mut [u64], c: u64) = scale_all;
        fn pointwise(&self, a: &mut [u64], b: &[u64]) = products;
        fn dot(&self, sum: &mut [u64], a: &[&[u64]], b: &[&[u64]]) = sum_of_products;
        fn weigh(&self, signed: &[i64], scratch: &mut [u64], out: &mut [u64], pitch: usize) = weigh_tiles;
        fn matmul(&self, a: &[u64], products: &mut [Product<'_>]) = matrix_products;
    }
}
