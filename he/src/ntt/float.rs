//! Transforms in double precision for AVX-512. On a processor without IFMA they take 0.6 of the time of 64-bit
//! integer kernels, and sums of products less than a third (`bench/examples/he_costs.rs`).
//!
//! The working form of a residue is an integer of absolute value below `2^53`, held exactly in `f64`. A product
//! modulo p takes two roundings, which a fused multiply-add undoes (Dekker's product):
//!
//! `h = fl(v w)`, `l = v w - h` (exact), `q = fl(v w' + M) - M` with `w' = fl(w / p)`, `r = (h - q p) + l`.
//!
//! Adding `M = 1.5 2^52` rounds a number below `2^51` to an integer, at once with the product.
//!
//! **One product.** Let `|w| <= p / 2` and `|v| = c p`, with `c p < 2^52`. The quotient is below `2^51`, and before
//! rounding it is off by at most `c p 2^-55`, as `w'` is off by `2^-55`. Hence `|r| <= p (1/2 + c p 2^-55)`. The
//! difference `h - q p = r - l` is an integer below `2^53`, so both last operations are exact.
//!
//! **Growth**, in units of p. Moduli below `2^46` leave room for 64, and nothing is centred between layers. Forward,
//! a layer adds at most `1/2 + c 2^-9`: 14 layers from 1 end below 9. Inverse, the value of a pass that is only added
//! up is centred: passes begin at 3 or less, their third layer multiplies 24 at most, and sums of products end at
//! `4 x 0.55`.
//!
//! Moduli below `2^50` leave room for 4. Forward, a layer maps c to at most `1/2 + c (1 + 1/32)`: from 1/2, the
//! seventh multiplies 3.9 and ends at 4.5. Seven layers (N = 8192) may come before the blocks of 64, whose six begin
//! again at 1/2. With an eighth its quotients reach `2^51.2` and those above `2^51` are rounded to even integers; it
//! ends at 5.7. Inverse, values are centred before three layers, the third of which multiplies at most
//! `8 (p / 2 + 1)`.

use super::avx512::{self, doubles, transpose, words};
use super::backend::{LANES, Lanes, half_bits};
use super::doubles::arithmetic;
use super::driver::{self, Kernel, Tables};
use super::portable::TfheNtt;
use crate::modulus::Modulus;
use std::arch::x86_64::*;
use waggle_bits::cpu::{Cpu, Feature};

mod product;

/// Number of terms of a sum of products between two reductions.
pub(super) const DOT_BLOCK: usize = 8;
/// `1.5 2^52`: a double of absolute value below `2^51` plus this number is rounded to an integer.
pub(super) const ROUND: f64 = 6755399441055744.0;

/// The backend in double precision on AVX-512.
#[derive(Debug)]
pub(super) struct FloatNtt {
    tables: Tables<f64>,
}

/// A number to add to a quotient that may be an integer, before its floor is taken.
pub(super) const NUDGE: f64 = 1.0 / (1u64 << 48) as f64;
/// Largest number of bits of a modulus whose values need no centring between layers.
const NARROW_BITS: u32 = 46;

/// Whether values are centred between layers.
pub(super) fn is_wide(modulus: &Modulus) -> bool {
    modulus.bits() > NARROW_BITS
}

/// `w < p` as a number of absolute value at most p / 2, with its quotient by p.
pub(super) fn factor(p: u64, w: u64) -> [f64; 2] {
    let w = if w > p / 2 { w as f64 - p as f64 } else { w as f64 };
    [w, w / p as f64]
}

arithmetic!(
    __m512d,
    "avx512f,avx512dq",
    _mm512_set1_pd,
    _mm512_mul_pd,
    _mm512_add_pd,
    _mm512_sub_pd,
    _mm512_fmadd_pd,
    _mm512_fmsub_pd,
    _mm512_fnmadd_pd
);

/// The kernel. WIDE is set for moduli of more than [`NARROW_BITS`] bits.
#[derive(Clone, Copy)]
struct Float<const WIDE: bool>(Prime, Halves);

