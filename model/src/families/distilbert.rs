//! DistilBERT that classifies a text or fills a mask: a BERT without segments, whose pooler has ReLU in place of
//! tanh.
//!
//! Sanh et al., arXiv 1910.01108; weights by the names of `DistilBertForSequenceClassification` and
//! `DistilBertForMaskedLM` in [`modeling_distilbert.py`].
//!
//! [`modeling_distilbert.py`]:
//! https://github.com/huggingface/transformers/tree/main/src/transformers/models/distilbert

use serde::{Deserialize, Serialize};

use super::Family;
use super::bert::{BertConfig, POSITIONS};
use crate::config::{Activation, ConfigError, Keys};
use crate::style::{Encoder, Masked, Names, Pooled, Role, Stored, Style};

/// The number under the root of the norms: a constant of the authors' program, which no configuration changes.
const EPS: f32 = 1e-12;

/// `config.json` of a DistilBERT; fields have their published names, except for the labels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Hugging Face's")]
pub struct DistilBertConfig {
    pub vocab_size: usize,
    pub max_position_embeddings: usize,
    pub dim: usize,
    pub hidden_dim: usize,
    pub n_layers: usize,
    pub n_heads: usize,
    pub activation: Activation,
    /// The names of the classes, from `id2label`.
    pub labels: Vec<String>,
    /// Whether each class is decided independently of the others, as `problem_type` says.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub multi_label: bool,
}

impl DistilBertConfig {
    /// A BERT with the same sizes.
    fn bert(&self) -> BertConfig {
        BertConfig {
            vocab_size: self.vocab_size,
            max_position_embeddings: self.max_position_embeddings,
            type_vocab_size: 1,
            hidden_size: self.dim,
            intermediate_size: self.hidden_dim,
            num_hidden_layers: self.n_layers,
            num_attention_heads: self.n_heads,
            hidden_act: self.activation,
            layer_norm_eps: EPS,
            labels: self.labels.clone(),
            multi_label: self.multi_label,
        }
    }
}

impl Family for DistilBertConfig {
    const CLASSES: &'static [&'static str] = &["DistilBertForSequenceClassification", "DistilBertForMaskedLM"];
    const READS: &'static [&'static str] = &["is_causal"];

    fn parse(keys: &Keys) -> Result<Self, ConfigError> {
        let or = |key: &str, default| Ok(keys.size(&[key])?.unwrap_or(default));
        let labels = keys.labels()?;
        // Sinusoidal positions are stored in the table like learned ones.
        Ok(DistilBertConfig {
            vocab_size: or("vocab_size", 30522)?,
            max_position_embeddings: or("max_position_embeddings", 512)?,
            // The authors' program reads the common name of a size last, so this name counts.
            dim: keys.size(&["hidden_size", "dim"])?.unwrap_or(768),
            hidden_dim: or("hidden_dim", 3072)?,
            n_layers: keys.size(&["num_hidden_layers", "n_layers"])?.unwrap_or(6),
            n_heads: keys.size(&["num_attention_heads", "n_heads"])?.unwrap_or(12),
            activation: keys.activation("activation", Activation::GeluErf)?,
            multi_label: keys.multi_label(&labels)?,
            labels,
        })
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.bert().check()
    }

    fn style(&self) -> Style {
        let bert = self.bert().style();
        let style = Style {
            names: Names {
                root: "distilbert.",
                embedding: "distilbert.embeddings.word_embeddings",
                positions: "distilbert.embeddings.position_embeddings",
                layers: "distilbert.transformer.layer",
                layer: &[
                    (Role::Query, "attention.q_lin"),
                    (Role::Key, "attention.k_lin"),
                    (Role::Value, "attention.v_lin"),
                    (Role::Output, "attention.out_lin"),
                    (Role::AfterAttention, "sa_layer_norm"),
                    (Role::Up, "ffn.lin1"),
                    (Role::Down, "ffn.lin2"),
                    (Role::AfterMlp, "output_layer_norm"),
                ],
                qkv: "attention.{q,k,v}_lin",
                up: "ffn.lin1",
                norm: "distilbert.embeddings.LayerNorm",
                pooler: "pre_classifier",
                buffers: &[
                    POSITIONS,
                    ("vocab_transform.", Stored::Unused),
                    ("vocab_layer_norm.", Stored::Unused),
                    ("vocab_projector.", Stored::Unused),
                ],
                ..bert.names
            },
            encoder: bert.encoder.map(|encoder| Encoder { segments: 0, pooled: Some(Pooled::Relu), ..encoder }),
            ..bert
        };
        let masked = Masked { activation: self.activation, norm: "vocab_layer_norm", bias: "vocab_projector.bias" };
        style.or_masked("vocab_transform", "vocab_projector", masked)
    }
}
