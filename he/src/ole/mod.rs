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
//! An error of one unit in a *coefficient* would spoil every slot, so share conversion must not fail. The mask r is
//! uniform over those elements of `Z_q` for which `t r / q` lies within 1/4 of an integer. Then
//! `round(t (phase + r) / q) - round(t r / q)` is the plaintext whenever noise and rounding of the response stay
//! below `q / (4 t)`, which they do with probability `1 - 2^-80` per coefficient. So the key holder's view is that of
//! a random masked plaintext, up to a statistical distance; `c1` is protected by a fresh encryption of zero in every
//! response, as in [matrix products](crate::MatmulPlan).
//!
//! **Distance.** The set of masks is t intervals of `q / (2 t)` elements. A noise e moves each, so a share
//! `2 |e| t / q` of the masks leaves the set. `t r / q` is computed from a fraction of 128 bits that misses up to
//! `2 f` of `2^-128` with f limbs, so both ends of an interval are blurred, for a share of `8 f t 2^-128` more.
//! [`OlePlan::distance`] sums both over all coefficients of the message, with the noise of the worst operands, and
//! the plan takes q so large that the sum is at most `2^-60`: a session of `10^6` messages stays at `2^-40`. At N =
//! 8192 this takes up to 176 bits of the 218 that the security table allows.
//!
//! # Few elements
//! A tail of `s < N` slots lives in the subring of polynomials in `X^(N/s)`. Multiplication by a plaintext of the subring
//! keeps coefficients at multiples of `N/s` among themselves, so only those of c0 are ever sent.

mod plan;
mod scale;
#[cfg(test)]
mod tests;

use crate::bits::{BitReader, BitWriter, check_len, packed_len};
use crate::error::HeError;
use crate::keys::{Poly, PublicKey, SecretKey};
use crate::matmul::{centred, read_lifted, split_upload, write_switched};
use crate::params::{ParamSet, Params, round_torus};
use crate::sampling::{Expander, Label, SEED_BYTES, fresh_seed};
use plan::{Block, Layout};
use rand::CryptoRng;
use rayon::prelude::*;
use scale::PrimeScale;
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

/// One ciphertext: a block of one operand modulo one plaintext prime.
struct Piece {
    /// Position among all ciphertexts of the message; no two share a stream.
    index: usize,
    operand: usize,
    block: Block,
    prime: usize,
}

