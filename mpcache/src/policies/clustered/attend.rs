//! Attention over the clusters that a query chooses.

use waggle_engine::{Error, Origin, Ranking, Right, Select, Tensor};

use super::choice::Choice;
use super::layout::Layout;
use super::summary::{Levels, Summaries};
use super::{Clusters, Gather, Similarity};
use crate::attention::{self, Received};
use crate::{Granularity, HeadShape, Piece, Policy, Store, eviction, fold_heads};

/// Fractional bits to which scores are rounded before they are compared. Summaries are scaled down by 8, so a unit is
/// 1/512 of a score.
const SCORE_FRAC: u32 = 12;

/// log2 of a bound on a score.
const SCORE_MAGNITUDE: u32 = 9;

/// The policy of one generation.
pub(super) struct Clustered<E: Select> {
    settings: Clusters,
    /// The summaries of each layer.
    summaries: Vec<Summaries<E>>,
    /// By layer, the attention that tokens received so far from the voting window of the prompt, (kv_heads, tokens),
    /// or (1, tokens) if all heads share a selection.
    votes: Vec<Option<E::Tensor>>,
    /// The tokens of the prompt that the last even layer kept.
    kept: Option<E::Selection>,
    /// The clusters that the last even layer chose for the query.
    choice: Option<Choice<E::Selection>>,
}

impl<E: Select> Clustered<E> {
    /// The policy for a model of `layers` layers.
    pub(super) fn new(settings: Clusters, layers: usize) -> Self {
        Clustered {
            settings,
            summaries: (0..layers).map(Summaries::new).collect(),
            votes: (0..layers).map(|_| None).collect(),
            kept: None,
            choice: None,
        }
    }

    /// The static eviction at the end of the prompt. `p` is the attention of the last piece of the prompt. Earlier
    /// pieces of the voting window have voted before. A layer without `p` keeps what the layer before it kept.
    ///
    /// If all heads of a layer share a selection, they keep the same tokens, so that a slot holds the same token for
    /// every head and its scores can be summed. Otherwise every key/value head keeps its own tokens.
    fn evict(
        &mut self,
        engine: &mut E,
        layer: usize,
        p: Option<&E::Tensor>,
        store: &mut Store<E>,
    ) -> Result<(), Error> {
        let (tokens, shape, c) = (store.len(), store.heads(), self.settings);
        let (candidates, stay) = c.candidates(tokens);
        let kept = match p {
            None => self.kept.take().expect("a layer that follows comes after one that chose"),
            Some(p) => {
                let received = self.vote(engine, layer, p, store)?;
                let received = received.slice(1, candidates.clone());
                let size = Received::new(engine, c.window(tokens), c.select, shape)?;
                eviction::choose(engine, &received, &eviction::by_attention(stay, c.top_k, size))?
            }
        };
        eviction::keep(engine, store, &kept, candidates, c.select)?;
        self.kept = Some(kept);
        Ok(())
    }

    /// The attention that tokens received from the voting window, up to the piece of the prompt whose attention is
    /// `p`.
    fn vote(&mut self, engine: &mut E, layer: usize, p: &E::Tensor, store: &Store<E>) -> Result<E::Tensor, Error> {
        let (c, piece) = (self.settings, store.piece());
        let voters = piece.among_last(c.window(piece.prompt));
        let received = attention::received(engine, p, voters, c.select, store.heads())?;
        attention::accumulate(engine, self.votes[layer].take(), received)
    }

    /// Summarises the clusters that have closed since the last call. `q` is the query that closes them.
    fn summarise(
        &mut self,
        engine: &mut E,
        layer: usize,
        layout: &Layout,
        q: &E::Tensor,
        store: &Store<E>,
    ) -> Result<(), Error> {
        let (c, shape) = (self.settings, store.heads());
        let summaries = &mut self.summaries[layer];
        let from = layout.sinks + summaries.closed * c.sizes.coarse();
        if layout.tail() == from {
            return Ok(());
        }
        let keys = store.keys().slice(0, from..layout.tail());
        // Ledgers and recorded plans know this scope as `digest`.
        engine.scope("digest", |e| summaries.close(e, &c, &keys, q, shape))
    }

