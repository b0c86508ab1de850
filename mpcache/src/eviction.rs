//! Eviction at the end of the prompt. Each layer ranks its tokens once, keeps a fixed number of them and forgets the
//! others.
//!
//! Kept tokens stay in the order of the prompt: gathering by a selection in order is a stable compaction
//! ([`Select::in_order`]). The selection stays hidden, so no party learns which tokens are kept. The number of kept
//! tokens is public.

use std::ops::Range;

use ndarray::ArrayD;
use waggle_engine::{Ceiling, Engine, Error, Origin, Ranking, Right, Select, Tensor, TopK};

use crate::attention::{self, Received, take};
use crate::store::KV_MAGNITUDE;
use crate::{Granularity, HeadShape, Piece, Store};

/// Ranking that finds the `k` tokens that received the most attention. `size` bounds the attention of a token.
pub fn by_attention(k: usize, method: TopK, size: Received) -> Ranking {
    let Received { magnitude, frac, ceiling } = size;
    Ranking { k, method, magnitude, ceiling, frac, rounded: true }
}

/// The tokens of each row of `scores` (rows, tokens) with the largest entries, in the order of the store.
pub fn choose<E: Select>(engine: &mut E, scores: &E::Tensor, how: &Ranking) -> Result<E::Selection, Error> {
    let best = engine.top_k(scores, how)?;
    engine.in_order(&best)
}

/// The rows of a store as an eviction divides them: guarded rows, then the candidates, then the latest rows, which
/// stay.
///
/// **Guarded rows** are those of the first and of the last tokens of the prompt. *Protection Is (Nearly) All You
/// Need* (arXiv 2605.18053) finds that scores of seven kinds keep little of a model's quality unless both ends of the
/// prompt stay. Which tokens these are is public, so that sparing them costs nothing, and leaves fewer candidates.
#[derive(Clone, Debug)]
pub struct Rows {
    order: Option<Vec<usize>>,
    /// The rows among which the policy chooses.
    pub candidates: Range<usize>,
    /// The number of candidates that stay.
    pub stay: usize,
}

impl Rows {
    /// Divides the rows of `store`, of which `keep` are to be left. The `latest` latest tokens stay, or half of those
    /// that are not guarded, and `guard` tokens at each end of the prompt ([`Store::guard`]).
    pub fn divide<E: Engine>(store: &mut Store<E>, guard: usize, keep: usize, latest: usize) -> Self {
        let order = store.guard(0, guard);
        let ((guarded, each), Piece { end, prompt, held, .. }) = (store.guarded(0), store.piece());
        // Guarded tokens of the prompt's end were among the latest tokens until now, so fewer latest tokens stay.
        let left = order.as_ref().map_or(0, |_| latest.saturating_sub(end - prompt).min(each));
        let latest = (latest - left).min((keep - guarded).div_ceil(2));
        let latest = if end < prompt { latest.max(each) } else { latest };
        Rows { order, candidates: guarded..held - latest, stay: keep - guarded - latest }
    }

    /// The entries of `known`, (.., tokens, ..) along `axis`, in the order of the rows.
    pub fn follow<T: Tensor>(&self, known: &T, axis: usize) -> T {
        self.order.as_ref().map_or_else(|| known.clone(), |order| take(known, axis, order))
    }

    /// Whether rows have moved.
    pub(crate) fn moved(&self) -> bool {
        self.order.is_some()
    }

    /// Keeps all rows but the candidates.
    pub fn keep_no_candidate<E: Engine>(&self, store: &mut Store<E>) {
        store.keep_rows(0, &self.others(store.len()).collect::<Vec<_>>());
    }

    /// The scores of the rows that are no candidates.
    pub(crate) fn spare<T: Tensor>(&self, known: &Scores<T>) -> Scores<T> {
        let others: Vec<usize> = self.others(known.tokens()).collect();
        known.map(|scores| take(scores, 1, &others))
    }

