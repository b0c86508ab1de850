use super::layout::Layout;
use super::search::candidates;
use super::*;
use crate::ciphertext::{Ciphertexts, Split, read_lifted};
use crate::error::HeError;
use crate::galois::EvaluationKeys;
use crate::set::ParamSet;
use crate::test_keys::{galois_keys, keys};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng, rngs::StdRng};

pub(super) fn spec(batch: usize, m: usize, k: usize, n: usize, width: u32, weight_bits: u32) -> MatmulSpec {
    MatmulSpec { shape: MatmulShape { batch, m, k, n }, width, weight_bits }
}

/// Y = X W modulo 2^64, entry by entry.
pub(super) fn naive(shape: MatmulShape, x: &[u64], w: &[u64]) -> Vec<u64> {
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
pub(super) fn distance(a: u64, b: u64, width: u32) -> u64 {
    (a.wrapping_sub(b) << (64 - width)).min(b.wrapping_sub(a) << (64 - width)) >> (64 - width)
}

/// The keys that the evaluator of a plan needs.
pub(super) fn evaluation_keys(plan: &ProductPlan) -> EvaluationKeys<'static> {
    EvaluationKeys { public: &keys(plan.set()).1, galois: plan.packed().then(|| galois_keys(plan.set())) }
}

/// The largest weight that is allowed, as a ring element.
pub(super) fn largest(spec: &MatmulSpec) -> u64 {
    if spec.weight_bits == spec.width { 1 << (spec.width - 1) } else { (1 << spec.weight_bits) - 1 }
}

/// Runs the protocol on shares x0 + x1 and returns all errors in LSB; checks lengths and the documented bound.
fn run(plan: &MatmulPlan, x0: &[u64], x1: Option<&[u64]>, w: &[u64], rng: &mut StdRng) -> Vec<u64> {
    let (sk, width) = (&keys(plan.set()).0, plan.spec().width);
    let upload = plan.encrypt(sk, x0, rng).unwrap();
    assert_eq!(upload.len(), plan.upload_bytes());
    let Split { message: download, share: own } =
        plan.evaluate(evaluation_keys(plan), &upload, x1, Weights::U64(w), None, rng).unwrap();
    assert_eq!(download.len(), plan.download_bytes());
    let opened = plan.decrypt(sk, &download).unwrap();
    let x: Vec<u64> = match x1 {
        Some(x1) => x0.iter().zip(x1).map(|(a, b)| a.wrapping_add(*b)).collect(),
        None => x0.to_vec(),
    };
    let exact = naive(plan.spec().shape, &x, w);
    let ring = waggle_bits::mask(width);
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
pub(super) fn random_weights(spec: &MatmulSpec, rng: &mut StdRng) -> Vec<u64> {
    let count = spec.shape.batch * spec.shape.k * spec.shape.n;
    let one = |rng: &mut StdRng| {
        let w: u64 = rng.random();
        if spec.weight_bits == spec.width { w } else { ((w as i64) >> (63 - spec.weight_bits)) as u64 | 1 }
    };
    (0..count).map(|_| one(rng)).collect()
}

pub(super) fn random_x(spec: &MatmulSpec, rng: &mut StdRng) -> Vec<u64> {
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
            let largest = largest(&spec);
            let weights: Vec<u64> =
                (0..batch * k * n).map(|i| if i % 3 == 0 { largest.wrapping_neg() } else { largest }).collect();
            run(&plan, &vec![u64::MAX; x0.len()], Some(&vec![u64::MAX; x0.len()]), &weights, &mut rng);
            run(&plan, &vec![u64::MAX; x0.len()], None, &vec![0; weights.len()], &mut rng);
        }
    }
}

