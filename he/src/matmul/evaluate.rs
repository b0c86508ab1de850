//! The evaluator's side: it checks the upload, multiplies, and puts the responses together.

use super::cache::CachedWeights;
use super::plan::MatmulPlan;
use super::response::{Evaluation, ResponseSeeds};
use super::spec::MatmulShape;
use super::weights::Weights;
use super::{columns, opened, panel};
use crate::ciphertext::{Ciphertext, Split, split_upload};
use crate::error::HeError;
use crate::galois::EvaluationKeys;
use crate::params::Params;
use crate::sampling::Label;
use rand::CryptoRng;
use rayon::prelude::*;
use std::ops::Range;
use zeroize::Zeroize;

impl MatmulPlan {
    /// Multiplies the encrypted share by the weights and splits the product.
    ///
    /// `x_own` is this party's share of X (`batch * m * k`). If it is given, it is added under encryption, so that
    /// the sum of both shares is multiplied. The resulting share is `batch * m * n` ring elements. Transformed
    /// weights are taken from `cached`, or put there while it has room. They stay in memory, so secret weights must
    /// not be cached. `keys` must hold Galois keys if the plan is [packed](super::ProductPlan::packed). Every
    /// response carries a fresh mask and a fresh encryption of zero. Errors: missing keys or keys of another
    /// parameter set, an operand or upload of the wrong length, weights out of range, residues that are not reduced.
    pub fn evaluate<'a>(
        &self,
        keys: impl Into<EvaluationKeys<'a>>,
        upload: &[u8],
        x_own: Option<&[u64]>,
        weights: Weights<'_>,
        cached: Option<CachedWeights<'_>>,
        rng: &mut (impl CryptoRng + ?Sized),
    ) -> Result<Split, HeError> {
        let seeds = ResponseSeeds::fresh(self.layout.seeded.is_some(), rng);
        let packs = 0..self.layout.packs.column_packs();
        Ok(self.join(&seeds, self.responses(keys, (upload, x_own), weights, cached, &seeds, packs)?))
    }

    /// The responses of some packs of columns, in order.
    pub(super) fn responses<'a>(
        &self,
        keys: impl Into<EvaluationKeys<'a>>,
        (upload, x_own): (&[u8], Option<&[u64]>),
        weights: Weights<'_>,
        cached: Option<CachedWeights<'_>>,
        seeds: &ResponseSeeds,
        packs: Range<usize>,
    ) -> Result<Vec<Split>, HeError> {
        let EvaluationKeys { public, galois } = keys.into();
        let params = self.set().check(public.set())?;
        let galois = galois.filter(|_| self.packed());
        if self.packed() {
            self.set().check(galois.ok_or(HeError::NoGaloisKeys { set: self.set() })?.set())?;
        }
        let MatmulShape { batch, k, n, .. } = self.spec.shape;
        HeError::check_entries("weights", batch * k * n, weights.len())?;
        weights.check_range(self.spec.width, self.spec.weight_bits)?;
        if let Some(x) = x_own {
            self.check_x("own share of the encrypted operand", x)?;
        }
        let uploads = self.parse(params, upload, x_own)?;
        let evaluation = Evaluation { plan: self, params, public, galois, weights, cached, seeds };
        Ok(match self.layout.tiling.tile.run {
            1 => columns::responses(&evaluation, &uploads, packs),
            // Nothing is packed, so each pack is one column tile.
            _ => panel::responses(&evaluation, uploads, packs),
        })
    }

    /// Joins the message and the evaluator's share of all responses.
    fn join(&self, seeds: &ResponseSeeds, responses: Vec<Split>) -> Split {
        let (messages, shares): (Vec<_>, Vec<_>) =
            responses.into_iter().map(|Split { message, share }| (message, share)).unzip();
        let seed = seeds.body.as_ref().map_or(&[][..], |seed| seed);
        let message = [seed, &messages.concat()].concat();
        debug_assert_eq!(message.len(), self.download_bytes());
        Split { message, share: self.scatter(&shares) }
    }

    /// Reads the upload and adds the evaluator's share of X under encryption.
    fn parse(&self, params: &Params, upload: &[u8], x_own: Option<&[u64]>) -> Result<Vec<Ciphertext>, HeError> {
        let lift = params.lift(self.spec.width);
        // Each level of merges doubles, so the upload is divided here.
        let levels = self.layout.packs.levels();
        let doublings = (levels.columns + levels.rows) as i32;
        let uploads = match &self.layout.seeded {
            Some(cells) => opened::read(&self.layout, params, cells, upload)?,
            None => self.read(params, upload)?,
        };
        let finished = uploads
            .into_par_iter()
            .enumerate()
            .map(|(index, mut upload)| {
                if let Some(x) = x_own {
                    let mut own = self.encode_x(params, &lift, x, index);
                    params.fwd(&mut own);
                    params.add(&mut upload.c0, &own);
                    own.zeroize();
                }
                if doublings > 0 {
                    upload.shift(params, -doublings);
                }
                upload.factor(params);
                upload
            })
            .collect();
        Ok(finished)
    }

    /// The ciphertexts of a message of [`Self::encrypt`].
    fn read(&self, params: &Params, upload: &[u8]) -> Result<Vec<Ciphertext>, HeError> {
        const MESSAGE: &str = "matmul upload";
        let (seed, bodies) = split_upload(upload, self.upload_bytes(), MESSAGE)?;
        let ciphertext = |(index, body)| {
            let c1 = params.uniform(&seed, Label::Upload, index as u64);
            Ok(Ciphertext { c0: params.unpack(body, 1, MESSAGE)?, c1 })
        };
        bodies.par_chunks_exact(params.poly_bytes()).enumerate().map(ciphertext).collect()
    }
}
