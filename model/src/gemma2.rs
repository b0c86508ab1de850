//! Gemma 2: norms before and after, windows in every other layer, scores and logits under soft caps.
//!
//! Gemma team, arXiv 2408.00118; weights by the names of `Gemma2ForCausalLM` in [`modeling_gemma2.py`]. The program
//! is that of [`gemma`](crate::gemma). The cap of logits is applied by the client, to what it learns.
//!
//! [`modeling_gemma2.py`]: https://github.com/huggingface/transformers/tree/main/src/transformers/models/gemma2

use engine::SOFT_CAPS as CAPS;
use serde::{Deserialize, Serialize};

use crate::TensorSpec;
use crate::config::{Activation, ConfigError, Keys, RopeConfig, positive, unsupported};
use crate::decoder::{Decoder, Defaults, check_length, window, window_layers};
use crate::family::{Buffer, Dimensions, Family};
use crate::gemma::{Gemma, GemmaConfig, layout};
use crate::rope;

/// A Gemma 2.
pub type Gemma2<W> = Gemma<W, Gemma2Config>;

/// `config.json` of a Gemma 2; fields have their published names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Hugging Face's")]
pub struct Gemma2Config {
    #[serde(flatten)]
    pub decoder: Decoder,
    #[serde(flatten)]
    pub rope: RopeConfig,
    pub attention_bias: bool,
    pub query_pre_attn_scalar: f32,
    pub sliding_window: Option<usize>,
    /// Which layers have the window: `layer_types`, or the first and every other one after it.
    pub window_layers: Vec<bool>,
    pub attn_logit_softcapping: Option<f32>,
    pub final_logit_softcapping: Option<f32>,
}

impl Family for Gemma2Config {
    const CLASSES: &'static [&'static str] = &["Gemma2ForCausalLM", "Gemma2Model"];
    const READS: &'static [&'static str] = &[
        "sliding_window",
        "layer_types",
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "query_pre_attn_scalar",
    ];
    const UNIT_GAIN: f32 = 0.0;

    fn parse(keys: &Keys) -> Result<Self, ConfigError> {
        let decoder = Decoder::read(
            keys,
            &Defaults {
                vocab_size: 256000,
                max_position_embeddings: 8192,
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
        let rope = RopeConfig::read(keys, decoder.max_position_embeddings, None, (10000.0, 1.0))?;
        Ok(Gemma2Config {
            window_layers: window_layers(keys, decoder.num_hidden_layers, |layer| layer.is_multiple_of(2))?,
            decoder,
            rope,
            attention_bias: keys.flag("attention_bias")?.unwrap_or(false),
            query_pre_attn_scalar: keys.number("query_pre_attn_scalar")?.unwrap_or(256.0) as f32,
            sliding_window: window(keys, Some(4096))?,
            attn_logit_softcapping: cap(keys, "attn_logit_softcapping", Some(50.0))?,
            final_logit_softcapping: cap(keys, "final_logit_softcapping", Some(30.0))?,
        })
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.decoder.check()?;
        self.rope.check(self.decoder.head_dim)?;
        check_window(self.sliding_window)?;
        check_length("layer_types", self.window_layers.len(), self.decoder.num_hidden_layers)?;
        positive("query_pre_attn_scalar", f64::from(self.query_pre_attn_scalar))?;
        check_caps(self.attn_logit_softcapping, self.final_logit_softcapping)
    }

    fn dimensions(&self) -> Dimensions<'_> {
        self.decoder.dimensions(self.rope.rope_scaling.positions(self.decoder.max_position_embeddings))
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

impl GemmaConfig for Gemma2Config {
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
        false
    }

    fn ropes(&self) -> [RopeConfig; 2] {
        [self.rope.clone(), self.rope.clone()]
    }
}

/// A soft cap: `default` without the key, none with null.
pub(crate) fn cap(keys: &Keys, key: &str, default: Option<f32>) -> Result<Option<f32>, ConfigError> {
    match keys.0.get(key) {
        None => Ok(default),
        Some(_) => Ok(keys.number(key)?.map(|cap| cap as f32)),
    }
}

/// Refuses caps that the protocol does not have, and those that make no logits.
pub(crate) fn check_caps(scores: Option<f32>, logits: Option<f32>) -> Result<(), ConfigError> {
    let [least, most] = CAPS;
    if let Some(cap) = scores.filter(|cap| !(least..=most).contains(cap)) {
        return Err(unsupported("attn_logit_softcapping", cap, format!("{least} to {most}")));
    }
    logits.map_or(Ok(()), |cap| positive("final_logit_softcapping", f64::from(cap)))
}

/// Refuses models without a window: which layers have one says more than how far they see.
pub(crate) fn check_window(window: Option<usize>) -> Result<(), ConfigError> {
    window.map_or_else(|| Err(unsupported("sliding_window", "null", "at least 1")), |_| Ok(()))
}
