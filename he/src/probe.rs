//! The computations of this crate on secrets, one by one, for the command that looks for traces of the secrets in
//! times and addresses (`cargo run --release -p waggle-bench --example secrets`). Nothing else uses this module.

use std::convert::Infallible;
use std::hint::black_box;

use rand::rngs::StdRng;
use rand::{SeedableRng, TryCryptoRng, TryRng};
use waggle_bits::probe::{Probe, shared, words};

use crate::matmul::{MatmulPlan, MatmulShape, MatmulSpec, Packing, PlanOptions, Weights};
use crate::modulus::Modulus;
use crate::ntt;
use crate::ole::{OleKind, OlePlan, probe_rounding};
use crate::params::round_torus;
use crate::sampling::{Expander, Label};
use crate::{ParamSet, PublicKey, SecretKey};

/// Every computation. Transforms come once for every backend that runs on this processor.
pub fn probes() -> Vec<Probe> {
    let mut probes = Probes(Vec::new());
    for (set, prime) in [(ParamSet::Small, 0), (ParamSet::Widest, 3)] {
        transforms(set.degree(), set.primes()[prime], &mut probes);
    }
    samples(&mut probes);
    rounding(&mut probes);
    matrices(&mut probes);
    elementwise(&mut probes);
    probes.0
}

/// The computations collected so far.
struct Probes(Vec<Probe>);

impl Probes {
    fn add<F: FnMut() + 'static>(&mut self, name: &str, secret_bytes: usize, prepare: impl Fn(&[u8]) -> F + 'static) {
        self.0.push(Probe::new(format!("he: {name}"), secret_bytes, prepare));
    }
}

/// The words of a secret as residues below p: their upper bits are cleared.
fn residues(secret: &[u8], p: &Modulus) -> Vec<u64> {
    words(secret).iter().map(|word| word & (u64::MAX >> (65 - p.bits()))).collect()
}

fn transforms(n: usize, p: u64, probes: &mut Probes) {
    for ntt in ntt::backends(n, p).expect("a prime of a parameter set") {
        let (name, ntt) = (ntt.name(), shared(ntt));
        probes.add(&format!("forward transform, N = {n} ({name})"), 8 * n, move |secret| {
            let mut x = residues(secret, ntt.modulus());
            // Outputs are reduced, so they can be the inputs of the next call.
            move || ntt.fwd(black_box(&mut x))
        });
        probes.add(&format!("inverse transform, N = {n} ({name})"), 8 * n, move |secret| {
            let mut x = residues(secret, ntt.modulus());
            move || ntt.inv(black_box(&mut x))
        });
        probes.add(&format!("products, N = {n} ({name})"), 16 * n, move |secret| {
            let [mut x, mut y] = [&secret[..8 * n], &secret[8 * n..]].map(|part| residues(part, ntt.modulus()));
            let mut sum = vec![0; n];
            ntt.factor(&mut x);
            ntt.factor(&mut y);
            move || ntt.dot(black_box(&mut sum), &[&x, &y], &[&y, &x])
        });
    }
}

fn samples(probes: &mut Probes) {
    type Draw = fn(&mut Expander, &mut [i64]);
    let draws: [(&str, Draw); 2] = [("ternary sampling", Expander::ternary), ("error sampling", Expander::errors)];
    for (name, draw) in draws {
        probes.add(name, 32, move |secret| {
            let seed: [u8; 32] = secret.try_into().expect("as many bytes");
            let mut out = vec![0; 4096];
            move || draw(&mut Expander::new(&seed, Label::KeyPair, 0), black_box(&mut out))
        });
    }
    probes.add("key generation", 32, move |secret| {
        let secret = secret.to_vec();
        move || drop(black_box(keys(ParamSet::Small, &secret)))
    });
}

fn rounding(probes: &mut Probes) {
    const COUNT: usize = 1024;
    let (params, set) = (ParamSet::Widest.params(), ParamSet::Widest);
    let limbs = set.primes().len();
    probes.add("rounding to fewer bits", 8 * COUNT * limbs, move |secret| {
        let limbs = secret.chunks_exact(8 * COUNT).zip(params.limbs());
        let x: Vec<Vec<u64>> = limbs.map(|(secret, limb)| residues(secret, limb.modulus())).collect();
        let mut out = vec![0; COUNT];
        move || {
            for (i, out) in black_box(&mut out).iter_mut().enumerate() {
                *out = round_torus(params.torus(x.iter().map(|limb| limb[i])), 47);
            }
        }
    });
    probes.add("rounding to residues of a plaintext prime", 16 * COUNT, move |secret| {
        let fractions: Vec<u128> = secret.as_chunks().0.iter().map(|&bytes| u128::from_le_bytes(bytes)).collect();
        let mut out = vec![0; COUNT];
        move || probe_rounding(params, &fractions, black_box(&mut out))
    });
    probes.add("scaling of ring elements to residues", 8 * COUNT, move |secret| {
        let (x, lift) = (words(secret), params.lift(64));
        let mut out = vec![0; COUNT * limbs];
        move || {
            for (out, &x) in black_box(&mut out).chunks_exact_mut(limbs).zip(&x) {
                let d = lift.remainder(u128::from(x));
                for (i, (out, limb)) in out.iter_mut().zip(params.limbs()).enumerate() {
                    *out = lift.residue(i, limb.modulus(), d);
                }
            }
        }
    });
}

