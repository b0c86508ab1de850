//! Typed look-ups in a `config.json`, and how they fail.

use serde_json::{Map, Value};
use thiserror::Error;

use super::{MAX_LABELS, size};
use crate::hints;

/// Why a configuration cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The text is not JSON, or not a JSON object.
    #[error("config.json is not a JSON object: {0}")]
    Json(String),
    /// The value of a known key is not supported.
    #[error("config.json: `{key}` = {value} is not supported ({why})")]
    Unsupported {
        /// The key.
        key: String,
        /// The value of the key.
        value: String,
        /// The supported values.
        why: String,
    },
}

/// The error for a refused value of a key. `why` says what is supported.
pub(crate) fn unsupported(key: &str, value: impl ToString, why: impl Into<String>) -> ConfigError {
    ConfigError::Unsupported { key: key.into(), value: value.to_string(), why: why.into() }
}

/// The keys and values of a `config.json`.
pub(crate) fn object(text: &[u8]) -> Result<Map<String, Value>, ConfigError> {
    match serde_json::from_slice(text) {
        Ok(Value::Object(keys)) => Ok(keys),
        Ok(_) => Err(ConfigError::Json("not an object".into())),
        Err(error) => Err(ConfigError::Json(hints::of_json(text, &error))),
    }
}

/// Typed look-ups of keys. JSON null counts as absent.
pub(crate) struct Keys<'a>(pub(crate) &'a Map<String, Value>);

impl Keys<'_> {
    /// The value of a key.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key).filter(|v| !v.is_null())
    }

    /// The value of a key, converted; `why` says what is supported.
    pub(crate) fn read<'a, T>(
        &'a self,
        key: &str,
        why: &str,
        convert: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        convert(value).map(Some).ok_or_else(|| unsupported(key, value, why))
    }

    /// The value of a size that has several names: the first of `names` that is there counts.
    pub(crate) fn size(&self, names: &[&str]) -> Result<Option<usize>, ConfigError> {
        for key in names {
            let found = self.read(key, "a size", |v| v.as_u64().and_then(|n| usize::try_from(n).ok()))?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// The value of a key that holds a number.
    pub(crate) fn number(&self, key: &str) -> Result<Option<f64>, ConfigError> {
        self.read(key, "a number", Value::as_f64)
    }

    /// The value of a key that holds true or false.
    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>, ConfigError> {
        self.read(key, "true or false", Value::as_bool)
    }

    /// The value of a key that holds a string.
    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>, ConfigError> {
        self.read(key, "a string", Value::as_str)
    }

    /// Whether the weights are those of a model that fills a mask. The head of such a model must be the embedding.
    pub(crate) fn fills_mask(&self) -> Result<bool, ConfigError> {
        let names = self.read("architectures", "a list of names", Value::as_array)?;
        let first = names.and_then(|names| names.first()).and_then(Value::as_str);
        let masked = first.is_some_and(|name| name.ends_with("ForMaskedLM"));
        if masked && self.flag("tie_word_embeddings")? == Some(false) {
            return Err(unsupported("tie_word_embeddings", false, "only true where a mask is filled"));
        }
        Ok(masked)
    }

    /// The names of the classes: those of `id2label` in the order of their numbers, or else made-up names for
    /// `num_labels` classes, or for two classes if that key is missing, too. A model that fills a mask has no
    /// classes.
    pub(crate) fn labels(&self) -> Result<Vec<String>, ConfigError> {
        if self.fills_mask()? {
            return Ok(Vec::new());
        }
        let named: Option<Vec<String>> = self.read("id2label", "names by the numbers 0, 1, ...", |v| {
            let names = v.as_object()?;
            (0..names.len()).map(|i| names.get(&i.to_string())?.as_str().map(str::to_owned)).collect()
        })?;
        let count = self.size(&["num_labels"])?;
        match (named, count) {
            (Some(named), Some(count)) if named.len() != count => {
                Err(unsupported("num_labels", count, format!("id2label has {}", named.len())))
            }
            (Some(named), _) => {
                size("id2label", named.len(), MAX_LABELS)?;
                Ok(named)
            }
            (None, count) => {
                let count = count.unwrap_or(2);
                size("num_labels", count, MAX_LABELS)?;
                Ok((0..count).map(|i| format!("LABEL_{i}")).collect())
            }
        }
    }

    /// Whether each of the `labels` is decided independently of the others. Otherwise the model chooses one of them.
    pub(crate) fn multi_label(&self, labels: &[String]) -> Result<bool, ConfigError> {
        match self.text("problem_type")? {
            Some("multi_label_classification") => Ok(true),
            Some("regression") if labels.len() > 1 => {
                Err(unsupported("problem_type", "regression", "only with one label: several are classes"))
            }
            None | Some("single_label_classification" | "regression") => Ok(false),
            Some(other) => {
                let known = "single_label_classification, multi_label_classification and regression";
                Err(unsupported("problem_type", other, known))
            }
        }
    }

    /// The ids under a key, which holds one id or a list. An explicit null means that the model has none.
    pub(crate) fn ids(&self, key: &str) -> Result<Option<Vec<u32>>, ConfigError> {
        let id = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
        match self.0.get(key) {
            Some(Value::Null) => Ok(Some(Vec::new())),
            _ => self.read(key, "a token id or a list of them", |v| match v {
                Value::Array(list) => list.iter().map(id).collect(),
                one => id(one).map(|id| vec![id]),
            }),
        }
    }
}
