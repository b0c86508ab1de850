//! Transforms in 52-bit integers for AVX-512 IFMA. Its instructions multiply the low 52 bits of every lane and add
//! the low or the high 52 bits of the product to 64.
//!
//! A product by a constant takes three such instructions (Shoup): with `w' = floor(w 2^52 / p)`, `q = floor(v w' /
//! 2^52)` and any `v < 2^52`, `r = v w - q p` is in `[0, 2p)`. It is computed as a sum of low halves, those of `v w`
//! and of `q (2^52 - p)`, and so is right modulo `2^52`. Lanes are taken modulo `2^52`: their upper 12 bits are
//! arbitrary, and sums and differences keep the lower ones right.
//!
//! **Moduli below `2^46`** need no correction within layers, as 64 p fits. Forward, with L layers, values start at
//! `2 p L + [0, 2p)`. A layer, `(u + r, u - r)`, widens the range by 2 p on both sides, which ends at `4 p L + 2 p`,
//! 58 p for the largest degree. Inverse, a layer is `(u + v, (u - v + c) w)` for u and v below c. From 8 p, three
//! layers give sums below 64 p in the one place of eight that is never multiplied, which is reduced then, and values
//! below 8 p elsewhere.
//!
//! **Moduli below `2^50`** leave room for 4 p, and layers are Harvey's (<https://arxiv.org/abs/1205.2926>): forward,
//! values are below 4 p, and u is brought below 2 p; inverse, values are below 2 p, and u + v is.

use super::avx512::{every, load, store, transpose_words};
use super::backend::{LANES, Lanes};
use super::driver::{self, Kernel, Tables};
use super::portable::TfheNtt;
use std::arch::x86_64::*;
use waggle_bits::cpu::{Cpu, Feature};

mod product;

/// Bits of the integers that are multiplied.
const BITS: u32 = 52;
/// Number of terms of a sum of products between two reductions. Low halves then add up within 64 bits.
const DOT_BLOCK: usize = (1 << 12) - 1;
/// Words of a sum of products that are computed together: four vectors, as an addition takes 4 cycles and up to two
/// can begin in each cycle.
const DOT_WORDS: usize = 4 * LANES;

/// The backend in 52-bit integers on AVX-512 with IFMA.
#[derive(Debug)]
pub(super) struct IfmaNtt {
    tables: Tables<u64>,
    /// Whether the kernel leaves values uncorrected between layers.
    lazy: bool,
    /// `2^52` and `2^104` as factors.
    powers: [[u64; 2]; 2],
}

/// The factor for a residue `w < p`: w and `floor(w 2^52 / p)`.
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
    /// The word whose low 52 bits are set.
    mask: __m512i,
}

impl Prime {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new(p: u64) -> Self {
        Prime {
            p: every(p),
            twice: every(2 * p),
            negative: every((1 << BITS) - p),
            barrett: every((1 << BITS) / p),
            mask: every((1 << BITS) - 1),
        }
    }
}

/// The kernel. LAZY is set if layers leave values uncorrected. A value proves AVX-512 F, DQ and IFMA.
#[derive(Clone, Copy)]
struct Ifma<const LAZY: bool> {
    prime: Prime,
    /// The prime p.
    value: u64,
    /// `2^52` as a factor.
    power: [__m512i; 2],
}

impl<const LAZY: bool> Ifma<LAZY> {
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    fn new(ntt: &IfmaNtt) -> Self {
        let value = ntt.tables.modulus.value();
        Ifma { prime: Prime::new(value), value, power: broadcast(ntt.powers[0]) }
    }
}

/// Evaluates the body with the kernel that fits the modulus of a backend.
macro_rules! with_ifma {
    ($this:expr, $k:ident => $body:expr) => {{
        if $this.lazy {
            let $k = Ifma::<true>::new($this);
            $body
        } else {
            let $k = Ifma::<false>::new($this);
            $body
        }
    }};
}

impl<const LAZY: bool> Kernel for Ifma<LAZY> {
    type Vector = __m512i;
    type Word = u64;
    const CONVERTS: bool = false;

