//! The choice between the architectures.

use engine::{Engine, WeightData, WeightLoader, WeightSpec};
use mpcache::{KvCache, PolicySpec};
use ndarray::ArrayD;

use crate::checkpoint::TensorSpec;
use crate::config::ModelSpec;
use crate::gpt2::{self, Gpt2};
use crate::layers::{Input, Rows};
use crate::learned::Columns;
use crate::llama::{self, Llama};
use crate::weights::Builder;
use crate::{Checkpoint, Error};

/// A model whose matrices are prepared for an engine with weights `W`.
pub enum Model<W> {
    /// A GPT-2.
    Gpt2(Gpt2<W>),
    /// A LLaMA.
    Llama(Llama<W>),
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
            _ if !policy.needs_columns() => Columns::None,
            None => Columns::Shape,
            Some(checkpoint) => Columns::Known(checkpoint.learned(spec)?),
        };
        Self::build(spec, &mut Builder { checkpoint, columns, loader })
    }

    /// Whether it gives learned scores of tokens, see [`Model::load_for`].
    pub fn learned(&self) -> bool {
        match self {
            Model::Gpt2(model) => model.learned(),
            Model::Llama(model) => model.learned(),
        }
    }

    fn build(spec: &ModelSpec, builder: &mut Builder<W>) -> Result<Self, Error> {
        Ok(match spec {
            ModelSpec::Gpt2(config) => Model::Gpt2(Gpt2::load(config, builder)?),
            ModelSpec::Llama(config) => Model::Llama(Llama::load(config, builder)?),
        })
    }

    /// All weights, in the order in which they were prepared.
    pub fn weights(&self) -> Vec<&W> {
        match self {
            Model::Gpt2(model) => model.weights(),
            Model::Llama(model) => model.weights(),
        }
    }

    /// The public shape.
    pub fn spec(&self) -> ModelSpec {
        match self {
            Model::Gpt2(model) => ModelSpec::Gpt2(model.config().clone()),
            Model::Llama(model) => ModelSpec::Llama(model.config().clone()),
        }
    }

    /// An empty cache for one generation.
    pub fn cache<E: Engine<Weight = W>>(&self, policy: &PolicySpec) -> KvCache<E> {
        let spec = self.spec();
        KvCache::new(spec.layers(), spec.heads(), policy)
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
        match self {
            Model::Gpt2(model) => model.forward(engine, input, cache, rows, progress),
            Model::Llama(model) => model.forward(engine, input, cache, rows, progress),
        }
    }

    /// Logits (n, vocabulary) of hidden states (n, width) of [`Model::forward`].
    pub fn logits<E: Engine<Weight = W>>(
        &self,
        engine: &mut E,
        hidden: &E::Tensor,
    ) -> Result<E::Tensor, engine::Error> {
        engine.scope("head", |e| e.linear(hidden, self.head()))
    }

    /// [`Model::logits`], opened to the client.
    pub fn reveal_logits<E: Engine<Weight = W>>(
        &self,
        engine: &mut E,
        hidden: &E::Tensor,
    ) -> Result<Option<ArrayD<f32>>, engine::Error> {
        engine.scope("head", |e| e.reveal_linear(hidden, self.head()))
    }

    fn head(&self) -> &W {
        match self {
            Model::Gpt2(model) => model.head(),
            Model::Llama(model) => model.head(),
        }
    }
}

impl ModelSpec {
    /// Names and shapes of the tensors that a checkpoint must hold.
    pub fn tensors(&self) -> Vec<TensorSpec> {
        match self {
            ModelSpec::Gpt2(config) => gpt2::layout(config),
            ModelSpec::Llama(config) => llama::layout(config),
        }
    }

    /// The weights that [`Model::load`] prepares, in its order. [`Model::load_for`] prepares as many, and some may be
    /// wider.
    pub fn weight_specs(&self) -> Vec<WeightSpec> {
        let mut lister = Lister { specs: Vec::new() };
        Model::load(&mut lister, self, None).map(|_| ()).expect("without values nothing can be refused");
        lister.specs
    }

    /// Refuses token ids that the model does not have.
    pub fn check_ids(&self, ids: &[u32]) -> Result<(), Error> {
        let vocabulary = self.vocabulary();
        match ids.iter().find(|id| **id as usize >= vocabulary) {
            Some(&id) => Err(engine::Error::Token { id, vocabulary }.into()),
            None => Ok(()),
        }
    }

    /// Number of parameters as published.
    pub fn parameters(&self) -> usize {
        self.tensors().iter().map(|t| t.shape.iter().product::<usize>()).sum()
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
