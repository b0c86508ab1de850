//! Negacyclic number-theoretic transforms behind a small trait, so that another kernel can take their place.

use crate::error::HeError;
use crate::modulus::{MAX_MODULUS_BITS, Modulus};
use std::fmt::Debug;

#[cfg(target_arch = "x86_64")]
mod float;
#[cfg(target_arch = "x86_64")]
mod ifma;
#[cfg(target_arch = "x86_64")]
mod twiddles;
#[cfg(target_arch = "x86_64")]
pub use float::FloatNtt;
#[cfg(target_arch = "x86_64")]
pub use ifma::IfmaNtt;

/// Coefficients that one word vector of [`NttBackend::matmul`] holds.
pub(crate) const LANES: usize = 8;
/// Columns of weights that [`NttBackend::matmul`] takes at a time.
pub(crate) const TILES: usize = 8;
/// Smallest degree of a subring that [`NttBackend::fwd_factor`] knows.
pub(crate) const MIN_POINTS: usize = 64;

/// Bits of the lower of the two halves, centred on zero, of residues modulo p in the double-precision `matmul`.
pub(crate) fn half_bits(p: u64) -> u32 {
    (u64::BITS - p.leading_zeros()).div_ceil(2)
}

/// Products of halves, or of sums of both, that double precision adds up exactly.
pub(crate) fn exact_terms(p: u64) -> usize {
    1 << (f64::MANTISSA_DIGITS - 2 * half_bits(p))
}

/// The fastest backend for this processor.
pub(crate) fn best(n: usize, p: u64) -> Result<Box<dyn NttBackend>, HeError> {
    let portable = TfheNtt::new(n, p)?;
    #[cfg(target_arch = "x86_64")]
    if let Some(ifma) = IfmaNtt::new(n, &portable) {
        return Ok(Box::new(ifma));
    }
    #[cfg(target_arch = "x86_64")]
    if let Some(float) = FloatNtt::new(n, &portable) {
        return Ok(Box::new(float));
    }
    Ok(Box::new(portable))
}

/// Arithmetic in `Z_p[X] / (X^N + 1)` for one prime. All backends order the transformed
/// coefficients alike (that of `tfhe-ntt`), because transformed polynomials travel between parties.
pub trait NttBackend: Send + Sync + Debug {
    /// The prime p.
    fn modulus(&self) -> &Modulus;

    /// The degree N.
    fn degree(&self) -> usize;

    /// Coefficients in `[0, p)` to their transform in `[0, p)`, in place.
    fn fwd(&self, poly: &mut [u64]);

    /// The transform of coefficients in `(-p, p)`, of which those not given are zero; their number is a multiple of 64.
    fn fwd_signed(&self, out: &mut [u64], signed: &[i64]) {
        let p = self.modulus();
        out.iter_mut().zip(signed).for_each(|(x, &s)| *x = p.lift_small(s));
        out[signed.len()..].fill(0);
        self.fwd(out);
    }

    /// The inverse of [`Self::fwd`], division by N included; `[0, p) -> [0, p)`.
    fn inv(&self, poly: &mut [u64]);

    /// Transformed residues in `[0, p)` to the form that [`Self::dot`] takes, which is the backend's own; in place.
    fn factor(&self, _poly: &mut [u64]) {}

    /// [`Self::fwd_signed`] with the result in the form of [`Self::factor`].
    ///
    /// `out` may be shorter than N by a power of two r, down to [`MIN_POINTS`]: then `signed` gives u of the polynomial
    /// `u(X^r)`, whose transform holds every entry of `out` r times in a row.
    fn fwd_factor(&self, out: &mut [u64], signed: &[i64]) {
        let (n, run) = (self.degree(), self.degree() / out.len());
        if run == 1 {
            self.fwd_signed(out, signed);
            return self.factor(out);
        }
        let mut spread = vec![0; n];
        spread.iter_mut().step_by(run).zip(signed).for_each(|(x, &s)| *x = s);
        let mut transform = vec![0; n];
        self.fwd_signed(&mut transform, &spread);
        self.factor(&mut transform);
        out.iter_mut().zip(transform.iter().step_by(run)).for_each(|(x, &t)| *x = t);
    }

