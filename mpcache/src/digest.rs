//! What a query is compared with instead of the keys of a cluster.

use std::fmt;
use std::str::FromStr;

use engine::{Engine, Error, Extrema, OperandId, OperandKind, Origin, Ranking, Right, Tensor, TopK};

use crate::HeadShape;
use crate::policy::fold_heads;
use crate::store::KV_MAGNITUDE;

/// Digests hold keys times this, so that scores of boxes, which exceed those of tokens, stay within a product's
/// range. The order of scores is what counts.
const SCALE: f32 = 0.125;

/// How a cluster of keys is summarised for the dot product with a query. Write r_max and r_min for the largest and
/// smallest key of the cluster in each channel, c = (r_max + r_min) / 2.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Similarity {
    /// q (alpha r_max + (1 - alpha) r_min): MPCache's linear stand-in for the bound of the box, eq. 6.
    Linear {
        /// Weight of the maximum.
        alpha: f32,
    },
    /// q c + |q| (r_max - r_min) / 2: exactly the bound of Quest, sum of max(q r_max, q r_min), with one comparison
    /// per channel of the query for all clusters.
    Box,
    /// q c + |q| mean |k - c|: ArkVale's cuboid-mean.
    CuboidMean,
    /// q mean(k).
    Centroid,
    /// q times the mean of the cluster's `count` tokens that the query at its closing scores highest, after InfLLM's
    /// representative tokens (arXiv 2402.04617), which average over the queries that follow.
    Representatives {
        /// Tokens per cluster.
        count: usize,
    },
    /// q k itself, for clusters of one token.
    Token,
}

impl Similarity {
    /// Names that exist.
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
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Ok(match name {
            "linear" => Similarity::Linear { alpha: 0.6 },
            "box" => Similarity::Box,
            "cuboid-mean" => Similarity::CuboidMean,
            "centroid" => Similarity::Centroid,
            "representatives" => Similarity::Representatives { count: 2 },
            "token" => Similarity::Token,
            _ => return Err(format!("one of {}", Self::NAMES.join(", "))),
        })
    }
}

/// Sizes of the clusters: `fine` tokens each, `fan` of them in a coarse one. One level if `fan` is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Tokens of a cluster that is attended to or not.
    pub fine: usize,
    /// Fine clusters of a coarse one.
    pub fan: usize,
}

impl Sizes {
    /// Tokens of a coarse cluster.
    pub fn coarse(self) -> usize {
        self.fine * self.fan
    }
}

/// Digests of the closed clusters of one layer: made once, when a cluster closes.
pub(crate) struct Digests<E: Engine> {
    /// (digests, kv_heads * width): of each coarse cluster its own, if there are two levels, then those of its parts.
    /// New ones come last, so that the queries' products are with a matrix that only grows.
    rows: Option<E::Tensor>,
    operand: E::Operand,
    /// Coarse clusters digested.
    pub(crate) closed: usize,
}

impl<E: Engine> Digests<E> {
    /// Of layer `layer` of the model. Rows only come in, so there is one generation.
    pub(crate) fn new(layer: usize) -> Self {
        let operand = E::operand(OperandId { layer, kind: OperandKind::Digests, generation: 0 });
        Digests { rows: None, operand, closed: 0 }
    }

