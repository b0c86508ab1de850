#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod ciphertext;
mod error;
mod galois;
mod keys;
pub mod matmul;
mod modulus;
mod ntt;
pub mod ole;
mod params;
mod poly;
#[cfg(feature = "probe")]
pub mod probe;
mod sampling;
mod set;
#[cfg(test)]
mod test_keys;
mod work;

pub use ciphertext::{Ciphertexts, Split};
pub use error::HeError;
pub use galois::{EvaluationKeys, GaloisKeys};
pub use keys::{PublicKey, SecretKey};
pub use matmul::{
    CachedWeights, DEFAULT_CORES, Entries, MatmulPlan, MatmulShape, MatmulSpec, Packing, PlanOptions, ProductPlan,
    ResponseSeeds, SeededPlan, Tile, WeightCache, Weights,
};
pub use modulus::{MAX_MODULUS_BITS, Modulus};
pub use ntt::{NttBackend, Product, backends};
pub use ole::{OleKind, OlePlan};
pub use params::{Limb, Params};
pub use sampling::SEED_BYTES;
pub use set::{ParamSet, SECURITY_TABLE};
pub use work::{MatmulWork, OleWork};
