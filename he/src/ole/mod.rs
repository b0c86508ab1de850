//! Elementwise products of one party's values with the other's, as additive shares modulo `2^l`: oblivious linear
//! evaluation by RLWE with packed slots (BumbleBee, NDSS 2025, eprint 2023/1678, section on OLE with `Lift`).
//!
//! # Lift
//! Slots hold residues modulo primes `t_1 .. t_c = 1 mod 2N` with product `P >= 2^(2l)`. The encryptor lifts x to
//! `X = round(P x / 2^l)`, the evaluator reads y as a number of `[-2^(l-1), 2^(l-1))`. The parties get shares of `X y mod P`
//! and scale each by `2^l / P`. With `X = P x / 2^l + d`, `|d| <= 1/2`, the sum of the results is x y up to
//! `|d y| 2^l / P <= 1/4` (twice that for [`OleKind::Merged`]) and two roundings of 1/2: **at most 1 LSB**.
//!
//! # Masks
//! An error of one unit in a *coefficient* would spoil every slot, so share conversion must not fail. The mask r is uniform
//! over those elements of `Z_q` for which `t r / q` lies within 1/4 of an integer. Then
//! `round(t (phase + r) / q) - round(t r / q)` is the plaintext whenever noise and rounding of the response stay below
//! `q / (4 t)`, which they do with probability `1 - 2^-80` per coefficient. A noise e moves such a mask by a statistical
//! distance of `2 |e| t / q`; the plan takes q so large that these sum to at most `2^-40` over *all* coefficients of the
//! message. So the key holder's view is that of a random masked plaintext; `c1` is protected by a fresh encryption of zero
//! in every response, as in [matrix products](crate::MatmulPlan).
//!
//! # Few elements
//! A tail of `s < N` slots lives in the subring of polynomials in `X^(N/s)`. Multiplication by a plaintext of the subring
//! keeps coefficients at multiples of `N/s` among themselves, so only those of c0 are ever sent.

mod plan;
#[cfg(test)]
mod tests;

use crate::bits::{BitReader, BitWriter, check_len, packed_len};
use crate::error::HeError;
use crate::keys::{Poly, PublicKey, SecretKey};
use crate::matmul::{centred, read_lifted, split_upload, write_switched};
use crate::modulus::{Modulus, Shoup};
use crate::params::{ParamSet, Params, round_torus};
use crate::sampling::{Expander, Label, fresh_seed};
pub(crate) use plan::{Block, Layout};
use rand::CryptoRng;
use rayon::prelude::*;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use zeroize::{Zeroize, Zeroizing};

/// Which products of the parties' operands are shared. Products that one party can form alone are left to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OleKind {
    /// `x y`; the encryptor holds x, the evaluator y. Operands: `[x]` and `[y]`.
    Product,
    /// `x0 y1 + y0 x1`, the cross terms of `(x0 + x1)(y0 + y1)`, in one response. Operands: `[x0, y0]` and `[x1, y1]`.
    Merged,
    /// `2 x0 x1`, the cross term of `(x0 + x1)^2`. Operands: `[x0]` and `[x1]`.
    Square,
}

impl OleKind {
    /// Operands of each party.
    pub fn operands(self) -> usize {
        match self {
            Self::Product | Self::Square => 1,
            Self::Merged => 2,
        }
    }
}

/// How `len` products modulo `2^width` are cut into ciphertexts. Sizes are known without any tables.
#[derive(Debug, Clone, PartialEq)]
pub struct OlePlan {
    kind: OleKind,
    layout: Layout,
}

/// The plaintext ring for `slots` slots; tables are kept for the life of the process.
fn plaintext_ring(slots: usize, primes: &[u64]) -> Result<Arc<Params>, HeError> {
    type Rings = Mutex<HashMap<(usize, Vec<u64>), Arc<Params>>>;
    static RINGS: OnceLock<Rings> = OnceLock::new();
    // A map of finished entries is sound even if another thread panicked while it held the lock.
    let mut rings = RINGS.get_or_init(Rings::default).lock().unwrap_or_else(PoisonError::into_inner);
    let key = (slots, primes.to_vec());
    if let Some(ring) = rings.get(&key) {
        return Ok(ring.clone());
    }
    let ring = Arc::new(Params::plaintext(slots, primes)?);
    rings.insert(key, ring.clone());
    Ok(ring)
}

