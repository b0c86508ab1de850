//! The interface of a cache policy.

use engine::{Engine, Error};

use crate::Store;

/// Computes attention over a store: over all of it or over a part that the policy chooses.
///
/// One value serves all layers of one generation, so a policy may keep state per layer, look at the attention of the
/// prompt, and use on one layer what it selected on another.
pub trait Policy<E: Engine>: Send {
    /// How many trailing queries of `new` tokens the policy observes on `layer`; the model itself needs only the
    /// last. A policy that scores tokens by the attention of a window of the prompt asks for that window.
    fn query_window(&self, layer: usize, new: usize) -> usize {
        let _ = (layer, new);
        1
    }

    /// Attention of the queries `q` (heads, rows, head_dim), scaled and rotated, of the last `rows` tokens that were
    /// appended to `store`: (heads, rows, head_dim). Query i sees the tokens up to its own.
    ///
    /// A policy says which tokens it attends to and keeps ([`Store::record_attended`], [`Store::record_kept`]);
    /// [`attention::causal`](crate::attention::causal) does the former itself.
    fn attend(
        &mut self,
        engine: &mut E,
        layer: usize,
        q: &E::Tensor,
        store: &mut Store<E>,
    ) -> Result<E::Tensor, Error>;
}
