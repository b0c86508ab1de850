//! Keys and values of one layer.

use std::ops::Range;

use engine::{Engine, Error, OperandId, OperandKind, Right, Tensor};

use crate::positions::Positions;
use crate::{HeadShape, Padding, Piece, Select};

/// log2 of a bound on keys and values where they are gathered.
pub(crate) const KV_MAGNITUDE: u32 = 9;

/// Keys and values of one layer: two tensors of shape (tokens, kv_heads * head_dim) that grow along axis 0 in place.
pub struct Store<E: Engine> {
    kv: Option<(E::Tensor, E::Tensor)>,
    /// What the engine remembers of the rows while they only grow.
    operands: Operands<E>,
    seen: usize,
    fresh: usize,
    /// Tokens of the prompt; without a word on that, those that come first are all of it.
    prompt: Option<usize>,
    shape: HeadShape,
    padding: Option<Padding>,
    soft_cap: Option<f32>,
    pub(crate) positions: Option<Positions>,
}

/// One operand for every matrix that is made of the rows.
///
/// Rewritten rows belong to the next generation of operands, with fresh masks. Reusing a mask reveals whether, and by
/// how much, a row changed. A policy that evicts one hidden token per step therefore rewrites all rows: those left
/// alone would give away which one went.
struct Operands<E: Engine> {
    layer: usize,
    generation: usize,
    keys: E::Operand,
    values: E::Operand,
    clusters: E::Operand,
}

impl<E: Engine> Operands<E> {
    fn new(layer: usize, generation: usize) -> Self {
        let operand = |kind| E::operand(OperandId { layer, kind, generation });
        Operands {
            layer,
            generation,
            keys: operand(OperandKind::Keys),
            values: operand(OperandKind::Values),
            clusters: operand(OperandKind::Clusters),
        }
    }
}

impl<E: Engine> Store<E> {
    /// An empty store, of layer `layer` of the model.
    pub fn new(layer: usize, shape: HeadShape) -> Self {
        Store {
            kv: None,
            operands: Operands::new(layer, 0),
            seen: 0,
            fresh: 0,
            prompt: None,
            shape,
            padding: None,
            soft_cap: None,
            positions: None,
        }
    }

    /// Starts to record the positions of tokens, before the first one.
    pub(crate) fn track(&mut self) {
        self.positions = Some(Positions::new(self.shape.kv_heads));
    }

    /// Says that scores are capped before a softmax.
    pub(crate) fn cap_scores(&mut self, cap: Option<f32>) {
        self.soft_cap = cap;
    }

    /// What scores are capped at before a softmax. Scores by which tokens are ranked are not, as a cap changes no
    /// order.
    pub fn soft_cap(&self) -> Option<f32> {
        self.soft_cap
    }

    /// Says that the first tokens are padding.
    pub(crate) fn pad(&mut self, padding: Padding) {
        self.padding = Some(padding);
    }

    /// Says that the prompt, which may come in pieces, has `tokens` tokens.
    pub(crate) fn expect_prompt(&mut self, tokens: usize) {
        self.prompt = Some(tokens);
    }

    /// The padding before the first token, if there may be some.
    pub(crate) fn padding(&self) -> Option<Padding> {
        self.padding
    }

    /// Appends the rows of new tokens: (new tokens, kv_heads * head_dim) each. Amortised time O(new tokens).
    pub fn append(&mut self, k: &E::Tensor, v: &E::Tensor) {
        assert_eq!(k.shape(), v.shape());
        assert_eq!(k.shape()[1], self.shape.kv_heads * self.shape.head_dim);
        self.fresh = k.shape()[0];
        self.seen += self.fresh;
        self.prompt.get_or_insert(self.fresh);
        if let Some(positions) = &mut self.positions {
            positions.extend(self.seen - self.fresh, self.seen);
        }
        match &mut self.kv {
            Some((keys, values)) => {
                keys.append(k);
                values.append(v);
            }
            None => self.kv = Some((k.clone(), v.clone())),
        }
    }

    /// Replaces the rows that are kept, for policies that evict; [`Store::seen`] stays. Such a policy also says which
    /// rows it kept, see [`Store::record_kept`].
    pub fn replace(&mut self, keys: E::Tensor, values: E::Tensor) {
        assert_eq!(keys.shape(), values.shape());
        self.kv = Some((keys, values));
        self.operands = Operands::new(self.operands.layer, self.operands.generation + 1);
    }

    /// Whether so many tokens have come after the prompt.
    pub(crate) fn can_lose(&self, tokens: usize) -> bool {
        self.seen >= self.prompt.unwrap_or(0).saturating_add(tokens)
    }

    /// Takes back the last `dropped` tokens, as if they had never come; all of them came after the prompt. Nothing
    /// happens in a store without tokens, as some are in a plan.
    pub(crate) fn cut(&mut self, dropped: usize) {
        let can = self.can_lose(dropped);
        let Some((keys, values)) = &mut self.kv else { return };
        assert!(can, "{dropped} tokens are cut off, more than came after the prompt");
        let kept = keys.shape()[0] - dropped;
        (*keys, *values) = (keys.slice(0, 0..kept), values.slice(0, 0..kept));
        E::cut(&mut self.operands.keys, kept);
        E::cut(&mut self.operands.values, kept);
        self.seen -= dropped;
        self.fresh = self.fresh.saturating_sub(dropped);
        if let Some(positions) = &mut self.positions {
            positions.cut(dropped);
        }
    }

    /// The keys, (tokens, kv_heads * head_dim). Panics on an empty store.
    pub fn keys(&self) -> &E::Tensor {
        &self.kv.as_ref().expect("a store is read after its first tokens").0
    }

