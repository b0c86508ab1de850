//! Steps of a decoder, and what it is given.

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
        Activation::Relu => engine.relu(x),
        Activation::Registered(function) => function.apply(engine, x),
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
    let window = cache.observation_window(layer, n).max(wanted);
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

/// The last `wanted` rows of x.
pub(crate) fn last<T: Tensor>(x: &T, wanted: usize) -> T {
    let n = x.shape()[0];
    if wanted == n { x.clone() } else { x.slice(0, n - wanted..n) }
}
