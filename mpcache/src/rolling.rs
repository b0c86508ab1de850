//! The policies `h2o` and `tova`: at every step the token that matters least is evicted.
//!
//! A store that is full evicts one token per step, obliviously: the least entry is a hidden one-hot row e, and the oldest
//! token under protection moves into its slot, x + e (moved - e x), by one gather and one scatter. The order in the slots
//! is lost, which attention does not mind. Public: how many are kept.

use engine::{Ceiling, Engine, Error, Origin, Ranking, Right, Tensor, TopK};

use crate::attention::Received;
use crate::positions::Positions;
use crate::store::KV_MAGNITUDE;
use crate::{HeadShape, Policy, Select, Store, attention, budget};

/// Fractional bits of received attention that are compared.
const FRAC: u32 = 16;

/// What a rolling policy judges by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judge {
    /// All attention that a token ever received; half of the budget is for the latest tokens. H2O (Zhang et al., arXiv
    /// 2306.14048), per key/value head.
    Accumulated,
    /// The attention that it receives from the latest query, summed over all heads of the layer; only that token itself is
    /// protected. TOVA (Oren et al., arXiv 2401.06104).
    Latest,
}

/// Evicts what received the least attention, see [`Judge`].
pub struct Rolling<E: Engine> {
    share: f64,
    judge: Judge,
    method: TopK,
    layers: Vec<Layer<E::Tensor>>,
}

struct Layer<T> {
    /// Attention received so far by every kept token, (rows, tokens), and a bound on it that nothing can exceed; only with
    /// [`Judge::Accumulated`].
    received: Option<(T, Ceiling)>,
    positions: Positions,
}

impl<E: Engine> Rolling<E> {
    /// Keeps the share `share` of all tokens seen.
    pub fn new(share: f64, judge: Judge, method: TopK, layers: usize, shape: HeadShape) -> Self {
        let layer = || Layer { received: None, positions: Positions::new(E::CLEAR, shape) };
        Rolling { share, judge, method, layers: (0..layers).map(|_| layer()).collect() }
    }
}

/// How tokens are judged and compared.
#[derive(Clone, Copy)]
struct How {
    judge: Judge,
    method: TopK,
    /// log2 of a bound on the attention received.
    magnitude: u32,
}

impl How {
    /// log2 of a bound on what is known of a token.
    fn payload(self) -> u32 {
        self.magnitude.max(KV_MAGNITUDE)
    }

    fn ranking(self, k: usize, ceiling: Ceiling) -> Ranking {
        Ranking { k, method: self.method, magnitude: self.magnitude, ceiling, frac: FRAC }
    }
}

impl Judge {
    fn per_layer(self) -> bool {
        self == Judge::Latest
    }

    fn select(self) -> Select {
        if self.per_layer() { Select::PerLayer } else { Select::PerKv }
    }

    /// The latest tokens, which are not judged, of `keep`.
    fn protected(self, keep: usize) -> usize {
        match self {
            Judge::Accumulated => (keep / 2).max(1),
            Judge::Latest => 1,
        }
    }
}

impl<E: Engine> Policy<E> for Rolling<E> {
    fn query_window(&self, _layer: usize, new: usize) -> usize {
        match self.judge {
            Judge::Accumulated => new,
            Judge::Latest => 1,
        }
    }

    fn attend(
        &mut self,
        engine: &mut E,
        layer: usize,
        q: &E::Tensor,
        store: &mut Store<E>,
    ) -> Result<E::Tensor, Error> {
        let Layer { received, positions } = &mut self.layers[layer];
        let (shape, judge) = (store.heads(), self.judge);
        positions.extend(store.seen() - store.fresh(), store.seen());
        positions.attend_all(shape);
        let (mixed, p) = attention::causal(engine, q, store)?;
        let rows = q.shape()[1];
        let window = if judge == Judge::Accumulated { rows } else { 1 };
        let mut scores = attention::received(engine, &p, window, judge.per_layer(), shape)?;
        let mut ceiling = Received::new(engine, window, judge.per_layer(), shape)?.ceiling;
        if let Some((old, before)) = received.take() {
            let known = old.shape()[1];
            let both = engine.add(&scores.slice(1, 0..known), &old)?;
            scores = E::Tensor::concat(1, &[&both, &scores.slice(1, known..store.len())]);
            ceiling = ceiling.plus(before);
        }
        let keep = budget(self.share, store.seen());
        let queries = if judge == Judge::Accumulated { store.seen() } else { 1 };
        let Received { magnitude, .. } = Received::new(engine, queries, judge.per_layer(), shape)?;
        let how = How { judge, method: self.method, magnitude };
        engine.scope("eviction", |engine| {
            if store.len() > keep + 1 {
                (scores, ceiling) = shrink(engine, how, keep, (&scores, ceiling), store, positions)?;
            }
            while store.len() > keep {
                (scores, ceiling) = evict(engine, how, (&scores, ceiling), store, positions)?;
            }
            Ok(())
        })?;
        if judge == Judge::Accumulated {
            *received = Some((scores, ceiling));
        }
        Ok(mixed)
    }

