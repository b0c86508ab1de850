//! Rotary embeddings in a `config.json`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::keys::{ConfigError, Keys, unsupported};
use super::{MAX_POSITIONS, positive};

/// The stretching of rotary frequencies, for contexts longer than that of the training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeScaling {
    /// The frequencies stay as trained.
    None,
    /// All frequencies are divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3.1: low frequencies are divided by `factor`, high ones are kept, and a ramp lies between them.
    Llama3 {
        /// The divisor of low frequencies.
        factor: f64,
        /// Wavelengths above the original context divided by this number are low frequencies.
        low_freq_factor: f64,
        /// Wavelengths below the original context divided by this number are high frequencies.
        high_freq_factor: f64,
        /// The context of the training, before stretching.
        original_max_position_embeddings: f64,
    },
    /// LongRoPE: every frequency has two divisors, one for texts up to the original context and one for longer texts.
    LongRope {
        /// The divisors in texts of up to `original_max_position_embeddings` tokens.
        short_factor: Vec<f64>,
        /// The divisors in longer texts.
        long_factor: Vec<f64>,
        /// The context of the training, before stretching.
        original_max_position_embeddings: usize,
        /// The factor by which sines and cosines are multiplied.
        attention_factor: f64,
    },
    /// The frequencies are those that a head would have if all its coordinates turned, divided by `factor`. A pair
    /// has one coordinate in the first half of a head and one in the second.
    Proportional {
        /// The divisor.
        factor: f64,
    },
}

/// A rotary embedding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RopeConfig {
    /// Base of the frequencies.
    pub rope_theta: f64,
    /// Stretching of the frequencies.
    pub rope_scaling: RopeScaling,
    /// The share of a head's coordinates that turn: the first ones.
    pub partial_rotary_factor: f64,
}

/// The rotary embeddings that a family may have, and the values of missing keys.
#[derive(Clone, Copy)]
pub(crate) struct RopeDefaults {
    /// Known values of `rope_type`.
    pub(crate) kinds: &'static [&'static str],
    /// The base of the frequencies; `None` if the configuration must state it.
    pub(crate) rope_theta: Option<f64>,
    /// The share of a head's coordinates that turn; `None` if all of them turn.
    pub(crate) partial_rotary_factor: Option<f64>,
    pub(crate) max_position_embeddings: usize,
    /// The length of the context before stretching.
    pub(crate) original_max_position_embeddings: Option<usize>,
}

impl RopeDefaults {
    /// The defaults for a configuration that states the numbers of its rotary embedding at its top level, with the
    /// base under the key `theta`.
    pub(crate) fn beside(&self, keys: &Keys, theta: &str) -> Result<Self, ConfigError> {
        let partial = keys.number("partial_rotary_factor")?;
        if let (None, Some(partial)) = (self.partial_rotary_factor, partial.filter(|partial| *partial != 1.0)) {
            return Err(unsupported("partial_rotary_factor", partial, "only 1"));
        }
        let original = keys.size(&["original_max_position_embeddings"])?;
        Ok(RopeDefaults {
            rope_theta: keys.number(theta)?.or(self.rope_theta),
            partial_rotary_factor: self.partial_rotary_factor.map(|default| partial.unwrap_or(default)),
            original_max_position_embeddings: original.or(self.original_max_position_embeddings),
            ..*self
        })
    }
}

/// The types of layers that may have rotary embeddings of their own.
const LAYER_TYPES: [&str; 2] = ["full_attention", "sliding_attention"];

/// The object under a key. An empty object counts as absent.
fn object<'k>(keys: &'k Keys, key: &str) -> Result<Option<&'k Map<String, Value>>, ConfigError> {
    Ok(keys.read(key, "an object or null", Value::as_object)?.filter(|map| !map.is_empty()))
}

