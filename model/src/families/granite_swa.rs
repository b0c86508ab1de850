//! Granite with windows, a rotary base for each layer, and a sink in every head.
//!
//! IBM, 2026; weights by the names of `GraniteSWAForCausalLM` in [`modeling_granite_swa.py`].
//!
//! [`modeling_granite_swa.py`]:
//! https://github.com/huggingface/transformers/tree/main/src/transformers/models/granite_swa

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Family;
use super::granite::GraniteConfig;
use crate::config::{ConfigError, Defaults, Keys, MAX_LAYERS, RopeConfig, Windows, check_length, unsupported};
use crate::style::{Names, Positions, Role, Style};

/// `config.json` of a Granite with windows; fields have their published names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Hugging Face's")]
pub struct GraniteSwaConfig {
    #[serde(flatten)]
    pub granite: GraniteConfig,
    #[serde(flatten)]
    pub windows: Windows,
    /// The rotary base of every layer; 0 for a layer without rotary embedding.
    pub layer_rope_theta: Vec<f64>,
}

const NAMES: Names = Names {
    norms: &[
        (Role::BeforeAttention, "input_layernorm"),
        (Role::BeforeMlp, "post_attention_layernorm"),
        (Role::Sinks, "self_attn.sinks"),
    ],
    ..Names::LLAMA
};

impl Family for GraniteSwaConfig {
    const CLASSES: &'static [&'static str] = &["GraniteSWAForCausalLM", "GraniteSWAModel"];
    const READS: &'static [&'static str] = &[
        "embedding_multiplier",
        "residual_multiplier",
        "attention_multiplier",
        "logits_scaling",
        "sliding_window",
        "layer_types",
        "layer_rope_theta",
    ];

    fn parse(keys: &Keys) -> Result<Self, ConfigError> {
        let defaults = Defaults {
            vocab_size: 100352,
            max_position_embeddings: 8192,
            hidden_size: 2560,
            intermediate_size: 8192,
            num_hidden_layers: 24,
            num_attention_heads: 20,
            num_key_value_heads: Some(4),
            eps: ("rms_norm_eps", 1e-5),
            tie_word_embeddings: true,
            eos: &[100257],
            ..Defaults::LLAMA
        };
        let granite = GraniteConfig::read(keys, &defaults)?;
        let (layers, global) = (granite.common.num_hidden_layers, granite.common.rope.rope_theta);
        let windows = Windows::read(keys, layers, Some(128), |layer| !layer.is_multiple_of(4))?;
        let bases = |value: &Value| value.as_array()?.iter().take(layers).map(Value::as_f64).collect();
        let layer_rope_theta = keys.read("layer_rope_theta", "a list of numbers", bases)?;
        let layer_rope_theta = layer_rope_theta.unwrap_or_else(|| vec![global; layers.min(MAX_LAYERS)]);
        Ok(GraniteSwaConfig { granite, windows, layer_rope_theta })
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.granite.check()?;
        let layers = self.granite.common.num_hidden_layers;
        self.windows.check(layers)?;
        check_length("layer_rope_theta", self.layer_rope_theta.len(), layers)?;
        match self.layer_rope_theta.iter().find(|theta| !theta.is_finite() || **theta < 0.0) {
            Some(theta) => Err(unsupported("layer_rope_theta", theta, "positive numbers, and 0 for no positions")),
            None => Ok(()),
        }
    }

    fn style(&self) -> Style {
        let mut bases: Vec<f64> = self.layer_rope_theta.iter().copied().filter(|theta| *theta > 0.0).collect();
        bases.sort_by(f64::total_cmp);
        bases.dedup();
        let turns = self.layer_rope_theta.iter().map(|theta| bases.iter().position(|base| base == theta));
        let rope = &self.granite.common.rope;
        Style {
            turns: turns.collect(),
            positions: Positions::Rotary(
                bases.iter().map(|&rope_theta| RopeConfig { rope_theta, ..rope.clone() }).collect(),
            ),
            windows: self.windows.each(),
            names: NAMES,
            ..self.granite.style()
        }
    }
}
