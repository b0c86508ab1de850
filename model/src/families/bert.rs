//! BERT that classifies a text or fills a mask: learned positions, norms around each sum, erf-GELU, a pooler with
//! tanh.
//!
//! Devlin et al., arXiv 1810.04805; weights by the names of `BertForSequenceClassification` and `BertForMaskedLM` in
//! [`modeling_bert.py`].
//!
//! [`modeling_bert.py`]: https://github.com/huggingface/transformers/tree/main/src/transformers/models/bert

use serde::{Deserialize, Serialize};
use waggle_engine::Order;
use waggle_mpcache::HeadShape;

use super::Family;
use crate::config::{
    Activation, ConfigError, Keys, MAX_LABELS, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, MAX_WIDTH, epsilon, size,
    unsupported,
};
use crate::style::{Encoder, Masked, Names, Norms, Pooled, Role, Sizes, Stored, Style};

/// The largest number of segments.
const MAX_SEGMENTS: usize = 1 << 10;

/// The largest number of bytes in the name of a class.
const MAX_LABEL_BYTES: usize = 1 << 10;

/// `config.json` of a BERT; fields have their published names, except for the labels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Hugging Face's")]
pub struct BertConfig {
    pub vocab_size: usize,
    pub max_position_embeddings: usize,
    pub type_vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub hidden_act: Activation,
    pub layer_norm_eps: f32,
    /// The names of the classes, from `id2label`. Empty for a model with the head of a masked word.
    pub labels: Vec<String>,
    /// Whether each class is decided independently of the others, as `problem_type` says.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub multi_label: bool,
}

const NAMES: Names = Names {
    root: "bert.",
    embedding: "bert.embeddings.word_embeddings",
    positions: "bert.embeddings.position_embeddings",
    layers: "bert.encoder.layer",
    layer: &[
        (Role::Query, "attention.self.query"),
        (Role::Key, "attention.self.key"),
        (Role::Value, "attention.self.value"),
        (Role::Output, "attention.output.dense"),
        (Role::AfterAttention, "attention.output.LayerNorm"),
        (Role::Up, "intermediate.dense"),
        (Role::Down, "output.dense"),
        (Role::AfterMlp, "output.LayerNorm"),
    ],
    norms: &[],
    order: Order::Columns,
    qkv: "attention.self.{query,key,value}",
    up: "intermediate.dense",
    first: "",
    segments: "bert.embeddings.token_type_embeddings",
    norm: "bert.embeddings.LayerNorm",
    pooler: "bert.pooler.dense",
    head: "classifier",
    // The heads that were used in training, for words and whole sentences, are not read.
    buffers: &[POSITIONS, SEGMENTS, ("cls.", Stored::Unused)],
};

pub(super) const POSITIONS: (&str, Stored) = ("embeddings.position_ids", Stored::Unused);
pub(super) const SEGMENTS: (&str, Stored) = ("embeddings.token_type_ids", Stored::Unused);

/// Tensors that a published model with the head of a masked word may hold besides its weights: the bias of words
/// under a second name, and the pooler and the heads of whole sentences and of classes, which such a model does not
/// read.
const MASKED_BUFFERS: &[(&str, Stored)] = &[
    POSITIONS,
    SEGMENTS,
    ("cls.predictions.decoder.bias", Stored::TiedBias),
    ("lm_head.decoder.bias", Stored::TiedBias),
    ("pooler.", Stored::Unused),
    ("cls.seq_relationship.", Stored::Unused),
    ("pre_classifier.", Stored::Unused),
    ("classifier.", Stored::Unused),
];

