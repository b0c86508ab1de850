//! `h2o` and `tova`: the tokens that received the least attention are evicted.
//!
//! A full store evicts obliviously. To evict one token, the slot of the least score is a hidden one-hot vector e, and
//! the oldest protected token moves into this slot: of the slots x and the row m of this token, x + e (m - e x) is
//! made, by one gather and one scatter. To evict a block, the best of the unprotected tokens are gathered. Either way
//! the slots lose their order, which attention does not need, and all rows are rewritten. A block of N tokens,
//! evicted every N steps, therefore costs about as much as one single token, evicted in each step ([`Schedule`]).
//!
//! **Beside the papers.** H2O adds up attention, and half of the tokens that it keeps are the latest; this is the
//! same here. TOVA protects no token; here the token of the query stays. Sums are rounded before they are compared
//! ([`Received`]). Of tokens with equal scores, an eviction of a block leaves the first, and an eviction of one token
//! drops the first. In `tova` many scores are equal, since a single query gives most tokens no attention. Two parties
//! whose store was shuffled ([`TopK::ShuffleReveal`]) draw one of these tokens. kvpress differs in `h2o`
//! (`bench/peers/README.md`): a token's score is a mean over the queries that see it, and nothing protects the latest
//! ones.
//!
//! **Public.** How many tokens are kept after each step. **Revealed.** Nothing; with [`TopK::ShuffleReveal`] what
//! that method's documentation says.

use waggle_engine::{Error, Origin, Ranking, Right, Select, Tensor, TopK};

use crate::attention::{self, Received};
use crate::eviction::Scores;
use crate::schedule::Later;
use crate::{
    Facts, Granularity, HeadShape, NamedPolicy, Piece, Policy, PolicyError, PolicyFamily, PolicyOptions, Schedule,
    Store, eviction,
};

/// The score by which tokens are evicted. The token with the least score goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionScore {
    /// All attention that the token ever received, per key/value head. Half of the budget protects the latest tokens.
    /// H2O (Zhang et al., arXiv 2306.14048).
    Accumulated,
    /// The attention that the token receives from the latest query, summed over all heads of the layer. Only the
    /// token of this query is protected. TOVA (Oren et al., arXiv 2401.06104).
    Latest,
}

/// Keeps a share of all tokens seen, or a number of tokens, and evicts those that received the least attention.
///
/// The parties learn how many tokens are kept. With [`TopK::ShuffleReveal`] they also learn what that method's
/// documentation says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rolling {
    /// The budget, out of all tokens seen, and when the other tokens are evicted.
    pub schedule: Schedule,
    /// The score by which tokens are evicted.
    pub score: EvictionScore,
    /// The method that finds the least score.
    pub top_k: TopK,
}

impl PolicyFamily for Rolling {
    const POLICIES: &'static [NamedPolicy<Self>] = &[
        NamedPolicy {
            name: "h2o",
            keys: KEYS,
            about: "H2O: evicts what received the least attention so far",
            read: |options| read(options, EvictionScore::Accumulated),
        },
        NamedPolicy {
            name: "tova",
            keys: KEYS,
            about: "TOVA: evicts what the latest query attends to least",
            read: |options| read(options, EvictionScore::Latest),
        },
    ];

    fn facts(&self) -> Facts {
        let side_by_side = self.score == EvictionScore::Accumulated;
        Facts { side_by_side, ..Facts::selecting("how many tokens are kept", self.top_k) }
    }

    fn build<E: Select>(&self, layers: usize, _shape: HeadShape) -> Box<dyn Policy<E>> {
        Box::new(Evicting::<E> { settings: *self, layers: (0..layers).map(|_| None).collect() })
    }
}

const KEYS: &[&str] = &["budget", "block", "topk"];

fn read(options: &mut PolicyOptions, score: EvictionScore) -> Result<Rolling, PolicyError> {
    let schedule = Schedule::read(options, Later::Always)?;
    Ok(Rolling { schedule, score, top_k: options.top_k(TopK::Rank)? })
}

/// The policy of one generation.
struct Evicting<E: Select> {
    settings: Rolling,
    /// By layer, the attention that every kept token received so far; only with [`EvictionScore::Accumulated`].
    layers: Vec<Option<Scores<E::Tensor>>>,
}

impl EvictionScore {
    fn select(self) -> Granularity {
        match self {
            EvictionScore::Accumulated => Granularity::PerKv,
            EvictionScore::Latest => Granularity::PerLayer,
        }
    }

    /// The number of protected tokens among `keep` tokens. They are the latest.
    fn protected(self, keep: usize) -> usize {
        match self {
            EvictionScore::Accumulated => (keep / 2).max(1),
            EvictionScore::Latest => 1,
        }
    }
}

impl<E: Select> Policy<E> for Evicting<E> {
    fn fork(&self) -> Option<Box<dyn Policy<E>>> {
        Some(Box::new(Evicting { layers: self.layers.clone(), ..*self }))
    }

