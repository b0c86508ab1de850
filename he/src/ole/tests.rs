use super::scale::PrimeScale;
use super::*;
use crate::ciphertext::{Ciphertext, Split, split_upload};
use crate::error::HeError;
use crate::sampling::{Expander, Label};
use crate::set::ParamSet;
use crate::test_keys::keys;
use proptest::prelude::*;
use rand::{RngExt, SeedableRng, rngs::StdRng};

fn run(plan: &OlePlan, kind: OleKind, x: &[&[u64]], y: &[&[u64]], rng: &mut StdRng) {
    let (sk, pk) = keys(plan.set());
    let upload = plan.encrypt(sk, x, rng).unwrap();
    assert_eq!(upload.len(), plan.upload_bytes());
    let Split { message: download, share: own } = plan.evaluate(pk, &upload, y, rng).unwrap();
    assert_eq!(download.len(), plan.download_bytes());
    let opened = plan.decrypt(sk, &download).unwrap();
    assert_eq!((own.len(), opened.len()), (plan.layout.len, plan.layout.len));
    let width = plan.layout.width;
    for j in 0..own.len() {
        let exact = match kind {
            OleKind::Product => x[0][j].wrapping_mul(y[0][j]),
            OleKind::Merged => x[0][j].wrapping_mul(y[1][j]).wrapping_add(x[1][j].wrapping_mul(y[0][j])),
        };
        let error = waggle_bits::signed(own[j].wrapping_add(opened[j]).wrapping_sub(exact), width);
        assert!(error.unsigned_abs() <= plan.lsb_error(), "{plan:?}: error {error} at {j}");
    }
}

const KINDS: [OleKind; 2] = [OleKind::Product, OleKind::Merged];

#[test]
fn products_of_random_and_extreme_values() {
    let mut rng = StdRng::seed_from_u64(2);
    for kind in KINDS {
        for width in [64, 63, 44, 37, 32, 24, 8, 1] {
            for len in [1, 10, 700, 9000] {
                let plan = OlePlan::new(len, width, kind).unwrap();
                let extremes = [0, 1, u64::MAX, 1 << (width - 1), (1 << (width - 1)) - 1];
                let mut draw = |i: usize| -> Vec<u64> {
                    (0..len)
                        .map(|j| if j < 25 { extremes[(j / 5usize.pow(i as u32)) % 5] } else { rng.random() })
                        .collect()
                };
                let values: Vec<Vec<u64>> = (0..4).map(|i| draw(i % 2)).collect();
                let operands = kind.operands();
                let slices: Vec<&[u64]> = values.iter().map(Vec::as_slice).collect();
                let y: Vec<&[u64]> = slices[1..=operands].to_vec();
                run(&plan, kind, &slices[..operands], &y, &mut rng);
            }
        }
    }
}

#[test]
fn coarse_products() {
    let mut rng = StdRng::seed_from_u64(7);
    for (width, error_bits) in [(64, 40), (50, 12), (44, 1), (8, 7)] {
        for kind in KINDS {
            let plan = OlePlan::within(9000, width, error_bits, kind).unwrap();
            assert_eq!(plan.lsb_error(), 1 << error_bits);
            let mut draw = |top: u64| -> Vec<u64> { (0..9000).map(|_| rng.random::<u64>() | top).collect() };
            let values = [draw(0), draw(1 << (width - 1)), draw(0), draw(0)];
            let slices: Vec<&[u64]> = values.iter().map(Vec::as_slice).collect();
            let operands = kind.operands();
            let y = slices[2..2 + operands].to_vec();
            run(&plan, kind, &slices[..operands], &y, &mut StdRng::seed_from_u64(8));
        }
    }
}