prop_compose! {
    /// Products of any shape and width, with plans for any link.
    pub(super) fn any_product()(
        batch in 1usize..6, m in 1usize..20, k in 1usize..90, n in 1usize..40,
        width in 1u32..=64, share in any::<bool>(), log_rate in 0u32..40,
        packing in prop::sample::select(vec![Packing::Auto, Packing::Never, Packing::Always]),
    ) -> (MatmulSpec, PlanOptions) {
        let options = PlanOptions { bytes_per_second: 1 << log_rate, packing, ..PlanOptions::default() };
        (spec(batch, m, k, n, width, if share { width } else { width.div_ceil(4) }), options)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn any_shape_and_width((spec, options) in any_product(), seed: u64) {
        let plan = MatmulPlan::with_options(spec, options).unwrap();
        let mut rng = StdRng::seed_from_u64(seed);
        let (x0, x1) = (random_x(&spec, &mut rng), random_x(&spec, &mut rng));
        run(&plan, &x0, Some(&x1), &random_weights(&spec, &mut rng), &mut rng);
    }
}

#[test]
fn malformed_messages_and_operands_are_refused() {
    let mut rng = StdRng::seed_from_u64(7);
    let spec = spec(2, 3, 20, 5, 64, 13);
    let plan = MatmulPlan::new(spec).unwrap();
    let (sk, pk) = keys(plan.set());
    let x = random_x(&spec, &mut rng);
    let w = vec![-8191i16; 200];
    let expect = |expected, got| move |e: &HeError| matches!(e, HeError::Operand { expected: a, got: b, .. } if (*a, *b) == (expected, got));
    assert!(plan.encrypt(sk, &x[1..], &mut rng).is_err_and(|e| expect(120, 119)(&e)));
    let upload = plan.encrypt(sk, &x, &mut rng).unwrap();
    let evaluate = |upload: &[u8], own: Option<&[u64]>, w: Weights<'_>| {
        plan.evaluate(pk, upload, own, w, None, &mut rand::rng())
    };
    assert!(evaluate(&upload, Some(&x[..7]), Weights::I16(&w)).is_err_and(|e| expect(120, 7)(&e)));
    assert!(evaluate(&upload, None, Weights::I16(&w[..3])).is_err_and(|e| expect(200, 3)(&e)));
    for heavy in [8192, -8192, i32::MAX, i32::MIN] {
        let mut w = vec![0i32; 200];
        w[77] = heavy;
        let refused = evaluate(&upload, None, Weights::I32(&w)).unwrap_err();
        assert_eq!(refused, HeError::WeightRange { weight_bits: 13 });
    }
    for cut in [0, 16, 32, upload.len() - 1] {
        let refused = evaluate(&upload[..cut], None, Weights::I16(&w)).unwrap_err();
        let expected = upload.len();
        assert_eq!(refused, HeError::Length { message: "matmul upload", expected, got: cut });
    }
    let mut large = upload.clone();
    let end = large.len();
    large[end - 12..].fill(0xff);
    assert!(matches!(evaluate(&large, None, Weights::I16(&w)), Err(HeError::Residue { .. })));
    let download = evaluate(&upload, Some(&x), Weights::I16(&w)).unwrap().message;
    for wrong in [&download[1..], &[], &[download.as_slice(), &[0]].concat()] {
        assert!(matches!(plan.decrypt(sk, wrong), Err(HeError::Length { .. })));
    }
    let (other_sk, other_pk) = keys(ParamSet::Full);
    let wrong_set = HeError::KeySet { needed: plan.set(), got: ParamSet::Full };
    assert_eq!(plan.encrypt(other_sk, &x, &mut rng).unwrap_err(), wrong_set);
    assert_eq!(plan.decrypt(other_sk, &download).unwrap_err(), wrong_set);
    assert_eq!(plan.evaluate(other_pk, &upload, None, Weights::I16(&w), None, &mut rng).unwrap_err(), wrong_set);
}

#[test]
fn impossible_specs_are_refused() {
    let shape = |e| matches!(e, HeError::Shape { step: "matmul" });
    for (b, m, k, n) in
        [(0, 1, 1, 1), (1, 0, 1, 1), (1, 1, 0, 1), (1, 1, 1, 0), (usize::MAX, 2, 2, 2), (1 << 20, 1 << 20, 1, 1)]
    {
        assert!(MatmulPlan::new(spec(b, m, k, n, 64, 13)).is_err_and(shape));
    }
    for (width, weight_bits) in [(0, 0), (65, 13), (64, 0), (64, 65), (20, 21)] {
        assert!(matches!(MatmulPlan::new(spec(1, 1, 1, 1, width, weight_bits)), Err(HeError::Width { .. })));
    }
}

