//! Two-party linear algebra on additive shares over `Z_{2^l}` by ring-LWE encryption. Pure computation: shares and keys in,
//! bytes out, and back; no sockets.
//!
//! One party, the *key holder*, encrypts its share of an operand. The other, the *evaluator*, multiplies by values that
//! only it knows, masks the result and sends it back. Both end with a share of the product.
//!
//! | | plaintext operand | message up | message down |
//! |---|---|---|---|
//! | [`MatmulPlan`] | a matrix: weights, or a share of another activation | tiles of X | output coefficients, one c1 per response |
//! | [`OlePlan`] | a vector: elementwise products and squares | packed slots | packed slots |
//!
//! A plan follows from the shape alone, and knows the exact length of both messages before any key exists.
//!
//! ```
//! use he::{MatmulPlan, MatmulShape, MatmulSpec, SecretKey, Weights};
//! # fn main() -> Result<(), he::HeError> {
//! let spec = MatmulSpec { shape: MatmulShape { batch: 1, m: 1, k: 3, n: 2 }, width: 64, weight_bits: 13 };
//! let plan = MatmulPlan::new(spec)?;
//! let (x0, x1) = ([10, 20, u64::MAX], [1, 2, 4]); // shares of 11, 22, 3
//! let w = [1i16, -1, 0, 2, 5, 0];
//!
//! let (sk, pk) = SecretKey::generate(plan.set(), &mut rand::rng());
//! let upload = plan.encrypt(&sk, &x0, &mut rand::rng())?;
//! let (download, y1) = plan.evaluate(&pk, &upload, Some(&x1), Weights::I16(&w), &mut rand::rng())?;
//! let y0 = plan.decrypt(&sk, &download)?;
//!
//! assert_eq!(upload.len(), plan.upload_bytes());
//! for (share0, (share1, exact)) in y0.iter().zip(y1.iter().zip([26i64, 33])) {
//!     let error = share0.wrapping_add(*share1).wrapping_sub(exact as u64) as i64;
//!     assert!(error.unsigned_abs() <= plan.lsb_error());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Security
//! Semi-honest. Parameters come from the 128-bit column of the Homomorphic Encryption Standard for ternary secrets, and
//! [`Params::new`] refuses others; errors are centred binomial with variance 10.5. Every response carries a fresh
//! encryption of zero and a fresh mask over `Z_q`; the modules [`matmul`] and [`ole`] argue what the key holder sees. A message that deviates yields a typed error or wrong shares, never a panic; lengths are checked first.
//!
//! No branch and no address depends on keys, errors, masks, shares or weights, save that rejection sampling branches on
//! words it throws away, and that a weight out of range is reported. Keys, seeds, noise, masks and phases are wiped when
//! dropped; ciphertexts, and the returned shares, are not.
//!
//! # Arithmetic
//! Residues modulo primes of at most 50 bits, transformed by an [`NttBackend`]: in 52-bit integers on AVX-512 with IFMA
//! (`IfmaNtt`), in double precision on AVX-512 without (`FloatNtt`), else by the crate `tfhe-ntt` ([`TfheNtt`]). All give
//! the same words, so parties with different processors understand each other.
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

pub use ciphertext::Ciphertexts;
pub use error::HeError;
pub use galois::{EvaluationKeys, GaloisKeys};
pub use keys::{PublicKey, SecretKey};
pub use matmul::{MatmulPlan, MatmulShape, MatmulSpec, Packing, PlanOptions, Tile, Weights};
pub use modulus::{MAX_MODULUS_BITS, Modulus};
#[cfg(target_arch = "x86_64")]
pub use ntt::{FloatNtt, IfmaNtt};
pub use ntt::{NttBackend, TfheNtt};
pub use ole::{OleKind, OlePlan};
pub use params::{Limb, Params};
pub use sampling::SEED_BYTES;
pub use set::{ParamSet, SECURITY_TABLE};
