//! Backends against the schoolbook product and against each other.

use super::backend::transform_tiles;
use super::*;
use crate::error::HeError;
use rand::{RngExt, SeedableRng, rngs::StdRng};

const PRIMES: [u64; 4] = [0x3ffffff70001, 0x3ffffffdf0001, 0x3ffffffd20001, 0xffffe80001];

/// Whether `size` is small enough for Miri, which takes hours beyond `limit`. Compiled tests take every size.
fn fits(limit: usize) -> impl Fn(&usize) -> bool {
    move |size| !cfg!(miri) || *size <= limit
}

/// Random polynomials, and polynomials with coefficients at the ends of the range.
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
    for (p, ntt) in PRIMES.iter().flat_map(|&p| backends(n, p).unwrap().into_iter().map(move |ntt| (p, ntt))) {
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

/// All backends give equal words, in both directions: transformed polynomials go over the wire.
#[test]
fn backends_agree_to_the_bit() {
    let mut rng = StdRng::seed_from_u64(2);
    for n in [64, 128, 256, 512, 2048, 4096, 8192, 16384].into_iter().filter(fits(512)) {
        for p in PRIMES {
            for input in inputs(n, p, &mut rng) {
                let mut seen = Vec::new();
                for ntt in backends(n, p).unwrap() {
                    let (mut forward, mut backward) = (input.clone(), input.clone());
                    ntt.fwd(&mut forward);
                    ntt.inv(&mut backward);
                    let mut back = forward.clone();
                    ntt.inv(&mut back);
                    assert_eq!(back, input);
                    // Signed numbers of both signs with these residues.
                    let signed: Vec<i64> = input.iter().map(|&x| x as i64 - p as i64 * (x as i64 & 1)).collect();
                    let mut from_signed = vec![0; n];
                    ntt.fwd_signed(&mut from_signed, &signed);
                    assert_eq!(from_signed, forward);
                    let mut sum = forward.clone();
                    ntt.add_signed(&mut sum, &signed);
                    assert!((0..n).all(|i| sum[i] == ntt.modulus().add(forward[i], input[i])));
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
    for (p, ntt) in PRIMES.iter().flat_map(|&p| backends(n, p).unwrap().into_iter().map(move |ntt| (p, ntt))) {
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

/// The transform of `u(X^run)` holds every value of u's transform in the subring `run` times, on every backend.
#[test]
fn subring_transforms_repeat_every_value() {
    let mut rng = StdRng::seed_from_u64(4);
    for (n, p) in [64, 128, 1024, 4096, 8192].into_iter().filter(fits(1024)).flat_map(|n| PRIMES.map(|p| (n, p))) {
        for log in 0..=(n / MIN_POINTS).trailing_zeros() {
            let (run, points) = (1 << log, n >> log);
            let mut signed: Vec<i64> = (0..points).map(|_| rng.random_range(1 - p as i64..p as i64)).collect();
            (signed[0], signed[points - 1]) = (1 - p as i64, p as i64 - 1);
            for given in [64, 128, points / 2, points].into_iter().filter(|g| g % 64 == 0 && *g <= points) {
                let mut spread = vec![0; n];
                (0..given).for_each(|i| spread[i * run] = signed[i]);
                for ntt in backends(n, p).unwrap() {
                    let (mut whole, mut short) = (vec![0; n], vec![5; points]);
                    ntt.fwd_factor(&mut whole, &spread);
                    ntt.fwd_factor(&mut short, &signed[..given]);
                    assert!((0..n).all(|i| equal_factors(whole[i], short[i / run])), "{given} of {points} of {n}");
                }
            }
        }
    }
}

/// A row of weights is multiplied by 1 at every point, and the results are compared with the transforms of the tiles.
#[test]
fn rows_of_weights_are_transforms_side_by_side() {
    let mut rng = StdRng::seed_from_u64(6);
    for (n, p) in [64, 512, 4096].into_iter().filter(fits(512)).flat_map(|n| PRIMES.map(|p| (n, p))) {
        let portable = TfheNtt::new(n, p).unwrap();
        for points in (0..=(n / MIN_POINTS).trailing_zeros()).map(|log| n >> log) {
            for given in [64, 128, points / 2, points].into_iter().filter(|g| g % 64 == 0 && *g <= points) {
                let mut signed: Vec<i64> =
                    (0..given * TILES).map(|_| rng.random_range(1 - p as i64..p as i64)).collect();
                (signed[0], signed[given * TILES - 1]) = (1 - p as i64, p as i64 - 1);
                let mut expected = vec![0; TILES * points];
                transform_tiles(&portable, &signed, &mut expected);
                for ntt in backends(n, p).unwrap() {
                    let (words, mut ones) = (TILES * ntt.weight_words(), vec![1; n]);
                    ntt.factor(&mut ones);
                    let (mut polys, mut out) = (vec![5; TILES * points], vec![7; points * (words + LANES)]);
                    ntt.weigh(&signed, &mut polys, &mut out, words + LANES);
                    for (point, weights) in out.chunks_exact(words + LANES).enumerate() {
                        let mut sums = vec![0; 2 * TILES * LANES];
                        let product = Product { sums: &mut sums, weights: &weights[..words] };
                        ntt.matmul(&ones[..2 * LANES], &mut [product]);
                        assert!(weights[words..].iter().all(|x| *x == 7), "the next row's place");
                        for (tile, sums) in sums.chunks_exact(2 * LANES).enumerate() {
                            let want = expected[tile * points + point];
                            assert!(sums.iter().all(|sum| *sum == want), "{given} of {points}");
                        }
                    }
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
    for (p, ntt) in PRIMES.iter().flat_map(|&p| backends(64, p).unwrap().into_iter().map(move |ntt| (p, ntt))) {
        for (tiles, terms, vectors) in (1..=TILES)
            .flat_map(|tiles| [1, 2, 7, 8, 9, 127, 128, 129, 300].map(|terms| (tiles, terms, 2 + 2 * (terms % 2))))
            .filter(|(_, terms, _)| fits(9)(terms))
        {
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
                    let mut signed = vec![0; TILES * points];
                    for (tile, values) in weights.chunks_exact(points).enumerate() {
                        let mut poly = values.to_vec();
                        ntt.inv(&mut poly);
                        signed[tile..].iter_mut().step_by(TILES).zip(poly).for_each(|(s, x)| *s = x as i64);
                    }
                    ntt.weigh(&signed, &mut vec![0; TILES * points], &mut packed[term * row..], terms * row);
                }
                for point in [0, 13, points - 1] {
                    // Alone, and as one of two.
                    let [mut sums, mut first, mut second, mut alone] = std::array::from_fn(|_| start.clone());
                    let packed = packed.chunks_exact(terms * row).cycle().skip(point);
                    let [here, next] = [0, 1].map(|at| packed.clone().nth(at).unwrap());
                    ntt.matmul(&a, &mut [Product { sums: &mut sums, weights: here }]);
                    ntt.matmul(
                        &a,
                        &mut [
                            Product { sums: &mut first, weights: here },
                            Product { sums: &mut second, weights: next },
                        ],
                    );
                    assert_eq!(first, sums);
                    ntt.matmul(&a, &mut [Product { sums: &mut alone, weights: next }]);
                    assert_eq!(second, alone);
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