/// Evaluates the body with the kernel that fits the modulus of a backend.
macro_rules! with_float {
    ($this:expr, $k:ident => $body:expr) => {{
        let p = $this.tables.modulus.value();
        let (prime, halves) = (Prime::new(p), Halves::new(p));
        if is_wide(&$this.tables.modulus) {
            let $k = Float::<true>(prime, halves);
            $body
        } else {
            let $k = Float::<false>(prime, halves);
            $body
        }
    }};
}

impl<const WIDE: bool> Kernel for Float<WIDE> {
    type Vector = __m512d;
    type Word = f64;
    const CONVERTS: bool = true;

    driver::methods! {
        fn load(self, from: &Lanes) -> __m512d { doubles(avx512::load(from)) }
        fn store(self, to: &mut Lanes, x: __m512d) -> () { avx512::store(to, words(x)) }
        fn splat(self, x: f64) -> __m512d { _mm512_set1_pd(x) }
        fn table(self, from: &[f64; LANES]) -> __m512d { load_doubles(from) }
        fn transpose(self, v: [__m512d; 8]) -> [__m512d; 8] { transpose(v) }

        fn read(self, x: __m512d) -> __m512d { _mm512_cvtepu64_pd(words(x)) }
        fn signed(self, from: &[i64; LANES]) -> __m512d { self.settle(load_signed(from)) }
        fn finish(self, x: __m512d) -> __m512d { if WIDE { canonical(self.0, x) } else { floored(self.0, x) } }
        fn factor(self, x: __m512d) -> __m512d { centre(self.0, x) }
        fn place(self, to: &mut [u64], x: __m512d) -> () {
            let [low, high, sum] = self.1.split(x);
            let to = to.as_chunks_mut().0;
            store(&mut to[0], low);
            store(&mut to[1], high);
            store(&mut to[2], sum);
        }

        fn add(self, x: __m512d, y: __m512d) -> __m512d { _mm512_add_pd(x, y) }
        fn settle(self, x: __m512d) -> __m512d { if WIDE { centre(self.0, x) } else { x } }
        fn tame(self, x: __m512d) -> __m512d { if WIDE { x } else { centre(self.0, x) } }

        fn forward(self, u: __m512d, v: __m512d, w: [__m512d; 2]) -> [__m512d; 2] { forward2(self.0, u, v, w) }
        fn bound(self, _log: u32) -> __m512d { _mm512_setzero_pd() }
        fn inverse(self, _bound: __m512d, u: __m512d, v: __m512d, w: [__m512d; 2]) -> [__m512d; 2] {
            inverse2(self.0, u, v, w)
        }
        fn scale(self, x: __m512d, w: [__m512d; 2]) -> __m512d { lifted(self.0, mul_mod(self.0, x, w)) }

        fn multiply(self, a: __m512d, b: __m512d) -> __m512d { multiply(self.0, a, b) }
        fn product(self, x: __m512d) -> __m512d { lifted(self.0, x) }
        // Below 2 p in absolute value.
        fn sums(self, u: __m512d, r: __m512d) -> [__m512d; 2] {
            [canonical(self.0, _mm512_add_pd(u, r)), canonical(self.0, _mm512_sub_pd(u, r))]
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_doubles(lanes: &[f64; LANES]) -> __m512d {
    // SAFETY: the array has exactly eight doubles; the load needs no alignment.
    unsafe { _mm512_loadu_pd(lanes.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn load_signed(lanes: &[i64; LANES]) -> __m512d {
    // SAFETY: the array has exactly eight words; the load needs no alignment.
    _mm512_cvtepi64_pd(unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) })
}

/// The residue in `[0, p)` as a word, for `|x| < p`. A zero of either sign is 0.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn lifted(prime: Prime, x: __m512d) -> __m512d {
    let negative = _mm512_cmp_pd_mask::<_CMP_LT_OQ>(x, _mm512_setzero_pd());
    doubles(_mm512_cvtpd_epu64(_mm512_mask_add_pd(x, negative, x, prime.p)))
}

/// The residue in `[0, p)` as a word, for `|x| < 9 p` and narrow moduli. Then `x / p` is an integer or at least
/// `2^-46` away from one, and the product and the sum are off by less than `2^-49` together.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn floored(prime: Prime, x: __m512d) -> __m512d {
    let q = _mm512_fmadd_pd(x, prime.inverse, _mm512_set1_pd(NUDGE));
    let q = _mm512_roundscale_pd::<{ _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC }>(q);
    doubles(_mm512_cvtpd_epu64(_mm512_fnmadd_pd(q, prime.p, x)))
}

/// A forward butterfly: `(u + v w, u - v w)`.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn forward2(prime: Prime, u: __m512d, v: __m512d, w: [__m512d; 2]) -> [__m512d; 2] {
    let product = mul_mod(prime, v, w);
    [_mm512_add_pd(u, product), _mm512_sub_pd(u, product)]
}

/// An inverse butterfly: `(u + v, (u - v) w)`.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn inverse2(prime: Prime, u: __m512d, v: __m512d, w: [__m512d; 2]) -> [__m512d; 2] {
    [_mm512_add_pd(u, v), mul_mod(prime, _mm512_sub_pd(u, v), w)]
}

