//! `keyformer`: the tokens with the largest accumulated scores stay, where scores are a softmax of noisy logits.
//!
//! **Source.** Keyformer (Adnan et al., arXiv 2403.09054). A token's score is the sum over queries of the softmax of
//! (logits + noise) / tau, where the noise has Gumbel's distribution and tau rises from 1 to 2 while text is
//! generated. What attention received counts tokens that are gone as if they had never been; noise and a rising
//! temperature are the authors' remedy. They keep the latest tokens and those with the largest scores.
//!
//! **Noise.** Public, from the option `seed`: for every query, head and place in the store a number of its own. Which
//! token has which place is secret after a cut, so no token could have one number for all queries. Noise is added to
//! shares for nothing.
//!
//! **Cost.** A second softmax for every query, the only policy here with one: nearly twice the softmax of `full`, and
//! `full`'s is most of a step's traffic. Scores keep all bits, for the temperature. No query is spared before the
//! last cut. With a share that is the end of the prompt.
//!
//! **Cuts.** Those of `snapkv` ([`Schedule`]). Tokens stay in the order of the text.
//!
//! **Public.** The noise and the temperature, when a layer is cut, and how many tokens it keeps. **Revealed.**
//! Nothing; with [`TopK::ShuffleReveal`] what that method's documentation says.

use engine::{Ceiling, Error, Origin, Select, Tensor, TopK};
use ndarray::{ArrayD, IxDyn};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::ops::Range;

use crate::attention::{self, Received};
use crate::family::shown;
use crate::schedule::{Cut, Later};
use crate::{
    Granularity, HeadShape, NamedPolicy, Piece, Policy, PolicyFamily, Schedule, Setting, Store, eviction, fold_heads,
    unfold_heads,
};

/// Latest tokens that stay unless told otherwise.
const DEFAULT_RECENT: usize = 32;

/// Tokens after the prompt over which the temperature rises unless told otherwise.
const DEFAULT_RISE: usize = 256;

/// Temperature at the prompt, and in the end: the authors' numbers.
const FIRST_TAU: f64 = 1.0;
const LAST_TAU: f64 = 2.0;

/// Bounds of the noise, which scores must bear: beyond them lie a part in 10^7 of all draws.
const LEAST_NOISE: f64 = -3.0;
const MOST_NOISE: f64 = 16.0;

/// Keeps the latest tokens and those with the largest accumulated scores, per key/value head.
///
/// The parties learn how many tokens are kept. With [`TopK::ShuffleReveal`] they also learn what that method's
/// documentation says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Keyformer {
    /// How much is kept, of the prompt or of all, and when the rest goes.
    pub schedule: Schedule,
    /// Latest tokens that stay: at most this many, and at most half of what is kept.
    pub recent: usize,
    /// Tokens after the prompt over which the temperature rises.
    pub rise: usize,
    /// Makes the public noise; no secret depends on it.
    pub seed: u64,
    /// How the largest scores are found.
    pub top_k: TopK,
}

impl PolicyFamily for Keyformer {
    const POLICIES: &'static [NamedPolicy<Self>] = &[NamedPolicy {
        name: "keyformer",
        keys: &["budget", "block", "prefill", "recent", "rise", "seed", "topk"],
        about: "Keyformer: a second softmax, of noisy logits, scores tokens",
        read: |options| {
            Ok(Keyformer {
                schedule: Schedule::read(options, Later::Tokens, true)?,
                recent: options.number("recent", 1, DEFAULT_RECENT)?,
                rise: options.number("rise", 1, DEFAULT_RISE)?,
                seed: options.read("seed", "a number", |text| text.parse().ok())?.unwrap_or(0),
                top_k: options.top_k(TopK::Rank)?,
            })
        },
    }];

    fn settings(&self) -> Vec<Setting> {
        let mut settings = self.schedule.settings(Later::Tokens, true);
        settings.extend([
            Setting::new("recent", self.recent),
            Setting::new("rise", self.rise),
            Setting::new("seed", self.seed),
            Setting::new("topk", self.top_k),
        ]);
        settings
    }

    fn shows(&self) -> String {
        shown("the noise, and how many tokens are kept", self.top_k)
    }

    fn random_traffic(&self) -> bool {
        self.top_k == TopK::ShuffleReveal
    }

    fn prefill(&self) -> Option<usize> {
        self.schedule.prefill
    }

    fn build<E: Select>(&self, layers: usize, _shape: HeadShape) -> Box<dyn Policy<E>> {
        Box::new(ByNoisyScores::<E> { settings: *self, known: (0..layers).map(|_| None).collect() })
    }
}

