//! Transforms in 52-bit integers for AVX-512 IFMA, whose instructions multiply the low 52 bits of every lane and add the low
//! or the high 52 bits of the product to 64.
//!
//! A product by a constant takes three of them (Shoup): with `w' = floor(w 2^52 / p)`, `q = floor(v w' / 2^52)` and any
//! `v < 2^52`, `r = v w - q p` is in `[0, 2p)`. Computed as sums of low halves, of `v w` and of `q (2^52 - p)`, it is right
//! modulo `2^52`: only the low 52 bits of a lane count, and those of sums and differences stay right. What is meant by a
//! lane is the number below `2^52` that they spell.
//!
//! **Moduli below `2^46`** need no correction within layers, as 64 p fits. Forward, with L layers, values start at
//! `2 p L + [0, 2p)`; a layer, `(u + r, u - r)`, widens the range by 2 p on both sides, which ends at `4 p L + 2 p`, 58 p for
//! the largest degree. Inverse, a layer is `(u + v, (u - v + c) w)` for u and v below c: from 8 p, three layers give sums
//! below 64 p in the one place of eight that is never multiplied, which is reduced then, and values below 8 p elsewhere.
//!
//! **Moduli below `2^50`** leave room for 4 p, and layers are Harvey's (<https://arxiv.org/abs/1205.2926>): forward, values
//! are below 4 p, and u is brought below 2 p; inverse, values are below 2 p, and u + v is.
//!
//! The order of the transformed coefficients is that of `tfhe-ntt`, so all backends agree on what goes over the wire.

use super::float::transpose;
use super::twiddles::{self, BLOCK, RADIX8, Twiddles};
use super::{LANES, NttBackend, TfheNtt};
use crate::modulus::Modulus;
use std::arch::x86_64::*;

mod product;

/// Bits of the integers that are multiplied.
const BITS: u32 = 52;
/// Largest degree for which the bounds above hold.
const MAX_DEGREE: usize = 16384;
/// Terms of a sum of products between reductions: low halves add up within 64 bits.
const DOT_BLOCK: usize = (1 << 12) - 1;
/// Words of a sum of products made at once: four vectors, as an addition takes 4 cycles and up to two can begin in each.
const DOT_WORDS: usize = 4 * LANES;

/// The AVX-512 IFMA backend.
#[derive(Debug)]
pub struct IfmaNtt {
    modulus: Modulus,
    n: usize,
    /// Whether layers go uncorrected.
    lazy: bool,
    forward: Twiddles<u64>,
    inverse: Twiddles<u64>,
    n_inverse: [u64; 2],
    /// `2^52` and `2^104` as factors.
    powers: [[u64; 2]; 2],
}

/// `w < p` with `floor(w 2^52 / p)`.
fn factor(p: u64, w: u64) -> [u64; 2] {
    [w, ((u128::from(w) << BITS) / u128::from(p)) as u64]
}

/// Constants of a prime p in every lane.
#[derive(Clone, Copy)]
struct Prime {
    p: __m512i,
    twice: __m512i,
    /// `2^52 - p`.
    negative: __m512i,
    /// `floor(2^52 / p)`.
    barrett: __m512i,
    /// The low 52 bits.
    mask: __m512i,
}

/// A word in every lane.
#[inline]
#[target_feature(enable = "avx512f")]
fn every(x: u64) -> __m512i {
    _mm512_set1_epi64(x as i64)
}

/// One factor in all lanes.
#[inline]
#[target_feature(enable = "avx512f")]
fn broadcast([w, quotient]: [u64; 2]) -> [__m512i; 2] {
    [every(w), every(quotient)]
}

