//! Granite: LLaMA with public factors for embeddings, scores, logits and what is added to the residual stream.
//!
//! IBM, "Granite 3.0 Language Models", 2024; weights by the names of `GraniteForCausalLM` in [`modeling_granite.py`].
//!
//! [`modeling_granite.py`]: https://github.com/huggingface/transformers/tree/main/src/transformers/models/granite

use serde::{Deserialize, Serialize};

use super::Family;
use crate::config::{Common, ConfigError, Defaults, Keys, positive};
use crate::style::Style;

/// `config.json` of a Granite; fields have their published names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Hugging Face's")]
pub struct GraniteConfig {
    #[serde(flatten)]
    pub common: Common,
    /// The factor by which embeddings are multiplied.
    pub embedding_multiplier: f32,
    /// The factor by which everything that attention and MLP add to the residual stream is multiplied.
    pub residual_multiplier: f32,
    /// The factor by which scores are multiplied, in place of 1 / sqrt(head_dim).
    pub attention_multiplier: f32,
    /// The number by which logits are divided.
    pub logits_scaling: f32,
    pub attention_bias: bool,
    pub mlp_bias: bool,
}

impl GraniteConfig {
    /// Reads the keys, with `defaults` for missing ones.
    pub(super) fn read(keys: &Keys, defaults: &Defaults) -> Result<Self, ConfigError> {
        let factor = |key: &str| Ok(keys.number(key)?.map_or(1.0, |factor| factor as f32));
        Ok(GraniteConfig {
            common: Common::read(keys, defaults)?,
            embedding_multiplier: factor("embedding_multiplier")?,
            residual_multiplier: factor("residual_multiplier")?,
            attention_multiplier: factor("attention_multiplier")?,
            logits_scaling: factor("logits_scaling")?,
            attention_bias: keys.flag("attention_bias")?.unwrap_or(false),
            mlp_bias: keys.flag("mlp_bias")?.unwrap_or(false),
        })
    }
}

impl Family for GraniteConfig {
    const CLASSES: &'static [&'static str] = &["GraniteForCausalLM", "GraniteModel"];
    const READS: &'static [&'static str] =
        &["embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"];

    fn parse(keys: &Keys) -> Result<Self, ConfigError> {
        GraniteConfig::read(keys, &Defaults::LLAMA)
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.common.check()?;
        positive("embedding_multiplier", self.embedding_multiplier.into())?;
        positive("residual_multiplier", self.residual_multiplier.into())?;
        positive("attention_multiplier", self.attention_multiplier.into())?;
        positive("logits_scaling", self.logits_scaling.into())
    }

    fn style(&self) -> Style {
        Style {
            embedding_scale: Some(self.embedding_multiplier),
            residual_scale: self.residual_multiplier,
            scales: vec![self.attention_multiplier; self.common.num_hidden_layers],
            logit_scale: self.logits_scaling.recip(),
            qkv_bias: self.attention_bias,
            output_bias: self.attention_bias,
            mlp_bias: self.mlp_bias,
            ..Style::llama(&self.common)
        }
    }
}
