//! GPT-2: learned positions, pre-norm blocks, one matrix for query, key and value.
//!
//! Radford et al., "Language models are unsupervised multitask learners", 2019; weights by the names of
//! `GPT2LMHeadModel` in [`modeling_gpt2.py`].
//!
//! [`modeling_gpt2.py`]: https://github.com/huggingface/transformers/tree/main/src/transformers/models/gpt2

use serde::{Deserialize, Serialize};
use waggle_engine::Order;
use waggle_mpcache::HeadShape;

use super::Family;
use crate::config::{
    Activation, ConfigError, Keys, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, MAX_WIDTH, Quantization, epsilon, size,
    unsupported,
};
use crate::style::{Names, Role, Sizes, Stored, Style};

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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantization_config: Option<Quantization>,
}

const NAMES: Names = Names {
    root: "transformer.",
    embedding: "transformer.wte",
    positions: "transformer.wpe",
    layers: "transformer.h",
    layer: &[
        (Role::BeforeAttention, "ln_1"),
        (Role::Qkv, "attn.c_attn"),
        (Role::Output, "attn.c_proj"),
        (Role::BeforeMlp, "ln_2"),
        (Role::Up, "mlp.c_fc"),
        (Role::Down, "mlp.c_proj"),
    ],
    norms: &[],
    order: Order::Rows,
    qkv: "attn.c_attn",
    up: "mlp.c_fc",
    first: "",
    segments: "",
    norm: "transformer.ln_f",
    pooler: "",
    head: "lm_head",
    buffers: &[("h.{}.attn.bias", Stored::CausalMask), ("h.{}.attn.masked_bias", Stored::MaskedBias)],
};

impl Family for Gpt2Config {
    const CLASSES: &'static [&'static str] = &["GPT2LMHeadModel", "GPT2Model"];

    fn parse(keys: &Keys) -> Result<Self, ConfigError> {
        // The authors' program reads the common name of a size last, so this name counts.
        let n_embd = keys.size(&["hidden_size", "n_embd"])?.unwrap_or(768);
        Ok(Gpt2Config {
            vocab_size: keys.size(&["vocab_size"])?.unwrap_or(50257),
            n_positions: keys.size(&["max_position_embeddings", "n_positions"])?.unwrap_or(1024),
            n_embd,
            n_layer: keys.size(&["num_hidden_layers", "n_layer"])?.unwrap_or(12),
            n_head: keys.size(&["num_attention_heads", "n_head"])?.unwrap_or(12),
            n_inner: keys.size(&["n_inner"])?.unwrap_or(n_embd.saturating_mul(4)),
            activation_function: keys.activation("activation_function", Activation::GeluTanh)?,
            layer_norm_epsilon: keys.number("layer_norm_epsilon")?.unwrap_or(1e-5) as f32,
            scale_attn_weights: keys.flag("scale_attn_weights")?.unwrap_or(true),
            scale_attn_by_inverse_layer_idx: keys.flag("scale_attn_by_inverse_layer_idx")?.unwrap_or(false),
            tie_word_embeddings: keys.flag("tie_word_embeddings")?.unwrap_or(true),
            quantization_config: keys.quantization(),
            eos_token_id: keys.ids("eos_token_id")?.unwrap_or(vec![50256]),
        })
    }

    fn check(&self) -> Result<(), ConfigError> {
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

    fn style(&self) -> Style {
        let head_dim = self.n_embd / self.n_head;
        let root = if self.scale_attn_weights { 1.0 / (head_dim as f32).sqrt() } else { 1.0 };
        let by_layer = |i: usize| if self.scale_attn_by_inverse_layer_idx { root / (i + 1) as f32 } else { root };
        let sizes = Sizes {
            heads: HeadShape { heads: self.n_head, kv_heads: self.n_head, head_dim },
            layers: self.n_layer,
            hidden: self.n_embd,
            intermediate: self.n_inner,
            vocabulary: self.vocab_size,
            max_positions: self.n_positions,
            eps: self.layer_norm_epsilon,
            activation: self.activation_function,
        };
        Style {
            scales: (0..self.n_layer).map(by_layer).collect(),
            tied: self.tie_word_embeddings,
            quantized: self.quantization_config.is_some(),
            eos: self.eos_token_id.clone(),
            ..Style::new(NAMES, sizes)
        }
    }
}
