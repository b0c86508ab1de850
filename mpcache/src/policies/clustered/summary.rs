//! Summaries of clusters, with which a query is compared instead of with every key.

use std::fmt;
use std::str::FromStr;

use waggle_engine::{
    CachedOperand, Error, Extrema, OperandId, OperandKind, Origin, Ranking, Right, Select, Tensor, TopK,
};

use super::{Clusters, Sizes};
use crate::{HeadShape, KV_MAGNITUDE, UnknownValue, fold_heads};

/// Summaries hold keys times this factor. The scores of boxes exceed those of tokens; with the factor they stay
/// within the range of a product. Only the order of scores matters.
const SCALE: f32 = 0.125;

/// The score of a cluster of keys k for a query q, and so the summary that the cluster needs.
///
/// The *box* of a cluster spans its keys: r_max and r_min are the largest and smallest entry in each channel, and
/// c = (r_max + r_min) / 2 is the centre.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Similarity {
    /// q (alpha r_max + (1 - alpha) r_min): MPCache's linear approximation of the bound of the box, eq. 6.
    Linear {
        /// Weight of the maximum.
        alpha: f32,
    },
    /// q c + |q| (r_max - r_min) / 2, which equals Quest's bound, the sum of max(q r_max, q r_min). It takes one
    /// comparison per channel of the query for all clusters together.
    Box,
    /// q c + |q| mean |k - c|: ArkVale's cuboid-mean.
    CuboidMean,
    /// q mean(k).
    Centroid,
    /// q times the mean of the cluster's representatives: the `count` tokens that score highest for the query that
    /// closes the cluster. After InfLLM (arXiv 2402.04617), which scores by the mean over the queries that follow.
    Representatives {
        /// The number of representatives of a cluster.
        count: usize,
    },
    /// q k itself, for clusters of one token.
    Token,
}

impl Similarity {
    /// The names of all similarities.
    pub const NAMES: [&'static str; 6] = ["linear", "box", "cuboid-mean", "centroid", "representatives", "token"];
}

impl fmt::Display for Similarity {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Similarity::Linear { .. } => "linear",
            Similarity::Box => "box",
            Similarity::CuboidMean => "cuboid-mean",
            Similarity::Centroid => "centroid",
            Similarity::Representatives { .. } => "representatives",
            Similarity::Token => "token",
        })
    }
}

impl FromStr for Similarity {
    type Err = UnknownValue;

    fn from_str(name: &str) -> Result<Self, UnknownValue> {
        Ok(match name {
            "linear" => Similarity::Linear { alpha: 0.6 },
            "box" => Similarity::Box,
            "cuboid-mean" => Similarity::CuboidMean,
            "centroid" => Similarity::Centroid,
            "representatives" => Similarity::Representatives { count: 2 },
            "token" => Similarity::Token,
            _ => return Err(UnknownValue::new(format!("one of {}", Self::NAMES.join(", ")))),
        })
    }
}

/// Summaries of the closed clusters of one layer. Each is made once, when its cluster closes.
pub(super) struct Summaries<E: Select> {
    /// The summaries, (summaries, kv_heads * width). With two levels, the summary of each coarse cluster stands
    /// before those of its parts. New summaries come last, so the queries are multiplied by a matrix that only grows.
    rows: Option<E::Tensor>,
    operand: E::Operand,
    /// The number of coarse clusters that have been summarised.
    pub(super) closed: usize,
}

impl<E: Select> Summaries<E> {
    /// No summaries yet, for layer `layer` of the model. No row is ever rewritten, so the operand has a single
    /// generation.
    pub(super) fn new(layer: usize) -> Self {
        let operand = E::Operand::new(OperandId { layer, kind: OperandKind::Digests, generation: 0, part: 0 });
        Summaries { rows: None, operand, closed: 0 }
    }

    pub(super) fn fork(&self) -> Option<Self> {
        Some(Summaries { rows: self.rows.clone(), operand: self.operand.fork()?, ..*self })
    }

