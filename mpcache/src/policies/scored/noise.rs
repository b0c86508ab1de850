//! Keyformer's scores: attention in a second softmax, of noisy logits.
//!
//! A token's score is the sum over queries of the softmax of (logits + noise) / tau, where the noise has Gumbel's
//! distribution and tau rises from 1 to 2 while text is generated. After an eviction the plain softmax distributes
//! attention as if the evicted tokens had never been; noise and a rising temperature are the authors' remedy.
//!
//! The noise is public and comes from a seed. Every query, head and place in the store has a number of its own. A
//! token cannot have one number for all queries, because its place is secret after an eviction. Adding noise to
//! shares costs nothing.
//!
//! *Cost.* This is the only policy with a second softmax for every query. Its cost is nearly that of the softmax of
//! `full`, which is most of a step's traffic. Every query until the last eviction needs it. With a share, the last
//! eviction is at the end of the prompt.

use ndarray::{ArrayD, IxDyn};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use waggle_engine::{Error, Select, Tensor};

use crate::{HeadShape, Piece, PolicyError, PolicyOptions, Store};

/// The number of tokens after the prompt over which the temperature rises, by default.
const DEFAULT_RISE: usize = 256;

/// The temperature of the prompt's queries, and after it the final temperature: the authors' numbers.
const FIRST_TAU: f64 = 1.0;
const LAST_TAU: f64 = 2.0;

/// The lower bound of the noise, and after it the upper bound. They keep scores in range. About one in 10^7 draws
/// lies beyond them.
const LEAST_NOISE: f64 = -3.0;
const MOST_NOISE: f64 = 16.0;

/// The noise and the temperature that change logits before the second softmax.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noise {
    /// The number of tokens after the prompt over which the temperature rises.
    pub rise: usize,
    /// The seed of the public noise. No secret depends on it.
    pub seed: u64,
}

impl Noise {
    pub(super) fn read(options: &mut PolicyOptions) -> Result<Self, PolicyError> {
        Ok(Noise {
            rise: options.number("rise", 1, DEFAULT_RISE)?,
            seed: options.read_or("seed", "a number", 0, |text| text.parse().ok())?,
        })
    }

    /// The softmax of noisy `logits` (kv_heads, group * rows, tokens), for the queries of the last `rows` tokens of
    /// the store. Sinks are left out, because the scores compare tokens with one another.
    pub(super) fn softmax<E: Select>(
        self,
        engine: &mut E,
        layer: usize,
        logits: &E::Tensor,
        store: &Store<E>,
    ) -> Result<E::Tensor, Error> {
        let (piece, shape, tokens) = (store.piece(), store.heads(), store.len());
        let rows = logits.shape()[1] / shape.group();
        let noise = engine.public(&self.draw(layer, piece.end, rows, tokens, shape));
        let mut noisy = engine.add(logits, &noise)?;
        let tau = self.tau(piece);
        if tau != FIRST_TAU {
            noisy = engine.scale(&noisy, tau.recip() as f32)?;
        }
        engine.scope("softmax", |e| e.softmax(&noisy, &store.spans(rows, tokens)))
    }

    /// The temperature of the queries of `piece`.
    fn tau(self, piece: Piece) -> f64 {
        let after = piece.end.saturating_sub(piece.prompt) as f64 / self.rise as f64;
        FIRST_TAU + (LAST_TAU - FIRST_TAU) * after.min(1.0)
    }

    /// Noise for the scores (kv_heads, group * rows, tokens) of the last `rows` queries before position `end` on
    /// `layer`. The noise of a query does not depend on which other queries come with it.
    fn draw(self, layer: usize, end: usize, rows: usize, tokens: usize, shape: HeadShape) -> ArrayD<f32> {
        let group = shape.group();
        let mut noise = ArrayD::zeros(IxDyn(&[shape.kv_heads, group * rows, tokens]));
        for row in 0..rows {
            let position = (end - rows + row) as u64;
            // Every layer and query has a random generator of its own.
            let coins = self.seed ^ (position << 16 | layer as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut coins = StdRng::seed_from_u64(coins);
            for token in 0..tokens {
                for head in 0..shape.heads {
                    let uniform: f64 = coins.random_range(f64::MIN_POSITIVE..1.0);
                    let gumbel = -(-uniform.ln()).ln();
                    let at = [head / group, head % group * rows + row, token];
                    noise[IxDyn(&at)] = gumbel.clamp(LEAST_NOISE, MOST_NOISE) as f32;
                }
            }
        }
        noise
    }
}

#[cfg(test)]
mod tests {
    use waggle_engine::Float;

    use super::*;
    use crate::policies::Scored;
    use crate::schedule::Eviction;
    use crate::{Expected, KvCache, Layers, PolicyFamily};

    #[test]
    fn the_temperature_rises_from_1_to_2() {
        let tau = |end| Noise { rise: 10, seed: 0 }.tau(Piece { new: 1, end, prompt: 20, held: 5 });
        assert_eq!([tau(12), tau(20), tau(25), tau(30), tau(99)], [1.0, 1.0, 1.5, 2.0, 2.0]);
    }

