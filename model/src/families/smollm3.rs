//! SmolLM3: LLaMA in which every fourth layer has no rotary positions.
//!
//! Bakouch et al., "SmolLM3: smol, multilingual, long-context reasoner", 2025; weights by the names of
//! `SmolLM3ForCausalLM` in [`modeling_smollm3.py`].
//!
//! [`modeling_smollm3.py`]: https://github.com/huggingface/transformers/tree/main/src/transformers/models/smollm3

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Family;
use crate::config::{
    Common, ConfigError, Defaults, Keys, MAX_LAYERS, Windows, check_length, unsupported, window_layers,
};
use crate::style::Style;

/// `config.json` of a SmolLM3; fields have their published names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Hugging Face's")]
pub struct SmolLm3Config {
    #[serde(flatten)]
    pub common: Common,
    /// For each layer, whether it has rotary positions. The published name says the opposite.
    pub no_rope_layers: Vec<bool>,
    #[serde(flatten)]
    pub windows: Windows,
    pub attention_bias: bool,
    pub mlp_bias: bool,
}

impl Family for SmolLm3Config {
    const CLASSES: &'static [&'static str] = &["SmolLM3ForCausalLM", "SmolLM3Model"];
    const READS: &'static [&'static str] =
        &["sliding_window", "use_sliding_window", "layer_types", "no_rope_layers", "no_rope_layer_interval"];

    fn parse(keys: &Keys) -> Result<Self, ConfigError> {
        let defaults = Defaults {
            vocab_size: 128256,
            max_position_embeddings: 32768,
            hidden_size: 2048,
            num_hidden_layers: 36,
            num_attention_heads: 16,
            num_key_value_heads: Some(4),
            tie_word_embeddings: true,
            eos: &[128001],
            rope_theta: 2_000_000.0,
            ..Defaults::LLAMA
        };
        let common = Common::read(keys, &defaults)?;
        let layers = common.num_hidden_layers;
        let no_rope_layers = turning_layers(keys, layers)?;
        // Without `use_sliding_window`, a stated window does not apply.
        let windows = keys.flag("use_sliding_window")?.unwrap_or(false);
        let sliding_window = keys.size(&["sliding_window"])?.filter(|_| windows);
        let windowed = |layer: usize| sliding_window.is_some() && !no_rope_layers[layer];
        let window_layers = window_layers(keys, layers.min(no_rope_layers.len()), windowed)?;
        Ok(SmolLm3Config {
            common,
            no_rope_layers,
            windows: Windows { sliding_window, window_layers },
            attention_bias: keys.flag("attention_bias")?.unwrap_or(false),
            mlp_bias: keys.flag("mlp_bias")?.unwrap_or(false),
        })
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.common.check()?;
        self.windows.check(self.common.num_hidden_layers)?;
        check_length("no_rope_layers", self.no_rope_layers.len(), self.common.num_hidden_layers)
    }

    fn style(&self) -> Style {
        Style {
            windows: self.windows.each(),
            turns: self.no_rope_layers.iter().map(|turns| turns.then_some(0)).collect(),
            qkv_bias: self.attention_bias,
            output_bias: self.attention_bias,
            mlp_bias: self.mlp_bias,
            ..Style::llama(&self.common)
        }
    }
}

/// For each layer, whether it has rotary positions. The layers with a 1 in `no_rope_layers` have them, or without
/// that key all layers except every `no_rope_layer_interval`th.
fn turning_layers(keys: &Keys, layers: usize) -> Result<Vec<bool>, ConfigError> {
    let Some(list) = keys.read("no_rope_layers", "a list of 0 and 1", Value::as_array)? else {
        let interval = keys.size(&["no_rope_layer_interval"])?.unwrap_or(4);
        if interval == 0 {
            return Err(unsupported("no_rope_layer_interval", interval, "at least 1"));
        }
        return Ok((1..=layers.min(MAX_LAYERS)).map(|number| !number.is_multiple_of(interval)).collect());
    };
    if list.len() < layers {
        return Err(unsupported("no_rope_layers", list.len(), format!("one for each of {layers} layers")));
    }
    let turns = |value: &Value| match value.as_u64() {
        Some(turns @ (0 | 1)) => Ok(turns == 1),
        _ => Err(unsupported("no_rope_layers", value, "0 and 1")),
    };
    list.iter().take(layers).map(turns).collect()
}
