//! The cache of a generation: a store per layer, read by one policy.

use engine::{Ceiling, Engine, Error, Tensor};

use crate::{HeadShape, Padding, Policy, PolicySpec, Store};

/// The cache of one generation: a store per layer and the policy that reads them.
pub struct KvCache<E: Engine> {
    stores: Vec<Store<E>>,
    policy: Box<dyn Policy<E>>,
    can_cut: bool,
}

impl<E: Engine> KvCache<E> {
    /// An empty cache for `layers` layers of equal `shape`, read by the policy that `spec` names.
    pub fn new(layers: usize, shape: HeadShape, spec: &PolicySpec) -> Self {
        KvCache { can_cut: spec.can_cut(), ..Self::with_policy(layers, shape, spec.build(layers, shape)) }
    }

    /// An empty cache read by any policy, also one from outside this crate. Nothing is cut from it.
    pub fn with_policy(layers: usize, shape: HeadShape, policy: Box<dyn Policy<E>>) -> Self {
        let store = |layer| {
            let mut store = Store::divided(layer, shape, policy.parts(layer, shape));
            if E::CLEAR {
                store.track();
            }
            store
        };
        KvCache { stores: (0..layers).map(store).collect(), policy, can_cut: false }
    }

    /// Says that the first tokens of the prompt are padding. Called before the first token, and under the policy
    /// `full` alone: other policies would choose among tokens that stand for nothing.
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

    /// Says that the prompt, which comes next and may come in pieces, has `tokens` tokens. Called before the first
    /// token; without it the first tokens that come together are all of the prompt.
    pub fn expect_prompt(&mut self, tokens: usize) {
        self.stores.iter_mut().for_each(|store| store.expect_prompt(tokens));
    }

    /// How many trailing queries of `new` tokens that come next on `layer` the policy observes, up to all of them.
    /// The model computes these, although it needs the output of the last token only, or none.
    pub fn query_window(&self, layer: usize, new: usize) -> usize {
        self.policy.query_window(layer, self.stores[layer].next(new)).min(new)
    }

    /// Layers of the same class cost the same, see [`Policy::layer_class`].
    pub fn layer_class(&self, layer: usize) -> usize {
        self.policy.layer_class(layer)
    }

    /// How many tokens of the prompt the policy wants to read at a time, see [`Policy::prefill_chunk`].
    pub fn prefill_chunk(&self) -> Option<usize> {
        self.policy.prefill_chunk()
    }

    /// Number of tokens that `layer` holds.
    pub fn held(&self, layer: usize) -> usize {
        self.stores[layer].len()
    }

    /// Whether the policy needs learned scores, which a model gives that was loaded for it.
    pub fn wants_learned(&self) -> bool {
        self.policy.wants_learned()
    }

    /// Learned scores (new tokens, kv_heads) of the tokens that come next on `layer`, below `ceiling` in any case.
    pub fn learned(&mut self, layer: usize, scores: &E::Tensor, ceiling: Ceiling) {
        self.policy.learned(layer, scores, ceiling);
    }

    /// Whether the policy needs to know how unexpected every token was.
    pub fn wants_surprise(&self) -> bool {
        self.policy.wants_surprise()
    }

    /// Says how unexpected each of the tokens was that were read last on all layers, in nats.
    pub fn surprised(&mut self, surprise: &[f32]) {
        self.policy.surprised(surprise, &mut self.stores);
    }

    /// Appends the new tokens' `k` and `v` (new tokens, kv_heads * head_dim) to `layer`, where nobody wants their
    /// queries.
    pub fn append(&mut self, engine: &mut E, layer: usize, k: &E::Tensor, v: &E::Tensor) -> Result<(), Error> {
        let store = &mut self.stores[layer];
        store.append(k, v);
        self.policy.appended(engine, layer, store)
    }

    /// Whether tokens can be [cut](KvCache::cut) off: the policy can take tokens back ([`PolicySpec::can_cut`]).
    pub fn can_cut(&self) -> bool {
        self.can_cut
    }

    /// Whether so many tokens have come after the prompt, so that they can be [cut](KvCache::cut) off.
    pub fn can_lose(&self, tokens: usize) -> bool {
        self.stores.first().is_some_and(|store| store.can_lose(tokens))
    }

    /// Takes back the last `dropped` tokens, as if they had never come. All of them came after the prompt
    /// ([`KvCache::can_lose`]), and the policy can take tokens back ([`KvCache::can_cut`]).
    pub fn cut(&mut self, dropped: usize) {
        if dropped > 0 {
            assert!(self.can_cut, "the policy of this cache cannot take tokens back");
            self.stores.iter_mut().for_each(|store| store.cut(dropped));
        }
    }

    /// For every query head the positions (of all tokens ever appended) that the last query on `layer` attended to,
    /// in any order. Known only where the engine [sees its values](Engine::CLEAR): for accuracy studies.
    pub fn attended(&self, layer: usize) -> Option<&[Vec<usize>]> {
        self.stores[layer].attended()
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
