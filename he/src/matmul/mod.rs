//! Matrix products of a shared operand with a plaintext one, by coefficient packing (Cheetah, USENIX Security 2022,
//! section 3; eprint 2022/207).
//!
//! # Packing
//! For X (M x k) and W (k x n) let
//! `x(Z) = sum X[i,j] Z^(i n k + k-1-j)` and `w(Z) = sum W[j,c] Z^(c k + j)`.
//! The coefficient of x w at `i n k + c k + k-1` is `sum_j X[i,j] W[j,c]`: another term `(i, j, c', j')` lands there only
//! if `j' - j` is a multiple of k. The degree stays below `M k n + k - 1 <= N + k - 1`, so what wraps around (with a sign)
//! lands below position `k - 1`, where no output lives. Dimensions need not be powers of two.
//!
//! A tile says how a product with batch items is cut:
//! * the rows of `group` items share one uploaded ciphertext, as if they were one matrix with `group * rows` rows;
//! * the columns of *all* items form one long row of columns, cut into responses of `cols` columns each. A column of
//!   item b takes the uploaded ciphertext of b; products of several uploads add up in one response, since their columns
//!   differ. So small items share responses too;
//! * the inner dimension is cut into pieces of `inner`, whose products add up.
//!
//! # Runs of rows
//! Many rows are cheaper where rows lie next to each other. With a power of two r, the run, and `Y = Z^r`, let
//! `x(Z) = sum X[i,j] Z^(i mod r) Y^(floor(i / r) n k + k-1-j)` and `w(Y) = sum W[j,c] Y^(c k + j)`.
//! As w knows only Y, every power of Z below r keeps a product of its own, in `Z_q[Y] / (Y^(N/r) + 1)`: the argument above
//! holds in each, with the rows `i mod r`, and the result of row i and column c is at
//! `(floor(i / r) n k + c k + k-1) r + i mod r`. The rows fill up whole runs: `ceil(M / r) r k n <= N`. For r = 1 this is the
//! formula above.
//!
//! The transform of `w(Z^r)` is that of w in the small ring, every value r times in a row. So a weight polynomial has N / r
//! words and is transformed in `log2(N / r)` layers, and its product with ciphertexts is at each of N / r points a product
//! of small matrices (`panel`). Nothing else changes: an output coefficient collects the errors of as many weights as before,
//! and the wire carries the same numbers of coefficients.
//!
//! Where several items share an upload, a response also holds products of the column's weights with rows of *other*
//! items. Those coefficients are never sent.
//!
//! # Packed responses
//! A response carries a whole polynomial c1 for however few coefficients of c0 it is sent. With `inner` a power of two and X
//! moved down by `inner - 1` places, the outputs of a product of tiles lie at multiples of `inner`; the products of up to
//! `inner` tiles then go into one ciphertext by a binary tree of merges ([`crate::GaloisKeys`]; BumbleBee, NDSS 2025), each
//! of which doubles the wanted coefficients. The uploads are divided by that power of two modulo q before they are
//! multiplied. Long inner tiles, that is few uploads, become cheap at the price of one key switch per product of tiles. The
//! run is 1 here, as the automorphisms of a merge would mix the rows of longer ones.
//!
//! # What the key holder sees
//! Per response: `c1`, and of `c0` the coefficients of outputs, each with a mask uniform over `Z_q` added. Before that a
//! fresh encryption of zero under the holder's public key (new u, e1, e2) was added. The masked coefficients are uniform
//! and independent of everything, whatever noise or product they carry; `c1 + a u + e2` is pseudorandom by RLWE with
//! secret u. Coefficients of c0 that are not sent are simply absent. So the message can be simulated from its length.
//! Rounding to fewer bits (modulus switching) is a function of what is sent and leaks nothing more. Packing comes before all
//! of this, and the argument does not ask what the ciphertext was.
//!
//! # Error
//! The mask covers the noise e instead of a flood of 40 extra bits; the price is that both parties round separately:
//! `round((m q/2^l + e + r) 2^l/q) - round(r 2^l/q) = m` up to `1 + |e| 2^l / q`. See [`MatmulPlan::lsb_error`].

