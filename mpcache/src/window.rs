//! Layers whose queries see a window, which is the latest tokens, as the model was trained.
//!
//! **Blocks.** Tokens that have left the window are never looked at again and can be evicted. An eviction rewrites
//! the store, and in two phases all of its rows then need fresh masks. So a block of tokens is evicted at once, a
//! quarter of the window.
//!
//! **Public.** Which tokens a query sees. **Revealed.** Nothing: no protocol runs.

use waggle_engine::Engine;

use crate::Store;

/// A block of evicted tokens is the window divided by this.
const BLOCKS: usize = 4;

/// Evicts the tokens that no later query sees, if there is a whole block of them.
pub(crate) fn evict<E: Engine>(window: usize, store: &mut Store<E>) {
    let keep = (window - 1).max(1);
    let held = store.len();
    if held >= keep + (window / BLOCKS).max(1) {
        store.keep_rows(0, &(held - keep..held).collect::<Vec<_>>());
    }
}
