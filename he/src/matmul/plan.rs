//! A plan, and the key holder's side of it.

use super::layout::Layout;
use super::spec::{MatmulShape, MatmulSpec, PlanOptions};
use super::tiling::Tile;
use super::{cost, noise, opened, search};
use crate::ciphertext::{Ciphertexts, read_lifted};
use crate::error::HeError;
use crate::keys::SecretKey;
use crate::params::{Lift, Params, round_torus};
use crate::poly::Poly;
use crate::sampling::{Expander, Label, SEED_BYTES, fresh_seed, split_seed};
use crate::set::ParamSet;
use crate::work::MatmulWork;
use rand::CryptoRng;
use rayon::prelude::*;
use std::ops::Deref;
use waggle_bits::{Reader, packed_bytes};
use zeroize::Zeroizing;

/// Name of the message in errors.
const RESPONSE: &str = "matmul response";

/// The division of one product into ciphertexts: the sizes that every plan has.
#[derive(Debug, Clone, PartialEq)]
pub struct ProductPlan {
    pub(super) spec: MatmulSpec,
    options: PlanOptions,
    pub(super) layout: Layout,
    lsb_error: u64,
}

impl ProductPlan {
    /// The product that was planned.
    pub fn spec(&self) -> &MatmulSpec {
        &self.spec
    }

    /// The options of the planner.
    pub fn options(&self) -> &PlanOptions {
        &self.options
    }

    /// The parameter set that both keys must have.
    pub fn set(&self) -> ParamSet {
        self.layout.set
    }

    /// The tables of the parameter set (built on the first call in the process).
    pub fn params(&self) -> &'static Params {
        self.set().params()
    }

    /// The part of the product that one ciphertext covers.
    pub fn tile(&self) -> Tile {
        self.layout.tiling.tile
    }

    /// Whether evaluation takes [`GaloisKeys`](crate::GaloisKeys), to pack several products into one response.
    pub fn packed(&self) -> bool {
        self.layout.packs.is_packed()
    }

    /// Number of ciphertexts in either message.
    pub fn ciphertexts(&self) -> Ciphertexts {
        Ciphertexts { up: self.layout.tiling.uploads(), down: self.layout.packs.responses() }
    }

    /// Seconds that the planner estimates for both messages on the link and the computation of both parties.
    pub fn seconds(&self) -> f64 {
        cost::seconds(&self.layout, &self.options)
    }

    /// The work of both parties on the product.
    pub fn work(&self) -> MatmulWork {
        cost::work(&self.layout)
    }

    /// Exact length of the key holder's message in bytes.
    pub fn upload_bytes(&self) -> usize {
        self.layout.upload_bytes()
    }

    /// Exact length of the evaluator's message in bytes.
    pub fn download_bytes(&self) -> usize {
        self.layout.download_bytes()
    }

    /// Bound on `|share sum - exact product| mod 2^width`, exceeded with probability below `2^-50` per output.
    ///
    /// It is `floor(1 + E)` for the width l and the modulus q. The 1 pays for the two separate roundings. E, in units
    /// of `2^-l`, adds `8.5 sqrt(11.5 B^2 nnz + 10.5 (1 + 2 N)) / q` (fresh errors of variance 10.5 and rounded
    /// shares, times the `nnz` weights of absolute value B in one product; the encryption of zero),
    /// `8.5 sqrt(N / 16) / 2^b1` and `1 / 2^(b0 + 1)` (the halves c1 and c0 of responses, cut to b1 and b0 bits). L
    /// levels of packing add `V (4^L - 1) / 3` under the root, V being the variance of a key switch:
    /// `D N 2^(2w-2) 10.5` for D digits of w bits. Shares are taken to be uniform, as they are in a protocol. In a
    /// [`SeededPlan`](super::SeededPlan) corrections drop k bits: this adds `4^k / 12 + 1 / 6` to the 11.5, and c0 is
    /// not rounded.
    pub fn lsb_error(&self) -> u64 {
        self.lsb_error
    }
}

/// The plan of a product, made from the shape alone. It is cheap to make and to ask for sizes.
#[derive(Debug, Clone, PartialEq)]
pub struct MatmulPlan(ProductPlan);

impl Deref for MatmulPlan {
    type Target = ProductPlan;

    fn deref(&self) -> &ProductPlan {
        &self.0
    }
}

impl MatmulPlan {
    /// Plans with the default [`PlanOptions`]. Errors: those of [`Self::with_options`].
    pub fn new(spec: MatmulSpec) -> Result<Self, HeError> {
        Self::with_options(spec, PlanOptions::default())
    }

    /// Chooses the parameter set, tile and packing that take the least time. The time is that of the bytes both ways
    /// at the link's rate, and that of computation. Keys are not counted, as they are sent once.
    ///
    /// Errors: [`HeError::Width`], [`HeError::Shape`], and [`HeError::Noise`] if no parameter set keeps the tolerated
    /// bound.
    pub fn with_options(spec: MatmulSpec, options: PlanOptions) -> Result<Self, HeError> {
        let layout = search::search(&spec, &options, Some)?;
        Ok(Self::of(layout, options))
    }

