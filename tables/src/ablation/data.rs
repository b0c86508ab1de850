//! Keys, values and queries with the habits of trained attention, as numbers and as the tensors of each engine.
//!
//! Traffic depends on shapes alone, so trained weights are not needed; they would be for accuracy, about which this
//! benchmark says nothing. The inputs must exercise every range: keys drift along the text (AR(1)), two channels are
//! outliers, the first tokens draw attention away (sinks), and every query looks for one place of the text.

use engine::{Shape, Tensor};
use ndarray::{ArrayD, IxDyn};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use testing::{share, to_fixed};

use super::shapes::{HEADS, LAYERS};

/// Correlation of neighbouring tokens.
const RHO: f64 = 0.9;

/// Channels of a head that are larger than the others, by [`OUTLIER`].
const OUTLIERS: usize = 2;
const OUTLIER: f64 = 4.0;

/// Tokens at the start that every query scores highly.
const SINKS: usize = 4;

/// Keys, values and queries of one layer.
#[derive(Clone)]
pub(crate) struct Layer<T> {
    /// Keys (tokens, width).
    pub(crate) k: T,
    /// Values (tokens, width).
    pub(crate) v: T,
    /// Queries (heads, tokens, head_dim), scaled.
    pub(crate) q: T,
}

/// The inputs of a pair of layers for all tokens of a run.
pub(crate) type Inputs<T> = [Layer<T>; LAYERS];

/// Applies `f` to every tensor.
fn map<A, B>(inputs: &Inputs<A>, mut f: impl FnMut(&A) -> B) -> Inputs<B> {
    inputs.each_ref().map(|Layer { k, v, q }| Layer { k: f(k), v: f(v), q: f(q) })
}

/// The inputs of two layers for `tokens` tokens. Equal seeds give equal inputs.
pub(crate) fn inputs(tokens: usize, seed: u64) -> Inputs<ArrayD<f64>> {
    let mut rng = StdRng::seed_from_u64(seed);
    let (heads, d) = (HEADS.heads, HEADS.head_dim);
    // Neighbouring layers look for the same places, which is why they may share a choice.
    let wanted: Vec<usize> = (0..heads * tokens).map(|i| rng.random_range(0..=i % tokens)).collect();
    std::array::from_fn(|_| {
        let mut k = drift(tokens, heads * d, &mut rng);
        let mut v = drift(tokens, heads * d, &mut rng);
        let drifting = drift(tokens, heads * d, &mut rng);
        let sink = normal(&[heads * d], &mut rng);
        for head in 0..heads {
            for channel in head * d..head * d + d {
                let scale = if channel % d < OUTLIERS { OUTLIER } else { 1.0 };
                for token in 0..tokens {
                    k[[token, channel]] *= scale;
                    if token < SINKS {
                        k[[token, channel]] = sink[channel];
                        v[[token, channel]] *= 0.1;
                    }
                }
            }
        }
        // A query is divided by sqrt(d); its score at a sink, and at the wanted place, is about 4.
        let q = ArrayD::from_shape_fn(IxDyn(&[heads, tokens, d]), |at| {
            let (head, token, channel) = (at[0], at[1], at[0] * d + at[2]);
            let target = k[[wanted[head * tokens + token], channel]];
            (drifting[[token, channel]] + 0.3 * target + 0.5 * sink[channel]) / (d as f64).sqrt()
        });
        Layer { k, v, q }
    })
}

/// The inputs on shapes alone.
pub(crate) fn shapes(tokens: usize) -> Inputs<Shape> {
    let HeadShapes { keys, queries } = HeadShapes::of(tokens);
    std::array::from_fn(|_| Layer { k: keys.clone(), v: keys.clone(), q: queries.clone() })
}

struct HeadShapes {
    keys: Shape,
    queries: Shape,
}

impl HeadShapes {
    fn of(tokens: usize) -> Self {
        let width = HEADS.kv_heads * HEADS.head_dim;
        HeadShapes { keys: Shape(vec![tokens, width]), queries: Shape(vec![HEADS.heads, tokens, HEADS.head_dim]) }
    }
}

/// The inputs in fixed point.
pub(crate) fn words(inputs: &Inputs<ArrayD<f64>>) -> Inputs<ArrayD<u64>> {
    map(inputs, to_fixed)
}

/// Fresh random shares of `words`: the client's, the server's.
pub(crate) fn shares(words: &Inputs<ArrayD<u64>>) -> [Inputs<ArrayD<u64>>; 2] {
    let mut server = Vec::new();
    let client = map(words, |x| {
        let [mine, other] = share(x);
        server.push(other);
        mine
    });
    let mut server = server.into_iter();
    [client, map(words, |_| server.next().expect("as many tensors"))]
}

/// (tokens, width) of unit variance, each column an AR(1) process.
fn drift(tokens: usize, width: usize, rng: &mut StdRng) -> ArrayD<f64> {
    let mut x = normal(&[tokens, width], rng);
    for token in 1..tokens {
        for channel in 0..width {
            x[[token, channel]] = RHO * x[[token - 1, channel]] + (1.0 - RHO * RHO).sqrt() * x[[token, channel]];
        }
    }
    x
}

/// Independent standard normal numbers, by Box and Muller.
fn normal(shape: &[usize], rng: &mut StdRng) -> ArrayD<f64> {
    ArrayD::from_shape_simple_fn(IxDyn(shape), || {
        let (u, angle): (f64, f64) = (rng.random(), rng.random());
        (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
    })
}

/// The prompt's part of a layer, with the queries of its last `rows` tokens.
pub(crate) fn prompt<T: Tensor>(layer: &Layer<T>, tokens: usize, rows: usize) -> Layer<T> {
    part(layer, tokens, tokens - rows, 0)
}

/// One token's part.
pub(crate) fn token<T: Tensor>(layer: &Layer<T>, at: usize) -> Layer<T> {
    part(layer, at + 1, at, at)
}

fn part<T: Tensor>(Layer { k, v, q }: &Layer<T>, end: usize, query: usize, key: usize) -> Layer<T> {
    Layer { k: k.slice(0, key..end), v: v.slice(0, key..end), q: q.slice(1, query..end) }
}
