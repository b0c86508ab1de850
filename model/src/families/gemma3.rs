//! Gemma 3: five layers with a window for each layer without one, a rotary base for each of these two kinds, and
//! norms of queries and keys.
//!
//! Gemma team, arXiv 2503.19786; weights by the names of `Gemma3ForCausalLM` in [`modeling_gemma3.py`]. Only the text
//! model is read.
//!
//! [`modeling_gemma3.py`]: https://github.com/huggingface/transformers/tree/main/src/transformers/models/gemma3

use serde::{Deserialize, Serialize};

use super::Family;
use super::gemma2::{self, Gemma};
use crate::config::{Common, ConfigError, Defaults, Keys, RopeConfig, RopeDefaults, unsupported};
use crate::style::{Positions, QkNorm, Style};

/// `config.json` of a Gemma 3; fields have their published names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Hugging Face's")]
pub struct Gemma3Config {
    /// The common keys. The rotary embedding is that of layers that see all tokens.
    #[serde(flatten)]
    pub common: Common,
    /// The rotary embedding of layers with a window.
    pub sliding_rope: RopeConfig,
    #[serde(flatten)]
    pub gemma: Gemma,
}

impl Family for Gemma3Config {
    const CLASSES: &'static [&'static str] = &["Gemma3ForCausalLM", "Gemma3TextModel"];
    // The authors' program reads `attn_logit_softcapping` but does not apply it, so a cap of scores is refused here.
    const READS: &'static [&'static str] = &[
        "sliding_window",
        "sliding_window_pattern",
        "layer_types",
        "rope_local_base_freq",
        "final_logit_softcapping",
        "query_pre_attn_scalar",
    ];

    fn parse(keys: &Keys) -> Result<Self, ConfigError> {
        let defaults = Defaults {
            vocab_size: 262208,
            max_position_embeddings: 131072,
            rope_theta: 1_000_000.0,
            ..gemma2::DEFAULTS
        };
        // transformers 4 reads a `type` beside the default `rope_type`, and transformers 5 does not.
        if let Some(kind) =
            keys.get("rope_scaling").filter(|map| map.get("rope_type").is_none()).and_then(|map| map.get("type"))
        {
            return Err(unsupported("rope_scaling.type", kind, "rope_type"));
        }
        let global = defaults.rope(keys)?;
        let local = RopeDefaults { rope_theta: Some(10000.0), ..global };
        let ropes = [global.beside(keys, "rope_theta")?, local.beside(keys, "rope_local_base_freq")?];
        let [rope, sliding_rope] = RopeConfig::by_layer(keys, &ropes)?;
        let common = Common::with_rope(keys, &defaults, rope)?;
        let pattern = keys.size(&["sliding_window_pattern"])?.unwrap_or(6);
        if pattern == 0 {
            return Err(unsupported("sliding_window_pattern", pattern, "at least 1"));
        }
        let windowed = |layer: usize| !(layer + 1).is_multiple_of(pattern);
        Ok(Gemma3Config {
            sliding_rope,
            gemma: Gemma::read(keys, common.num_hidden_layers, windowed, [None, None])?,
            common,
        })
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.common.check()?;
        self.sliding_rope.check(self.common.head_dim)?;
        self.gemma.check(self.common.num_hidden_layers)
    }

    fn style(&self) -> Style {
        Style {
            // In all published configurations this is the length after stretching.
            max_positions: self.common.max_position_embeddings,
            qk_norm: QkNorm::Head,
            positions: Positions::Rotary(vec![self.common.rope.clone(), self.sliding_rope.clone()]),
            turns: self.gemma.windows.window_layers.iter().map(|windowed| Some(usize::from(*windowed))).collect(),
            ..self.gemma.style(&self.common)
        }
    }
}