    /// A plan of `spec` with the options of this plan. It cuts `spec` as this plan cuts its own product, without a
    /// search. The dimensions of `spec` must be no larger than this plan's. `None` if there is no such plan or its
    /// error would be too large.
    pub fn adapted(&self, spec: MatmulSpec) -> Option<Self> {
        let layout = search::adapted(&spec, &self.options, &self.layout)?;
        Some(Self::of(layout, self.options))
    }

    /// The plan of a given layout.
    pub(super) fn of(layout: Layout, options: PlanOptions) -> Self {
        let lsb_error = noise::bound(&layout).floor() as u64;
        Self(ProductPlan { spec: layout.spec, options, layout, lsb_error })
    }

    /// Encrypts this party's share `x` (`batch * m * k` ring elements, row-major). Errors: a key of another parameter
    /// set, a wrong number of elements.
    pub fn encrypt(
        &self,
        sk: &SecretKey,
        x: &[u64],
        rng: &mut (impl CryptoRng + ?Sized),
    ) -> Result<Vec<u8>, HeError> {
        let params = self.set().check(sk.set())?;
        self.check_x("encrypted operand", x)?;
        let lift = params.lift(self.spec.width);
        // One public seed for all uniform halves and one secret seed for all errors. Both are fresh, and each index
        // has its own stream.
        let (a_seed, error_seed) = (fresh_seed(rng), fresh_seed(rng));
        let bodies: Vec<Poly> = (0..self.layout.tiling.uploads())
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
        bodies.iter().for_each(|poly| params.pack(poly, 1, &mut out));
        debug_assert_eq!(out.len(), self.upload_bytes());
        Ok(out)
    }

    /// The key holder's share of the product (`batch * m * n` ring elements, row-major). Errors: a key of another
    /// set, a message of another length or with padding that is not zero.
    pub fn decrypt(&self, sk: &SecretKey, download: &[u8]) -> Result<Vec<u64>, HeError> {
        let params = self.set().check(sk.set())?;
        HeError::check_length(RESPONSE, self.download_bytes(), download.len())?;
        let layout = &self.layout;
        let (seed, mut rest) = match layout.seeded {
            Some(_) => split_seed(download, RESPONSE).map(|(seed, rest)| (Some(seed), rest))?,
            None => (None, download),
        };
        let lift = params.lift(layout.c1_bits);
        let mut parts = Vec::with_capacity(layout.packs.responses());
        for response in 0..layout.packs.responses() {
            let (part, tail) = rest.split_at(layout.response_bytes(response));
            rest = tail;
            parts.push(part);
        }
        let shares: Vec<Vec<u64>> = parts
            .par_iter()
            .enumerate()
            .map(|(response, part)| self.open(sk, params, &lift, response, seed.as_ref(), part))
            .collect::<Result<_, _>>()?;
        Ok(self.scatter(&shares))
    }

    fn open(
        &self,
        sk: &SecretKey,
        params: &Params,
        lift: &Lift,
        response: usize,
        seed: Option<&[u8; SEED_BYTES]>,
        part: &[u8],
    ) -> Result<Vec<u64>, HeError> {
        let (layout, n) = (&self.layout, params.degree());
        let (c1_part, c0_part) = part.split_at(packed_bytes(n, &[layout.c1_bits]));
        let mut phase = Zeroizing::new(read_lifted(params, lift, layout.c1_bits, c1_part, RESPONSE)?);
        sk.mul(&mut phase);
        if let Some(seed) = seed {
            return Ok(opened::shares(&self.layout, params, &phase, response, seed));
        }
        let mut reader = Reader::new(c0_part);
        let shares = layout
            .outputs(response)
            .map(|(position, _)| {
                let c0 = reader.take_wide(layout.c0_bits) << (128 - layout.c0_bits);
                let product = params.torus((0..params.limbs().len()).map(|l| phase[l * n + position]));
                round_torus(product.wrapping_add(c0), self.spec.width) as u64
            })
            .collect();
        reader.finish(RESPONSE)?;
        Ok(shares)
    }

    /// The polynomial of upload `index`, scaled up to `Z_q`. Both parties bring their shares of X into this form.
    pub(super) fn encode_x(&self, params: &Params, lift: &Lift, x: &[u64], index: usize) -> Poly {
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

    /// Puts the outputs of all responses in their places in Y. `shares` has a vector for each response.
    pub(super) fn scatter(&self, shares: &[Vec<u64>]) -> Vec<u64> {
        let shape = self.spec.shape;
        let mut y = vec![0; shape.batch * shape.m * shape.n];
        for (response, shares) in shares.iter().enumerate() {
            for ((_, entry), &share) in self.layout.outputs(response).zip(shares) {
                y[entry] = share;
            }
        }
        y
    }

    pub(super) fn check_x(&self, what: &'static str, x: &[u64]) -> Result<(), HeError> {
        let MatmulShape { batch, m, k, .. } = self.spec.shape;
        HeError::check_entries(what, batch * m * k, x.len())
    }
}
