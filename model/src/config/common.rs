//! Keys that most families publish under LLaMA's names.

use serde::{Deserialize, Serialize};
use waggle_mpcache::HeadShape;

use super::{
    Activation, ConfigError, Keys, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, MAX_WIDTH, Quantization, RopeConfig,
    RopeDefaults, epsilon, size, unsupported,
};

/// The keys that the configurations of most families have in common. Fields have the published names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Hugging Face's")]
pub struct Common {
    pub vocab_size: usize,
    pub max_position_embeddings: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    pub head_dim: usize,
    pub hidden_act: Activation,
    /// `rms_norm_eps` or `layer_norm_eps`.
    pub norm_eps: f32,
    pub tie_word_embeddings: bool,
    pub eos_token_id: Vec<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantization_config: Option<Quantization>,
    #[serde(flatten)]
    pub rope: RopeConfig,
}

/// Values that `transformers` takes for missing keys.
#[derive(Clone, Copy)]
pub(crate) struct Defaults {
    pub(crate) vocab_size: usize,
    pub(crate) max_position_embeddings: usize,
    pub(crate) hidden_size: usize,
    pub(crate) intermediate_size: usize,
    pub(crate) num_hidden_layers: usize,
    pub(crate) num_attention_heads: usize,
    /// The number of key/value heads if the key is missing, but not if it is null. `None` stands for the number of
    /// heads.
    pub(crate) num_key_value_heads: Option<usize>,
    /// The length of a head. `None` stands for the width divided by the number of heads.
    pub(crate) head_dim: Option<usize>,
    pub(crate) activation: (&'static str, Activation),
    pub(crate) eps: (&'static str, f32),
    pub(crate) tie_word_embeddings: bool,
    pub(crate) eos: &'static [u32],
    /// Base of the rotary frequencies.
    pub(crate) rope_theta: f64,
    /// The share of a head's coordinates that turn; `None` if all of them turn.
    pub(crate) partial_rotary_factor: Option<f64>,
    /// The length of the context before LongRoPE stretches it; `None` for families without LongRoPE.
    pub(crate) original: Option<usize>,
}

impl Defaults {
    /// LLaMA's defaults.
    pub(crate) const LLAMA: Defaults = Defaults {
        vocab_size: 32000,
        max_position_embeddings: 2048,
        hidden_size: 4096,
        intermediate_size: 11008,
        num_hidden_layers: 32,
        num_attention_heads: 32,
        num_key_value_heads: None,
        head_dim: None,
        activation: ("hidden_act", Activation::Silu),
        eps: ("rms_norm_eps", 1e-6),
        tie_word_embeddings: false,
        eos: &[2],
        rope_theta: 10000.0,
        partial_rotary_factor: None,
        original: None,
    };

    /// The defaults of the rotary embedding.
    pub(crate) fn rope(&self, keys: &Keys) -> Result<RopeDefaults, ConfigError> {
        let kinds: &[&str] = &["default", "linear", "llama3", "longrope"];
        Ok(RopeDefaults {
            kinds: if self.original.is_some() { kinds } else { &kinds[..3] },
            rope_theta: Some(self.rope_theta),
            partial_rotary_factor: self.partial_rotary_factor,
            max_position_embeddings: keys.size(&["max_position_embeddings"])?.unwrap_or(self.max_position_embeddings),
            original_max_position_embeddings: self.original,
        })
    }
}

impl Common {
    /// Reads the keys, with `defaults` for missing ones.
    pub(crate) fn read(keys: &Keys, defaults: &Defaults) -> Result<Self, ConfigError> {
        Common::with_rope(keys, defaults, RopeConfig::read(keys, &defaults.rope(keys)?)?)
    }

    /// [`Common::read`] for a model whose rotary embedding `rope` has been read already.
    pub(crate) fn with_rope(keys: &Keys, defaults: &Defaults, rope: RopeConfig) -> Result<Self, ConfigError> {
        let or = |key: &str, default| Ok(keys.size(&[key])?.unwrap_or(default));
        let hidden_size = or("hidden_size", defaults.hidden_size)?;
        let heads = or("num_attention_heads", defaults.num_attention_heads)?;
        let kv_default = match keys.0.get("num_key_value_heads") {
            None => defaults.num_key_value_heads.unwrap_or(heads),
            Some(_) => heads,
        };
        let head_dim = match keys.0.get("head_dim") {
            None => defaults.head_dim,
            Some(_) => keys.size(&["head_dim"])?,
        };
        let (activation, eps) = (defaults.activation, defaults.eps);
        Ok(Common {
            vocab_size: or("vocab_size", defaults.vocab_size)?,
            max_position_embeddings: or("max_position_embeddings", defaults.max_position_embeddings)?,
            hidden_size,
            intermediate_size: or("intermediate_size", defaults.intermediate_size)?,
            num_hidden_layers: or("num_hidden_layers", defaults.num_hidden_layers)?,
            num_attention_heads: heads,
            num_key_value_heads: or("num_key_value_heads", kv_default)?,
            head_dim: head_dim.unwrap_or_else(|| hidden_size.checked_div(heads).unwrap_or(0)),
            hidden_act: keys.activation(activation.0, activation.1)?,
            norm_eps: keys.number(eps.0)?.map_or(eps.1, |eps| eps as f32),
            tie_word_embeddings: keys.flag("tie_word_embeddings")?.unwrap_or(defaults.tie_word_embeddings),
            eos_token_id: keys.ids("eos_token_id")?.unwrap_or_else(|| defaults.eos.to_vec()),
            quantization_config: keys.quantization(),
            rope,
        })
    }

    /// Refuses numbers that are not safe to multiply, or that do not describe a model.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        self.check_sizes()?;
        epsilon("norm_eps", self.norm_eps)?;
        self.rope.check(self.head_dim)
    }

    /// Refuses sizes that are not safe to multiply, or that do not describe a model.
    pub(crate) fn check_sizes(&self) -> Result<(), ConfigError> {
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
        Ok(())
    }

    pub(crate) fn heads(&self) -> HeadShape {
        HeadShape { heads: self.num_attention_heads, kv_heads: self.num_key_value_heads, head_dim: self.head_dim }
    }
}
