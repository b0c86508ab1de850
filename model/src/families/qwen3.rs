//! Qwen3: LLaMA with an RMS norm of every head of queries and keys, and optionally a window in later layers.
//!
//! Yang et al., arXiv 2505.09388; weights by the names of `Qwen3ForCausalLM` in [`modeling_qwen3.py`].
//!
//! [`modeling_qwen3.py`]: https://github.com/huggingface/transformers/tree/main/src/transformers/models/qwen3

use serde::{Deserialize, Serialize};

use super::{Family, qwen2};
use crate::config::{Common, ConfigError, Defaults, Keys, Windows};
use crate::style::{QkNorm, Style};

/// `config.json` of a Qwen3; fields have their published names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Hugging Face's")]
pub struct Qwen3Config {
    #[serde(flatten)]
    pub common: Common,
    #[serde(flatten)]
    pub windows: Windows,
    pub attention_bias: bool,
}

impl Family for Qwen3Config {
    const CLASSES: &'static [&'static str] = &["Qwen3ForCausalLM", "Qwen3Model"];
    const READS: &'static [&'static str] = &["sliding_window", "use_sliding_window", "layer_types"];

    fn parse(keys: &Keys) -> Result<Self, ConfigError> {
        let common = Common::read(keys, &Defaults { head_dim: Some(128), ..qwen2::DEFAULTS })?;
        let windows = Windows::late(keys, common.num_hidden_layers)?;
        Ok(Qwen3Config { common, windows, attention_bias: keys.flag("attention_bias")?.unwrap_or(false) })
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.common.check()?;
        self.windows.check(self.common.num_hidden_layers)
    }

    fn style(&self) -> Style {
        Style {
            windows: self.windows.each(),
            qkv_bias: self.attention_bias,
            output_bias: self.attention_bias,
            qk_norm: QkNorm::Head,
            ..Style::llama(&self.common)
        }
    }
}