    /// The values, (tokens, kv_heads * head_dim). Panics on an empty store.
    pub fn values(&self) -> &E::Tensor {
        &self.kv.as_ref().expect("a store is read after its first tokens").1
    }

    /// Keys by head and transposed, (kv_heads, head_dim, tokens): the right operand of the scores.
    pub fn keys_by_head(&self) -> E::Tensor {
        by_head(self.keys(), self.shape).permute(&[0, 2, 1])
    }

    /// Values by head, (kv_heads, tokens, head_dim): the right operand of the mix.
    pub fn values_by_head(&self) -> E::Tensor {
        by_head(self.values(), self.shape)
    }

    /// The scores of `queries` (kv_heads, rows, head_dim) against all keys, (kv_heads, rows, tokens), for a softmax.
    /// The scores of padding lie below all others.
    pub(crate) fn scores(&mut self, engine: &mut E, queries: &E::Tensor) -> Result<E::Tensor, Error> {
        let scores = match self.soft_cap {
            None => self.by_keys(engine, |e, keys| e.scores(queries, keys))?,
            // A cap needs the scores whole.
            cap => {
                let scores = self.ranked_scores(engine, queries)?;
                capped(engine, cap, scores)?
            }
        };
        match self.padding {
            Some(padding) => padding.hide(engine, &scores, self.seen - self.len()),
            None => Ok(scores),
        }
    }

    /// The same scores for any use, without padding.
    pub(crate) fn ranked_scores(&mut self, engine: &mut E, queries: &E::Tensor) -> Result<E::Tensor, Error> {
        self.by_keys(engine, |e, keys| e.matmul(queries, keys))
    }

    /// A product with the keys by head, transposed.
    fn by_keys(
        &mut self,
        engine: &mut E,
        product: impl FnOnce(&mut E, Right<E>) -> Result<E::Tensor, Error>,
    ) -> Result<E::Tensor, Error> {
        let keys = self.keys_by_head();
        let keys = Right::Cached { tensor: &keys, operand: &mut self.operands.keys };
        engine.scope("scores", |e| product(e, keys))
    }

    /// The mix of all values by `weights` (kv_heads, rows, tokens): (kv_heads, rows, head_dim).
    pub(crate) fn mix(&mut self, engine: &mut E, weights: &E::Tensor) -> Result<E::Tensor, Error> {
        let values = self.values_by_head();
        let values = Right::Cached { tensor: &values, operand: &mut self.operands.values };
        engine.scope("values", |e| e.matmul(weights, values))
    }

    /// The chosen clusters of `size` tokens among those in `range`, keys and values side by side: (selections,
    /// chosen, size * 2 head_dim * heads per selection). Heads share selections as `select` says. From call to call
    /// `range` begins at the same token, and `size` and `select` are the same.
    pub(crate) fn gather(
        &mut self,
        engine: &mut E,
        selection: &E::Selection,
        range: Range<usize>,
        size: usize,
        select: Select,
    ) -> Result<E::Tensor, Error> {
        let HeadShape { kv_heads, head_dim, .. } = self.shape;
        let clusters = self.pairs_by_head(range.clone());
        let clusters = clusters.reshape(&[kv_heads, range.len() / size, size * 2 * head_dim]);
        let payload = select.payload(&clusters, self.shape);
        let payload = Right::Cached { tensor: &payload, operand: &mut self.operands.clusters };
        engine.scope("gather", |e| e.gather(selection, payload, KV_MAGNITUDE))
    }

    /// Keys and values of the tokens in `range` side by side, (kv_heads, tokens, 2 head_dim).
    pub fn pairs_by_head(&self, range: Range<usize>) -> E::Tensor {
        let part = |x: &E::Tensor| by_head(&x.slice(0, range.clone()), self.shape);
        E::Tensor::concat(2, &[&part(self.keys()), &part(self.values())])
    }

    /// [`replace`](Store::replace) by keys and values side by side, (kv_heads, tokens, 2 head_dim).
    pub fn replace_by_head(&mut self, pairs: &E::Tensor) {
        let HeadShape { kv_heads, head_dim, .. } = self.shape;
        let tokens = pairs.shape()[1];
        let part = |range| pairs.slice(2, range).permute(&[1, 0, 2]).reshape(&[tokens, kv_heads * head_dim]);
        self.replace(part(0..head_dim), part(head_dim..2 * head_dim));
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

    /// Number of tokens appended last.
    pub fn fresh(&self) -> usize {
        self.fresh
    }

    /// The tokens appended last.
    pub fn piece(&self) -> Piece {
        let prompt = self.prompt.unwrap_or(self.seen);
        Piece { new: self.fresh, end: self.seen, prompt, held: self.len() }
    }

    /// What `new` tokens will be that come next.
    pub(crate) fn next(&self, new: usize) -> Piece {
        let prompt = self.prompt.unwrap_or(self.seen + new);
        Piece { new, end: self.seen + new, prompt, held: self.len() + new }
    }

    /// Heads of the layer.
    pub fn heads(&self) -> HeadShape {
        self.shape
    }
}

/// (tokens, kv_heads * head_dim) -> (kv_heads, tokens, head_dim).
fn by_head<T: Tensor>(x: &T, shape: HeadShape) -> T {
    x.reshape(&[x.shape()[0], shape.kv_heads, shape.head_dim]).permute(&[1, 0, 2])
}

/// The scores under the cap of a layer, if it has one.
pub(crate) fn capped<E: Engine>(engine: &mut E, cap: Option<f32>, scores: E::Tensor) -> Result<E::Tensor, Error> {
    match cap {
        Some(cap) => engine.scope("cap", |e| e.soft_cap(&scores, cap)),
        None => Ok(scores),
    }
}
