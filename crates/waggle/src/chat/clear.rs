//! The parties' conversation, held again with a plaintext model.

use waggle_engine::Float;
use waggle_model::{Check, FloatModel, GenerateOptions, Generation, Input, ModelSpec, Next, compare};
use waggle_mpcache::KvCache;
use waggle_session::party::Terms;

use crate::Error;
use crate::error::NameError;
use crate::models::open_model;

/// A plaintext model that reads the same conversation under the same policy.
pub(crate) struct Clear {
    model: FloatModel,
    cache: KvCache<Float>,
    options: GenerateOptions,
    checks: Vec<(usize, Check)>,
}

impl Clear {
    /// Opens the model `name`, which must have the shape `spec`. With `pad_answer` it generates on after the end of
    /// an answer, as the parties do, and later turns do not attend to those tokens either. Public tokens of the
    /// `terms` stand before the conversation, kept and pruned as the server does.
    pub(crate) fn open(name: &str, spec: &ModelSpec, terms: &Terms, pad_answer: bool) -> Result<Self, Error> {
        let files = open_model(name)?;
        if files.spec != *spec {
            return Err(NameError::CheckShape(name.into()).into());
        }
        let model = FloatModel::open(&terms.policy, &files)?;
        let model = match &terms.prefix {
            Some(prefix) => model.behind(prefix.ids(), prefix.policy())?,
            None => model,
        };
        let options = GenerateOptions {
            policy: terms.policy.clone(),
            prefill_chunk: terms.prefill_chunk,
            stop_at_eos: pad_answer,
            pad_answer,
            ..GenerateOptions::default()
        };
        Ok(Clear { cache: model.float_cache(&terms.policy), model, options, checks: Vec::new() })
    }

    pub(crate) fn reset(&mut self) {
        self.cache = self.model.float_cache(&self.options.policy);
    }

    /// Compares a turn: the parties read `ids` and generated `generation`.
    pub(crate) fn turn(&mut self, ids: &[u32], generation: &Generation) -> Result<Check, Error> {
        let Clear { model, cache, options, .. } = self;
        let options = GenerateOptions { tokens: generation.count, ..options.clone() };
        let input = Input::known(ids);
        let forced = Next::Forced(&generation.tokens);
        let (truth, close_choices) = model.generate_with(cache, input, &options, forced)?;
        let check = Check { close_choices, ..compare(&truth, generation)? };
        self.checks.push((generation.tokens.len(), check));
        Ok(check)
    }

    /// The comparison of all turns together.
    pub(crate) fn all(&self) -> Option<Check> {
        let tokens: usize = self.checks.iter().map(|(tokens, _)| tokens).sum();
        let agreed: f64 = self.checks.iter().map(|(tokens, check)| *tokens as f64 * check.token_agreement).sum();
        let most =
            |of: fn(&Check) -> Option<f32>| self.checks.iter().filter_map(|(_, check)| of(check)).reduce(f32::max);
        (tokens > 0).then(|| Check {
            max_abs_logit_error: most(|check| check.max_abs_logit_error),
            token_agreement: agreed / tokens as f64,
            largest_margin_missed: most(|check| check.largest_margin_missed),
            close_choices: self.checks.iter().map(|(_, check)| check.close_choices).sum(),
        })
    }
}
