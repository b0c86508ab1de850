//! The interface of a cache policy.

use waggle_engine::{Ceiling, Engine, Error};

use crate::{HeadShape, Piece, Store};

/// Computes attention over a store: over all of it or over a part that the policy chooses.
///
/// One value serves all layers of one generation, so a policy may keep state per layer, look at the attention of the
/// prompt, and use on one layer a selection that it made on another.
pub trait Policy<E: Engine>: Send {
    /// A copy of the policy with all of its state, for plans that continue from here in several ways
    /// ([`KvCache::fork`](crate::KvCache::fork)). Under a policy for which this is `None`, each plan of a
    /// conversation begins with the first turn.
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

    /// A number of tokens: the policy evicts after each chunk of this length of the prompt. The prompt is then read
    /// in pieces that end where a chunk ends, or before. `None` if the prompt sees itself whole.
    fn prefill_chunk(&self) -> Option<usize> {
        None
    }

    /// The key/value heads of `layer`, divided into parts that hold different tokens. Each part is in ascending
    /// order, and each head is in one part. Public, because a session is planned with the parts. A store that is
    /// divided has no tensor of the keys or values of all heads.
    fn parts(&self, layer: usize, shape: HeadShape) -> Vec<Vec<usize>> {
        let _ = layer;
        vec![(0..shape.kv_heads).collect()]
    }

    /// The class of `layer`. Layers of one class cost the same, so that a plan computes only one of them. By default
    /// every layer has a class of its own. A policy overrides this if it can tell which layers cost the same.
    fn layer_class(&self, layer: usize) -> usize {
        layer
    }

    /// Attention of `q` (heads, rows, head_dim), the scaled and rotated queries of the last `rows` tokens that were
    /// appended to `store`. Returns the mixed values, (heads, rows, head_dim). A query sees the tokens up to its own.
    ///
    /// A prompt may come in pieces ([`Store::piece`]). The whole prompt sees itself, unless the policy evicts in
    /// between ([`prefill_chunk`](Policy::prefill_chunk)). If neither the model nor the policy wants a query of a
    /// piece, [`appended`](Policy::appended) is called for it in place of this function.
    ///
    /// A policy says which tokens it attends to and keeps ([`Store::record_attended`], [`Store::record_kept`]);
    /// [`attention::attend`](crate::attention::attend) records what it attends to itself.
    fn attend(
        &mut self,
        engine: &mut E,
        layer: usize,
        q: &E::Tensor,
        store: &mut Store<E>,
    ) -> Result<E::Tensor, Error>;

    /// The kind of scores that the policy wants for every token ([`score`](Policy::score)); `None` if it wants none.
    fn wants_scores(&self) -> Option<ScoreSource> {
        None
    }

    /// Gives the policy the scores of the next tokens on `layer` that have none yet, (tokens, kv_heads), which never
    /// exceed `ceiling`. Called if the policy [wants](Policy::wants_scores) scores.
    fn score(&mut self, layer: usize, scores: &E::Tensor, ceiling: Ceiling) {
        let _ = (layer, scores, ceiling);
    }

    /// Called in two cases: in place of [`attend`](Policy::attend), when new tokens have come into `store` and
    /// neither the model nor the policy wants their queries; and again once the surprisal of the tokens of a pass is
    /// known. A policy that evicts without looking at queries does so here.
    fn appended(&mut self, engine: &mut E, layer: usize, store: &mut Store<E>) -> Result<(), Error> {
        let _ = (engine, layer, store);
        Ok(())
    }
}

/// Scores of tokens that a policy does not compute itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScoreSource {
    /// The scores of the model's scoring head of this name, a linear function of the hidden state. They come with every
    /// token.
    ScoringHead(&'static str),
    /// The surprisal of each token, in nats. Surprisals come after the tokens have been read on all layers, and only
    /// on engines that see their values.
    Surprisal,
}