/// Entries that are made when they are read, from a matrix row by row.
#[derive(Debug)]
struct Made<'a> {
    matrix: &'a [i32],
    columns: usize,
    by_columns: bool,
    bits: u32,
}

impl Entries for Made<'_> {
    fn shape(&self) -> (usize, usize) {
        (self.matrix.len() / self.columns, self.columns)
    }

    fn by_columns(&self) -> bool {
        self.by_columns
    }

    fn bits(&self) -> u32 {
        self.bits
    }

    fn read(&self, line: usize, from: usize, out: &mut [i32]) {
        let (start, step) = if self.by_columns { (line, self.columns) } else { (line * self.columns, 1) };
        let entries = self.matrix[start..].iter().step_by(step).skip(from);
        out.iter_mut().zip(entries).for_each(|(out, w)| *out = *w);
    }
}

/// Weights of every type give the same results.
#[test]
fn weight_types_agree() {
    let mut rng = StdRng::seed_from_u64(8);
    for width in [64, 20, 16] {
        let spec = spec(3, 2, 17, 11, width, 16.min(width - 1));
        let plan = MatmulPlan::new(spec).unwrap();
        let sk = &keys(plan.set()).0;
        let x = random_x(&spec, &mut rng);
        let w: Vec<i16> = (0..3 * 17 * 11).map(|_| rng.random::<i16>() >> (16 - spec.weight_bits.min(15))).collect();
        let w: Vec<i16> = w.iter().map(|w| w | 1).collect();
        let wide: Vec<i32> = w.iter().map(|&w| i32::from(w)).collect();
        let ring: Vec<u64> = w.iter().map(|&w| i64::from(w) as u64).collect();
        let exact = naive(spec.shape, &x, &ring);
        let upload = plan.encrypt(sk, &x, &mut rng).unwrap();
        let made = |by_columns| Made { matrix: &wide, columns: 11, by_columns, bits: spec.weight_bits };
        let (rows, columns) = (made(false), made(true));
        let made = [Weights::Entries(&rows), Weights::Entries(&columns)];
        for weights in [Weights::I16(&w), Weights::I32(&wide), Weights::U64(&ring)].into_iter().chain(made) {
            let Split { message: download, share: own } =
                plan.evaluate(evaluation_keys(&plan), &upload, None, weights, None, &mut rng).unwrap();
            let opened = plan.decrypt(sk, &download).unwrap();
            for ((a, b), y) in own.iter().zip(&opened).zip(&exact) {
                assert!(distance(a.wrapping_add(*b), *y, width) <= plan.lsb_error());
            }
        }
    }
}

/// Compares the frequency of nonzero errors with the prediction. Rounding c1 to 72 and c0 to 67 bits alone leaves
/// `E|e|` of about 0.05 LSB, so a sum of shares is off by one in some 5 % of the cases (7.7 % measured for 72 and 66
/// bits in a simulation).
#[test]
fn errors_follow_the_predicted_distribution() {
    let mut rng = StdRng::seed_from_u64(9);
    for (weight_bits, set) in [(13, ParamSet::Small), (20, ParamSet::SmallExact), (17, ParamSet::Small)] {
        let spec = spec(1, 64, 64, 128, 64, weight_bits);
        let max_lsb_error = if weight_bits == 20 { 1 } else { 8 };
        let options = PlanOptions { max_lsb_error, packing: Packing::Never, ..PlanOptions::default() };
        let plan = MatmulPlan::with_options(spec, options).unwrap();
        assert_eq!(plan.set(), set);
        let x0 = random_x(&spec, &mut rng);
        let x1 = random_x(&spec, &mut rng);
        let errors = run(&plan, &x0, Some(&x1), &random_weights(&spec, &mut rng), &mut rng);
        let n = set.degree() as f64;
        let cols = plan.tile().cols;
        let log_q: f64 = set.primes().iter().map(|&p| (p as f64).log2()).sum();
        // Uniform weights have variance B^2 / 3; ternary keys N 2 / 3 nonzeros; rounding errors 1 / 12.
        let product = (10.5 + 2.0 / 12.0) * (cols * 64) as f64 / 3.0 * f64::from(2 * weight_bits).exp2();
        let variance = product * (2.0 * (64.0 - log_q)).exp2()
            + n * 2.0 / 3.0 / 12.0 * (-2.0 * 8.0f64).exp2()
            + (-2.0 * 3.0f64).exp2() / 12.0;
        // Two roundings of a uniform mask: the sum is off with probability E|e|, for |e| < 1.
        let expected = (2.0 / std::f64::consts::PI * variance).sqrt();
        let wrong = errors.iter().filter(|&&e| e != 0).count() as f64 / errors.len() as f64;
        let tolerance = 6.0 * (expected / errors.len() as f64).sqrt() + 0.1 * expected;
        assert!((wrong - expected).abs() < tolerance, "{weight_bits}: {wrong} against {expected}");
    }
}

