//! Rotary embeddings in a `config.json`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::keys::{ConfigError, Keys, unsupported};
use super::{MAX_POSITIONS, positive};

/// Stretching of rotary frequencies, for contexts longer than the training's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeScaling {
    /// As trained.
    None,
    /// All frequencies divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3.1: low frequencies divided by `factor`, high ones kept, a ramp between.
    Llama3 {
        /// The divisor of low frequencies.
        factor: f64,
        /// Wavelengths above original context / this are low frequencies.
        low_freq_factor: f64,
        /// Wavelengths below original context / this are high frequencies.
        high_freq_factor: f64,
        /// Context of the training before stretching.
        original_max_position_embeddings: f64,
    },
    /// LongRoPE: every frequency has a divisor, another one in texts longer than the original context.
    LongRope {
        /// The divisors in texts of up to `original_max_position_embeddings` tokens.
        short_factor: Vec<f64>,
        /// Those in longer texts.
        long_factor: Vec<f64>,
        /// Context of the training before stretching.
        original_max_position_embeddings: usize,
        /// Factor of sines and cosines.
        attention_factor: f64,
    },
    /// Frequencies as if all coordinates turned, divided by `factor`; pairs of the first half of a head and the
    /// second.
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

impl RopeConfig {
    /// Reads `rope_theta`, `rope_scaling` and `partial_rotary_factor`, or `rope_parameters` that hold all
    /// (transformers 5). Of a model with LongRoPE `original` is the context before stretching.
    pub(crate) fn read(
        keys: &Keys,
        context: usize,
        original: Option<usize>,
        (theta, partial): (f64, f64),
    ) -> Result<Self, ConfigError> {
        let empty = Map::new();
        let object = |key: &str| match keys.0.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(other) => Err(unsupported(key, other, "an object or null")),
        };
        // A `rope_scaling` of null beside `rope_parameters` is how newer configurations are read by older programs.
        let (name, map) = match (object("rope_parameters")?, object("rope_scaling")?) {
            (Some(map), _) => ("rope_parameters", map),
            (None, Some(map)) => ("rope_scaling", map),
            (None, None) => ("rope_scaling", &empty),
        };
        if let Some((key, value)) = map.iter().find(|(_, value)| value.is_object()) {
            return Err(unsupported(&format!("{name}.{key}"), value, "one set of numbers for all layers"));
        }
        let inner = Keys(map);
        let either = |key: &str, default: f64| -> Result<f64, ConfigError> {
            Ok(match inner.number(key)? {
                Some(value) => value,
                None => keys.number(key)?.unwrap_or(default),
            })
        };
        let need = |key: &str| {
            inner.number(key)?.ok_or_else(|| unsupported(&format!("{name}.{key}"), "missing", "a positive number"))
        };
        let list = |key: &str| {
            let numbers = |v: &Value| v.as_array()?.iter().map(Value::as_f64).collect::<Option<Vec<_>>>();
            let found = inner.read(key, "a list of numbers", numbers)?;
            found.ok_or_else(|| unsupported(&format!("{name}.{key}"), "missing", "a list of numbers"))
        };
        let kind = match inner.text("rope_type")? {
            Some(kind) => kind,
            None => inner.text("type")?.unwrap_or("default"),
        };
        let rope_scaling = match (kind, original) {
            ("default" | "none", _) => RopeScaling::None,
            ("linear", _) => RopeScaling::Linear { factor: need("factor")? },
            ("llama3", _) => RopeScaling::Llama3 {
                factor: need("factor")?,
                low_freq_factor: need("low_freq_factor")?,
                high_freq_factor: need("high_freq_factor")?,
                original_max_position_embeddings: inner
                    .number("original_max_position_embeddings")?
                    .unwrap_or(context as f64),
            },
            // The first checkpoints call it by another name.
            ("longrope" | "su", Some(original)) => {
                let factor = context as f64 / original as f64;
                let published =
                    || if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / (original as f64).ln()).sqrt() };
                RopeScaling::LongRope {
                    short_factor: list("short_factor")?,
                    long_factor: list("long_factor")?,
                    original_max_position_embeddings: original,
                    attention_factor: inner.number("attention_factor")?.unwrap_or_else(published),
                }
            }
            (other, None) => {
                return Err(unsupported(&format!("{name}.rope_type"), other, "default, linear and llama3"));
            }
            (other, Some(_)) => {
                return Err(unsupported(&format!("{name}.rope_type"), other, "default, linear, llama3 and longrope"));
            }
        };
        Ok(RopeConfig {
            rope_theta: either("rope_theta", theta)?,
            rope_scaling,
            partial_rotary_factor: either("partial_rotary_factor", partial)?,
        })
    }

    /// Coordinates of a head of `head_dim` that turn.
    pub(crate) fn turned(&self, head_dim: usize) -> usize {
        (head_dim as f64 * self.partial_rotary_factor) as usize
    }

    /// The context of the training, where longer texts have other frequencies.
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
    /// The most positions of a model with `context` positions by its configuration, which are those before a linear
    /// scaling and those after any other.
    pub(crate) fn positions(&self, context: usize) -> usize {
        let stretched = match self {
            RopeScaling::Linear { factor } => (context as f64 * factor) as usize,
            _ => context,
        };
        stretched.min(MAX_POSITIONS).max(context)
    }

    /// Checks it for heads of which `turned` coordinates turn.
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
