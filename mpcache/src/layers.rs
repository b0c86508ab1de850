//! A model's layers of attention: public.

use crate::{HeadShape, PolicySpec};

/// The layers of attention of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Layers {
    /// By layer with keys and values of its own its heads: the same in all layers that see all tokens.
    pub heads: Vec<HeadShape>,
    /// For every such layer how many tokens a query sees, its own included; `None` for all.
    pub windows: Vec<Option<usize>>,
    /// The layers behind these have no keys and values: each reads those of this one.
    pub shared: Vec<usize>,
    /// The bound that scores are [capped](waggle_engine::Engine::soft_cap) at before the softmax, if they are.
    pub soft_cap: Option<f32>,
    /// A query sees its own token and those before it, and not all, as in an encoder.
    pub causal: bool,
    /// Texts of one length that are read side by side. None sees another: each has heads of its own.
    pub texts: usize,
}

impl Layers {
    /// `layers` layers that see all tokens.
    pub fn global(layers: usize, heads: HeadShape) -> Self {
        let (heads, windows) = (vec![heads; layers], vec![None; layers]);
        Layers { heads, windows, shared: Vec::new(), soft_cap: None, causal: true, texts: 1 }
    }

    /// The same layers, all of which see all tokens, for a policy that watches layers of any heads.
    pub fn without_windows(self) -> Self {
        Layers { windows: vec![None; self.windows.len()], ..self }
    }

    /// Heads of the layers that see all tokens, or of the first one if there are none.
    pub fn pruned_heads(&self) -> HeadShape {
        let layer = self.windows.iter().position(Option::is_none);
        self.heads[layer.unwrap_or_default()]
    }

    /// Heads of the shape `one` of all texts, those of the first text first.
    pub(crate) fn all_heads(&self, one: HeadShape) -> HeadShape {
        HeadShape { heads: self.texts * one.heads, kv_heads: self.texts * one.kv_heads, ..one }
    }

    /// The number of layers that see all tokens. Those are the ones that a cache policy acts on: a layer with a
    /// window keeps its window under every policy.
    pub fn pruned(&self) -> usize {
        self.windows.iter().filter(|window| window.is_none()).count()
    }

    /// Whether `policy` has a layer to act on, or is `full`, which acts on none. No policy acts on an encoder, nor
    /// where later layers read what an earlier one would have pruned.
    pub fn take(&self, policy: &PolicySpec) -> bool {
        *policy == PolicySpec::default() || (self.causal && self.pruned() > 0 && self.shared.is_empty())
    }
}