/// With zero weights a response is a zero encryption plus a mask and nothing else; no two may agree in either part.
#[test]
fn responses_share_neither_mask_nor_encryption_of_zero() {
    let mut rng = StdRng::seed_from_u64(10);
    let spec = spec(1, 8, 4096, 16, 64, 13);
    for options in [
        PlanOptions { bytes_per_second: 1 << 40, packing: Packing::Never, ..PlanOptions::default() },
        PlanOptions { packing: Packing::Always, ..PlanOptions::default() },
    ] {
        check_freshness(spec, &MatmulPlan::with_options(spec, options).unwrap(), &mut rng);
    }
}

fn check_freshness(spec: MatmulSpec, plan: &MatmulPlan, rng: &mut StdRng) {
    let upload = plan.encrypt(&keys(plan.set()).0, &random_x(&spec, rng), rng).unwrap();
    let zero = vec![0i16; 4096 * 16];
    let layout = &plan.layout;
    let c1_len = layout.c1_bytes();
    let mut seen = Vec::new();
    for _ in 0..2 {
        let Split { message: download, share: own } =
            plan.evaluate(evaluation_keys(plan), &upload, None, Weights::I16(&zero), None, rng).unwrap();
        let mut rest = download.as_slice();
        for response in 0..layout.packs.responses() {
            let (part, tail) = rest.split_at(layout.response_bytes(response));
            seen.push((part[..c1_len].to_vec(), part[c1_len..].to_vec()));
            rest = tail;
        }
        // Shares of zero are uniform, so no two of 2^8 values of 64 bits are equal.
        let mut sorted = own.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), own.len());
    }
    assert!(seen.len() >= if plan.packed() { 2 } else { 4 }, "{}", seen.len());
    for i in 0..seen.len() {
        for j in 0..i {
            assert_ne!(seen[i].0, seen[j].0);
            assert_ne!(seen[i].1, seen[j].1);
            // The difference of two c1 is not small either, as it would be with a common u and fresh e2.
            let lift = plan.params().lift(layout.c1_bits);
            let read = |bytes: &[u8]| read_lifted(plan.params(), &lift, layout.c1_bits, bytes, "test").unwrap();
            let (mut a, b) = (read(&seen[i].0), read(&seen[j].0));
            plan.params().sub_from(&mut a, &b);
            let n = plan.set().degree();
            let far = (0..n)
                .filter(|&x| {
                    let t = plan.params().torus((0..plan.params().limbs().len()).map(|l| a[l * n + x])) as i128;
                    t.unsigned_abs() > 1 << 120
                })
                .count();
            assert!(far > n / 2);
        }
    }
}

/// Items that share ciphertexts: the planner does it where it saves bytes, and the answer stays right.
#[test]
fn small_items_share_ciphertexts() {
    let mut rng = StdRng::seed_from_u64(11);
    for (m, k, n) in [(1, 64, 8), (1, 16, 4), (2, 64, 3)] {
        let spec = spec(12, m, k, n, 64, 64);
        let plan = MatmulPlan::new(spec).unwrap();
        let Ciphertexts { up, down } = plan.ciphertexts();
        assert!(plan.tile().group > 1 && up < 12 && down < 12, "{:?} {up} {down}", plan.tile());
        let (x0, x1) = (random_x(&spec, &mut rng), random_x(&spec, &mut rng));
        run(&plan, &x0, Some(&x1), &random_weights(&spec, &mut rng), &mut rng);
    }
}

