//! Phi-3 and Phi-4-mini: LLaMA whose matrices are published in one piece, with LongRoPE.
//!
//! Abdin et al., arXiv 2404.14219; weights by the names of `Phi3ForCausalLM` in [`modeling_phi3.py`]. The
//! program is that of [`gated`](crate::gated).
//!
//! [`modeling_phi3.py`]: https://github.com/huggingface/transformers/tree/main/src/transformers/models/phi3

use serde::{Deserialize, Serialize};

use crate::TensorSpec;
use crate::config::{Activation, ConfigError, Keys, RopeConfig, RopeScaling};
use crate::decoder::{Decoder, Defaults};
use crate::family::{Buffer, Dimensions, Family};
use crate::gated::{Gated, GatedConfig, Style, layout};
use crate::rope::{self, Rope};

/// A Phi-3.
pub type Phi3<W> = Gated<W, Phi3Config>;

/// `config.json` of a Phi-3; fields have their published names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Hugging Face's")]
pub struct Phi3Config {
    #[serde(flatten)]
    pub decoder: Decoder,
    #[serde(flatten)]
    pub rope: RopeConfig,
    pub sliding_window: Option<usize>,
}

impl Family for Phi3Config {
    const CLASSES: &'static [&'static str] = &["Phi3ForCausalLM", "Phi3Model"];
    const READS: &'static [&'static str] = &["sliding_window"];

    fn parse(keys: &Keys) -> Result<Self, ConfigError> {
        let decoder = Decoder::read(
            keys,
            &Defaults {
                vocab_size: 32064,
                max_position_embeddings: 4096,
                hidden_size: 3072,
                intermediate_size: 8192,
                num_hidden_layers: 32,
                num_attention_heads: 32,
                num_key_value_heads: None,
                head_dim: None,
                activation: ("hidden_act", Activation::Silu),
                eps: ("rms_norm_eps", 1e-5),
                tie_word_embeddings: false,
                eos: &[32000],
            },
        )?;
        let context = decoder.max_position_embeddings;
        let original = keys.size(&["original_max_position_embeddings"])?.unwrap_or(4096);
        let rope = RopeConfig::read(keys, context, Some(original), (10000.0, 1.0))?;
        Ok(Phi3Config { decoder, rope, sliding_window: keys.size(&["sliding_window"])? })
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.decoder.check()?;
        self.rope.check(self.decoder.head_dim)
    }

    fn dimensions(&self) -> Dimensions<'_> {
        self.decoder.dimensions(self.rope.rope_scaling.positions(self.decoder.max_position_embeddings))
    }

    fn windows(&self) -> Vec<Option<usize>> {
        vec![self.sliding_window; self.decoder.num_hidden_layers]
    }

    fn short_text(&self) -> Option<usize> {
        match self.rope.rope_scaling {
            RopeScaling::LongRope { original_max_position_embeddings, .. } => Some(original_max_position_embeddings),
            _ => None,
        }
    }

    fn tensors(&self) -> Vec<TensorSpec> {
        layout(&self.decoder, &self.style())
    }

    fn buffer(&self, name: &str) -> Option<Buffer> {
        rope::buffer_of(name, &self.decoder, &self.rope)
    }
}

impl GatedConfig for Phi3Config {
    fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    fn style(&self) -> Style {
        Style {
            qkv: &["self_attn.qkv_proj"],
            gate_up: &["mlp.gate_up_proj"],
            qkv_bias: false,
            o_bias: false,
            mlp_bias: false,
            qk_norm: false,
            rope: Rope::of_config(&self.rope, self.decoder.head_dim),
            turns: vec![true; self.decoder.num_hidden_layers],
        }
    }
}