    /// Words that [`Self::matmul`] takes per weight.
    fn weight_words(&self) -> usize {
        1
    }

    /// Brings one row of weights at every point into the form of [`Self::matmul`]. `polys` holds up to [`TILES`] results of
    /// [`Self::fwd_factor`] of `points` words each; what belongs to point y goes to `out[y * pitch ..]`,
    /// `TILES * weight_words` words.
    fn interleave(&self, polys: &[u64], points: usize, out: &mut [u64], pitch: usize) {
        for (tile, poly) in polys.chunks_exact(points).enumerate() {
            out[tile..].iter_mut().step_by(pitch).zip(poly).for_each(|(out, &x)| *out = x);
        }
    }

    /// Adds the product of two matrices: `sums[t][v][i] += sum_j w[j][t] a[v][j][i] mod p`, where t counts up to [`TILES`]
    /// columns of weights, v the vectors of [`LANES`] coefficients and j the terms, fewer than `2^27`.
    ///
    /// `sums` has residues in `[0, p)` before and after, `a` is in the form of [`Self::factor`], `w` in that of
    /// [`Self::interleave`], [`TILES`] columns wide whatever `sums` takes of them.
    fn matmul(&self, sums: &mut [u64], a: &[u64], w: &[u64]) {
        let (p, terms) = (self.modulus(), w.len() / TILES);
        let vectors = a.chunks_exact(terms * LANES);
        let count = vectors.len();
        for (tile, sums) in sums.chunks_exact_mut(count * LANES).enumerate() {
            for (sums, a) in sums.chunks_exact_mut(LANES).zip(vectors.clone()) {
                let mut wide = [0u128; LANES];
                for (a, w) in a.chunks_exact(LANES).zip(w.chunks_exact(TILES)) {
                    wide.iter_mut().zip(a).for_each(|(s, &a)| *s += u128::from(a) * u128::from(w[tile]));
                }
                sums.iter_mut().zip(wide).for_each(|(s, wide)| *s = p.reduce_wide(wide + u128::from(*s)));
            }
        }
    }

    /// `sum[i] = sum[i] + a_0[i] b_0[i] + a_1[i] b_1[i] + ... mod p`, with residues in `[0, p)` before and after; the
    /// operands are in the form of [`Self::factor`]. Reduces once per output; takes fewer than `2^27` terms.
    fn dot(&self, sum: &mut [u64], a: &[&[u64]], b: &[&[u64]]) {
        let p = self.modulus();
        for (i, sum) in sum.iter_mut().enumerate() {
            // A product is below 2^100.
            let terms = a.iter().zip(b).map(|(a, b)| u128::from(a[i]) * u128::from(b[i]));
            *sum = p.reduce_wide(terms.fold(u128::from(*sum), |acc, x| acc + x));
        }
    }

    /// `(x[i], y[i]) = (x[i] + m[i] y[i], x[i] - m[i] y[i]) mod p`, residues in `[0, p)` in and out, m in the form of
    /// [`Self::factor`].
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

/// Transforms of the crate `tfhe-ntt`; only these are taken from it. Its `mul_accumulate` may leave values above p.
#[derive(Debug)]
pub struct TfheNtt {
    modulus: Modulus,
    plan: tfhe_ntt::prime64::Plan,
}

impl TfheNtt {
    /// Refuses a modulus that is not a prime `= 1 mod 2n` of at most 50 bits.
    pub fn new(n: usize, p: u64) -> Result<Self, HeError> {
        let refused = HeError::Modulus { n, modulus: p };
        if p < 3 || p.is_multiple_of(2) || p >> MAX_MODULUS_BITS != 0 {
            return Err(refused);
        }
        let plan = tfhe_ntt::prime64::Plan::try_new(n, p).ok_or(refused)?;
        Ok(Self { modulus: Modulus::new(p), plan })
    }
}

impl NttBackend for TfheNtt {
    fn modulus(&self) -> &Modulus {
        &self.modulus
    }

    fn degree(&self) -> usize {
        self.plan.ntt_size()
    }