    /// Digests the coarse clusters of the new `keys` (clusters * size, kv_heads * head_dim). `q` is the query that
    /// closes them, (heads, 1, head_dim).
    pub(crate) fn close(
        &mut self,
        engine: &mut E,
        how: (Similarity, TopK),
        sizes: Sizes,
        keys: &E::Tensor,
        q: &E::Tensor,
        shape: HeadShape,
    ) -> Result<(), Error> {
        let [tokens, channels] = keys.shape()[..] else { panic!("keys of shape {:?}", keys.shape()) };
        let clusters = tokens / sizes.coarse();
        let by_cluster = |size: usize| keys.reshape(&[tokens / size, size, channels]).permute(&[0, 2, 1]);
        let (fine, coarse) = match how.0 {
            Similarity::Token => (None, None),
            Similarity::Centroid => {
                let mean = |engine: &mut E, size: usize| {
                    let sum = engine.sum_last(&by_cluster(size))?;
                    engine.scale(&sum, SCALE / size as f32)
                };
                let fine = mean(engine, sizes.fine)?;
                (Some(fine), if sizes.fan > 1 { Some(mean(engine, sizes.coarse())?) } else { None })
            }
            Similarity::Representatives { count } => {
                let mean = |engine: &mut E, size: usize| {
                    representatives(engine, keys, q, size, count.min(size), how.1, shape)
                };
                let fine = mean(engine, sizes.fine)?;
                (Some(fine), if sizes.fan > 1 { Some(mean(engine, sizes.coarse())?) } else { None })
            }
            Similarity::Linear { .. } | Similarity::Box | Similarity::CuboidMean => {
                let Extrema { max, min } = engine.extrema(&by_cluster(sizes.fine))?;
                let coarse = if sizes.fan > 1 {
                    // Extrema of the children's: those of their maxima give the maximum, of their minima the minimum.
                    let both = E::Tensor::concat(0, &[&max, &min]);
                    let both = both.reshape(&[2 * clusters, sizes.fan, channels]).permute(&[0, 2, 1]);
                    let Extrema { max: high, min: low } = engine.extrema(&both)?;
                    let (max, min) = (high.slice(0, 0..clusters), low.slice(0, clusters..2 * clusters));
                    Some(of_box(engine, how.0, &max, &min, &by_cluster(sizes.coarse()), shape)?)
                } else {
                    None
                };
                (Some(of_box(engine, how.0, &max, &min, &by_cluster(sizes.fine), shape)?), coarse)
            }
        };
        let parts = [coarse, fine].into_iter().flatten().map(|level| {
            let [count, width] = level.shape()[..] else { panic!("digests of shape {:?}", level.shape()) };
            level.reshape(&[clusters, count / clusters, width])
        });
        let parts: Vec<E::Tensor> = parts.collect();
        if !parts.is_empty() {
            let new = E::Tensor::concat(1, &parts.iter().collect::<Vec<_>>());
            let [_, count, width] = new.shape()[..] else { unreachable!("clusters, digests of each, width") };
            let new = new.reshape(&[clusters * count, width]);
            match &mut self.rows {
                Some(rows) => rows.append(&new),
                None => self.rows = Some(new),
            }
        }
        self.closed += clusters;
        Ok(())
    }

    /// Scores of the queries `q` (heads, 1, head_dim) against the digests of clusters of `fan` parts: (heads, coarse
    /// clusters) if there are two levels, and (heads, fine clusters). Panics if no cluster has closed.
    pub(crate) fn scores(
        &mut self,
        engine: &mut E,
        similarity: Similarity,
        fan: usize,
        q: &E::Tensor,
        shape: HeadShape,
    ) -> Result<(Option<E::Tensor>, E::Tensor), Error> {
        let q = match similarity {
            Similarity::Box | Similarity::CuboidMean => E::Tensor::concat(2, &[q, &engine.abs(q)?]),
            _ => q.clone(),
        };
        let width = q.shape()[2];
        let rows = self.rows.as_ref().expect("clusters are digested before they are scored");
        let (heads, clusters) = (shape.heads, self.closed);
        let each = rows.shape()[0] / clusters;
        let digests = rows.reshape(&[each * clusters, shape.kv_heads, width]).permute(&[1, 2, 0]);
        let queries = fold_heads(&q, HeadShape { head_dim: width, ..shape });
        let digests = Right::Cached { tensor: &digests, operand: &mut self.operand };
        let scores = engine.matmul(&queries, digests)?;
        let scores = scores.reshape(&[heads, clusters, each]);
        let coarse = (each > fan).then(|| scores.slice(2, 0..1).reshape(&[heads, clusters]));
        Ok((coarse, scores.slice(2, each - fan..each).reshape(&[heads, clusters * fan])))
    }
}

/// Digests from the boxes `max` and `min` (clusters, channels) of `keys` (clusters, channels, size).
fn of_box<E: Engine>(
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

/// Mean of the `count` keys of each cluster of `size` that the sum of a group's queries scores highest.
fn representatives<E: Engine>(
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
    let ranking = Ranking { k: count, method, magnitude: 10, ceiling, frac: 12 };
    let best = engine.top_k(&scores, &ranking)?;
    let keys = keys.reshape(&[kv_heads * clusters, size, d]);
    let best = engine.gather(&best, Right::Fresh(&keys), KV_MAGNITUDE)?;
    let sum = engine.sum_last(&best.permute(&[0, 2, 1]))?;
    let mean = engine.scale(&sum, SCALE / count as f32)?;
    Ok(mean.reshape(&[kv_heads, clusters, d]).permute(&[1, 0, 2]).reshape(&[clusters, kv_heads * d]))
}
