//! The public shape of a model of any family.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use waggle_engine::Order;
use waggle_mpcache::{HeadShape, Layers, PolicySpec};

use crate::checkpoint::Wrapping;
use crate::config::{ConfigError, Keys, experts, foreign, object, text_model, unsupported};
use crate::families::{Family, families};
use crate::image::ImageShape;
use crate::style::{Positions, Style};
use crate::tensor::TensorSpec;
use crate::{Error, forms, hints};

/// Declares one type for the configurations of all families.
macro_rules! specs {
    ($($module:ident, $name:ident, $config:ident, $tag:literal;)+) => {
        $(pub use crate::families::$module::$config;)+

        /// The configuration of a model of any family.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "model_type")]
        pub enum ModelConfig {
            $(
                #[doc = concat!("`", $tag, "`")]
                #[serde(rename = $tag)]
                $name($config),
            )+
        }

        impl ModelConfig {
            /// Checks the configuration and returns the style that follows from it.
            fn checked(&self) -> Result<Style, ConfigError> {
                match self {
                    $(ModelConfig::$name(config) => {
                        Family::check(config)?;
                        Ok(config.style())
                    })+
                }
            }
        }

        /// The classes of weights of each family, and the family's `model_type`.
        const CLASSES: &[(&[&str], &str)] = &[$((<$config as Family>::CLASSES, $tag),)+];

        impl ModelSpec {
            /// The values of `model_type`.
            pub const TYPES: &'static [&'static str] = &[$($tag),+];

            /// The configuration of the family `kind`, which is one of [`TYPES`](ModelSpec::TYPES).
            fn parse(kind: &str, keys: &Keys) -> Result<Self, ConfigError> {
                match kind {
                    $($tag => {
                        foreign::check(keys, <$config as Family>::READS)?;
                        ModelConfig::$name(Family::parse(keys)?).try_into()
                    })+
                    other => Err(unsupported("model_type", other, known(other, keys))),
                }
            }
        }
    };
}

families!(specs);

/// Architecture and shape of a model: everything that both parties must agree on to compute the model. Public.
///
/// Deserialising checks the specification, so that one from a peer has sizes that are safe to multiply.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "ModelConfig", into = "ModelConfig")]
pub struct ModelSpec {
    config: ModelConfig,
    /// Everything that follows from the configuration.
    style: Arc<Style>,
}

impl PartialEq for ModelSpec {
    fn eq(&self, other: &Self) -> bool {
        self.config == other.config
    }
}

impl TryFrom<ModelConfig> for ModelSpec {
    type Error = ConfigError;

    fn try_from(config: ModelConfig) -> Result<Self, ConfigError> {
        let style = Arc::new(config.checked()?);
        match style.windows.contains(&Some(0)) {
            true => Err(unsupported("sliding_window", 0, "at least 1")),
            false => Ok(ModelSpec { config, style }),
        }
    }
}

impl From<ModelSpec> for ModelConfig {
    fn from(spec: ModelSpec) -> Self {
        spec.config
    }
}

/// The known families and advice on the type `other`, for a message about it.
fn known(other: &str, keys: &Keys) -> String {
    let known = format!("the values of model_type are {}", ModelSpec::TYPES.join(", "));
    match experts::is_mixture(other) {
        true => format!("{known}; {}", experts::refused(keys)),
        false => known + hints::of_type(other),
    }
}