    fn fwd(&self, poly: &mut [u64]) {
        self.plan.fwd(poly);
    }

    fn inv(&self, poly: &mut [u64]) {
        self.plan.inv(poly);
        self.plan.normalize(poly);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    const PRIMES: [u64; 4] = [0x3ffffff70001, 0x3ffffffdf0001, 0x3ffffffd20001, 0xffffe80001];

    /// Every backend of this processor.
    fn backends(n: usize, p: u64) -> Vec<Box<dyn NttBackend>> {
        let portable = TfheNtt::new(n, p).unwrap();
        let mut backends: Vec<Box<dyn NttBackend>> = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            backends.extend(FloatNtt::new(n, &portable).map(|float| Box::new(float) as Box<dyn NttBackend>));
            backends.extend(IfmaNtt::new(n, &portable).map(|ifma| Box::new(ifma) as Box<dyn NttBackend>));
        }
        backends.push(Box::new(portable));
        backends
    }

    /// Random polynomials and those at the ends of the range.
    fn inputs(n: usize, p: u64, rng: &mut StdRng) -> Vec<Vec<u64>> {
        let mut random = || (0..n).map(|_| rng.random_range(0..p)).collect::<Vec<u64>>();
        let mut alternating = vec![0; n];
        alternating.iter_mut().step_by(2).for_each(|x| *x = p - 1);
        let mut middle = vec![p / 2; n];
        middle.iter_mut().step_by(3).for_each(|x| *x += 1);
        vec![random(), random(), vec![p - 1; n], vec![0; n], vec![1; n], alternating, middle]
    }

    /// Whether two factors are the same number; doubles have two zeros.
    fn equal_factors(a: u64, b: u64) -> bool {
        a == b || f64::from_bits(a) == f64::from_bits(b)
    }

    /// Schoolbook product in `Z_p[X] / (X^N + 1)`.
    fn negacyclic(p: u64, a: &[u64], b: &[u64]) -> Vec<u64> {
        let n = a.len();
        let mut out = vec![0i128; n];
        for (i, &x) in a.iter().enumerate() {
            for (j, &y) in b.iter().enumerate() {
                let term = (u128::from(x) * u128::from(y) % u128::from(p)) as i128;
                out[(i + j) % n] += if i + j < n { term } else { -term };
            }
        }
        out.into_iter().map(|c| c.rem_euclid(i128::from(p)) as u64).collect()
    }

    #[test]
    fn products_match_schoolbook() {
        let mut rng = StdRng::seed_from_u64(1);
        let n = 256;
        for (p, ntt) in PRIMES.iter().flat_map(|&p| backends(n, p).into_iter().map(move |ntt| (p, ntt))) {
            let inputs = inputs(n, p, &mut rng);
            for (a, b) in inputs.iter().zip(inputs.iter().rev()) {
                let expected = negacyclic(p, a, b);
                let (mut fa, mut fb) = (a.clone(), b.clone());
                ntt.fwd(&mut fa);
                ntt.fwd(&mut fb);
                let (mut ga, mut gb, mut lazy) = (fa.clone(), fb.clone(), vec![0; n]);
                ntt.factor(&mut ga);
                ntt.factor(&mut gb);
                ntt.dot(&mut lazy, &[&ga], &[&gb]);
                let (mut plus, mut minus) = (fb.clone(), fa.clone());
                ntt.butterfly(&mut plus, &mut minus, &gb);
                let mut scaled = fa.clone();
                ntt.scale(&mut scaled, fb[1]);
                let (constant, unscaled) = (vec![fb[1]; n], fa.clone());
                ntt.pointwise(&mut fa, &fb);
                assert_eq!(fa, lazy);
                let m = *ntt.modulus();
                assert!((0..n).all(|i| plus[i] == m.add(fb[i], fa[i]) && minus[i] == m.sub(fb[i], fa[i])));
                let mut expected_scaled = unscaled;
                ntt.pointwise(&mut expected_scaled, &constant);
                assert_eq!(scaled, expected_scaled);
                ntt.inv(&mut lazy);
                assert_eq!(lazy, expected);
            }
        }
    }

