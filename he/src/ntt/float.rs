//! Transforms in double precision for AVX-512. On a processor without IFMA they take 0.6 of the time of 64-bit integer
//! kernels, and sums of products less than a third (`examples/costs.rs`).
//!
//! Residues are integers of absolute value below `2^53`, held exactly in `f64`. A product modulo p takes two roundings
//! that a fused multiply-add undoes (Dekker's product):
//!
//! `h = fl(v w)`, `l = v w - h` (exact), `q = rint(fl(v w'))` with `w' = fl(w / p)`, `r = (h - q p) + l`.
//!
//! For `|w| <= p / 2` and `|v| = c p < 2^53` the quotient before rounding is off by at most `|v| 2^-53`, hence
//! `|r| <= p (1/2 + |v| 2^-53) <= p (1/2 + c / 8)` as `p < 2^50`. `h - q p = r - l` is an integer below `2^53`, so both
//! last operations are exact.
//!
//! Growth, in units of p. Forward, a layer maps c to at most `c + 1/2 + c / 8`: from 1/2 that is 7.6 after 8 layers. Up to
//! 8 layers (N <= 16384) come before the blocks of 64, whose six layers start again from 1/2 and end at 5.2. Inverse, three
//! layers from 1/2 give at most 4 (sums) or 1 (products). All stay below 8, that is below `2^53`.
//!
//! The order of the transformed coefficients is that of `tfhe-ntt`, so both backends agree on what goes over the wire.

use super::twiddles::{self, BLOCK, RADIX8, Twiddles};
use super::{LANES, NttBackend};
use crate::modulus::Modulus;
use crate::ntt::TfheNtt;
use std::arch::x86_64::*;

mod product;

/// Terms of a sum of products between reductions.
const DOT_BLOCK: usize = 8;
/// `1.5 2^52`: a double of absolute value below `2^51` plus this number is rounded to an integer.
const ROUND: f64 = 6755399441055744.0;
/// Largest degree for which the bounds above hold.
const MAX_DEGREE: usize = 16384;

/// The AVX-512 backend.
#[derive(Debug)]
pub struct FloatNtt {
    modulus: Modulus,
    n: usize,
    forward: Twiddles<f64>,
    inverse: Twiddles<f64>,
    n_inverse: [f64; 2],
}

impl Twiddles<f64> {
    /// Factors of three merged layers, the first of which has m groups, for its group i.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    fn broadcast(&self, m: usize, i: usize) -> [[__m512d; 2]; RADIX8] {
        let first = m + i;
        let indices = [first, 2 * first, 2 * first + 1, 4 * first, 4 * first + 1, 4 * first + 2, 4 * first + 3];
        let mut w = [[_mm512_setzero_pd(); 2]; RADIX8];
        for (w, &index) in w.iter_mut().zip(&indices) {
            *w = broadcast(self.tree[index]);
        }
        w
    }

    /// Factors of the last three layers for the eight groups of the block at index b.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    fn vectors(&self, b: usize) -> [[__m512d; 2]; RADIX8] {
        let mut w = [[_mm512_setzero_pd(); 2]; RADIX8];
        for (w, [root, quotient]) in w.iter_mut().zip(&self.lanes[b]) {
            // SAFETY: both arrays hold exactly LANES doubles.
            *w = unsafe { [_mm512_loadu_pd(root.as_ptr()), _mm512_loadu_pd(quotient.as_ptr())] };
        }
        w
    }
}

/// One factor in all lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn broadcast([w, quotient]: [f64; 2]) -> [__m512d; 2] {
    [_mm512_set1_pd(w), _mm512_set1_pd(quotient)]
}

/// `w < p` as a number of absolute value at most p / 2, with its quotient by p.
fn factor(p: u64, w: u64) -> [f64; 2] {
    let w = if w > p / 2 { w as f64 - p as f64 } else { w as f64 };
    [w, w / p as f64]
}

/// p and 1 / p in every lane.
#[derive(Clone, Copy)]
struct Prime {
    p: __m512d,
    inverse: __m512d,
}