    #[test]
    fn noise_is_that_of_gumbel_and_does_not_depend_on_the_piece() {
        let shape = HeadShape { heads: 4, kv_heads: 2, head_dim: 8 };
        let of = Noise { rise: 1, seed: 3 };
        let all = of.draw(1, 50, 50, 60, shape);
        let mean = all.iter().map(|x| f64::from(*x)).sum::<f64>() / all.len() as f64;
        // The mean is Euler's constant. The standard deviation is pi / sqrt 6, so that of the mean of these draws is
        // 0.012.
        assert!((mean - 0.577).abs() < 0.06, "{mean}");
        let below = all.iter().filter(|x| **x < 0.0).count() as f64 / all.len() as f64;
        assert!((below - (-1f64).exp()).abs() < 0.03, "{below}");
        // Only the last of these queries, in a smaller store.
        let last = of.draw(1, 50, 1, 40, shape);
        for (kv, group, token) in [(0, 0, 0), (1, 0, 7), (0, 1, 39), (1, 1, 20)] {
            assert_eq!(last[[kv, group, token]], all[[kv, group * 50 + 49, token]]);
        }
        for other in [of.draw(0, 50, 1, 40, shape), Noise { seed: 4, ..of }.draw(1, 50, 1, 40, shape)] {
            assert!(other != last);
        }
    }

    /// The tokens that each step of one layer with one head attends to, by plain loops.
    #[test]
    fn an_independent_reading_keeps_the_same_tokens() {
        let shape = HeadShape { heads: 1, kv_heads: 1, head_dim: 2 };
        let blocks = ("keyformer:budget=9,block=3,recent=2,rise=6,seed=5", 14, Noise { rise: 6, seed: 5 }, 5);
        let share = ("keyformer:budget=0.4", 25, Noise { rise: DEFAULT_RISE, seed: 0 }, 1);
        for (text, prompt, noise, least_cuts) in [blocks, share] {
            let of = Scored::parse(text).unwrap();
            let mut coins = StdRng::seed_from_u64(8);
            let mut rows = |count: usize| -> Vec<[f64; 2]> {
                (0..count).map(|_| [coins.random_range(-2.0..2.0), coins.random_range(-2.0..2.0)]).collect()
            };
            let (queries, keys) = (rows(prompt + 20), rows(prompt + 20));
            let tensor = |rows: &[[f64; 2]]| {
                let entries = rows.iter().flatten().map(|x| *x as f32).collect();
                ArrayD::from_shape_vec(vec![rows.len(), 2], entries).unwrap()
            };
            let mut cache = KvCache::<Float>::new(&Layers::global(1, shape), &text.parse().unwrap());
            cache.expect(Expected { prompt: Some(prompt), ..Expected::default() });
            let (mut kept, mut scores, mut cuts) = (Vec::new(), Vec::<f64>::new(), 0);
            let mut end = 0;
            while end < prompt + 20 {
                let new = if end == 0 { prompt } else { 1 };
                kept.extend(end..end + new);
                scores.resize(kept.len(), 0.0);
                end += new;
                let window = cache.observation_window(0, new).max(1);
                let q = Tensor::reshape(&tensor(&queries[end - window..end]), &[1, window, 2]);
                let k = tensor(&keys[end - new..end]);
                cache.attend(&mut Float::default(), 0, &q, &k, &k).unwrap();
                assert_eq!(cache.attended(0).unwrap()[0], kept, "{text}, {end} tokens");

                let piece = Piece { new, end, prompt, held: kept.len() };
                let Some(Eviction { at, keep }) = of.next(piece) else { continue };
                let after = (end.max(prompt) - prompt) as f64 / noise.rise as f64;
                let tau = 1.0 + after.min(1.0);
                for (query, q) in queries.iter().enumerate().take(end).skip(end - new) {
                    let noise = noise.draw(0, query + 1, 1, kept.len(), shape);
                    let weight = |place: usize| {
                        let k = keys[kept[place]];
                        let logit = q[0] * k[0] + q[1] * k[1];
                        ((logit + f64::from(noise[[0, 0, place]])) / tau).exp()
                    };
                    let seen = (0..kept.len()).filter(|place| kept[*place] <= query);
                    let total: f64 = seen.clone().map(weight).sum();
                    seen.for_each(|place| scores[place] += weight(place) / total);
                }
                if at == end {
                    let old = kept.len() - of.recent.min(keep.div_ceil(2));
                    let mut order: Vec<usize> = (0..old).collect();
                    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
                    order.truncate(keep + old - kept.len());
                    let stays: Vec<usize> = (0..kept.len()).filter(|p| *p >= old || order.contains(p)).collect();
                    kept = stays.iter().map(|place| kept[*place]).collect();
                    scores = stays.iter().map(|place| scores[*place]).collect();
                    cuts += 1;
                }
            }
            assert!(cuts >= least_cuts, "{text}: {cuts} cuts");
        }
    }
}