#[test]
fn constant_vectors_of_the_largest_values() {
    let mut rng = StdRng::seed_from_u64(3);
    for value in [1 << 63, u64::MAX, (1 << 63) - 1] {
        let v = vec![value; 8192];
        for kind in KINDS {
            let plan = OlePlan::new(v.len(), 64, kind).unwrap();
            let operands = vec![v.as_slice(); kind.operands()];
            run(&plan, kind, &operands, &operands, &mut rng);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_length_and_width(len in 1usize..3000, width in 1u32..=64, kind in 0usize..2, seed: u64) {
        let kind = KINDS[kind];
        let mut rng = StdRng::seed_from_u64(seed);
        let plan = OlePlan::new(len, width, kind).unwrap();
        let mut draw = || -> Vec<u64> { (0..len).map(|_| rng.random()).collect() };
        let values = [draw(), draw(), draw(), draw()];
        let slices: Vec<&[u64]> = values.iter().map(Vec::as_slice).collect();
        let operands = kind.operands();
        run(&plan, kind, &slices[..operands], &slices[2..2 + operands], &mut StdRng::seed_from_u64(seed));
    }
}

#[test]
fn malformed_messages_and_operands_are_refused() {
    let mut rng = StdRng::seed_from_u64(4);
    let plan = OlePlan::new(100, 64, OleKind::Merged).unwrap();
    let (sk, pk) = keys(plan.set());
    let x = vec![5u64; 100];
    let both: [&[u64]; 2] = [&x, &x];
    assert!(matches!(plan.encrypt(sk, &both[..1], &mut rng), Err(HeError::Operand { expected: 2, got: 1, .. })));
    assert!(matches!(
        plan.encrypt(sk, &[&x, &x[1..]], &mut rng),
        Err(HeError::Operand { expected: 100, got: 99, .. })
    ));
    let upload = plan.encrypt(sk, &both, &mut rng).unwrap();
    for cut in [0, 31, upload.len() - 1] {
        assert!(matches!(plan.evaluate(pk, &upload[..cut], &both, &mut rng), Err(HeError::Length { .. })));
    }
    let mut large = upload.clone();
    large[40..60].fill(0xff);
    assert!(matches!(plan.evaluate(pk, &large, &both, &mut rng), Err(HeError::Residue { .. })));
    let download = plan.evaluate(pk, &upload, &both, &mut rng).unwrap().message;
    assert!(matches!(plan.decrypt(sk, &download[1..]), Err(HeError::Length { .. })));
    let (other, _) = keys(ParamSet::Small);
    assert!(matches!(plan.encrypt(other, &both, &mut rng), Err(HeError::KeySet { .. })));
    assert!(matches!(OlePlan::new(0, 64, OleKind::Product), Err(HeError::Shape { .. })));
    assert!(matches!(OlePlan::new(1, 65, OleKind::Product), Err(HeError::Width { got: 65, .. })));
    assert!(matches!(OlePlan::new(1, 0, OleKind::Product), Err(HeError::Width { got: 0, .. })));
}

#[test]
fn responses_share_neither_mask_nor_encryption_of_zero() {
    let mut rng = StdRng::seed_from_u64(5);
    let plan = OlePlan::new(8192, 64, OleKind::Product).unwrap();
    let (sk, pk) = keys(plan.set());
    let zero = vec![0u64; 8192];
    let upload = plan.encrypt(sk, &[&zero], &mut rng).unwrap();
    // With y = 0 the products vanish, so the responses consist of zero encryptions and masks alone.
    let a = plan.evaluate(pk, &upload, &[&zero], &mut rng).unwrap();
    let b = plan.evaluate(pk, &upload, &[&zero], &mut rng).unwrap();
    let response = plan.download_bytes() / plan.plaintext_primes().len();
    let c1 = waggle_bits::packed_bytes(8192, &[plan.layout.c1_bits()]);
    let parts: Vec<&[u8]> = a.message.chunks(response).chain(b.message.chunks(response)).collect();
    for i in 0..parts.len() {
        for j in 0..i {
            assert_ne!(parts[i][..c1], parts[j][..c1]);
            assert_ne!(parts[i][c1..], parts[j][c1..]);
        }
    }
    assert_ne!(a.share, b.share);
}

/// Measures the noise that masks must hide, without a mask. It is at most what the plan assumes, and not far below.
#[test]
fn noise_stays_within_the_plan() {
    let mut rng = StdRng::seed_from_u64(6);
    for (kind, width, len) in
        [(OleKind::Product, 64, 8192), (OleKind::Merged, 64, 8192), (OleKind::Product, 37, 1000)]
    {
        let plan = OlePlan::new(len, width, kind).unwrap();
        let (params, (sk, pk)) = (plan.params(), keys(plan.set()));
        let mut draw = || -> Vec<u64> { (0..len).map(|_| rng.random()).collect() };
        let values = [draw(), draw(), draw(), draw()];
        let slices: Vec<&[u64]> = values.iter().map(Vec::as_slice).collect();
        let operands = kind.operands();
        let upload = plan.encrypt(sk, &slices[..operands], &mut rng).unwrap();
        let (seed, bodies) = split_upload(&upload, plan.upload_bytes(), "test").unwrap();
        // The largest prime, which comes last.
        let last = plan.plaintext_primes().len() - 1;
        let piece = plan.piece(last);
        let ring = plan.ring(&piece.block).unwrap();
        let mut product =
            plan.products(params, &ring, &piece, &seed, bodies, &slices[operands..2 * operands]).unwrap();
        pk.rerandomize(&mut product, &mut Expander::new(&seed, Label::Response, 0));
        let Ciphertext { mut c0, mut c1 } = product;
        sk.mul(&mut c1);
        params.add(&mut c0, &c1);
        // The phase is (q / t) m + e. The fraction tells m; e is far below its precision, but follows from two limbs.
        let scale = PrimeScale::new(params, ring.limbs()[last].modulus());
        let coefficient = |poly: &[u64], limb: usize, i: usize| poly[limb * params.degree() + i * piece.block.stride];
        let phase = |i: usize| (0..params.limbs().len()).map(move |l| (l, i));
        let message: Vec<u64> = (0..piece.block.slots)
            .map(|i| scale.down(params.torus(phase(i).map(|(l, i)| coefficient(&c0, l, i)))).0)
            .collect();
        let exact = scale.up(&message, piece.block.stride);
        let [p0, p1] = [0, 1].map(|l| *params.limbs()[l].modulus());
        let inverse = p1.inverse(p1.reduce(p0.value()));
        let modulus = i128::from(p0.value()) * i128::from(p1.value());
        let noise = |i: usize| {
            let [r0, r1] = [(0, p0), (1, p1)].map(|(l, p)| p.sub(coefficient(&c0, l, i), coefficient(&exact, l, i)));
            let high = p1.mul(p1.sub(r1, p1.reduce(r0)), inverse);
            let e = i128::from(r0) + i128::from(p0.value()) * i128::from(high);
            (if e > modulus / 2 { e - modulus } else { e }) as f64
        };
        let squares: f64 = (0..piece.block.slots).map(|i| noise(i).powi(2)).sum();
        let measured = (squares / piece.block.slots as f64).sqrt();
        // Random operands have coefficients of variance t^2 / 12 instead of the assumed t^2 / 4: a ratio of 0.58.
        let ratio = measured / plan.layout.noise(operands);
        assert!((0.45..0.7).contains(&ratio), "{kind:?} {width}: {ratio}");
    }
}
