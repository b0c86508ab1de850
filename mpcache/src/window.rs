//! Layers that see a window: the latest tokens, as the model was trained.
//!
//! **Blocks.** What has left the window is never looked at again, so it can go. A store that is cut is rewritten, and
//! in two phases all of its rows then need fresh masks. So a block goes at once, a quarter of the window.
//!
//! **Public.** The whole pattern. **Revealed.** Nothing: no protocol runs.

use waggle_engine::{Engine, Error, Tensor};

use crate::{Store, attention, eviction};

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
    let (group, rows) = (store.heads().group(), q.shape()[1]);
    // The store has the latest tokens without gaps, so a window ends at its query's column.
    let seen = |end: usize| end.saturating_sub(window)..end;
    let tokens = store.len();
    store.record_attended(|_| seen(tokens).collect());
    let spans = |tokens: usize| (0..group).flat_map(|_| (tokens - rows + 1..=tokens).map(seen)).collect();
    Ok(attention::over(engine, q, store, spans)?.output)
}

/// Evicts what no later query sees, if that is a block.
pub(crate) fn evict<E: Engine>(window: usize, store: &mut Store<E>) {
    let keep = (window - 1).max(1);
    let held = store.len();
    if held >= keep + (window / BLOCKS).max(1) {
        eviction::keep_latest(store, held - keep);
    }
}