impl Keyformer {
    fn next(&self, piece: Piece) -> Option<Cut> {
        self.schedule.next(self.schedule.budget_of(piece.prompt), piece)
    }

    /// The temperature of the queries of `piece`.
    fn tau(&self, piece: Piece) -> f64 {
        let after = piece.end.saturating_sub(piece.prompt) as f64 / self.rise as f64;
        FIRST_TAU + (LAST_TAU - FIRST_TAU) * after.min(1.0)
    }

    /// Noise for the scores (kv_heads, group * rows, tokens) of the last `rows` queries before position `end` on
    /// `layer`. That of a query does not depend on which others come with it.
    fn noise(&self, layer: usize, end: usize, rows: usize, tokens: usize, shape: HeadShape) -> ArrayD<f32> {
        let group = shape.group();
        let mut noise = ArrayD::zeros(IxDyn(&[shape.kv_heads, group * rows, tokens]));
        for row in 0..rows {
            let position = (end - rows + row) as u64;
            // Every layer and query has coins of its own.
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

/// The policy of one generation.
struct ByNoisyScores<E: Select> {
    settings: Keyformer,
    /// By layer what is known of the tokens that the store holds, once a query was scored.
    known: Vec<Option<Known<E::Tensor>>>,
}

/// Accumulated scores of one layer.
#[derive(Clone)]
struct Known<T> {
    /// (kv_heads, tokens).
    scores: T,
    /// A bound that nothing can exceed.
    ceiling: Ceiling,
}

impl<E: Select> ByNoisyScores<E> {
    /// Adds what the `rows` queries of the newest tokens say, from their `logits` (kv_heads, group * rows, tokens).
    fn score(
        &mut self,
        engine: &mut E,
        layer: usize,
        logits: &E::Tensor,
        seen: &[Range<usize>],
        store: &Store<E>,
    ) -> Result<(), Error> {
        let (piece, shape) = (store.piece(), store.heads());
        let rows = seen.len() / shape.group();
        let noise = self.settings.noise(layer, piece.end, rows, store.len(), shape);
        let noise = engine.public(&noise);
        let mut noisy = engine.add(logits, &noise)?;
        let tau = self.settings.tau(piece);
        if tau != FIRST_TAU {
            noisy = engine.scale(&noisy, tau.recip() as f32)?;
        }
        let p = engine.scope("softmax", |e| e.softmax(&noisy, seen))?;
        let received = attention::received(engine, &p, rows, Granularity::PerKv, shape)?;
        let Received { ceiling, .. } = Received::new(engine, rows, Granularity::PerKv, shape)?;
        let (before, bound) = self.known[layer].take().map(|known| (known.scores, known.ceiling)).unzip();
        let scores = attention::accumulate(engine, before, received)?;
        let ceiling = bound.map_or(ceiling, |bound| ceiling.plus(bound));
        self.known[layer] = Some(Known { scores, ceiling });
        Ok(())
    }

    /// Evicts all but `keep` tokens.
    fn evict(&mut self, engine: &mut E, layer: usize, keep: usize, store: &mut Store<E>) -> Result<(), Error> {
        let tokens = store.len();
        let recent = self.settings.recent.min(keep.div_ceil(2));
        let old = tokens - recent;
        let Some(Known { scores, ceiling }) = self.known[layer].take() else {
            let (expected, got) = (vec![store.heads().kv_heads, tokens], Vec::new());
            return Err(Error::Shape { tensor: format!("scores of layer {layer}"), expected, got });
        };
        if keep == recent {
            eviction::keep_latest(store, old);
            self.known[layer] = Some(Known { scores: scores.slice(1, old..tokens), ceiling });
            return Ok(());
        }
        // All queries so far have given a probability of each head at most.
        let size = Received { ceiling, ..Received::new(engine, store.seen(), Granularity::PerKv, store.heads())? };
        let how = eviction::by_attention(keep - recent, self.settings.top_k, size);
        let best = eviction::choose(engine, &scores.slice(1, 0..old), &how)?;
        let scores = eviction::keep_scored(engine, store, &best, old, &scores, size.magnitude)?;
        let moved = Origin::Moved { magnitude: eviction::scored_magnitude(size.magnitude) };
        self.known[layer] = Some(Known { scores, ceiling: ceiling.max(engine.ceiling(moved)?) });
        Ok(())
    }
}

impl<E: Select> Policy<E> for ByNoisyScores<E> {
    fn fork(&self) -> Option<Box<dyn Policy<E>>> {
        Some(Box::new(ByNoisyScores { known: self.known.clone(), ..*self }))
    }

    fn query_window(&self, _layer: usize, piece: Piece) -> usize {
        if self.settings.next(piece).is_some() { piece.new } else { 0 }
    }

    fn prefill_chunk(&self) -> Option<usize> {
        self.settings.schedule.prefill
    }

    fn layer_class(&self, _layer: usize) -> usize {
        0
    }

    fn attend(
        &mut self,
        engine: &mut E,
        layer: usize,
        q: &E::Tensor,
        store: &mut Store<E>,
    ) -> Result<E::Tensor, Error> {
        let piece = store.piece();
        let Some(Cut { at, keep }) = self.settings.next(piece) else {
            self.known[layer] = None;
            return Ok(attention::causal(engine, q, store)?.output);
        };
        let (shape, tokens, rows) = (store.heads(), store.len(), q.shape()[1]);
        store.record_attended(|_| (0..tokens).collect());
        let seen = attention::causal_spans(shape, rows, tokens);
        let logits = store.ranked_scores(engine, &fold_heads(q, shape))?;
        let p = engine.scope("softmax", |e| e.softmax(&logits, &seen))?;
        let mixed = store.mix(engine, &p)?;
        engine.scope("eviction", |engine| {
            self.score(engine, layer, &logits, &seen, store)?;
            if at == piece.end { self.evict(engine, layer, keep, store) } else { Ok(()) }
        })?;
        Ok(unfold_heads(&mixed, shape))
    }
}

#[cfg(test)]
mod tests {
    use engine::Float;

    use super::*;
    use crate::KvCache;
    use crate::policies::shown;

    #[test]
    fn options_and_settings() {
        assert_eq!(shown("keyformer"), "budget=0.25 prefill=off recent=32 rise=256 seed=0 topk=rank");
        let text = "keyformer:budget=128,block=16,prefill=64,recent=4,rise=64,seed=7,topk=sort";
        assert_eq!(shown(text), "budget=128 block=16 prefill=64 recent=4 rise=64 seed=7 topk=sort");
        assert_eq!(shown("keyformer:rise=0"), "cache policy `keyformer`: rise=0: expected a number from 1");
    }

    fn settings(text: &str) -> Keyformer {
        Keyformer::parse(text).unwrap()
    }

    #[test]
    fn the_temperature_rises_from_1_to_2() {
        let tau = |end| settings("keyformer:rise=10").tau(Piece { new: 1, end, prompt: 20, held: 5 });
        assert_eq!([tau(12), tau(20), tau(25), tau(30), tau(99)], [1.0, 1.0, 1.5, 2.0, 2.0]);
    }

    #[test]
    fn noise_is_that_of_gumbel_and_does_not_depend_on_the_piece() {
        let shape = HeadShape { heads: 4, kv_heads: 2, head_dim: 8 };
        let of = settings("keyformer:seed=3");
        let all = of.noise(1, 50, 50, 60, shape);
        let mean = all.iter().map(|x| f64::from(*x)).sum::<f64>() / all.len() as f64;
        // Euler's constant; the standard deviation is pi / sqrt 6, so the mean's here is 0.012.
        assert!((mean - 0.577).abs() < 0.06, "{mean}");
        let below = all.iter().filter(|x| **x < 0.0).count() as f64 / all.len() as f64;
        assert!((below - (-1f64).exp()).abs() < 0.03, "{below}");
        // The last of these queries alone, in a smaller store.
        let last = of.noise(1, 50, 1, 40, shape);
        for (kv, group, token) in [(0, 0, 0), (1, 0, 7), (0, 1, 39), (1, 1, 20)] {
            assert_eq!(last[[kv, group, token]], all[[kv, group * 50 + 49, token]]);
        }
        for other in [of.noise(0, 50, 1, 40, shape), settings("keyformer:seed=4").noise(1, 50, 1, 40, shape)] {
            assert!(other != last);
        }
    }

    /// One layer of one head, by plain loops: which tokens each step attends to.
    #[test]
    fn an_independent_reading_keeps_the_same_tokens() {
        let shape = HeadShape { heads: 1, kv_heads: 1, head_dim: 2 };
        for (text, prompt) in
            [("keyformer:budget=9,block=3,recent=2,rise=6,seed=5", 14), ("keyformer:budget=0.4", 25)]
        {
            let of = settings(text);
            let mut coins = StdRng::seed_from_u64(8);
            let mut rows = |count: usize| -> Vec<[f64; 2]> {
                (0..count).map(|_| [coins.random_range(-2.0..2.0), coins.random_range(-2.0..2.0)]).collect()
            };
            let (queries, keys) = (rows(prompt + 20), rows(prompt + 20));
            let tensor = |rows: &[[f64; 2]]| {
                let entries = rows.iter().flatten().map(|x| *x as f32).collect();
                ArrayD::from_shape_vec(vec![rows.len(), 2], entries).unwrap()
            };
            let mut cache = KvCache::<Float>::new(1, shape, &text.parse().unwrap());
            cache.expect_prompt(prompt);
            let (mut kept, mut scores, mut cuts) = (Vec::new(), Vec::<f64>::new(), 0);
            let mut end = 0;
            while end < prompt + 20 {
                let new = if end == 0 { prompt } else { 1 };
                kept.extend(end..end + new);
                scores.resize(kept.len(), 0.0);
                end += new;
                let window = cache.query_window(0, new).max(1);
                let q = Tensor::reshape(&tensor(&queries[end - window..end]), &[1, window, 2]);
                let k = tensor(&keys[end - new..end]);
                cache.attend(&mut Float::default(), 0, &q, &k, &k).unwrap();
                assert_eq!(cache.attended(0).unwrap()[0], kept, "{text}, {end} tokens");

                let piece = Piece { new, end, prompt, held: kept.len() };
                let Some(Cut { at, keep }) = of.next(piece) else { continue };
                let after = (end.max(prompt) - prompt) as f64 / of.rise as f64;
                let tau = 1.0 + after.min(1.0);
                for (query, q) in queries.iter().enumerate().take(end).skip(end - new) {
                    let noise = of.noise(0, query + 1, 1, kept.len(), shape);
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
            assert!(cuts >= if text.contains("budget=9") { 5 } else { 1 }, "{text}: {cuts} cuts");
        }
    }
}