impl Piece {
    /// The elements of this block.
    fn slice<'a>(&self, x: &'a [u64]) -> &'a [u64] {
        &x[self.block.start..self.block.start + self.block.count]
    }
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

    /// Bound on the statistical distance between what the key holder sees of one message and what it could compute
    /// without the evaluator's operands: at most `2^-60`. Distances of several messages add up.
    pub fn distance(&self) -> f64 {
        self.layout.distance(self.kind.operands())
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
        let encrypt = |piece: Piece| {
            let (block, ring) = (piece.block, self.ring(&piece.block)?);
            let limb = &ring.limbs()[piece.prime];
            let mut message = self.lift(&ring, piece.prime, piece.slice(operands[piece.operand]));
            limb.ntt().inv(&mut message);
            let mut c0 = PrimeScale::new(params, limb.modulus()).up(&message, block.stride);
            let index = piece.index as u64;
            sk.encrypt(&a_seed, index, &mut Expander::new(&error_seed, Label::UploadErrors, index), &mut c0);
            params.inv(&mut c0);
            Ok(pack_strided(params, &c0, block.stride))
        };
        let bodies: Vec<Vec<u8>> = self.pieces(operands.len()).map(encrypt).collect::<Result<_, HeError>>()?;
        let upload = [a_seed.as_slice(), &bodies.concat()].concat();
        debug_assert_eq!(upload.len(), self.upload_bytes());
        Ok(upload)
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
        let params = pk.check(self.set())?;
        self.check_operands(operands)?;
        let (a_seed, bodies) = split_upload(upload, self.upload_bytes(), "OLE upload")?;
        let seed = fresh_seed(rng);
        let respond = |piece: Piece| {
            let (block, ring) = (piece.block, self.ring(&piece.block)?);
            let limb = &ring.limbs()[piece.prime];
            let (mut c0, mut c1) = self.products(params, &ring, &piece, &a_seed, bodies, operands)?;
            let mut stream = Expander::new(&seed, Label::Response, piece.index as u64);
            pk.rerandomize(&mut c0, &mut c1, &mut stream);
            let mut message = Vec::with_capacity(self.layout.response_bytes(&block));
            write_switched(params, &c1, self.layout.c1_bits(), &mut message);
            let scale = PrimeScale::new(params, limb.modulus());
            let mut share = Zeroizing::new(vec![0; block.slots]);
            self.mask(&scale, &c0, block.stride, &mut stream, &mut share, &mut message);
            limb.ntt().fwd(&mut share);
            Ok((message, share))
        };
        let parts: Vec<(Vec<u8>, Zeroizing<Poly>)> = self.pieces(1).map(respond).collect::<Result<_, HeError>>()?;
        let (messages, shares): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        let download = messages.concat();
        debug_assert_eq!(download.len(), self.download_bytes());
        Ok((download, self.scale_down(&shares)?))
    }

    /// The key holder's shares, `len` ring elements.
    pub fn decrypt(&self, sk: &SecretKey, download: &[u8]) -> Result<Vec<u64>, HeError> {
        const MESSAGE: &str = "OLE response";
        let params = sk.check(self.set())?;
        check_len(MESSAGE, download, self.download_bytes())?;
        let (c0_bits, c1_bits) = (self.layout.c0_bits(), self.layout.c1_bits());
        let lift = params.lift(c1_bits);
        let open = |piece: Piece| {
            let (block, ring) = (piece.block, self.ring(&piece.block)?);
            let limb = &ring.limbs()[piece.prime];
            let start = self.layout.download_offset(&block, piece.prime);
            let part = &download[start..start + self.layout.response_bytes(&block)];
            let (c1_part, c0_part) = part.split_at(packed_len(params.degree(), c1_bits));
            let mut phase = Zeroizing::new(read_lifted(params, &lift, c1_bits, c1_part, MESSAGE)?);
            sk.mul(&mut phase);
            let scale = PrimeScale::new(params, limb.modulus());
            let mut reader = BitReader::new(c0_part);
            let mut share = Zeroizing::new(vec![0; block.slots]);
            for (i, share) in share.iter_mut().enumerate() {
                let c0 = reader.take_wide(c0_bits) << (128 - c0_bits);
                let product = phase.chunks_exact(params.degree()).map(|limb| limb[i * block.stride]);
                *share = scale.down(params.torus(product).wrapping_add(c0)).0;
            }
            reader.finish(MESSAGE)?;
            limb.ntt().fwd(&mut share);
            Ok(share)
        };
        let shares: Vec<Zeroizing<Poly>> = self.pieces(1).map(open).collect::<Result<_, HeError>>()?;
        self.scale_down(&shares)
    }

    /// The sum of products of the uploads of a piece with the own operands, transformed.
    fn products(
        &self,
        params: &Params,
        ring: &Params,
        piece: &Piece,
        a_seed: &[u8; SEED_BYTES],
        bodies: &[u8],
        operands: &[&[u64]],
    ) -> Result<(Poly, Poly), HeError> {
        let (mut sum0, mut sum1) = (vec![0; params.words()], vec![0; params.words()]);
        // x0 meets y1 and y0 meets x1, so the own operands go in reverse.
        for (operand, y) in operands.iter().rev().enumerate() {
            let piece = self.piece(operand * self.layout.pieces() + piece.index);
            let start = self.layout.upload_offset(operand, &piece.block, piece.prime);
            let body = &bodies[start..start + self.layout.body_bytes(&piece.block)];
            let mut c0 = unpack_strided(params, body, piece.block.stride, "OLE upload")?;
            let mut c1 = params.uniform(a_seed, Label::Upload, piece.index as u64);
            let y = self.centre(params, ring, &piece, piece.slice(y));
            params.factor(&mut c0);
            params.factor(&mut c1);
            params.dot(&mut sum0, &[&c0], &[&y]);
            params.dot(&mut sum1, &[&c1], &[&y]);
        }
        Ok((sum0, sum1))
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

    /// Ciphertexts of `operands` operands: operand after operand, block after block, prime after prime.
    fn pieces(&self, operands: usize) -> impl IndexedParallelIterator<Item = Piece> {
        (0..operands * self.layout.pieces()).into_par_iter().map(|index| self.piece(index))
    }

    fn piece(&self, index: usize) -> Piece {
        let (operand, rest) = (index / self.layout.pieces(), index % self.layout.pieces());
        let primes = self.layout.primes.len();
        Piece { index, operand, block: self.layout.block(rest / primes), prime: rest % primes }
    }

    /// `X = round(P x / 2^width)` modulo one plaintext prime; missing slots are zero.
    fn lift(&self, ring: &Params, prime: usize, x: &[u64]) -> Zeroizing<Poly> {
        let lift = ring.lift(self.layout.width);
        let p = ring.limbs()[prime].modulus();
        let mut slots = Zeroizing::new(vec![0; ring.degree()]);
        for (slot, &x) in slots.iter_mut().zip(x) {
            *slot = lift.residue(prime, p, lift.remainder(u128::from(x)));
        }
        slots
    }

    /// The plaintext whose slots are the centred values, with coefficients centred modulo t, transformed modulo q.
    fn centre(&self, params: &Params, ring: &Params, piece: &Piece, y: &[u64]) -> Zeroizing<Poly> {
        let limb = &ring.limbs()[piece.prime];
        let t = limb.modulus();
        let double = u32::from(self.kind == OleKind::Square);
        let mut slots = Zeroizing::new(vec![0; ring.degree()]);
        for (slot, &y) in slots.iter_mut().zip(y) {
            *slot = t.reduce_signed(centred(y << double, self.layout.width));
        }
        limb.ntt().inv(&mut slots);
        let mut signed = Zeroizing::new(vec![0i64; params.degree()]);
        for (&y, out) in slots.iter().zip(signed.iter_mut().step_by(piece.block.stride)) {
            // All ones if y > t / 2.
            let above = ((t.value() / 2) as i64 - y as i64) >> 63;
            *out = y as i64 - (t.value() as i64 & above);
        }
        let mut out = Zeroizing::new(vec![0; params.words()]);
        params.factor_signed(&signed, t.bits(), &mut out);
        out
    }

    /// `round(2^width z / P)` for the values z given by their residues, one vector per block and prime.
    fn scale_down(&self, shares: &[Zeroizing<Poly>]) -> Result<Vec<u64>, HeError> {
        let mut out = Vec::with_capacity(self.layout.len);
        for (index, residues) in shares.chunks_exact(self.layout.primes.len()).enumerate() {
            let block = self.layout.block(index);
            let ring = self.ring(&block)?;
            let value = |j: usize| round_torus(ring.torus(residues.iter().map(|r| r[j])), self.layout.width) as u64;
            out.extend((0..block.count).map(value));
        }
        Ok(out)
    }

    fn check_operands(&self, operands: &[&[u64]]) -> Result<(), HeError> {
        let check = |what, expected, got| {
            if expected == got { Ok(()) } else { Err(HeError::Operand { what, expected, got }) }
        };
        check("list of OLE operands", self.kind.operands(), operands.len())?;
        operands.iter().try_for_each(|x| check("OLE operand", self.layout.len, x.len()))
    }
}

/// What decryption does to every fraction, for [`crate::probe`].
#[cfg(feature = "probe")]
pub(crate) fn probe_rounding(params: &Params, fractions: &[u128], out: &mut [u64]) {
    // A plaintext prime of the largest size in use.
    let scale = PrimeScale::new(params, &crate::modulus::Modulus::new(0x3ffffff70001));
    out.iter_mut().zip(fractions).for_each(|(out, &x)| *out = scale.down(x).0);
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
