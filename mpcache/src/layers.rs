//! A model's layers of attention: public.

use crate::{HeadShape, PolicySpec};

/// The layers of attention of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Layers {
    /// Heads of every layer.
    pub heads: HeadShape,
    /// For every layer how many tokens a query sees, its own included; `None` for all.
    pub windows: Vec<Option<usize>>,
    /// The bound that scores are [capped](engine::Engine::soft_cap) at before the softmax, if they are.
    pub soft_cap: Option<f32>,
    /// A query sees its own token and those before it, and not all, as in an encoder.
    pub causal: bool,
    /// Texts of one length that are read side by side. None sees another: each has heads of its own.
    pub texts: usize,
}

impl Layers {
    /// `layers` layers that see all tokens.
    pub fn global(layers: usize, heads: HeadShape) -> Self {
        Layers { heads, windows: vec![None; layers], soft_cap: None, causal: true, texts: 1 }
    }

    /// The heads of all texts, those of the first text first.
    pub fn all_heads(&self) -> HeadShape {
        let HeadShape { heads, kv_heads, head_dim } = self.heads;
        HeadShape { heads: self.texts * heads, kv_heads: self.texts * kv_heads, head_dim }
    }

    /// The number of layers that see all tokens. Those are the ones that a cache policy acts on: a layer with a
    /// window keeps its window under every policy.
    pub fn pruned(&self) -> usize {
        self.windows.iter().filter(|window| window.is_none()).count()
    }

    /// Whether `policy` has a layer to act on, or is `full`, which acts on none. No policy acts on an encoder.
    pub fn take(&self, policy: &PolicySpec) -> bool {
        *policy == PolicySpec::default() || (self.causal && self.pruned() > 0)
    }
}
