//! Gemma 3: five layers with a window to one without, each kind with a rotary base of its own, and norms of queries
//! and keys.
//!
//! Gemma team, arXiv 2503.19786; weights by the names of `Gemma3ForCausalLM` in [`modeling_gemma3.py`]: the text
//! model alone.
//!
//! [`modeling_gemma3.py`]: https://github.com/huggingface/transformers/tree/main/src/transformers/models/gemma3

use serde::{Deserialize, Serialize};

use super::Family;
use super::gemma2::{self, Gemma};
use crate::config::{Common, ConfigError, Defaults, Keys, RopeConfig, RopeScaling, positive, unsupported};
use crate::style::{Positions, QkNorm, Style};

/// `config.json` of a Gemma 3; fields have their published names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Hugging Face's")]
pub struct Gemma3Config {
    /// Its rotary embedding is that of layers that see all tokens.
    #[serde(flatten)]
    pub common: Common,
    /// The base of layers with a window, whose frequencies are not scaled.
    pub rope_local_base_freq: f64,
    #[serde(flatten)]
    pub gemma: Gemma,
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

    fn parse(keys: &Keys) -> Result<Self, ConfigError> {
        let common = Common::read(
            keys,
            &Defaults {
                vocab_size: 262208,
                max_position_embeddings: 131072,
                rope_theta: 1_000_000.0,
                ..gemma2::DEFAULTS
            },
        )?;
        let pattern = keys.size(&["sliding_window_pattern", "_sliding_window_pattern"])?.unwrap_or(6);
        if pattern == 0 {
            return Err(unsupported("sliding_window_pattern", pattern, "at least 1"));
        }
        let windowed = |layer: usize| !(layer + 1).is_multiple_of(pattern);
        Ok(Gemma3Config {
            rope_local_base_freq: keys.number("rope_local_base_freq")?.unwrap_or(10000.0),
            gemma: Gemma::read(keys, common.num_hidden_layers, windowed, [None, None])?,
            common,
        })
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.common.check()?;
        positive("rope_local_base_freq", self.rope_local_base_freq)?;
        self.gemma.check(self.common.num_hidden_layers)
    }

    fn style(&self) -> Style {
        let global = &self.common.rope;
        let local = RopeConfig {
            rope_theta: self.rope_local_base_freq,
            rope_scaling: RopeScaling::None,
            partial_rotary_factor: global.partial_rotary_factor,
        };
        Style {
            // Of all published configurations this is the length after scaling.
            max_positions: self.common.max_position_embeddings,
            qk_norm: QkNorm::Head,
            positions: Positions::Rotary(vec![global.clone(), local]),
            turns: self.gemma.windows.window_layers.iter().map(|windowed| Some(usize::from(*windowed))).collect(),
            ..self.gemma.style(&self.common)
        }
    }
}