/// Scaling between `Z_t` and `Z_q`.
struct PrimeScale<'a> {
    params: &'a Params,
    t: Modulus,
    q_mod_t: u64,
    /// Per limb `t^-1 mod p`.
    inverses: Vec<Shoup>,
}

impl<'a> PrimeScale<'a> {
    fn new(params: &'a Params, t: &Modulus) -> Self {
        let q_mod_t = params.limbs().iter().fold(1, |acc, l| t.mul(acc, l.modulus().value()));
        let inverse = |p: &Modulus| p.shoup(p.inverse(p.reduce(t.value())));
        let inverses = params.limbs().iter().map(|l| inverse(l.modulus())).collect();
        Self { params, t: *t, q_mod_t, inverses }
    }

    /// Residues of `round(q m / t)` for coefficients `m < t`, put at multiples of `stride`.
    fn up(&self, message: &[u64], stride: usize) -> Poly {
        let half = self.t.value() / 2;
        let mut poly = vec![0; self.params.words()];
        for (i, &m) in message.iter().enumerate() {
            // (q m + h - d) / t with d = (q m + h) mod t is the rounding; modulo p, a factor of q, it is (h - d) / t.
            let d = self.t.add(self.t.mul(self.q_mod_t, m), half);
            for (l, (limb, &inverse)) in self.params.limbs().iter().zip(&self.inverses).enumerate() {
                let p = limb.modulus();
                poly[l * self.params.degree() + i * stride] =
                    p.mul_shoup(p.reduce_signed(half as i64 - d as i64), inverse);
            }
        }
        poly
    }

    /// `t x` for a fraction x of the torus: (integer part rounded to nearest, modulo t; distance from it plus 1/4, as a
    /// fraction of `2^64`).
    #[inline(always)]
    fn down(&self, x: u128) -> (u64, u64) {
        let t = u128::from(self.t.value());
        let product = (x >> 64) * t + (((x & u128::from(u64::MAX)) * t) >> 64);
        let rounded = ((product + (1 << 63)) >> 64) as u64;
        (self.t.correct(rounded), (product as u64).wrapping_add(1 << 62))
    }

    /// A mask that is uniform over the elements r of `Z_q` with `t r / q` within 1/4 of an integer, and that integer
    /// modulo t. Half of all draws are kept; the loop branches only on those thrown away.
    fn mask(&self, stream: &mut Expander, mask: &mut [u64]) -> u64 {
        loop {
            self.params.limbs().iter().zip(mask.iter_mut()).for_each(|(l, r)| *r = stream.residue(l.modulus()));
            let (integer, distance) = self.down(self.params.torus(mask.iter().copied()));
            if distance < 1 << 63 {
                return integer;
            }
        }
    }
}

impl OlePlan {
    /// Plans `len >= 1` products modulo `2^width`, `1 <= width <= 64`.
    pub fn new(len: usize, width: u32, kind: OleKind) -> Result<Self, HeError> {
        Ok(Self { kind, layout: Layout::search(len, width, kind.operands())? })
    }

    /// The parameter set that both keys must have.
    pub fn set(&self) -> ParamSet {
        self.layout.set
    }

