//! Eviction at the end of the prompt. Each layer ranks its tokens once, keeps a fixed number of them and forgets the
//! others.
//!
//! Kept tokens stay in the order of the prompt: gathering by a selection in order is a stable compaction
//! ([`Select::in_order`]). The selection stays hidden, so no party learns which tokens are kept. The number of kept
//! tokens is public.

use std::ops::Range;

use waggle_engine::{Ceiling, Engine, Error, Origin, Ranking, Right, Select, Tensor, TopK};

use crate::attention::{self, Received};
use crate::store::KV_MAGNITUDE;
use crate::{Granularity, HeadShape, Store};

/// Ranking that finds the `k` tokens that received the most attention. `size` bounds the attention of a token.
pub fn by_attention(k: usize, method: TopK, size: Received) -> Ranking {
    let Received { magnitude, frac, ceiling } = size;
    Ranking { k, method, magnitude, ceiling, frac, rounded: true }
}

/// The tokens of each row of `scores` (rows, tokens) with the largest entries, in the order of the store.
pub fn choose<E: Select>(engine: &mut E, scores: &E::Tensor, how: &Ranking) -> Result<E::Selection, Error> {
    let best = engine.top_k(scores, how)?;
    engine.in_order(&best)
}

/// Keeps the tokens from row `first` of the store on, and no others.
pub fn keep_latest<E: Engine>(store: &mut Store<E>, first: usize) {
    store.keep_rows(0, &(first..store.len()).collect::<Vec<_>>());
}

/// Keeps the chosen tokens among the first `tokens` tokens, and all tokens after the first `tokens`. The selection
/// has one row per key/value head, or a single row for the layer with [`Granularity::PerLayer`].
pub fn keep<E: Select>(
    engine: &mut E,
    store: &mut Store<E>,
    chosen: &E::Selection,
    tokens: usize,
    each: Granularity,
) -> Result<(), Error> {
    let shape = store.heads();
    let payload = each.payload(&store.pairs_by_head(0..tokens), shape);
    let kept = engine.gather(chosen, Right::Fresh(&payload), KV_MAGNITUDE)?;
    replace(engine, store, chosen, tokens, &Granularity::unpack(&kept, shape.kv_heads));
    Ok(())
}

/// The scores of the first tokens of a store. If a token moves to another row, its score moves with it.
#[derive(Clone, Debug)]
pub struct Scores<T> {
    /// The scores, (kv_heads, tokens), or (1, tokens) if all heads share them.
    pub scores: T,
    /// A bound that no score can exceed.
    pub ceiling: Ceiling,
}

impl<T: Tensor> Scores<T> {
    /// The number of tokens that have scores.
    pub fn tokens(&self) -> usize {
        self.scores.shape()[1]
    }

    /// The scores of the tokens from `first` on.
    pub fn from(&self, first: usize) -> Self {
        Scores { scores: self.scores.slice(1, first..self.tokens()), ..*self }
    }
}

/// Adds the attention that tokens received from the last `window` queries ([`attention::received`]) to the attention
/// that they received `before`.
pub fn accumulate<E: Select>(
    engine: &mut E,
    before: Option<Scores<E::Tensor>>,
    p: &E::Tensor,
    window: usize,
    each: Granularity,
    shape: HeadShape,
) -> Result<Scores<E::Tensor>, Error> {
    let received = attention::received(engine, p, window, each, shape)?;
    let Received { ceiling, .. } = Received::new(engine, window, each, shape)?;
    let bound = before.as_ref().map_or(ceiling, |before| ceiling.plus(before.ceiling));
    let scores = attention::accumulate(engine, before.map(|before| before.scores), received)?;
    Ok(Scores { scores, ceiling: bound })
}

/// [`keep`] for a store in which every token has a score, in `known`, below 2^`magnitude`. Each score moves with its
/// token. Returns the scores of the tokens that are left.
pub fn keep_scored<E: Select>(
    engine: &mut E,
    store: &mut Store<E>,
    chosen: &E::Selection,
    tokens: usize,
    known: &Scores<E::Tensor>,
    magnitude: u32,
    each: Granularity,
) -> Result<Scores<E::Tensor>, Error> {
    let payload = scored_payload(store, known, each, 0..tokens);
    let magnitude = scored_magnitude(magnitude);
    let kept = engine.gather(chosen, Right::Fresh(&payload), magnitude)?;
    let [rows, left, w] = kept.shape()[..] else { panic!("gathered shape {:?}", kept.shape()) };
    replace(engine, store, chosen, tokens, &Granularity::unpack(&kept.slice(2, 0..w - 1), store.heads().kv_heads));
    let left = kept.slice(2, w - 1..w).reshape(&[rows, left]);
    let ceiling = known.ceiling.max(engine.ceiling(Origin::Moved { magnitude })?);
    Ok(Scores { scores: E::Tensor::concat(1, &[&left, &known.from(tokens).scores]), ceiling })
}

/// Keys, values and scores of the tokens `range` side by side, as the payload of selections.
pub(crate) fn scored_payload<E: Select>(
    store: &Store<E>,
    known: &Scores<E::Tensor>,
    each: Granularity,
    range: Range<usize>,
) -> E::Tensor {
    let pairs = each.payload(&store.pairs_by_head(range.clone()), store.heads());
    let scores = known.scores.slice(1, range.clone()).reshape(&[pairs.shape()[0], range.len(), 1]);
    E::Tensor::concat(2, &[&pairs, &scores])
}

/// log2 of a bound on the keys, values and scores that [`keep_scored`] moves.
pub(crate) fn scored_magnitude(magnitude: u32) -> u32 {
    magnitude.max(KV_MAGNITUDE)
}

/// Replaces the first `tokens` tokens of `store` by the chosen ones among them, `kept` (kv_heads, chosen, 2
/// head_dim).
fn replace<E: Select>(engine: &E, store: &mut Store<E>, chosen: &E::Selection, tokens: usize, kept: &E::Tensor) {
    let all = store.len();
    let rest = store.pairs_by_head(tokens..all);
    store.replace_by_head(&E::Tensor::concat(1, &[kept, &rest]));
    if let Some(rows) = engine.chosen(chosen) {
        store.record_kept(|head| rows[head.min(rows.len() - 1)].iter().copied().chain(tokens..all).collect());
    }
}
