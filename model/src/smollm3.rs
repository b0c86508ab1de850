//! SmolLM3: LLaMA of which every fourth layer has no rotary positions.
//!
//! Bakouch et al., "SmolLM3: smol, multilingual, long-context reasoner", 2025; weights by the names of
//! `SmolLM3ForCausalLM` in [`modeling_smollm3.py`]. The
//! program is that of [`gated`](crate::gated).
//!
//! [`modeling_smollm3.py`]: https://github.com/huggingface/transformers/tree/main/src/transformers/models/smollm3

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::TensorSpec;
use crate::config::{Activation, ConfigError, Keys, MAX_LAYERS, RopeConfig, unsupported};
use crate::decoder::{Decoder, Defaults, check_length, window_layers};
use crate::family::{Buffer, Dimensions, Family};
use crate::gated::{GATE_UP, Gated, GatedConfig, QKV, Style, layout};
use crate::rope::{self, Rope};

/// A SmolLM3.
pub type SmolLm3<W> = Gated<W, SmolLm3Config>;

/// `config.json` of a SmolLM3; fields have their published names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Hugging Face's")]
pub struct SmolLm3Config {
    #[serde(flatten)]
    pub decoder: Decoder,
    #[serde(flatten)]
    pub rope: RopeConfig,
    /// Which layers have rotary positions. The published name says the opposite.
    pub no_rope_layers: Vec<bool>,
    pub sliding_window: Option<usize>,
    /// Which layers have the window.
    pub window_layers: Vec<bool>,
    pub attention_bias: bool,
    pub mlp_bias: bool,
}

impl Family for SmolLm3Config {
    const CLASSES: &'static [&'static str] = &["SmolLM3ForCausalLM", "SmolLM3Model"];
    const READS: &'static [&'static str] =
        &["sliding_window", "use_sliding_window", "layer_types", "no_rope_layers", "no_rope_layer_interval"];

    fn parse(keys: &Keys) -> Result<Self, ConfigError> {
        let decoder = Decoder::read(
            keys,
            &Defaults {
                vocab_size: 128256,
                max_position_embeddings: 32768,
                hidden_size: 2048,
                intermediate_size: 11008,
                num_hidden_layers: 36,
                num_attention_heads: 16,
                num_key_value_heads: Some(4),
                head_dim: None,
                activation: ("hidden_act", Activation::Silu),
                eps: ("rms_norm_eps", 1e-6),
                tie_word_embeddings: true,
                eos: &[128001],
            },
        )?;
        let rope = RopeConfig::read(keys, decoder.max_position_embeddings, None, (2_000_000.0, 1.0))?;
        let layers = decoder.num_hidden_layers;
        let no_rope_layers = turning_layers(keys, layers)?;
        // A window without `use_sliding_window` is none.
        let windows = keys.flag("use_sliding_window")?.unwrap_or(false);
        let sliding_window = keys.size(&["sliding_window"])?.filter(|_| windows);
        let windowed = |layer: usize| sliding_window.is_some() && !no_rope_layers[layer];
        let window_layers = window_layers(keys, layers.min(no_rope_layers.len()), windowed)?;
        Ok(SmolLm3Config {
            decoder,
            rope,
            no_rope_layers,
            sliding_window,
            window_layers,
            attention_bias: keys.flag("attention_bias")?.unwrap_or(false),
            mlp_bias: keys.flag("mlp_bias")?.unwrap_or(false),
        })
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.decoder.check()?;
        check_length("layer_types", self.window_layers.len(), self.decoder.num_hidden_layers)?;
        check_length("no_rope_layers", self.no_rope_layers.len(), self.decoder.num_hidden_layers)?;
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

impl GatedConfig for SmolLm3Config {
    fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    fn style(&self) -> Style {
        Style {
            qkv: QKV,
            gate_up: GATE_UP,
            qkv_bias: self.attention_bias,
            o_bias: self.attention_bias,
            mlp_bias: self.mlp_bias,
            qk_norm: false,
            rope: Rope::of_config(&self.rope, self.decoder.head_dim),
            turns: self.no_rope_layers.clone(),
        }
    }
}

/// Which layers have rotary positions: those with a 1 in `no_rope_layers`, or all but every
/// `no_rope_layer_interval`th.
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
