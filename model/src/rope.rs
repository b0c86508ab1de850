//! Rotary embeddings: public angles by which pairs of coordinates of queries and keys turn.

use std::f64::consts::TAU;

use ndarray::{Array2, Axis};
use waggle_engine::{Engine, Tensor};
use waggle_mpcache::KvCache;

use crate::config::{RopeConfig, RopeScaling};

/// Frequencies of a rotary embedding, one for each pair of coordinates.
pub(crate) struct Rope {
    frequencies: Vec<f32>,
    /// If long texts have frequencies of their own: the number of positions beyond which a text is long, and these
    /// frequencies.
    long: Option<(usize, Vec<f32>)>,
    /// The factor by which sines and cosines are multiplied.
    factor: f32,
    apart: usize,
}

/// Cosines and sines of the angles, each (positions, pairs of coordinates).
pub(crate) struct Angles {
    pub(crate) cos: Array2<f32>,
    pub(crate) sin: Array2<f32>,
    /// The distance between the two coordinates of a pair.
    apart: usize,
}

impl Rope {
    /// The rotary embedding of a configuration, for heads of `head_dim`.
    pub(crate) fn new(config: &RopeConfig, head_dim: usize) -> Self {
        let of = |long| frequencies(config, head_dim, &config.rope_scaling, long);
        let (long, factor) = match &config.rope_scaling {
            RopeScaling::LongRope { original_max_position_embeddings, attention_factor, .. } => {
                (Some((*original_max_position_embeddings, of(true))), *attention_factor as f32)
            }
            _ => (None, 1.0),
        };
        let whole = matches!(config.rope_scaling, RopeScaling::Proportional { .. });
        let apart = if whole { head_dim } else { config.turned(head_dim) } / 2;
        Rope { frequencies: of(false), long, factor, apart }
    }

    /// The angles of the `count` positions that come next in `cache`.
    ///
    /// If long texts have frequencies of their own, the length of the whole text decides which frequencies are used.
    /// This length is public and was stated before the first token, so cached keys keep their angles.
    pub(crate) fn of<E: Engine>(&self, cache: &KvCache<E>, count: usize) -> Angles {
        let start = cache.position();
        let text = cache.text().unwrap_or(start + count);
        let frequencies = match &self.long {
            Some((short, long)) if text > *short => long,
            _ => &self.frequencies,
        };
        // The product is rounded to f32 as in the original. At large positions the rounding is visible.
        let angle = |(t, i): (usize, usize)| f64::from((start + t % count) as f32 * frequencies[i]);
        let shape = (cache.texts() * count, frequencies.len());
        Angles {
            cos: Array2::from_shape_fn(shape, |at| angle(at).cos() as f32 * self.factor),
            sin: Array2::from_shape_fn(shape, |at| angle(at).sin() as f32 * self.factor),
            apart: self.apart,
        }
    }
}

impl Angles {
    /// The angles of these rows alone.
    pub(crate) fn of_rows(&self, rows: &[usize]) -> Self {
        Angles { cos: self.cos.select(Axis(0), rows), sin: self.sin.select(Axis(0), rows), ..*self }
    }
}

/// Turns queries or keys (count, heads, head_dim). In each head, the first pairs of coordinates turn, one pair for
/// each angle.
pub(crate) fn turn<E: Engine>(
    engine: &mut E,
    x: &E::Tensor,
    angles: &Angles,
) -> Result<E::Tensor, waggle_engine::Error> {
    let (d, pairs, apart) = (x.shape()[2], angles.cos.ncols(), angles.apart);
    let end = apart + pairs;
    engine.scope("rope", |e| {
        if 2 * pairs == d {
            return e.rope(x, &angles.cos, &angles.sin);
        }
        let turning = E::Tensor::concat(2, &[&x.slice(2, 0..pairs), &x.slice(2, apart..end)]);
        let turned = e.rope(&turning, &angles.cos, &angles.sin)?;
        let [first, second] = [turned.slice(2, 0..pairs), turned.slice(2, pairs..2 * pairs)];
        Ok(E::Tensor::concat(2, &[&first, &x.slice(2, pairs..apart), &second, &x.slice(2, end..d)]))
    })
}

/// The frequencies for heads of `head_dim`, stretched by `scaling`: those of long texts if `long` is true, and
/// otherwise those of other texts.
fn frequencies(config: &RopeConfig, head_dim: usize, scaling: &RopeScaling, long: bool) -> Vec<f32> {
    let turned = config.turned(head_dim);
    let whole = if matches!(scaling, RopeScaling::Proportional { .. }) { head_dim } else { turned } as f64;
    let plain = (0..turned / 2).map(|i| config.rope_theta.powf(-(2.0 * i as f64) / whole));
    plain.enumerate().map(|(i, w)| scaling.stretch(i, w, long) as f32).collect()
}

/// The frequencies that a program may have stored beside the weights: the stretched ones, or if the program is older,
/// the unstretched ones.
pub(crate) fn stored(config: &RopeConfig, head_dim: usize) -> Vec<Vec<f32>> {
    let of = |scaling: &RopeScaling| frequencies(config, head_dim, scaling, false);
    vec![of(&config.rope_scaling), of(&RopeScaling::None)]
}

impl RopeScaling {
    /// Stretches `w`, the frequency of pair `i`, as in long texts if `long` is true.
    fn stretch(&self, i: usize, w: f64, long: bool) -> f64 {
        match self {
            RopeScaling::None => w,
            RopeScaling::Linear { factor } | RopeScaling::Proportional { factor } => w / factor,
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings } => {
                // The number of turns within the original context. Low frequencies have few turns and are stretched;
                // high ones have many and stay. Between the two factors lies a linear ramp.
                let turns = original_max_position_embeddings * w / TAU;
                let kept = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
                kept * w + (1.0 - kept) * w / factor
            }
            RopeScaling::LongRope { short_factor, long_factor, .. } => {
                w / if long { long_factor[i] } else { short_factor[i] }
            }
        }
    }
}
