//! Mistral: LLaMA with a window in every layer, or in no layer.
//!
//! Jiang et al., arXiv 2310.06825; weights by the names of `MistralForCausalLM` in [`modeling_mistral.py`].
//!
//! [`modeling_mistral.py`]: https://github.com/huggingface/transformers/tree/main/src/transformers/models/mistral

use serde::{Deserialize, Serialize};

use super::Family;
use crate::config::{Common, ConfigError, Defaults, Keys, window};
use crate::style::Style;

/// `config.json` of a Mistral; fields have their published names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Hugging Face's")]
pub struct MistralConfig {
    #[serde(flatten)]
    pub common: Common,
    pub sliding_window: Option<usize>,
}

impl Family for MistralConfig {
    const CLASSES: &'static [&'static str] = &["MistralForCausalLM", "MistralModel"];
    const READS: &'static [&'static str] = &["sliding_window"];

    fn parse(keys: &Keys) -> Result<Self, ConfigError> {
        let defaults = Defaults {
            max_position_embeddings: 131072,
            intermediate_size: 14336,
            num_key_value_heads: Some(8),
            ..Defaults::LLAMA
        };
        Ok(MistralConfig { common: Common::read(keys, &defaults)?, sliding_window: window(keys, Some(4096))? })
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.common.check()
    }

    // ANCHOR: style
    fn style(&self) -> Style {
        let windows = vec![self.sliding_window; self.common.num_hidden_layers];
        Style { windows, ..Style::llama(&self.common) }
    }
    // ANCHOR_END: style
}
