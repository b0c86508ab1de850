//! The computations on secrets of this crate, one by one, for the command that looks for traces of the secrets in
//! time and addresses (`cargo run --release -p waggle-bench --example secrets`). Nothing else uses this module.

use std::convert::Infallible;
use std::hint::black_box;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{SeedableRng, TryCryptoRng, TryRng};

use crate::matmul::{MatmulPlan, MatmulShape, MatmulSpec, Packing, PlanOptions, Weights};
use crate::modulus::Modulus;
use crate::ntt::{self, NttBackend};
use crate::ole::{OleKind, OlePlan, probe_rounding};
use crate::params::round_torus;
use crate::sampling::{Expander, Label};
use crate::{ParamSet, PublicKey, SecretKey};

/// Takes a secret in and returns what computes on it, as often as it is called. Neither may branch or address by the
/// secret.
pub type Prepare = Box<dyn Fn(&[u8]) -> Box<dyn FnMut()>>;

/// One computation.
pub struct Probe {
    /// Name of the computation and of its kernels.
    pub name: String,
    /// Bytes of its secret.
    pub secret_bytes: usize,
    /// Makes it ready.
    pub prepare: Prepare,
}

type Add<'a> = &'a mut dyn FnMut(&str, usize, Prepare);

/// Every computation; transforms with every backend of this processor.
pub fn probes() -> Vec<Probe> {
    let mut probes = Vec::new();
    let mut add = |name: &str, secret_bytes: usize, prepare: Prepare| {
        probes.push(Probe { name: format!("he: {name}"), secret_bytes, prepare });
    };
    for (set, prime) in [(ParamSet::Small, 0), (ParamSet::Widest, 3)] {
        transforms(set.degree(), set.primes()[prime], &mut add);
    }
    samples(&mut add);
    rounding(&mut add);
    matrices(&mut add);
    elementwise(&mut add);
    probes
}

/// Whole words of a secret.
fn words(secret: &[u8]) -> Vec<u64> {
    secret.as_chunks::<8>().0.iter().map(|&bytes| u64::from_le_bytes(bytes)).collect()
}

/// Residues below p: words without their upper bits.
fn residues(secret: &[u8], p: &Modulus) -> Vec<u64> {
    words(secret).iter().map(|word| word & (u64::MAX >> (65 - p.bits()))).collect()
}

fn transforms(n: usize, p: u64, add: Add<'_>) {
    for ntt in ntt::backends(n, p).expect("a prime of a parameter set") {
        let (name, ntt): (_, Arc<dyn NttBackend>) = (ntt.name(), ntt.into());
        let own = ntt.clone();
        add(&format!("forward transform, N = {n} ({name})"), 8 * n, {
            Box::new(move |secret| {
                let (mut x, ntt) = (residues(secret, own.modulus()), own.clone());
                // Outputs are reduced, hence inputs of the next call.
                Box::new(move || ntt.fwd(black_box(&mut x)))
            })
        });
        let own = ntt.clone();
        add(&format!("inverse transform, N = {n} ({name})"), 8 * n, {
            Box::new(move |secret| {
                let (mut x, ntt) = (residues(secret, own.modulus()), own.clone());
                Box::new(move || ntt.inv(black_box(&mut x)))
            })
        });
        add(&format!("products, N = {n} ({name})"), 16 * n, {
            Box::new(move |secret| {
                let (mut x, mut y) =
                    (residues(&secret[..8 * n], ntt.modulus()), residues(&secret[8 * n..], ntt.modulus()));
                let (ntt, mut sum) = (ntt.clone(), vec![0; n]);
                ntt.factor(&mut x);
                ntt.factor(&mut y);
                Box::new(move || ntt.dot(black_box(&mut sum), &[&x, &y], &[&y, &x]))
            })
        });
    }
}

fn samples(add: Add<'_>) {
    type Draw = fn(&mut Expander, &mut [i64]);
    let draws: [(&str, Draw); 2] = [("ternary sampling", Expander::ternary), ("error sampling", Expander::errors)];
    for (name, draw) in draws {
        add(name, 32, {
            Box::new(move |secret| {
                let seed: [u8; 32] = secret.try_into().expect("as many bytes");
                let mut out = vec![0; 4096];
                Box::new(move || draw(&mut Expander::new(&seed, Label::KeyPair, 0), black_box(&mut out)))
            })
        });
    }
    add("key generation", 32, {
        Box::new(move |secret| {
            let secret = secret.to_vec();
            Box::new(move || {
                black_box(keys(ParamSet::Small, &secret));
            })
        })
    });
}

