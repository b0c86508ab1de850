//! GPT-NeoX and Pythia: attention and MLP in parallel, partial rotary positions, an untied head.
//!
//! Black et al., arXiv 2204.06745, and Biderman et al., arXiv 2304.01373; weights by the names of
//! `GPTNeoXForCausalLM` in [`modeling_gpt_neox.py`]. Queries, keys and values are published as one matrix, in which
//! the query, key and value of a head lie together.
//!
//! [`modeling_gpt_neox.py`]: https://github.com/huggingface/transformers/tree/main/src/transformers/models/gpt_neox

use serde::{Deserialize, Serialize};

use super::Family;
use crate::config::{Activation, Common, ConfigError, Defaults, Keys, unsupported};
use crate::style::{Names, Norms, Role, Stored, Style};

/// `config.json` of a GPT-NeoX; fields have their published names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Hugging Face's")]
pub struct GptNeoXConfig {
    #[serde(flatten)]
    pub common: Common,
}

const NAMES: Names = Names {
    root: "",
    embedding: "gpt_neox.embed_in",
    layers: "gpt_neox.layers",
    layer: &[
        (Role::BeforeAttention, "input_layernorm"),
        (Role::BeforeMlp, "post_attention_layernorm"),
        (Role::QkvByHead, "attention.query_key_value"),
        (Role::Output, "attention.dense"),
        (Role::Up, "mlp.dense_h_to_4h"),
        (Role::Down, "mlp.dense_4h_to_h"),
    ],
    norms: &[],
    qkv: "qkv_up",
    norm: "gpt_neox.final_layer_norm",
    head: "embed_out",
    buffers: &[
        ("gpt_neox.layers.{}.attention.bias", Stored::CausalMask),
        ("gpt_neox.layers.{}.attention.masked_bias", Stored::MaskedBias),
        ("gpt_neox.layers.{}.attention.rotary_emb.inv_freq", Stored::Frequencies),
    ],
    ..Names::LLAMA
};

impl Family for GptNeoXConfig {
    const CLASSES: &'static [&'static str] = &["GPTNeoXForCausalLM"];
    const READS: &'static [&'static str] = &["rotary_pct", "use_parallel_residual"];

    fn parse(keys: &Keys) -> Result<Self, ConfigError> {
        for key in ["use_parallel_residual", "attention_bias"] {
            if keys.flag(key)? == Some(false) {
                return Err(unsupported(key, false, "only true"));
            }
        }
        let defaults = Defaults {
            vocab_size: 50432,
            hidden_size: 6144,
            intermediate_size: 24576,
            num_hidden_layers: 44,
            num_attention_heads: 64,
            activation: ("hidden_act", Activation::GeluErf),
            eps: ("layer_norm_eps", 1e-5),
            rope_theta: keys.number("rotary_emb_base")?.unwrap_or(10000.0),
            partial_rotary_factor: Some(keys.number("rotary_pct")?.unwrap_or(0.25)),
            ..Defaults::LLAMA
        };
        // Some programs also write the base and the share under their common names, which the authors' program does
        // not read.
        for (key, own, used) in [
            ("rope_theta", "rotary_emb_base", Some(defaults.rope_theta)),
            ("partial_rotary_factor", "rotary_pct", defaults.partial_rotary_factor),
        ] {
            if let Some(other) = keys.number(key)?.filter(|other| Some(*other) != used) {
                return Err(unsupported(key, other, format!("as {own}, which is read")));
            }
        }
        Ok(GptNeoXConfig { common: Common::read(keys, &defaults)? })
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.common.check()?;
        let Common { num_attention_heads, num_key_value_heads, .. } = self.common;
        if num_key_value_heads != num_attention_heads {
            return Err(unsupported("num_key_value_heads", num_key_value_heads, "as many as there are heads"));
        }
        Ok(())
    }

    fn style(&self) -> Style {
        Style { names: NAMES, norms: Norms::Parallel, ..Style::rotary(&self.common) }
    }
}
