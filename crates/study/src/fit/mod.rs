//! Fits of cache policies to a text in the clear: the columns of `kvzap` and the layers of `squeeze`.
//!
//! Sequences of a text go through the model in f32, each at once. A fit uses the hidden states, the attention that
//! tokens receive, or both. Its text should be like later prompts. It is the server's own or public; no client's text
//! is used.

mod kvzap;
mod ridge;
mod squeeze;

use std::sync::{Arc, Mutex, PoisonError};

use ndarray::{Array2, ArrayD, Ix2, Ix3};
use thiserror::Error;
use waggle_engine::{Error as EngineError, Float, FloatWeight, States};
use waggle_mpcache::{HeadShape, KvCache, Piece, Policy, Store, attention};

pub use kvzap::{FittedColumns, fit_columns};
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
    /// For each layer, a matrix (kv_heads, tokens): the largest attention that a token received from a query that is
    /// late enough.
    received: Vec<Array2<f32>>,
}

/// Runs `model` on `ids` and records what is observed. The attention to a token counts only if it comes from a query
/// at least `after` tokens later.
fn show(model: &Model<FloatWeight>, ids: &[u32], after: usize) -> Result<Shown, FitError> {
    let spec = model.spec();
    spec.check_shared("with fitted settings")?;
    let received = Arc::new(Mutex::new(Vec::new()));
    let policy = Watching { after, received: received.clone() };
    let mut cache = KvCache::with_policy(&spec.attention().without_windows(), Box::new(policy));
    let mut engine = Float::keeping_states();
    let input = Input::known(ids);
    model.forward(&mut engine, input, &mut cache, Rows::All, &mut |_| ())?;
    let States { norms, mut residual } = engine.take_states();
    let norms = norms.into_iter().filter_map(|x| x.into_dimensionality::<Ix2>().ok()).collect();
    // The states before the layers are dropped: the embedding, in two states if positions are added to it.
    let residual = residual.split_off(residual.len() - (2 * spec.layers() + 1));
    let received = std::mem::take(&mut *received.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(Shown { norms, residual, received })
}

/// A policy that attends to all tokens, and records the largest attention that each token received.
struct Watching {
    after: usize,
    /// For each layer, a matrix (kv_heads, tokens).
    received: Arc<Mutex<Vec<Array2<f32>>>>,
}

impl Policy<Float> for Watching {
    fn observation_window(&self, _layer: usize, piece: Piece) -> usize {
        piece.new
    }

    fn attend(
        &mut self,
        engine: &mut Float,
        _layer: usize,
        q: &ArrayD<f32>,
        store: &mut Store<Float>,
    ) -> Result<ArrayD<f32>, EngineError> {
        let attended = attention::weighted(engine, q, store)?;
        let most = most_received(attended.probabilities(), self.after, store.heads());
        self.received.lock().unwrap_or_else(PoisonError::into_inner).push(most);
        Ok(attended.output)
    }
}

/// For each token, the largest probability in `p` with which a query at least `after` tokens later attends to it; 0
/// without such a query. `p` is (kv_heads, group * tokens, tokens), and the result is (kv_heads, tokens).
fn most_received(p: &ArrayD<f32>, after: usize, shape: HeadShape) -> Array2<f32> {
    let p = p.view().into_dimensionality::<Ix3>().expect("three axes");
    let (kv_heads, rows, tokens) = p.dim();
    let queries = rows / shape.group();
    let mut most = Array2::<f32>::zeros((kv_heads, tokens));
    for kv in 0..kv_heads {
        for row in 0..rows {
            let seen = (row % queries + 1).saturating_sub(after).min(tokens);
            for token in 0..seen {
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
        let most = most_received(&p, 0, shape);
        assert_eq!(most.as_slice().unwrap(), [13.0, 26.0, 39.0, 113.0, 226.0, 339.0]);
        assert_eq!(most_received(&p, 2, shape).as_slice().unwrap(), [13.0, 0.0, 0.0, 113.0, 0.0, 0.0]);
        assert_eq!(most_received(&p, 3, shape).as_slice().unwrap(), [0.0; 6]);
    }
}
