//! Hostile keys and ciphertexts make no decoder panic. CONTRIBUTING, "Fuzzing".
//!
//! Honest messages are kilobytes of uniform residues, so they are made from fixed seeds instead of being kept in
//! files.

use rand::SeedableRng;
use rand::rngs::StdRng;
use waggle_fuzz::{Corpus, memory};
use waggle_he::{
    EvaluationKeys, GaloisKeys, HeError, MatmulPlan, MatmulShape, MatmulSpec, OleKind, OlePlan, Packing, ParamSet,
    PlanOptions, PublicKey, SecretKey, SeededPlan, Split, Weights,
};

fn rng(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}

/// A corpus of an honest message and of changes over which decoders are known to stumble.
fn corpus(honest: Vec<u8>) -> Corpus {
    let mut short = honest.clone();
    short.pop();
    let mut large = honest.clone();
    large.iter_mut().skip(32).for_each(|byte| *byte = 0xff);
    let long = [&honest[..], &[0]].concat();
    let named = [
        ("zeros", vec![0; honest.len()]),
        ("honest", honest),
        ("short", short),
        ("long", long),
        ("residues-too-large", large),
        ("empty", Vec::new()),
    ];
    Corpus::new(named.map(|(name, bytes)| (name.to_owned(), bytes)))
}

/// Bytes that the words of `polynomials` polynomials take, doubled for the buffers of the decoder.
fn room(set: ParamSet, polynomials: usize) -> usize {
    2 * 8 * set.degree() * set.primes().len() * polynomials + (64 << 10)
}

/// Lengths, residues, corrections and padding are all that can be wrong with a message.
fn typed<T>(outcome: Result<T, HeError>) -> Option<T> {
    match outcome {
        Ok(value) => Some(value),
        Err(
            HeError::Length { .. } | HeError::Residue { .. } | HeError::Correction { .. } | HeError::Padding { .. },
        ) => None,
        Err(other) => panic!("not an error of a message: {other:?}"),
    }
}

#[test]
fn fuzz_public_key() {
    for set in [ParamSet::Narrow, ParamSet::Small] {
        let (_, key) = SecretKey::generate(set, &mut rng(1));
        waggle_fuzz::target!(corpus(key.to_bytes()), |bytes: &[u8]| {
            let (outcome, memory) = memory::peak(|| PublicKey::from_bytes(set, bytes));
            assert!(memory < room(set, 3), "{memory} bytes");
            if let Some(key) = typed(outcome) {
                assert_eq!(key.to_bytes(), bytes, "one key, two messages");
            }
        });
    }
}

#[test]
fn fuzz_galois_keys() {
    let set = ParamSet::Narrow;
    let (secret, _) = SecretKey::generate(set, &mut rng(2));
    let honest = GaloisKeys::message(&secret, &mut rng(3));
    assert_eq!(honest.len(), GaloisKeys::bytes(set));
    waggle_fuzz::target!(corpus(honest), |bytes: &[u8]| {
        let (outcome, memory) = memory::peak(|| GaloisKeys::from_bytes(set, bytes));
        // The keys have both halves for every digit and step, the permutations and the monomials.
        assert!(memory < room(set, 6 * 11 + 11), "{memory} bytes");
        if let Some(keys) = typed(outcome) {
            assert_eq!((keys.set(), bytes.len()), (set, GaloisKeys::bytes(set)));
        }
    });
}

/// A small product, with packed responses or without, and the parties' inputs.
struct Product {
    plan: MatmulPlan,
    x: Vec<u64>,
    weights: Vec<i16>,
    secret: SecretKey,
    public: PublicKey,
    galois: GaloisKeys,
}

impl Product {
    fn new(packing: Packing) -> Self {
        let shape = MatmulShape { batch: 1, m: 2, k: 40, n: 70 };
        let spec = MatmulSpec { shape, width: 37, weight_bits: 13 };
        let options = PlanOptions { packing, ..PlanOptions::default() };
        let plan = MatmulPlan::with_options(spec, options).unwrap();
        let (secret, public) = SecretKey::generate(plan.set(), &mut rng(4));
        let message = GaloisKeys::message(&secret, &mut rng(5));
        let galois = GaloisKeys::from_bytes(plan.set(), &message).unwrap();
        let x = (0..80).map(|i| i * i).collect();
        let weights = (0..40 * 70).map(|i| (i % 8191) as i16 - 4095).collect();
        Product { plan, x, weights, secret, public, galois }
    }

    fn upload(&self) -> Vec<u8> {
        self.plan.encrypt(&self.secret, &self.x, &mut rng(6)).unwrap()
    }

    fn evaluate(&self, upload: &[u8]) -> Result<Split, HeError> {
        let keys = EvaluationKeys { public: &self.public, galois: Some(&self.galois) };
        self.plan.evaluate(keys, upload, Some(&self.x), Weights::I16(&self.weights), None, &mut rng(7))
    }
}

