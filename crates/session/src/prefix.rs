//! Public tokens before the texts of a session, and what a server makes of them.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use waggle_engine::WeightLoader;
use waggle_model::{Input, Lengths, Model, ModelSpec, check_lengths};
use waggle_mpcache::{PolicySpec, Prefix};
use waggle_planner::Planner;
use waggle_protocols::{Fixed, FixedLoader, FixedWeight};

use crate::Error;
use crate::terms::Terms;

/// Hexadecimal digits of a digest: 128 bits, so that nobody finds two prefixes with one digest.
const DIGEST_DIGITS: usize = 32;

/// The most bytes of keys and values that a server keeps in memory for later sessions. LLaMA-7B holds 1024 tokens in
/// as many. The newest prefix stays even if it alone takes more.
const MOST_KEPT: usize = 1 << 30;

/// Public tokens before every text of a session. Both parties know them. The server alone knows the keys and values
/// that its model makes of them, and which of these it keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicPrefix {
    ids: Arc<[u32]>,
    policy: PolicySpec,
    /// Fractional bits of the matrices of [`Prefix`], in their order. Empty until the server has made them; a plan
    /// assumes the most for all of them.
    frac_bits: Vec<u32>,
}

impl fmt::Display for PublicPrefix {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} tokens, {}, under `{}`", self.ids.len(), self.digest(), self.policy)
    }
}

impl PublicPrefix {
    /// The tokens `ids`, of which the server keeps what `policy` keeps of a prompt.
    pub fn new(ids: impl Into<Arc<[u32]>>, policy: PolicySpec) -> Self {
        PublicPrefix { ids: ids.into(), policy, frac_bits: Vec::new() }
    }

    /// As many tokens as a plan needs, which does not depend on their words. None for no tokens.
    pub fn planned(tokens: usize, policy: &PolicySpec) -> Option<Self> {
        (tokens > 0).then(|| PublicPrefix::new(vec![0; tokens], policy.clone()))
    }

    /// The same tokens, none of them pruned.
    pub fn whole(&self) -> Self {
        PublicPrefix::new(self.ids.clone(), PolicySpec::default())
    }

    /// The tokens.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// The policy by which the server prunes the tokens.
    pub fn policy(&self) -> &PolicySpec {
        &self.policy
    }

    /// A digest of tokens and policy.
    pub fn digest(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for id in self.ids.iter() {
            hasher.update(&id.to_le_bytes());
        }
        hasher.update(self.policy.to_string().as_bytes());
        hasher.finalize().to_hex()[..DIGEST_DIGITS].to_owned()
    }

    /// Whether `other` has the same tokens under the same policy.
    pub(crate) fn is(&self, other: &PublicPrefix) -> bool {
        self.ids == other.ids && self.policy == other.policy
    }

    /// Fractional bits of the matrices of a model `spec`.
    pub(crate) fn frac_bits(&self, spec: &ModelSpec) -> Vec<u32> {
        let mut bits = self.frac_bits.clone();
        bits.resize(matrices(spec), waggle_protocols::DEFAULT_WEIGHT_FRAC);
        bits
    }

    /// Takes the fractional bits of a pool that is to be spent.
    pub(crate) fn set_frac_bits(&mut self, frac_bits: Vec<u32>) {
        self.frac_bits = frac_bits;
    }

    /// Takes the fractional bits that the server states. Those of a pool must be the same.
    pub(crate) fn learn_frac_bits(&mut self, frac_bits: Vec<u32>) -> Result<(), Error> {
        if !self.frac_bits.is_empty() && self.frac_bits != frac_bits {
            return Err(Error::Prefix { what: "a pool that was made for other weights" });
        }
        self.frac_bits = frac_bits;
        Ok(())
    }

    /// Refuses what no party could put before texts of the model `spec` under `terms`.
    pub(crate) fn check(&self, spec: &ModelSpec, terms: &Terms) -> Result<(), Error> {
        if spec.is_encoder() {
            return Err(waggle_model::Error::Encoder { what: "public tokens before a text" }.into());
        }
        let limit = spec.max_positions();
        check_lengths(Lengths { prompt: self.ids.len(), tokens: 2 }, limit)?;
        spec.check_ids(&self.ids)?;
        spec.check_policy(&self.policy)?;
        if self.policy.clear_only() || spec.max_positions_of(Some(1)) < limit {
            // A model with frequencies of its own for long texts gives a prefix other keys in a longer text.
            let what =
                if self.policy.clear_only() { "a policy that reads values" } else { "frequencies of long texts" };
            return Err(Error::Prefix { what });
        }
        if terms.protocol.helper.weights() {
            return Err(Error::Prefix { what: "a helper that deals products with weights" });
        }
        Ok(())
    }