    /// The tables of the parameter set (built on the first call in the process).
    pub fn params(&self) -> &'static Params {
        self.set().params()
    }

    /// The plaintext primes.
    pub fn plaintext_primes(&self) -> &[u64] {
        &self.layout.primes
    }

    /// Ciphertexts sent up and down.
    pub fn ciphertexts(&self) -> (usize, usize) {
        (self.kind.operands() * self.layout.pieces(), self.layout.pieces())
    }

    /// The ring width l.
    pub fn width(&self) -> u32 {
        self.layout.width
    }

    /// Exact length of [`Self::encrypt`]'s message.
    pub fn upload_bytes(&self) -> usize {
        self.layout.upload_bytes(self.kind.operands())
    }

    /// Exact length of [`Self::evaluate`]'s message.
    pub fn download_bytes(&self) -> usize {
        self.layout.download_bytes()
    }

    /// Bound on `|share sum - exact product| mod 2^width`: 1.
    pub fn lsb_error(&self) -> u64 {
        1
    }

    /// Encrypts this party's operands (see [`OleKind`]), each of the planned length, modulo `2^width`.
    pub fn encrypt(
        &self,
        sk: &SecretKey,
        operands: &[&[u64]],
        rng: &mut (impl CryptoRng + ?Sized),
    ) -> Result<Vec<u8>, HeError> {
        let params = sk.check(self.set())?;
        self.check_operands(operands)?;
        let (a_seed, error_seed) = (fresh_seed(rng), fresh_seed(rng));
        let parts: Vec<Vec<Vec<u8>>> = self
            .jobs(operands.len())
            .map(|(operand, block)| {
                let ring = self.ring(&block)?;
                let slots = self.lift(&ring, &operands[operand][block.start..block.start + block.count]);
                let encrypt = |prime: usize| {
                    let index = self.upload_index(operand, &block, prime);
                    let limb = &ring.limbs()[prime];
                    let mut message = Zeroizing::new(slots[prime * block.slots..][..block.slots].to_vec());
                    limb.ntt().inv(&mut message);
                    let mut c0 = PrimeScale::new(params, limb.modulus()).up(&message, block.stride);
                    let mut errors = Expander::new(&error_seed, Label::UploadErrors, index);
                    sk.encrypt(&a_seed, index, &mut errors, &mut c0);
                    params.inv(&mut c0);
                    pack_strided(params, &c0, block.stride)
                };
                Ok((0..ring.limbs().len()).map(encrypt).collect())
            })
            .collect::<Result<_, HeError>>()?;
        let mut out = Vec::with_capacity(self.upload_bytes());
        out.extend_from_slice(a_seed.as_ref());
        parts.iter().flatten().for_each(|part| out.extend_from_slice(part));
        debug_assert_eq!(out.len(), self.upload_bytes());
        Ok(out)
    }

    /// Multiplies by this party's operands (see [`OleKind`]). Returns the message for the key holder and this party's
    /// shares, `len` ring elements.
    pub fn evaluate(
        &self,
        pk: &PublicKey,
        upload: &[u8],
        operands: &[&[u64]],
        rng: &mut (impl CryptoRng + ?Sized),
    ) -> Result<(Vec<u8>, Vec<u64>), HeError> {
        const MESSAGE: &str = "OLE upload";
        let params = pk.check(self.set())?;
        self.check_operands(operands)?;
        let (a_seed, bodies) = split_upload(upload, self.upload_bytes(), MESSAGE)?;
        let seed = fresh_seed(rng);
        let parts: Vec<(Vec<u8>, Vec<u64>)> = self
            .jobs(1)
            .map(|(_, block)| {
                let ring = self.ring(&block)?;
                // Own operands in the order of the ciphertexts that they multiply.
                let own: Vec<Zeroizing<Poly>> = operands
                    .iter()
                    .rev()
                    .map(|y| self.centre(&ring, &y[block.start..block.start + block.count]))
                    .collect();
                let mut message = Vec::with_capacity(self.layout.response_bytes(&block));
                let mut shares = Zeroizing::new(vec![0; block.slots * ring.limbs().len()]);
                for (prime, limb) in ring.limbs().iter().enumerate() {
                    let (mut sum0, mut sum1) = (vec![0; params.acc_words()], vec![0; params.acc_words()]);
                    for (operand, y) in own.iter().enumerate() {
                        let index = self.upload_index(operand, &block, prime);
                        let start = self.layout.upload_offset(operand, &block, prime);
                        let body = &bodies[start..start + self.layout.body_bytes(&block)];
                        let c0 = unpack_strided(params, body, block.stride, MESSAGE)?;
                        let c1 = params.uniform(&a_seed, Label::Upload, index);
                        let y = self.spread(
                            params,
                            limb.modulus(),
                            &y[prime * block.slots..][..block.slots],
                            block.stride,
                        );
                        params.mul_acc(&mut sum0, &c0, &y);
                        params.mul_acc(&mut sum1, &c1, &y);
                    }
                    let (mut c0, mut c1) = (params.reduce_acc(&sum0), params.reduce_acc(&sum1));
                    sum0.zeroize();
                    sum1.zeroize();
                    let response = (block.index * ring.limbs().len() + prime) as u64;
                    let mut stream = Expander::new(&seed, Label::Response, response);
                    pk.rerandomize(&mut c0, &mut c1, &mut stream);
                    write_switched(params, &c1, self.layout.c1_bits(), &mut message);
                    let scale = PrimeScale::new(params, limb.modulus());
                    let share = &mut shares[prime * block.slots..][..block.slots];
                    self.mask(&scale, &c0, block.stride, &mut stream, share, &mut message);
                    limb.ntt().fwd(share);
                }
                Ok((message, self.scale_down(&ring, &shares, block.count)))
            })
            .collect::<Result<_, HeError>>()?;
        let (messages, shares): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        let download = messages.concat();
        debug_assert_eq!(download.len(), self.download_bytes());
        Ok((download, shares.concat()))
    }

    /// The key holder's shares, `len` ring elements.
    pub fn decrypt(&self, sk: &SecretKey, download: &[u8]) -> Result<Vec<u64>, HeError> {
        const MESSAGE: &str = "OLE response";
        let params = sk.check(self.set())?;
        check_len(MESSAGE, download, self.download_bytes())?;
        let (c0_bits, c1_bits) = (self.layout.c0_bits(), self.layout.c1_bits());
        let lift = params.lift(c1_bits);
        let n = params.degree();
        let shares: Vec<Vec<u64>> = self
            .jobs(1)
            .map(|(_, block)| {
                let ring = self.ring(&block)?;
                let start = self.layout.download_offset(&block);
                let mut rest = &download[start..start + self.layout.response_bytes(&block)];
                let mut shares = Zeroizing::new(vec![0; block.slots * ring.limbs().len()]);
                for (prime, limb) in ring.limbs().iter().enumerate() {
                    let (c1_part, tail) = rest.split_at(packed_len(n, c1_bits));
                    let (c0_part, tail) = tail.split_at(packed_len(block.slots, c0_bits));
                    rest = tail;
                    let mut phase = read_lifted(params, &lift, c1_bits, c1_part, MESSAGE)?;
                    sk.mul(&mut phase);
                    let scale = PrimeScale::new(params, limb.modulus());
                    let mut reader = BitReader::new(c0_part);
                    let share = &mut shares[prime * block.slots..][..block.slots];
                    for (i, share) in share.iter_mut().enumerate() {
                        let c0 = reader.take_wide(c0_bits) << (128 - c0_bits);
                        let product = (0..params.limbs().len()).map(|l| phase[l * n + i * block.stride]);
                        *share = scale.down(params.torus(product).wrapping_add(c0)).0;
                    }
                    reader.finish(MESSAGE)?;
                    limb.ntt().fwd(share);
                }
                Ok(self.scale_down(&ring, &shares, block.count))
            })
            .collect::<Result<_, HeError>>()?;
        Ok(shares.concat())
    }

    /// Adds a mask to every coefficient of c0 that is sent, appends them, and puts the negated plaintext of the mask in
    /// `share`.
    fn mask(
        &self,
        scale: &PrimeScale<'_>,
        c0: &[u64],
        stride: usize,
        stream: &mut Expander,
        share: &mut [u64],
        message: &mut Vec<u8>,
    ) {
        let (params, bits) = (scale.params, self.layout.c0_bits());
        let mut writer = BitWriter::new(message);
        let mut mask = vec![0; params.limbs().len()];
        for (i, share) in share.iter_mut().enumerate() {
            let integer = scale.mask(stream, &mut mask);
            *share = scale.t.sub(0, integer);
            let limbs = params.limbs().iter().zip(&mask).enumerate();
            let masked = limbs.map(|(l, (limb, &r))| limb.modulus().add(c0[l * params.degree() + i * stride], r));
            writer.push_wide(round_torus(params.torus(masked), bits), bits);
        }
        writer.finish();
        mask.zeroize();
    }

    fn ring(&self, block: &Block) -> Result<Arc<Params>, HeError> {
        plaintext_ring(block.slots, &self.layout.primes)
    }

    /// (operand, block) pairs, for parallel work.
    fn jobs(&self, operands: usize) -> impl IndexedParallelIterator<Item = (usize, Block)> {
        let blocks = self.layout.blocks();
        (0..operands * blocks).into_par_iter().map(move |job| (job / blocks, self.layout.block(job % blocks)))
    }

    fn upload_index(&self, operand: usize, block: &Block, prime: usize) -> u64 {
        ((operand * self.layout.blocks() + block.index) * self.layout.primes.len() + prime) as u64
    }

    /// `X = round(P x / 2^width)` modulo every plaintext prime, prime after prime; missing slots are zero.
    fn lift(&self, ring: &Params, x: &[u64]) -> Zeroizing<Poly> {
        let lift = ring.lift(self.layout.width);
        let mut slots = Zeroizing::new(vec![0; ring.words()]);
        for (j, &x) in x.iter().enumerate() {
            let d = lift.remainder(u128::from(x));
            for (i, limb) in ring.limbs().iter().enumerate() {
                slots[i * ring.degree() + j] = lift.residue(i, limb.modulus(), d);
            }
        }
        slots
    }

    /// Coefficients, modulo every plaintext prime, of the polynomial whose slots are the centred values.
    fn centre(&self, ring: &Params, y: &[u64]) -> Zeroizing<Poly> {
        let double = u32::from(self.kind == OleKind::Square);
        let signed = Zeroizing::new(y.iter().map(|&y| centred(y << double, self.layout.width)).collect::<Vec<i64>>());
        // A short block leaves its last slots zero.
        let mut slots = Zeroizing::new(vec![0; ring.degree()]);
        slots[..signed.len()].copy_from_slice(&signed);
        let mut poly = Zeroizing::new(ring.reduce_signed(&slots));
        ring.inv(&mut poly);
        poly
    }

    /// A plaintext with coefficients modulo t, centred, at multiples of `stride`, transformed modulo q.
    fn spread(&self, params: &Params, t: &Modulus, y: &[u64], stride: usize) -> Zeroizing<Poly> {
        let mut signed = Zeroizing::new(vec![0i64; params.degree()]);
        for (&y, slot) in y.iter().zip(signed.iter_mut().step_by(stride)) {
            // All ones if y > t / 2.
            let above = ((t.value() / 2) as i64 - y as i64) >> 63;
            *slot = y as i64 - (t.value() as i64 & above);
        }
        Zeroizing::new(params.transform_signed(&signed, t.bits()))
    }

    /// `round(2^width z / P)` for `count` values z given by their residues.
    fn scale_down(&self, ring: &Params, slots: &[u64], count: usize) -> Vec<u64> {
        let width = self.layout.width;
        let value = |j: usize| ring.torus((0..ring.limbs().len()).map(|i| slots[i * ring.degree() + j]));
        (0..count).map(|j| round_torus(value(j), width) as u64).collect()
    }

    fn check_operands(&self, operands: &[&[u64]]) -> Result<(), HeError> {
        let check = |what, expected, got| {
            if expected == got { Ok(()) } else { Err(HeError::Operand { what, expected, got }) }
        };
        check("list of OLE operands", self.kind.operands(), operands.len())?;
        operands.iter().try_for_each(|x| check("OLE operand", self.layout.len, x.len()))
    }
}