impl Twiddles<u64> {
    /// Factors of three merged layers, the first of which has m groups, for its group i.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn broadcast(&self, m: usize, i: usize) -> [[__m512i; 2]; RADIX8] {
        let first = m + i;
        let indices = [first, 2 * first, 2 * first + 1, 4 * first, 4 * first + 1, 4 * first + 2, 4 * first + 3];
        let mut w = [[_mm512_setzero_si512(); 2]; RADIX8];
        for (w, &index) in w.iter_mut().zip(&indices) {
            *w = broadcast(self.tree[index]);
        }
        w
    }

    /// Factors of the last three layers for the eight groups of the block at index b.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn vectors(&self, b: usize) -> [[__m512i; 2]; RADIX8] {
        let mut w = [[_mm512_setzero_si512(); 2]; RADIX8];
        for (w, [root, quotient]) in w.iter_mut().zip(&self.lanes[b]) {
            *w = [load(root), load(quotient)];
        }
        w
    }
}

/// `v w mod p` for any v: in `[0, 2p)`, right in the low 52 bits.
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
fn mul_lazy(prime: Prime, v: __m512i, w: [__m512i; 2]) -> __m512i {
    add_product(prime, _mm512_setzero_si512(), v, w)
}

/// `u + r` with r as of [`mul_lazy`].
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
fn add_product(prime: Prime, u: __m512i, v: __m512i, [w, quotient]: [__m512i; 2]) -> __m512i {
    let q = _mm512_madd52hi_epu64(_mm512_setzero_si512(), v, quotient);
    _mm512_madd52lo_epu64(_mm512_madd52lo_epu64(u, v, w), q, prime.negative)
}

/// Any x to `[0, 2p)`, right in the low 52 bits (Barrett: the quotient is at most one too small).
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
fn reduce(prime: Prime, x: __m512i) -> __m512i {
    let q = _mm512_madd52hi_epu64(_mm512_setzero_si512(), x, prime.barrett);
    _mm512_madd52lo_epu64(x, q, prime.negative)
}

/// The low 52 bits alone.
#[inline]
#[target_feature(enable = "avx512f")]
fn clean(prime: Prime, x: __m512i) -> __m512i {
    _mm512_and_si512(x, prime.mask)
}

/// `[0, 2m) -> [0, m)` in all 64 bits: below m the difference wraps to a larger number.
#[inline]
#[target_feature(enable = "avx512f")]
fn correct(x: __m512i, m: __m512i) -> __m512i {
    _mm512_min_epu64(x, _mm512_sub_epi64(x, m))
}

/// `(u + v w, u - v w)`.
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
fn forward2<const LAZY: bool>(prime: Prime, u: __m512i, v: __m512i, w: [__m512i; 2]) -> (__m512i, __m512i) {
    if LAZY {
        let sum = add_product(prime, u, v, w);
        (sum, _mm512_sub_epi64(_mm512_add_epi64(u, u), sum))
    } else {
        let (u, r) = (correct(u, prime.twice), clean(prime, mul_lazy(prime, v, w)));
        (_mm512_add_epi64(u, r), _mm512_sub_epi64(_mm512_add_epi64(u, prime.twice), r))
    }
}

/// `(u + v, (u - v) w)`; without correction u and v are below `bound`, a multiple of p.
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
fn inverse2<const LAZY: bool>(
    prime: Prime,
    bound: __m512i,
    u: __m512i,
    v: __m512i,
    w: [__m512i; 2],
) -> (__m512i, __m512i) {
    let sum = _mm512_add_epi64(u, v);
    if LAZY {
        (sum, mul_lazy(prime, _mm512_sub_epi64(_mm512_add_epi64(u, bound), v), w))
    } else {
        let difference = _mm512_sub_epi64(_mm512_add_epi64(u, prime.twice), v);
        (correct(sum, prime.twice), clean(prime, mul_lazy(prime, difference, w)))
    }
}

