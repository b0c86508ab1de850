//! The shapes of GPT-2 small that are measured.

use mpcache::HeadShape;

/// Heads of a layer.
pub(crate) const HEADS: HeadShape = HeadShape { heads: 12, kv_heads: 12, head_dim: 64 };

/// Layers that are run: an even one and the odd one that may follow its choice.
pub(crate) const LAYERS: usize = 2;

/// Layers of the model.
pub(crate) const MODEL_LAYERS: usize = 12;

/// How often the layers that are run count in a step of the model.
pub(crate) const PAIRS: f64 = MODEL_LAYERS as f64 / LAYERS as f64;