/// `v w mod p`: `|v| = c p < 2^53`, `|w| <= p / 2` -> `|r| <= p (1/2 + c / 8)`.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn mul_mod(prime: Prime, v: __m512d, [w, quotient]: [__m512d; 2]) -> __m512d {
    let h = _mm512_mul_pd(v, w);
    let l = _mm512_fmsub_pd(v, w, h);
    let q = rint(_mm512_mul_pd(v, quotient));
    _mm512_add_pd(_mm512_fnmadd_pd(q, prime.p, h), l)
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn rint(x: __m512d) -> __m512d {
    _mm512_roundscale_pd::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x)
}

/// `|x| < 2^53` -> `|x| <= p / 2 + 1`.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn centre(prime: Prime, x: __m512d) -> __m512d {
    _mm512_fnmadd_pd(rint(_mm512_mul_pd(x, prime.inverse)), prime.p, x)
}

/// `|x| < 2^53` -> `[0, p)` as integers.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn canonical(prime: Prime, x: __m512d) -> __m512i {
    let x = centre(prime, x);
    let negative = _mm512_movepi64_mask(_mm512_castpd_si512(x));
    // A zero of either sign converts to 0; -0.0 must not gain p.
    let negative = negative & _mm512_cmp_pd_mask::<_CMP_NEQ_OQ>(x, _mm512_setzero_pd());
    _mm512_cvtpd_epu64(_mm512_mask_add_pd(x, negative, x, prime.p))
}

/// `(u + v w, u - v w)`.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn forward2(prime: Prime, u: __m512d, v: __m512d, w: [__m512d; 2]) -> (__m512d, __m512d) {
    let product = mul_mod(prime, v, w);
    (_mm512_add_pd(u, product), _mm512_sub_pd(u, product))
}

/// `(u + v, (u - v) w)`.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn inverse2(prime: Prime, u: __m512d, v: __m512d, w: [__m512d; 2]) -> (__m512d, __m512d) {
    (_mm512_add_pd(u, v), mul_mod(prime, _mm512_sub_pd(u, v), w))
}

/// Three forward layers over eight vectors. Written out, for the vectors to stay in registers.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
#[rustfmt::skip]
fn forward8(prime: Prime, v: [__m512d; 8], w: &[[__m512d; 2]; RADIX8]) -> [__m512d; 8] {
    let [v0, v1, v2, v3, v4, v5, v6, v7] = v;
    let (v0, v4) = forward2(prime, v0, v4, w[0]);
    let (v1, v5) = forward2(prime, v1, v5, w[0]);
    let (v2, v6) = forward2(prime, v2, v6, w[0]);
    let (v3, v7) = forward2(prime, v3, v7, w[0]);
    let (v0, v2) = forward2(prime, v0, v2, w[1]);
    let (v1, v3) = forward2(prime, v1, v3, w[1]);
    let (v4, v6) = forward2(prime, v4, v6, w[2]);
    let (v5, v7) = forward2(prime, v5, v7, w[2]);
    let (v0, v1) = forward2(prime, v0, v1, w[3]);
    let (v2, v3) = forward2(prime, v2, v3, w[4]);
    let (v4, v5) = forward2(prime, v4, v5, w[5]);
    let (v6, v7) = forward2(prime, v6, v7, w[6]);
    [v0, v1, v2, v3, v4, v5, v6, v7]
}

