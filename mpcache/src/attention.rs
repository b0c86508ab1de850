//! Attention over what a policy keeps or chooses.

use std::ops::Range;

use waggle_engine::{Ceiling, Engine, Error, Origin, Precision, Product, Right, Select, Tensor, Visible};

pub use crate::heads::take;
use crate::heads::{fold_heads, unfold_heads};
pub use crate::store::capped;
use crate::{Granularity, HeadShape, Part, Store};

/// The result of [`weighted`]: the mixed values, and the weights by which they were mixed.
#[derive(Clone, Debug)]
pub struct Attended<T> {
    /// The mix of the values, (heads, rows, head_dim).
    pub output: T,
    /// The weights of the mix: for each part of the store, (kv_heads of the part, group * rows, tokens of the part).
    pub by_part: Vec<T>,
}

impl<T> Attended<T> {
    /// The weights of the mix, (kv_heads, group * rows, tokens), of a store that is not divided into parts.
    ///
    /// # Panics
    /// If the heads of the store are divided into parts.
    pub fn probabilities(&self) -> &T {
        assert_eq!(self.by_part.len(), 1, "heads of a divided store hold different tokens");
        &self.by_part[0]
    }
}

/// Exact attention of `q` (heads, rows, head_dim), the queries of the last `rows` tokens of the store. A query sees
/// the tokens that its head holds, as far as the layer lets it see them ([`Store::spans`]). In two phases a divided
/// store takes the same flows as an undivided one, because all parts go through every step together.
///
/// [`weighted`] also returns the weights of the mix. Long rows cost less without them.
pub fn attend<E: Engine>(engine: &mut E, q: &E::Tensor, store: &mut Store<E>) -> Result<E::Tensor, Error> {
    // The mix of public values is a product of its own, which takes probabilities. So do votes.
    if store.prefix_in_view(q.shape()[1]).is_some() || store.notes() {
        return Ok(weighted(engine, q, store)?.output);
    }
    let (scores, seen) = scored(engine, q, store)?;
    let (beside, hidden) = (beside_sinks(&scores, store), store.may_hide());
    let visible = visible(&scores, beside.as_deref(), &seen, hidden);
    let mut values = store.cached_values();
    let values = values.iter_mut().map(|value| Right::Cached { tensor: &value.tensor, operand: &mut *value.operand });
    let mixed = engine.mix_each(&visible, values.collect())?;
    Ok(unfold_heads(&store.in_order(0, mixed), store.heads()))
}

/// [`attend`] for policies that look at the weights of the mix.
pub fn weighted<E: Engine>(
    engine: &mut E,
    q: &E::Tensor,
    store: &mut Store<E>,
) -> Result<Attended<E::Tensor>, Error> {
    let (scores, seen) = scored(engine, q, store)?;
    let weights = softmax(engine, q, &scores, &seen, store)?;
    let mixed = store.mix_each(engine, &weights.by_part)?;
    let output = weights.with_prefix(engine, unfold_heads(&store.in_order(0, mixed), store.heads()), store)?;
    Ok(Attended { output, by_part: weights.by_part })
}

/// For each part of the store, the scores of the queries `q` and the range of tokens that each row sees.
#[allow(clippy::type_complexity, reason = "two lists side by side")]
fn scored<E: Engine>(
    engine: &mut E,
    q: &E::Tensor,
    store: &mut Store<E>,
) -> Result<(Vec<E::Tensor>, Vec<Vec<Range<usize>>>), Error> {
    store.record_all_attended();
    let rows = q.shape()[1];
    let seen = store.parts().iter().map(|part| store.spans(rows, part.len())).collect();
    let q = fold_heads(q, store.heads());
    let queries: Vec<E::Tensor> = store.parts().iter().map(|part| part.own(&q, 0)).collect();
    Ok((store.scores_each(engine, &queries)?, seen))
}

/// The weights that a softmax gives to the tokens of a store, and to the public tokens before them.
#[derive(Clone, Debug)]
pub struct Weights<T> {
    /// For each part of the store, the weights of its tokens, in the shape of their scores.
    pub by_part: Vec<T>,
    /// The weights of the public tokens that the queries see, (kv_heads, group * rows, tokens), if they see some.
    public: Option<T>,
}

impl<T: Tensor> Weights<T> {
    /// Adds the values of public tokens, by their weights, to `mixed` (heads, rows, head_dim), the mix of the values
    /// of the store.
    pub fn with_prefix<E: Engine<Tensor = T>>(&self, engine: &mut E, mixed: T, store: &Store<E>) -> Result<T, Error> {
        let (Some(weights), Some(prefix)) = (&self.public, store.prefix_in_view(mixed.shape()[1])) else {
            return Ok(mixed);
        };
        let public = store.mix_of_prefix(engine, &prefix, weights)?;
        engine.add(&mixed, &public.reshape(&mixed.shape()))
    }
}