    /// Chooses the clusters for `q`. `raw` are the scores of all tokens, (heads, tokens), if they are known already
    /// and single tokens are chosen by their scores. Otherwise clusters are chosen by their summaries.
    fn choose(
        &mut self,
        engine: &mut E,
        layer: usize,
        layout: &Layout,
        q: &E::Tensor,
        raw: Option<&E::Tensor>,
        store: &Store<E>,
    ) -> Result<Choice<E::Selection>, Error> {
        let (c, shape) = (self.settings, store.heads());
        self.summarise(engine, layer, layout, q, store)?;
        let summaries = &mut self.summaries[layer];
        let (coarse, fine) = engine.scope("similarity", |e| {
            let Levels { coarse, fine } = match raw {
                Some(raw) => Levels { coarse: None, fine: raw.slice(1, layout.sinks..layout.tail()) },
                None => summaries.scores(e, &c, q, shape)?,
            };
            let coarse = coarse.map(|scores| c.select.sum(e, &scores, shape)).transpose()?;
            Ok((coarse, c.select.sum(e, &fine, shape)?))
        })?;
        let rows = c.select.rows(shape);
        // A sum over n heads has log2(n) more bits.
        let terms = shape.heads / rows;
        let magnitude = SCORE_MAGNITUDE + terms.next_power_of_two().trailing_zeros();
        let ranking =
            |k, ceiling| Ranking { k, method: c.top_k, magnitude, ceiling, frac: SCORE_FRAC, rounded: false };
        // All scores, of tokens and of summaries, are products of matrices.
        let ceiling = engine.ceiling(Origin::Product)?.times(terms);
        let (first, fine, ceiling) = match (layout.survivors(), coarse) {
            (Some(k), Some(coarse)) => {
                let first = engine.scope("top-k coarse", |e| e.top_k(&coarse, &ranking(k, ceiling)))?;
                let children = fine.reshape(&[rows, layout.clusters, c.sizes.fan]);
                let children = engine.scope("children", |e| e.gather(&first, Right::Fresh(&children), magnitude))?;
                (
                    Some(first),
                    children.reshape(&[rows, k * c.sizes.fan]),
                    engine.ceiling(Origin::Moved { magnitude })?,
                )
            }
            _ => (None, fine, ceiling),
        };
        let last = engine.scope("top-k", |e| e.top_k(&fine, &ranking(layout.wanted, ceiling)))?;
        let choice = Choice { first, last, fan: c.sizes.fan };
        if c.gather == Gather::Scores { Ok(choice) } else { engine.scope("one-hot", |e| choice.one_hot(e)) }
    }

    /// Attention of one query per head over the sinks, the chosen clusters and the tail.
    fn attend_chosen(
        &mut self,
        engine: &mut E,
        layer: usize,
        layout: &Layout,
        q: &E::Tensor,
        store: &mut Store<E>,
    ) -> Result<E::Tensor, Error> {
        let (c, shape) = (self.settings, store.heads());
        let scores = (c.gather == Gather::Scores || c.similarity == Similarity::Token)
            .then(|| store.ranked_scores(engine, &fold_heads(q, shape)))
            .transpose()?
            .map(|scores| scores.reshape(&[shape.heads, layout.tokens]));
        let choice = match self.choice.take().filter(|_| c.follows(layer)) {
            Some(choice) => choice,
            None => {
                let raw = scores.as_ref().filter(|_| c.similarity == Similarity::Token);
                self.choose(engine, layer, layout, q, raw, store)?
            }
        };
        let mixed = match scores.filter(|_| c.gather == Gather::Scores) {
            Some(scores) => self.attend_scores(engine, layout, &choice, q, &scores, store)?,
            None => self.attend_pairs(engine, layout, &choice, q, store)?,
        };
        if let Some(rows) = choice.chosen(engine) {
            let group = shape.heads / rows.len();
            let size = c.sizes.fine;
            store.record_attended(|head| {
                let clusters = rows[head / group].iter();
                let tokens = clusters.flat_map(|&i| (0..size).map(move |t| layout.sinks + i * size + t));
                tokens.chain(0..layout.sinks).chain(layout.tail()..layout.tokens).collect()
            });
        }
        self.choice = Some(choice);
        Ok(mixed)
    }

    /// Attention over the gathered keys and values of the chosen clusters.
    fn attend_pairs(
        &self,
        engine: &mut E,
        layout: &Layout,
        choice: &Choice<E::Selection>,
        q: &E::Tensor,
        store: &mut Store<E>,
    ) -> Result<E::Tensor, Error> {
        let (c, shape) = (self.settings, store.heads());
        let HeadShape { kv_heads, head_dim, .. } = shape;
        debug_assert!(choice.first.is_none(), "one selection over all clusters");
        let chosen = store.gather(engine, &choice.last, layout.sinks..layout.tail(), c.sizes.fine, c.select)?;
        let chosen = Granularity::unpack(&chosen, kv_heads);
        let batch = chosen.shape()[0];
        let chosen = chosen.reshape(&[batch, layout.wanted * c.sizes.fine, 2 * head_dim]);
        let forced = E::Tensor::concat(
            1,
            &[&store.pairs_by_head(0..layout.sinks), &store.pairs_by_head(layout.tail()..layout.tokens)],
        );
        let forced = repeat_rows(&forced, batch / kv_heads);
        attention::sparse(engine, q, &E::Tensor::concat(1, &[&forced, &chosen]), store)
    }

