//! Matrices that are stored in fewer bits.

use serde::{Deserialize, Serialize};

use super::keys::Keys;

/// The key that says so.
pub(super) const KEY: &str = "quantization_config";

/// The form in which all matrices of a checkpoint are stored, where they are no floating-point numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "quant_method")]
pub enum Quantization {
    /// Integers of 8 bits, times a scale for every stored line, as [`quantize`](crate::quantize) writes them.
    #[serde(rename = "waggle-int8")]
    Int8,
}

impl Keys<'_> {
    /// The form of matrices, if it is known here.
    pub(crate) fn quantization(&self) -> Option<Quantization> {
        self.get(KEY).and_then(|value| Quantization::deserialize(value).ok())
    }
}
