//! Who shares a selection of tokens.

use std::fmt;
use std::str::FromStr;

use waggle_engine::{Error, Select, Tensor};

use crate::{HeadShape, UnknownValue};

/// Who shares a selection of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Granularity {
    /// Every query head has a selection of its own, as in the MPCache paper.
    #[default]
    PerHead,
    /// The query heads of a key/value head share one selection, by the sum of their scores.
    PerKv,
    /// All heads of a layer share one selection, by the sum of their scores.
    PerLayer,
}

impl Granularity {
    /// All values.
    pub const ALL: [Self; 3] = [Self::PerHead, Self::PerKv, Self::PerLayer];

    /// The number of selections of a layer.
    pub fn rows(self, shape: HeadShape) -> usize {
        match self {
            Granularity::PerHead => shape.heads,
            Granularity::PerKv => shape.kv_heads,
            Granularity::PerLayer => 1,
        }
    }

    /// The number of selections if they are made among stored tokens, as for an eviction. Query heads that read the
    /// same keys and values then share one selection.
    pub(crate) fn stores(self, shape: HeadShape) -> usize {
        self.rows(shape).min(shape.kv_heads)
    }

    /// Sums the scores of the query heads that share a selection: (heads, n) -> (selections, n).
    pub fn sum<E: Select>(self, engine: &mut E, scores: &E::Tensor, shape: HeadShape) -> Result<E::Tensor, Error> {
        let (rows, n) = (self.rows(shape), scores.shape()[1]);
        if rows == shape.heads {
            return Ok(scores.clone());
        }
        engine.sum_last(&scores.reshape(&[rows, shape.heads / rows, n]).permute(&[0, 2, 1]))
    }

    /// Puts the n items of every head, `x` (heads, n, w), side by side for the heads that share a selection. The
    /// heads are query heads or key/value heads. The result is the payload of the selections, (selections, n, w *
    /// heads per selection). If there are more selections than heads, it has one entry for each head.
    pub fn payload<T: Tensor>(self, x: &T, shape: HeadShape) -> T {
        let [heads, n, w] = x.shape()[..] else { panic!("payload of shape {:?}", x.shape()) };
        let rows = self.rows(shape).min(heads);
        x.reshape(&[rows, heads / rows, n, w]).permute(&[0, 2, 1, 3]).reshape(&[rows, n, heads / rows * w])
    }

    /// The inverse of [`payload`](Granularity::payload), for the k items that each selection gathered: (selections,
    /// k, w * heads per selection) -> (heads, k, w). If there are more selections than heads, the result has one
    /// entry for each selection.
    pub fn unpack<T: Tensor>(x: &T, heads: usize) -> T {
        let [rows, k, w] = x.shape()[..] else { panic!("gathered shape {:?}", x.shape()) };
        let each = (heads / rows).max(1);
        x.reshape(&[rows, k, each, w / each]).permute(&[0, 2, 1, 3]).reshape(&[rows * each, k, w / each])
    }
}

impl fmt::Display for Granularity {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Granularity::PerHead => "per-head",
            Granularity::PerKv => "per-kv",
            Granularity::PerLayer => "per-layer",
        })
    }
}

impl FromStr for Granularity {
    type Err = UnknownValue;

    fn from_str(name: &str) -> Result<Self, UnknownValue> {
        let named = |select: &Self| select.to_string() == name;
        Self::ALL.into_iter().find(named).ok_or_else(|| UnknownValue::new("one of per-head, per-kv, per-layer"))
    }
}
