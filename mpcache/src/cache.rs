//! Keys and values of a generation.

use protocols::{Engine, Error, Tensor};

use crate::{HeadShape, Policy, PolicySpec};

/// Keys and values of one layer: two tensors of shape (tokens, kv_heads * head_dim) that grow along axis 0 in place.
#[derive(Clone, Debug)]
pub struct Store<T> {
    kv: Option<(T, T)>,
    seen: usize,
    shape: HeadShape,
}

impl<T: Tensor> Store<T> {
    /// An empty store.
    pub fn new(shape: HeadShape) -> Self {
        Store { kv: None, seen: 0, shape }
    }

    /// Appends the rows of new tokens: (new tokens, kv_heads * head_dim) each. Amortised time O(new tokens).
    pub fn append(&mut self, k: &T, v: &T) {
        assert_eq!(k.shape(), v.shape());
        assert_eq!(k.shape()[1], self.shape.kv_heads * self.shape.head_dim);
        self.seen += k.shape()[0];
        match &mut self.kv {
            Some((keys, values)) => {
                keys.append(k);
                values.append(v);
            }
            None => self.kv = Some((k.clone(), v.clone())),
        }
    }

    /// Replaces the rows that are kept, for policies that evict; [`Store::seen`] stays.
    pub fn replace(&mut self, keys: T, values: T) {
        assert_eq!(keys.shape(), values.shape());
        self.kv = Some((keys, values));
    }

    /// The keys, (tokens, kv_heads * head_dim). Panics on an empty store.
    pub fn keys(&self) -> &T {
        &self.kv.as_ref().expect("a store is read after its first tokens").0
    }

    /// The values, (tokens, kv_heads * head_dim). Panics on an empty store.
    pub fn values(&self) -> &T {
        &self.kv.as_ref().expect("a store is read after its first tokens").1
    }

    /// Keys by head and transposed, (kv_heads, head_dim, tokens): the right operand of the scores.
    pub fn keys_by_head(&self) -> T {
        let HeadShape { kv_heads, head_dim, .. } = self.shape;
        self.keys().reshape(&[self.len(), kv_heads, head_dim]).permute(&[1, 2, 0])
    }

    /// Values by head, (kv_heads, tokens, head_dim): the right operand of the mix.
    pub fn values_by_head(&self) -> T {
        let HeadShape { kv_heads, head_dim, .. } = self.shape;
        self.values().reshape(&[self.len(), kv_heads, head_dim]).permute(&[1, 0, 2])
    }

    /// Number of tokens kept.
    pub fn len(&self) -> usize {
        self.kv.as_ref().map_or(0, |(k, _)| k.shape()[0])
    }

    /// Whether no token is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of tokens ever appended: the position of the next one.
    pub fn seen(&self) -> usize {
        self.seen
    }

    /// Heads of the layer.
    pub fn heads(&self) -> HeadShape {
        self.shape
    }
}

/// The cache of one generation: a store per layer and the policy that reads them.
pub struct KvCache<E: Engine> {
    stores: Vec<Store<E::Tensor>>,
    policy: Box<dyn Policy<E>>,
}

impl<E: Engine> KvCache<E> {
    /// An empty cache for `layers` layers of equal `shape`, read by the policy that `spec` names.
    pub fn new(layers: usize, shape: HeadShape, spec: &PolicySpec) -> Self {
        Self::with_policy(layers, shape, spec.build(layers, shape))
    }

    /// An empty cache read by a policy from outside this crate.
    pub fn with_policy(layers: usize, shape: HeadShape, policy: Box<dyn Policy<E>>) -> Self {
        KvCache { stores: vec![Store::new(shape); layers], policy }
    }

    /// Number of tokens seen: the position of the next one.
    pub fn tokens(&self) -> usize {
        self.stores.first().map_or(0, Store::seen)
    }

    /// How many of the last of `new` tokens need a query, although only the last one's output is wanted.
    pub fn query_window(&self, layer: usize, new: usize) -> usize {
        self.policy.query_window(layer, new).clamp(1, new)
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