    fn attended(&self, layer: usize) -> Option<&[Vec<usize>]> {
        self.layers[layer].positions.attended()
    }
}

/// Everything that is known of the tokens `range`, as payload of the selections: keys, values and `scores` (rows, tokens).
fn known<E: Engine>(judge: Judge, scores: &E::Tensor, store: &Store<E>, range: std::ops::Range<usize>) -> E::Tensor {
    let rows = scores.shape()[0];
    let pairs = judge.select().payload(&store.pairs_by_head(range.clone()), store.heads());
    let scores = scores.slice(1, range.clone()).reshape(&[rows, range.len(), 1]);
    E::Tensor::concat(2, &[&pairs, &scores])
}

/// Keeps `all`, a payload as [`known`] makes it; returns its scores.
fn store_known<E: Engine>(all: &E::Tensor, store: &mut Store<E>) -> E::Tensor {
    let [rows, tokens, w] = all.shape()[..] else { panic!("payload of shape {:?}", all.shape()) };
    let kv_heads = store.heads().kv_heads;
    store.replace_by_head(&Select::unpack(&all.slice(2, 0..w - 1), kv_heads));
    all.slice(2, w - 1..w).reshape(&[rows, tokens])
}

/// Keeps `keep` tokens at once: the protected ones and the best of the others.
fn shrink<E: Engine>(
    engine: &mut E,
    how: How,
    keep: usize,
    (scores, ceiling): (&E::Tensor, Ceiling),
    store: &mut Store<E>,
    positions: &mut Positions,
) -> Result<(E::Tensor, Ceiling), Error> {
    let tokens = store.len();
    let protected = how.judge.protected(keep);
    let old = tokens - protected;
    let latest = known::<E>(how.judge, scores, store, old..tokens);
    if keep == protected {
        positions.keep(|_| (old..tokens).collect());
        return Ok((store_known::<E>(&latest, store), ceiling));
    }
    let ranking = how.ranking(keep - protected, ceiling);
    let best = engine.top_k(&scores.slice(1, 0..old), &ranking)?;
    let payload = known::<E>(how.judge, scores, store, 0..old);
    let kept = engine.gather(&best, Right::Fresh(&payload), how.payload())?;
    if let Some(rows) = engine.chosen(&best) {
        positions.keep(|head| rows[head.min(rows.len() - 1)].iter().copied().chain(old..tokens).collect());
    }
    let scores = store_known::<E>(&E::Tensor::concat(1, &[&kept, &latest]), store);
    Ok((scores, ceiling.max(engine.ceiling(Origin::Moved { magnitude: how.payload() })?)))
}

/// Evicts the least of the tokens that are not protected; the oldest protected one takes its slot.
fn evict<E: Engine>(
    engine: &mut E,
    how: How,
    (scores, ceiling): (&E::Tensor, Ceiling),
    store: &mut Store<E>,
    positions: &mut Positions,
) -> Result<(E::Tensor, Ceiling), Error> {
    let tokens = store.len();
    let old = tokens - how.judge.protected(tokens - 1).min(tokens - 1);
    let negative = engine.scale(&scores.slice(1, 0..old), -1.0)?;
    let opposite = engine.ceiling(Origin::Scaled { from: ceiling, by: -1.0 })?;
    let least = engine.top_k(&negative, &how.ranking(1, opposite))?;
    let candidates = known::<E>(how.judge, scores, store, 0..old);
    let leaving = engine.gather(&least, Right::Fresh(&candidates), how.payload())?;
    let leaving = engine.scale(&leaving, -1.0)?;
    let moving = known::<E>(how.judge, scores, store, old..old + 1);
    let change = engine.add(&leaving, &moving)?;
    let change = engine.scatter(&least, &change, how.payload() + 1)?;
    let slots = engine.add(&candidates, &change)?;
    if let Some(rows) = engine.chosen(&least) {
        positions.keep(|head| {
            let slot = rows[head.min(rows.len() - 1)][0];
            (0..old).map(|i| if i == slot { old } else { i }).chain(old + 1..tokens).collect()
        });
    }
    let rest = (old + 1 < tokens).then(|| known::<E>(how.judge, scores, store, old + 1..tokens));
    let all = match &rest {
        Some(rest) => E::Tensor::concat(1, &[&slots, rest]),
        None => slots,
    };
    // What was there, and what the scatter added.
    let added = engine.ceiling(Origin::Moved { magnitude: how.payload() + 1 })?;
    Ok((store_known::<E>(&all, store), ceiling.plus(added)))
}
