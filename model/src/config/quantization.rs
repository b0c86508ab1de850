//! Matrices that are stored in fewer bits.

use serde::{Deserialize, Serialize};

use super::keys::Keys;

/// The key under which a configuration names the form of its matrices.
pub(super) const KEY: &str = "quantization_config";

/// The form in which all matrices of a checkpoint are stored, if they are not stored in floating point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "quant_method")]
pub enum Quantization {
    /// Integers of 8 bits, times a scale for every stored line, as [`quantize`](crate::quantize) writes them.
    #[serde(rename = "waggle-int8")]
    Int8,
}

impl Keys<'_> {
    /// The form of the matrices, if it is one that is known here.
    pub(crate) fn quantization(&self) -> Option<Quantization> {
        self.get(KEY).and_then(|value| Quantization::deserialize(value).ok())
    }
}