    /// The same words from every backend, in both directions: transformed polynomials go over the wire.
    #[test]
    fn backends_agree_to_the_bit() {
        let mut rng = StdRng::seed_from_u64(2);
        for n in [64, 128, 256, 512, 2048, 4096, 8192, 16384] {
            for p in PRIMES {
                for input in inputs(n, p, &mut rng) {
                    let mut seen = Vec::new();
                    for ntt in backends(n, p) {
                        let (mut forward, mut backward) = (input.clone(), input.clone());
                        ntt.fwd(&mut forward);
                        ntt.inv(&mut backward);
                        let mut back = forward.clone();
                        ntt.inv(&mut back);
                        assert_eq!(back, input);
                        // Both the residues and their negatives as signed numbers.
                        let signed: Vec<i64> = input.iter().map(|&x| x as i64 - p as i64 * (x as i64 & 1)).collect();
                        let mut from_signed = vec![0; n];
                        ntt.fwd_signed(&mut from_signed, &signed);
                        assert_eq!(from_signed, forward);
                        let (mut factor, mut from_factor) = (forward.clone(), vec![0; n]);
                        ntt.factor(&mut factor);
                        ntt.fwd_factor(&mut from_factor, &signed);
                        assert!(factor.iter().zip(&from_factor).all(|(a, b)| equal_factors(*a, *b)));
                        // Leading coefficients alone.
                        for given in [64, 128, 192, n / 8, n / 2].into_iter().filter(|g| g % 64 == 0 && *g <= n) {
                            let mut rest = signed.clone();
                            rest[given..].fill(0);
                            ntt.fwd_signed(&mut from_signed, &rest);
                            let mut short = vec![7; n];
                            ntt.fwd_signed(&mut short, &rest[..given]);
                            assert_eq!(short, from_signed, "{given} of {n}");
                        }
                        seen.push((forward, backward));
                    }
                    assert!(seen.iter().all(|x| *x == seen[0]), "n = {n}, p = {p:#x}");
                }
            }
        }
    }

    /// Sums of every length around the backends' blocks, of products of every kind up to the largest.
    #[test]
    fn long_sums_match_exact_ones() {
        let mut rng = StdRng::seed_from_u64(3);
        let n = 64;
        for (p, ntt) in PRIMES.iter().flat_map(|&p| backends(n, p).into_iter().map(move |ntt| (p, ntt))) {
            let inputs = inputs(n, p, &mut rng);
            let factors: Vec<Vec<u64>> = inputs.iter().cloned().map(|mut x| (ntt.factor(&mut x), x).1).collect();
            for terms in [0, 1, 2, 7, 8, 9, 16, 17, 2000] {
                for pick in [|_: usize| (2, 2), |t: usize| (t % 5, 1), |t: usize| (6, 2 + 4 * (t % 2))] {
                    let mut sum = inputs[1].clone();
                    let mut expected: Vec<u128> = sum.iter().map(|&x| u128::from(x)).collect();
                    for t in 0..terms {
                        let (a, b) = (&inputs[pick(t).0], &inputs[pick(t).1]);
                        for (e, (&a, &b)) in expected.iter_mut().zip(a.iter().zip(b)) {
                            *e = (*e + u128::from(a) * u128::from(b)) % u128::from(p);
                        }
                    }
                    let a: Vec<&[u64]> = (0..terms).map(|t| factors[pick(t).0].as_slice()).collect();
                    let b: Vec<&[u64]> = (0..terms).map(|t| factors[pick(t).1].as_slice()).collect();
                    ntt.dot(&mut sum, &a, &b);
                    assert!(sum.iter().zip(&expected).all(|(&o, &e)| u128::from(o) == e), "{terms} terms");
                }
            }
        }
    }