/// Packs the coefficients at multiples of `stride` at the exact sizes of the primes.
fn pack_strided(params: &Params, poly: &[u64], stride: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(params.poly_bytes() / stride);
    for (limb, x) in params.limbs().iter().zip(poly.chunks_exact(params.degree())) {
        let mut writer = BitWriter::new(&mut out);
        x.iter().step_by(stride).for_each(|&x| writer.push(x, limb.modulus().bits()));
        writer.finish();
    }
    out
}

/// Reads what [`pack_strided`] wrote, zero elsewhere, and transforms it.
fn unpack_strided(params: &Params, bytes: &[u8], stride: usize, message: &'static str) -> Result<Poly, HeError> {
    let mut poly = vec![0; params.words()];
    let mut rest = bytes;
    for (limb, out) in params.limbs().iter().zip(poly.chunks_exact_mut(params.degree())) {
        let p = limb.modulus();
        let (part, tail) = rest.split_at(packed_len(params.degree() / stride, p.bits()));
        rest = tail;
        let mut reader = BitReader::new(part);
        for x in out.iter_mut().step_by(stride) {
            *x = reader.take(p.bits());
            if *x >= p.value() {
                return Err(HeError::Residue { message, modulus: p.value(), got: *x });
            }
        }
        reader.finish(message)?;
    }
    params.fwd(&mut poly);
    Ok(poly)
}