    /// Summarises the coarse clusters whose keys are `keys` (clusters * size, kv_heads * head_dim). `q` (heads, 1,
    /// head_dim) is the query that closes them.
    pub(super) fn close(
        &mut self,
        engine: &mut E,
        c: &Clusters,
        keys: &E::Tensor,
        q: &E::Tensor,
        shape: HeadShape,
    ) -> Result<(), Error> {
        let clusters = keys.shape()[0] / c.sizes.coarse();
        if let Some(Levels { coarse, fine }) = summarise(engine, c, keys, q, shape)? {
            let width = fine.shape()[1];
            let by_cluster = |level: &E::Tensor| level.reshape(&[clusters, level.shape()[0] / clusters, width]);
            let parts: Vec<E::Tensor> = coarse.iter().chain([&fine]).map(by_cluster).collect();
            let new = E::Tensor::concat(1, &parts.iter().collect::<Vec<_>>());
            let new = new.reshape(&[clusters * new.shape()[1], width]);
            match &mut self.rows {
                Some(rows) => rows.append(&new),
                None => self.rows = Some(new),
            }
        }
        self.closed += clusters;
        Ok(())
    }

    /// Scores of the queries `q` (heads, 1, head_dim) against the summaries, (heads, clusters) on each level.
    ///
    /// # Panics
    /// If no cluster has closed.
    pub(super) fn scores(
        &mut self,
        engine: &mut E,
        c: &Clusters,
        q: &E::Tensor,
        shape: HeadShape,
    ) -> Result<Levels<E::Tensor>, Error> {
        let q = match c.similarity {
            Similarity::Box | Similarity::CuboidMean => E::Tensor::concat(2, &[q, &engine.abs(q)?]),
            _ => q.clone(),
        };
        let width = q.shape()[2];
        let rows = self.rows.as_ref().expect("clusters are summarised before they are scored");
        let (heads, clusters, fan) = (shape.heads, self.closed, c.sizes.fan);
        let each = rows.shape()[0] / clusters;
        let summaries = rows.reshape(&[each * clusters, shape.kv_heads, width]).permute(&[1, 2, 0]);
        let queries = fold_heads(&q, HeadShape { head_dim: width, ..shape });
        let summaries = Right::Cached { tensor: &summaries, operand: &mut self.operand };
        let scores = engine.matmul(&queries, summaries)?;
        let scores = scores.reshape(&[heads, clusters, each]);
        Ok(Levels {
            coarse: (each > fan).then(|| scores.slice(2, 0..1).reshape(&[heads, clusters])),
            fine: scores.slice(2, each - fan..each).reshape(&[heads, clusters * fan]),
        })
    }
}

/// A value for the coarse clusters, if there are two levels, and a value for the fine clusters.
pub(super) struct Levels<T> {
    pub(super) coarse: Option<T>,
    pub(super) fine: T,
}

/// The summaries of the clusters with the keys `keys`, (clusters, kv_heads * width) on each level; `None` if every
/// token is scored by its own key.
fn summarise<E: Select>(
    engine: &mut E,
    c: &Clusters,
    keys: &E::Tensor,
    q: &E::Tensor,
    shape: HeadShape,
) -> Result<Option<Levels<E::Tensor>>, Error> {
    let levels = match c.similarity {
        Similarity::Token => return Ok(None),
        Similarity::Centroid => on_each_level(engine, c.sizes, |e, size| {
            let sum = e.sum_last(&by_cluster(keys, size))?;
            e.scale(&sum, SCALE / size as f32)
        }),
        Similarity::Representatives { count } => on_each_level(engine, c.sizes, |e, size| {
            representatives(e, keys, q, size, count.min(size), c.top_k, shape)
        }),
        Similarity::Linear { .. } | Similarity::Box | Similarity::CuboidMean => boxes(engine, c, keys, shape),
    };
    levels.map(Some)
}

/// The summaries that `of` makes of the coarse clusters and of the fine clusters.
fn on_each_level<E: Select>(
    engine: &mut E,
    sizes: Sizes,
    of: impl Fn(&mut E, usize) -> Result<E::Tensor, Error>,
) -> Result<Levels<E::Tensor>, Error> {
    let fine = of(engine, sizes.fine)?;
    let coarse = if sizes.fan > 1 { Some(of(engine, sizes.coarse())?) } else { None };
    Ok(Levels { coarse, fine })
}

/// Divides keys into clusters: (clusters * size, channels) -> (clusters, channels, size).
fn by_cluster<T: Tensor>(keys: &T, size: usize) -> T {
    let [tokens, channels] = keys.shape()[..] else { panic!("keys of shape {:?}", keys.shape()) };
    keys.reshape(&[tokens / size, size, channels]).permute(&[0, 2, 1])
}

