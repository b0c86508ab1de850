//! Eviction at the end of the prompt: each layer looks once, keeps a fixed number of tokens and forgets the others.
//!
//! Kept tokens stay in the order of the prompt: gathering by a selection in order is a stable compaction
//! ([`Engine::in_order`]). The selection stays hidden, so no party learns which tokens are kept. Public: how many.

use engine::{Engine, Error, Ranking, Right, Tensor, TopK};

use crate::attention::Received;
use crate::store::KV_MAGNITUDE;
use crate::{Select, Store};

/// Fractional bits of received attention that are compared.
const FRAC: u32 = 16;

/// The `keep` tokens of each row of `received` (rows, tokens) with the largest entries, in the order of the prompt.
pub(crate) fn choose<E: Engine>(
    engine: &mut E,
    received: &E::Tensor,
    keep: usize,
    method: TopK,
    size: Received,
) -> Result<E::Selection, Error> {
    let Received { magnitude, ceiling } = size;
    let best = engine.top_k(received, &Ranking { k: keep, method, magnitude, ceiling, frac: FRAC })?;
    engine.in_order(&best)
}

/// Keeps the chosen ones of the first `tokens` tokens, and all tokens after these. The selection has one row per
/// key/value head, or with `per_layer` one for the layer.
pub(crate) fn keep<E: Engine>(
    engine: &mut E,
    store: &mut Store<E>,
    chosen: &E::Selection,
    tokens: usize,
    per_layer: bool,
) -> Result<(), Error> {
    let shape = store.heads();
    let select = if per_layer { Select::PerLayer } else { Select::PerKv };
    let all = store.len();
    let payload = select.payload(&store.pairs_by_head(0..tokens), shape);
    let kept = engine.gather(chosen, Right::Fresh(&payload), KV_MAGNITUDE)?;
    let kept = Select::unpack(&kept, shape.kv_heads);
    let rest = store.pairs_by_head(tokens..all);
    store.replace_by_head(&E::Tensor::concat(1, &[&kept, &rest]));
    if let Some(rows) = engine.chosen(chosen) {
        store.record_kept(|head| rows[head.min(rows.len() - 1)].iter().copied().chain(tokens..all).collect());
    }
    Ok(())
}