    /// Attention by the gathered scores of the chosen clusters. Their probabilities are scattered back to the places
    /// of the tokens before they multiply the values.
    fn attend_scores(
        &self,
        engine: &mut E,
        layout: &Layout,
        choice: &Choice<E::Selection>,
        q: &E::Tensor,
        scores: &E::Tensor,
        store: &mut Store<E>,
    ) -> Result<E::Tensor, Error> {
        let (c, shape) = (self.settings, store.heads());
        let (heads, size) = (shape.heads, c.sizes.fine);
        let clusters = scores.slice(1, layout.sinks..layout.tail()).reshape(&[heads, layout.fine(), size]);
        let chosen =
            engine.scope("gather", |e| choice.gather(e, &c.select.payload(&clusters, shape), SCORE_MAGNITUDE))?;
        let chosen = Granularity::unpack(&chosen, heads).reshape(&[heads, layout.wanted * size]);
        let (sinks, tail) = (scores.slice(1, 0..layout.sinks), scores.slice(1, layout.tail()..layout.tokens));
        let all = E::Tensor::concat(1, &[&sinks, &tail, &chosen]);
        let (forced, n) = (layout.sinks + layout.tokens - layout.tail(), all.shape()[1]);
        let all = attention::capped(engine, store.soft_cap(), all.reshape(&[heads, 1, n]))?;
        let weights = attention::softmax(engine, q, &[all], &[vec![0..n]], store)?;
        let p = weights.by_part[0].reshape(&[heads, n]);
        let chosen = p.slice(1, forced..n).reshape(&[heads, layout.wanted, size]);
        let back = engine.scope("scatter", |e| choice.scatter(e, &c.select.payload(&chosen, shape), 1))?;
        let back = Granularity::unpack(&back, heads).reshape(&[heads, layout.fine() * size]);
        let p = E::Tensor::concat(1, &[&p.slice(1, 0..layout.sinks), &back, &p.slice(1, layout.sinks..forced)]);
        let p = p.reshape(&[shape.kv_heads, shape.group(), layout.tokens]);
        let mixed = store.mix(engine, &p)?.reshape(&[heads, 1, shape.head_dim]);
        weights.with_prefix(engine, mixed, store)
    }
}

impl<E: Select> Policy<E> for Clustered<E> {
    fn fork(&self) -> Option<Box<dyn Policy<E>>> {
        let summaries = self.summaries.iter().map(Summaries::fork).collect::<Option<_>>()?;
        let (votes, kept, choice) = (self.votes.clone(), self.kept.clone(), self.choice.clone());
        Some(Box::new(Clustered { summaries, votes, kept, choice, ..*self }))
    }

    fn observation_window(&self, layer: usize, piece: Piece) -> usize {
        let c = self.settings;
        let votes = c.evicts(layer, piece.prompt) && !c.follows(layer);
        if votes { piece.among_last(c.window(piece.prompt)) } else { 0 }
    }

    fn layer_class(&self, layer: usize) -> usize {
        let c = self.settings;
        if layer < c.dense { 0 } else { 1 + usize::from(c.follows(layer)) }
    }

    fn attend(
        &mut self,
        engine: &mut E,
        layer: usize,
        q: &E::Tensor,
        store: &mut Store<E>,
    ) -> Result<E::Tensor, Error> {
        if self.settings.clear_only && !E::CLEAR {
            return Err(Error::NotInTheClear { operation: "cache policy `oracle`" });
        }
        let c = self.settings;
        let piece = store.piece();
        let layout = Layout::new(&c, store.len(), store.seen());
        // Several new tokens after the prompt attend to all tokens, like a prompt. So they do on the last layer,
        // where only the query of the last new token is left.
        if !piece.in_prompt() && piece.new == 1 && layer >= c.dense && !layout.is_dense() {
            return self.attend_chosen(engine, layer, &layout, q, store);
        }
        let evicts = c.evicts(layer, piece.prompt);
        let votes = evicts
            && match piece.ends_prompt() {
                true => !c.follows(layer) || self.kept.is_none(),
                false => !c.follows(layer) && piece.among_last(c.window(piece.prompt)) > 0,
            };
        let (output, p) = if votes {
            let mut attended = attention::weighted(engine, q, store)?;
            (attended.output, attended.by_part.pop())
        } else {
            (attention::attend(engine, q, store)?, None)
        };
        if piece.ends_prompt() {
            if evicts {
                engine.scope("eviction", |e| self.evict(e, layer, p.as_ref(), store))?;
            }
            // The layers that will choose among the clusters of the prompt summarise them with it.
            let layout = Layout::new(&c, store.len(), store.seen());
            if layer >= c.dense && !c.follows(layer) && !layout.is_dense() {
                let last = q.slice(1, q.shape()[1] - 1..q.shape()[1]);
                self.summarise(engine, layer, &layout, &last, store)?;
            }
        } else if let Some(p) = p {
            self.votes[layer] = Some(engine.scope("eviction", |e| self.vote(e, layer, &p, store))?);
        }
        Ok(output)
    }
}

/// Repeats every batch entry `times` times in a row: (batch, n, w) -> (batch * times, n, w).
fn repeat_rows<T: Tensor>(x: &T, times: usize) -> T {
    if times == 1 {
        return x.clone();
    }
    let [batch, n, w] = x.shape()[..] else { panic!("rows of shape {:?}", x.shape()) };
    let one = x.reshape(&[batch, 1, n * w]);
    T::concat(1, &vec![&one; times]).reshape(&[batch * times, n, w])
}
