//! The public shape of a model of any family.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use waggle_mpcache::{HeadShape, Layers};

use crate::checkpoint::Wrapping;
use crate::config::{ConfigError, Keys, experts, foreign, object, text_model, unsupported};
use crate::families::{Family, families};
use crate::image::ImageShape;
use crate::style::{Positions, Style};
use crate::tensor::TensorSpec;
use crate::{forms, hints};

/// Makes one type of the configurations of all families.
macro_rules! specs {
    ($($module:ident, $name:ident, $config:ident, $tag:literal;)+) => {
        $(pub use crate::families::$module::$config;)+

        /// Architecture and shape of a model: public, everything that both parties must agree on to compute it.
        ///
        /// Deserialising checks it, so a specification that came from a peer has sizes that are safe to multiply.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "model_type", try_from = "Unchecked")]
        pub enum ModelSpec {
            $(
                #[doc = concat!("`", $tag, "`")]
                #[serde(rename = $tag)]
                $name($config),
            )+
        }

        #[derive(Deserialize)]
        #[serde(tag = "model_type")]
        enum Unchecked {
            $(
                #[serde(rename = $tag)]
                $name($config),
            )+
        }

        impl TryFrom<Unchecked> for ModelSpec {
            type Error = ConfigError;

            fn try_from(spec: Unchecked) -> Result<Self, ConfigError> {
                match spec {
                    $(Unchecked::$name(config) => ModelSpec::$name(config).checked(),)+
                }
            }
        }

        /// Classes of weights, and the `model_type` that each belongs to.
        const CLASSES: &[(&[&str], &str)] = &[$((<$config as Family>::CLASSES, $tag),)+];

        impl ModelSpec {
            /// The values of `model_type`.
            pub const TYPES: &'static [&'static str] = &[$($tag),+];

            /// The configuration of the family `kind`, which is one of [`TYPES`](ModelSpec::TYPES).
            fn parse(kind: &str, keys: &Keys) -> Result<Self, ConfigError> {
                match kind {
                    $($tag => {
                        foreign::check(keys, <$config as Family>::READS)?;
                        ModelSpec::$name(Family::parse(keys)?).checked()
                    })+
                    other => Err(unsupported("model_type", other, known(other, keys))),
                }
            }

            fn checked(self) -> Result<Self, ConfigError> {
                match &self {
                    $(ModelSpec::$name(config) => Family::check(config)?,)+
                }
                self.check_windows()?;
                Ok(self)
            }

            /// Its sizes, its tensors, and how the decoder computes it.
            pub(crate) fn style(&self) -> Style {
                match self {
                    $(ModelSpec::$name(config) => config.style(),)+
                }
            }
        }
    };
}

families!(specs);

/// The families, for a message about `other`, and what is known of it.
fn known(other: &str, keys: &Keys) -> String {
    let known = format!("the values of model_type are {}", ModelSpec::TYPES.join(", "));
    match experts::is_mixture(other) {
        true => format!("{known}; {}", experts::refused(keys)),
        false => known + hints::of_type(other),
    }
}

/// The class that the weights belong to, and its `model_type`.
fn architecture<'k>(keys: &'k Keys) -> Result<Option<(&'k str, &'static str)>, ConfigError> {
    let names = keys.read("architectures", "a list of names", Value::as_array)?;
    let Some(name) = names.and_then(|names| names.first()) else { return Ok(None) };
    let of = |name: &str| CLASSES.iter().find(|(classes, _)| classes.contains(&name)).map(|(_, kind)| *kind);
    match name.as_str().and_then(|name| Some((name, of(name)?))) {
        Some(found) => Ok(Some(found)),
        None => Err(unsupported("architectures", name, known(name.as_str().unwrap_or_default(), keys))),
    }
}

impl ModelSpec {
    /// Parses the text of a `config.json`.
    pub fn from_config_json(text: &[u8]) -> Result<Self, ConfigError> {
        ModelSpec::published(text).map(|(spec, _)| spec)
    }

    /// Parses the text of a `config.json`, and how it says that the model is published.
    pub(crate) fn published(text: &[u8]) -> Result<(Self, Wrapping), ConfigError> {
        let (keys, wrapper) = text_model(object(text)?)?;
        let keys = Keys(&keys);
        let (spec, form) = (ModelSpec::of_keys(&keys)?, forms::of(&keys)?);
        match form {
            Some(_) if spec.style().names.conv1d => {
                let why =
                    "in forms of other programs, matrices are read of models that store them as (outputs, inputs)";
                Err(unsupported("quantization_config", "of gpt2", why))
            }
            form => Ok((spec, Wrapping { wrapper, form })),
        }
    }

