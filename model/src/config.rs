//! Public shape of a model, read from a Hugging Face `config.json`.
//!
//! Missing keys take the defaults of `transformers`. A key is refused by name and value if its value changes the
//! computation in a way that is not implemented here; this includes keys of other architectures ([`foreign`]). All
//! remaining keys are ignored.

mod common;
pub(crate) mod experts;
pub(crate) mod foreign;
pub(crate) mod generation;
mod keys;
mod quantization;
mod rope;
mod windows;
mod wrapper;

pub use common::Common;
pub(crate) use common::Defaults;
pub use keys::ConfigError;
pub(crate) use keys::{Keys, object, unsupported};
pub use quantization::Quantization;
pub(crate) use rope::RopeDefaults;
pub use rope::{RopeConfig, RopeScaling};
pub use windows::Windows;
pub(crate) use windows::{check_length, window, window_layers};
pub(crate) use wrapper::{Place, Wrapper, text_model};

pub(crate) use crate::activation::Activation;

/// The longest `config.json` or other file of settings that is read.
pub(crate) const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// Refuses the size 0 and sizes above `max`, which exceeds the size of every published model. Sums and products of a
/// few sizes then stay far from overflow.
pub(crate) fn size(key: &str, value: usize, max: usize) -> Result<(), ConfigError> {
    if value == 0 || value > max { Err(unsupported(key, value, format!("1 to {max}"))) } else { Ok(()) }
}

pub(crate) const MAX_LAYERS: usize = 1 << 12;
pub(crate) const MAX_WIDTH: usize = 1 << 16;
pub(crate) const MAX_VOCABULARY: usize = 1 << 24;
pub(crate) const MAX_POSITIONS: usize = 1 << 28;
pub(crate) const MAX_LABELS: usize = 1 << 16;

pub(crate) fn positive(key: &str, value: f64) -> Result<(), ConfigError> {
    if value.is_finite() && value > 0.0 { Ok(()) } else { Err(unsupported(key, value, "a positive number")) }
}

pub(crate) fn epsilon(key: &str, value: f32) -> Result<(), ConfigError> {
    if (0.0..1.0).contains(&value) { Ok(()) } else { Err(unsupported(key, value, "0 to 1")) }
}

impl Keys<'_> {
    pub(crate) fn activation(&self, key: &str, default: Activation) -> Result<Activation, ConfigError> {
        let Some(name) = self.text(key)? else { return Ok(default) };
        Activation::published(name).ok_or_else(|| unsupported(key, name, Activation::known().join(", ")))
    }
}