    driver::methods! {
        fn load(self, from: &Lanes) -> __m512i { load(from) }
        fn store(self, to: &mut Lanes, x: __m512i) -> () { store(to, x) }
        fn splat(self, x: u64) -> __m512i { every(x) }
        fn table(self, from: &Lanes) -> __m512i { load(from) }
        fn transpose(self, v: [__m512i; 8]) -> [__m512i; 8] { transpose_words(v) }

        fn signed(self, from: &[i64; LANES]) -> __m512i {
            _mm512_add_epi64(load(&from.map(|x| x as u64)), self.prime.p)
        }
        fn finish(self, x: __m512i) -> __m512i { finish::<LAZY>(self.prime, x) }
        fn factor(self, x: __m512i) -> __m512i { finish::<LAZY>(self.prime, x) }
        fn place(self, to: &mut [u64], x: __m512i) -> () { store(&mut to.as_chunks_mut().0[0], x) }

        fn offset(self, layers: u32) -> Option<__m512i> {
            if LAZY { Some(every(2 * self.value * u64::from(layers))) } else { None }
        }
        fn add(self, x: __m512i, y: __m512i) -> __m512i { _mm512_add_epi64(x, y) }
        fn tame(self, x: __m512i) -> __m512i { if LAZY { reduce(self.prime, x) } else { x } }

        fn forward(self, u: __m512i, v: __m512i, w: [__m512i; 2]) -> [__m512i; 2] {
            forward2::<LAZY>(self.prime, u, v, w)
        }
        fn bound(self, log: u32) -> __m512i { _mm512_sll_epi64(self.prime.p, _mm_cvtsi64_si128(i64::from(log))) }
        fn inverse(self, bound: __m512i, u: __m512i, v: __m512i, w: [__m512i; 2]) -> [__m512i; 2] {
            inverse2::<LAZY>(self.prime, bound, u, v, w)
        }
        fn scale(self, x: __m512i, w: [__m512i; 2]) -> __m512i { scale(self.prime, x, w) }

        fn multiply(self, a: __m512i, b: __m512i) -> __m512i { multiply(self.prime, self.power, a, b) }
        fn sums(self, u: __m512i, r: __m512i) -> [__m512i; 2] {
            let p = self.prime.p;
            let difference = _mm512_sub_epi64(_mm512_add_epi64(u, p), r);
            [correct(_mm512_add_epi64(u, r), p), correct(difference, p)]
        }
    }
}

/// One factor in all lanes.
#[inline]
#[target_feature(enable = "avx512f")]
fn broadcast([w, quotient]: [u64; 2]) -> [__m512i; 2] {
    [every(w), every(quotient)]
}

/// `v w mod p` for any v: in `[0, 2p)`, right in the low 52 bits.
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
fn mul_lazy(prime: Prime, v: __m512i, w: [__m512i; 2]) -> __m512i {
    add_product(prime, _mm512_setzero_si512(), v, w)
}

/// `u + r`, where r is the result of [`mul_lazy`] for v and the factor.
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
fn add_product(prime: Prime, u: __m512i, v: __m512i, [w, quotient]: [__m512i; 2]) -> __m512i {
    let q = _mm512_madd52hi_epu64(_mm512_setzero_si512(), v, quotient);
    _mm512_madd52lo_epu64(_mm512_madd52lo_epu64(u, v, w), q, prime.negative)
}

/// Brings any x into `[0, 2p)`, right in the low 52 bits (Barrett: the quotient is at most one too small).
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
fn reduce(prime: Prime, x: __m512i) -> __m512i {
    let q = _mm512_madd52hi_epu64(_mm512_setzero_si512(), x, prime.barrett);
    _mm512_madd52lo_epu64(x, q, prime.negative)
}

/// The low 52 bits of x, with the other bits zero.
#[inline]
#[target_feature(enable = "avx512f")]
fn clean(prime: Prime, x: __m512i) -> __m512i {
    _mm512_and_si512(x, prime.mask)
}

/// Brings a number in `[0, 2m)` into `[0, m)` in all 64 bits. For a number below m, the difference wraps to a larger
/// number.
#[inline]
#[target_feature(enable = "avx512f")]
fn correct(x: __m512i, m: __m512i) -> __m512i {
    _mm512_min_epu64(x, _mm512_sub_epi64(x, m))
}

/// Brings the results of the forward layers into `[0, p)`.
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
fn finish<const LAZY: bool>(prime: Prime, x: __m512i) -> __m512i {
    let x = if LAZY { clean(prime, reduce(prime, x)) } else { correct(x, prime.twice) };
    correct(x, prime.p)
}

/// `x w` in `[0, p)` for any x.
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
fn scale(prime: Prime, x: __m512i, w: [__m512i; 2]) -> __m512i {
    correct(clean(prime, mul_lazy(prime, x, w)), prime.p)
}