/// Every packed layout of some shapes, with random and extreme operands; the tile's inner dimension above, at and
/// below k.
#[test]
fn packed_products_stay_within_the_bound() {
    let mut rng = StdRng::seed_from_u64(12);
    let shapes = [(1, 1, 96, 70), (12, 1, 16, 33), (12, 1, 33, 16), (1, 5, 40, 24), (3, 7, 12, 50), (1, 64, 64, 9)];
    for (batch, m, k, n) in shapes {
        for (width, weight_bits, set) in [
            (56, 20, ParamSet::Small),
            (56, 20, ParamSet::SmallExact),
            (44, 44, ParamSet::SmallExact),
            (20, 6, ParamSet::Narrow),
        ] {
            let spec = spec(batch, m, k, n, width, weight_bits);
            let layouts: Vec<Layout> =
                candidates(&spec).filter(|layout| layout.set == set && layout.packs.is_packed()).collect();
            assert!(!layouts.is_empty());
            // A few layouts, from both ends of the list.
            for layout in layouts.iter().step_by(layouts.len().div_ceil(2)).chain(layouts.last()) {
                run_layout(layout, &mut rng);
            }
        }
    }
}

/// Every run length of some shapes: rows that fill their runs or do not, in one run or several, row tiles, items that
/// share uploads, and column tiles that meet several groups.
#[test]
fn products_of_many_rows_stay_within_the_bound() {
    let mut rng = StdRng::seed_from_u64(14);
    let shapes = [(1, 64, 40, 70), (1, 100, 33, 9), (1, 8, 300, 40), (12, 1, 64, 33), (3, 17, 12, 50), (5, 70, 3, 1)];
    for (batch, m, k, n) in shapes {
        for (width, weight_bits, set) in [
            (56, 20, ParamSet::Small),
            (44, 44, ParamSet::SmallExact),
            (64, 64, ParamSet::Full),
            (64, 13, ParamSet::FullExact),
            (20, 6, ParamSet::Narrow),
        ] {
            let spec = spec(batch, m, k, n, width, weight_bits);
            let layouts: Vec<Layout> =
                candidates(&spec).filter(|layout| layout.set == set && layout.tiling.tile.run > 1).collect();
            // At least one layout of every run length, with dimensions that vary from case to case.
            let runs: std::collections::BTreeSet<usize> = layouts.iter().map(|l| l.tiling.tile.run).collect();
            assert!(!runs.is_empty());
            for run in runs {
                let alike: Vec<&Layout> = layouts.iter().filter(|l| l.tiling.tile.run == run).collect();
                for layout in [alike[alike.len() / 3], alike[rng.random_range(0..alike.len())]] {
                    // So many ciphertexts are enough.
                    if layout.tiling.uploads() + layout.packs.responses() <= 120 {
                        run_layout(layout, &mut rng);
                    }
                }
            }
        }
    }
}

/// Random operands, then the largest ones.
fn run_layout(layout: &Layout, rng: &mut StdRng) {
    let plan = MatmulPlan::of(*layout, PlanOptions::default());
    let (spec, MatmulShape { batch, k, n, .. }) = (plan.spec(), plan.spec().shape);
    let (x0, x1) = (random_x(spec, rng), random_x(spec, rng));
    run(&plan, &x0, Some(&x1), &random_weights(spec, rng), rng);
    run(&plan, &vec![u64::MAX; x0.len()], None, &vec![largest(spec); batch * k * n], rng);
}

/// Where computation is expensive, the weights of products with many rows act on runs.
#[test]
fn many_rows_share_transforms_on_fast_links() {
    for (m, bytes_per_second) in [(64, 1_250_000_000), (128, 1_250_000_000), (64, 1 << 40)] {
        let options = PlanOptions { bytes_per_second, ..PlanOptions::default() };
        let plan = MatmulPlan::with_options(spec(1, m, 768, 768, 56, 20), options).unwrap();
        assert!(plan.layout.tiling.tile.run >= 32, "{:?}", plan.layout);
    }
}

