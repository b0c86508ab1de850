//! What every family of models says of itself.

use mpcache::HeadShape;

use crate::checkpoint::TensorSpec;
use crate::config::{ConfigError, Keys};

/// A configuration: all that both parties must know of a model, read from its `config.json`.
///
/// A family is one file, which holds the configuration with this trait, the tensors, the weights and the program, and
/// one line in [`families`](crate::families).
pub(crate) trait Family: Sized {
    /// Names in `architectures`, the first of which is that of the language model.
    const CLASSES: &'static [&'static str];

    /// Keys that the program reads and that models of most other families must not have: see
    /// [`foreign`](crate::config::foreign).
    const READS: &'static [&'static str] = &[];

    /// What a norm publishes for a gain of 1.
    const UNIT_GAIN: f32 = 1.0;

    /// Reads the configuration. What is not supported is refused by key and value.
    fn parse(keys: &Keys) -> Result<Self, ConfigError>;

    /// Refuses sizes that are not safe to multiply, and numbers that make no model. A peer may have sent them.
    fn check(&self) -> Result<(), ConfigError>;

    /// Its sizes.
    fn dimensions(&self) -> Dimensions<'_>;

    /// For every layer how many tokens a query sees, its own included; `None` for all.
    fn windows(&self) -> Vec<Option<usize>> {
        vec![None; self.dimensions().layers]
    }

    /// What scores are capped at, if they are.
    fn score_cap(&self) -> Option<f32> {
        None
    }

    /// What logits are capped at, if they are.
    fn logit_cap(&self) -> Option<f32> {
        None
    }

    /// The context of the training, where longer texts, of which it is public that they are, have another embedding
    /// of positions from the first token on.
    fn short_text(&self) -> Option<usize> {
        None
    }

    /// Published tensors.
    fn tensors(&self) -> Vec<TensorSpec>;

    /// What the tensor `name` is, which the program does not read but knows to change nothing.
    fn buffer(&self, name: &str) -> Option<Buffer>;
}

/// Sizes of a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dimensions<'a> {
    /// Heads of every attention layer.
    pub(crate) heads: HeadShape,
    /// Number of layers.
    pub(crate) layers: usize,
    /// Length of a residual vector.
    pub(crate) hidden: usize,
    /// Number of token ids.
    pub(crate) vocabulary: usize,
    /// Most positions.
    pub(crate) max_positions: usize,
    /// Ids that end a text.
    pub(crate) eos: &'a [u32],
}

/// A tensor that is known to change nothing.
pub(crate) enum Buffer {
    /// Ones on and below the diagonal.
    CausalMask,
    /// A masked score.
    MaskedBias,
    /// Frequencies of a rotary embedding: one of these lists.
    Frequencies(Vec<Vec<f32>>),
    /// A head that is tied to the embedding of this name.
    TiedHead(&'static str),
}

/// The number of the layer in a name like `layers.3.attention`, between `before` and `after`, if it is below
/// `layers`.
pub(crate) fn layer_index(name: &str, before: &str, after: &str, layers: usize) -> Option<usize> {
    let index = name.strip_prefix(before)?.strip_suffix(after)?;
    index.parse::<usize>().ok().filter(|i| *i < layers)
}