impl Family for BertConfig {
    const CLASSES: &'static [&'static str] = &["BertForSequenceClassification", "BertForMaskedLM"];
    const READS: &'static [&'static str] = &["is_causal"];

    fn parse(keys: &Keys) -> Result<Self, ConfigError> {
        let published = Defaults { vocab_size: 30522, max_position_embeddings: 512, type_vocab_size: 2, eps: 1e-12 };
        BertConfig::read(keys, published)
    }

    fn check(&self) -> Result<(), ConfigError> {
        size("vocab_size", self.vocab_size, MAX_VOCABULARY)?;
        size("max_position_embeddings", self.max_position_embeddings, MAX_POSITIONS)?;
        size("type_vocab_size", self.type_vocab_size, MAX_SEGMENTS)?;
        size("hidden_size", self.hidden_size, MAX_WIDTH)?;
        size("intermediate_size", self.intermediate_size, MAX_WIDTH)?;
        size("num_hidden_layers", self.num_hidden_layers, MAX_LAYERS)?;
        size("num_attention_heads", self.num_attention_heads, self.hidden_size)?;
        if !self.hidden_size.is_multiple_of(self.num_attention_heads) {
            let why = format!("must divide hidden_size = {}", self.hidden_size);
            return Err(unsupported("num_attention_heads", self.num_attention_heads, why));
        }
        // A model without names of classes has the head of a masked word.
        size("id2label", self.labels.len().max(1), MAX_LABELS)?;
        if let Some(label) = self.labels.iter().find(|label| label.len() > MAX_LABEL_BYTES) {
            return Err(unsupported("id2label", label.len(), format!("at most {MAX_LABEL_BYTES} bytes a name")));
        }
        epsilon("layer_norm_eps", self.layer_norm_eps)
    }

    fn style(&self) -> Style {
        let (heads, head_dim) = (self.num_attention_heads, self.hidden_size / self.num_attention_heads);
        let sizes = Sizes {
            heads: HeadShape { heads, kv_heads: heads, head_dim },
            layers: self.num_hidden_layers,
            hidden: self.hidden_size,
            intermediate: self.intermediate_size,
            vocabulary: self.vocab_size,
            max_positions: self.max_position_embeddings,
            eps: self.layer_norm_eps,
            activation: self.hidden_act,
        };
        let style = Style {
            norms: Norms::Around,
            head_bias: true,
            encoder: Some(Encoder {
                segments: self.type_vocab_size,
                pooled: Some(Pooled::Tanh),
                image: None,
                labels: self.labels.clone(),
                multi_label: self.multi_label,
            }),
            ..Style::new(NAMES, sizes)
        };
        let masked = Masked {
            activation: self.hidden_act,
            norm: "cls.predictions.transform.LayerNorm",
            bias: "cls.predictions.bias",
        };
        style.or_masked("cls.predictions.transform.dense", "cls.predictions.decoder", masked)
    }
}

impl Style {
    /// This encoder; if it has no classes, with the head of a masked word instead.
    pub(super) fn or_masked(self, pooler: &'static str, head: &'static str, masked: Masked) -> Self {
        match self.encoder {
            Some(encoder) if encoder.labels.is_empty() => Style {
                names: Names { pooler, head, buffers: MASKED_BUFFERS, ..self.names },
                tied: true,
                head_bias: false,
                encoder: Some(Encoder { pooled: Some(Pooled::Masked(masked)), ..encoder }),
                ..self
            },
            encoder => Style { encoder, ..self },
        }
    }
}

/// The defaults in which BERT and RoBERTa differ: those of the first published models.
pub(super) struct Defaults {
    pub(super) vocab_size: usize,
    pub(super) max_position_embeddings: usize,
    pub(super) type_vocab_size: usize,
    pub(super) eps: f64,
}

impl BertConfig {
    /// Reads the keys that BERT and RoBERTa have in common.
    pub(super) fn read(keys: &Keys, published: Defaults) -> Result<Self, ConfigError> {
        let or = |key: &str, default| Ok(keys.size(&[key])?.unwrap_or(default));
        if let Some(kind) = keys.text("position_embedding_type")?.filter(|kind| *kind != "absolute") {
            return Err(unsupported("position_embedding_type", kind, "only absolute"));
        }
        if keys.flag("is_decoder")? == Some(true) {
            return Err(unsupported("is_decoder", true, "only false"));
        }
        let labels = keys.labels()?;
        Ok(BertConfig {
            multi_label: keys.multi_label(&labels)?,
            vocab_size: or("vocab_size", published.vocab_size)?,
            max_position_embeddings: or("max_position_embeddings", published.max_position_embeddings)?,
            type_vocab_size: or("type_vocab_size", published.type_vocab_size)?,
            hidden_size: or("hidden_size", 768)?,
            intermediate_size: or("intermediate_size", 3072)?,
            num_hidden_layers: or("num_hidden_layers", 12)?,
            num_attention_heads: or("num_attention_heads", 12)?,
            hidden_act: keys.activation("hidden_act", Activation::GeluErf)?,
            layer_norm_eps: keys.number("layer_norm_eps")?.unwrap_or(published.eps) as f32,
            labels,
        })
    }
}