mod evaluate;
mod panel;
mod plan;
#[cfg(test)]
mod tests;

use crate::bits::{BitReader, BitWriter, check_len, packed_len};
use crate::error::HeError;
use crate::keys::{Poly, SecretKey, split_seed};
use crate::params::{Lift, ParamSet, Params, round_torus};
use crate::sampling::{Expander, Label, SEED_BYTES, fresh_seed};
pub(crate) use evaluate::centred;
pub(crate) use plan::range;
use plan::{Layout, Tile};
use rand::CryptoRng;
use rayon::prelude::*;
use zeroize::Zeroizing;

/// Per batch item: X (m x k, encrypted side) times W (k x n, plaintext side) gives Y (m x n).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MatmulShape {
    /// Number of independent products.
    pub batch: usize,
    /// Rows of X.
    pub m: usize,
    /// Columns of X, rows of W.
    pub k: usize,
    /// Columns of W.
    pub n: usize,
}

/// A product to plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MatmulSpec {
    /// Dimensions.
    pub shape: MatmulShape,
    /// Ring width l of X and Y, `1..=64`.
    pub width: u32,
    /// Size of the plaintext operand, `1..=width`: signed integers with `|w| < 2^weight_bits`. With
    /// `weight_bits = width` any ring element, read as a number of `[-2^(width-1), 2^(width-1))`.
    pub weight_bits: u32,
}

/// Whether many products of ciphertexts may share a response, which takes Galois keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Packing {
    /// Where it saves time.
    #[default]
    Auto,
    /// Never.
    Never,
    /// Wherever there is more than one product to send, and for few bytes rather than little time: as if the link had an
    /// eighth of its rate.
    Always,
}

/// What the planner trades. All of it is public: both parties must plan alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PlanOptions {
    /// Largest tolerated [`MatmulPlan::lsb_error`]; at least 1.
    pub max_lsb_error: u64,
    /// Rate of the link that bytes are weighed by against computation; 1 or more. The default is that of 1 Gbit/s.
    pub bytes_per_second: u64,
    /// Which layouts come into question.
    pub packing: Packing,
}

impl Default for PlanOptions {
    fn default() -> Self {
        Self { max_lsb_error: 8, bytes_per_second: 125_000_000, packing: Packing::Auto }
    }
}