/// The planner's choice: bytes fall on slow links, nothing is packed on very fast ones or where it is not allowed.
#[test]
fn packing_follows_the_link() {
    for spec in [spec(1, 1, 768, 768, 56, 20), spec(12, 1, 64, 128, 44, 44), spec(1, 64, 768, 768, 56, 20)] {
        let plan = |bytes_per_second, packing| {
            let options = PlanOptions { bytes_per_second, packing, ..PlanOptions::default() };
            let plan = MatmulPlan::with_options(spec, options).unwrap();
            (plan.packed(), plan.upload_bytes() + plan.download_bytes())
        };
        let slow = plan(1_000_000, Packing::Auto);
        let usual = plan(125_000_000, Packing::Auto);
        let plain = plan(125_000_000, Packing::Never);
        assert!(slow.0 && !plain.0 && plan(1 << 60, Packing::Always).0);
        assert!(slow.1 <= usual.1 && 2 * usual.1 < plain.1, "{slow:?} {usual:?} {plain:?}");
        assert!(slow.1 * 2 < plan(1_000_000, Packing::Never).1);
    }
    // Nothing to pack.
    let tiny = MatmulPlan::with_options(
        spec(1, 1, 4, 4, 56, 20),
        PlanOptions { packing: Packing::Always, ..PlanOptions::default() },
    );
    assert!(!tiny.unwrap().packed());
}

#[test]
fn packed_plans_need_galois_keys_of_their_set() {
    let mut rng = StdRng::seed_from_u64(13);
    let spec = spec(1, 1, 768, 768, 56, 20);
    let options = PlanOptions { packing: Packing::Always, ..PlanOptions::default() };
    let plan = MatmulPlan::with_options(spec, options).unwrap();
    let (sk, pk) = keys(plan.set());
    let upload = plan.encrypt(sk, &random_x(&spec, &mut rng), &mut rng).unwrap();
    let weights = vec![1i32; 768 * 768];
    let refused = plan.evaluate(pk, &upload, None, Weights::I32(&weights), None, &mut rng).unwrap_err();
    assert_eq!(refused, HeError::NoGaloisKeys { set: plan.set() });
    let keys = EvaluationKeys { public: pk, galois: Some(galois_keys(ParamSet::Narrow)) };
    let refused = plan.evaluate(keys, &upload, None, Weights::I32(&weights), None, &mut rng).unwrap_err();
    assert_eq!(refused, HeError::KeySet { needed: plan.set(), got: ParamSet::Narrow });
}

/// A cache of weights changes no message and no share, for one row and for many. It holds no more bytes than its
/// limit.
#[test]
fn weights_from_a_cache_change_nothing() {
    let mut rng = StdRng::seed_from_u64(30);
    for (m, k, n, packing) in
        [(1, 96, 80, Packing::Never), (1, 96, 80, Packing::Always), (64, 48, 40, Packing::Never)]
    {
        let spec = spec(1, m, k, n, 56, 20);
        let plan = MatmulPlan::with_options(spec, PlanOptions { packing, ..PlanOptions::default() }).unwrap();
        let (x, w) = (random_x(&spec, &mut rng), random_weights(&spec, &mut rng));
        let upload = plan.encrypt(&keys(plan.set()).0, &x, &mut rng).unwrap();
        let keys = evaluation_keys(&plan);
        let seeded = || StdRng::seed_from_u64(31);
        let expected = plan.evaluate(keys, &upload, None, Weights::U64(&w), None, &mut seeded()).unwrap();
        let mut kept = Vec::new();
        for limit in [0, 1 << 16, usize::MAX] {
            let cache = WeightCache::new(limit);
            let other = vec![1; w.len()];
            for (key, w, same) in [(1, &w, true), (2, &other, false), (1, &w, true), (2, &other, false)] {
                let cached = Some(CachedWeights { cache: &cache, key });
                let got = plan.evaluate(keys, &upload, None, Weights::U64(w), cached, &mut seeded()).unwrap();
                assert_eq!(got == expected, same);
                assert!(cache.bytes() <= limit);
            }
            kept.push(cache.bytes());
        }
        assert!(kept[0] == 0 && kept[2] > 1 << 16, "{kept:?}");
    }
}
