use super::*;
use crate::keys::PublicKey;
use proptest::prelude::*;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::collections::HashMap;
use std::sync::{Mutex, OnceLock};

/// One key pair per set for the whole test binary.
fn keys(set: ParamSet) -> &'static (SecretKey, PublicKey) {
    static KEYS: OnceLock<Mutex<HashMap<ParamSet, &'static (SecretKey, PublicKey)>>> = OnceLock::new();
    let mut keys = KEYS.get_or_init(Mutex::default).lock().unwrap();
    keys.entry(set).or_insert_with(|| Box::leak(Box::new(SecretKey::generate(set, &mut rand::rng()))))
}

fn spec(batch: usize, m: usize, k: usize, n: usize, width: u32, weight_bits: u32) -> MatmulSpec {
    MatmulSpec { shape: MatmulShape { batch, m, k, n }, width, weight_bits }
}

/// Y = X W modulo 2^64, entry by entry.
fn naive(shape: MatmulShape, x: &[u64], w: &[u64]) -> Vec<u64> {
    let MatmulShape { batch, m, k, n } = shape;
    let mut y = vec![0u64; batch * m * n];
    for b in 0..batch {
        for i in 0..m {
            for c in 0..n {
                for j in 0..k {
                    let product = x[(b * m + i) * k + j].wrapping_mul(w[(b * k + j) * n + c]);
                    y[(b * m + i) * n + c] = y[(b * m + i) * n + c].wrapping_add(product);
                }
            }
        }
    }
    y
}

/// Distance of two ring elements.
fn distance(a: u64, b: u64, width: u32) -> u64 {
    (a.wrapping_sub(b) << (64 - width)).min(b.wrapping_sub(a) << (64 - width)) >> (64 - width)
}

/// Runs the protocol on shares x0 + x1 and returns all errors in LSB; checks lengths and the documented bound.
fn run(plan: &MatmulPlan, x0: &[u64], x1: Option<&[u64]>, w: &[u64], rng: &mut StdRng) -> Vec<u64> {
    let (sk, pk) = keys(plan.set());
    let width = plan.spec().width;
    let upload = plan.encrypt(sk, x0, rng).unwrap();
    assert_eq!(upload.len(), plan.upload_bytes());
    let (download, own) = plan.evaluate(pk, &upload, x1, Weights::U64(w), rng).unwrap();
    assert_eq!(download.len(), plan.download_bytes());
    let opened = plan.decrypt(sk, &download).unwrap();
    let x: Vec<u64> = match x1 {
        Some(x1) => x0.iter().zip(x1).map(|(a, b)| a.wrapping_add(*b)).collect(),
        None => x0.to_vec(),
    };
    let exact = naive(plan.spec().shape, &x, w);
    let ring = u64::MAX >> (64 - width);
    assert!(own.iter().chain(&opened).all(|&y| y <= ring));
    let errors: Vec<u64> = exact
        .iter()
        .zip(own.iter().zip(&opened))
        .map(|(&y, (a, b))| distance(a.wrapping_add(*b), y, width))
        .collect();
    let worst = errors.iter().max().copied().unwrap_or(0);
    assert!(worst <= plan.lsb_error(), "{plan:?}: error {worst} > {}", plan.lsb_error());
    errors
}

/// Ring elements that respect `weight_bits`.
fn random_weights(spec: &MatmulSpec, rng: &mut StdRng) -> Vec<u64> {
    let count = spec.shape.batch * spec.shape.k * spec.shape.n;
    let one = |rng: &mut StdRng| {
        let w: u64 = rng.random();
        if spec.weight_bits == spec.width { w } else { ((w as i64) >> (63 - spec.weight_bits)) as u64 | 1 }
    };
    (0..count).map(|_| one(rng)).collect()
}

fn random_x(spec: &MatmulSpec, rng: &mut StdRng) -> Vec<u64> {
    (0..spec.shape.batch * spec.shape.m * spec.shape.k).map(|_| rng.random()).collect()
}

#[test]
fn odd_shapes_random_and_extreme() {
    let mut rng = StdRng::seed_from_u64(1);
    let shapes = [
        (1, 7, 3, 5),
        (12, 1, 64, 129),
        (1, 3, 100, 33),
        (1, 1, 768, 50),
        (5, 3, 1, 1),
        (1, 1, 1, 1),
        (3, 130, 9, 2),
    ];
    for (batch, m, k, n) in shapes {
        for (width, weight_bits) in [(64, 13), (64, 20), (64, 64), (44, 44), (37, 12), (16, 8), (1, 1)] {
            let spec = spec(batch, m, k, n, width, weight_bits);
            let plan = MatmulPlan::new(spec).unwrap();
            let (x0, x1) = (random_x(&spec, &mut rng), random_x(&spec, &mut rng));
            run(&plan, &x0, Some(&x1), &random_weights(&spec, &mut rng), &mut rng);
            // Shares of all ones, weights at the end of their range.
            let largest = if weight_bits == width { 1 << (width - 1) } else { (1 << weight_bits) - 1u64 };
            let weights: Vec<u64> =
                (0..batch * k * n).map(|i| if i % 3 == 0 { largest.wrapping_neg() } else { largest }).collect();
            run(&plan, &vec![u64::MAX; x0.len()], Some(&vec![u64::MAX; x0.len()]), &weights, &mut rng);
            run(&plan, &vec![u64::MAX; x0.len()], None, &vec![0; weights.len()], &mut rng);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn any_shape_and_width(
        batch in 1usize..6, m in 1usize..20, k in 1usize..90, n in 1usize..40,
        width in 1u32..=64, share in any::<bool>(), bytes_per_us in 0.0f64..3000.0, seed: u64,
    ) {
        let spec = spec(batch, m, k, n, width, if share { width } else { width.div_ceil(4) });
        let plan = MatmulPlan::with_options(spec, PlanOptions { bytes_per_us, ..PlanOptions::default() }).unwrap();
        let mut rng = StdRng::seed_from_u64(seed);
        let (x0, x1) = (random_x(&spec, &mut rng), random_x(&spec, &mut rng));
        run(&plan, &x0, Some(&x1), &random_weights(&spec, &mut rng), &mut rng);
    }
}
