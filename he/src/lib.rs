//! Two-party linear algebra on additive shares over `Z_{2^l}` by ring-LWE encryption. Pure computation: shares and keys
//! in, bytes out, and back.
#![deny(missing_docs)]

mod bits;
mod error;
mod keys;
mod matmul;
mod modulus;
mod ntt;
mod ole;
mod params;
mod sampling;
#[cfg(test)]
mod test_keys;

pub use error::HeError;
pub use keys::{PublicKey, SecretKey};
pub use matmul::{MatmulPlan, MatmulShape, MatmulSpec, PlanOptions, Weights};
pub use modulus::{MAX_MODULUS_BITS, Modulus};
#[cfg(target_arch = "x86_64")]
pub use ntt::FloatNtt;
pub use ntt::{ACC_WORDS, MAX_LAZY_TERMS, NttBackend, TfheNtt};
pub use ole::{OleKind, OlePlan};
pub use params::{Limb, ParamSet, Params, SECURITY_TABLE};
pub use sampling::SEED_BYTES;