    fn observation_window(&self, _layer: usize, piece: Piece) -> usize {
        match self.settings.score {
            EvictionScore::Accumulated => piece.new,
            EvictionScore::Latest => 0,
        }
    }

    fn layer_class(&self, _layer: usize) -> usize {
        0
    }

    fn attend(
        &mut self,
        engine: &mut E,
        layer: usize,
        q: &E::Tensor,
        store: &mut Store<E>,
    ) -> Result<E::Tensor, Error> {
        let known = &mut self.layers[layer];
        let Rolling { schedule, score, .. } = self.settings;
        let shape = store.heads();
        let piece = store.piece();
        let reading = piece.in_prompt() && !piece.ends_prompt();
        if reading && score == EvictionScore::Latest {
            return attention::attend(engine, q, store);
        }
        let attended = attention::weighted(engine, q, store)?;
        let window = if score == EvictionScore::Accumulated { q.shape()[1] } else { 1 };
        let p = attended.probabilities();
        let mut scores = eviction::accumulate(engine, known.take(), p, window, score.select(), shape)?;
        if reading {
            *known = Some(scores);
            return Ok(attended.output);
        }
        let most = schedule.stay(schedule.budget_of(store.seen()));
        let queries = if score == EvictionScore::Accumulated { store.seen() } else { 1 };
        let size = Received::new(engine, queries, score.select(), shape)?;
        engine.scope("eviction", |engine| {
            let held = store.len();
            match schedule.left(most, held) {
                Some(left) if left + 1 == held => scores = self.settings.evict(engine, size, &scores, store)?,
                Some(left) => scores = self.settings.shrink(engine, size, left, &scores, store)?,
                None => {}
            }
            Ok(())
        })?;
        if score == EvictionScore::Accumulated {
            *known = Some(scores);
        }
        Ok(attended.output)
    }
}

impl Rolling {
    /// The ranking that finds the `k` largest of the `known` scores, which are sums of attention bounded by `size`.
    fn ranking<T>(&self, k: usize, size: Received, known: &Scores<T>) -> Ranking {
        eviction::by_attention(k, self.top_k, Received { ceiling: known.ceiling, ..size })
    }

    /// Evicts all but `keep` tokens at once: the protected tokens stay, and the best of the others.
    fn shrink<E: Select>(
        &self,
        engine: &mut E,
        size: Received,
        keep: usize,
        known: &Scores<E::Tensor>,
        store: &mut Store<E>,
    ) -> Result<Scores<E::Tensor>, Error> {
        let protected = self.score.protected(keep);
        let old = store.len() - protected;
        if keep == protected {
            eviction::keep_latest(store, old);
            return Ok(known.from(old));
        }
        let best = engine.top_k(&known.scores.slice(1, 0..old), &self.ranking(keep - protected, size, known))?;
        eviction::keep_scored(engine, store, &best, old, known, size.magnitude, self.score.select())
    }

    /// Evicts the unprotected token with the least score. The oldest protected token takes its slot.
    fn evict<E: Select>(
        &self,
        engine: &mut E,
        size: Received,
        known: &Scores<E::Tensor>,
        store: &mut Store<E>,
    ) -> Result<Scores<E::Tensor>, Error> {
        let (tokens, kv_heads) = (store.len(), store.heads().kv_heads);
        let old = tokens - self.score.protected(tokens - 1).min(tokens - 1);
        let magnitude = eviction::scored_magnitude(size.magnitude);
        let payload = |store: &Store<E>, range| eviction::scored_payload(store, known, self.score.select(), range);
        let negative = engine.negate(&known.scores.slice(1, 0..old))?;
        let least = engine.top_k(&negative, &self.ranking(1, size, known))?;
        let candidates = payload(store, 0..old);
        let leaving = engine.gather(&least, Right::Fresh(&candidates), magnitude)?;
        let leaving = engine.negate(&leaving)?;
        let change = engine.add(&leaving, &payload(store, old..old + 1))?;
        let change = engine.scatter(&least, &change, magnitude + 1)?;
        let mut all = engine.add(&candidates, &change)?;
        if let Some(rows) = engine.chosen(&least) {
            store.record_kept(|head| {
                let slot = rows[head.min(rows.len() - 1)][0];
                (0..old).map(|i| if i == slot { old } else { i }).chain(old + 1..tokens).collect()
            });
        }
        if old + 1 < tokens {
            all = E::Tensor::concat(1, &[&all, &payload(store, old + 1..tokens)]);
        }
        let w = all.shape()[2];
        store.replace_by_head(&Granularity::unpack(&all.slice(2, 0..w - 1), kv_heads));
        // A score is the old score of the slot plus what the scatter added.
        let added = engine.ceiling(Origin::Moved { magnitude: magnitude + 1 })?;
        let scores = all.slice(2, w - 1..w).reshape(&[all.shape()[0], tokens - 1]);
        Ok(Scores { scores, ceiling: known.ceiling.plus(added) })
    }
}
