//! Products of a random operand, where half of both messages is expanded from public seeds.
//!
//! # Functionality
//! The evaluator puts in W. The key holder gets R, uniform over `Z_{2^l}`, and a share of R W; the evaluator gets the
//! other share. The holder does not choose R, and neither party chooses its share. A corrupt party may choose its own
//! part of the outcome, as is usual for correlations: the other party's R or share then follows, and is as random as
//! before. The parties are honest but curious, and nothing is checked. A holder with another distribution of seeds
//! would only choose another R for itself, and an evaluator with another distribution only another share.
//!
//! R carries no message of anybody, so it can be what the ciphertext happens to hold. The direct form
//! ([`MatmulPlan`]) encrypts a chosen operand and costs twice the bytes.
//!
//! # Request
//! ```text
//! holder:    draws a seed, a = expand(seed), and fresh errors e
//!            splits every coefficient of v = a s + e into lift(r) + d 2^k + f   (see the module `cells`)
//!            draws another seed if one of them lies in no cell
//!            sends the seed, every d, and r of those coefficients that hold no entry of R
//! evaluator: c1 = a, c0 = -(lift(r) + d 2^k + 2^(k-1)), with r = 0 where it was not sent
//! ```
//! The phase `c0 + a s` is `lift(r) + (f - 2^(k-1)) - e` where r was not sent, and lacks the first term elsewhere. So
//! it encrypts R in the places of the entries and zero in all others, as [`MatmulPlan::encrypt`] does, with an
//! additional error of `f - 2^(k-1)`. Products of tiles with several columns need those zeros: whatever stands at
//! another coefficient would reach an output. Such tiles save no more than the k bits, and the search prefers tiles
//! of one column.
//!
//! *What the evaluator sees.* By RLWE with uniform a and fresh e, v is uniform over `Z_q^N` and independent of a, for
//! any number of seeds under one key. So r and d of all coefficients are uniform and independent of each other and of
//! the seed, *exactly*, given that all lie in cells: the condition is one on d and f alone within each interval of r,
//! with as many values for every r. The seeds of refused ciphertexts are never sent. The view (seed, all d, the sent
//! r) is therefore independent of the r that were not sent, which make up R: it is simulated from its length by a
//! fresh seed and uniform numbers, and R stays uniform given the view. The distance is that of RLWE and nothing else.
//! Sending r where no entry stands gives away uniform numbers that are used nowhere else.
//!
//! *What the argument needs.* One ciphertext per seed (two with one a would be the same ciphertext); errors that are
//! drawn for this ciphertext and from another stream than any public seed; the rejection of the short last part of
//! an interval, without which the longest intervals would tell their r; and RLWE with a public seed for `a`, as in
//! every other upload. How often a ciphertext was refused shows in the time taken alone, and is independent of what
//! was accepted.
//!
//! # Response
//! ```text
//! evaluator: the product (c0, c1) with an encryption of zero added, as ever
//!            draws a seed, u = expand(seed) over Z_q, and takes u - c0 for the mask of the output coefficients
//!            sends the seed and c1, switched to fewer bits; its share is -round((u - c0) 2^l / q)
//! holder:    its share is round((u + c1 s) 2^l / q)
//! ```
//! *What the holder sees.* In the direct form the mask R' is uniform and `c0 + R'` is sent. The pairs (R' uniform,
//! `c0 + R'`) and (`u - c0`, u uniform) are one distribution, jointly with everything else, as R' is independent of
//! c0 and c1. So the two forms differ only in that u is named by a seed and not rounded. Of c1 all is as in the
//! module documentation of [`crate::matmul`]: rerandomised under the public key, then rounded. The view (seed, c1) is
//! simulated by a fresh seed and a uniform c1.
//!
//! *What the argument needs.* A fresh seed for each message, from another draw than the secret seed of the
//! encryptions of zero, which would otherwise be known; and another stream per response.
//!
//! # Error
//! The dropped part f is uniform and independent of the weights. It adds to the fresh errors: at most 1/4 LSB of
//! output at the tail that [`ProductPlan::lsb_error`] covers. Its standard deviation is below that of the rounding of
//! c0 in the direct form, which does not take place here.

use super::cache::CachedWeights;
use super::cells::{Cell, Cells, Splitter};
use super::opened::{Place, Places};
use super::response::ResponseSeeds;
use super::spec::{MatmulShape, MatmulSpec, PlanOptions};
use super::weights::Weights;
use super::{MatmulPlan, ProductPlan};
use super::{noise, search};
use crate::ciphertext::Split;
use crate::error::HeError;
use crate::galois::EvaluationKeys;
use crate::keys::SecretKey;
use crate::params::Params;
use crate::poly::Poly;
use crate::sampling::{Expander, Label, SEED_BYTES, Seed, fresh_seed};
use rand::CryptoRng;
use rayon::prelude::*;
use std::ops::{Deref, Range};
use waggle_bits::Writer;
use zeroize::Zeroizing;