    /// The shapes behind `model`: the model with this prefix, as parties without values know it.
    pub(crate) fn shapes(
        &self,
        model: &Model<FixedWeight>,
        terms: &Terms,
    ) -> Result<Arc<Prefix<FixedWeight>>, Error> {
        let mut plan = Planner::listing(terms.protocol).engine();
        let input = Input::unknown(self.ids.len());
        let layers = model.read_prefix(&mut plan, input, self.ids.len(), &self.policy)?;
        let mut loader = FixedLoader::announced(&self.frac_bits)?;
        Ok(Arc::new(self.load(&layers, &mut loader)?))
    }

    fn load<W>(
        &self,
        layers: &[waggle_mpcache::PrefixRows],
        loader: &mut dyn WeightLoader<Weight = W>,
    ) -> Result<Prefix<W>, Error> {
        let loaded = Prefix::load(&self.digest(), self.ids.len(), layers, loader);
        Ok(loaded.map_err(waggle_model::Error::from)?)
    }

    /// Reads the tokens in the clear.
    fn read(&self, model: &Model<FixedWeight>) -> Result<Read, Error> {
        let input = Input::known(&self.ids);
        let layers = model.read_prefix(&mut Fixed::new(), input, self.ids.len(), &self.policy)?;
        let mut loader = FixedLoader::default();
        let prefix = Arc::new(self.load(&layers, &mut loader)?);
        let numbers: usize = layers.iter().flat_map(|layer| layer.rows.iter().flatten()).map(|rows| rows.len()).sum();
        let (bytes, frac_bits) = (numbers * size_of::<f32>(), loader.frac_bits().to_vec());
        Ok(Read { digest: self.digest(), prefix, frac_bits, bytes })
    }
}

/// The number of matrices of a prefix: keys and values of each layer that has its own.
pub(crate) fn matrices(spec: &ModelSpec) -> usize {
    2 * spec.attention().windows.len()
}

/// A prefix that a server has read.
#[derive(Clone)]
struct Read {
    digest: String,
    prefix: Arc<Prefix<FixedWeight>>,
    frac_bits: Vec<u32>,
    /// Bytes of its keys and values in memory.
    bytes: usize,
}

/// The prefixes that served last, up to [`MOST_KEPT`] bytes, so that later sessions spend nothing on them.
#[derive(Default)]
pub(crate) struct Prefixes(Mutex<Vec<Read>>);

impl Prefixes {
    /// `model` behind `prefix`, which learns the fractional bits of its matrices. The prefix is read if it was not
    /// among the last ones; meanwhile no other session reads one.
    ///
    /// # Errors
    /// As [`Model::read_prefix`] and [`Prefix::load`].
    pub(crate) fn after(
        &self,
        model: &Model<FixedWeight>,
        prefix: &mut PublicPrefix,
    ) -> Result<Model<FixedWeight>, Error> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let digest = prefix.digest();
        let read = match kept.iter().position(|read| read.digest == digest) {
            Some(at) => kept.remove(at),
            None => prefix.read(model)?,
        };
        prefix.frac_bits.clone_from(&read.frac_bits);
        let after = model.after(read.prefix.clone());
        kept.push(read);
        forget(&mut kept, MOST_KEPT);
        Ok(after)
    }
}

/// Forgets the prefixes that served longest ago, so that the others take `most` bytes in all. The last one stays.
fn forget(kept: &mut Vec<Read>, most: usize) {
    let mut bytes = 0usize;
    let fit = kept.iter().rev().take_while(|read| {
        bytes = bytes.saturating_add(read.bytes);
        bytes <= most
    });
    let stay = fit.count().max(1);
    kept.drain(..kept.len().saturating_sub(stay));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_stay_while_there_is_room() {
        let prefix = Arc::new(Prefix::load("", 1, &[], &mut FixedLoader::default()).unwrap());
        let stay = |bytes: &[usize], most| {
            let read =
                |&bytes: &usize| Read { digest: String::new(), prefix: prefix.clone(), frac_bits: vec![], bytes };
            let mut kept: Vec<Read> = bytes.iter().map(read).collect();
            forget(&mut kept, most);
            kept.iter().map(|read| read.bytes).collect::<Vec<_>>()
        };
        assert_eq!(stay(&[5, 4, 3, 2], 9), [4, 3, 2]);
        assert_eq!(stay(&[5, 4, 3, 2], 8), [3, 2]);
        assert_eq!(stay(&[1, 9], 8), [9], "the newest stays, whatever it takes");
        assert_eq!(stay(&[1, 2], 8), [1, 2]);
        assert!(stay(&[], 8).is_empty());
    }
}
