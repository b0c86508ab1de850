//! Phi-1.5 and Phi-2: attention and MLP in parallel from one layer norm, partial rotary positions, biases throughout.
//!
//! Li et al., arXiv 2309.05463; weights by the names of `PhiForCausalLM` in [`modeling_phi.py`].
//!
//! [`modeling_phi.py`]: https://github.com/huggingface/transformers/tree/main/src/transformers/models/phi

use serde::{Deserialize, Serialize};

use super::Family;
use crate::config::{Activation, Common, ConfigError, Defaults, Keys, unsupported};
use crate::style::{Names, Norms, Role, Style};

/// `config.json` of a Phi; fields have their published names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Hugging Face's")]
pub struct PhiConfig {
    #[serde(flatten)]
    pub common: Common,
}

const NAMES: Names = Names {
    layer: &[
        (Role::BeforeAttention, "input_layernorm"),
        (Role::Query, "self_attn.q_proj"),
        (Role::Key, "self_attn.k_proj"),
        (Role::Value, "self_attn.v_proj"),
        (Role::Up, "mlp.fc1"),
        (Role::Output, "self_attn.dense"),
        (Role::Down, "mlp.fc2"),
    ],
    norms: &[],
    qkv: "qkv_up",
    norm: "model.final_layernorm",
    ..Names::LLAMA
};

impl Family for PhiConfig {
    const CLASSES: &'static [&'static str] = &["PhiForCausalLM", "PhiModel"];

    fn parse(keys: &Keys) -> Result<Self, ConfigError> {
        let defaults = Defaults {
            vocab_size: 51200,
            hidden_size: 2048,
            intermediate_size: 8192,
            num_hidden_layers: 24,
            activation: ("hidden_act", Activation::GeluTanh),
            eps: ("layer_norm_eps", 1e-5),
            partial_rotary_factor: Some(0.5),
            ..Defaults::LLAMA
        };
        Ok(PhiConfig { common: Common::read(keys, &defaults)? })
    }

    fn check(&self) -> Result<(), ConfigError> {
        if self.common.tie_word_embeddings {
            return Err(unsupported("tie_word_embeddings", true, "a Phi has a head of its own"));
        }
        self.common.check()
    }

    fn style(&self) -> Style {
        Style { names: NAMES, norms: Norms::Parallel, head_bias: true, ..Style::rotary(&self.common) }
    }
}
