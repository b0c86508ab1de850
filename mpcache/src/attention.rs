//! Attention over what a policy keeps or chooses.

use engine::{Ceiling, Engine, Error, Origin, Right, Tensor};

use crate::heads::{fold_heads, unfold_heads};
pub use crate::store::capped;
pub use crate::tensors::take;
use crate::{HeadShape, Store};

/// What [`causal`] returns.
#[derive(Clone, Debug)]
pub struct Attended<T> {
    /// The mix of the values, (heads, rows, head_dim).
    pub output: T,
    /// The weights of the mix, (kv_heads, group * rows, tokens).
    pub probabilities: T,
}

/// Exact causal attention of `q` (heads, rows, head_dim), the queries of the last `rows` tokens of the store, over
/// all tokens that the store keeps. All heads of the store hold the same tokens.
pub fn causal<E: Engine>(engine: &mut E, q: &E::Tensor, store: &mut Store<E>) -> Result<Attended<E::Tensor>, Error> {
    let (output, mut probabilities) = over_parts(engine, q, store)?;
    assert_eq!(probabilities.len(), 1, "heads of a divided store hold different tokens");
    Ok(Attended { output, probabilities: probabilities.remove(0) })
}

/// The same where heads may hold different tokens, each query over those of its head: (heads, rows, head_dim). In
/// two phases it takes the flows of [`causal`], because all parts go through every step together.
pub fn causal_by_parts<E: Engine>(engine: &mut E, q: &E::Tensor, store: &mut Store<E>) -> Result<E::Tensor, Error> {
    Ok(over_parts(engine, q, store)?.0)
}

/// The mix of the values, (heads, rows, head_dim), and its weights by part, (kv_heads of the part, group * rows,
/// tokens of the part).
pub fn over_parts<E: Engine>(
    engine: &mut E,
    q: &E::Tensor,
    store: &mut Store<E>,
) -> Result<(E::Tensor, Vec<E::Tensor>), Error> {
    let shape = store.heads();
    let rows = q.shape()[1];
    store.record_all_attended();
    // The last query sees all tokens; each query before it sees one token less.
    let visible = |tokens: usize| (0..shape.group()).flat_map(move |_| tokens - rows + 1..=tokens);
    let visible: Vec<Vec<usize>> = store.parts().iter().map(|part| visible(part.len()).collect()).collect();
    let q = fold_heads(q, shape);
    let queries: Vec<E::Tensor> = store.parts().iter().map(|part| part.own(&q, 0)).collect();
    let scores = store.scores_each(engine, &queries)?;
    let seen: Vec<_> = scores.iter().zip(&visible).map(|(scores, visible)| (scores, &visible[..])).collect();
    let p = engine.scope("softmax", |e| e.softmax_each(&seen))?;
    let mixed = store.mix_each(engine, &p)?;
    let mixed = store.in_order(0, mixed);
    Ok((unfold_heads(&mixed, shape), p))
}

/// Attention of one query per head, `q` (heads, 1, head_dim), over chosen tokens: (heads, 1, head_dim).
///
/// `pairs` is (batch, tokens, 2 head_dim), keys beside values, with a batch entry for every head or for every
/// key/value head of `store`. The policy records which tokens these are ([`Store::record_attended`]).
pub fn sparse<E: Engine>(
    engine: &mut E,
    q: &E::Tensor,
    pairs: &E::Tensor,
    store: &Store<E>,
) -> Result<E::Tensor, Error> {
    let HeadShape { heads, head_dim, .. } = store.heads();
    let (batch, tokens) = (pairs.shape()[0], pairs.shape()[1]);
    let queries = q.reshape(&[batch, heads / batch, head_dim]);
    let keys = pairs.slice(2, 0..head_dim).permute(&[0, 2, 1]);
    let scores = match store.soft_cap() {
        None => engine.scope("scores", |e| e.scores(&queries, Right::Fresh(&keys)))?,
        cap => {
            let scores = engine.scope("scores", |e| e.matmul(&queries, Right::Fresh(&keys)))?;
            capped(engine, cap, scores)?
        }
    };
    let p = engine.scope("softmax", |e| e.softmax(&scores, &vec![tokens; heads / batch]))?;
    let values = pairs.slice(2, head_dim..2 * head_dim);
    let mixed = engine.scope("values", |e| e.matmul(&p, Right::Fresh(&values)))?;
    Ok(mixed.reshape(&[heads, 1, head_dim]))
}

/// The attention that each token received from the last `window` of `rows` queries, (kv_heads or 1, tokens).
///
/// It is the sum of the probabilities `p` (kv_heads, group * rows, tokens) over these queries and over the heads of a
/// group, or with `per_layer` over all heads.
pub fn received<E: Engine>(
    engine: &mut E,
    p: &E::Tensor,
    window: usize,
    per_layer: bool,
    shape: HeadShape,
) -> Result<E::Tensor, Error> {
    let HeadShape { kv_heads, .. } = shape;
    let group = shape.group();
    let (rows, tokens) = (p.shape()[1] / group, p.shape()[2]);
    let last = p.reshape(&[kv_heads, group, rows, tokens]).slice(2, rows - window..rows);
    let terms = kv_heads * group * window;
    let batch = if per_layer { 1 } else { kv_heads };
    // (batch, tokens, terms / batch)
    let last = last.reshape(&[batch, terms / batch, tokens]).permute(&[0, 2, 1]);
    engine.sum_last(&last)
}

/// What tokens received (rows, tokens) from queries of this piece and of those `before` it, (rows, fewer tokens). A
/// token that comes later received none before.
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

/// Bounds on what [`received`] returns, and how it is compared.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    /// log2 of a bound for scores in range, where every term is a probability.
    pub magnitude: u32,
    /// Fractional bits to which it is rounded before it is compared.
    pub frac: u32,
    /// A bound that holds whatever the scores were.
    pub ceiling: Ceiling,
}

impl Received {
    /// For sums over a window of `window` queries, on `engine`; over a kernel as well, of as many times more terms.
    pub fn new<E: Engine>(engine: &E, window: usize, per_layer: bool, shape: HeadShape) -> Result<Self, Error> {
        let terms = window * if per_layer { shape.heads } else { shape.group() };
        // Rounding may lift a probability a little above 1.
        let magnitude = usize::BITS - terms.leading_zeros() + 1;
        Ok(Received { magnitude, frac: grid(terms), ceiling: engine.ceiling(Origin::Probability)?.times(terms) })
    }
}

/// Fractional bits of the grid for sums of `terms` probabilities: a cell is 2^8 units of 2^-18 wide, times the root
/// of the terms.
///
/// The part of a cell by which a sum may be off ([`engine::GRID_NOISE`]) is then 16 units, times that root. Two
/// parties round a probability at random, by half a unit on average, and errors of a sum add up to the root. The rest
/// is for what rounding in earlier layers did to scores: an error of 2^-12 moves a probability of 1/4 by 12 units.
fn grid(terms: usize) -> u32 {
    10u32.saturating_sub(terms.ilog2().div_ceil(2))
}