/// The plan of a product with a uniformly random operand. Such a product is made ahead of time, to prepare a later
/// one. The plan sends half the bytes of a [`MatmulPlan`].
///
/// The key holder sends the message of [`Self::request`], and the evaluator answers with the message of
/// [`Self::respond`], which the key holder reads with [`Self::finish`].
#[derive(Debug, Clone, PartialEq)]
pub struct SeededPlan(MatmulPlan);

impl Deref for SeededPlan {
    type Target = ProductPlan;

    fn deref(&self) -> &ProductPlan {
        &self.0
    }
}

impl SeededPlan {
    /// Plans with the default [`PlanOptions`]. Errors: those of [`Self::with_options`].
    pub fn new(spec: MatmulSpec) -> Result<Self, HeError> {
        Self::with_options(spec, PlanOptions::default())
    }

    /// As [`MatmulPlan::with_options`], for the messages of this plan. Errors: the same.
    pub fn with_options(spec: MatmulSpec, options: PlanOptions) -> Result<Self, HeError> {
        Ok(Self(MatmulPlan::of(search::search(&spec, &options, noise::seeded)?, options)))
    }

    /// The plan of a layout whose messages are made seeded. `None` if the ring has no room for cells.
    #[cfg(test)]
    pub(super) fn of(layout: super::layout::Layout) -> Option<Self> {
        super::noise::seeded(layout).map(|layout| Self(MatmulPlan::of(layout, PlanOptions::default())))
    }

    /// The cells of the layout, which every constructor has made seeded.
    fn cells(&self) -> Result<&Cells, HeError> {
        let MatmulSpec { width, weight_bits, .. } = *self.spec();
        let refused = HeError::Noise { width, weight_bits, max_lsb_error: self.lsb_error() };
        self.0.layout.seeded.as_ref().ok_or(refused)
    }

    /// Draws a uniformly random operand R (`batch * m * k` ring elements, row-major) and makes the message for the
    /// evaluator. Errors: a key of another parameter set.
    pub fn request(&self, sk: &SecretKey, rng: &mut (impl CryptoRng + ?Sized)) -> Result<Split, HeError> {
        let params = self.set().check(sk.set())?;
        let (layout, cells) = (&self.0.layout, self.cells()?);
        let splitter = Splitter::new(params, layout.set, layout.spec.width, cells);
        // One secret seed for the public seeds and one for all errors. Both are fresh, and each index has its own
        // stream.
        let (seeds, errors) = (fresh_seed(rng), fresh_seed(rng));
        let uploads = layout.tiling.uploads();
        let parts: Vec<Request> =
            (0..uploads).into_par_iter().map(|index| Request::new(sk, &splitter, &seeds, &errors, index)).collect();
        let shape = self.spec().shape;
        let mut share = vec![0; shape.batch * shape.m * shape.k];
        let mut message = Vec::with_capacity(self.upload_bytes());
        for Request { seed, corrections, .. } in &parts {
            message.extend_from_slice(seed);
            let mut writer = Writer::new(&mut message);
            corrections.iter().for_each(|&cell| writer.push_wide(cell, cells.bits()));
            writer.finish();
        }
        let width = self.spec().width;
        let mut writer = Writer::new(&mut message);
        for (index, Request { entries, .. }) in parts.iter().enumerate() {
            let places = Places::new(&self.0.layout, index);
            for (place, &value) in places.0.iter().zip(entries.iter()) {
                match *place {
                    Place::Entry(entry) => share[entry] = value,
                    Place::Negated(entry) => share[entry] = value.wrapping_neg() & waggle_bits::mask(width),
                    Place::Open => writer.push(value, width),
                }
            }
        }
        writer.finish();
        debug_assert_eq!(message.len(), self.upload_bytes());
        Ok(Split { message, share })
    }

