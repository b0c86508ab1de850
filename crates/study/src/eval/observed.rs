//! A wrapper that measures the attention of a policy.

use std::sync::{Arc, Mutex, PoisonError};

use waggle_engine::{Ceiling, Engine, Error, Tensor};
use waggle_mpcache::{HeadShape, Piece, Policy, ScoreSource, Store};

use super::attention::{AttentionMeans, HeadRows, TokenSet, measure};

/// A policy that runs an inner policy, and measures how its attention differs from attention to all tokens ever
/// appended.
///
/// It keeps its own copies of keys and values in the clear, so it may only run on engines that see their values
/// ([`Engine::CLEAR`]). On others it would reveal the cache. Queries are measured at given positions, each of which
/// must be a token that went through the model alone.
pub struct Observed<E: Engine> {
    inner: Box<dyn Policy<E>>,
    layers: Vec<Seen>,
    /// The number of layers that are measured, from the first on.
    measured: usize,
    positions: Vec<usize>,
    /// For each head, the tokens to which the previous layer attended at the current position.
    before: Vec<TokenSet>,
    means: Arc<Mutex<AttentionMeans>>,
}

/// Keys and values of one layer, row-major (tokens, kv_heads * head_dim).
#[derive(Clone, Default)]
struct Seen {
    tokens: usize,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl<E: Engine> Observed<E> {
    /// Wraps `inner`, to measure its attention in `layers` layers at the ascending `positions`. Also returns the
    /// means, which are complete when the generation is over.
    ///
    /// # Panics
    /// On an engine that does not see its values.
    pub fn new(inner: Box<dyn Policy<E>>, layers: usize, positions: &[usize]) -> (Self, Arc<Mutex<AttentionMeans>>) {
        assert!(E::CLEAR, "only values in the clear can be watched");
        let means = Arc::<Mutex<AttentionMeans>>::default();
        let (measured, layers) = (layers, vec![Seen::default(); layers]);
        let (positions, before) = (positions.to_vec(), Vec::new());
        (Observed { inner, layers, measured, positions, before, means: means.clone() }, means)
    }

    /// Measures the first `layers` layers alone, because the others do not see every token of the text.
    pub fn first(self, layers: usize) -> Self {
        Observed { measured: layers, ..self }
    }

    /// Copies the new tokens in `store`, before the policy may evict them.
    fn copy(&mut self, engine: &mut E, layer: usize, store: &Store<E>) -> Result<(), Error> {
        let seen = &mut self.layers[layer];
        if seen.tokens == store.seen() {
            return Ok(());
        }
        for (copy, rows) in [&mut seen.keys, &mut seen.values].into_iter().zip(store.fresh_rows()) {
            copy.extend(engine.reveal(&rows)?.into_iter().flatten());
        }
        seen.tokens = store.seen();
        Ok(())
    }

    /// Measures one query of each head. `q` has the queries and `output` what the policy's attention gave, both
    /// (heads, head_dim). `attended` has, for each head, the tokens to which the query attended. `sinks` has the
    /// heads' sinks; it is empty if there are none.
    fn measure(
        &mut self,
        layer: usize,
        shape: HeadShape,
        attended: &[Vec<usize>],
        q: &[f32],
        sinks: &[f32],
        output: &[f32],
    ) {
        assert_eq!(attended.len(), shape.heads, "a set for every head");
        let Seen { tokens, keys, values } = &self.layers[layer];
        let (d, stride) = (shape.head_dim, shape.kv_heads * shape.head_dim);
        let sets: Vec<TokenSet> = attended.iter().map(|positions| TokenSet::new(positions, *tokens)).collect();
        // The numbers are consistent even if another thread panicked.
        let means = &mut *self.means.lock().unwrap_or_else(PoisonError::into_inner);
        for (h, set) in sets.iter().enumerate() {
            let rows = |entries| HeadRows { entries, offset: h / shape.group() * d, width: d, stride };
            let head = h * d..(h + 1) * d;
            let sink = sinks.get(h).copied();
            measure(means, &q[head.clone()], sink, rows(keys), rows(values), set, output[head].iter().copied());
            if layer > 0
                && let Some(before) = self.before.get(h)
            {
                means.layer_overlap.add(before.overlap(set));
            }
        }
        self.before = sets;
    }
}

impl<E: Engine> Policy<E> for Observed<E> {
    fn observation_window(&self, layer: usize, piece: Piece) -> usize {
        self.inner.observation_window(layer, piece)
    }

    fn prefill_chunk(&self) -> Option<usize> {
        self.inner.prefill_chunk()
    }

    fn wants_scores(&self) -> Option<ScoreSource> {
        self.inner.wants_scores()
    }

    fn score(&mut self, layer: usize, scores: &E::Tensor, ceiling: Ceiling) {
        self.inner.score(layer, scores, ceiling);
    }

    fn parts(&self, layer: usize, shape: HeadShape) -> Vec<Vec<usize>> {
        self.inner.parts(layer, shape)
    }

    fn attend(
        &mut self,
        engine: &mut E,
        layer: usize,
        q: &E::Tensor,
        store: &mut Store<E>,
    ) -> Result<E::Tensor, Error> {
        self.copy(engine, layer, store)?;
        let (new, position) = (store.fresh(), store.seen() - 1);
        let output = self.inner.attend(engine, layer, q, store)?;
        if layer < self.measured && self.positions.binary_search(&position).is_ok() {
            assert_eq!((new, q.shape()[1]), (1, 1), "measured tokens come alone");
            if let (Some(q), Some(output)) = (engine.reveal(q)?, engine.reveal(&output)?) {
                let (q, output): (Vec<f32>, Vec<f32>) = (q.into_iter().collect(), output.into_iter().collect());
                let sinks = store.sinks().map(|sinks| engine.reveal(sinks)).transpose()?.flatten();
                let sinks: Vec<f32> = sinks.into_iter().flatten().collect();
                if let Some(attended) = store.attended() {
                    self.measure(layer, store.heads(), attended, &q, &sinks, &output);
                }
            }
        }
        Ok(output)
    }

    fn appended(&mut self, engine: &mut E, layer: usize, store: &mut Store<E>) -> Result<(), Error> {
        self.copy(engine, layer, store)?;
        self.inner.appended(engine, layer, store)
    }
}
