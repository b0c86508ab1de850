//! Layers that see a window: the latest tokens, as the model was trained.
//!
//! **Blocks.** What has left the window is never looked at again, so it can go. A store that is cut is rewritten, and
//! in two phases all of its rows then need fresh masks. So a block goes at once, a quarter of the window.
//!
//! **Public.** The whole pattern. **Revealed.** Nothing: no protocol runs.

use std::ops::Range;

use engine::{Engine, Error, Tensor};

use crate::Store;
use crate::heads::{fold_heads, unfold_heads};

/// A block of evicted tokens is this part of the window.
const BLOCKS: usize = 4;

/// Exact attention of `q` (heads, rows, head_dim), the queries of the last `rows` tokens of the store, where each
/// sees itself and the `window` - 1 tokens before it: (heads, rows, head_dim).
pub(crate) fn attend<E: Engine>(
    engine: &mut E,
    window: usize,
    q: &E::Tensor,
    store: &mut Store<E>,
) -> Result<E::Tensor, Error> {
    let shape = store.heads();
    let (tokens, rows) = (store.len(), q.shape()[1]);
    // The store has the latest tokens without gaps, so a window ends at its query's column.
    let seen = |end: usize| end.saturating_sub(window)..end;
    store.record_attended(|_| seen(tokens).collect());
    let spans: Vec<Range<usize>> = (0..shape.group()).flat_map(|_| (tokens - rows + 1..=tokens).map(seen)).collect();
    let scores = store.scores_each(engine, &[fold_heads(q, shape)])?.remove(0);
    let p = engine.scope("softmax", |e| e.softmax(&scores, &spans))?;
    let mixed = store.mix(engine, &p)?;
    Ok(unfold_heads(&mixed, shape))
}

/// Evicts what no later query sees, if that is a block.
pub(crate) fn evict<E: Engine>(window: usize, store: &mut Store<E>) {
    let keep = (window - 1).max(1);
    let held = store.len();
    if held < keep + (window / BLOCKS).max(1) {
        return;
    }
    let latest = held - keep..held;
    let (keys, values) = (store.keys().slice(0, latest.clone()), store.values().slice(0, latest.clone()));
    store.replace(keys, values);
    store.record_kept(|_| latest.clone().collect());
}