    /// Multiplies the operand of a request by the weights. Transformed weights are taken from `cached`, or put there
    /// while it has room. The share is `batch * m * n` ring elements, row-major. Errors: those of
    /// [`MatmulPlan::evaluate`], and corrections out of range.
    pub fn respond<'a>(
        &self,
        keys: impl Into<EvaluationKeys<'a>>,
        request: &[u8],
        weights: Weights<'_>,
        cached: Option<CachedWeights<'_>>,
        rng: &mut (impl CryptoRng + ?Sized),
    ) -> Result<Split, HeError> {
        self.0.evaluate(keys, request, None, weights, cached, rng)
    }

    /// Fresh seeds for [`Self::respond_part`]. They serve one request only.
    pub fn draw(&self, rng: &mut (impl CryptoRng + ?Sized)) -> ResponseSeeds {
        ResponseSeeds::fresh(true, rng)
    }

    /// Number of packs of columns. A pack is a range of columns of the weights whose responses are made together.
    pub fn packs(&self) -> usize {
        self.0.layout.packs.column_packs()
    }

    /// The part of [`Self::respond`] that belongs to some packs of columns: their responses, and the evaluator's
    /// shares in the order of the responses. Errors: those of [`Self::respond`].
    pub fn respond_part<'a>(
        &self,
        keys: impl Into<EvaluationKeys<'a>>,
        request: &[u8],
        weights: Weights<'_>,
        cached: Option<CachedWeights<'_>>,
        seeds: &ResponseSeeds,
        packs: Range<usize>,
    ) -> Result<Split, HeError> {
        let responses = self.0.responses(keys, (request, None), weights, cached, seeds, packs)?;
        let (messages, shares): (Vec<_>, Vec<_>) =
            responses.into_iter().map(|Split { message, share }| (message, share)).unzip();
        Ok(Split { message: messages.concat(), share: shares.concat() })
    }

    /// Joins the parts of all packs, in order, into the result of [`Self::respond`]. Errors: parts of the wrong
    /// length.
    pub fn join(&self, seeds: &ResponseSeeds, parts: &[Split]) -> Result<Split, HeError> {
        let layout = &self.0.layout;
        let parts_of = |part: fn(&Split) -> usize| parts.iter().map(part).sum::<usize>();
        let body = seeds.body.as_ref().map_or(&[][..], |body| body);
        let length = body.len() + parts_of(|part| part.message.len());
        HeError::check_length("parts of responses", self.download_bytes(), length)?;
        let MatmulShape { batch, m, n, .. } = self.spec().shape;
        HeError::check_entries("parts of shares", batch * m * n, parts_of(|part| part.share.len()))?;
        let messages = parts.iter().map(|part| &part.message[..]);
        let message = std::iter::once(body).chain(messages).collect::<Vec<_>>().concat();
        let mut shares = parts.iter().flat_map(|part| &part.share).copied();
        let responses = 0..layout.packs.responses();
        let shares: Vec<Vec<u64>> =
            responses.map(|response| shares.by_ref().take(layout.outputs(response).count()).collect()).collect();
        Ok(Split { message, share: self.0.scatter(&shares) })
    }

    /// The key holder's share of the product (`batch * m * n` ring elements, row-major). Errors: a key of another
    /// parameter set, a message of the wrong length or with padding that is not zero.
    pub fn finish(&self, sk: &SecretKey, response: &[u8]) -> Result<Vec<u64>, HeError> {
        self.0.decrypt(sk, response)
    }
}

/// One upload of a request: the seed of its ciphertext, and the corrections and entries into which the rest is split.
struct Request {
    seed: [u8; SEED_BYTES],
    corrections: Vec<u128>,
    entries: Zeroizing<Vec<u64>>,
}

impl Request {
    fn new(sk: &SecretKey, splitter: &Splitter<'_>, seeds: &Seed, errors: &Seed, index: usize) -> Self {
        let mut seeds = Expander::new(seeds, Label::RequestSeeds, index as u64);
        let mut errors = Expander::new(errors, Label::RequestErrors, index as u64);
        loop {
            let seed = seeds.seed();
            let v = Self::value(sk, splitter.params(), &seed, &mut errors);
            if let Some((corrections, entries)) = Self::split(splitter, &v) {
                return Self { seed, corrections, entries };
            }
        }
    }

    /// `a s + e` as coefficients. Here `a` is expanded from `seed`, and e is the next of `errors`.
    fn value(sk: &SecretKey, params: &Params, seed: &[u8; SEED_BYTES], errors: &mut Expander) -> Zeroizing<Poly> {
        let mut e = Zeroizing::new(vec![0; params.degree()]);
        errors.errors(&mut e);
        let mut v = Zeroizing::new(params.uniform(seed, Label::Request, 0));
        params.pointwise(&mut v, sk.transformed());
        params.inv(&mut v);
        params.add_small(&mut v, &e);
        v
    }

    /// The corrections and the entries of the values `v`, or `None` if one of the values lies in no cell.
    fn split(splitter: &Splitter<'_>, v: &[u64]) -> Option<(Vec<u128>, Zeroizing<Vec<u64>>)> {
        let n = splitter.params().degree();
        let mut corrections = vec![0; n];
        let mut entries = Zeroizing::new(vec![0; n]);
        let mut inside = true;
        for (i, (correction, entry)) in corrections.iter_mut().zip(entries.iter_mut()).enumerate() {
            let Cell { entry: of, cell, inside: lies } = splitter.split(|limb| v[limb * n + i]);
            (*correction, *entry) = (cell, of);
            inside &= lies;
        }
        inside.then_some((corrections, entries))
    }
}
