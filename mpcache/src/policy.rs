//! The interface of a cache policy.

use waggle_engine::{Ceiling, Engine, Error};

use crate::{HeadShape, Piece, Store};

/// Computes attention over a store: over all of it or over a part that the policy chooses.
///
/// One value serves all layers of one generation, so a policy may keep state per layer, look at the attention of the
/// prompt, and use on one layer what it selected on another.
pub trait Policy<E: Engine>: Send {
    /// The policy with all of its state once more, for plans that go on from here in several ways
    /// ([`KvCache::fork`](crate::KvCache::fork)). A plan of a conversation under a policy that has no fork begins
    /// with the first turn each time.
    fn fork(&self) -> Option<Box<dyn Policy<E>>> {
        None
    }

    /// The number of trailing queries of `piece` that the policy observes on `layer`, besides those whose output the
    /// model needs. A policy that scores tokens by the attention of a window of the prompt asks for that window
    /// ([`Piece::among_last`]).
    fn observation_window(&self, layer: usize, piece: Piece) -> usize {
        let _ = (layer, piece);
        0
    }

    /// Tokens of the prompt after each of which the policy evicts. The prompt is then read in pieces that end there,
    /// or before. `None` if the prompt sees itself whole.
    fn prefill_chunk(&self) -> Option<usize> {
        None
    }

    /// The key/value heads of `layer` by parts that hold different tokens, each part in ascending order and each head
    /// in one of them. Public, as a session is planned by it. A store that is divided has no keys or values of all
    /// heads.
    fn parts(&self, layer: usize, shape: HeadShape) -> Vec<Vec<usize>> {
        let _ = layer;
        vec![(0..shape.kv_heads).collect()]
    }

    /// Layers with the same number cost the same: a plan computes one of them. Nobody does so unless the policy says
    /// that the layer decides nothing else.
    fn layer_class(&self, layer: usize) -> usize {
        layer
    }

    /// Attention of the queries `q` (heads, rows, head_dim), scaled and rotated, of the last `rows` tokens that were
    /// appended to `store`: (heads, rows, head_dim). Query i sees the tokens up to its own.
    ///
    /// A prompt may come in pieces ([`Store::piece`]). All of it sees itself whole, unless the policy evicts in
    /// between ([`prefill_chunk`](Policy::prefill_chunk)). A piece of which neither the model nor the policy wants a
    /// query is appended to the store with a call of [`appended`](Policy::appended) alone.
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

    /// The scores that the policy wants of every token ([`score`](Policy::score)), if it wants any.
    fn wants_scores(&self) -> Option<ScoreSource> {
        None
    }

    /// Scores of the next tokens on `layer` that have none yet, (tokens, kv_heads), which nothing can lift beyond
    /// `ceiling`. Called if the policy [wants](Policy::wants_scores) them.
    fn score(&mut self, layer: usize, scores: &E::Tensor, ceiling: Ceiling) {
        let _ = (layer, scores, ceiling);
    }

    /// Called instead of [`attend`](Policy::attend) for new tokens in `store` whose queries nobody wants, and when
    /// the surprisal of the last tokens has come. A policy that evicts without looking at queries does so here.
    fn appended(&mut self, engine: &mut E, layer: usize, store: &mut Store<E>) -> Result<(), Error> {
        let _ = (engine, layer, store);
        Ok(())
    }
}

/// Scores of tokens that a policy does not compute itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScoreSource {
    /// The scores of the model's scoring head, a linear function of the hidden state. They come with every token.
    ScoringHead,
    /// The surprisal of each token, in nats. Surprisals come when the tokens have been read on all layers, on engines
    /// that see their values.
    Surprisal,
}
