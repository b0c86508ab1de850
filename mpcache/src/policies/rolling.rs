//! `h2o` and `tova`: the tokens that received the least attention are evicted.
//!
//! A full store evicts obliviously. One token: the least entry is a hidden one-hot row e, and the oldest protected
//! token moves into its slot: x + e (moved - e x), one gather and one scatter. A block: the best of the others are
//! gathered. Either way the slots lose their order, which attention does not need, and all rows are rewritten. A
//! block of N therefore costs once in N steps about what a single token costs in each ([`Schedule`]).
//!
//! **Public.** How many tokens are kept after each step. **Revealed.** Nothing; with [`TopK::ShuffleReveal`] what
//! that method's documentation says.

use std::ops::Range;

use engine::{Ceiling, Error, Origin, Ranking, Right, Select, Tensor, TopK};

use crate::attention::{self, Received};
use crate::schedule::Later;
use crate::{
    Facts, Granularity, HeadShape, KV_MAGNITUDE, NamedPolicy, Piece, Policy, PolicyError, PolicyFamily,
    PolicyOptions, Schedule, Setting, Store, eviction,
};

/// The score by which tokens are evicted; the least goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionScore {
    /// All attention that the token ever received, per key/value head. Half of the budget protects the latest tokens.
    /// H2O (Zhang et al., arXiv 2306.14048).
    Accumulated,
    /// The attention that the token receives from the latest query, summed over all heads of the layer. Only the
    /// token of that query is protected. TOVA (Oren et al., arXiv 2401.06104).
    Latest,
}

/// Keeps a share of all tokens seen, or a number of tokens, and evicts those that received the least attention.
///
/// The parties learn how many tokens are kept. With [`TopK::ShuffleReveal`] they also learn what that method's
/// documentation says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rolling {
    /// How much is kept, of all tokens seen, and when the rest goes.
    pub schedule: Schedule,
    /// The score by which tokens are evicted.
    pub score: EvictionScore,
    /// How the least score is found.
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

    fn settings(&self) -> Vec<Setting> {
        let mut settings = self.schedule.settings(Later::Always);
        settings.push(Setting::new("topk", self.top_k));
        settings
    }

    fn facts(&self) -> Facts {
        Facts::selecting("how many tokens are kept", self.top_k)
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
    /// By layer the attention that every kept token received so far, (rows, tokens), and a bound that it cannot
    /// exceed; only with [`EvictionScore::Accumulated`].
    layers: Vec<Option<(E::Tensor, Ceiling)>>,
}

/// How tokens are scored and compared.
#[derive(Clone, Copy)]
struct How {
    score: EvictionScore,
    method: TopK,
    /// Of the attention received.
    size: Received,
}

impl How {
    /// log2 of a bound on what is known of a token.
    fn payload(self) -> u32 {
        self.size.magnitude.max(KV_MAGNITUDE)
    }

    fn ranking(self, k: usize, ceiling: Ceiling) -> Ranking {
        eviction::by_attention(k, self.method, Received { ceiling, ..self.size })
    }
}

impl EvictionScore {
    fn select(self) -> Granularity {
        match self {
            EvictionScore::Accumulated => Granularity::PerKv,
            EvictionScore::Latest => Granularity::PerLayer,
        }
    }

    /// How many of `keep` tokens are protected, the latest ones.
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

    fn query_window(&self, _layer: usize, piece: Piece) -> usize {
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
        let Rolling { schedule, score, top_k } = self.settings;
        let shape = store.heads();
        let attended = attention::causal(engine, q, store)?;
        let piece = store.piece();
        let reading = piece.in_prompt() && !piece.ends_prompt();
        if reading && score == EvictionScore::Latest {
            return Ok(attended.output);
        }
        let window = if score == EvictionScore::Accumulated { q.shape()[1] } else { 1 };
        let received = attention::received(engine, attended.probabilities(), window, score.select(), shape)?;
        let Received { mut ceiling, .. } = Received::new(engine, window, score.select(), shape)?;
        let (before, bound) = known.take().unzip();
        let mut scores = attention::accumulate(engine, before, received)?;
        ceiling = bound.map_or(ceiling, |bound| ceiling.plus(bound));
        if reading {
            *known = Some((scores, ceiling));
            return Ok(attended.output);
        }
        let most = schedule.stay(schedule.budget_of(store.seen()));
        let queries = if score == EvictionScore::Accumulated { store.seen() } else { 1 };
        let size = Received::new(engine, queries, score.select(), shape)?;
        let how = How { score, method: top_k, size };
        engine.scope("eviction", |engine| {
            let held = store.len();
            match schedule.left(most, held) {
                Some(left) if left + 1 == held => {
                    (scores, ceiling) = evict(engine, how, (&scores, ceiling), store)?;
                }
                Some(left) => (scores, ceiling) = shrink(engine, how, left, (&scores, ceiling), store)?,
                None => {}
            }
            Ok(())
        })?;
        if score == EvictionScore::Accumulated {
            *known = Some((scores, ceiling));
        }
        Ok(attended.output)
    }
}

