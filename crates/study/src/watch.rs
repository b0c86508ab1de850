//! What a model that keeps its full cache attends to, in the clear.

use std::sync::{Arc, Mutex, PoisonError};

use ndarray::{ArrayD, ArrayView2, ArrayView3, s};
use waggle_engine::{Error, Float};
use waggle_mpcache::{HeadShape, KvCache, Layers, Piece, Policy, Store, attention};

/// What a layer shows as some tokens go through it. Their queries are the rows; its keys are those of all tokens so
/// far.
pub(crate) struct Seen<'a> {
    pub layer: usize,
    pub shape: HeadShape,
    /// The queries, (heads, rows, head_dim).
    pub q: ArrayView3<'a, f32>,
    /// The keys, (tokens, kv_heads * head_dim).
    pub keys: ArrayView2<'a, f32>,
    /// The values, (tokens, kv_heads * head_dim).
    pub values: ArrayView2<'a, f32>,
    /// The probabilities, (kv_heads, group * rows, tokens). With a sink the sum of a row is less than 1.
    pub p: ArrayView3<'a, f32>,
    /// Whether a sink has the rest of the attention.
    pub sink: bool,
    /// The outputs, (heads, rows, head_dim).
    pub output: ArrayView3<'a, f32>,
}

impl Seen<'_> {
    /// The columns of a key/value head, (tokens, head_dim), of `rows`: keys or values.
    pub(crate) fn of_head<'a>(&self, rows: ArrayView2<'a, f32>, kv_head: usize) -> ArrayView2<'a, f32> {
        let width = self.shape.head_dim;
        rows.slice_move(s![.., kv_head * width..(kv_head + 1) * width])
    }
}

/// What `look` makes of `state` as `run` puts tokens through a model with the cache.
pub(crate) fn watch<T: Send + 'static, E>(
    layers: &Layers,
    state: T,
    look: impl FnMut(&mut T, &Seen) + Send + 'static,
    run: impl FnOnce(&mut KvCache<Float>) -> Result<(), E>,
) -> Result<T, E> {
    let state = Arc::new(Mutex::new(Some(state)));
    run(&mut KvCache::with_policy(layers, Box::new(Watcher { look, state: state.clone() })))?;
    let state = state.lock().unwrap_or_else(PoisonError::into_inner).take();
    Ok(state.expect("nothing else takes it"))
}

/// A policy that attends to all tokens.
struct Watcher<T, F> {
    look: F,
    state: Arc<Mutex<Option<T>>>,
}

impl<T: Send, F: FnMut(&mut T, &Seen) + Send> Policy<Float> for Watcher<T, F> {
    fn observation_window(&self, _layer: usize, piece: Piece) -> usize {
        piece.new
    }

    fn attend(
        &mut self,
        engine: &mut Float,
        layer: usize,
        q: &ArrayD<f32>,
        store: &mut Store<Float>,
    ) -> Result<ArrayD<f32>, Error> {
        let attended = attention::weighted(engine, q, store)?;
        let seen = Seen {
            layer,
            shape: store.heads(),
            q: three(q),
            keys: two(store.keys()),
            values: two(store.values()),
            p: three(attended.probabilities()),
            sink: store.sinks().is_some(),
            output: three(&attended.output),
        };
        if let Some(state) = &mut *self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            (self.look)(state, &seen);
        }
        Ok(attended.output)
    }
}

fn two(x: &ArrayD<f32>) -> ArrayView2<'_, f32> {
    x.view().into_dimensionality().expect("two axes")
}

fn three(x: &ArrayD<f32>) -> ArrayView3<'_, f32> {
    x.view().into_dimensionality().expect("three axes")
}
