//! Rotary embeddings: public angles by which pairs of coordinates of queries and keys turn.

use std::f64::consts::TAU;

use ndarray::{Array2, Axis, concatenate};
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

/// The angles of rows.
pub(crate) struct Angles<T> {
    turns: Turns<T>,
    pairs: usize,
    /// The distance between the two coordinates of a pair.
    apart: usize,
}

/// Cosines and sines, (rows, pairs of coordinates) each.
enum Turns<T> {
    /// Those of positions that both parties know: cosines, sines.
    Public(Array2<f32>, Array2<f32>),
    /// Those of positions that nobody knows: cosines, sines and the negated sines, side by side.
    Shared(T),
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

    /// The angles of the `count` positions from `start` on in each text of `cache`.
    ///
    /// If long texts have frequencies of their own, the length of the whole text decides which frequencies are used.
    /// This length is public and was stated before the first token, so cached keys keep their angles.
    pub(crate) fn of<E: Engine>(&self, cache: &KvCache<E>, start: usize, count: usize) -> Angles<E::Tensor> {
        let text = cache.text().unwrap_or(start + count);
        let frequencies = match &self.long {
            Some((short, long)) if text > *short => long,
            _ => &self.frequencies,
        };
        // The product is rounded to f32 as in the original. At large positions the rounding is visible.
        let angle = |(t, i): (usize, usize)| f64::from((start + t % count) as f32 * frequencies[i]);
        let shape = (cache.texts() * count, frequencies.len());
        let cos = Array2::from_shape_fn(shape, |at| angle(at).cos() as f32 * self.factor);
        let sin = Array2::from_shape_fn(shape, |at| angle(at).sin() as f32 * self.factor);
        Angles { turns: Turns::Public(cos, sin), pairs: frequencies.len(), apart: self.apart }
    }
}

impl<T: Tensor> Angles<T> {
    /// The angles of these rows alone.
    pub(crate) fn of_rows(&self, rows: &[usize]) -> Self {
        let turns = match &self.turns {
            Turns::Public(cos, sin) => Turns::Public(cos.select(Axis(0), rows), sin.select(Axis(0), rows)),
            Turns::Shared(all) => {
                let all: Vec<T> = rows.iter().map(|row| all.slice(0, *row..row + 1)).collect();
                Turns::Shared(T::concat(0, &all.iter().collect::<Vec<_>>()))
            }
        };
        Angles { turns, ..*self }
    }

    /// Cosines, sines and the negated sines side by side, (rows, 3 pairs), so that they can be moved with their rows.
    pub(crate) fn shared<E: Engine<Tensor = T>>(&self, engine: &mut E) -> T {
        match &self.turns {
            Turns::Public(cos, sin) => {
                let all = concatenate![Axis(1), cos.view(), sin.view(), sin.mapv(|x| -x).view()];
                engine.public(&all.into_dyn())
            }
            Turns::Shared(all) => all.clone(),
        }
    }

    /// The angles of other rows, from what [`shared`](Angles::shared) gave for them.
    pub(crate) fn moved(&self, shared: T) -> Self {
        Angles { turns: Turns::Shared(shared), ..*self }
    }
}

/// Turns queries or keys (count, heads, head_dim). In each head, the first pairs of coordinates turn, one pair for
/// each angle.
pub(crate) fn turn<E: Engine>(
    engine: &mut E,
    x: &E::Tensor,
    angles: &Angles<E::Tensor>,
) -> Result<E::Tensor, waggle_engine::Error> {
    let (d, pairs, apart) = (x.shape()[2], angles.pairs, angles.apart);
    let end = apart + pairs;
    engine.scope("rope", |e| {
        if 2 * pairs == d {
            return rotate(e, x, &angles.turns);
        }
        let turning = E::Tensor::concat(2, &[&x.slice(2, 0..pairs), &x.slice(2, apart..end)]);
        let turned = rotate(e, &turning, &angles.turns)?;
        let [first, second] = [turned.slice(2, 0..pairs), turned.slice(2, pairs..2 * pairs)];
        Ok(E::Tensor::concat(2, &[&first, &x.slice(2, pairs..apart), &second, &x.slice(2, end..d)]))
    })
}

/// Rotates the halves of the last axis of `x` (count, heads, 2 pairs), as [`Engine::rope`] does.
fn rotate<E: Engine>(
    engine: &mut E,
    x: &E::Tensor,
    turns: &Turns<E::Tensor>,
) -> Result<E::Tensor, waggle_engine::Error> {
    let all = match turns {
        Turns::Public(cos, sin) => return engine.rope(x, cos, sin),
        Turns::Shared(all) => all,
    };
    let [count, heads, d] = x.shape()[..] else { panic!("heads of shape {:?}", x.shape()) };
    let pairs = d / 2;
    let factor = |of: usize| {
        let one = all.slice(1, of * pairs..(of + 1) * pairs).reshape(&[count, 1, pairs]);
        E::Tensor::concat(1, &vec![&one; heads])
    };
    let [cos, sin, negated] = [factor(0), factor(1), factor(2)];
    let swapped = E::Tensor::concat(2, &[&x.slice(2, pairs..d), &x.slice(2, 0..pairs)]);
    // Both products of every coordinate, in the flows of one.
    let left = E::Tensor::concat(2, &[x, &swapped]);
    let right = E::Tensor::concat(2, &[&cos, &cos, &negated, &sin]);
    let products = engine.mul(&left, &right)?;
    engine.add(&products.slice(2, 0..d), &products.slice(2, d..2 * d))
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