/// The summaries for similarities that compare boxes.
fn boxes<E: Select>(
    engine: &mut E,
    c: &Clusters,
    keys: &E::Tensor,
    shape: HeadShape,
) -> Result<Levels<E::Tensor>, Error> {
    let Sizes { fine, fan } = c.sizes;
    let Extrema { max, min } = engine.extrema(&by_cluster(keys, fine))?;
    let coarse = if fan > 1 {
        // The maximum of a coarse cluster is the maximum of its parts' maxima; its minimum is the minimum of their
        // minima. One call takes both extrema of all maxima and minima, and half of the results are used.
        let (parts, channels) = (max.shape()[0], max.shape()[1]);
        let clusters = parts / fan;
        let both = E::Tensor::concat(0, &[&max, &min]);
        let both = both.reshape(&[2 * clusters, fan, channels]).permute(&[0, 2, 1]);
        let Extrema { max: high, min: low } = engine.extrema(&both)?;
        let (max, min) = (high.slice(0, 0..clusters), low.slice(0, clusters..2 * clusters));
        Some(of_box(engine, c.similarity, &max, &min, &by_cluster(keys, c.sizes.coarse()), shape)?)
    } else {
        None
    };
    let fine = of_box(engine, c.similarity, &max, &min, &by_cluster(keys, fine), shape)?;
    Ok(Levels { coarse, fine })
}

/// Summaries from the boxes `max` and `min` (clusters, channels) of `keys` (clusters, channels, size).
fn of_box<E: Select>(
    engine: &mut E,
    similarity: Similarity,
    max: &E::Tensor,
    min: &E::Tensor,
    keys: &E::Tensor,
    shape: HeadShape,
) -> Result<E::Tensor, Error> {
    if let Similarity::Linear { alpha } = similarity {
        let (max, min) = (engine.scale(max, alpha * SCALE)?, engine.scale(min, (1.0 - alpha) * SCALE)?);
        return engine.add(&max, &min);
    }
    let [clusters, channels, size] = keys.shape()[..] else { panic!("keys of shape {:?}", keys.shape()) };
    let twice = engine.add(max, min)?;
    let centre = engine.scale(&twice, SCALE / 2.0)?;
    let radius = if similarity == Similarity::CuboidMean {
        let opposite = engine.scale(&twice, -0.5)?.reshape(&[clusters, channels, 1]);
        let opposite = E::Tensor::concat(2, &vec![&opposite; size]);
        let away = engine.add(keys, &opposite)?;
        let away = engine.abs(&away)?;
        let sum = engine.sum_last(&away)?;
        engine.scale(&sum, SCALE / size as f32)?
    } else {
        let (max, min) = (engine.scale(max, SCALE / 2.0)?, engine.scale(min, -SCALE / 2.0)?);
        engine.add(&max, &min)?
    };
    let by_head = |x: &E::Tensor| x.reshape(&[clusters, shape.kv_heads, shape.head_dim]);
    let both = E::Tensor::concat(2, &[&by_head(&centre), &by_head(&radius)]);
    Ok(both.reshape(&[clusters, 2 * channels]))
}

/// The mean of each cluster's representatives, which are those `count` of its `size` keys that score highest for the
/// sum of a group's queries.
fn representatives<E: Select>(
    engine: &mut E,
    keys: &E::Tensor,
    q: &E::Tensor,
    size: usize,
    count: usize,
    method: TopK,
    shape: HeadShape,
) -> Result<E::Tensor, Error> {
    let HeadShape { kv_heads, head_dim: d, .. } = shape;
    let tokens = keys.shape()[0];
    let clusters = tokens / size;
    let keys = keys.reshape(&[tokens, kv_heads, d]).permute(&[1, 0, 2]);
    let queries = engine.sum_last(&fold_heads(q, shape).permute(&[0, 2, 1]))?.reshape(&[kv_heads, 1, d]);
    let scores = engine.matmul(&queries, Right::Fresh(&keys.permute(&[0, 2, 1])))?;
    let scores = scores.reshape(&[kv_heads * clusters, size]);
    let ceiling = engine.ceiling(Origin::Product)?;
    let ranking = Ranking { k: count, method, magnitude: 10, ceiling, frac: 12, rounded: false };
    let best = engine.top_k(&scores, &ranking)?;
    let keys = keys.reshape(&[kv_heads * clusters, size, d]);
    let best = engine.gather(&best, Right::Fresh(&keys), KV_MAGNITUDE)?;
    let sum = engine.sum_last(&best.permute(&[0, 2, 1]))?;
    let mean = engine.scale(&sum, SCALE / count as f32)?;
    Ok(mean.reshape(&[kv_heads, clusters, d]).permute(&[1, 0, 2]).reshape(&[clusters, kv_heads * d]))
}
