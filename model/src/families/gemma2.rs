//! Gemma 2: norms before and after attention and MLP, windows in every other layer, scores and logits under soft
//! caps.
//!
//! Gemma team, arXiv 2408.00118; weights by the names of `Gemma2ForCausalLM` in [`modeling_gemma2.py`]. The client
//! applies the cap of logits to the logits that it learns.
//!
//! [`modeling_gemma2.py`]: https://github.com/huggingface/transformers/tree/main/src/transformers/models/gemma2

use serde::{Deserialize, Serialize};
use waggle_engine::SOFT_CAPS as CAPS;

use super::Family;
use crate::config::{Activation, Common, ConfigError, Defaults, Keys, Windows, positive, unsupported};
use crate::style::{Names, Norm, Norms, Role, Style};

/// `config.json` of a Gemma 2; fields have their published names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Hugging Face's")]
pub struct Gemma2Config {
    #[serde(flatten)]
    pub common: Common,
    #[serde(flatten)]
    pub gemma: Gemma,
}

/// Keys of every Gemma; fields have their published names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Hugging Face's")]
pub struct Gemma {
    pub attention_bias: bool,
    pub query_pre_attn_scalar: f32,
    #[serde(flatten)]
    pub windows: Windows,
    pub attn_logit_softcapping: Option<f32>,
    pub final_logit_softcapping: Option<f32>,
}

/// Published names of Gemma 2, and of Gemma 3.
pub(super) const NAMES: Names = Names {
    norms: &[
        (Role::BeforeAttention, "input_layernorm"),
        (Role::AfterAttention, "post_attention_layernorm"),
        (Role::BeforeMlp, "pre_feedforward_layernorm"),
        (Role::AfterMlp, "post_feedforward_layernorm"),
    ],
    ..Names::LLAMA
};

/// Values that `transformers` takes for missing keys.
pub(super) const DEFAULTS: Defaults = Defaults {
    vocab_size: 256000,
    max_position_embeddings: 8192,
    hidden_size: 2304,
    intermediate_size: 9216,
    num_hidden_layers: 26,
    num_attention_heads: 8,
    num_key_value_heads: Some(4),
    head_dim: Some(256),
    activation: ("hidden_activation", Activation::GeluTanh),
    tie_word_embeddings: true,
    eos: &[1],
    ..Defaults::LLAMA
};

impl Gemma {
    /// Reads the keys of a model with `layers` layers. The layers with a window are those that `layer_types` names,
    /// or without that key those whose index `windowed` accepts. `scores` and `logits` are the caps for missing keys.
    pub(super) fn read(
        keys: &Keys,
        layers: usize,
        windowed: impl Fn(usize) -> bool,
        [scores, logits]: [Option<f32>; 2],
    ) -> Result<Self, ConfigError> {
        let cap = |key: &str, default| match keys.0.get(key) {
            None => Ok(default),
            Some(_) => Ok(keys.number(key)?.map(|cap| cap as f32)),
        };
        Ok(Gemma {
            attention_bias: keys.flag("attention_bias")?.unwrap_or(false),
            query_pre_attn_scalar: keys.number("query_pre_attn_scalar")?.unwrap_or(256.0) as f32,
            windows: Windows::read(keys, layers, Some(4096), windowed)?,
            attn_logit_softcapping: cap("attn_logit_softcapping", scores)?,
            final_logit_softcapping: cap("final_logit_softcapping", logits)?,
        })
    }

    /// Refuses caps that the protocol does not support, caps that would make no logits, and models without a window.
    /// The last are refused because other settings of a layer depend on whether it has a window.
    pub(super) fn check(&self, layers: usize) -> Result<(), ConfigError> {
        if self.windows.sliding_window.is_none() {
            return Err(unsupported("sliding_window", "null", "at least 1"));
        }
        self.windows.check(layers)?;
        positive("query_pre_attn_scalar", f64::from(self.query_pre_attn_scalar))?;
        let [least, most] = CAPS;
        if let Some(cap) = self.attn_logit_softcapping.filter(|cap| !(least..=most).contains(cap)) {
            return Err(unsupported("attn_logit_softcapping", cap, format!("{least} to {most}")));
        }
        self.final_logit_softcapping.map_or(Ok(()), |cap| positive("final_logit_softcapping", f64::from(cap)))
    }

    /// The style of a Gemma with these keys. The published gain of a norm is its gain minus 1, and embeddings are
    /// multiplied by sqrt(hidden).
    pub(super) fn style(&self, common: &Common) -> Style {
        let llama = Style::llama(common);
        Style {
            names: NAMES,
            norms: Norms::Both,
            norm: Norm::RmsLessOne,
            scales: vec![self.query_pre_attn_scalar.sqrt().recip(); common.num_hidden_layers],
            windows: self.windows.each(),
            score_cap: self.attn_logit_softcapping,
            logit_cap: self.final_logit_softcapping,
            qkv_bias: self.attention_bias,
            output_bias: self.attention_bias,
            embedding_scale: Some((llama.hidden as f32).sqrt()),
            ..llama
        }
    }
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

    fn parse(keys: &Keys) -> Result<Self, ConfigError> {
        let common = Common::read(keys, &DEFAULTS)?;
        let windowed = |layer: usize| layer.is_multiple_of(2);
        let gemma = Gemma::read(keys, common.num_hidden_layers, windowed, [Some(50.0), Some(30.0)])?;
        Ok(Gemma2Config { common, gemma })
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.common.check()?;
        self.gemma.check(self.common.num_hidden_layers)
    }

    fn style(&self) -> Style {
        self.gemma.style(&self.common)
    }
}