/// The plaintext operand, `batch * k * n` entries, row-major.
#[derive(Debug, Clone, Copy)]
pub enum Weights<'a> {
    /// Signed 16-bit integers.
    I16(&'a [i16]),
    /// Signed 32-bit integers.
    I32(&'a [i32]),
    /// Ring elements modulo `2^width`, read as signed.
    U64(&'a [u64]),
}

/// How one product is cut into ciphertexts. Made from the shape alone; cheap to make and to ask for sizes.
#[derive(Debug, Clone, PartialEq)]
pub struct MatmulPlan {
    spec: MatmulSpec,
    options: PlanOptions,
    layout: Layout,
    lsb_error: u64,
}

impl MatmulPlan {
    /// Plans with the default [`PlanOptions`].
    pub fn new(spec: MatmulSpec) -> Result<Self, HeError> {
        Self::with_options(spec, PlanOptions::default())
    }

    /// Chooses parameter set, tile and packing of least time: bytes both ways at the link's rate, and computation. Keys are
    /// not counted, as they are sent once.
    pub fn with_options(spec: MatmulSpec, options: PlanOptions) -> Result<Self, HeError> {
        let (layout, lsb_error) = plan::search(&spec, &options)?;
        Ok(Self { spec, options, layout, lsb_error })
    }

    /// The product that was planned.
    pub fn spec(&self) -> &MatmulSpec {
        &self.spec
    }

    /// The parameter set that both keys must have.
    pub fn set(&self) -> ParamSet {
        self.layout.set
    }

    /// The tables of the parameter set (built on the first call in the process).
    pub fn params(&self) -> &'static Params {
        self.set().params()
    }

    /// The tile: batch items per upload, rows, inner dimension and columns per ciphertext, leaving aside whether rows lie
    /// next to each other.
    pub fn tile(&self) -> (usize, usize, usize, usize) {
        let Tile { group, rows, inner, cols, .. } = self.layout.tile;
        (group, rows, inner, cols)
    }

    /// Whether evaluation takes [`GaloisKeys`](crate::GaloisKeys), to pack several products into one response.
    pub fn packed(&self) -> bool {
        self.layout.is_packed()
    }

    /// Ciphertexts sent up and down.
    pub fn ciphertexts(&self) -> (usize, usize) {
        (self.layout.uploads(), self.layout.responses())
    }

    /// Seconds that the planner reckons with: both messages on the link, and the computation of both parties.
    pub fn seconds(&self) -> f64 {
        self.layout.seconds(&self.options)
    }

    /// Exact length of [`Self::encrypt`]'s message.
    pub fn upload_bytes(&self) -> usize {
        self.layout.upload_bytes()
    }

    /// Exact length of [`Self::evaluate`]'s message.
    pub fn download_bytes(&self) -> usize {
        self.layout.download_bytes()
    }

    /// Bound on `|share sum - exact product| mod 2^width`, exceeded with probability below `2^-50` per output.
    ///
    /// It is `floor(1 + E)`, where 1 pays for the two separate roundings and E, in units of `2^-l`, adds
    /// `8.5 sqrt(11.5 B^2 nnz + 10.5 (1 + 2 N)) / q` (fresh errors of variance 10.5 and rounded shares, times the `nnz`
    /// weights of absolute value B in one product; the encryption of zero), `8.5 sqrt(N / 16) / 2^b1` and
    /// `1 / 2^(b0 + 1)` (responses cut to b1 and b0 bits). L levels of packing add `V (4^L - 1) / 3` under the root, V being
    /// the variance of a key switch: `D N 2^(2w-2) 10.5` for D digits of w bits. Shares are taken to be uniform, as they are
    /// in a protocol.
    pub fn lsb_error(&self) -> u64 {
        self.lsb_error
    }

    /// Encrypts this party's share `x` (`batch * m * k` ring elements, row-major).
    pub fn encrypt(
        &self,
        sk: &SecretKey,
        x: &[u64],
        rng: &mut (impl CryptoRng + ?Sized),
    ) -> Result<Vec<u8>, HeError> {
        let params = sk.check(self.set())?;
        self.check_x("encrypted operand", x)?;
        let lift = params.lift(self.spec.width);
        // One public seed for all uniform halves, one secret seed for all errors; both fresh, streams by index.
        let (a_seed, error_seed) = (fresh_seed(rng), fresh_seed(rng));
        let bodies: Vec<Poly> = (0..self.layout.uploads())
            .into_par_iter()
            .map(|index| {
                let mut poly = self.encode_x(params, &lift, x, index);
                let mut errors = Expander::new(&error_seed, Label::UploadErrors, index as u64);
                sk.encrypt(&a_seed, index as u64, &mut errors, &mut poly);
                poly
            })
            .collect();
        let mut out = Vec::with_capacity(self.upload_bytes());
        out.extend_from_slice(a_seed.as_ref());
        bodies.iter().for_each(|poly| params.pack(poly, &mut out));
        debug_assert_eq!(out.len(), self.upload_bytes());
        Ok(out)
    }

    /// The key holder's share of the product (`batch * m * n` ring elements, row-major).
    pub fn decrypt(&self, sk: &SecretKey, download: &[u8]) -> Result<Vec<u64>, HeError> {
        let params = sk.check(self.set())?;
        check_len("matmul response", download, self.download_bytes())?;
        let layout = &self.layout;
        let lift = params.lift(layout.c1_bits);
        let mut parts = Vec::with_capacity(layout.responses());
        let mut rest = download;
        for response in 0..layout.responses() {
            let (part, tail) = rest.split_at(layout.response_bytes(response));
            rest = tail;
            parts.push(part);
        }
        let shares: Vec<Vec<u64>> = parts
            .par_iter()
            .enumerate()
            .map(|(response, part)| self.open(sk, params, &lift, response, part))
            .collect::<Result<_, _>>()?;
        Ok(self.scatter(&shares))
    }

    fn open(
        &self,
        sk: &SecretKey,
        params: &Params,
        lift: &Lift,
        response: usize,
        part: &[u8],
    ) -> Result<Vec<u64>, HeError> {
        const MESSAGE: &str = "matmul response";
        let (layout, n) = (&self.layout, params.degree());
        let (c1_part, c0_part) = part.split_at(packed_len(n, layout.c1_bits));
        let mut phase = Zeroizing::new(read_lifted(params, lift, layout.c1_bits, c1_part, MESSAGE)?);
        sk.mul(&mut phase);
        let mut reader = BitReader::new(c0_part);
        let shares = layout
            .outputs(response)
            .map(|(position, _)| {
                let c0 = reader.take_wide(layout.c0_bits) << (128 - layout.c0_bits);
                let product = params.torus((0..params.limbs().len()).map(|l| phase[l * n + position]));
                round_torus(product.wrapping_add(c0), self.spec.width) as u64
            })
            .collect();
        reader.finish(MESSAGE)?;
        Ok(shares)
    }

    /// The scaled polynomial of upload `index`; both parties' shares of X go through here.
    fn encode_x(&self, params: &Params, lift: &Lift, x: &[u64], index: usize) -> Poly {
        let n = params.degree();
        let mut poly = vec![0; params.words()];
        for (position, entry) in self.layout.x_entries(index) {
            // -X^i with the sign moved to the entry.
            let x = if position < n { x[entry] } else { x[entry].wrapping_neg() };
            let d = lift.remainder(u128::from(x));
            for (i, limb) in params.limbs().iter().enumerate() {
                poly[i * n + (position & (n - 1))] = lift.residue(i, limb.modulus(), d);
            }
        }
        poly
    }

    /// Puts the outputs of all responses in their places.
    fn scatter(&self, shares: &[Vec<u64>]) -> Vec<u64> {
        let shape = self.spec.shape;
        let mut y = vec![0; shape.batch * shape.m * shape.n];
        for (response, shares) in shares.iter().enumerate() {
            for ((_, entry), &share) in self.layout.outputs(response).zip(shares) {
                y[entry] = share;
            }
        }
        y
    }

    fn check_x(&self, what: &'static str, x: &[u64]) -> Result<(), HeError> {
        let MatmulShape { batch, m, k, .. } = self.spec.shape;
        check_entries(what, x.len(), batch * m * k)
    }
}

fn check_entries(what: &'static str, got: usize, expected: usize) -> Result<(), HeError> {
    if got == expected { Ok(()) } else { Err(HeError::Operand { what, expected, got }) }
}

/// Rounds every coefficient of `c` to `bits` bits of the torus and appends them packed.
pub(crate) fn write_switched(params: &Params, c: &[u64], bits: u32, out: &mut Vec<u8>) {
    let n = params.degree();
    let mut writer = BitWriter::new(out);
    for i in 0..n {
        let t = params.torus((0..params.limbs().len()).map(|l| c[l * n + i]));
        writer.push_wide(round_torus(t, bits), bits);
    }
    writer.finish();
}

/// Reads what [`write_switched`] wrote, scaled back up to `Z_q`. The caller has checked the length.
pub(crate) fn read_lifted(
    params: &Params,
    lift: &Lift,
    bits: u32,
    bytes: &[u8],
    message: &'static str,
) -> Result<Poly, HeError> {
    let n = params.degree();
    let mut poly = vec![0; params.words()];
    let mut reader = BitReader::new(bytes);
    for i in 0..n {
        let d = lift.remainder(reader.take_wide(bits));
        for (l, limb) in params.limbs().iter().enumerate() {
            poly[l * n + i] = lift.residue(l, limb.modulus(), d);
        }
    }
    reader.finish(message)?;
    Ok(poly)
}

/// Seed and ciphertext bodies of an upload of the expected length.
pub(crate) fn split_upload<'a>(
    upload: &'a [u8],
    expected: usize,
    message: &'static str,
) -> Result<([u8; SEED_BYTES], &'a [u8]), HeError> {
    check_len(message, upload, expected)?;
    split_seed(upload, message)
}
