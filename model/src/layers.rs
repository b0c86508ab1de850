//! What the architectures have in common.

use engine::{Engine, Gelu, Tensor};
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
        cache.learned(layer, &qkv.slice(1, width..columns), engine.linear_ceiling(weight));
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
