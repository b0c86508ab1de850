//! Eviction at the end of the prompt: each layer looks once, keeps a fixed number of tokens and forgets the others.
//!
//! Kept tokens stay in the order of the prompt: gathering by a selection in order is a stable compaction
//! ([`Select::in_order`]). The selection stays hidden, so no party learns which tokens are kept. Public: how many.

use engine::{Error, Ranking, Right, Select, Tensor, TopK};

use crate::attention::Received;
use crate::store::KV_MAGNITUDE;
use crate::{Granularity, HeadShape, Store};

/// How the `k` tokens are found that received the most attention, of a size within `size`.
pub fn by_attention(k: usize, method: TopK, size: Received) -> Ranking {
    let Received { magnitude, frac, ceiling } = size;
    Ranking { k, method, magnitude, ceiling, frac, rounded: true }
}

/// The tokens of each row of `scores` (rows, tokens) with the largest entries, in the order of the text.
pub fn choose<E: Select>(engine: &mut E, scores: &E::Tensor, how: &Ranking) -> Result<E::Selection, Error> {
    let best = engine.top_k(scores, how)?;
    engine.in_order(&best)
}

/// Keeps the tokens from row `first` of the store on, and no others.
pub fn keep_latest<E: Select>(store: &mut Store<E>, first: usize) {
    let tokens = store.len();
    let pairs = store.pairs_by_head(first..tokens);
    store.replace_by_head(&pairs);
    store.record_kept(|_| (first..tokens).collect());
}

/// Keeps the chosen ones of the first `tokens` tokens, and all tokens after these. The selection has one row per
/// key/value head, or with [`Granularity::PerLayer`] one for the layer.
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

/// [`keep`] with a choice for every key/value head. The `scores` (kv_heads, tokens) of all tokens of the store, below
/// 2^`magnitude`, move along; returns those of the tokens that are left.
pub fn keep_scored<E: Select>(
    engine: &mut E,
    store: &mut Store<E>,
    chosen: &E::Selection,
    tokens: usize,
    scores: &E::Tensor,
    magnitude: u32,
) -> Result<E::Tensor, Error> {
    let HeadShape { kv_heads, head_dim, .. } = store.heads();
    let before = scores.slice(1, 0..tokens).reshape(&[kv_heads, tokens, 1]);
    let payload = E::Tensor::concat(2, &[&store.pairs_by_head(0..tokens), &before]);
    let kept = engine.gather(chosen, Right::Fresh(&payload), scored_magnitude(magnitude))?;
    replace(engine, store, chosen, tokens, &kept.slice(2, 0..2 * head_dim));
    let left = kept.slice(2, 2 * head_dim..2 * head_dim + 1).reshape(&[kv_heads, kept.shape()[1]]);
    Ok(E::Tensor::concat(1, &[&left, &scores.slice(1, tokens..scores.shape()[1])]))
}

/// log2 of a bound on what [`keep_scored`] moves.
pub fn scored_magnitude(magnitude: u32) -> u32 {
    magnitude.max(KV_MAGNITUDE)
}

/// Puts the chosen ones of the first `tokens` tokens, `kept` (kv_heads, chosen, 2 head_dim), in the place of these.
fn replace<E: Select>(engine: &E, store: &mut Store<E>, chosen: &E::Selection, tokens: usize, kept: &E::Tensor) {
    let all = store.len();
    let rest = store.pairs_by_head(tokens..all);
    store.replace_by_head(&E::Tensor::concat(1, &[kept, &rest]));
    if let Some(rows) = engine.chosen(chosen) {
        store.record_kept(|head| rows[head.min(rows.len() - 1)].iter().copied().chain(tokens..all).collect());
    }
}