/// The softmax of `scores`, which has a tensor (..., rows, tokens) for each part of `store`. In the axes before the
/// last one, the query head is outermost, then the query. `seen` has, for each part, the range of tokens that each
/// row sees. If the layer has sinks, the sink of a row's head counts in the sum of the row, but mixes no value. If
/// public tokens come before the text, the queries `q` (heads, rows, head_dim) attend to them as well.
pub fn softmax<E: Engine>(
    engine: &mut E,
    q: &E::Tensor,
    scores: &[E::Tensor],
    seen: &[Vec<Range<usize>>],
    store: &mut Store<E>,
) -> Result<Weights<E::Tensor>, Error> {
    let Some(prefix) = store.prefix_in_view(q.shape()[1]) else {
        let by_part = probabilities(engine, scores, seen, store)?;
        store.note(&by_part);
        return Ok(Weights { by_part, public: None });
    };
    let queries = fold_heads(q, store.heads());
    let of_prefix = store.scores_of_prefix(engine, &prefix, &queries)?;
    let joined = scores.iter().zip(store.parts()).map(|(scores, part)| {
        let (mut shape, own) = (scores.shape(), part.own(&of_prefix, 0));
        let axis = shape.len() - 1;
        shape[axis] = prefix.held;
        E::Tensor::concat(axis, &[&own.reshape(&shape), scores])
    });
    let (joined, seen): (Vec<_>, Vec<_>) =
        (joined.collect(), seen.iter().map(|seen| store.seen_after(prefix.held, seen)).collect());
    let p = probabilities(engine, &joined, &seen, store)?;
    let part = |p: &E::Tensor, range: Range<usize>| p.slice(p.shape().len() - 1, range);
    let by_part: Vec<E::Tensor> = p.iter().map(|p| part(p, prefix.held..p.shape()[p.shape().len() - 1])).collect();
    store.note(&by_part);
    let public = p.iter().zip(store.parts()).map(|(p, of)| {
        let rows = queries.shape()[1];
        part(p, 0..prefix.held).reshape(&[of.heads().len(), rows, prefix.held])
    });
    Ok(Weights { by_part, public: Some(store.in_order(0, public.collect())) })
}

/// The softmax of `scores` of each part, of which rows see the ranges `seen`.
fn probabilities<E: Engine>(
    engine: &mut E,
    scores: &[E::Tensor],
    seen: &[Vec<Range<usize>>],
    store: &Store<E>,
) -> Result<Vec<E::Tensor>, Error> {
    let beside = beside_sinks(scores, store);
    let visible = visible(scores, beside.as_deref(), seen, store.may_hide());
    let p = engine.scope("softmax", |e| e.softmax_each(&visible))?;
    Ok(p.iter().zip(&visible).map(|(p, visible)| visible.without_sink(p)).collect())
}

/// The input of a softmax. `beside` are the scores beside sinks, if there are sinks.
fn visible<'a, T>(
    scores: &'a [T],
    beside: Option<&'a [T]>,
    seen: &'a [Vec<Range<usize>>],
    hidden: bool,
) -> Vec<Visible<'a, T>> {
    let (all, sink) = (beside.unwrap_or(scores), beside.is_some());
    all.iter().zip(seen).map(|(scores, seen)| Visible { scores, seen, sink, hidden }).collect()
}

/// The scores of each part beside a column of their heads' sinks, if the layer has sinks.
fn beside_sinks<E: Engine>(scores: &[E::Tensor], store: &Store<E>) -> Option<Vec<E::Tensor>> {
    let beside = |(scores, part): (&E::Tensor, &Part<E>), sinks: &E::Tensor| {
        let (mut shape, own) = (scores.shape(), part.own(sinks, 0));
        let (axis, heads) = (shape.len() - 1, own.len());
        shape[axis] = 1;
        let queries = shape.iter().product::<usize>() / heads;
        let column = E::Tensor::concat(1, &vec![&own.reshape(&[heads, 1]); queries]).reshape(&shape);
        E::Tensor::concat(axis, &[scores, &column])
    };
    store.sinks().map(|sinks| scores.iter().zip(store.parts()).map(|part| beside(part, sinks)).collect())
}