/// A random generator that yields a secret first and known numbers after it.
struct Given<'a> {
    secret: &'a [u8],
    rest: StdRng,
}

impl TryRng for Given<'_> {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        let mut bytes = [0; 4];
        self.try_fill_bytes(&mut bytes).map(|()| u32::from_le_bytes(bytes))
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        let mut bytes = [0; 8];
        self.try_fill_bytes(&mut bytes).map(|()| u64::from_le_bytes(bytes))
    }

    fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), Infallible> {
        let (given, drawn) = out.split_at_mut(self.secret.len().min(out.len()));
        let (now, later) = self.secret.split_at(given.len());
        given.copy_from_slice(now);
        self.secret = later;
        self.rest.try_fill_bytes(drawn)
    }
}

impl TryCryptoRng for Given<'_> {}

/// The random generator of all inputs except the secret.
fn known() -> StdRng {
    StdRng::seed_from_u64(2)
}

/// The key pair whose secret key is drawn from the seed `secret`.
fn keys(set: ParamSet, secret: &[u8]) -> (SecretKey, PublicKey) {
    SecretKey::generate(set, &mut Given { secret, rest: known() })
}

fn matrices(probes: &mut Probes) {
    let (m, k, n) = (1, 64, 32);
    let spec = MatmulSpec { shape: MatmulShape { batch: 1, m, k, n }, width: 56, weight_bits: 20 };
    let options = PlanOptions { packing: Packing::Never, ..PlanOptions::default() };
    let plan = shared(MatmulPlan::with_options(spec, options).expect("a shape that fits"));
    let (key, public) = shared(keys(plan.set(), &[4; 32]));
    let upload = shared(plan.encrypt(key, &vec![1; m * k], &mut known()).expect("a fitting length"));
    let weights = shared((0..(k * n) as i32).map(|i| i - 1000).collect::<Vec<_>>());
    let evaluate = move |x: &[u64]| {
        plan.evaluate(public, upload, Some(x), Weights::I32(weights), None, &mut known()).expect("fitting lengths")
    };
    let download = shared(evaluate(&vec![2; m * k]).message);
    probes.add("matrix product, encryption of a share", 8 * m * k, move |secret| {
        let x = words(secret);
        move || drop(black_box(plan.encrypt(key, &x, &mut known()).expect("a fitting length")))
    });
    probes.add("matrix product, the evaluator's share", 8 * m * k, move |secret| {
        let x = words(secret);
        move || drop(black_box(evaluate(&x)))
    });
    probes.add("matrix product, decryption", 32, move |secret| {
        let key = keys(plan.set(), secret).0;
        move || drop(black_box(plan.decrypt(&key, download).expect("a response of ours")))
    });
}

fn elementwise(probes: &mut Probes) {
    const LEN: usize = 256;
    let plan = shared(OlePlan::new(LEN, 44, OleKind::Product).expect("a length that fits"));
    let (key, public) = shared(keys(plan.set(), &[4; 32]));
    let upload = shared(plan.encrypt(key, &[&[1; LEN]], &mut known()).expect("a fitting length"));
    let evaluate = move |x: &[u64]| plan.evaluate(public, upload, &[x], &mut known()).expect("fitting lengths");
    let download = shared(evaluate(&[1; LEN]).message);
    probes.add("elementwise product, encryption of a share", 8 * LEN, move |secret| {
        let x = ring_elements(secret);
        move || drop(black_box(plan.encrypt(key, &[&x], &mut known()).expect("a fitting length")))
    });
    probes.add("elementwise product, the evaluator's share", 8 * LEN, move |secret| {
        let x = ring_elements(secret);
        move || drop(black_box(evaluate(&x)))
    });
    probes.add("elementwise product, decryption", 32, move |secret| {
        let key = keys(plan.set(), secret).0;
        move || drop(black_box(plan.decrypt(&key, download).expect("a response of ours")))
    });
}

/// The words of a secret as elements of the ring modulo `2^44`.
fn ring_elements(secret: &[u8]) -> Vec<u64> {
    words(secret).iter().map(|word| word & (u64::MAX >> 20)).collect()
}
