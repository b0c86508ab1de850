//! The cache of a generation: a store per layer, read by one policy.

use engine::{Engine, Error, Tensor};

use crate::{HeadShape, Padding, Policy, PolicySpec, Store};

/// The cache of one generation: a store per layer and the policy that reads them.
pub struct KvCache<E: Engine> {
    stores: Vec<Store<E>>,
    policy: Box<dyn Policy<E>>,
}

impl<E: Engine> KvCache<E> {
    /// An empty cache for `layers` layers of equal `shape`, read by the policy that `spec` names.
    pub fn new(layers: usize, shape: HeadShape, spec: &PolicySpec) -> Self {
        Self::with_policy(layers, shape, spec.build(layers, shape))
    }

    /// An empty cache read by a policy from outside this crate.
    pub fn with_policy(layers: usize, shape: HeadShape, policy: Box<dyn Policy<E>>) -> Self {
        KvCache { stores: (0..layers).map(|layer| Store::new(layer, shape)).collect(), policy }
    }

    /// Says that the first tokens of the prompt are padding. Before the first token, under the policy `full` alone: the
    /// others would choose among tokens that stand for nothing.
    pub fn pad(&mut self, padding: Padding) {
        self.stores.iter_mut().for_each(|store| store.pad(padding));
    }

    /// The padding of the prompt, if there may be some.
    pub fn padding(&self) -> Option<Padding> {
        self.stores.first().and_then(Store::padding)
    }

    /// Number of tokens seen: the position of the next one.
    pub fn tokens(&self) -> usize {
        self.stores.first().map_or(0, Store::seen)
    }

    /// How many of the last of `new` tokens need a query, although only the last one's output is wanted.
    pub fn query_window(&self, layer: usize, new: usize) -> usize {
        self.policy.query_window(layer, new).clamp(1, new)
    }

    /// What the last query attended to, see [`Policy::attended`].
    pub fn attended(&self, layer: usize) -> Option<&[Vec<usize>]> {
        self.policy.attended(layer)
    }

    /// Appends the new tokens' `k` and `v` (new tokens, kv_heads * head_dim) to `layer` and attends with the queries
    /// `q` (heads, rows, head_dim) of the last `rows` of these tokens, scaled and rotated: (rows, heads * head_dim).
    pub fn attend(
        &mut self,
        engine: &mut E,
        layer: usize,
        q: &E::Tensor,
        k: &E::Tensor,
        v: &E::Tensor,
    ) -> Result<E::Tensor, Error> {
        let store = &mut self.stores[layer];
        store.append(k, v);
        let mixed = self.policy.attend(engine, layer, q, store)?;
        let rows = q.shape()[1];
        let HeadShape { heads, head_dim, .. } = store.heads();
        Ok(mixed.permute(&[1, 0, 2]).reshape(&[rows, heads * head_dim]))
    }
}