    /// The rows that are no candidates, of `rows` rows.
    fn others(&self, rows: usize) -> impl Iterator<Item = usize> + use<> {
        (0..self.candidates.start).chain(self.candidates.end..rows)
    }
}

/// Keeps the chosen rows among `candidates`, and all other rows. The selection has one row per key/value head, or a
/// single row for the layer with [`Granularity::PerLayer`].
pub fn keep<E: Select>(
    engine: &mut E,
    store: &mut Store<E>,
    chosen: &E::Selection,
    candidates: Range<usize>,
    each: Granularity,
) -> Result<(), Error> {
    let shape = store.heads();
    let payload = each.payload(&store.pairs_by_head(candidates.clone()), shape);
    let kept = engine.gather(chosen, Right::Fresh(&payload), KV_MAGNITUDE)?;
    replace(engine, store, chosen, candidates, &Granularity::unpack(&kept, shape.kv_heads));
    Ok(())
}

/// The scores of the first tokens of a store. If a token moves to another row, its score moves with it.
#[derive(Clone, Debug)]
pub struct Scores<T> {
    /// The scores, (kv_heads, tokens), or (1, tokens) if all heads share them.
    pub scores: T,
    /// What tokens received in an earlier window, in the same shape, if a policy forgets by windows.
    pub earlier: Option<T>,
    /// A bound that no score can exceed, with what was received earlier.
    pub ceiling: Ceiling,
}

impl<T: Tensor> Scores<T> {
    /// The number of tokens that have scores.
    pub fn tokens(&self) -> usize {
        self.scores.shape()[1]
    }

    /// What `f` makes of the scores, and of those of the earlier window.
    pub fn map(&self, f: impl Fn(&T) -> T) -> Self {
        Scores { scores: f(&self.scores), earlier: self.earlier.as_ref().map(f), ceiling: self.ceiling }
    }

    /// The scores by which tokens are compared: with those of the earlier window.
    pub fn total<E: Engine<Tensor = T>>(&self, engine: &mut E) -> Result<T, Error> {
        match &self.earlier {
            Some(earlier) => engine.add(&self.scores, earlier),
            None => Ok(self.scores.clone()),
        }
    }

    /// Begins a new window: what was received so far becomes earlier, and what was earlier is forgotten.
    pub fn begin_window<E: Engine<Tensor = T>>(self, engine: &mut E) -> Self {
        let zeros = engine.public(&ArrayD::zeros(self.scores.shape()));
        Scores { scores: zeros, earlier: Some(self.scores), ..self }
    }
}

/// Adds the attention that tokens received from the last `window` queries ([`attention::received`]) to the attention
/// that they received `before`.
pub fn accumulate<E: Select>(
    engine: &mut E,
    before: Option<Scores<E::Tensor>>,
    p: &E::Tensor,
    window: usize,
    each: Granularity,
    shape: HeadShape,
) -> Result<Scores<E::Tensor>, Error> {
    let received = attention::received(engine, p, window, each, shape)?;
    let Received { ceiling, .. } = Received::new(engine, window, each, shape)?;
    let bound = before.as_ref().map_or(ceiling, |before| ceiling.plus(before.ceiling));
    let (before, earlier) = before.map_or((None, None), |before| (Some(before.scores), before.earlier));
    let scores = attention::accumulate(engine, before, received)?;
    let earlier = earlier.map(|earlier| {
        let (known, tokens) = (earlier.shape()[1], scores.shape()[1]);
        let zeros = engine.public(&ArrayD::zeros(vec![earlier.shape()[0], tokens - known]));
        E::Tensor::concat(1, &[&earlier, &zeros])
    });
    Ok(Scores { scores, earlier, ceiling: bound })
}

