//! Elementwise products of one party's values with the other's, as additive shares modulo `2^l`: oblivious linear
//! evaluation by RLWE with packed slots (BumbleBee, NDSS 2025, eprint 2023/1678, section on OLE with `Lift`).
//!
//! # Lift
//! Slots hold residues modulo primes `t_1 .. t_c = 1 mod 2N` with product `P >= 2^(2l)`. The encryptor lifts x to
//! `X = round(P x / 2^l)`, the evaluator reads y as a number of `[-2^(l-1), 2^(l-1))`. The parties get shares of
//! `X y mod P` and scale each by `2^l / P`. With `X = P x / 2^l + d`, `|d| <= 1/2`, the sum of the results is x y up
//! to `|d y| 2^l / P <= 1/4` (twice that for [`OleKind::Merged`]) and two roundings of 1/2: **at most 1 LSB**.
//!
//! If products may be off by 2^s ([`OlePlan::within`]), `P >= 2^(2l - s)` is enough: `|d y| 2^l / P` is then at most
//! 2^s / 4. Fixed-point products whose last places are dropped anyway use this.
//!
//! # Masks
//! An error of one unit in a *coefficient* would spoil every slot, so share conversion must not fail. The mask r is
//! uniform over those elements of `Z_q` for which `t r / q` lies within 1/4 of an integer. Then `round(t (phase + r)
//! / q) - round(t r / q)` is the plaintext whenever noise and rounding of the response stay below `q / (4 t)`, which
//! they do with probability `1 - 2^-80` per coefficient. So the key holder's view is that of a random masked
//! plaintext, up to a statistical distance. A fresh encryption of zero protects `c1` in every response, as in [matrix
//! products](crate::MatmulPlan).
//!
//! **Distance.** The set of masks is t intervals of `q / (2 t)` elements. A noise e moves each, so a share
//! `2 |e| t / q` of the masks leaves the set. `t r / q` is computed from a fraction of 128 bits that is too small by
//! up to `2 f 2^-128` with f limbs. This blurs both ends of an interval, for a share of `8 f t 2^-128` more.
//! [`OlePlan::distance`] sums both over all coefficients of the message, with the noise of the worst operands. The
//! plan takes q so large that the sum is at most `2^-60`: a session of `10^6` messages stays at `2^-40`. At N = 8192
//! this takes up to 176 bits of the 218 that the security table allows.
//!
//! # Few elements
//! A tail of `s < N` slots lives in the subring of polynomials in `X^(N/s)`. Multiplication by a plaintext of the
//! subring keeps coefficients at multiples of `N/s` among themselves, so only those of c0 are ever sent.

mod layout;
mod plan;
mod primes;
mod scale;
#[cfg(test)]
mod tests;

#[cfg(feature = "probe")]
pub(crate) use plan::probe_rounding;
pub use plan::{OleKind, OlePlan};