    fn of_keys(keys: &Keys) -> Result<Self, ConfigError> {
        let architecture = architecture(keys)?;
        let kind = match (keys.text("model_type")?, architecture) {
            (Some(kind), Some((name, of))) if kind != of && Self::TYPES.contains(&kind) => {
                return Err(unsupported("architectures", name, format!("model_type says {kind}")));
            }
            (Some(kind), _) | (None, Some((_, kind))) => kind,
            (None, None) => return Err(unsupported("model_type", "missing", known("", keys))),
        };
        Self::parse(kind, keys)
    }

    /// Ids that end a text.
    pub fn eos(&self) -> Vec<u32> {
        self.style().eos
    }

    /// By layer the heads of its attention.
    pub fn heads(&self) -> Vec<HeadShape> {
        self.style().heads
    }

    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.style().layers()
    }

    /// Length of a residual vector.
    pub fn hidden(&self) -> usize {
        self.style().hidden
    }

    /// Whether it reads a text at once and gives logits of classes or of a masked word, and does not write.
    pub fn is_encoder(&self) -> bool {
        self.style().encoder.is_some()
    }

    /// Names of an encoder's classes.
    pub fn labels(&self) -> Option<Vec<String>> {
        self.style().encoder.map(|encoder| encoder.labels).filter(|labels| !labels.is_empty())
    }

    /// Whether each of its classes is found or not by itself: the probability of one is the sigmoid of its logit.
    pub fn is_multi_label(&self) -> bool {
        self.style().encoder.is_some_and(|encoder| encoder.multi_label)
    }

    /// Whether it gives the word in the place of a mask.
    pub fn fills_mask(&self) -> bool {
        self.style().masked().is_some()
    }

    /// The id that an encoder's positions do not count: that of padding, behind which they begin.
    pub fn uncounted(&self) -> Option<u32> {
        let Style { positions, encoder, .. } = self.style();
        match positions {
            Positions::Learned { offset } if encoder.is_some() => offset.checked_sub(1).map(|id| id as u32),
            _ => None,
        }
    }

    /// What it reads in place of a text, if it reads images.
    pub fn image(&self) -> Option<ImageShape> {
        self.style().image()
    }

    /// Number of token ids; 0 where it reads images.
    pub fn vocabulary(&self) -> usize {
        self.style().vocabulary
    }

    /// Most positions that can go through the model: GPT-2 has a table of them. Rotary embeddings have no end, but
    /// beyond the length that the configuration states a model was never trained to tell distances.
    pub fn max_positions(&self) -> usize {
        self.style().max_positions
    }

    /// [`max_positions`](Self::max_positions) of a text that was stated before its first token to have `text`
    /// positions. Longer texts may have another embedding of positions, for which this one would have to be read
    /// again.
    pub fn max_positions_of(&self, text: Option<usize>) -> usize {
        let style = self.style();
        match (style.short_text(), text) {
            (Some(short), Some(text)) if text <= short => short,
            _ => style.max_positions,
        }
    }

    /// The model's layers of attention, those first that have keys and values of their own. A window that all
    /// positions fit into is none.
    pub fn attention(&self) -> Layers {
        let style = self.style();
        let (own, shared) = (style.own_layers(), style.shared().collect());
        let Style { mut heads, max_positions, windows, score_cap, encoder, .. } = style;
        heads.truncate(own);
        let windows = windows.into_iter().take(own).map(|window| window.filter(|w| *w < max_positions)).collect();
        Layers { heads, windows, shared, soft_cap: score_cap, causal: encoder.is_none(), texts: 1 }
    }

    /// Names and shapes of the tensors that a checkpoint must hold.
    pub fn tensors(&self) -> Vec<TensorSpec> {
        self.style().tensors()
    }

    fn check_windows(&self) -> Result<(), ConfigError> {
        match self.style().windows.into_iter().flatten().find(|window| *window == 0) {
            Some(window) => Err(unsupported("sliding_window", window, "at least 1")),
            None => Ok(()),
        }
    }

    /// Number of parameters as published.
    pub fn parameters(&self) -> usize {
        self.tensors().iter().map(|t| t.shape.iter().product::<usize>()).sum()
    }
}

#[cfg(test)]
mod tests;
