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

/// An error that ends a fit.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FitError {
    /// The model, a file or an engine failed.
    #[error(transparent)]
    Model(#[from] Error),
    /// Too little text.
    #[error("a fit needs {needed} sequences of {length} tokens or more, and the text has {got}")]
    TooShort {
        /// Sequences needed.
        needed: usize,
        /// Tokens of a sequence.
        length: usize,
        /// Sequences of the text.
        got: usize,
    },
    /// An option that leaves no token to learn from.
    #[error("in sequences of {length} tokens no token has queries {after} tokens or more after it to learn from")]
    Nothing {
        /// Tokens of a sequence.
        length: usize,
        /// The distance asked for.
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

/// The observations on one sequence.
struct Shown {
    /// Outputs of the norms, (tokens, width), in order. Each layer has the same number of norms, the first of which a
    /// scoring head reads. The final norm is the last. Norms of single heads are left out.
    norms: Vec<Array2<f32>>,
    /// The residual stream: two states for each layer, before and after attention, then the final state.
    residual: Vec<Array2<f32>>,
    /// For each layer, (kv_heads, tokens): the most attention that a token received from queries that are late
    /// enough.
    received: Vec<Array2<f32>>,
}

/// Runs `model` on `ids` and records the observations. A token's attention counts from queries that are at least
/// `after` tokens later.
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

/// A policy that attends to all tokens, and records the most attention that each token received.
struct Watching {
    after: usize,
    /// A matrix (kv_heads, tokens) for each layer.
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
        let attended = attention::causal(engine, q, store)?;
        let most = most_received(attended.probabilities(), self.after, store.heads());
        self.received.lock().unwrap_or_else(PoisonError::into_inner).push(most);
        Ok(attended.output)
    }
}

/// For each token, the largest of the probabilities `p` (kv_heads, group * tokens, tokens) from queries that are at
/// least `after` tokens later; 0 without such a query. The result is (kv_heads, tokens).
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