/// Three inverse layers over eight vectors, which are centred before.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
#[rustfmt::skip]
fn inverse8(prime: Prime, v: [__m512d; 8], w: &[[__m512d; 2]; RADIX8]) -> [__m512d; 8] {
    let [v0, v1, v2, v3, v4, v5, v6, v7] = centre8(prime, v);
    let (v0, v1) = inverse2(prime, v0, v1, w[3]);
    let (v2, v3) = inverse2(prime, v2, v3, w[4]);
    let (v4, v5) = inverse2(prime, v4, v5, w[5]);
    let (v6, v7) = inverse2(prime, v6, v7, w[6]);
    let (v0, v2) = inverse2(prime, v0, v2, w[1]);
    let (v1, v3) = inverse2(prime, v1, v3, w[1]);
    let (v4, v6) = inverse2(prime, v4, v6, w[2]);
    let (v5, v7) = inverse2(prime, v5, v7, w[2]);
    let (v0, v4) = inverse2(prime, v0, v4, w[0]);
    let (v1, v5) = inverse2(prime, v1, v5, w[0]);
    let (v2, v6) = inverse2(prime, v2, v6, w[0]);
    let (v3, v7) = inverse2(prime, v3, v7, w[0]);
    [v0, v1, v2, v3, v4, v5, v6, v7]
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn centre8(prime: Prime, [v0, v1, v2, v3, v4, v5, v6, v7]: [__m512d; 8]) -> [__m512d; 8] {
    let [v0, v1, v2, v3] = [centre(prime, v0), centre(prime, v1), centre(prime, v2), centre(prime, v3)];
    [v0, v1, v2, v3, centre(prime, v4), centre(prime, v5), centre(prime, v6), centre(prime, v7)]
}

/// Rows become columns.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
pub(super) fn transpose([v0, v1, v2, v3, v4, v5, v6, v7]: [__m512d; 8]) -> [__m512d; 8] {
    // Per 128-bit lane i: column 2i (even) or 2i + 1 (odd) of a pair of rows.
    let even = [
        _mm512_unpacklo_pd(v0, v1),
        _mm512_unpacklo_pd(v2, v3),
        _mm512_unpacklo_pd(v4, v5),
        _mm512_unpacklo_pd(v6, v7),
    ];
    let odd = [
        _mm512_unpackhi_pd(v0, v1),
        _mm512_unpackhi_pd(v2, v3),
        _mm512_unpackhi_pd(v4, v5),
        _mm512_unpackhi_pd(v6, v7),
    ];
    let ([c0, c2, c4, c6], [c1, c3, c5, c7]) = (transpose_lanes(even), transpose_lanes(odd));
    [c0, c1, c2, c3, c4, c5, c6, c7]
}

/// Transposes a 4 x 4 matrix of 128-bit lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn transpose_lanes([r0, r1, r2, r3]: [__m512d; 4]) -> [__m512d; 4] {
    // Lanes 0, 2 and lanes 1, 3 of two rows each.
    let (even01, even23) = (_mm512_shuffle_f64x2::<0x88>(r0, r1), _mm512_shuffle_f64x2::<0x88>(r2, r3));
    let (odd01, odd23) = (_mm512_shuffle_f64x2::<0xdd>(r0, r1), _mm512_shuffle_f64x2::<0xdd>(r2, r3));
    [
        _mm512_shuffle_f64x2::<0x88>(even01, even23),
        _mm512_shuffle_f64x2::<0x88>(odd01, odd23),
        _mm512_shuffle_f64x2::<0xdd>(even01, even23),
        _mm512_shuffle_f64x2::<0xdd>(odd01, odd23),
    ]
}

