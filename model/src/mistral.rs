//! Mistral: LLaMA with a window in every layer, or none.
//!
//! Jiang et al., arXiv 2310.06825; weights by the names of `MistralForCausalLM` in [`modeling_mistral.py`]. The
//! program is that of [`gated`](crate::gated).
//!
//! [`modeling_mistral.py`]: https://github.com/huggingface/transformers/tree/main/src/transformers/models/mistral

use serde::{Deserialize, Serialize};

use crate::TensorSpec;
use crate::config::{Activation, ConfigError, Keys, RopeConfig};
use crate::decoder::{Decoder, Defaults, window};
use crate::family::{Buffer, Dimensions, Family};
use crate::gated::{GATE_UP, Gated, GatedConfig, QKV, Style, layout};
use crate::rope::{self, Rope};

/// A Mistral.
pub type Mistral<W> = Gated<W, MistralConfig>;

/// `config.json` of a Mistral; fields have their published names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Hugging Face's")]
pub struct MistralConfig {
    #[serde(flatten)]
    pub decoder: Decoder,
    #[serde(flatten)]
    pub rope: RopeConfig,
    pub sliding_window: Option<usize>,
}

impl Family for MistralConfig {
    const CLASSES: &'static [&'static str] = &["MistralForCausalLM", "MistralModel"];
    const READS: &'static [&'static str] = &["sliding_window"];

    fn parse(keys: &Keys) -> Result<Self, ConfigError> {
        let decoder = Decoder::read(
            keys,
            &Defaults {
                vocab_size: 32000,
                max_position_embeddings: 131072,
                hidden_size: 4096,
                intermediate_size: 14336,
                num_hidden_layers: 32,
                num_attention_heads: 32,
                num_key_value_heads: Some(8),
                head_dim: None,
                activation: ("hidden_act", Activation::Silu),
                eps: ("rms_norm_eps", 1e-6),
                tie_word_embeddings: false,
                eos: &[2],
            },
        )?;
        let rope = RopeConfig::read(keys, decoder.max_position_embeddings, None, (10000.0, 1.0))?;
        Ok(MistralConfig { decoder, rope, sliding_window: window(keys, Some(4096))? })
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.decoder.check()?;
        self.rope.check(self.decoder.head_dim)
    }

    fn dimensions(&self) -> Dimensions<'_> {
        self.decoder.dimensions(self.rope.rope_scaling.positions(self.decoder.max_position_embeddings))
    }

    // ANCHOR: windows
    fn windows(&self) -> Vec<Option<usize>> {
        vec![self.sliding_window; self.decoder.num_hidden_layers]
    }
    // ANCHOR_END: windows

    fn tensors(&self) -> Vec<TensorSpec> {
        layout(&self.decoder, &self.style())
    }

    fn buffer(&self, name: &str) -> Option<Buffer> {
        rope::buffer_of(name, &self.decoder, &self.rope)
    }
}

impl GatedConfig for MistralConfig {
    fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    // ANCHOR: style
    fn style(&self) -> Style {
        Style {
            qkv: QKV,
            gate_up: GATE_UP,
            qkv_bias: false,
            o_bias: false,
            mlp_bias: false,
            qk_norm: false,
            rope: Rope::of_config(&self.rope, self.decoder.head_dim),
            turns: vec![true; self.decoder.num_hidden_layers],
        }
    }
    // ANCHOR_END: style
}