/// Loads eight residues, which are integers, as doubles.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn load_integers(lanes: &Lanes) -> __m512d {
    _mm512_cvtepu64_pd(avx512::load(lanes))
}

/// Loads eight lanes without a change: doubles, or words that [`canonical`] has made.
#[inline]
#[target_feature(enable = "avx512f")]
fn load(lanes: &Lanes) -> __m512d {
    doubles(avx512::load(lanes))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(lanes: &mut Lanes, x: __m512d) {
    avx512::store(lanes, words(x));
}

impl FloatNtt {
    /// `None` if [`Cpu::get`] lacks AVX-512, or if the degree is not a power of two in `64..=16384`. The modulus and
    /// the order of coefficients are those of `reference`.
    pub(super) fn new(n: usize, reference: &TfheNtt) -> Option<Self> {
        if !Cpu::get().has(Feature::Avx512) {
            return None;
        }
        let p = reference.prime();
        Some(Self { tables: Tables::new(n, reference, |w| factor(p, w))? })
    }

    /// A sum of products of doubles as [`driver::factor`] leaves them.
    ///
    /// A product is below `2^98 + 2^51`, so its rounded value h is off by at most `2^45`, which l holds exactly. The
    /// quotient `h / p` is below `2^49` and computed with an error below 1/8: `h - q p` is an integer of absolute
    /// value at most `(1/2 + 1/8) p`. A block of [`DOT_BLOCK`] terms, on top of a sum below p, stays below
    /// `6 p + 8 2^45 < 2^53`: nothing is rounded.
    #[target_feature(enable = "avx512f,avx512dq")]
    fn sum_of_products(&self, sum: &mut [u64], a: &[&[u64]], b: &[&[u64]]) {
        assert!(sum.len().is_multiple_of(LANES) && a.len() == b.len());
        assert!(a.iter().chain(b).all(|x| x.len() == sum.len()));
        let prime = Prime::new(self.tables.modulus.value());
        for (i, sum) in sum.as_chunks_mut().0.iter_mut().enumerate() {
            let mut total = load_integers(sum);
            for (a, b) in a.chunks(DOT_BLOCK).zip(b.chunks(DOT_BLOCK)) {
                let mut low = _mm512_setzero_pd();
                for (a, b) in a.iter().zip(b) {
                    let (a, b) = (load(&a.as_chunks().0[i]), load(&b.as_chunks().0[i]));
                    let h = _mm512_mul_pd(a, b);
                    low = _mm512_add_pd(low, _mm512_fmsub_pd(a, b, h));
                    let q = rounded_product(prime, h, prime.inverse);
                    total = _mm512_add_pd(total, _mm512_fnmadd_pd(q, prime.p, h));
                }
                total = centre(prime, _mm512_add_pd(total, low));
            }
            store(sum, canonical(prime, total));
        }
    }
}

driver::backend!(FloatNtt, "float", "avx512f,avx512dq", with_float, PARTS);
