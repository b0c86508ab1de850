//! Gemma 3: five layers with a window to one without, each kind with a rotary base of its own, and norms of queries
//! and keys.
//!
//! Gemma team, arXiv 2503.19786; weights by the names of `Gemma3ForCausalLM` in [`modeling_gemma3.py`]: the text
//! model alone. The program is that of [`gemma`](crate::gemma).
//!
//! [`modeling_gemma3.py`]: https://github.com/huggingface/transformers/tree/main/src/transformers/models/gemma3

use serde::{Deserialize, Serialize};

use crate::TensorSpec;
use crate::config::{Activation, ConfigError, Keys, RopeConfig, RopeScaling, positive, unsupported};
use crate::decoder::{Decoder, Defaults, check_length, window, window_layers};
use crate::family::{Buffer, Dimensions, Family};
use crate::gemma::{Gemma, GemmaConfig, layout};
use crate::gemma2::{cap, check_caps, check_window};
use crate::rope;

/// A Gemma 3.
pub type Gemma3<W> = Gemma<W, Gemma3Config>;

/// `config.json` of a Gemma 3; fields have their published names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Hugging Face's")]
pub struct Gemma3Config {
    #[serde(flatten)]
    pub decoder: Decoder,
    /// That of layers that see all tokens.
    #[serde(flatten)]
    pub rope: RopeConfig,
    /// The base of layers with a window, whose frequencies are not scaled.
    pub rope_local_base_freq: f64,
    pub attention_bias: bool,
    pub query_pre_attn_scalar: f32,
    pub sliding_window: Option<usize>,
    /// Which layers have the window: `layer_types`, or all but every `sliding_window_pattern`th.
    pub window_layers: Vec<bool>,
    pub attn_logit_softcapping: Option<f32>,
    pub final_logit_softcapping: Option<f32>,
}

impl Family for Gemma3Config {
    const CLASSES: &'static [&'static str] = &["Gemma3ForCausalLM", "Gemma3TextModel"];
    const READS: &'static [&'static str] = &[
        "sliding_window",
        "sliding_window_pattern",
        "layer_types",
        "rope_local_base_freq",
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "query_pre_attn_scalar",
    ];
    const UNIT_GAIN: f32 = 0.0;

    fn parse(keys: &Keys) -> Result<Self, ConfigError> {
        let decoder = Decoder::read(
            keys,
            &Defaults {
                vocab_size: 262208,
                max_position_embeddings: 131072,
                hidden_size: 2304,
                intermediate_size: 9216,
                num_hidden_layers: 26,
                num_attention_heads: 8,
                num_key_value_heads: Some(4),
                head_dim: Some(256),
                activation: ("hidden_activation", Activation::GeluTanh),
                eps: ("rms_norm_eps", 1e-6),
                tie_word_embeddings: true,
                eos: &[1],
            },
        )?;
        let rope = RopeConfig::read(keys, decoder.max_position_embeddings, None, (1_000_000.0, 1.0))?;
        let pattern = keys.size(&["sliding_window_pattern", "_sliding_window_pattern"])?.unwrap_or(6);
        if pattern == 0 {
            return Err(unsupported("sliding_window_pattern", pattern, "at least 1"));
        }
        let windowed = |layer: usize| !(layer + 1).is_multiple_of(pattern);
        Ok(Gemma3Config {
            window_layers: window_layers(keys, decoder.num_hidden_layers, windowed)?,
            decoder,
            rope,
            rope_local_base_freq: keys.number("rope_local_base_freq")?.unwrap_or(10000.0),
            attention_bias: keys.flag("attention_bias")?.unwrap_or(false),
            query_pre_attn_scalar: keys.number("query_pre_attn_scalar")?.unwrap_or(256.0) as f32,
            sliding_window: window(keys, Some(4096))?,
            attn_logit_softcapping: cap(keys, "attn_logit_softcapping", None)?,
            final_logit_softcapping: cap(keys, "final_logit_softcapping", None)?,
        })
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.decoder.check()?;
        self.rope.check(self.decoder.head_dim)?;
        positive("rope_local_base_freq", self.rope_local_base_freq)?;
        check_window(self.sliding_window)?;
        check_length("layer_types", self.window_layers.len(), self.decoder.num_hidden_layers)?;
        positive("query_pre_attn_scalar", f64::from(self.query_pre_attn_scalar))?;
        check_caps(self.attn_logit_softcapping, self.final_logit_softcapping)
    }

    /// Of all published configurations `max_position_embeddings` is the length after scaling.
    fn dimensions(&self) -> Dimensions<'_> {
        self.decoder.dimensions(self.decoder.max_position_embeddings)
    }

    fn windows(&self) -> Vec<Option<usize>> {
        self.window_layers.iter().map(|windowed| self.sliding_window.filter(|_| *windowed)).collect()
    }

    fn score_cap(&self) -> Option<f32> {
        self.attn_logit_softcapping
    }

    fn logit_cap(&self) -> Option<f32> {
        self.final_logit_softcapping
    }

    fn tensors(&self) -> Vec<TensorSpec> {
        layout(self)
    }

    fn buffer(&self, name: &str) -> Option<Buffer> {
        rope::buffer_of(name, &self.decoder, &self.rope)
    }
}

impl GemmaConfig for Gemma3Config {
    fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    fn query_pre_attn_scalar(&self) -> f32 {
        self.query_pre_attn_scalar
    }

    fn attention_bias(&self) -> bool {
        self.attention_bias
    }

    fn qk_norm(&self) -> bool {
        true
    }

    fn ropes(&self) -> [RopeConfig; 2] {
        let local = RopeConfig {
            rope_theta: self.rope_local_base_freq,
            rope_scaling: RopeScaling::None,
            partial_rotary_factor: self.rope.partial_rotary_factor,
        };
        [self.rope.clone(), local]
    }
}
