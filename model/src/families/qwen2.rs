//! Qwen2 and Qwen2.5: LLaMA with biases of queries, keys and values, and optionally a window in later layers.
//!
//! Yang et al., arXiv 2407.10671; weights by the names of `Qwen2ForCausalLM` in [`modeling_qwen2.py`].
//!
//! [`modeling_qwen2.py`]: https://github.com/huggingface/transformers/tree/main/src/transformers/models/qwen2

use serde::{Deserialize, Serialize};

use super::Family;
use crate::config::{Common, ConfigError, Defaults, Keys, Windows};
use crate::style::Style;

/// `config.json` of a Qwen2; fields have their published names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Hugging Face's")]
pub struct Qwen2Config {
    #[serde(flatten)]
    pub common: Common,
    #[serde(flatten)]
    pub windows: Windows,
}

/// Values that `transformers` takes for missing keys.
pub(super) const DEFAULTS: Defaults = Defaults {
    vocab_size: 151936,
    max_position_embeddings: 32768,
    intermediate_size: 22016,
    num_key_value_heads: Some(32),
    eos: &[],
    ..Defaults::LLAMA
};

impl Family for Qwen2Config {
    const CLASSES: &'static [&'static str] = &["Qwen2ForCausalLM", "Qwen2Model"];
    const READS: &'static [&'static str] = &["sliding_window", "use_sliding_window", "layer_types"];

    fn parse(keys: &Keys) -> Result<Self, ConfigError> {
        let common = Common::read(keys, &DEFAULTS)?;
        Ok(Qwen2Config { windows: Windows::late(keys, common.num_hidden_layers)?, common })
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.common.check()?;
        self.windows.check(self.common.num_hidden_layers)
    }

    fn style(&self) -> Style {
        Style { windows: self.windows.each(), qkv_bias: true, ..Style::llama(&self.common) }
    }
}
