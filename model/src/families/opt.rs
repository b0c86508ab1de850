//! OPT: learned positions that begin at 2, pre-norm blocks, ReLU.
//!
//! Zhang et al., arXiv 2205.01068; weights by the names of `OPTForCausalLM` in [`modeling_opt.py`].
//!
//! [`modeling_opt.py`]: https://github.com/huggingface/transformers/tree/main/src/transformers/models/opt

use serde::{Deserialize, Serialize};

use super::Family;
use super::gpt2::Gpt2Config;
use crate::config::{
    Activation, ConfigError, Keys, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, MAX_WIDTH, Quantization, size,
    unsupported,
};
use crate::style::{Names, Positions, Role, Style};

/// The row that the first position has in the table of positions. The rows before it are not used.
const OFFSET: usize = 2;

/// The number under the root of the norms: PyTorch's default, which no configuration changes.
const EPS: f32 = 1e-5;

/// `config.json` of an OPT; fields have their published names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Hugging Face's")]
pub struct OptConfig {
    pub vocab_size: usize,
    pub max_position_embeddings: usize,
    pub hidden_size: usize,
    pub ffn_dim: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub activation_function: Activation,
    pub tie_word_embeddings: bool,
    pub eos_token_id: Vec<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantization_config: Option<Quantization>,
}

const NAMES: Names = Names {
    root: "",
    embedding: "model.decoder.embed_tokens",
    positions: "model.decoder.embed_positions",
    layers: "model.decoder.layers",
    layer: &[
        (Role::Key, "self_attn.k_proj"),
        (Role::Value, "self_attn.v_proj"),
        (Role::Query, "self_attn.q_proj"),
        (Role::Output, "self_attn.out_proj"),
        (Role::BeforeAttention, "self_attn_layer_norm"),
        (Role::Up, "fc1"),
        (Role::Down, "fc2"),
        (Role::BeforeMlp, "final_layer_norm"),
    ],
    norms: &[],
    up: "fc1",
    norm: "model.decoder.final_layer_norm",
    buffers: &[],
    ..Names::LLAMA
};

impl Family for OptConfig {
    const CLASSES: &'static [&'static str] = &["OPTForCausalLM", "OPTModel"];

    fn parse(keys: &Keys) -> Result<Self, ConfigError> {
        let or = |key: &str, default| Ok(keys.size(&[key])?.unwrap_or(default));
        // OPT-350m normalises after its blocks. The other variants were never published.
        for (key, only) in [
            ("do_layer_norm_before", true),
            ("enable_bias", true),
            ("layer_norm_elementwise_affine", true),
            ("_remove_final_layer_norm", false),
        ] {
            if let Some(value) = keys.flag(key)?.filter(|value| *value != only) {
                return Err(unsupported(key, value, format!("only {only}")));
            }
        }
        let hidden_size = or("hidden_size", 768)?;
        if let Some(width) = keys.size(&["word_embed_proj_dim"])?.filter(|width| *width != hidden_size) {
            return Err(unsupported("word_embed_proj_dim", width, format!("only hidden_size = {hidden_size}")));
        }
        Ok(OptConfig {
            vocab_size: or("vocab_size", 50272)?,
            max_position_embeddings: or("max_position_embeddings", 2048)?,
            hidden_size,
            ffn_dim: or("ffn_dim", 3072)?,
            num_hidden_layers: or("num_hidden_layers", 12)?,
            num_attention_heads: or("num_attention_heads", 12)?,
            activation_function: keys.activation("activation_function", Activation::Relu)?,
            tie_word_embeddings: keys.flag("tie_word_embeddings")?.unwrap_or(true),
            quantization_config: keys.quantization(),
            eos_token_id: keys.ids("eos_token_id")?.unwrap_or(vec![2]),
        })
    }

    fn check(&self) -> Result<(), ConfigError> {
        size("vocab_size", self.vocab_size, MAX_VOCABULARY)?;
        size("max_position_embeddings", self.max_position_embeddings, MAX_POSITIONS)?;
        size("hidden_size", self.hidden_size, MAX_WIDTH)?;
        size("ffn_dim", self.ffn_dim, MAX_WIDTH)?;
        size("num_hidden_layers", self.num_hidden_layers, MAX_LAYERS)?;
        size("num_attention_heads", self.num_attention_heads, self.hidden_size)?;
        if !self.hidden_size.is_multiple_of(self.num_attention_heads) {
            let why = format!("must divide hidden_size = {}", self.hidden_size);
            return Err(unsupported("num_attention_heads", self.num_attention_heads, why));
        }
        Ok(())
    }

    fn style(&self) -> Style {
        let gpt2 = Gpt2Config {
            vocab_size: self.vocab_size,
            n_positions: self.max_position_embeddings,
            n_embd: self.hidden_size,
            n_layer: self.num_hidden_layers,
            n_head: self.num_attention_heads,
            n_inner: self.ffn_dim,
            activation_function: self.activation_function,
            layer_norm_epsilon: EPS,
            scale_attn_weights: true,
            scale_attn_by_inverse_layer_idx: false,
            tie_word_embeddings: self.tie_word_embeddings,
            quantization_config: self.quantization_config,
            eos_token_id: self.eos_token_id.clone(),
        };
        Style { names: NAMES, positions: Positions::Learned { offset: OFFSET }, ..gpt2.style() }
    }
}