/// The class that the weights belong to, and the `model_type` of this class.
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
    /// The configuration, by its family.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Everything that follows from the configuration: sizes, tensors, and how the decoder computes the model.
    pub(crate) fn style(&self) -> &Style {
        &self.style
    }

    /// Parses the text of a `config.json`.
    pub fn from_config_json(text: &[u8]) -> Result<Self, ConfigError> {
        ModelSpec::published(text).map(|(spec, _)| spec)
    }

    /// Parses the text of a `config.json`, and also returns how the model is published.
    pub(crate) fn published(text: &[u8]) -> Result<(Self, Wrapping), ConfigError> {
        let (keys, wrapper) = text_model(object(text)?)?;
        let keys = Keys(&keys);
        let (spec, form) = (ModelSpec::of_keys(&keys)?, forms::of(&keys)?);
        match form {
            Some(_) if spec.style().names.order == Order::Rows => {
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

    /// The ids that end a text.
    pub fn eos(&self) -> Vec<u32> {
        self.style.eos.clone()
    }

    /// The heads of the attention of each layer.
    pub fn heads(&self) -> Vec<HeadShape> {
        self.style.heads.clone()
    }

    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.style.layers()
    }

    /// The length of a vector of the residual stream.
    pub fn hidden(&self) -> usize {
        self.style.hidden
    }

    /// Whether the model is an encoder: it reads a whole text at once, gives logits of classes or of a masked word,
    /// and writes no text.
    pub fn is_encoder(&self) -> bool {
        self.style.encoder.is_some()
    }

    /// The names of an encoder's classes.
    pub fn labels(&self) -> Option<Vec<String>> {
        self.style.encoder.as_ref().map(|encoder| encoder.labels.clone()).filter(|labels| !labels.is_empty())
    }

    /// Whether each class is decided independently of the others, so that its probability is the sigmoid of its
    /// logit.
    pub fn is_multi_label(&self) -> bool {
        self.style.encoder.as_ref().is_some_and(|encoder| encoder.multi_label)
    }

    /// Whether the model predicts the word in the place of a mask.
    pub fn fills_mask(&self) -> bool {
        self.style.masked().is_some()
    }

    /// The id of padding, if an encoder gives padding no position. The encoder's positions begin after this id.
    pub fn uncounted(&self) -> Option<u32> {
        match self.style.positions {
            Positions::Learned { offset } if self.is_encoder() => offset.checked_sub(1).map(|id| id as u32),
            _ => None,
        }
    }

    /// The shape of the images that the model reads in place of texts, if it reads images.
    pub fn image(&self) -> Option<ImageShape> {
        self.style.image()
    }

    /// The number of token ids; 0 if the model reads images.
    pub fn vocabulary(&self) -> usize {
        self.style.vocabulary
    }

    /// The largest number of positions that can go through the model. GPT-2 has a table of positions. Rotary
    /// embeddings have no end, but a model was never trained to tell distances beyond the length that its
    /// configuration states.
    pub fn max_positions(&self) -> usize {
        self.style.max_positions
    }

    /// [`max_positions`](Self::max_positions) for a text that was stated to have `text` positions before its first
    /// token was read. If texts beyond a certain length have another embedding of positions, a text that was stated
    /// to be shorter cannot grow beyond that length: it would have to be read again.
    pub fn max_positions_of(&self, text: Option<usize>) -> usize {
        match (self.style.short_text(), text) {
            (Some(short), Some(text)) if text <= short => short,
            _ => self.style.max_positions,
        }
    }

    /// The model's layers of attention. Layers with keys and values of their own come first. A window into which all
    /// positions fit is left out.
    pub fn attention(&self) -> Layers {
        let Style { heads, max_positions, windows, score_cap, encoder, .. } = &*self.style;
        let own = self.style.own_layers();
        let windows = windows[..own].iter().map(|window| window.filter(|w| w < max_positions)).collect();
        Layers {
            heads: heads[..own].to_vec(),
            windows,
            shared: self.style.shared().collect(),
            soft_cap: *score_cap,
            causal: encoder.is_none(),
            texts: 1,
        }
    }

    /// Names and shapes of the tensors that a checkpoint must hold.
    pub fn tensors(&self) -> Vec<TensorSpec> {
        self.style.tensors()
    }

    /// Refuses a cache policy whose settings do not fit the model, or that has no layer to act on.
    pub fn check_policy(&self, policy: &PolicySpec) -> Result<(), Error> {
        let layers = self.attention();
        if self.is_encoder() && !policy.keeps_all() {
            return Err(Error::Encoder { what: "a cache policy" });
        }
        if policy.shed().is_some() && self.fills_mask() {
            return Err(Error::Shed { what: "the row of the mask might end" });
        }
        policy.check_shed(layers.windows.len())?;
        if *policy != PolicySpec::default() {
            self.check_shared(policy.name())?;
        }
        if !layers.take(policy) {
            return Err(Error::WindowedPolicy(policy.to_string()));
        }
        Ok(policy.check(layers.pruned(), layers.pruned_heads())?)
    }

    /// Refuses the pruning cache policy `policy` if layers of the model read the keys and values of other layers.
    ///
    /// # Errors
    /// [`Error::SharedPolicy`].
    pub fn check_shared(&self, policy: &str) -> Result<(), Error> {
        match self.attention().shared.is_empty() {
            true => Ok(()),
            false => Err(Error::SharedPolicy(policy.to_owned())),
        }
    }

    /// Refuses token ids that the model does not have.
    pub fn check_ids(&self, ids: &[u32]) -> Result<(), Error> {
        let vocabulary = self.vocabulary();
        match ids.iter().find(|id| **id as usize >= vocabulary) {
            Some(&id) => Err(waggle_engine::Error::Token { id, vocabulary }.into()),
            None => Ok(()),
        }
    }

    /// The number of parameters, as published.
    pub fn parameters(&self) -> usize {
        self.tensors().iter().map(|t| t.shape.iter().product::<usize>()).sum()
    }
}

#[cfg(test)]
mod tests;
