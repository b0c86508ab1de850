//! Transforms, encryption and matrix products. `cargo bench -p waggle-bench --bench he`
//!
//! Times are of one core's call or of all cores, as the operation takes them. Every product is opened and compared
//! with the plain one before its parts are timed; the bytes of both messages are printed once.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use waggle_he::{
    Ciphertexts, EvaluationKeys, GaloisKeys, MatmulPlan, MatmulShape, MatmulSpec, ParamSet, SecretKey, Split, Weights,
};

/// The negacyclic product by its definition.
fn negacyclic(a: &[u64], b: &[u64], p: u64) -> Vec<u64> {
    let n = a.len();
    let mut out = vec![0; n];
    for (i, &a) in a.iter().enumerate().filter(|(_, a)| **a != 0) {
        for (j, &b) in b.iter().enumerate() {
            let term = (u128::from(a) * u128::from(b) % u128::from(p)) as u64;
            // X^N = -1.
            let term = if i + j < n { term } else { (p - term) % p };
            let sum = &mut out[(i + j) % n];
            *sum = (*sum + term) % p;
        }
    }
    out
}

fn ntt(c: &mut Criterion) {
    let mut group = c.benchmark_group("ntt");
    let mut rng = StdRng::seed_from_u64(1);
    for set in [ParamSet::Small, ParamSet::Full] {
        let (n, prime) = (set.degree(), set.primes()[0]);
        let poly: Vec<u64> = (0..n).map(|_| rng.random_range(0..prime)).collect();
        // A sparse factor, so that the definition stays fast.
        let mut sparse = vec![0; n];
        for i in [0, 1, n / 2 + 3, n - 1] {
            sparse[i] = rng.random_range(1..prime);
        }
        let product = negacyclic(&sparse, &poly, prime);
        for ntt in waggle_he::backends(n, prime).expect("a prime of a parameter set") {
            let name = ntt.name();
            let (mut a, mut b) = (poly.clone(), sparse.clone());
            ntt.fwd(&mut a);
            ntt.fwd(&mut b);
            ntt.pointwise(&mut a, &b);
            ntt.inv(&mut a);
            assert_eq!(a, product, "{name}, N = {n}");

            group.throughput(Throughput::Elements(n as u64));
            let id = |step| format!("{step}/{n}/{name}");
            // Outputs of either transform are reduced, hence inputs of the next call.
            group.bench_function(id("forward"), |bench| bench.iter(|| ntt.fwd(black_box(&mut a))));
            group.bench_function(id("inverse"), |bench| bench.iter(|| ntt.inv(black_box(&mut a))));
            let mut sum = vec![0; n];
            ntt.factor(&mut a);
            ntt.factor(&mut b);
            let (a, b) = ([a.as_slice(); 4], [b.as_slice(); 4]);
            group.bench_function(id("dot-of-4"), |bench| bench.iter(|| ntt.dot(black_box(&mut sum), &a, &b)));
        }
    }
    group.finish();
}

/// Encryption and decryption of one ciphertext: the smallest product of each set.
fn ciphertexts(c: &mut Criterion) {
    let mut group = c.benchmark_group("one-ciphertext");
    for weight_bits in [20, 64] {
        let product = Product::new(MatmulShape { batch: 1, m: 1, k: 16, n: 16 }, weight_bits);
        let plan = &product.plan;
        assert_eq!(plan.ciphertexts(), Ciphertexts { up: 1, down: 1 }, "one ciphertext each way");
        let download = product.check();
        let id = |step| format!("{step}/{}/{:?}", plan.set().degree(), plan.set());
        group.bench_function(id("encrypt"), |bench| bench.iter(|| product.encrypt()));
        group.bench_function(id("decrypt"), |bench| bench.iter(|| product.decrypt(&download)));
    }
    group.finish();
}

/// x W with a plaintext W of the server's and both parties' shares of x, in the ring of 64 bits.
struct Product {
    plan: MatmulPlan,
    keys: (SecretKey, waggle_he::PublicKey),
    /// If the plan packs.
    galois: Option<GaloisKeys>,
    shares: [Vec<u64>; 2],
    weights: Vec<i32>,
}

