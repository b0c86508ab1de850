//! Windows of attention in a `config.json`.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ConfigError, Keys, MAX_LAYERS, unsupported};

/// The window of a model, and the layers that have it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Windows {
    /// The number of tokens that a query sees in a layer with the window, its own included; `None` for all tokens.
    pub sliding_window: Option<usize>,
    /// Whether each layer has the window.
    pub window_layers: Vec<bool>,
}

impl Windows {
    /// Reads `sliding_window`, with `default` for a missing key. The layers with this window are those that
    /// `layer_types` names. Without that key, they are those whose index `windowed` accepts.
    pub(crate) fn read(
        keys: &Keys,
        layers: usize,
        default: Option<usize>,
        windowed: impl Fn(usize) -> bool,
    ) -> Result<Self, ConfigError> {
        let sliding_window = window(keys, default)?;
        Ok(Windows { sliding_window, window_layers: window_layers(keys, layers, windowed)? })
    }

    /// Reads the windows of Qwen. If `use_sliding_window` is true, the layers from `max_window_layers` on have a
    /// window.
    pub(crate) fn late(keys: &Keys, layers: usize) -> Result<Self, ConfigError> {
        // Without `use_sliding_window`, a stated window does not apply.
        let windows = keys.flag("use_sliding_window")?.unwrap_or(false);
        let sliding_window = window(keys, Some(4096))?.filter(|_| windows);
        let first = keys.size(&["max_window_layers"])?.unwrap_or(28);
        let windowed = |layer| sliding_window.is_some() && layer >= first;
        Ok(Windows { sliding_window, window_layers: window_layers(keys, layers, windowed)? })
    }

    /// The window of each layer.
    pub(crate) fn each(&self) -> Vec<Option<usize>> {
        self.window_layers.iter().map(|windowed| self.sliding_window.filter(|_| *windowed)).collect()
    }

    /// Refuses a list that does not have one entry for each of `layers` layers, and layers with a window if no window
    /// is stated.
    pub(crate) fn check(&self, layers: usize) -> Result<(), ConfigError> {
        if self.sliding_window.is_none() && self.window_layers.contains(&true) {
            return Err(unsupported(
                "layer_types",
                "sliding_attention",
                "there is no sliding_window, or it is not used",
            ));
        }
        check_length("layer_types", self.window_layers.len(), layers)
    }
}

/// The value of `sliding_window`: `default` if the key is missing, and no window if it is null.
pub(crate) fn window(keys: &Keys, default: Option<usize>) -> Result<Option<usize>, ConfigError> {
    match keys.0.get("sliding_window") {
        None => Ok(default),
        Some(_) => keys.size(&["sliding_window"]),
    }
}

/// For each layer, whether it has a window. The layers with one are those that `layer_types` names, or without that
/// key those whose index `windowed` accepts.
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

/// Checks that a list, which a peer may have sent, has an entry for every layer.
pub(crate) fn check_length(key: &str, list: usize, layers: usize) -> Result<(), ConfigError> {
    if list == layers { Ok(()) } else { Err(unsupported(key, list, format!("one for each of {layers} layers"))) }
}
