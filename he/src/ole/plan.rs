//! A plan, and both parties' sides of it.

use super::layout::{Block, Layout};
use super::scale::PrimeScale;
use crate::ciphertext::{Ciphertext, Ciphertexts, Split, read_lifted, split_upload, write_switched};
use crate::error::HeError;
use crate::keys::{PublicKey, SecretKey};
use crate::params::{Params, round_torus};
use crate::poly::Poly;
use crate::sampling::{Expander, Label, SEED_BYTES, fresh_seed};
use crate::set::ParamSet;
use crate::work::OleWork;
use rand::CryptoRng;
use rayon::prelude::*;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use waggle_bits::{Reader, Writer, packed_bytes, signed};
use zeroize::{Zeroize, Zeroizing};

/// Which products of the parties' operands are shared. A product that one party can form alone is not included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OleKind {
    /// `x y`; the encryptor holds x, the evaluator y. Operands: `[x]` and `[y]`.
    Product,
    /// `x0 y1 + y0 x1`, the cross terms of `(x0 + x1)(y0 + y1)`, in one response. Operands: `[x0, y0]` and
    /// `[x1, y1]`.
    Merged,
}

impl OleKind {
    /// Number of operands of each party.
    pub fn operands(self) -> usize {
        match self {
            Self::Product => 1,
            Self::Merged => 2,
        }
    }
}

/// The plan of `len` elementwise products modulo `2^width`: their division into ciphertexts. Sizes are known without
/// building tables.
#[derive(Debug, Clone, PartialEq)]
pub struct OlePlan {
    kind: OleKind,
    pub(super) layout: Layout,
}

/// One ciphertext: a block of one operand modulo one plaintext prime.
pub(super) struct Piece {
    /// Position among all ciphertexts of the message. It names the streams of the ciphertext, which no two share.
    index: usize,
    operand: usize,
    pub(super) block: Block,
    prime: usize,
}

impl Piece {
    /// The elements of `x` that belong to this block.
    fn slice<'a>(&self, x: &'a [u64]) -> &'a [u64] {
        &x[self.block.start..self.block.start + self.block.count]
    }
}