/// A forward butterfly: `(u + v w, u - v w)`.
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
fn forward2<const LAZY: bool>(prime: Prime, u: __m512i, v: __m512i, w: [__m512i; 2]) -> [__m512i; 2] {
    if LAZY {
        let sum = add_product(prime, u, v, w);
        [sum, _mm512_sub_epi64(_mm512_add_epi64(u, u), sum)]
    } else {
        let (u, r) = (correct(u, prime.twice), clean(prime, mul_lazy(prime, v, w)));
        [_mm512_add_epi64(u, r), _mm512_sub_epi64(_mm512_add_epi64(u, prime.twice), r)]
    }
}

/// An inverse butterfly: `(u + v, (u - v) w)`. If LAZY, u and v must be below `bound`, a multiple of p.
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
fn inverse2<const LAZY: bool>(prime: Prime, bound: __m512i, u: __m512i, v: __m512i, w: [__m512i; 2]) -> [__m512i; 2] {
    let sum = _mm512_add_epi64(u, v);
    if LAZY {
        [sum, mul_lazy(prime, _mm512_sub_epi64(_mm512_add_epi64(u, bound), v), w)]
    } else {
        let difference = _mm512_sub_epi64(_mm512_add_epi64(u, prime.twice), v);
        [correct(sum, prime.twice), clean(prime, mul_lazy(prime, difference, w))]
    }
}

/// `low + 2^52 high` modulo p, below 4 p and right in all 64 bits, for `low, high < 2^52`. Here `power` is `2^52` as
/// a factor.
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
fn fold(prime: Prime, power: [__m512i; 2], low: __m512i, high: __m512i) -> __m512i {
    let high = clean(prime, mul_lazy(prime, high, power));
    _mm512_add_epi64(clean(prime, reduce(prime, low)), high)
}

/// `a b mod p` in `[0, p)` for residues.
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
fn multiply(prime: Prime, power: [__m512i; 2], a: __m512i, b: __m512i) -> __m512i {
    let zero = _mm512_setzero_si512();
    let (low, high) = (_mm512_madd52lo_epu64(zero, a, b), _mm512_madd52hi_epu64(zero, a, b));
    correct(correct(fold(prime, power, low, high), prime.twice), prime.p)
}

impl IfmaNtt {
    /// `None` if [`Cpu::get`] lacks AVX-512 or IFMA, or if the degree is not a power of two in `64..=16384`. The
    /// modulus and the order of coefficients are those of `reference`.
    pub(super) fn new(n: usize, reference: &TfheNtt) -> Option<Self> {
        if !Cpu::get().has_all(&[Feature::Avx512, Feature::Ifma]) {
            return None;
        }
        let p = reference.prime();
        let tables = Tables::new(n, reference, |w| factor(p, w))?;
        let power = |bits: u32| factor(p, tables.modulus.pow(2, u64::from(bits)));
        Some(Self { lazy: p >> (BITS - 6) == 0, powers: [power(BITS), power(2 * BITS)], tables })
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn prime(&self) -> Prime {
        Prime::new(self.tables.modulus.value())
    }

    /// `sum + low + 2^52 high mod p` for a residue `sum` and the sums of low and high halves of up to [`DOT_BLOCK`]
    /// products.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    fn add_wide(&self, prime: Prime, sum: __m512i, low: __m512i, high: __m512i) -> __m512i {
        let high = _mm512_add_epi64(high, _mm512_srli_epi64::<BITS>(low));
        let mut total = add_product(prime, reduce(prime, low), high, broadcast(self.powers[0]));
        if !self.lazy {
            // High halves of products below 2^92 would add up to less than 2^52, but products here may be larger.
            total = add_product(prime, total, _mm512_srli_epi64::<BITS>(high), broadcast(self.powers[1]));
        }
        // Below 6 p, and 7 p with the sum.
        let total = correct(_mm512_add_epi64(clean(prime, total), sum), _mm512_slli_epi64::<1>(prime.twice));
        correct(correct(total, prime.twice), prime.p)
    }

    /// Adds a sum of products to `sum`, modulo p. A product is below `2^100`, so the sum over a block of
    /// [`DOT_BLOCK`] terms is below `2^64` for the low halves and below `2^60` for the high ones.
    #[target_feature(enable = "avx512f,avx512ifma")]
    fn sum_of_products(&self, sum: &mut [u64], a: &[&[u64]], b: &[&[u64]]) {
        assert!(sum.len().is_multiple_of(DOT_WORDS) && a.len() == b.len());
        assert!(a.iter().chain(b).all(|x| x.len() == sum.len()));
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
}

driver::backend!(IfmaNtt, "ifma", "avx512f,avx512dq,avx512ifma", with_ifma, 1);
