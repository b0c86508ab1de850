//! Layers that see a window: the latest tokens, as the model was trained.
//!
//! **Blocks.** What has left the window is never looked at again, so it can go. A store that is cut is rewritten, and
//! in two phases all of its rows then need fresh masks. So a block goes at once, a quarter of the window.
//!
//! **Public.** The whole pattern. **Revealed.** Nothing: no protocol runs.

use waggle_engine::Engine;

use crate::{Store, eviction};

/// A block of evicted tokens is this part of the window.
const BLOCKS: usize = 4;

/// Evicts what no later query sees, if that is a block.
pub(crate) fn evict<E: Engine>(window: usize, store: &mut Store<E>) {
    let keep = (window - 1).max(1);
    let held = store.len();
    if held >= keep + (window / BLOCKS).max(1) {
        eviction::keep_latest(store, held - keep);
    }
}