/// Three forward layers over eight vectors. Written out, for the vectors to stay in registers.
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
#[rustfmt::skip]
fn forward8<const LAZY: bool>(prime: Prime, v: [__m512i; 8], w: &[[__m512i; 2]; RADIX8]) -> [__m512i; 8] {
    let [v0, v1, v2, v3, v4, v5, v6, v7] = v;
    let (v0, v4) = forward2::<LAZY>(prime, v0, v4, w[0]);
    let (v1, v5) = forward2::<LAZY>(prime, v1, v5, w[0]);
    let (v2, v6) = forward2::<LAZY>(prime, v2, v6, w[0]);
    let (v3, v7) = forward2::<LAZY>(prime, v3, v7, w[0]);
    let (v0, v2) = forward2::<LAZY>(prime, v0, v2, w[1]);
    let (v1, v3) = forward2::<LAZY>(prime, v1, v3, w[1]);
    let (v4, v6) = forward2::<LAZY>(prime, v4, v6, w[2]);
    let (v5, v7) = forward2::<LAZY>(prime, v5, v7, w[2]);
    let (v0, v1) = forward2::<LAZY>(prime, v0, v1, w[3]);
    let (v2, v3) = forward2::<LAZY>(prime, v2, v3, w[4]);
    let (v4, v5) = forward2::<LAZY>(prime, v4, v5, w[5]);
    let (v6, v7) = forward2::<LAZY>(prime, v6, v7, w[6]);
    [v0, v1, v2, v3, v4, v5, v6, v7]
}

/// Three inverse layers over eight vectors; without correction all are below 8 p before and after.
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
#[rustfmt::skip]
fn inverse8<const LAZY: bool>(prime: Prime, v: [__m512i; 8], w: &[[__m512i; 2]; RADIX8]) -> [__m512i; 8] {
    let [v0, v1, v2, v3, v4, v5, v6, v7] = v;
    let b8 = _mm512_slli_epi64::<2>(prime.twice);
    let (b16, b32) = (_mm512_slli_epi64::<1>(b8), _mm512_slli_epi64::<2>(b8));
    let (v0, v1) = inverse2::<LAZY>(prime, b8, v0, v1, w[3]);
    let (v2, v3) = inverse2::<LAZY>(prime, b8, v2, v3, w[4]);
    let (v4, v5) = inverse2::<LAZY>(prime, b8, v4, v5, w[5]);
    let (v6, v7) = inverse2::<LAZY>(prime, b8, v6, v7, w[6]);
    let (v0, v2) = inverse2::<LAZY>(prime, b16, v0, v2, w[1]);
    let (v1, v3) = inverse2::<LAZY>(prime, b16, v1, v3, w[1]);
    let (v4, v6) = inverse2::<LAZY>(prime, b16, v4, v6, w[2]);
    let (v5, v7) = inverse2::<LAZY>(prime, b16, v5, v7, w[2]);
    let (v0, v4) = inverse2::<LAZY>(prime, b32, v0, v4, w[0]);
    let (v1, v5) = inverse2::<LAZY>(prime, b32, v1, v5, w[0]);
    let (v2, v6) = inverse2::<LAZY>(prime, b32, v2, v6, w[0]);
    let (v3, v7) = inverse2::<LAZY>(prime, b32, v3, v7, w[0]);
    [if LAZY { reduce(prime, v0) } else { v0 }, v1, v2, v3, v4, v5, v6, v7]
}

/// Rows become columns.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn turn([v0, v1, v2, v3, v4, v5, v6, v7]: [__m512i; 8]) -> [__m512i; 8] {
    let [v0, v1, v2, v3] =
        [_mm512_castsi512_pd(v0), _mm512_castsi512_pd(v1), _mm512_castsi512_pd(v2), _mm512_castsi512_pd(v3)];
    let [v4, v5, v6, v7] =
        [_mm512_castsi512_pd(v4), _mm512_castsi512_pd(v5), _mm512_castsi512_pd(v6), _mm512_castsi512_pd(v7)];
    let [v0, v1, v2, v3, v4, v5, v6, v7] = transpose([v0, v1, v2, v3, v4, v5, v6, v7]);
    let [v0, v1, v2, v3] =
        [_mm512_castpd_si512(v0), _mm512_castpd_si512(v1), _mm512_castpd_si512(v2), _mm512_castpd_si512(v3)];
    let [v4, v5, v6, v7] =
        [_mm512_castpd_si512(v4), _mm512_castpd_si512(v5), _mm512_castpd_si512(v6), _mm512_castpd_si512(v7)];
    [v0, v1, v2, v3, v4, v5, v6, v7]
}