    /// The transform of `u(X^run)`, whole and as that of u in the subring, on every backend.
    #[test]
    fn subring_transforms_repeat_every_value() {
        let mut rng = StdRng::seed_from_u64(4);
        for (n, p) in [64, 128, 1024, 4096, 8192].into_iter().flat_map(|n| PRIMES.map(|p| (n, p))) {
            for log in 0..=(n / MIN_POINTS).trailing_zeros() {
                let (run, points) = (1 << log, n >> log);
                let mut signed: Vec<i64> = (0..points).map(|_| rng.random_range(1 - p as i64..p as i64)).collect();
                (signed[0], signed[points - 1]) = (1 - p as i64, p as i64 - 1);
                for given in [64, 128, points / 2, points].into_iter().filter(|g| g % 64 == 0 && *g <= points) {
                    let mut spread = vec![0; n];
                    (0..given).for_each(|i| spread[i * run] = signed[i]);
                    for ntt in backends(n, p) {
                        let (mut whole, mut short) = (vec![0; n], vec![5; points]);
                        ntt.fwd_factor(&mut whole, &spread);
                        ntt.fwd_factor(&mut short, &signed[..given]);
                        assert!(
                            (0..n).all(|i| equal_factors(whole[i], short[i / run])),
                            "{given} of {points} of {n}"
                        );
                    }
                }
            }
        }
    }

    /// Products of matrices against sums of products, for every number of tiles and around the lengths of exact sums.
    #[test]
    fn products_of_matrices_match_sums_of_products() {
        let mut rng = StdRng::seed_from_u64(5);
        let points = MIN_POINTS;
        for (p, ntt) in PRIMES.iter().flat_map(|&p| backends(64, p).into_iter().map(move |ntt| (p, ntt))) {
            for (tiles, terms, vectors) in (1..=TILES).flat_map(|tiles| {
                [1, 2, 7, 8, 9, 127, 128, 129, 300].map(|terms| (tiles, terms, 2 + 2 * (terms % 2)))
            }) {
                let mut any = |kind: usize| match kind {
                    0 => p - 1,
                    1 => p / 2,
                    2 => p / 2 + 1,
                    _ => rng.random_range(0..p),
                };
                // Extremes alone, which add up to the largest sums, and a mixture.
                for kind in [1, 2, 3] {
                    let mut a: Vec<u64> = (0..vectors * terms * LANES).map(|_| any(kind)).collect();
                    let weights: Vec<Vec<u64>> =
                        (0..terms).map(|_| (0..tiles * points).map(|_| any(kind)).collect()).collect();
                    let start: Vec<u64> = (0..tiles * vectors * LANES).map(|i| any(i % 4)).collect();
                    let residues = a.clone();
                    // `factor` takes whole polynomials.
                    a.resize(a.len().next_multiple_of(64), 0);
                    a.chunks_exact_mut(64).for_each(|a| ntt.factor(a));
                    a.truncate(vectors * terms * LANES);
                    let row = TILES * ntt.weight_words();
                    let mut packed = vec![0; points * terms * row];
                    for (term, weights) in weights.iter().enumerate() {
                        let mut factors = weights.clone();
                        factors.chunks_exact_mut(points).for_each(|poly| ntt.factor(poly));
                        ntt.interleave(&factors, points, &mut packed[term * row..], terms * row);
                    }
                    for point in [0, 13, points - 1] {
                        let mut sums = start.clone();
                        ntt.matmul(&mut sums, &a, &packed[point * terms * row..][..terms * row]);
                        for (at, &sum) in sums.iter().enumerate() {
                            let (tile, v, lane) = (at / (vectors * LANES), at / LANES % vectors, at % LANES);
                            let products = (0..terms).map(|j| {
                                let (a, w) =
                                    (residues[(v * terms + j) * LANES + lane], weights[j][tile * points + point]);
                                u128::from(a) * u128::from(w)
                            });
                            let expected = (products.sum::<u128>() + u128::from(start[at])) % u128::from(p);
                            assert_eq!(u128::from(sum), expected, "{tiles} tiles, {terms} terms, p = {p:#x}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn unsuitable_moduli_are_refused() {
        for p in [0, 1, 2, 4096, 0x3ffffff70001 + 2, (1 << 51) - 129, 0x3ffffff70001 * 3] {
            assert_eq!(TfheNtt::new(4096, p).unwrap_err(), HeError::Modulus { n: 4096, modulus: p });
        }
    }
}
