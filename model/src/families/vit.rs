//! ViT that classifies an image: a product with each patch, a token that stands for the whole image, norms before
//! attention and MLP.
//!
//! Dosovitskiy et al., arXiv 2010.11929; weights by the names of `ViTForImageClassification` in [`modeling_vit.py`].
//!
//! [`modeling_vit.py`]: https://github.com/huggingface/transformers/tree/main/src/transformers/models/vit

use serde::{Deserialize, Serialize};

use super::Family;
use super::bert::BertConfig;
use crate::config::{Activation, ConfigError, Keys, MAX_WIDTH, size, unsupported};
use crate::image::{CHANNELS, ImageShape};
use crate::style::{Encoder, Names, Norms, Role, Stored, Style};

/// The largest number of pixels of a side. It bounds the size of the images that a client makes when a server states
/// their shape.
const MAX_SIDE: usize = 1 << 11;

/// `config.json` of a ViT; fields have their published names, except for the labels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Hugging Face's")]
pub struct VitConfig {
    pub image_size: usize,
    pub patch_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub hidden_act: Activation,
    pub layer_norm_eps: f32,
    pub qkv_bias: bool,
    /// The names of the classes, from `id2label`.
    pub labels: Vec<String>,
    /// Whether each class is decided independently of the others, as `problem_type` says.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub multi_label: bool,
}

impl VitConfig {
    fn image(&self) -> ImageShape {
        ImageShape { side: self.image_size, patch: self.patch_size }
    }

    /// A BERT with the same sizes, which reads a token for each patch.
    fn bert(&self) -> BertConfig {
        BertConfig {
            vocab_size: 1,
            max_position_embeddings: self.image().rows(),
            type_vocab_size: 1,
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size,
            num_hidden_layers: self.num_hidden_layers,
            num_attention_heads: self.num_attention_heads,
            hidden_act: self.hidden_act,
            layer_norm_eps: self.layer_norm_eps,
            labels: self.labels.clone(),
            multi_label: self.multi_label,
        }
    }
}

impl Family for VitConfig {
    const CLASSES: &'static [&'static str] = &["ViTForImageClassification"];
    const READS: &'static [&'static str] = &["qkv_bias", "is_causal"];

    fn parse(keys: &Keys) -> Result<Self, ConfigError> {
        let or = |key: &str, default| Ok(keys.size(&[key])?.unwrap_or(default));
        let channels = or("num_channels", CHANNELS)?;
        if channels != CHANNELS {
            return Err(unsupported("num_channels", channels, format!("only {CHANNELS}")));
        }
        let (hidden_size, heads) = (or("hidden_size", 768)?, or("num_attention_heads", 12)?);
        if let Some(dim) = keys.size(&["head_dim"])?.filter(|dim| dim.checked_mul(heads) != Some(hidden_size)) {
            return Err(unsupported("head_dim", dim, "only hidden_size / num_attention_heads"));
        }
        let labels = keys.labels()?;
        Ok(VitConfig {
            image_size: or("image_size", 224)?,
            patch_size: or("patch_size", 16)?,
            hidden_size,
            intermediate_size: or("intermediate_size", 3072)?,
            num_hidden_layers: or("num_hidden_layers", 12)?,
            num_attention_heads: heads,
            hidden_act: keys.activation("hidden_act", Activation::GeluErf)?,
            layer_norm_eps: keys.number("layer_norm_eps")?.unwrap_or(1e-12) as f32,
            qkv_bias: keys.flag("qkv_bias")?.unwrap_or(true),
            multi_label: keys.multi_label(&labels)?,
            labels,
        })
    }

    fn check(&self) -> Result<(), ConfigError> {
        size("image_size", self.image_size, MAX_SIDE)?;
        size("patch_size", self.patch_size, self.image_size)?;
        if !self.image_size.is_multiple_of(self.patch_size) {
            let why = format!("must divide image_size = {}", self.image_size);
            return Err(unsupported("patch_size", self.patch_size, why));
        }
        if self.image().values() > MAX_WIDTH {
            return Err(unsupported("patch_size", self.patch_size, format!("at most {MAX_WIDTH} numbers a patch")));
        }
        self.bert().check()
    }

    fn style(&self) -> Style {
        let bert = self.bert().style();
        Style {
            names: Names {
                root: "vit.",
                embedding: "vit.embeddings.patch_embeddings.projection",
                first: "vit.embeddings.cls_token",
                positions: "vit.embeddings.position_embeddings",
                layers: "vit.encoder.layer",
                layer: &[
                    (Role::Query, "attention.attention.query"),
                    (Role::Key, "attention.attention.key"),
                    (Role::Value, "attention.attention.value"),
                    (Role::Output, "attention.output.dense"),
                    (Role::Up, "intermediate.dense"),
                    (Role::Down, "output.dense"),
                    (Role::BeforeAttention, "layernorm_before"),
                    (Role::BeforeMlp, "layernorm_after"),
                ],
                qkv: "attention.attention.{query,key,value}",
                norm: "vit.layernorm",
                // A pooler that the head of classes does not read, and the mask patch of a training with masks.
                buffers: &[("pooler.", Stored::Unused), ("embeddings.mask_token", Stored::Unused)],
                ..bert.names
            },
            vocabulary: 0,
            norms: Norms::Before,
            qkv_bias: self.qkv_bias,
            encoder: bert.encoder.map(|encoder| Encoder {
                segments: 0,
                pooled: None,
                image: Some(self.image()),
                ..encoder
            }),
            ..bert
        }
    }
}
