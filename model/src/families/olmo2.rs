//! OLMo 2: norms after attention and after the MLP instead of before them, and norms of all queries and of all keys.
//!
//! OLMo team, arXiv 2501.00656; weights by the names of `Olmo2ForCausalLM` in [`modeling_olmo2.py`].
//!
//! [`modeling_olmo2.py`]: https://github.com/huggingface/transformers/tree/main/src/transformers/models/olmo2

use serde::{Deserialize, Serialize};

use super::Family;
use crate::config::{Common, ConfigError, Defaults, Keys};
use crate::style::{Names, Norms, QkNorm, Role, Style};

/// `config.json` of an OLMo 2; fields have their published names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Hugging Face's")]
pub struct Olmo2Config {
    #[serde(flatten)]
    pub common: Common,
    pub attention_bias: bool,
}

const NAMES: Names = Names {
    norms: &[(Role::AfterAttention, "post_attention_layernorm"), (Role::AfterMlp, "post_feedforward_layernorm")],
    ..Names::LLAMA
};

impl Family for Olmo2Config {
    const CLASSES: &'static [&'static str] = &["Olmo2ForCausalLM", "Olmo2Model"];

    fn parse(keys: &Keys) -> Result<Self, ConfigError> {
        let defaults = Defaults { vocab_size: 50304, eps: ("rms_norm_eps", 1e-5), eos: &[50279], ..Defaults::LLAMA };
        Ok(Olmo2Config {
            common: Common::read(keys, &defaults)?,
            attention_bias: keys.flag("attention_bias")?.unwrap_or(false),
        })
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.common.check()
    }

    fn style(&self) -> Style {
        Style {
            names: NAMES,
            norms: Norms::After,
            qk_norm: QkNorm::Whole,
            qkv_bias: self.attention_bias,
            output_bias: self.attention_bias,
            ..Style::llama(&self.common)
        }
    }
}