impl Product {
    fn new(shape: MatmulShape, weight_bits: u32) -> Self {
        let plan = MatmulPlan::new(MatmulSpec { shape, width: 64, weight_bits }).expect("a shape that fits");
        let mut rng = StdRng::seed_from_u64(2);
        let keys = SecretKey::generate(plan.set(), &mut rand::rng());
        let galois = plan.packed().then(|| {
            let message = GaloisKeys::message(&keys.0, &mut rand::rng());
            GaloisKeys::from_bytes(plan.set(), &message).expect("a message of ours")
        });
        let shares = [0; 2].map(|_| (0..shape.batch * shape.m * shape.k).map(|_| rng.random()).collect());
        let bound = 1i32 << weight_bits.min(20);
        let weights = (0..shape.batch * shape.k * shape.n).map(|_| rng.random_range(1 - bound..bound)).collect();
        Product { plan, keys, galois, shares, weights }
    }

    fn encrypt(&self) -> Vec<u8> {
        self.plan.encrypt(&self.keys.0, &self.shares[0], &mut rand::rng()).expect("key and length are the plan's")
    }

    fn evaluate(&self, upload: &[u8]) -> Split {
        let weights = Weights::I32(&self.weights);
        let keys = EvaluationKeys { public: &self.keys.1, galois: self.galois.as_ref() };
        self.plan
            .evaluate(keys, upload, Some(&self.shares[1]), weights, None, &mut rand::rng())
            .expect("key and lengths are the plan's")
    }

    fn decrypt(&self, download: &[u8]) -> Vec<u64> {
        self.plan.decrypt(&self.keys.0, download).expect("key and length are the plan's")
    }

    /// Compares both shares of the product with the plain product; returns the message that was decrypted.
    fn check(&self) -> Vec<u8> {
        let upload = self.encrypt();
        let Split { message: download, share: server } = self.evaluate(&upload);
        let client = self.decrypt(&download);
        assert_eq!((upload.len(), download.len()), (self.plan.upload_bytes(), self.plan.download_bytes()));
        let MatmulShape { m, k, n, .. } = self.plan.spec().shape;
        let mut want = vec![0u64; m * n];
        for (i, (x0, x1)) in self.shares[0].iter().zip(&self.shares[1]).enumerate() {
            let (row, x) = (i / k, x0.wrapping_add(*x1));
            let weights = &self.weights[i % k * n..][..n];
            for (y, w) in want[row * n..][..n].iter_mut().zip(weights) {
                *y = y.wrapping_add(x.wrapping_mul(i64::from(*w) as u64));
            }
        }
        for (y, (client, server)) in want.iter().zip(client.iter().zip(&server)) {
            let error = (client.wrapping_add(*server).wrapping_sub(*y) as i64).unsigned_abs();
            assert!(error <= self.plan.lsb_error(), "off by {error}, allowed {}", self.plan.lsb_error());
        }
        download
    }
}

fn matmul(c: &mut Criterion) {
    let mut group = c.benchmark_group("matmul");
    group.sample_size(10).warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    for (m, k, n) in [(1, 768, 768), (1, 768, 3072), (128, 768, 768), (1, 4096, 4096), (1, 4096, 11008)] {
        let product = Product::new(MatmulShape { batch: 1, m, k, n }, 20);
        let download = product.check();
        let upload = product.encrypt();
        let Ciphertexts { up, down } = product.plan.ciphertexts();
        eprintln!(
            "matmul {m}x{k}x{n}, {:?}: {} bytes up ({up} ciphertexts), {} bytes down ({down}), 2 flows",
            product.plan.set(),
            upload.len(),
            download.len()
        );
        let id = |step| format!("{step}/{m}x{k}x{n}/l64-w20");
        group.bench_function(id("encrypt"), |bench| bench.iter(|| product.encrypt()));
        group.bench_function(id("evaluate"), |bench| bench.iter(|| product.evaluate(&upload)));
        group.bench_function(id("decrypt"), |bench| bench.iter(|| product.decrypt(&download)));
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    targets = ntt, ciphertexts, matmul
}
criterion_main!(benches);
