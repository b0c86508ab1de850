//! Models in the clear. Code that is generic over the engine is compiled for `Float` once here, and not again in each
//! crate that runs a model in the clear.

use std::sync::Arc;

use waggle_engine::{Float, FloatLoader, FloatWeight};
use waggle_mpcache::{KvCache, PolicySpec, Prefix};

use crate::generate::{GenerateOptions, Generation, Next, NoHooks, generate, generate_with};
use crate::{Error, Input, Model, ModelFiles};

/// A model on the plaintext engine, which computes in f32.
pub type FloatModel = Model<FloatWeight>;

impl FloatModel {
    /// The model of `files`, for generations under `policy`.
    ///
    /// # Errors
    /// The errors of [`Model::load_for`].
    pub fn open(policy: &PolicySpec, files: &ModelFiles) -> Result<Self, Error> {
        Model::load_for(policy, &mut FloatLoader, &files.spec, Some(&files.checkpoint))
    }

    /// The model of `files` with a scoring head of zeros, so that a real one can be fitted.
    ///
    /// # Errors
    /// The errors of [`Model::load_to_fit`].
    pub fn open_to_fit(files: &ModelFiles, name: &'static str) -> Result<Self, Error> {
        Model::load_to_fit(&mut FloatLoader, &files.spec, &files.checkpoint, name)
    }

    /// The model behind the public tokens `ids`, of which it keeps what `policy` keeps of a prompt.
    ///
    /// # Errors
    /// The errors of [`Model::read_prefix`].
    pub fn behind(&self, ids: &[u32], policy: &PolicySpec) -> Result<Self, Error> {
        let layers = self.read_prefix(&mut Float::default(), Input::known(ids), ids.len(), policy)?;
        Ok(self.after(Arc::new(Prefix::load("public tokens", ids.len(), &layers, &mut FloatLoader)?)))
    }

    /// An empty cache under `policy`.
    pub fn float_cache(&self, policy: &PolicySpec) -> KvCache<Float> {
        self.cache(policy)
    }

    /// [`generate`] in the clear.
    ///
    /// # Errors
    /// The errors of [`generate`].
    pub fn generate(&self, prompt: Input, options: &GenerateOptions, next: Next) -> Result<Generation, Error> {
        generate(&mut Float::default(), self, prompt, options, next, &mut NoHooks)
    }

    /// [`generate_with`] in the clear. Also returns the number of choices that [`Float::close_choices`] counts.
    ///
    /// # Errors
    /// The errors of [`generate_with`].
    pub fn generate_with(
        &self,
        cache: &mut KvCache<Float>,
        prompt: Input,
        options: &GenerateOptions,
        next: Next,
    ) -> Result<(Generation, u64), Error> {
        let mut engine = Float::default();
        let generation = generate_with(&mut engine, self, cache, prompt, options, next, &mut NoHooks)?;
        Ok((generation, engine.close_choices()))
    }
}
