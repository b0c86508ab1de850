//! Public shape of a model, read from a Hugging Face `config.json`.
//!
//! Missing keys take the defaults of `transformers`. A key is refused by name and value if its value changes the
//! computation in a way that is not implemented here; this includes keys of other architectures ([`foreign`]). All
//! remaining keys are ignored.

use serde::{Deserialize, Serialize};

pub(crate) mod foreign;
mod keys;
mod rope;

pub use keys::ConfigError;
pub(crate) use keys::{Keys, unsupported};
pub(crate) use rope::rope;
pub use rope::{RopeConfig, RopeScaling};

pub(crate) use crate::activation::Activation;

/// Longest `config.json`, and longest file of settings beside it.
pub(crate) const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// `config.json` of a GPT-2; fields have their published names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Hugging Face's")]
pub struct Gpt2Config {
    pub vocab_size: usize,
    pub n_positions: usize,
    pub n_embd: usize,
    pub n_layer: usize,
    pub n_head: usize,
    pub n_inner: usize,
    pub activation_function: Activation,
    pub layer_norm_epsilon: f32,
    pub scale_attn_weights: bool,
    pub scale_attn_by_inverse_layer_idx: bool,
    pub tie_word_embeddings: bool,
    pub eos_token_id: Vec<u32>,
}

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
}

/// Sizes beyond every published model, so that sums and products of a few of them stay far from overflow.
pub(crate) fn size(key: &str, value: usize, max: usize) -> Result<(), ConfigError> {
    if value == 0 || value > max { Err(unsupported(key, value, format!("1 to {max}"))) } else { Ok(()) }
}

pub(crate) const MAX_LAYERS: usize = 1 << 12;
pub(crate) const MAX_WIDTH: usize = 1 << 16;
pub(crate) const MAX_VOCABULARY: usize = 1 << 24;
pub(crate) const MAX_POSITIONS: usize = 1 << 28;

impl Gpt2Config {
    pub(crate) fn parse(keys: &Keys) -> Result<Self, ConfigError> {
        let n_embd = keys.size(&["n_embd", "hidden_size"])?.unwrap_or(768);
        Ok(Gpt2Config {
            vocab_size: keys.size(&["vocab_size"])?.unwrap_or(50257),
            n_positions: keys.size(&["n_positions", "max_position_embeddings"])?.unwrap_or(1024),
            n_embd,
            n_layer: keys.size(&["n_layer", "num_hidden_layers"])?.unwrap_or(12),
            n_head: keys.size(&["n_head", "num_attention_heads"])?.unwrap_or(12),
            n_inner: keys.size(&["n_inner"])?.unwrap_or(n_embd.saturating_mul(4)),
            activation_function: keys.activation("activation_function", Activation::GeluTanh)?,
            layer_norm_epsilon: keys.number("layer_norm_epsilon")?.unwrap_or(1e-5) as f32,
            scale_attn_weights: keys.flag("scale_attn_weights")?.unwrap_or(true),
            scale_attn_by_inverse_layer_idx: keys.flag("scale_attn_by_inverse_layer_idx")?.unwrap_or(false),
            tie_word_embeddings: keys.flag("tie_word_embeddings")?.unwrap_or(true),
            eos_token_id: keys.ids("eos_token_id")?.unwrap_or(vec![50256]),
        })
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        size("vocab_size", self.vocab_size, MAX_VOCABULARY)?;
        size("n_positions", self.n_positions, MAX_POSITIONS)?;
        size("n_embd", self.n_embd, MAX_WIDTH)?;
        size("n_layer", self.n_layer, MAX_LAYERS)?;
        size("n_inner", self.n_inner, MAX_WIDTH)?;
        size("n_head", self.n_head, self.n_embd)?;
        if !self.n_embd.is_multiple_of(self.n_head) {
            return Err(unsupported("n_head", self.n_head, format!("must divide n_embd = {}", self.n_embd)));
        }
        epsilon("layer_norm_epsilon", self.layer_norm_epsilon)
    }
}

impl LlamaConfig {
    pub(crate) fn parse(keys: &Keys) -> Result<Self, ConfigError> {
        let hidden_size = keys.size(&["hidden_size"])?.unwrap_or(4096);
        let num_attention_heads = keys.size(&["num_attention_heads"])?.unwrap_or(32);
        let max_position_embeddings = keys.size(&["max_position_embeddings"])?.unwrap_or(2048);
        let (rope_theta, rope_scaling) = rope(keys, max_position_embeddings)?;
        Ok(LlamaConfig {
            vocab_size: keys.size(&["vocab_size"])?.unwrap_or(32000),
            max_position_embeddings,
            hidden_size,
            intermediate_size: keys.size(&["intermediate_size"])?.unwrap_or(11008),
            num_hidden_layers: keys.size(&["num_hidden_layers"])?.unwrap_or(32),
            num_attention_heads,
            num_key_value_heads: keys.size(&["num_key_value_heads"])?.unwrap_or(num_attention_heads),
            head_dim: keys
                .size(&["head_dim"])?
                .unwrap_or_else(|| hidden_size.checked_div(num_attention_heads).unwrap_or(0)),
            hidden_act: keys.activation("hidden_act", Activation::Silu)?,
            rms_norm_eps: keys.number("rms_norm_eps")?.unwrap_or(1e-6) as f32,
            rope_theta,
            rope_scaling,
            attention_bias: keys.flag("attention_bias")?.unwrap_or(false),
            mlp_bias: keys.flag("mlp_bias")?.unwrap_or(false),
            tie_word_embeddings: keys.flag("tie_word_embeddings")?.unwrap_or(false),
            eos_token_id: keys.ids("eos_token_id")?.unwrap_or(vec![2]),
        })
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        size("vocab_size", self.vocab_size, MAX_VOCABULARY)?;
        size("max_position_embeddings", self.max_position_embeddings, MAX_POSITIONS)?;
        size("hidden_size", self.hidden_size, MAX_WIDTH)?;
        size("intermediate_size", self.intermediate_size, MAX_WIDTH)?;
        size("num_hidden_layers", self.num_hidden_layers, MAX_LAYERS)?;
        size("num_attention_heads", self.num_attention_heads, MAX_WIDTH)?;
        size("num_key_value_heads", self.num_key_value_heads, self.num_attention_heads)?;
        size("head_dim", self.head_dim, MAX_WIDTH / self.num_attention_heads)?;
        if !self.num_attention_heads.is_multiple_of(self.num_key_value_heads) {
            let why = format!("must divide num_attention_heads = {}", self.num_attention_heads);
            return Err(unsupported("num_key_value_heads", self.num_key_value_heads, why));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(unsupported("head_dim", self.head_dim, "rotary embeddings need an even one"));
        }
        positive("rope_theta", self.rope_theta)?;
        self.rope_scaling.check(self.head_dim)?;
        epsilon("rms_norm_eps", self.rms_norm_eps)
    }
}

pub(crate) fn positive(key: &str, value: f64) -> Result<(), ConfigError> {
    if value.is_finite() && value > 0.0 { Ok(()) } else { Err(unsupported(key, value, "a positive number")) }
}

pub(crate) fn epsilon(key: &str, value: f32) -> Result<(), ConfigError> {
    if (0.0..1.0).contains(&value) { Ok(()) } else { Err(unsupported(key, value, "0 to 1")) }
}

impl Keys<'_> {
    pub(crate) fn activation(&self, key: &str, default: Activation) -> Result<Activation, ConfigError> {
        let Some(name) = self.text(key)? else { return Ok(default) };
        Activation::published(name).ok_or_else(|| unsupported(key, name, Activation::known().join(", ")))
    }
}