/// The words of one vector.
type Lanes = [u64; LANES];

#[inline]
#[target_feature(enable = "avx512f")]
fn load(lanes: &Lanes) -> __m512i {
    // SAFETY: eight words are 64 bytes; the load needs no alignment.
    unsafe { _mm512_loadu_si512(std::ptr::from_ref(lanes).cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(lanes: &mut Lanes, x: __m512i) {
    // SAFETY: eight words are 64 bytes; the store needs no alignment.
    unsafe { _mm512_storeu_si512(std::ptr::from_mut(lanes).cast(), x) }
}

/// N parts of equal numbers of vectors. Loops over their indices need no check.
#[inline]
fn parts<const N: usize>(data: &mut [u64]) -> [&mut [Lanes]; N] {
    let mut rest = data.as_chunks_mut().0;
    let count = rest.len() / N;
    std::array::from_fn(|_| {
        let (part, others) = std::mem::take(&mut rest).split_at_mut(count);
        rest = others;
        part
    })
}

/// The vectors at index k of all parts. A macro, because the compiler will not inline it as a function.
macro_rules! load8 {
    ($parts:expr, $k:expr) => {{
        let ([p0, p1, p2, p3, p4, p5, p6, p7], k): (&[&mut [Lanes]; 8], usize) = (&$parts, $k);
        let [v0, v1, v2, v3] = [load(&p0[k]), load(&p1[k]), load(&p2[k]), load(&p3[k])];
        [v0, v1, v2, v3, load(&p4[k]), load(&p5[k]), load(&p6[k]), load(&p7[k])]
    }};
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store8(parts: &mut [&mut [Lanes]; 8], k: usize, v: [__m512i; 8]) {
    for (part, x) in parts.iter_mut().zip(v) {
        store(&mut part[k], x);
    }
}

impl IfmaNtt {
    /// None if this processor lacks AVX-512 F, DQ and IFMA, or if the degree is outside `64..=16384`. The modulus is that of
    /// `reference`, whose order of coefficients is kept.
    pub fn new(n: usize, reference: &TfheNtt) -> Option<Self> {
        let supported = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512ifma");
        if !supported || !(BLOCK..=MAX_DEGREE).contains(&n) || !n.is_power_of_two() {
            return None;
        }
        let modulus = *reference.modulus();
        let p = modulus.value();
        let roots = twiddles::roots(n, reference);
        let power = |bits: u32| factor(p, modulus.pow(2, u64::from(bits)));
        Some(Self {
            modulus,
            n,
            lazy: p >> (BITS - 6) == 0,
            forward: Twiddles::new(&roots, |w| factor(p, w)),
            inverse: Twiddles::new(&twiddles::inverses(&modulus, &roots), |w| factor(p, w)),
            n_inverse: factor(p, modulus.inverse(n as u64)),
            powers: [power(BITS), power(2 * BITS)],
        })
    }

    #[target_feature(enable = "avx512f")]
    fn prime(&self) -> Prime {
        let p = self.modulus.value();
        Prime {
            p: every(p),
            twice: every(2 * p),
            negative: every((1 << BITS) - p),
            barrett: every((1 << BITS) / p),
            mask: every((1 << BITS) - 1),
        }
    }

    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    fn forward(&self, data: &mut [u64]) {
        assert_eq!(data.len(), self.n);
        self.layers(data, 1);
    }

    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    fn forward_signed(&self, out: &mut [u64], signed: &[i64]) {
        let n = out.len();
        assert!(n.is_power_of_two() && (BLOCK..=self.n).contains(&n));
        assert!(signed.len() <= n && signed.len().is_multiple_of(LANES));
        let prime = self.prime();
        for (out, lanes) in out.as_chunks_mut().0.iter_mut().zip(signed.as_chunks().0) {
            store(out, _mm512_add_epi64(load(&lanes.map(|x: i64| x as u64)), prime.p));
        }
        let start = twiddles::first_layer(n, signed.len());
        let group = n / start;
        out[signed.len().min(group)..group].fill(0);
        for copy in 1..start {
            out.copy_within(..group, copy * group);
        }
        self.layers(out, start);
    }

    /// Values below 2 p to the transform in `[0, p)`. Begins with the layer of `start` groups. The length of `data` tells the
    /// subring.
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    fn layers(&self, data: &mut [u64], start: usize) {
        if self.lazy { self.layers_by::<true>(data, start) } else { self.layers_by::<false>(data, start) }
    }

    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    fn layers_by<const LAZY: bool>(&self, data: &mut [u64], start: usize) {
        let (n, prime) = (data.len(), self.prime());
        // What the first pass adds.
        let mut offset = LAZY.then(|| every(2 * self.modulus.value() * u64::from(n.trailing_zeros())));
        let (first, passes) = twiddles::passes(n);
        let mut m = start;
        while m < first {
            for (i, group) in data.chunks_exact_mut(n / m).enumerate() {
                let w = broadcast(self.forward.tree[m + i]);
                let [top, bottom] = parts(group);
                for (top, bottom) in top.iter_mut().zip(bottom) {
                    let [u, v] = raise(offset, [load(top), load(bottom)]);
                    let (u, v) = forward2::<LAZY>(prime, u, v, w);
                    store(top, u);
                    store(bottom, v);
                }
            }
            offset = None;
            m *= 2;
        }
        for m in passes.filter(|&m| m >= start) {
            for (i, group) in data.chunks_exact_mut(n / m).enumerate() {
                let w = self.forward.broadcast(m, i);
                let mut parts = parts(group);
                for k in 0..parts[0].len() {
                    let v = raise(offset, load8!(parts, k));
                    store8(&mut parts, k, forward8::<LAZY>(prime, v, &w));
                }
            }
            offset = None;
        }
        for (b, block) in data.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
            let mut parts = parts(block);
            let v = raise(offset, load8!(parts, 0));
            let v = turn(forward8::<LAZY>(prime, v, &self.forward.broadcast(n / BLOCK, b)));
            let mut v = turn(forward8::<LAZY>(prime, v, &self.forward.vectors(n / BLOCK + b)));
            for x in &mut v {
                let y = if LAZY { clean(prime, reduce(prime, *x)) } else { correct(*x, prime.twice) };
                *x = correct(y, prime.p);
            }
            store8(&mut parts, 0, v);
        }
    }

    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    fn backward(&self, data: &mut [u64]) {
        if self.lazy { self.backward_by::<true>(data) } else { self.backward_by::<false>(data) }
    }

    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    fn backward_by<const LAZY: bool>(&self, data: &mut [u64]) {
        assert_eq!(data.len(), self.n);
        let prime = self.prime();
        let n_inverse = broadcast(self.n_inverse);
        // The last pass divides by N.
        let finish = |m: usize| (m == 1).then_some(n_inverse);
        for (b, block) in data.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
            let mut parts = parts(block);
            let v = turn(load8!(parts, 0));
            let v = turn(inverse8::<LAZY>(prime, v, &self.inverse.vectors(self.n / BLOCK + b)));
            let v = inverse8::<LAZY>(prime, v, &self.inverse.broadcast(self.n / BLOCK, b));
            store8(&mut parts, 0, scale(prime, finish(self.n / BLOCK), v));
        }
        let (first, passes) = twiddles::passes(self.n);
        for m in passes.rev() {
            for (i, group) in data.chunks_exact_mut(self.n / m).enumerate() {
                let w = self.inverse.broadcast(m, i);
                let mut parts = parts(group);
                for k in 0..parts[0].len() {
                    let v = inverse8::<LAZY>(prime, load8!(parts, k), &w);
                    store8(&mut parts, k, scale(prime, finish(m), v));
                }
            }
        }
        // At most two layers are left, which end below 32 p.
        let mut bound = _mm512_slli_epi64::<2>(prime.twice);
        let mut m = first;
        while m > 1 {
            m /= 2;
            for (i, group) in data.chunks_exact_mut(self.n / m).enumerate() {
                let w = broadcast(self.inverse.tree[m + i]);
                let [top, bottom] = parts(group);
                for (top, bottom) in top.iter_mut().zip(bottom) {
                    let (u, v) = inverse2::<LAZY>(prime, bound, load(top), load(bottom), w);
                    let [u, v] = scale(prime, finish(m), [u, v]);
                    store(top, u);
                    store(bottom, v);
                }
            }
            bound = _mm512_slli_epi64::<1>(bound);
        }
    }

    /// `low + 2^52 high` below 4 p, right in all 64 bits, for `low, high < 2^52`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    fn fold(&self, prime: Prime, low: __m512i, high: __m512i) -> __m512i {
        let high = clean(prime, mul_lazy(prime, high, broadcast(self.powers[0])));
        _mm512_add_epi64(clean(prime, reduce(prime, low)), high)
    }

    /// `a b mod p` in `[0, p)` for residues.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    fn multiply(&self, prime: Prime, a: __m512i, b: __m512i) -> __m512i {
        let zero = _mm512_setzero_si512();
        let (low, high) = (_mm512_madd52lo_epu64(zero, a, b), _mm512_madd52hi_epu64(zero, a, b));
        correct(correct(self.fold(prime, low, high), prime.twice), prime.p)
    }

    /// `sum + low + 2^52 high mod p` for a residue `sum`, `low` below `2^64` and `high` below `2^61`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    fn add_wide(&self, prime: Prime, sum: __m512i, low: __m512i, high: __m512i) -> __m512i {
        let high = _mm512_add_epi64(high, _mm512_srli_epi64::<BITS>(low));
        let top = mul_lazy(prime, _mm512_srli_epi64::<BITS>(high), broadcast(self.powers[1]));
        let total = _mm512_add_epi64(self.fold(prime, low, high), clean(prime, top));
        // Below 6 p, and 7 p with the sum.
        let total = correct(_mm512_add_epi64(total, sum), _mm512_slli_epi64::<1>(prime.twice));
        correct(correct(total, prime.twice), prime.p)
    }

    /// A product is below `2^100`: a block of [`DOT_BLOCK`] terms has low halves below `2^64` and high ones below `2^60`.
    #[target_feature(enable = "avx512f,avx512ifma")]
    fn sum_of_products(&self, sum: &mut [u64], a: &[&[u64]], b: &[&[u64]]) {
        assert!(sum.len() == self.n && a.len() == b.len());
        assert!(a.iter().chain(b).all(|x| x.len() == self.n));
        let prime = self.prime();
        for (i, sums) in sum.as_chunks_mut::<DOT_WORDS>().0.iter_mut().enumerate() {
            for (a, b) in a.chunks(DOT_BLOCK).zip(b.chunks(DOT_BLOCK)) {
                let mut low = [_mm512_setzero_si512(); DOT_WORDS / LANES];
                let mut high = low;
                for (a, b) in a.iter().zip(b) {
                    let (a, b) = (&a.as_chunks::<DOT_WORDS>().0[i], &b.as_chunks::<DOT_WORDS>().0[i]);
                    let operands = a.as_chunks().0.iter().zip(b.as_chunks().0);
                    for ((low, high), (a, b)) in low.iter_mut().zip(&mut high).zip(operands) {
                        let (a, b) = (load(a), load(b));
                        *low = _mm512_madd52lo_epu64(*low, a, b);
                        *high = _mm512_madd52hi_epu64(*high, a, b);
                    }
                }
                for (sum, (low, high)) in sums.as_chunks_mut().0.iter_mut().zip(low.into_iter().zip(high)) {
                    store(sum, self.add_wide(prime, load(sum), low, high));
                }
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512ifma")]
    fn product(&self, a: &mut [u64], b: &[u64]) {
        assert!(a.len() == self.n && b.len() == self.n);
        let prime = self.prime();
        for (a, b) in a.as_chunks_mut().0.iter_mut().zip(b.as_chunks().0) {
            store(a, self.multiply(prime, load(a), load(b)));
        }
    }

    #[target_feature(enable = "avx512f,avx512ifma")]
    fn scaled(&self, a: &mut [u64], c: u64) {
        assert!(a.len() == self.n && c < self.modulus.value());
        let (prime, c) = (self.prime(), broadcast(factor(self.modulus.value(), c)));
        for a in a.as_chunks_mut().0 {
            let [x] = scale(prime, Some(c), [load(a)]);
            store(a, x);
        }
    }

    #[target_feature(enable = "avx512f,avx512ifma")]
    fn combine(&self, x: &mut [u64], y: &mut [u64], m: &[u64]) {
        assert!(x.len() == self.n && y.len() == self.n && m.len() == self.n);
        let prime = self.prime();
        for ((x, y), m) in x.as_chunks_mut().0.iter_mut().zip(y.as_chunks_mut().0).zip(m.as_chunks().0) {
            let (u, r) = (load(x), self.multiply(prime, load(y), load(m)));
            store(x, correct(_mm512_add_epi64(u, r), prime.p));
            store(y, correct(_mm512_sub_epi64(_mm512_add_epi64(u, prime.p), r), prime.p));
        }
    }
}

/// Adds the offset, if there is one.
#[inline]
#[target_feature(enable = "avx512f")]
fn raise<const N: usize>(offset: Option<__m512i>, mut v: [__m512i; N]) -> [__m512i; N] {
    if let Some(offset) = offset {
        for x in &mut v {
            *x = _mm512_add_epi64(*x, offset);
        }
    }
    v
}

/// Multiplies by the factor, if there is one, to `[0, p)`.
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
fn scale<const N: usize>(prime: Prime, factor: Option<[__m512i; 2]>, mut v: [__m512i; N]) -> [__m512i; N] {
    if let Some(factor) = factor {
        for x in &mut v {
            *x = correct(clean(prime, mul_lazy(prime, *x, factor)), prime.p);
        }
    }
    v
}

impl NttBackend for IfmaNtt {
    fn modulus(&self) -> &Modulus {
        &self.modulus
    }

    fn degree(&self) -> usize {
        self.n
    }

    fn fwd(&self, poly: &mut [u64]) {
        // SAFETY: `new` found AVX-512 F, DQ and IFMA.
        unsafe { self.forward(poly) }
    }

    fn fwd_signed(&self, out: &mut [u64], signed: &[i64]) {
        assert_eq!(out.len(), self.n);
        // SAFETY: `new` found AVX-512 F, DQ and IFMA.
        unsafe { self.forward_signed(out, signed) }
    }

    fn fwd_factor(&self, out: &mut [u64], signed: &[i64]) {
        // SAFETY: `new` found AVX-512 F, DQ and IFMA.
        unsafe { self.forward_signed(out, signed) }
    }

    fn inv(&self, poly: &mut [u64]) {
        // SAFETY: `new` found AVX-512 F, DQ and IFMA.
        unsafe { self.backward(poly) }
    }

    fn dot(&self, sum: &mut [u64], a: &[&[u64]], b: &[&[u64]]) {
        // SAFETY: `new` found AVX-512 F and IFMA.
        unsafe { self.sum_of_products(sum, a, b) }
    }

    fn interleave(&self, polys: &[u64], points: usize, out: &mut [u64], pitch: usize) {
        // SAFETY: `new` found AVX-512 F and DQ.
        unsafe { self.interleave_tiles(polys, points, out, pitch) }
    }

    fn matmul(&self, sums: &mut [u64], a: &[u64], w: &[u64]) {
        // SAFETY: `new` found AVX-512 F and IFMA.
        unsafe { self.matrix_product(sums, a, w) }
    }

    fn butterfly(&self, x: &mut [u64], y: &mut [u64], m: &[u64]) {
        // SAFETY: `new` found AVX-512 F and IFMA.
        unsafe { self.combine(x, y, m) }
    }

    fn scale(&self, a: &mut [u64], c: u64) {
        // SAFETY: `new` found AVX-512 F and IFMA.
        unsafe { self.scaled(a, c) }
    }

    fn pointwise(&self, a: &mut [u64], b: &[u64]) {
        // SAFETY: `new` found AVX-512 F and IFMA.
        unsafe { self.product(a, b) }
    }
}
