//! The policy `full`: every token looks at every token before it.

use protocols::{Engine, Error, Tensor};

use crate::policy::{Policy, fold_heads, unfold_heads};
use crate::{HeadShape, Store};

/// Exact attention over the whole cache.
#[derive(Clone, Copy, Debug, Default)]
pub struct Full;

impl<E: Engine> Policy<E> for Full {
    fn attend(
        &mut self,
        engine: &mut E,
        _layer: usize,
        q: &E::Tensor,
        store: &mut Store<E::Tensor>,
    ) -> Result<E::Tensor, Error> {
        let shape = store.heads();
        let visible = causal(store.len(), q.shape()[1], shape);
        let (queries, keys) = (fold_heads(q, shape), store.keys_by_head());
        let scores = engine.scope("scores", |e| e.matmul(&queries, &keys))?;
        let p = engine.scope("softmax", |e| e.softmax(&scores, &visible))?;
        let mixed = engine.scope("values", |e| e.matmul(&p, &store.values_by_head()))?;
        Ok(unfold_heads(&mixed, shape))
    }
}

/// Columns that each folded query row sees: the last of `rows` sees all `tokens`, each one before it one less.
fn causal(tokens: usize, rows: usize, shape: HeadShape) -> Vec<usize> {
    (0..shape.group()).flat_map(|_| tokens - rows + 1..=tokens).collect()
}
