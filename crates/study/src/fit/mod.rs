//! Fits of cache policies to a text in the clear: the columns of scoring heads and the layers of `squeeze`.
//!
//! Sequences of a text go through the model in f32, each at once. A fit uses the hidden states, the attention that
//! tokens receive, or both. Its text should be like later prompts. It is the server's own or public; no client's text
//! is used.

mod columns;
mod ridge;
mod squeeze;

use ndarray::{Array2, Ix2};
use thiserror::Error;
use waggle_engine::{Error as EngineError, Float, FloatWeight, States};

pub use columns::{FittedColumns, Target, fit_columns};
pub use squeeze::{LayerChange, fit_layers};

use waggle_model::{Error, Input, Model, Rows};

use crate::watch::{Seen, watch};

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

/// Runs `model` on `ids` and records what is observed, and what `look` makes of each layer's attention.
fn show(
    model: &Model<FloatWeight>,
    ids: &[u32],
    look: impl Fn(&Seen) -> Array2<f32> + Send + 'static,
) -> Result<Shown, FitError> {
    let spec = model.spec();
    spec.check_shared("with fitted settings")?;
    let mut engine = Float::keeping_states();
    let layers = spec.attention().without_windows();
    let look = move |found: &mut Vec<_>, seen: &Seen| found.push(look(seen));
    let found = watch(&layers, Vec::new(), look, |cache| {
        model.forward(&mut engine, Input::known(ids), cache, Rows::All, &mut |_| ())?;
        Ok::<_, Error>(())
    })?;
    let States { norms, mut residual } = engine.take_states();
    let norms = norms.into_iter().filter_map(|x| x.into_dimensionality::<Ix2>().ok()).collect();
    // The states before the layers are dropped: the embedding, in two states if positions are added to it.
    let residual = residual.split_off(residual.len() - (2 * spec.layers() + 1));
    Ok(Shown { norms, residual, found })
}

/// For each token, the largest probability with which a query at least `after` tokens later attends to it; 0 without
/// such a query. The result is (kv_heads, tokens).
fn most_received(seen: &Seen, after: usize) -> Array2<f32> {
    let p = seen.p;
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
    use ndarray::Array3;
    use waggle_mpcache::HeadShape;

    use super::*;

    #[test]
    fn the_most_attention_of_later_queries_and_of_a_group() {
        // Two key/value heads with two query heads each, and three tokens.
        let shape = HeadShape { heads: 4, kv_heads: 2, head_dim: 1 };
        let p = Array3::from_shape_fn((2, 6, 3), |(kv, row, token)| {
            let (group, query) = (row / 3, row % 3);
            if token > query { 0.0 } else { (1 + query + 10 * group + 100 * kv) as f32 * (token + 1) as f32 }
        });
        // With the distance 0 all queries count, here the last query in the second head of the group.
        let keys = Array2::zeros((3, 2));
        let (keys, p) = (keys.view(), p.view());
        let seen = Seen { layer: 0, shape, q: p, keys, values: keys, p, sink: false, output: p };
        let most = most_received(&seen, 0);
        assert_eq!(most.as_slice().unwrap(), [13.0, 26.0, 39.0, 113.0, 226.0, 339.0]);
        assert_eq!(most_received(&seen, 2).as_slice().unwrap(), [13.0, 0.0, 0.0, 113.0, 0.0, 0.0]);
        assert_eq!(most_received(&seen, 3).as_slice().unwrap(), [0.0; 6]);
    }
}