/// Eight vectors, `stride` words apart. A macro, because the compiler will not inline it as a function.
macro_rules! load8 {
    ($data:expr, $first:expr, $stride:expr) => {{
        let (data, first, stride): (&[u64], usize, usize) = ($data, $first, $stride);
        [
            load(data, first),
            load(data, first + stride),
            load(data, first + 2 * stride),
            load(data, first + 3 * stride),
            load(data, first + 4 * stride),
            load(data, first + 5 * stride),
            load(data, first + 6 * stride),
            load(data, first + 7 * stride),
        ]
    }};
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn store8(data: &mut [u64], first: usize, stride: usize, v: [__m512d; 8]) {
    for (j, x) in v.into_iter().enumerate() {
        store(data, first + j * stride, x);
    }
}

/// A vector of doubles at `data[i ..]`.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn load(data: &[u64], i: usize) -> __m512d {
    let lanes = &data[i..i + LANES];
    // SAFETY: the slice above has exactly LANES words; every bit pattern is a double.
    unsafe { _mm512_loadu_pd(lanes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn store(data: &mut [u64], i: usize, x: __m512d) {
    let lanes = &mut data[i..i + LANES];
    // SAFETY: the slice above has exactly LANES words.
    unsafe { _mm512_storeu_pd(lanes.as_mut_ptr().cast(), x) }
}

/// Words `data[i ..]`, integers below `2^53`, as doubles.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn load_integers(data: &[u64], i: usize) -> __m512d {
    _mm512_cvtepu64_pd(_mm512_castpd_si512(load(data, i)))
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn store_integers(data: &mut [u64], i: usize, x: __m512i) {
    store(data, i, _mm512_castsi512_pd(x));
}

impl FloatNtt {
    /// None if this processor lacks AVX-512 F and DQ, or if the degree is outside `64..=16384`. The modulus is that of
    /// `reference`, whose order of coefficients is kept.
    pub fn new(n: usize, reference: &TfheNtt) -> Option<Self> {
        let supported = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512dq");
        if !supported || !(BLOCK..=MAX_DEGREE).contains(&n) || !n.is_power_of_two() {
            return None;
        }
        let modulus = *reference.modulus();
        let roots = twiddles::roots(n, reference);
        let p = modulus.value();
        Some(Self {
            modulus,
            n,
            forward: Twiddles::new(&roots, |w| factor(p, w)),
            inverse: Twiddles::new(&twiddles::inverses(&modulus, &roots), |w| factor(p, w)),
            n_inverse: factor(p, modulus.inverse(n as u64)),
        })
    }

    #[target_feature(enable = "avx512f,avx512dq")]
    fn prime(&self) -> Prime {
        let p = self.modulus.value() as f64;
        Prime { p: _mm512_set1_pd(p), inverse: _mm512_set1_pd(1.0 / p) }
    }

    #[target_feature(enable = "avx512f,avx512dq")]
    fn forward(&self, data: &mut [u64]) {
        self.doubles(data);
        self.layers::<false>(data, 1);
    }

    #[target_feature(enable = "avx512f,avx512dq")]
    fn forward_signed<const FACTOR: bool>(&self, out: &mut [u64], signed: &[i64]) {
        let n = out.len();
        assert!(n.is_power_of_two() && (BLOCK..=self.n).contains(&n));
        assert!(signed.len() <= n && signed.len().is_multiple_of(LANES));
        let prime = self.prime();
        for (i, lanes) in signed.chunks_exact(LANES).enumerate() {
            // SAFETY: the chunk has exactly LANES words.
            let x = unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) };
            store(out, i * LANES, centre(prime, _mm512_cvtepi64_pd(x)));
        }
        let start = twiddles::first_layer(n, signed.len());
        let group = n / start;
        // The bits of zero are those of 0.0.
        out[signed.len().min(group)..group].fill(0);
        for copy in 1..start {
            out.copy_within(..group, copy * group);
        }
        self.layers::<FACTOR>(out, start);
    }

    /// Doubles of absolute value at most p / 2 + 1 to the transform, as such doubles (`FACTOR`) or in `[0, p)`. Begins with
    /// the layer of `start` groups. The length of `data` tells the subring.
    #[target_feature(enable = "avx512f,avx512dq")]
    fn layers<const FACTOR: bool>(&self, data: &mut [u64], start: usize) {
        let (n, prime) = (data.len(), self.prime());
        let (first, passes) = twiddles::passes(n);
        let mut m = start;
        while m < first {
            let half = n / (2 * m);
            for i in 0..m {
                let w = broadcast(self.forward.tree[m + i]);
                for k in (2 * i * half..(2 * i + 1) * half).step_by(LANES) {
                    let (u, v) = (load(data, k), mul_mod(prime, load(data, k + half), w));
                    store(data, k, _mm512_add_pd(u, v));
                    store(data, k + half, _mm512_sub_pd(u, v));
                }
            }
            m *= 2;
        }
        for m in passes.filter(|&m| m >= start) {
            let stride = n / (8 * m);
            for i in 0..m {
                let w = self.forward.broadcast(m, i);
                for k in (8 * i * stride..(8 * i + 1) * stride).step_by(LANES) {
                    store8(data, k, stride, forward8(prime, load8!(data, k, stride), &w));
                }
            }
        }
        for b in 0..n / BLOCK {
            let v = centre8(prime, load8!(data, b * BLOCK, LANES));
            let v = transpose(forward8(prime, v, &self.forward.broadcast(n / BLOCK, b)));
            let v = transpose(forward8(prime, v, &self.forward.vectors(n / BLOCK + b)));
            for (j, x) in v.into_iter().enumerate() {
                let i = b * BLOCK + j * LANES;
                if FACTOR {
                    store(data, i, centre(prime, x));
                } else {
                    store_integers(data, i, canonical(prime, x));
                }
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512dq")]
    fn backward(&self, data: &mut [u64]) {
        assert_eq!(data.len(), self.n);
        let prime = self.prime();
        for b in 0..self.n / BLOCK {
            let mut v = load8!(data, b * BLOCK, LANES);
            for x in &mut v {
                *x = _mm512_cvtepu64_pd(_mm512_castpd_si512(*x));
            }
            let v = transpose(inverse8(prime, transpose(v), &self.inverse.vectors(self.n / BLOCK + b)));
            store8(data, b * BLOCK, LANES, inverse8(prime, v, &self.inverse.broadcast(self.n / BLOCK, b)));
        }
        let (first, passes) = twiddles::passes(self.n);
        for m in passes.rev() {
            let stride = self.n / (8 * m);
            for i in 0..m {
                let w = self.inverse.broadcast(m, i);
                for k in (8 * i * stride..(8 * i + 1) * stride).step_by(LANES) {
                    store8(data, k, stride, inverse8(prime, load8!(data, k, stride), &w));
                }
            }
        }
        let mut m = first;
        while m > 1 {
            m /= 2;
            let half = self.n / (2 * m);
            for i in 0..m {
                let w = broadcast(self.inverse.tree[m + i]);
                for k in (2 * i * half..(2 * i + 1) * half).step_by(LANES) {
                    let (u, v) = (centre(prime, load(data, k)), centre(prime, load(data, k + half)));
                    store(data, k, _mm512_add_pd(u, v));
                    store(data, k + half, mul_mod(prime, _mm512_sub_pd(u, v), w));
                }
            }
        }
        let n_inverse = broadcast(self.n_inverse);
        for i in (0..self.n).step_by(LANES) {
            let x = mul_mod(prime, load(data, i), n_inverse);
            store_integers(data, i, canonical(prime, x));
        }
    }

    /// Residues to doubles of absolute value at most p / 2 + 1.
    #[target_feature(enable = "avx512f,avx512dq")]
    fn doubles(&self, poly: &mut [u64]) {
        assert_eq!(poly.len(), self.n);
        let prime = self.prime();
        for i in (0..self.n).step_by(LANES) {
            store(poly, i, centre(prime, load_integers(poly, i)));
        }
    }

    /// A sum of products of doubles as [`Self::doubles`] leaves them.
    ///
    /// A product is below `2^98 + 2^51`, so its rounded value h is off by at most `2^45`, which l holds exactly. The
    /// quotient `h / p` is below `2^49` and computed with an error below 1/8: `h - q p` is an integer of absolute value at
    /// most `(1/2 + 1/8) p`. A block of [`DOT_BLOCK`] terms, on top of a sum below p, stays below
    /// `6 p + 8 2^45 < 2^53`: nothing is rounded.
    #[target_feature(enable = "avx512f,avx512dq")]
    fn sum_of_products(&self, sum: &mut [u64], a: &[&[u64]], b: &[&[u64]]) {
        assert!(sum.len() == self.n && a.len() == b.len());
        assert!(a.iter().chain(b).all(|x| x.len() == self.n));
        let prime = self.prime();
        let magic = _mm512_set1_pd(ROUND);
        for i in (0..self.n).step_by(LANES) {
            let mut total = load_integers(sum, i);
            for (a, b) in a.chunks(DOT_BLOCK).zip(b.chunks(DOT_BLOCK)) {
                let mut low = _mm512_setzero_pd();
                for (a, b) in a.iter().zip(b) {
                    let (a, b) = (load(a, i), load(b, i));
                    let h = _mm512_mul_pd(a, b);
                    low = _mm512_add_pd(low, _mm512_fmsub_pd(a, b, h));
                    let q = _mm512_sub_pd(_mm512_fmadd_pd(h, prime.inverse, magic), magic);
                    total = _mm512_add_pd(total, _mm512_fnmadd_pd(q, prime.p, h));
                }
                total = centre(prime, _mm512_add_pd(total, low));
            }
            store_integers(sum, i, canonical(prime, total));
        }
    }

    /// `a[i] = a[i] b[i] mod p`.
    #[target_feature(enable = "avx512f,avx512dq")]
    fn product(&self, a: &mut [u64], b: &[u64]) {
        assert!(a.len() == self.n && b.len() == self.n);
        let prime = self.prime();
        for i in (0..self.n).step_by(LANES) {
            let r = multiply(prime, load_integers(a, i), load_integers(b, i));
            store_integers(a, i, canonical(prime, r));
        }
    }

    #[target_feature(enable = "avx512f,avx512dq")]
    fn scaled(&self, a: &mut [u64], c: u64) {
        assert!(a.len() == self.n && c < self.modulus.value());
        let (prime, c) = (self.prime(), _mm512_set1_pd(c as f64));
        for i in (0..self.n).step_by(LANES) {
            store_integers(a, i, canonical(prime, multiply(prime, load_integers(a, i), c)));
        }
    }

    #[target_feature(enable = "avx512f,avx512dq")]
    fn combine(&self, x: &mut [u64], y: &mut [u64], m: &[u64]) {
        assert!(x.len() == self.n && y.len() == self.n && m.len() == self.n);
        let prime = self.prime();
        for i in (0..self.n).step_by(LANES) {
            let r = multiply(prime, load_integers(y, i), load(m, i));
            let u = load_integers(x, i);
            // Below 2 p in absolute value.
            store_integers(x, i, canonical(prime, _mm512_add_pd(u, r)));
            store_integers(y, i, canonical(prime, _mm512_sub_pd(u, r)));
        }
    }
}

/// `a b mod p` for |a|, |b| < p: the quotient is below `2^50` and off by less than 1/4 before rounding, so the result is an
/// integer of absolute value at most 3/4 p, up to the exact remainder of the rounded product below `2^47`.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn multiply(prime: Prime, a: __m512d, b: __m512d) -> __m512d {
    let h = _mm512_mul_pd(a, b);
    let q = rint(_mm512_mul_pd(h, prime.inverse));
    _mm512_add_pd(_mm512_fnmadd_pd(q, prime.p, h), _mm512_fmsub_pd(a, b, h))
}

impl NttBackend for FloatNtt {
    fn modulus(&self) -> &Modulus {
        &self.modulus
    }

    fn degree(&self) -> usize {
        self.n
    }

    fn fwd(&self, poly: &mut [u64]) {
        // SAFETY: `new` found AVX-512 F and DQ.
        unsafe { self.forward(poly) }
    }

    fn fwd_signed(&self, out: &mut [u64], signed: &[i64]) {
        assert_eq!(out.len(), self.n);
        // SAFETY: `new` found AVX-512 F and DQ.
        unsafe { self.forward_signed::<false>(out, signed) }
    }

    fn fwd_factor(&self, out: &mut [u64], signed: &[i64]) {
        // SAFETY: `new` found AVX-512 F and DQ.
        unsafe { self.forward_signed::<true>(out, signed) }
    }

    fn inv(&self, poly: &mut [u64]) {
        // SAFETY: `new` found AVX-512 F and DQ.
        unsafe { self.backward(poly) }
    }

    fn factor(&self, poly: &mut [u64]) {
        // SAFETY: `new` found AVX-512 F and DQ.
        unsafe { self.doubles(poly) }
    }

    fn dot(&self, sum: &mut [u64], a: &[&[u64]], b: &[&[u64]]) {
        // SAFETY: `new` found AVX-512 F and DQ.
        unsafe { self.sum_of_products(sum, a, b) }
    }

    fn weight_words(&self) -> usize {
        product::PARTS
    }

    fn interleave(&self, polys: &[u64], points: usize, out: &mut [u64], pitch: usize) {
        // SAFETY: `new` found AVX-512 F and DQ.
        unsafe { self.interleave_halves(polys, points, out, pitch) }
    }

    fn matmul(&self, sums: &mut [u64], a: &[u64], w: &[u64]) {
        // SAFETY: `new` found AVX-512 F and DQ.
        unsafe { self.matrix_product(sums, a, w) }
    }

    fn butterfly(&self, x: &mut [u64], y: &mut [u64], m: &[u64]) {
        // SAFETY: `new` found AVX-512 F and DQ.
        unsafe { self.combine(x, y, m) }
    }

    fn scale(&self, a: &mut [u64], c: u64) {
        // SAFETY: `new` found AVX-512 F and DQ.
        unsafe { self.scaled(a, c) }
    }

    fn pointwise(&self, a: &mut [u64], b: &[u64]) {
        // SAFETY: `new` found AVX-512 F and DQ.
        unsafe { self.product(a, b) }
    }
}
