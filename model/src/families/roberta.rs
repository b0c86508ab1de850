//! RoBERTa that classifies a text or fills a mask: a BERT whose positions begin after the id of padding.
//!
//! Liu et al., arXiv 1907.11692; weights by the names of `RobertaForSequenceClassification` and
//! `RobertaForMaskedLM` in [`modeling_roberta.py`].
//!
//! [`modeling_roberta.py`]: https://github.com/huggingface/transformers/tree/main/src/transformers/models/roberta

use serde::{Deserialize, Serialize};

use super::Family;
use super::bert::{BertConfig, Defaults, POSITIONS, SEGMENTS};
use crate::config::{Activation, ConfigError, Keys, unsupported};
use crate::style::{Masked, Names, Positions, Stored, Style};

/// `config.json` of a RoBERTa.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RobertaConfig {
    /// The keys that RoBERTa has in common with BERT.
    #[serde(flatten)]
    pub body: BertConfig,
    /// The id of padding. In the table of positions, the first position has the row after the row of this number.
    pub pad_token_id: usize,
}

impl Family for RobertaConfig {
    const CLASSES: &'static [&'static str] = &["RobertaForSequenceClassification", "RobertaForMaskedLM"];
    const READS: &'static [&'static str] = &["is_causal"];

    fn parse(keys: &Keys) -> Result<Self, ConfigError> {
        let published = Defaults { vocab_size: 50265, max_position_embeddings: 512, type_vocab_size: 2, eps: 1e-12 };
        let pad_token_id = keys.size(&["pad_token_id"])?.unwrap_or(1);
        Ok(RobertaConfig { body: BertConfig::read(keys, published)?, pad_token_id })
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.body.check()?;
        // At least one position must be left.
        let limit = self.body.max_position_embeddings;
        match self.pad_token_id {
            pad if pad < limit - 1 => Ok(()),
            pad => {
                Err(unsupported("pad_token_id", pad, format!("below max_position_embeddings - 1 = {}", limit - 1)))
            }
        }
    }

    fn style(&self) -> Style {
        let (bert, offset) = (self.body.style(), self.pad_token_id + 1);
        let style = Style {
            names: Names {
                root: "roberta.",
                embedding: "roberta.embeddings.word_embeddings",
                positions: "roberta.embeddings.position_embeddings",
                layers: "roberta.encoder.layer",
                segments: "roberta.embeddings.token_type_embeddings",
                norm: "roberta.embeddings.LayerNorm",
                pooler: "classifier.dense",
                head: "classifier.out_proj",
                buffers: &[POSITIONS, SEGMENTS, ("pooler.", Stored::Unused), ("lm_head.", Stored::Unused)],
                ..bert.names
            },
            max_positions: self.body.max_position_embeddings - offset,
            positions: Positions::Learned { offset },
            ..bert
        };
        // The authors' program has this activation here, whatever the configuration says.
        let masked = Masked { activation: Activation::GeluErf, norm: "lm_head.layer_norm", bias: "lm_head.bias" };
        style.or_masked("lm_head.dense", "lm_head.decoder", masked)
    }
}