/// Attention of one query per head, `q` (heads, 1, head_dim), over chosen tokens. The result has the shape of `q`.
///
/// `pairs` (batch, tokens, 2 head_dim) has the keys of the chosen tokens beside their values. `batch` is the number
/// of query heads or of key/value heads of `store`. The policy records which tokens it chose
/// ([`Store::record_attended`]).
pub fn sparse<E: Engine>(
    engine: &mut E,
    q: &E::Tensor,
    pairs: &E::Tensor,
    store: &mut Store<E>,
) -> Result<E::Tensor, Error> {
    let HeadShape { heads, head_dim, .. } = store.heads();
    let (batch, tokens) = (pairs.shape()[0], pairs.shape()[1]);
    let queries = q.reshape(&[batch, heads / batch, head_dim]);
    let keys = pairs.slice(2, 0..head_dim).permute(&[0, 2, 1]);
    let cap = store.soft_cap();
    // The cap of a layer needs scores in full precision.
    let precision = if cap.is_none() { Precision::Softmax } else { Precision::Full };
    let product = Product { left: &queries, right: Right::Fresh(&keys) };
    let scores = engine.scope("scores", |e| e.matmul_each(vec![product], precision))?.remove(0);
    let scores = capped(engine, cap, scores)?;
    let weights = softmax(engine, q, &[scores], &[vec![0..tokens; heads / batch]], store)?;
    let values = pairs.slice(2, head_dim..2 * head_dim);
    let mixed = engine.scope("values", |e| e.matmul(&weights.by_part[0], Right::Fresh(&values)))?;
    weights.with_prefix(engine, mixed.reshape(&[heads, 1, head_dim]), store)
}

/// The attention that each token received from the last `window` of `rows` queries: the sum of the probabilities `p`
/// (kv_heads, group * rows, tokens) over these queries and over heads.
///
/// The result is (kv_heads, tokens), with sums over the query heads of each key/value head. With
/// [`Granularity::PerLayer`] it is (1, tokens), with sums over all heads.
pub fn received<E: Select>(
    engine: &mut E,
    p: &E::Tensor,
    window: usize,
    each: Granularity,
    shape: HeadShape,
) -> Result<E::Tensor, Error> {
    let (group, batch) = (shape.group(), each.stores(shape));
    let (rows, tokens) = (p.shape()[1] / group, p.shape()[2]);
    let last = p.reshape(&[shape.kv_heads, group, rows, tokens]).slice(2, rows - window..rows);
    // (batch, tokens, terms)
    let last = last.reshape(&[batch, shape.heads / batch * window, tokens]).permute(&[0, 2, 1]);
    engine.sum_last(&last)
}

/// Adds the attention that tokens received from the queries of this piece, `received` (rows, tokens), to what they
/// received from earlier pieces, `before` (rows, fewer tokens). A token that came with this piece received none
/// before.
pub fn accumulate<E: Engine>(
    engine: &mut E,
    before: Option<E::Tensor>,
    received: E::Tensor,
) -> Result<E::Tensor, Error> {
    let Some(before) = before else { return Ok(received) };
    let (known, tokens) = (before.shape()[1], received.shape()[1]);
    let both = engine.add(&received.slice(1, 0..known), &before)?;
    Ok(E::Tensor::concat(1, &[&both, &received.slice(1, known..tokens)]))
}

/// Bounds on the sums that [`received`] returns, and the precision to which they are compared.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    /// log2 of a bound on the sums, if all scores are in range, so that every term is a probability.
    pub magnitude: u32,
    /// Fractional bits to which a sum is rounded before it is compared.
    pub frac: u32,
    /// A bound on the sums that holds whatever the scores were.
    pub ceiling: Ceiling,
}

impl Received {
    /// The bounds of sums over `window` queries, on `engine`. If the sums are smoothed over a kernel, `window` is the
    /// number of queries times the length of the kernel.
    pub fn new<E: Select>(engine: &E, window: usize, each: Granularity, shape: HeadShape) -> Result<Self, Error> {
        let terms = window * shape.heads / each.stores(shape);
        // Rounding may lift a probability a little above 1.
        let magnitude = usize::BITS - terms.leading_zeros() + 1;
        Ok(Received { magnitude, frac: grid(terms), ceiling: engine.ceiling(Origin::Probability)?.times(terms) })
    }
}

/// Fractional bits of the grid to which sums of `terms` probabilities are rounded. A cell of the grid is 2^8 units
/// wide, times the root of `terms`. A unit is 2^-18.
///
/// A sum may be off by a part of a cell ([`waggle_engine::GRID_NOISE`]), which is then 16 units, times that root. Two
/// parties round a probability at random, by half a unit on average, so the error of a sum is half a unit, times that
/// root. The rest of the 16 units allows for the rounding of scores in earlier layers: an error of 2^-12 moves a
/// probability of 1/4 by 12 units.
fn grid(terms: usize) -> u32 {
    10u32.saturating_sub(terms.ilog2().div_ceil(2))
}
