//! Sizes that most families publish under LLaMA's names.

use mpcache::HeadShape;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::checkpoint::TensorSpec;
use crate::config::{
    Activation, ConfigError, Keys, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, MAX_WIDTH, epsilon, size, unsupported,
};
use crate::family::Dimensions;

/// What the configurations of most families have in common; fields have their published names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Hugging Face's")]
pub struct Decoder {
    pub vocab_size: usize,
    pub max_position_embeddings: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    pub head_dim: usize,
    pub hidden_act: Activation,
    /// `rms_norm_eps` or `layer_norm_eps`.
    pub norm_eps: f32,
    pub tie_word_embeddings: bool,
    pub eos_token_id: Vec<u32>,
}

/// What `transformers` takes for missing keys, where that is not the same for all families.
pub(crate) struct Defaults {
    pub(crate) vocab_size: usize,
    pub(crate) max_position_embeddings: usize,
    pub(crate) hidden_size: usize,
    pub(crate) intermediate_size: usize,
    pub(crate) num_hidden_layers: usize,
    pub(crate) num_attention_heads: usize,
    /// Where the key is missing and not null; `None` for as many as there are heads.
    pub(crate) num_key_value_heads: Option<usize>,
    /// `None` for the width divided by the number of heads.
    pub(crate) head_dim: Option<usize>,
    pub(crate) activation: (&'static str, Activation),
    pub(crate) eps: (&'static str, f32),
    pub(crate) tie_word_embeddings: bool,
    pub(crate) eos: &'static [u32],
}

impl Decoder {
    /// Reads the keys, with `defaults` for missing ones.
    pub(crate) fn read(keys: &Keys, defaults: &Defaults) -> Result<Self, ConfigError> {
        let or = |key: &str, default| Ok(keys.size(&[key])?.unwrap_or(default));
        let hidden_size = or("hidden_size", defaults.hidden_size)?;
        let heads = or("num_attention_heads", defaults.num_attention_heads)?;
        let kv_default = match keys.0.get("num_key_value_heads") {
            None => defaults.num_key_value_heads.unwrap_or(heads),
            Some(_) => heads,
        };
        let head_dim = match keys.0.get("head_dim") {
            None => defaults.head_dim,
            Some(_) => keys.size(&["head_dim"])?,
        };
        let (activation, eps) = (defaults.activation, defaults.eps);
        Ok(Decoder {
            vocab_size: or("vocab_size", defaults.vocab_size)?,
            max_position_embeddings: or("max_position_embeddings", defaults.max_position_embeddings)?,
            hidden_size,
            intermediate_size: or("intermediate_size", defaults.intermediate_size)?,
            num_hidden_layers: or("num_hidden_layers", defaults.num_hidden_layers)?,
            num_attention_heads: heads,
            num_key_value_heads: or("num_key_value_heads", kv_default)?,
            head_dim: head_dim.unwrap_or_else(|| hidden_size.checked_div(heads).unwrap_or(0)),
            hidden_act: keys.activation(activation.0, activation.1)?,
            norm_eps: keys.number(eps.0)?.map_or(eps.1, |eps| eps as f32),
            tie_word_embeddings: keys.flag("tie_word_embeddings")?.unwrap_or(defaults.tie_word_embeddings),
            eos_token_id: keys.ids("eos_token_id")?.unwrap_or_else(|| defaults.eos.to_vec()),
        })
    }

    /// Refuses sizes that are not safe to multiply, or make no model.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        size("vocab_size", self.vocab_size, MAX_VOCABULARY)?;
        size("max_position_embeddings", self.max_position_embeddings, MAX_POSITIONS)?;
        size("hidden_size", self.hidden_size, MAX_WIDTH)?;
        size("intermediate_size", self.intermediate_size, MAX_WIDTH)?;
        size("num_hidden_layers", self.num_hidden_layers, MAX_LAYERS)?;
        size("num_attention_heads", self.num_attention_heads, MAX_WIDTH)?;
        size("num_key_value_heads", self.num_key_value_heads, self.num_attention_heads)?;
        size("head_dim", self.head_dim, MAX_WIDTH / self.num_attention_heads)?;
        if !self.num_attention_heads.is_multiple_of(self.num_key_value_heads) {
            let why = format!("must divide num_attention_heads = {}", self.num_attention_heads);
            return Err(unsupported("num_key_value_heads", self.num_key_value_heads, why));
        }
        epsilon("norm_eps", self.norm_eps)
    }

    /// Its sizes, for `max_positions` positions.
    pub(crate) fn dimensions(&self, max_positions: usize) -> Dimensions<'_> {
        Dimensions {
            heads: self.heads(),
            layers: self.num_hidden_layers,
            hidden: self.hidden_size,
            vocabulary: self.vocab_size,
            max_positions,
            eos: &self.eos_token_id,
        }
    }

