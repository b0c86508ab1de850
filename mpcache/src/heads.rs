//! Heads of an attention layer, and tensors by head.

use serde::{Deserialize, Serialize};
use waggle_engine::Tensor;

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

/// Makes the queries that share a key/value head rows of one matrix, so that keys and values are never repeated:
/// (heads, rows, d) -> (kv_heads, group * rows, d).
pub fn fold_heads<T: Tensor>(q: &T, shape: HeadShape) -> T {
    let rows = q.shape()[1];
    q.reshape(&[shape.kv_heads, shape.group() * rows, shape.head_dim])
}

/// The inverse of [`fold_heads`].
pub fn unfold_heads<T: Tensor>(x: &T, shape: HeadShape) -> T {
    let rows = x.shape()[1] / shape.group();
    x.reshape(&[shape.heads, rows, shape.head_dim])
}

/// The entries of `x` with the indices `index` along `axis`, in the order of `index`.
pub fn take<T: Tensor>(x: &T, axis: usize, index: &[usize]) -> T {
    let mut parts = Vec::new();
    let mut start = 0;
    while start < index.len() {
        let mut end = start + 1;
        while end < index.len() && index[end] == index[end - 1] + 1 {
            end += 1;
        }
        parts.push(x.slice(axis, index[start]..index[end - 1] + 1));
        start = end;
    }
    T::concat(axis, &parts.iter().collect::<Vec<_>>())
}
