//! What the architectures have in common.

use engine::{Engine, Gelu, Layer, Tensor};
use mpcache::KvCache;

use crate::config::Activation;

/// New tokens: how many, which is public, and which, where that is known.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The ids; only the client has them.
    pub ids: Option<&'a [u32]>,
    /// Their number.
    pub count: usize,
}

/// Which of the new tokens' logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Nobody's: the tokens are only read.
    None,
    /// The last one's, all that generation needs.
    Last,
    /// All.
    All,
}

impl Rows {
    pub(crate) fn of(self, count: usize) -> usize {
        match self {
            Rows::None => 0,
            Rows::Last => 1,
            Rows::All => count,
        }
    }
}

pub(crate) fn activate<E: Engine>(
    engine: &mut E,
    function: Activation,
    x: &E::Tensor,
) -> Result<E::Tensor, engine::Error> {
    match function {
        Activation::GeluTanh => engine.gelu(x, Gelu::Tanh),
        Activation::GeluErf => engine.gelu(x, Gelu::Erf),
        Activation::Silu => engine.silu(x),
        Activation::Relu => engine.relu(x),
        Activation::Registered(function) => function.apply(engine, x),
    }
}

/// The class of layer `index`: layers of one class cost the same. The last layer may compute fewer rows.
pub(crate) fn class<E: Engine>(cache: &KvCache<E>, index: usize, last: bool) -> usize {
    2 * cache.layer_class(index) + usize::from(last)
}

/// Hands the columns of `qkv` (n, columns) beyond the first `width` to the cache: the learned scores of new tokens,
/// if `weight` has columns for them.
pub(crate) fn learned<E: Engine>(
    engine: &E,
    cache: &mut KvCache<E>,
    layer: usize,
    qkv: &E::Tensor,
    width: usize,
    weight: &E::Weight,
) {
    let columns = qkv.shape()[1];
    if columns > width {
        cache.score(layer, &qkv.slice(1, width..columns), engine.linear_ceiling(weight));
    }
}

/// Attention of the last `wanted` of n new tokens: `q` (n, heads, head_dim), `k` and `v` (n, kv_heads * head_dim)
/// -> (wanted, heads * head_dim), or nothing if none is wanted. A policy may want to see more queries than that.
pub(crate) fn attend<E: Engine>(
    engine: &mut E,
    cache: &mut KvCache<E>,
    layer: usize,
    q: &E::Tensor,
    k: &E::Tensor,
    v: &E::Tensor,
    wanted: usize,
) -> Result<Option<E::Tensor>, engine::Error> {
    let n = q.shape()[0];
    let window = cache.query_window(layer, n).max(wanted);
    if window == 0 {
        cache.append(engine, layer, k, v)?;
        return Ok(None);
    }
    let q = q.slice(0, n - window..n).permute(&[1, 0, 2]);
    let mixed = cache.attend(engine, layer, &q, k, v)?;
    Ok((wanted > 0).then(|| mixed.slice(0, window - wanted..window)))
}

/// x (n, width) times the gains (1, width) of a norm that no matrix follows, or none at once: entry by entry.
pub(crate) fn gain<E: Engine>(engine: &mut E, x: &E::Tensor, gains: &E::Weight) -> Result<E::Tensor, engine::Error> {
    engine.scope("gain", |e| {
        let row = e.rows(gains, 0, 1)?;
        let rows = E::Tensor::concat(0, &vec![&row; x.shape()[0]]);
        e.mul(x, &rows)
    })
}

/// A layer of a model.
pub(crate) trait Block<E: Engine> {
    /// Its weights, in the order in which they were prepared.
    fn weights(&self) -> Vec<&E::Weight>;

    /// Layers with another number make other calls, in a model whose layers differ.
    fn kind(&self) -> usize {
        0
    }

    /// (count, width) -> (wanted, width) for the last tokens that are wanted; nothing if none is.
    fn forward(&self, at: At<E>, x: &E::Tensor) -> Result<Option<E::Tensor>, engine::Error>;
}

/// Where a block computes.
pub(crate) struct At<'a, E: Engine> {
    pub(crate) engine: &'a mut E,
    pub(crate) cache: &'a mut KvCache<E>,
    /// The index of the layer.
    pub(crate) layer: usize,
    /// How many of the last tokens are wanted.
    pub(crate) wanted: usize,
}

/// The kinds of layers of one model, at most.
const KINDS: usize = 4;

/// Puts `x` (count, width) through all `blocks`: (rows, width) of the last one, or nothing if no rows are wanted.
pub(crate) fn through<E: Engine, B: Block<E>>(
    engine: &mut E,
    cache: &mut KvCache<E>,
    blocks: &[B],
    mut x: E::Tensor,
    rows: Rows,
    progress: &mut dyn FnMut(usize),
) -> Result<Option<E::Tensor>, engine::Error> {
    let count = x.shape()[0];
    for (layer, block) in blocks.iter().enumerate() {
        // Beyond the last layer's keys and values only the wanted rows matter.
        let last = layer + 1 == blocks.len();
        let wanted = if last { rows.of(count) } else { count };
        let weights = block.weights();
        let class = class(cache, layer, last) * KINDS + block.kind();
        let like = Layer { index: layer, class, weights: &weights };
        let out = engine.scope(&format!("layer {layer}"), |e| {
            e.layer(&like, |engine| block.forward(At { engine, cache, layer, wanted }, &x))
        })?;
        progress(layer + 1);
        let Some(out) = out else { return Ok(None) };
        x = out;
    }
    Ok(Some(x))
}

/// The last `wanted` rows of x.
pub(crate) fn last<T: Tensor>(x: &T, wanted: usize) -> T {
    let n = x.shape()[0];
    if wanted == n { x.clone() } else { x.slice(0, n - wanted..n) }
}
