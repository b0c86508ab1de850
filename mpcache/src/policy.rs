//! The interface of a cache policy.

use engine::{Engine, Error, Tensor};
use serde::{Deserialize, Serialize};

use crate::Store;

/// Heads of an attention layer. Query head h reads key/value head h / (heads / kv_heads).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeadShape {
    /// Query heads, a multiple of `kv_heads`.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Length of one head.
    pub head_dim: usize,
}

impl HeadShape {
    /// Query heads per key/value head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }
}

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

/// (heads, rows, d) -> (kv_heads, group * rows, d): the queries that share a key/value head become rows of one
/// matrix, so that keys and values are never repeated.
pub fn fold_heads<T: Tensor>(q: &T, shape: HeadShape) -> T {
    let rows = q.shape()[1];
    q.reshape(&[shape.kv_heads, shape.group() * rows, shape.head_dim])
}

/// The inverse of [`fold_heads`].
pub fn unfold_heads<T: Tensor>(x: &T, shape: HeadShape) -> T {
    let rows = x.shape()[1] / shape.group();
    x.reshape(&[shape.heads, rows, shape.head_dim])
}