/// [`keep`] for a store in which every token has a score, in `known`, below 2^`magnitude`. Each score moves with its
/// token. Returns the scores of the tokens that are left.
pub fn keep_scored<E: Select>(
    engine: &mut E,
    store: &mut Store<E>,
    chosen: &E::Selection,
    candidates: Range<usize>,
    known: &Scores<E::Tensor>,
    magnitude: u32,
    each: Granularity,
) -> Result<Scores<E::Tensor>, Error> {
    let payload = scored_payload(store, known, each, candidates.clone());
    let magnitude = scored_magnitude(magnitude);
    let kept = engine.gather(chosen, Right::Fresh(&payload), magnitude)?;
    let (pairs, left) = parted(&kept, known);
    replace(engine, store, chosen, candidates.clone(), &Granularity::unpack(&pairs, store.heads().kv_heads));
    let ceiling = known.ceiling.max(engine.ceiling(Origin::Moved { magnitude })?);
    let around = |left: &E::Tensor, known: &E::Tensor| replaced(known, 1, candidates.clone(), left);
    let earlier = left.earlier.as_ref().zip(known.earlier.as_ref()).map(|(left, known)| around(left, known));
    Ok(Scores { scores: around(&left.scores, &known.scores), earlier, ceiling })
}

/// Keys, values and scores of the tokens `range` side by side, as the payload of selections.
pub(crate) fn scored_payload<E: Select>(
    store: &Store<E>,
    known: &Scores<E::Tensor>,
    each: Granularity,
    range: Range<usize>,
) -> E::Tensor {
    let pairs = each.payload(&store.pairs_by_head(range.clone()), store.heads());
    let column = |scores: &E::Tensor| scores.slice(1, range.clone()).reshape(&[pairs.shape()[0], range.len(), 1]);
    let scores: Vec<E::Tensor> = std::iter::once(&known.scores).chain(&known.earlier).map(column).collect();
    E::Tensor::concat(2, &std::iter::once(&pairs).chain(&scores).collect::<Vec<_>>())
}

/// The inverse of [`scored_payload`]: keys and values side by side, and the scores, which are like `known`.
pub(crate) fn parted<T: Tensor>(payload: &T, known: &Scores<T>) -> (T, Scores<T>) {
    let [rows, tokens, w] = payload.shape()[..] else { panic!("payload of shape {:?}", payload.shape()) };
    let first = w - 1 - usize::from(known.earlier.is_some());
    let column = |i: usize| payload.slice(2, i..i + 1).reshape(&[rows, tokens]);
    let earlier = known.earlier.as_ref().map(|_| column(first + 1));
    (payload.slice(2, 0..first), Scores { scores: column(first), earlier, ceiling: known.ceiling })
}

/// log2 of a bound on the keys, values and scores that [`keep_scored`] moves.
pub(crate) fn scored_magnitude(magnitude: u32) -> u32 {
    magnitude.max(KV_MAGNITUDE)
}

/// `all` with `by` in place of the entries `range` along `axis`.
pub(crate) fn replaced<T: Tensor>(all: &T, axis: usize, range: Range<usize>, by: &T) -> T {
    let (before, after) = (0..range.start, range.end..all.shape()[axis]);
    let [before, after] = [before, after].map(|range| (!range.is_empty()).then(|| all.slice(axis, range)));
    let parts: Vec<&T> = before.iter().chain([by]).chain(&after).collect();
    T::concat(axis, &parts)
}

/// Replaces the rows `candidates` of `store` by the chosen ones among them, `kept` (kv_heads, chosen, 2 head_dim).
fn replace<E: Select>(
    engine: &E,
    store: &mut Store<E>,
    chosen: &E::Selection,
    candidates: Range<usize>,
    kept: &E::Tensor,
) {
    let all = store.len();
    let Range { start, end } = candidates;
    store.replace_by_head(&replaced(&store.pairs_by_head(0..all), 1, candidates, kept));
    if let Some(rows) = engine.chosen(chosen) {
        let kept = |head: usize| rows[head.min(rows.len() - 1)].iter().map(move |row| start + row);
        store.record_kept(|head| (0..start).chain(kept(head)).chain(end..all).collect());
    }
}
