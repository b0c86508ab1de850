//! Phi-3 and Phi-4-mini: LLaMA with LongRoPE. Query, key and value are published as one matrix, and gate and up as
//! another.
//!
//! Abdin et al., arXiv 2404.14219; weights by the names of `Phi3ForCausalLM` in [`modeling_phi3.py`].
//!
//! [`modeling_phi3.py`]: https://github.com/huggingface/transformers/tree/main/src/transformers/models/phi3

use serde::{Deserialize, Serialize};

use super::Family;
use crate::config::{Common, ConfigError, Defaults, Keys};
use crate::style::{Names, Role, Style};

/// `config.json` of a Phi-3; fields have their published names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Hugging Face's")]
pub struct Phi3Config {
    #[serde(flatten)]
    pub common: Common,
    pub sliding_window: Option<usize>,
}

const NAMES: Names = Names {
    layer: &[
        (Role::Qkv, "self_attn.qkv_proj"),
        (Role::Output, "self_attn.o_proj"),
        (Role::GateUp, "mlp.gate_up_proj"),
        (Role::Down, "mlp.down_proj"),
    ],
    qkv: "self_attn.qkv_proj",
    up: "mlp.gate_up_proj",
    ..Names::LLAMA
};

impl Family for Phi3Config {
    const CLASSES: &'static [&'static str] = &["Phi3ForCausalLM", "Phi3Model"];
    const READS: &'static [&'static str] = &["sliding_window"];

    fn parse(keys: &Keys) -> Result<Self, ConfigError> {
        let defaults = Defaults {
            vocab_size: 32064,
            max_position_embeddings: 4096,
            hidden_size: 3072,
            intermediate_size: 8192,
            eps: ("rms_norm_eps", 1e-5),
            eos: &[32000],
            partial_rotary_factor: Some(1.0),
            original: Some(4096),
            ..Defaults::LLAMA
        };
        Ok(Phi3Config { common: Common::read(keys, &defaults)?, sliding_window: keys.size(&["sliding_window"])? })
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.common.check()
    }

    fn style(&self) -> Style {
        let windows = vec![self.sliding_window; self.common.num_hidden_layers];
        Style { names: NAMES, windows, ..Style::llama(&self.common) }
    }
}
