//! The layers of attention of a model, which are public.

use crate::{HeadShape, PolicySpec};

/// The layers of attention of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Layers {
    /// The heads of each layer that has keys and values of its own. All layers that see all tokens have the same
    /// heads.
    pub heads: Vec<HeadShape>,
    /// For each layer with keys and values of its own, how many tokens a query sees, its own included; `None` for all
    /// tokens.
    pub windows: Vec<Option<usize>>,
    /// For each of the last layers, which have no keys and values, the index of the layer whose keys and values it
    /// reads.
    pub shared: Vec<usize>,
    /// The bound at which scores are [capped](waggle_engine::Engine::soft_cap) before the softmax, if they are
    /// capped.
    pub soft_cap: Option<f32>,
    /// Whether a query sees only its own token and those before it. In an encoder it sees all tokens.
    pub causal: bool,
    /// The number of texts of one length that are read side by side. No text sees another: each has heads of its own.
    pub texts: usize,
}

impl Layers {
    /// `layers` layers with the heads `heads`. All of them see all tokens.
    pub fn global(layers: usize, heads: HeadShape) -> Self {
        let (heads, windows) = (vec![heads; layers], vec![None; layers]);
        Layers { heads, windows, shared: Vec::new(), soft_cap: None, causal: true, texts: 1 }
    }

    /// The same layers without windows, for a policy that watches every layer, whatever heads the layer has.
    pub fn without_windows(self) -> Self {
        Layers { windows: vec![None; self.windows.len()], ..self }
    }

    /// The heads of the layers that see all tokens, or of the first layer if no layer sees all tokens.
    pub fn pruned_heads(&self) -> HeadShape {
        let layer = self.windows.iter().position(Option::is_none);
        self.heads[layer.unwrap_or_default()]
    }

    /// The heads of all texts together, where one text has the heads `one`. The heads of the first text come first.
    pub(crate) fn all_heads(&self, one: HeadShape) -> HeadShape {
        HeadShape { heads: self.texts * one.heads, kv_heads: self.texts * one.kv_heads, ..one }
    }

    /// The number of layers that see all tokens. A cache policy acts on these layers only: a layer with a window
    /// keeps its window under every policy.
    pub fn pruned(&self) -> usize {
        self.windows.iter().filter(|window| window.is_none()).count()
    }

    /// Whether the layers can be read by `policy`. The policy `full` needs no layer to act on, so it is always
    /// possible. Other policies need a layer that sees all tokens. They act neither on an encoder nor on a model
    /// whose later layers read keys and values of an earlier layer. Nor do rows of a prompt end before such a layer.
    pub fn take(&self, policy: &PolicySpec) -> bool {
        let own = self.shared.is_empty();
        policy.keeps_all() && (own || policy.shed().is_none()) || (self.causal && self.pruned() > 0 && own)
    }
}
