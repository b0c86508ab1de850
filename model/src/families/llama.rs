//! LLaMA: rotary positions, RMS norms, gated MLP, query heads that share key/value heads.
//!
//! Touvron et al., arXiv 2302.13971; weights by the names of `LlamaForCausalLM` in [`modeling_llama.py`].
//!
//! [`modeling_llama.py`]: https://github.com/huggingface/transformers/tree/main/src/transformers/models/llama

use serde::{Deserialize, Serialize};

use super::Family;
use crate::config::{
    Activation, Common, ConfigError, Defaults, Keys, Quantization, RopeConfig, RopeScaling, epsilon, positive,
    unsupported,
};
use crate::style::Style;

/// `config.json` of a LLaMA; fields have their published names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Hugging Face's")]
pub struct LlamaConfig {
    pub vocab_size: usize,
    pub max_position_embeddings: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    pub head_dim: usize,
    pub hidden_act: Activation,
    pub rms_norm_eps: f32,
    pub rope_theta: f64,
    pub rope_scaling: RopeScaling,
    pub attention_bias: bool,
    pub mlp_bias: bool,
    pub tie_word_embeddings: bool,
    pub eos_token_id: Vec<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantization_config: Option<Quantization>,
}

impl LlamaConfig {
    fn common(&self) -> Common {
        Common {
            vocab_size: self.vocab_size,
            max_position_embeddings: self.max_position_embeddings,
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size,
            num_hidden_layers: self.num_hidden_layers,
            num_attention_heads: self.num_attention_heads,
            num_key_value_heads: self.num_key_value_heads,
            head_dim: self.head_dim,
            hidden_act: self.hidden_act,
            norm_eps: self.rms_norm_eps,
            tie_word_embeddings: self.tie_word_embeddings,
            eos_token_id: self.eos_token_id.clone(),
            quantization_config: self.quantization_config,
            rope: RopeConfig {
                rope_theta: self.rope_theta,
                rope_scaling: self.rope_scaling.clone(),
                partial_rotary_factor: 1.0,
            },
        }
    }
}

impl Family for LlamaConfig {
    const CLASSES: &'static [&'static str] = &["LlamaForCausalLM", "LLaMAForCausalLM", "LlamaModel"];

    fn parse(keys: &Keys) -> Result<Self, ConfigError> {
        let common = Common::read(keys, &Defaults::LLAMA)?;
        Ok(LlamaConfig {
            vocab_size: common.vocab_size,
            max_position_embeddings: common.max_position_embeddings,
            hidden_size: common.hidden_size,
            intermediate_size: common.intermediate_size,
            num_hidden_layers: common.num_hidden_layers,
            num_attention_heads: common.num_attention_heads,
            num_key_value_heads: common.num_key_value_heads,
            head_dim: common.head_dim,
            hidden_act: common.hidden_act,
            rms_norm_eps: common.norm_eps,
            rope_theta: common.rope.rope_theta,
            rope_scaling: common.rope.rope_scaling,
            attention_bias: keys.flag("attention_bias")?.unwrap_or(false),
            mlp_bias: keys.flag("mlp_bias")?.unwrap_or(false),
            tie_word_embeddings: common.tie_word_embeddings,
            eos_token_id: common.eos_token_id,
            quantization_config: common.quantization_config,
        })
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.common().check_sizes()?;
        if !self.head_dim.is_multiple_of(2) {
            return Err(unsupported("head_dim", self.head_dim, "rotary embeddings need an even one"));
        }
        positive("rope_theta", self.rope_theta)?;
        self.rope_scaling.check(self.head_dim)?;
        epsilon("rms_norm_eps", self.rms_norm_eps)
    }

    fn style(&self) -> Style {
        Style {
            qkv_bias: self.attention_bias,
            output_bias: self.attention_bias,
            mlp_bias: self.mlp_bias,
            ..Style::llama(&self.common())
        }
    }
}