impl RopeConfig {
    /// Reads `rope_theta`, `partial_rotary_factor` and `rope_scaling`, or instead `rope_parameters`, which holds all
    /// three (transformers 5). If `rope_scaling` and `rope_parameters` are both there, `rope_scaling` counts, as in
    /// transformers.
    pub(crate) fn read(keys: &Keys, defaults: &RopeDefaults) -> Result<Self, ConfigError> {
        let empty = Map::new();
        let (name, map) = match (object(keys, "rope_scaling")?, object(keys, "rope_parameters")?) {
            (Some(map), _) => ("rope_scaling", map),
            (None, Some(map)) => ("rope_parameters", map),
            (None, None) => ("rope_scaling", &empty),
        };
        RopeConfig::of(name, map, &defaults.beside(keys, "rope_theta")?)
    }

    /// The embeddings of layers that see all tokens and of layers with a window, in this order. `rope_parameters` has
    /// each embedding under the type of its layers. An embedding that is missing there has its `defaults`.
    /// `rope_scaling` applies to layers that see all tokens.
    pub(crate) fn by_layer(keys: &Keys, defaults: &[RopeDefaults; 2]) -> Result<[Self; 2], ConfigError> {
        let all = object(keys, "rope_parameters")?;
        if let Some((key, value)) = all.into_iter().flatten().find(|(key, _)| !LAYER_TYPES.contains(&key.as_str())) {
            let why = format!("numbers for each of {}", LAYER_TYPES.join(" and "));
            return Err(unsupported(&format!("rope_parameters.{key}"), value, why));
        }
        let of = |kind: &str, scaling: Option<&Map<String, Value>>, defaults: &RopeDefaults| {
            let own = all.map(Keys).map(|all| object(&all, kind).map(Option::<&Map<_, _>>::cloned)).transpose()?;
            let mut map = own.flatten().unwrap_or_default();
            map.extend(scaling.cloned().unwrap_or_default());
            // A context that is stated outside the embeddings applies to none of them.
            let defaults = RopeDefaults { original_max_position_embeddings: None, ..*defaults };
            RopeConfig::of(&format!("rope_parameters.{kind}"), &map, &defaults)
        };
        Ok([
            of(LAYER_TYPES[0], object(keys, "rope_scaling")?, &defaults[0])?,
            of(LAYER_TYPES[1], None, &defaults[1])?,
        ])
    }

    /// Reads the object `map`, which is called `name`.
    fn of(name: &str, map: &Map<String, Value>, defaults: &RopeDefaults) -> Result<Self, ConfigError> {
        if let Some((key, value)) = map.iter().find(|(_, value)| value.is_object()) {
            return Err(unsupported(&format!("{name}.{key}"), value, "one set of numbers for all layers"));
        }
        let inner = Keys(map);
        let missing = |key: &str, what| unsupported(&format!("{name}.{key}"), "missing", what);
        let need = |key: &str| inner.number(key)?.ok_or_else(|| missing(key, "a positive number"));
        let list = |key: &str| {
            let numbers = |v: &Value| v.as_array()?.iter().map(Value::as_f64).collect::<Option<Vec<_>>>();
            inner.read(key, "a list of numbers", numbers)?.ok_or_else(|| missing(key, "a list of numbers"))
        };
        let kind = match inner.text("rope_type")? {
            Some(kind) => kind,
            None => inner.text("type")?.unwrap_or("default"),
        };
        // The first checkpoints with LongRoPE call it `su`.
        let kind = if kind == "su" { "longrope" } else { kind };
        let known = kind == "none" || defaults.kinds.contains(&kind);
        let rope_scaling = match kind {
            _ if !known => return Err(unsupported(&format!("{name}.rope_type"), kind, defaults.kinds.join(", "))),
            "linear" => RopeScaling::Linear { factor: need("factor")? },
            "proportional" => RopeScaling::Proportional { factor: inner.number("factor")?.unwrap_or(1.0) },
            "llama3" => RopeScaling::Llama3 {
                factor: need("factor")?,
                low_freq_factor: need("low_freq_factor")?,
                high_freq_factor: need("high_freq_factor")?,
                original_max_position_embeddings: match defaults.original_max_position_embeddings {
                    Some(original) => original as f64,
                    None => inner
                        .number("original_max_position_embeddings")?
                        .unwrap_or(defaults.max_position_embeddings as f64),
                },
            },
            "longrope" => {
                let context = defaults.max_position_embeddings;
                let original = defaults.original_max_position_embeddings.unwrap_or(context);
                let factor = inner.number("factor")?.unwrap_or(context as f64 / original as f64);
                let published =
                    || if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / (original as f64).ln()).sqrt() };
                RopeScaling::LongRope {
                    short_factor: list("short_factor")?,
                    long_factor: list("long_factor")?,
                    original_max_position_embeddings: original,
                    attention_factor: inner.number("attention_factor")?.unwrap_or_else(published),
                }
            }
            _ => RopeScaling::None,
        };
        let partial = inner.number("partial_rotary_factor")?.or(defaults.partial_rotary_factor);
        if let (None, Some(partial)) = (defaults.partial_rotary_factor, partial.filter(|partial| *partial != 1.0)) {
            return Err(unsupported("partial_rotary_factor", partial, "only 1"));
        }
        let rope_theta = match defaults.rope_theta {
            Some(theta) => inner.number("rope_theta")?.unwrap_or(theta),
            None => need("rope_theta")?,
        };
        Ok(RopeConfig { rope_theta, rope_scaling, partial_rotary_factor: partial.unwrap_or(1.0) })
    }

    /// The number of coordinates that turn in a head with `head_dim` coordinates.
    pub(crate) fn turned(&self, head_dim: usize) -> usize {
        (head_dim as f64 * self.partial_rotary_factor) as usize
    }

    /// The context of the training, if longer texts have other frequencies.
    pub(crate) fn short_text(&self) -> Option<usize> {
        match self.rope_scaling {
            RopeScaling::LongRope { original_max_position_embeddings, .. } => Some(original_max_position_embeddings),
            _ => None,
        }
    }

    pub(crate) fn check(&self, head_dim: usize) -> Result<(), ConfigError> {
        positive("rope_theta", self.rope_theta)?;
        let turned = self.turned(head_dim);
        let fits = (0.0..=1.0).contains(&self.partial_rotary_factor) && turned > 0 && turned.is_multiple_of(2);
        if !fits {
            let why = format!("an even number of {head_dim} coordinates must turn");
            return Err(unsupported("partial_rotary_factor", self.partial_rotary_factor, why));
        }
        self.rope_scaling.check(turned)
    }
}