/// The plaintext ring for `slots` slots. Its tables are kept for the life of the process.
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
    /// Plans `len >= 1` products modulo `2^width`, `1 <= width <= 64`. Errors: [`HeError::Width`],
    /// [`HeError::Shape`].
    pub fn new(len: usize, width: u32, kind: OleKind) -> Result<Self, HeError> {
        Self::within(len, width, 0, kind)
    }

    /// [`Self::new`] for products that may be off by `2^error_bits`, `error_bits < width`. Plaintexts then have
    /// `error_bits` fewer bits, which saves bytes.
    pub fn within(len: usize, width: u32, error_bits: u32, kind: OleKind) -> Result<Self, HeError> {
        Ok(Self { kind, layout: Layout::search(len, width, error_bits, kind.operands())? })
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

    /// Number of ciphertexts in either message.
    pub fn ciphertexts(&self) -> Ciphertexts {
        let down = self.layout.pieces();
        Ciphertexts { up: self.kind.operands() * down, down }
    }

    /// The work of both parties on the products.
    pub fn work(&self) -> OleWork {
        let Ciphertexts { up, down } = self.ciphertexts();
        let coefficients = |count: usize| (count * self.set().degree() * self.set().primes().len()) as u64;
        let (up, down) = (coefficients(up), coefficients(down));
        OleWork { encrypted: up, multiplied: up, answered: down, opened: down }
    }

    /// The ring width l.
    pub fn width(&self) -> u32 {
        self.layout.width
    }

    /// Exact length of the message of [`Self::encrypt`] in bytes.
    pub fn upload_bytes(&self) -> usize {
        self.layout.upload_bytes(self.kind.operands())
    }

    /// Exact length of the message of [`Self::evaluate`] in bytes.
    pub fn download_bytes(&self) -> usize {
        self.layout.download_bytes()
    }

    /// Bound on the statistical distance between what the key holder sees of one message and what it could compute
    /// without the evaluator's operands: at most `2^-60`. Distances of several messages add up.
    pub fn distance(&self) -> f64 {
        self.layout.distance(self.kind.operands())
    }

    /// Bound on `|share sum - exact product| mod 2^width`: 1, or what [`Self::within`] was told.
    pub fn lsb_error(&self) -> u64 {
        1 << self.layout.error_bits
    }

    /// Encrypts this party's operands (see [`OleKind`]), each of the planned length, modulo `2^width`. Errors: a key
    /// of another parameter set, a wrong number of operands or elements.
    pub fn encrypt(
        &self,
        sk: &SecretKey,
        operands: &[&[u64]],
        rng: &mut (impl CryptoRng + ?Sized),
    ) -> Result<Vec<u8>, HeError> {
        let params = self.set().check(sk.set())?;
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
            let mut body = Vec::with_capacity(self.layout.body_bytes(&block));
            params.pack(&c0, block.stride, &mut body);
            Ok(body)
        };
        let bodies: Vec<Vec<u8>> = self.pieces(operands.len()).map(encrypt).collect::<Result<_, HeError>>()?;
        let upload = [a_seed.as_slice(), &bodies.concat()].concat();
        debug_assert_eq!(upload.len(), self.upload_bytes());
        Ok(upload)
    }

    /// Multiplies the uploaded operands by this party's (see [`OleKind`]). The share is `len` ring elements.
    ///
    /// Errors: those of [`Self::encrypt`], an upload of the wrong length, residues that are not reduced.
    pub fn evaluate(
        &self,
        pk: &PublicKey,
        upload: &[u8],
        operands: &[&[u64]],
        rng: &mut (impl CryptoRng + ?Sized),
    ) -> Result<Split, HeError> {
        let params = self.set().check(pk.set())?;
        self.check_operands(operands)?;
        let (a_seed, bodies) = split_upload(upload, self.upload_bytes(), "OLE upload")?;
        let seed = fresh_seed(rng);
        let respond = |piece: Piece| {
            let (block, ring) = (piece.block, self.ring(&piece.block)?);
            let limb = &ring.limbs()[piece.prime];
            let mut product = self.products(params, &ring, &piece, &a_seed, bodies, operands)?;
            let mut stream = Expander::new(&seed, Label::Response, piece.index as u64);
            pk.rerandomize(&mut product, &mut stream);
            let mut message = Vec::with_capacity(self.layout.response_bytes(&block));
            write_switched(params, &product.c1, self.layout.c1_bits(), &mut message);
            let scale = PrimeScale::new(params, limb.modulus());
            let mut share = Zeroizing::new(vec![0; block.slots]);
            self.mask(&scale, &product.c0, block.stride, &mut stream, &mut share, &mut message);
            limb.ntt().fwd(&mut share);
            Ok((message, share))
        };
        let parts: Vec<(Vec<u8>, Zeroizing<Poly>)> = self.pieces(1).map(respond).collect::<Result<_, HeError>>()?;
        let (messages, shares): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        let message = messages.concat();
        debug_assert_eq!(message.len(), self.download_bytes());
        Ok(Split { message, share: self.scale_down(&shares)? })
    }

    /// The key holder's share, `len` ring elements. Errors: a key of another parameter set, a message of the wrong
    /// length or with padding that is not zero.
    pub fn decrypt(&self, sk: &SecretKey, download: &[u8]) -> Result<Vec<u64>, HeError> {
        const MESSAGE: &str = "OLE response";
        let params = self.set().check(sk.set())?;
        HeError::check_length(MESSAGE, self.download_bytes(), download.len())?;
        let (c0_bits, c1_bits) = (self.layout.c0_bits(), self.layout.c1_bits());
        let lift = params.lift(c1_bits);
        let open = |piece: Piece| {
            let (block, ring) = (piece.block, self.ring(&piece.block)?);
            let limb = &ring.limbs()[piece.prime];
            let start = self.layout.download_offset(&block, piece.prime);
            let part = &download[start..start + self.layout.response_bytes(&block)];
            let (c1_part, c0_part) = part.split_at(packed_bytes(params.degree(), &[c1_bits]));
            let mut phase = Zeroizing::new(read_lifted(params, &lift, c1_bits, c1_part, MESSAGE)?);
            sk.mul(&mut phase);
            let scale = PrimeScale::new(params, limb.modulus());
            let mut reader = Reader::new(c0_part);
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

    /// The sum of the products of a piece's uploads with the evaluator's operands, transformed.
    pub(super) fn products(
        &self,
        params: &Params,
        ring: &Params,
        piece: &Piece,
        a_seed: &[u8; SEED_BYTES],
        bodies: &[u8],
        operands: &[&[u64]],
    ) -> Result<Ciphertext, HeError> {
        let mut sum = Ciphertext::zero(params);
        // x0 is multiplied by y1 and y0 by x1, so the evaluator's operands go in reverse.
        for (operand, y) in operands.iter().rev().enumerate() {
            let piece = self.piece(operand * self.layout.pieces() + piece.index);
            let start = self.layout.upload_offset(operand, &piece.block, piece.prime);
            let body = &bodies[start..start + self.layout.body_bytes(&piece.block)];
            let mut c0 = params.unpack(body, piece.block.stride, "OLE upload")?;
            params.fwd(&mut c0);
            let c1 = params.uniform(a_seed, Label::Upload, piece.index as u64);
            let mut upload = Ciphertext { c0, c1 };
            upload.factor(params);
            let y = self.centre(params, ring, &piece, piece.slice(y));
            params.dot(&mut sum.c0, &[&upload.c0], &[&y]);
            params.dot(&mut sum.c1, &[&upload.c1], &[&y]);
        }
        Ok(sum)
    }

    /// Adds a mask to every coefficient of c0 that is sent, appends the sums to the message, and puts the negated
    /// plaintext of the mask in `share`.
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
        let mut writer = Writer::new(message);
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

    pub(super) fn ring(&self, block: &Block) -> Result<Arc<Params>, HeError> {
        plaintext_ring(block.slots, &self.layout.primes)
    }

    /// The ciphertexts of a message with `operands` operands. The outermost index first: operand, block, prime.
    fn pieces(&self, operands: usize) -> impl IndexedParallelIterator<Item = Piece> {
        (0..operands * self.layout.pieces()).into_par_iter().map(|index| self.piece(index))
    }

    pub(super) fn piece(&self, index: usize) -> Piece {
        let (operand, rest) = (index / self.layout.pieces(), index % self.layout.pieces());
        let primes = self.layout.primes.len();
        Piece { index, operand, block: self.layout.block(rest / primes), prime: rest % primes }
    }

    /// `X = round(P x / 2^width)` modulo one plaintext prime, where P is the product of these primes. Slots without
    /// an element are zero.
    fn lift(&self, ring: &Params, prime: usize, x: &[u64]) -> Zeroizing<Poly> {
        let lift = ring.lift(self.layout.width);
        let p = ring.limbs()[prime].modulus();
        let mut slots = Zeroizing::new(vec![0; ring.degree()]);
        for (slot, &x) in slots.iter_mut().zip(x) {
            *slot = lift.residue(prime, p, lift.remainder(u128::from(x)));
        }
        slots
    }

    /// The plaintext whose slots are the centred values. Its coefficients are centred modulo t and transformed modulo
    /// q.
    fn centre(&self, params: &Params, ring: &Params, piece: &Piece, y: &[u64]) -> Zeroizing<Poly> {
        let limb = &ring.limbs()[piece.prime];
        let t = limb.modulus();
        let mut slots = Zeroizing::new(vec![0; ring.degree()]);
        for (slot, &y) in slots.iter_mut().zip(y) {
            *slot = t.reduce_signed(signed(y, self.layout.width));
        }
        limb.ntt().inv(&mut slots);
        let mut coefficients = Zeroizing::new(vec![0i64; params.degree()]);
        for (&y, out) in slots.iter().zip(coefficients.iter_mut().step_by(piece.block.stride)) {
            // All ones if y > t / 2.
            let above = ((t.value() / 2) as i64 - y as i64) >> 63;
            *out = y as i64 - (t.value() as i64 & above);
        }
        let mut out = Zeroizing::new(vec![0; params.words()]);
        params.factor_signed(&coefficients, t.bits(), &mut out);
        out
    }

    /// `round(2^width z / P)` for the values z of all elements, where P is the product of the plaintext primes.
    /// `shares` holds the residues of the values, a vector for each block and prime.
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
        HeError::check_entries("list of OLE operands", self.kind.operands(), operands.len())?;
        operands.iter().try_for_each(|x| HeError::check_entries("OLE operand", self.layout.len, x.len()))
    }
}

/// The rounding that decryption applies to every fraction, for [`crate::probe`].
#[cfg(feature = "probe")]
pub(crate) fn probe_rounding(params: &Params, fractions: &[u128], out: &mut [u64]) {
    // A plaintext prime of the largest size in use.
    let scale = PrimeScale::new(params, &crate::modulus::Modulus::new(0x3ffffff70001));
    out.iter_mut().zip(fractions).for_each(|(out, &x)| *out = scale.down(x).0);
}
