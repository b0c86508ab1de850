//! Qwen3: LLaMA with an RMS norm of every head of queries and keys, and on request a window in later layers.
//!
//! Yang et al., arXiv 2505.09388; weights by the names of `Qwen3ForCausalLM` in [`modeling_qwen3.py`]. The
//! program is that of [`gated`](crate::gated).
//!
//! [`modeling_qwen3.py`]: https://github.com/huggingface/transformers/tree/main/src/transformers/models/qwen3

use serde::{Deserialize, Serialize};

use crate::TensorSpec;
use crate::config::{Activation, ConfigError, Keys, RopeConfig};
use crate::decoder::{Decoder, Defaults, check_length, window, window_layers};
use crate::family::{Buffer, Dimensions, Family};
use crate::gated::{GATE_UP, Gated, GatedConfig, QKV, Style, layout};
use crate::rope::{self, Rope};

/// A Qwen3.
pub type Qwen3<W> = Gated<W, Qwen3Config>;

/// `config.json` of a Qwen3; fields have their published names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Hugging Face's")]
pub struct Qwen3Config {
    #[serde(flatten)]
    pub decoder: Decoder,
    #[serde(flatten)]
    pub rope: RopeConfig,
    pub sliding_window: Option<usize>,
    /// Which layers have the window: `layer_types`, or those from `max_window_layers` on.
    pub window_layers: Vec<bool>,
    pub attention_bias: bool,
}

impl Family for Qwen3Config {
    const CLASSES: &'static [&'static str] = &["Qwen3ForCausalLM", "Qwen3Model"];
    const READS: &'static [&'static str] = &["sliding_window", "use_sliding_window", "layer_types"];

    fn parse(keys: &Keys) -> Result<Self, ConfigError> {
        let decoder = Decoder::read(
            keys,
            &Defaults {
                vocab_size: 151936,
                max_position_embeddings: 32768,
                hidden_size: 4096,
                intermediate_size: 22016,
                num_hidden_layers: 32,
                num_attention_heads: 32,
                num_key_value_heads: Some(32),
                head_dim: Some(128),
                activation: ("hidden_act", Activation::Silu),
                eps: ("rms_norm_eps", 1e-6),
                tie_word_embeddings: false,
                eos: &[],
            },
        )?;
        let rope = RopeConfig::read(keys, decoder.max_position_embeddings, None, (10000.0, 1.0))?;
        let sliding_window = window(keys, Some(4096))?;
        let windows = keys.flag("use_sliding_window")?.unwrap_or(false) && sliding_window.is_some();
        // The first layers see everything.
        let first = keys.size(&["max_window_layers"])?.unwrap_or(28);
        let window_layers = window_layers(keys, decoder.num_hidden_layers, |layer| windows && layer >= first)?;
        let attention_bias = keys.flag("attention_bias")?.unwrap_or(false);
        Ok(Qwen3Config { decoder, rope, sliding_window, window_layers, attention_bias })
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.decoder.check()?;
        check_length("layer_types", self.window_layers.len(), self.decoder.num_hidden_layers)?;
        self.rope.check(self.decoder.head_dim)
    }

    fn dimensions(&self) -> Dimensions<'_> {
        self.decoder.dimensions(self.rope.rope_scaling.positions(self.decoder.max_position_embeddings))
    }

    fn windows(&self) -> Vec<Option<usize>> {
        self.window_layers.iter().map(|windowed| self.sliding_window.filter(|_| *windowed)).collect()
    }

    fn tensors(&self) -> Vec<TensorSpec> {
        layout(&self.decoder, &self.style())
    }

    fn buffer(&self, name: &str) -> Option<Buffer> {
        rope::buffer_of(name, &self.decoder, &self.rope)
    }
}

impl GatedConfig for Qwen3Config {
    fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    fn style(&self) -> Style {
        Style {
            qkv: QKV,
            gate_up: GATE_UP,
            qkv_bias: self.attention_bias,
            o_bias: self.attention_bias,
            mlp_bias: false,
            qk_norm: true,
            rope: Rope::of_config(&self.rope, self.decoder.head_dim),
            turns: vec![true; self.decoder.num_hidden_layers],
        }
    }
}