impl RopeScaling {
    /// The largest number of positions of a model whose configuration states `context` positions. A configuration
    /// states the number before a linear stretching, and the number after any other.
    pub(crate) fn positions(&self, context: usize) -> usize {
        let stretched = match self {
            RopeScaling::Linear { factor } => (context as f64 * factor) as usize,
            _ => context,
        };
        stretched.min(MAX_POSITIONS).max(context)
    }

    /// Checks the embedding for heads of which `turned` coordinates turn.
    pub(crate) fn check(&self, turned: usize) -> Result<(), ConfigError> {
        match self {
            RopeScaling::None => Ok(()),
            RopeScaling::Linear { factor } | RopeScaling::Proportional { factor } => {
                positive("rope_scaling.factor", *factor)
            }
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings } => {
                positive("rope_scaling.factor", *factor)?;
                positive("rope_scaling.low_freq_factor", *low_freq_factor)?;
                positive("rope_scaling.original_max_position_embeddings", *original_max_position_embeddings)?;
                positive("rope_scaling.high_freq_factor", *high_freq_factor)?;
                if high_freq_factor <= low_freq_factor {
                    let why = format!("must exceed low_freq_factor = {low_freq_factor}");
                    return Err(unsupported("rope_scaling.high_freq_factor", high_freq_factor, why));
                }
                Ok(())
            }
            RopeScaling::LongRope {
                short_factor,
                long_factor,
                original_max_position_embeddings,
                attention_factor,
            } => {
                positive("original_max_position_embeddings", *original_max_position_embeddings as f64)?;
                positive("rope_scaling.attention_factor", *attention_factor)?;
                for (key, factors) in
                    [("rope_scaling.short_factor", short_factor), ("rope_scaling.long_factor", long_factor)]
                {
                    if factors.len() != turned / 2 {
                        return Err(unsupported(key, format!("{factors:?}"), format!("{} divisors", turned / 2)));
                    }
                    factors.iter().try_for_each(|factor| positive(key, *factor))?;
                }
                Ok(())
            }
        }
    }
}
