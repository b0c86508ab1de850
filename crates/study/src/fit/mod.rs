//! Fits of cache policies to a text in the clear: the columns of scoring heads and the layers of `squeeze`.
//!
//! Sequences of a text go through the model in f32, each at once. A fit uses the hidden states, the attention that
//! tokens receive, or both. Its text should be like later prompts. It is the server's own or public; no client's text
//! is used.

mod columns;
mod ridge;
mod squeeze;

use std::sync::{Arc, Mutex, PoisonError};

use ndarray::{Array2, ArrayD, ArrayView2, Ix2, Ix3};
use thiserror::Error;
use waggle_engine::{Error as EngineError, Float, FloatWeight, States};
use waggle_mpcache::{HeadShape, KvCache, Piece, Policy, Store, attention};

pub use columns::{FittedColumns, Target, fit_columns};
pub use squeeze::{LayerChange, fit_layers};

use waggle_model::{Error, Input, Model, Rows};

/// Why a fit cannot be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FitError {
    /// The model, a file or an engine failed.
    #[error(transparent)]
    Model(#[from] Error),
    /// A text that is too short.
    #[error("a fit needs {needed} sequences of {length} tokens or more, and the text has {got}")]
    TooShort {
        /// Sequences needed.
        needed: usize,
        /// Tokens of a sequence.
        length: usize,
        /// Sequences that the text has.
        got: usize,
    },
    /// An option that leaves no token to learn from.
    #[error("in sequences of {length} tokens no token has queries {after} tokens or more after it to learn from")]
    Nothing {
        /// Tokens of a sequence.
        length: usize,
        /// The distance between a token and a query from which on the query counts.
        after: usize,
    },
    /// A layer whose hidden states are all alike.
    #[error("the hidden states of layer {layer} tell nothing")]
    Singular {
        /// The layer.
        layer: usize,
    },
}

impl From<EngineError> for FitError {
    fn from(error: EngineError) -> Self {
        FitError::Model(error.into())
    }
}

/// What was observed while one sequence went through the model.
struct Shown {
    /// The outputs of the norms, each (tokens, width), in the order of computation. Each layer has the same number of
    /// norms, and a scoring head reads the output of the layer's first one. The model's final norm comes last. Norms
    /// of single heads are left out.
    norms: Vec<Array2<f32>>,
    /// The residual stream: for each layer the states before and after attention, then the final state. Each is
    /// (tokens, width).
    residual: Vec<Array2<f32>>,
    /// For each layer, what was made of its attention.
    found: Vec<Array2<f32>>,
}

/// What a layer's attention to one sequence shows.
struct Seen<'a> {
    layer: usize,
    shape: HeadShape,
    /// The queries, (heads, tokens, head_dim).
    q: &'a ArrayD<f32>,
    /// The keys, (tokens, kv_heads * head_dim).
    keys: ArrayView2<'a, f32>,
    /// The probabilities, (kv_heads, group * tokens, tokens).
    p: &'a ArrayD<f32>,
}

/// What is made of a layer's attention.
type Look = dyn Fn(&Seen) -> Array2<f32> + Send + Sync;

/// Runs `model` on `ids` and records what is observed, and what `look` makes of each layer's attention.
fn show(model: &Model<FloatWeight>, ids: &[u32], look: Arc<Look>) -> Result<Shown, FitError> {
    let spec = model.spec();
    spec.check_shared("with fitted settings")?;
    let found = Arc::new(Mutex::new(Vec::new()));
    let policy = Watching { look, found: found.clone() };
    let mut cache = KvCache::with_policy(&spec.attention().without_windows(), Box::new(policy));
    let mut engine = Float::keeping_states();
    let input = Input::known(ids);
    model.forward(&mut engine, input, &mut cache, Rows::All, &mut |_| ())?;
    let States { norms, mut residual } = engine.take_states();
    let norms = norms.into_iter().filter_map(|x| x.into_dimensionality::<Ix2>().ok()).collect();
    // The states before the layers are dropped: the embedding, in two states if positions are added to it.
    let residual = residual.split_off(residual.len() - (2 * spec.layers() + 1));
    let found = std::mem::take(&mut *found.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(Shown { norms, residual, found })
}

/// A policy that attends to all tokens, and records what is made of it.
struct Watching {
    look: Arc<Look>,
    /// The results, by layer.
    found: Arc<Mutex<Vec<Array2<f32>>>>,
}

impl Policy<Float> for Watching {
    fn observation_window(&self, _layer: usize, piece: Piece) -> usize {
        piece.new
    }

    fn attend(
        &mut self,
        engine: &mut Float,
        layer: usize,
        q: &ArrayD<f32>,
        store: &mut Store<Float>,
    ) -> Result<ArrayD<f32>, EngineError> {
        let attended = attention::weighted(engine, q, store)?;
        let keys = store.keys().view().into_dimensionality().expect("two axes");
        let seen = Seen { layer, shape: store.heads(), q, keys, p: attended.probabilities() };
        self.found.lock().unwrap_or_else(PoisonError::into_inner).push((self.look)(&seen));
        Ok(attended.output)
    }
}

/// For each token, the largest probability with which a query at least `after` tokens later attends to it; 0 without
/// such a query. The result is (kv_heads, tokens).
fn most_received(seen: &Seen, after: usize) -> Array2<f32> {
    let p = seen.p.view().into_dimensionality::<Ix3>().expect("three axes");
    let (kv_heads, rows, tokens) = p.dim();
    let queries = rows / seen.shape.group();
    let mut most = Array2::<f32>::zeros((kv_heads, tokens));
    for kv in 0..kv_heads {
        for row in 0..rows {
            let far = (row % queries + 1).saturating_sub(after).min(tokens);
            for token in 0..far {
                most[[kv, token]] = most[[kv, token]].max(p[[kv, row, token]]);
            }
        }
    }
    most
}

#[cfg(test)]
mod tests {
    use ndarray::IxDyn;

    use super::*;

    #[test]
    fn the_most_attention_of_later_queries_and_of_a_group() {
        // Two key/value heads with two query heads each, and three tokens.
        let shape = HeadShape { heads: 4, kv_heads: 2, head_dim: 1 };
        let p = ArrayD::from_shape_fn(IxDyn(&[2, 6, 3]), |at| {
            let (kv, group, query, token) = (at[0], at[1] / 3, at[1] % 3, at[2]);
            if token > query { 0.0 } else { (1 + query + 10 * group + 100 * kv) as f32 * (token + 1) as f32 }
        });
        // With the distance 0 all queries count, here the last query in the second head of the group.
        let keys = Array2::zeros((3, 2));
        let seen = Seen { layer: 0, shape, q: &p, keys: keys.view(), p: &p };
        let most = most_received(&seen, 0);
        assert_eq!(most.as_slice().unwrap(), [13.0, 26.0, 39.0, 113.0, 226.0, 339.0]);
        assert_eq!(most_received(&seen, 2).as_slice().unwrap(), [13.0, 0.0, 0.0, 113.0, 0.0, 0.0]);
        assert_eq!(most_received(&seen, 3).as_slice().unwrap(), [0.0; 6]);
    }
}