/// Everything known of the tokens `range`, as payload of the selections: keys, values and `scores` (rows, tokens).
fn known<E: Select>(score: EvictionScore, scores: &E::Tensor, store: &Store<E>, range: Range<usize>) -> E::Tensor {
    let rows = scores.shape()[0];
    let pairs = score.select().payload(&store.pairs_by_head(range.clone()), store.heads());
    let scores = scores.slice(1, range.clone()).reshape(&[rows, range.len(), 1]);
    E::Tensor::concat(2, &[&pairs, &scores])
}

/// Keeps `all`, a payload as [`known`] makes it; returns its scores.
fn store_known<E: Select>(all: &E::Tensor, store: &mut Store<E>) -> E::Tensor {
    let [rows, tokens, w] = all.shape()[..] else { panic!("payload of shape {:?}", all.shape()) };
    let kv_heads = store.heads().kv_heads;
    store.replace_by_head(&Granularity::unpack(&all.slice(2, 0..w - 1), kv_heads));
    all.slice(2, w - 1..w).reshape(&[rows, tokens])
}

/// Keeps `keep` tokens at once: the protected ones and the best of the others.
fn shrink<E: Select>(
    engine: &mut E,
    how: How,
    keep: usize,
    (scores, ceiling): (&E::Tensor, Ceiling),
    store: &mut Store<E>,
) -> Result<(E::Tensor, Ceiling), Error> {
    let tokens = store.len();
    let protected = how.score.protected(keep);
    let old = tokens - protected;
    let latest = known::<E>(how.score, scores, store, old..tokens);
    if keep == protected {
        store.record_kept(|_| (old..tokens).collect());
        return Ok((store_known::<E>(&latest, store), ceiling));
    }
    let ranking = how.ranking(keep - protected, ceiling);
    let best = engine.top_k(&scores.slice(1, 0..old), &ranking)?;
    let payload = known::<E>(how.score, scores, store, 0..old);
    let kept = engine.gather(&best, Right::Fresh(&payload), how.payload())?;
    if let Some(rows) = engine.chosen(&best) {
        store.record_kept(|head| rows[head.min(rows.len() - 1)].iter().copied().chain(old..tokens).collect());
    }
    let scores = store_known::<E>(&E::Tensor::concat(1, &[&kept, &latest]), store);
    Ok((scores, ceiling.max(engine.ceiling(Origin::Moved { magnitude: how.payload() })?)))
}

/// Evicts the least of the tokens that are not protected; the oldest protected one takes its slot.
fn evict<E: Select>(
    engine: &mut E,
    how: How,
    (scores, ceiling): (&E::Tensor, Ceiling),
    store: &mut Store<E>,
) -> Result<(E::Tensor, Ceiling), Error> {
    let tokens = store.len();
    let old = tokens - how.score.protected(tokens - 1).min(tokens - 1);
    let negative = engine.negate(&scores.slice(1, 0..old))?;
    let least = engine.top_k(&negative, &how.ranking(1, ceiling))?;
    let candidates = known::<E>(how.score, scores, store, 0..old);
    let leaving = engine.gather(&least, Right::Fresh(&candidates), how.payload())?;
    let leaving = engine.negate(&leaving)?;
    let moving = known::<E>(how.score, scores, store, old..old + 1);
    let change = engine.add(&leaving, &moving)?;
    let change = engine.scatter(&least, &change, how.payload() + 1)?;
    let slots = engine.add(&candidates, &change)?;
    if let Some(rows) = engine.chosen(&least) {
        store.record_kept(|head| {
            let slot = rows[head.min(rows.len() - 1)][0];
            (0..old).map(|i| if i == slot { old } else { i }).chain(old + 1..tokens).collect()
        });
    }
    let rest = (old + 1 < tokens).then(|| known::<E>(how.score, scores, store, old + 1..tokens));
    let all = match &rest {
        Some(rest) => E::Tensor::concat(1, &[&slots, rest]),
        None => slots,
    };
    // A score is what was in the slot plus what the scatter added.
    let added = engine.ceiling(Origin::Moved { magnitude: how.payload() + 1 })?;
    Ok((store_known::<E>(&all, store), ceiling.plus(added)))
}
