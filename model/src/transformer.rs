//! A model of any family.

use engine::{Engine, LogitBits, Select, WeightData, WeightLoader, WeightSpec};
use mpcache::{KvCache, PolicySpec};
use ndarray::{Array2, ArrayD};

use crate::decoder::Decoder;
use crate::layers::{Input, Rows};
use crate::learned::Columns;
use crate::spec::ModelSpec;
use crate::weights::Builder;
use crate::{Checkpoint, Error};

/// A model whose matrices are prepared for an engine with weights `W`.
pub struct Model<W> {
    spec: ModelSpec,
    decoder: Decoder<W>,
}

impl<W> Model<W> {
    /// Has `loader` prepare the weights of the model `spec`, one after another: with the values of `checkpoint` on
    /// the server, without values where there is none. A checkpoint that does not fit `spec`, or that holds more, is
    /// refused by tensor.
    pub fn load(
        loader: &mut dyn WeightLoader<Weight = W>,
        spec: &ModelSpec,
        checkpoint: Option<&Checkpoint>,
    ) -> Result<Self, Error> {
        Self::load_for(&PolicySpec::default(), loader, spec, checkpoint)
    }

    /// [`Model::load`] for generations under `policy`. If it needs learned scores, the matrices that give query, key
    /// and value have a further column for every key/value head. Their values stand beside the checkpoint, in
    /// [`LEARNED_FILE`](crate::LEARNED_FILE). Such a model works under every policy, and costs as if all had asked
    /// for the columns.
    ///
    /// # Errors
    /// Those of [`Model::load`], and [`CheckpointError`](crate::CheckpointError) for a file that is missing or does
    /// not fit.
    pub fn load_for(
        policy: &PolicySpec,
        loader: &mut dyn WeightLoader<Weight = W>,
        spec: &ModelSpec,
        checkpoint: Option<&Checkpoint>,
    ) -> Result<Self, Error> {
        if let Some(checkpoint) = checkpoint {
            checkpoint.check_all(spec)?;
        }
        let columns = match checkpoint {
            _ if !policy.needs_scoring_head() => Columns::None,
            None => Columns::Shape,
            Some(checkpoint) => Columns::Known(checkpoint.learned(spec)?),
        };
        Self::build(spec, Builder { checkpoint, columns, loader })
    }

    /// [`Model::load`] with a scoring head whose columns are all 0, to fit another: of the norms of (tokens, width)
    /// that a layer computes, the first gives what a head reads.
    ///
    /// # Errors
    /// Those of [`Model::load`].
    pub fn load_to_fit(
        loader: &mut dyn WeightLoader<Weight = W>,
        spec: &ModelSpec,
        checkpoint: &Checkpoint,
    ) -> Result<Self, Error> {
        checkpoint.check_all(spec)?;
        let columns = Array2::zeros((spec.hidden(), spec.heads().kv_heads));
        let columns = Columns::Known(vec![columns; spec.layers()]);
        Self::build(spec, Builder { checkpoint: Some(checkpoint), columns, loader })
    }

    fn build(spec: &ModelSpec, mut builder: Builder<W>) -> Result<Self, Error> {
        Ok(Model { spec: spec.clone(), decoder: Decoder::load(spec.style(), &mut builder)? })
    }

    /// All weights, in the order in which they were prepared.
    pub fn weights(&self) -> Vec<&W> {
        self.decoder.weights()
    }

    /// The public shape.
    pub fn spec(&self) -> ModelSpec {
        self.spec.clone()
    }

    /// Whether it gives learned scores of tokens, see [`Model::load_for`].
    pub fn learned(&self) -> bool {
        self.decoder.scores()
    }

    /// An empty cache for one generation.
    ///
    /// # Panics
    /// If the policy has no layer to act on ([`ModelSpec::check_policy`]).
    pub fn cache<E: Select<Weight = W>>(&self, policy: &PolicySpec) -> KvCache<E> {
        KvCache::of(&self.spec.attention(), policy)
    }

    /// The last hidden state, normalised, of the new tokens `input`, which follow those in `cache`: (1 or count,
    /// width), or nothing with [`Rows::None`]. `progress` is called with the number of layers done after each.
    /// Positions must stay below [`ModelSpec::max_positions`].
    pub fn forward<E: Engine<Weight = W>>(
        &self,
        engine: &mut E,
        input: Input,
        cache: &mut KvCache<E>,
        rows: Rows,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Option<E::Tensor>, engine::Error> {
        self.decoder.forward(engine, input, cache, rows, progress)
    }

    /// Logits (n, vocabulary) of hidden states (n, width) of [`Model::forward`], without a
    /// [cap](ModelSpec::logit_cap), which changes no order.
    pub fn logits<E: Engine<Weight = W>>(
        &self,
        engine: &mut E,
        hidden: &E::Tensor,
    ) -> Result<E::Tensor, engine::Error> {
        engine.scope("head", |e| e.linear(hidden, self.decoder.head()))
    }

    /// [`logits`](Model::logits) with `bits` fractional bits, opened to the client, which applies the
    /// [cap](ModelSpec::logit_cap). The cap is invertible, so uncapped logits reveal nothing more.
    pub fn reveal_logits<E: Engine<Weight = W>>(
        &self,
        engine: &mut E,
        hidden: &E::Tensor,
        bits: LogitBits,
    ) -> Result<Option<ArrayD<f32>>, engine::Error> {
        let logits = engine.scope("head", |e| e.reveal_linear(hidden, self.decoder.head(), bits))?;
        Ok(match self.decoder.style.logit_cap {
            Some(cap) => logits.map(|logits| logits.mapv(|x| cap * (x / cap).tanh())),
            None => logits,
        })
    }
}

impl ModelSpec {
    /// The weights that [`Model::load`] prepares, in its order. [`Model::load_for`] prepares as many, and some may be
    /// wider.
    pub fn weight_specs(&self) -> Vec<WeightSpec> {
        let mut lister = Lister { specs: Vec::new() };
        Model::load(&mut lister, self, None).map(|_| ()).expect("without values nothing can be refused");
        lister.specs
    }

    /// Refuses a cache policy whose settings are for another model, or that has no layer to act on.
    pub fn check_policy(&self, policy: &PolicySpec) -> Result<(), Error> {
        let layers = self.attention();
        if !layers.take(policy) {
            return Err(Error::WindowedPolicy { policy: policy.to_string() });
        }
        Ok(policy.check(layers.pruned(), layers.heads)?)
    }

    /// Refuses token ids that the model does not have.
    pub fn check_ids(&self, ids: &[u32]) -> Result<(), Error> {
        let vocabulary = self.vocabulary();
        match ids.iter().find(|id| **id as usize >= vocabulary) {
            Some(&id) => Err(engine::Error::Token { id, vocabulary }.into()),
            None => Ok(()),
        }
    }
}

/// Loads nothing, and notes what it is asked for.
struct Lister {
    specs: Vec<WeightSpec>,
}

impl WeightLoader for Lister {
    type Weight = ();

    fn load(&mut self, spec: &WeightSpec, _: Option<WeightData>) -> Result<(), engine::Error> {
        self.specs.push(spec.clone());
        Ok(())
    }
}