#[test]
fn fuzz_matmul_upload() {
    for packing in [Packing::Never, Packing::Always] {
        let product = Product::new(packing);
        assert_eq!(product.plan.packed(), packing == Packing::Always);
        waggle_fuzz::target!(corpus(product.upload()), |bytes: &[u8]| {
            if let Some(Split { message: download, share }) = typed(product.evaluate(bytes)) {
                assert_eq!((download.len(), share.len()), (product.plan.download_bytes(), 140));
                assert_eq!(product.plan.decrypt(&product.secret, &download).unwrap().len(), 140);
            }
        });
    }
}

#[test]
fn fuzz_matmul_response() {
    for packing in [Packing::Never, Packing::Always] {
        let product = Product::new(packing);
        let download = product.evaluate(&product.upload()).unwrap().message;
        waggle_fuzz::target!(corpus(download), |bytes: &[u8]| {
            if let Some(share) = typed(product.plan.decrypt(&product.secret, bytes)) {
                assert!(share.len() == 140 && share.iter().all(|x| x >> 37 == 0), "shares are reduced");
            }
        });
    }
}

/// The plan of a product with a random operand, which has the shape and keys of a [`Product`].
fn seeded(product: &Product, packing: Packing) -> SeededPlan {
    let plan = SeededPlan::with_options(*product.plan.spec(), PlanOptions { packing, ..PlanOptions::default() });
    let plan = plan.unwrap();
    assert_eq!((plan.set(), plan.packed()), (product.plan.set(), packing == Packing::Always));
    plan
}

#[test]
fn fuzz_seeded_request() {
    for packing in [Packing::Never, Packing::Always] {
        let product = Product::new(packing);
        let plan = seeded(&product, packing);
        let keys = EvaluationKeys { public: &product.public, galois: Some(&product.galois) };
        let honest = plan.request(&product.secret, &mut rng(14)).unwrap().message;
        waggle_fuzz::target!(corpus(honest), |bytes: &[u8]| {
            let answer = plan.respond(keys, bytes, Weights::I16(&product.weights), None, &mut rng(15));
            if let Some(Split { message: response, share }) = typed(answer) {
                assert_eq!((response.len(), share.len()), (plan.download_bytes(), 140));
                assert_eq!(plan.finish(&product.secret, &response).unwrap().len(), 140);
            }
        });
    }
}

#[test]
fn fuzz_seeded_response() {
    for packing in [Packing::Never, Packing::Always] {
        let product = Product::new(packing);
        let plan = seeded(&product, packing);
        let keys = EvaluationKeys { public: &product.public, galois: Some(&product.galois) };
        let request = plan.request(&product.secret, &mut rng(16)).unwrap().message;
        let honest = plan.respond(keys, &request, Weights::I16(&product.weights), None, &mut rng(17));
        let honest = honest.unwrap().message;
        waggle_fuzz::target!(corpus(honest), |bytes: &[u8]| {
            if let Some(share) = typed(plan.finish(&product.secret, bytes)) {
                assert!(share.len() == 140 && share.iter().all(|x| x >> 37 == 0), "shares are reduced");
            }
        });
    }
}

/// Numbers of elementwise products.
const LEN: usize = 300;
const WIDTH: u32 = 20;

/// Elementwise products with one and with two operands at either party.
fn elementwise() -> [(OlePlan, Vec<Vec<u64>>); 2] {
    [OleKind::Product, OleKind::Merged].map(|kind| {
        let operand = |i: usize| (0..LEN as u64).map(|x| (x * 7919 + i as u64) % (1 << WIDTH)).collect();
        (OlePlan::new(LEN, WIDTH, kind).unwrap(), (0..kind.operands()).map(operand).collect())
    })
}

#[test]
fn fuzz_ole_upload() {
    for (plan, operands) in elementwise() {
        let (secret, public) = SecretKey::generate(plan.set(), &mut rng(8));
        let operands: Vec<&[u64]> = operands.iter().map(Vec::as_slice).collect();
        let upload = plan.encrypt(&secret, &operands, &mut rng(9)).unwrap();
        waggle_fuzz::target!(corpus(upload), |bytes: &[u8]| {
            if let Some(Split { message: download, share }) =
                typed(plan.evaluate(&public, bytes, &operands, &mut rng(10)))
            {
                assert_eq!((download.len(), share.len()), (plan.download_bytes(), LEN));
                assert_eq!(plan.decrypt(&secret, &download).unwrap().len(), LEN);
            }
        });
    }
}

#[test]
fn fuzz_ole_response() {
    for (plan, operands) in elementwise() {
        let (secret, public) = SecretKey::generate(plan.set(), &mut rng(11));
        let operands: Vec<&[u64]> = operands.iter().map(Vec::as_slice).collect();
        let upload = plan.encrypt(&secret, &operands, &mut rng(12)).unwrap();
        let download = plan.evaluate(&public, &upload, &operands, &mut rng(13)).unwrap().message;
        waggle_fuzz::target!(corpus(download), |bytes: &[u8]| {
            if let Some(share) = typed(plan.decrypt(&secret, bytes)) {
                assert!(share.len() == LEN && share.iter().all(|x| x >> WIDTH == 0), "shares are reduced");
            }
        });
    }
}