fn rounding(add: Add<'_>) {
    const COUNT: usize = 1024;
    let (params, set) = (ParamSet::Widest.params(), ParamSet::Widest);
    let limbs = set.primes().len();
    add("rounding to fewer bits", 8 * COUNT * limbs, {
        Box::new(move |secret| {
            let x: Vec<Vec<u64>> = (0..limbs)
                .map(|l| residues(&secret[8 * COUNT * l..8 * COUNT * (l + 1)], params.limbs()[l].modulus()))
                .collect();
            let mut out = vec![0; COUNT];
            Box::new(move || {
                for (i, out) in black_box(&mut out).iter_mut().enumerate() {
                    *out = round_torus(params.torus(x.iter().map(|limb| limb[i])), 47);
                }
            })
        })
    });
    add("rounding to residues of a plaintext prime", 16 * COUNT, {
        Box::new(move |secret| {
            let fractions: Vec<u128> = secret.as_chunks().0.iter().map(|&bytes| u128::from_le_bytes(bytes)).collect();
            let mut out = vec![0; COUNT];
            Box::new(move || probe_rounding(params, &fractions, black_box(&mut out)))
        })
    });
    add("scaling of ring elements to residues", 8 * COUNT, {
        Box::new(move |secret| {
            let (x, lift) = (words(secret), params.lift(64));
            let mut out = vec![0; COUNT * limbs];
            Box::new(move || {
                for (out, &x) in black_box(&mut out).chunks_exact_mut(limbs).zip(&x) {
                    let d = lift.remainder(u128::from(x));
                    for (i, (out, limb)) in out.iter_mut().zip(params.limbs()).enumerate() {
                        *out = lift.residue(i, limb.modulus(), d);
                    }
                }
            })
        })
    });
}

/// A generator that gives a secret first and known numbers after it.
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

/// The generator of all inputs but the secret.
fn known() -> StdRng {
    StdRng::seed_from_u64(2)
}

/// The key pair whose secret half comes of the seed `secret`.
fn keys(set: ParamSet, secret: &[u8]) -> (SecretKey, PublicKey) {
    SecretKey::generate(set, &mut Given { secret, rest: known() })
}

fn matrices(add: Add<'_>) {
    let (m, k, n) = (1, 64, 32);
    let spec = MatmulSpec { shape: MatmulShape { batch: 1, m, k, n }, width: 56, weight_bits: 20 };
    let options = PlanOptions { packing: Packing::Never, ..PlanOptions::default() };
    let plan = Arc::new(MatmulPlan::with_options(spec, options).expect("a shape that fits"));
    let (sk, pk) = keys(plan.set(), &[4; 32]);
    let (sk, pk) = (Arc::new(sk), Arc::new(pk));
    let upload = plan.encrypt(&sk, &vec![1; m * k], &mut known()).expect("a fitting length");
    let weights: Arc<Vec<i32>> = Arc::new((0..(k * n) as i32).map(|i| i - 1000).collect());
    let evaluate = |plan: &MatmulPlan, pk: &PublicKey, upload: &[u8], x: &[u64], weights: &[i32]| {
        let weights = Weights::I32(weights);
        plan.evaluate(pk, upload, Some(x), weights, &mut known()).expect("fitting lengths")
    };
    let download = evaluate(&plan, &pk, &upload, &vec![2; m * k], &weights).message;

    let (of, key) = (plan.clone(), sk);
    add("matrix product, encryption of a share", 8 * m * k, {
        Box::new(move |secret| {
            let (x, of, key) = (words(secret), of.clone(), key.clone());
            Box::new(move || {
                black_box(of.encrypt(&key, &x, &mut known()).expect("a fitting length"));
            })
        })
    });
    let of = plan.clone();
    add("matrix product, the evaluator's share", 8 * m * k, {
        Box::new(move |secret| {
            let (x, of, pk) = (words(secret), of.clone(), pk.clone());
            let (upload, weights) = (upload.clone(), weights.clone());
            Box::new(move || {
                black_box(evaluate(&of, &pk, &upload, &x, &weights));
            })
        })
    });
    add("matrix product, decryption", 32, {
        Box::new(move |secret| {
            let (key, of, download) = (keys(plan.set(), secret).0, plan.clone(), download.clone());
            Box::new(move || {
                black_box(of.decrypt(&key, &download).expect("a response of ours"));
            })
        })
    });
}

fn elementwise(add: Add<'_>) {
    const LEN: usize = 256;
    let plan = Arc::new(OlePlan::new(LEN, 44, OleKind::Product).expect("a length that fits"));
    let (sk, pk) = keys(plan.set(), &[4; 32]);
    let (sk, pk) = (Arc::new(sk), Arc::new(pk));
    let ones = [1; LEN];
    let upload = plan.encrypt(&sk, &[&ones], &mut known()).expect("a fitting length");
    let download = plan.evaluate(&pk, &upload, &[&ones], &mut known()).expect("fitting lengths").message;

    let (of, key) = (plan.clone(), sk);
    add("elementwise product, encryption of a share", 8 * LEN, {
        Box::new(move |secret| {
            let (x, of, key) = (ring_elements(secret), of.clone(), key.clone());
            Box::new(move || {
                black_box(of.encrypt(&key, &[&x], &mut known()).expect("a fitting length"));
            })
        })
    });
    let of = plan.clone();
    add("elementwise product, the evaluator's share", 8 * LEN, {
        Box::new(move |secret| {
            let (x, of, pk, upload) = (ring_elements(secret), of.clone(), pk.clone(), upload.clone());
            Box::new(move || {
                black_box(of.evaluate(&pk, &upload, &[&x], &mut known()).expect("fitting lengths"));
            })
        })
    });
    add("elementwise product, decryption", 32, {
        Box::new(move |secret| {
            let (key, of, download) = (keys(plan.set(), secret).0, plan.clone(), download.clone());
            Box::new(move || {
                black_box(of.decrypt(&key, &download).expect("a response of ours"));
            })
        })
    });
}

/// Elements of the ring of 44 bits.
fn ring_elements(secret: &[u8]) -> Vec<u64> {
    words(secret).iter().map(|word| word & (u64::MAX >> 20)).collect()
}