    pub(crate) fn heads(&self) -> HeadShape {
        HeadShape { heads: self.num_attention_heads, kv_heads: self.num_key_value_heads, head_dim: self.head_dim }
    }

    /// Lengths of all queries, and of all keys, of one token.
    pub(crate) fn widths(&self) -> (usize, usize) {
        (self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim)
    }

    /// Published tensors of a model with the names of LLaMA: the embedding, those that `layer` adds to every layer,
    /// the last norm, and the head unless it is tied.
    pub(crate) fn layout(&self, layer: impl Fn(&mut Layout)) -> Vec<TensorSpec> {
        let &Decoder { vocab_size, hidden_size: h, .. } = self;
        let mut out = vec![TensorSpec::new("model.embed_tokens.weight", [vocab_size, h])];
        for i in 0..self.num_hidden_layers {
            layer(&mut Layout { prefix: format!("model.layers.{i}"), out: &mut out });
        }
        out.push(TensorSpec::new("model.norm.weight", [h]));
        if !self.tie_word_embeddings {
            out.push(TensorSpec::new("lm_head.weight", [vocab_size, h]));
        }
        out
    }
}

/// Adds published tensors.
pub(crate) struct Layout<'a> {
    /// What all names begin with.
    pub(crate) prefix: String,
    pub(crate) out: &'a mut Vec<TensorSpec>,
}

impl Layout<'_> {
    /// A linear layer (outputs, inputs), with or without a bias.
    pub(crate) fn linear(&mut self, name: &str, inputs: usize, outputs: usize, biased: bool) {
        let prefix = &self.prefix;
        self.out.push(TensorSpec::new(format!("{prefix}.{name}.weight"), [outputs, inputs]));
        if biased {
            self.out.push(TensorSpec::new(format!("{prefix}.{name}.bias"), [outputs]));
        }
    }

    /// The gains of an RMS norm.
    pub(crate) fn rms_norm(&mut self, name: &str, width: usize) {
        self.out.push(TensorSpec::new(format!("{}.{name}.weight", self.prefix), [width]));
    }

    /// Gains and shifts of a layer norm.
    pub(crate) fn layer_norm(&mut self, name: &str, width: usize) {
        self.rms_norm(name, width);
        self.out.push(TensorSpec::new(format!("{}.{name}.bias", self.prefix), [width]));
    }
}

/// The key `sliding_window`: `default` if it is missing, and no window with null.
pub(crate) fn window(keys: &Keys, default: Option<usize>) -> Result<Option<usize>, ConfigError> {
    match keys.0.get("sliding_window") {
        None => Ok(default),
        Some(_) => keys.size(&["sliding_window"]),
    }
}

/// Which layers have a window: those that `layer_types` says, or else those for which `windowed` holds.
pub(crate) fn window_layers(
    keys: &Keys,
    layers: usize,
    windowed: impl Fn(usize) -> bool,
) -> Result<Vec<bool>, ConfigError> {
    let Some(types) = keys.read("layer_types", "a list of names", Value::as_array)? else {
        return Ok((0..layers.min(MAX_LAYERS)).map(windowed).collect());
    };
    if types.len() < layers {
        return Err(unsupported("layer_types", types.len(), format!("one for each of {layers} layers")));
    }
    let kind = |value: &Value| match value.as_str() {
        Some("full_attention") => Ok(false),
        Some("sliding_attention") => Ok(true),
        _ => Err(unsupported("layer_types", value, "full_attention and sliding_attention")),
    };
    types.iter().take(layers).map(kind).collect()
}

/// Checks that a list that a peer may have sent has an entry for every layer.
pub(crate) fn check_length(key: &str, list: usize, layers: usize) -> Result<(), ConfigError> {
    if list == layers { Ok(()) } else { Err(unsupported(key, list, format!("one for each of {layers} layers"))) }
}
