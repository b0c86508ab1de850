//! `knorm`, `kvzap`, `qfilters`, `keydiff`, `keyformer` and `sirllm`: the latest tokens stay, and of the tokens
//! before them those with the largest scores. The policies differ in the source of the scores ([`Source`]).
//!
//! **`knorm`** (Devoto et al., arXiv 2406.11430): keys with small norms receive the most attention, so a choice by
//! norms needs no query. The square of a key's norm is computed once, by the first eviction after its token came in,
//! and stays hidden beside the key. Rotary embeddings do not change norms, so equal tokens have equal norms in the
//! first layer of a model with rotary embeddings. Unlike this policy, kvpress protects no latest tokens.
//!
//! **`kvzap`** (NVIDIA, arXiv 2601.07891): a linear function of the hidden state predicts the score of KVzip, the
//! logarithm of the most attention that a token receives while its context is repeated. The authors drop all tokens
//! below a threshold, which would leak the number of tokens, and they also try two layers in place of the linear
//! function. Here a fixed number of tokens is kept. The matrix that gives query, key and value has a further column
//! for each key/value head, the *scoring head*, so that scores come with the keys and cost no exchange. `waggle fit
//! kvzap` finds the columns on a text in the clear, and the model's loader reads them. There is no bias: a number
//! that is added to the scores of all tokens of a head changes no choice. The columns read the state before the gain
//! of its norm, whereas the authors' functions read the state after the gain. This changes only a factor in each
//! weight. Scores are compared only within a head, so their unit is free. The fit chooses the unit so that scores are
//! below 2^[`HEAD_MAGNITUDE`] for every hidden state: a norm fixes the length of its output, and Cauchy's inequality
//! bounds the product. The loader refuses columns whose scores may be larger.
//!
//! **`qfilters`** (Godey et al., arXiv 2503.02812) and **`keydiff`** (Park et al., arXiv 2504.15364) score keys
//! without a query: by the projection on the direction in which a head's queries lie, and by how little a key is like
//! the mean of all keys. Both read the key with its rotary position. A direction that is turned back by each
//! position, or a mean and its inverse norm, would cost two parties an exchange in each eviction. Here `waggle fit`
//! finds the linear function of the hidden state that foretells the score best, and the policy is `kvzap` with other
//! columns. The correlation that the command prints says how much of the published score this is.
//!
//! **`keyformer`** (Adnan et al., arXiv 2403.09054): the attention that a token received in a second softmax, of
//! noisy logits; see [`Noise`].
//!
//! **`sirllm`** (Yao et al., arXiv 2405.12528): the surprisal of a token, -log p, where p is the probability that the
//! model gave the token before it was read. The first tokens stay, too. The authors also let scores decay from turn
//! to turn of a conversation; a text has one turn. The policy runs only in the clear: the surprisals of a prompt need
//! the logits of every position, and two parties compute only those of the last position. Computing the others would
//! cost a product with the vocabulary and a logarithm of a sum of exponentials for each token. Opening them would
//! show the client answers that it did not pay for.
//!
//! **Evictions.** They come when those of `snapkv` do ([`Schedule`]): with a share at the end of the prompt, with a
//! budget in tokens whenever the store is full, with `prefill` after every chunk. The latest tokens stay: a token
//! that has just been generated must not be evicted before it was ever looked at. Tokens stay in the order of the
//! text. Scores are rounded before they are compared, so that the earlier of two equal tokens stays.
//!
//! **Public.** When a layer evicts; how many tokens it keeps; that the model has a scoring head; the noise of
//! `keyformer`. **Revealed.** Nothing, as scores stay shared; with [`TopK::ShuffleReveal`] what that method's
//! documentation says. A step without an eviction has no more exchanges than with `full`, except with `keyformer`.

mod noise;

use std::ops::Range;

use ndarray::Array2;
pub use noise::Noise;
use waggle_engine::{Ceiling, Error, Origin, Ranking, Right, Select, Tensor, TopK};

use super::DEFAULT_SINKS;
use crate::Granularity::PerKv;
use crate::attention::{self, Received};
use crate::eviction::{Rows, Scores};
use crate::schedule::{Eviction, Later};
use crate::{
    Facts, HeadShape, NamedPolicy, Piece, Policy, PolicyError, PolicyFamily, PolicyOptions, Schedule, ScoreSource,
    Store, eviction, fold_heads, unfold_heads,
};

/// The number of latest tokens that stay by default.
const DEFAULT_RECENT: usize = 32;

/// log2 of a bound on the squares of norms ([`Select::sum_squares`]).
const NORM_MAGNITUDE: u32 = 20;

/// Fractional bits to which squares of norms are rounded. Rounding of keys moves a square by about 2^-17 times the
/// norm. For norms up to a hundred this is at most 2^-10, a 16th of a unit, which the comparison allows
/// ([`waggle_engine::GRID_NOISE`]).
const NORM_FRAC: u32 = 6;

/// log2 of a bound on the scores of a scoring head, which a model that has one guarantees.
pub const HEAD_MAGNITUDE: u32 = 8;

/// Fractional bits to which the scores of a scoring head are rounded: a unit is a 250th of a typical score.
const HEAD_FRAC: u32 = 6;

/// The number added to the surprisal of the first tokens, so that they stay. The constant after it is log2 of a bound
/// on the sum.
const SINK: f32 = 4096.0;
const SURPRISAL_MAGNITUDE: u32 = 13;

/// Fractional bits of a surprisal that are compared.
const SURPRISAL_FRAC: u32 = 18;

/// Where the score of a token comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Source {
    /// `knorm`: the square of the norm of the token's key. The smallest stay.
    Norm,
    /// `kvzap`, `qfilters` and `keydiff`: the model's scoring head of this name.
    Head(&'static str),
    /// `keyformer`: the attention that the token received in a softmax of noisy logits.
    Noisy(Noise),
    /// `sirllm`: how unexpected the token was. Some first tokens of the text stay, too.
    Surprisal {
        /// The number of first tokens that stay: at most this many, and at most a quarter of the tokens kept.
        sinks: usize,
    },
}

/// Keeps the latest tokens and those with the largest scores, per key/value head.
///
/// The parties learn how many tokens are kept. With [`TopK::ShuffleReveal`] they also learn what that method's
/// documentation says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scored {
    /// The budget, out of the prompt or of all tokens, and when the other tokens are evicted.
    pub schedule: Schedule,
    /// The number of latest tokens that stay: at most this many, and at most half of the tokens kept.
    pub recent: usize,
    /// The source of the scores.
    pub source: Source,
    /// The method that finds the largest scores.
    pub top_k: TopK,
}

const KEYS: &[&str] = &["budget", "block", "prefill", "guard", "recent", "topk"];

impl PolicyFamily for Scored {
    const POLICIES: &'static [NamedPolicy<Self>] = &[
        NamedPolicy {
            name: "knorm",
            keys: KEYS,
            about: "keys with small norms stay",
            read: |options| read(options, Source::Norm),
        },
        NamedPolicy {
            name: "kvzap",
            keys: KEYS,
            about: "KVzap: tokens with large learned scores stay",
            read: |options| read(options, Source::Head("kvzap")),
        },
        NamedPolicy {
            name: "qfilters",
            keys: KEYS,
            about: "Q-Filters: keys along the main direction of queries stay, by a learned score",
            read: |options| read(options, Source::Head("qfilters")),
        },
        NamedPolicy {
            name: "keydiff",
            keys: KEYS,
            about: "KeyDiff: keys unlike the mean key stay, by a learned score",
            read: |options| read(options, Source::Head("keydiff")),
        },
        NamedPolicy {
            name: "keyformer",
            keys: &["budget", "block", "prefill", "guard", "recent", "rise", "seed", "topk"],
            about: "Keyformer: a second softmax, of noisy logits, scores tokens",
            read: |options| {
                let noise = Noise::read(options)?;
                read(options, Source::Noisy(noise))
            },
        },
        NamedPolicy {
            name: "sirllm",
            keys: &["budget", "block", "guard", "sinks", "recent"],
            about: "SirLLM: the tokens of largest surprisal stay; in the clear only",
            read: |options| {
                let sinks = options.number("sinks", 0, DEFAULT_SINKS)?;
                read(options, Source::Surprisal { sinks })
            },
        },
    ];

    fn facts(&self) -> Facts {
        let shows = match self.source {
            Source::Norm => "how many tokens are kept",
            Source::Head(_) => "that the model has learned columns, and how many tokens are kept",
            Source::Noisy(_) => "the noise, and how many tokens are kept",
            Source::Surprisal { .. } => return Facts::in_the_clear(),
        };
        Facts {
            prefill: self.schedule.prefill,
            side_by_side: self.source == Source::Norm,
            scoring_head: if let Source::Head(name) = self.source { Some(name) } else { None },
            ..Facts::selecting(shows, self.top_k)
        }
    }

    fn build<E: Select>(&self, layers: usize, _shape: HeadShape) -> Box<dyn Policy<E>> {
        Box::new(ByScore::<E> { settings: *self, known: (0..layers).map(|_| None).collect() })
    }
}

fn read(options: &mut PolicyOptions, source: Source) -> Result<Scored, PolicyError> {
    let schedule = Schedule::read(options, Later::Tokens)?;
    let recent = options.number("recent", 1, DEFAULT_RECENT)?;
    let top_k = if options.lists("topk") { options.top_k(TopK::Rank)? } else { TopK::Rank };
    Ok(Scored { schedule, recent, source, top_k })
}

impl Scored {
    fn next(&self, piece: Piece) -> Option<Eviction> {
        self.schedule.next(self.schedule.budget_of(piece.prompt), piece)
    }

    /// The ranking that finds the `k` largest scores in `store`.
    fn ranking<E: Select>(&self, engine: &E, k: usize, ceiling: Ceiling, store: &Store<E>) -> Result<Ranking, Error> {
        let (magnitude, frac) = match self.source {
            Source::Norm => (NORM_MAGNITUDE, NORM_FRAC),
            Source::Head(_) => (HEAD_MAGNITUDE, HEAD_FRAC),
            Source::Surprisal { .. } => (SURPRISAL_MAGNITUDE, SURPRISAL_FRAC),
            Source::Noisy(_) => {
                // Each query so far has given a token a probability of at most 1 in each head.
                let size = Received::new(engine, store.seen(), PerKv, store.heads())?;
                (size.magnitude, size.frac)
            }
        };
        Ok(Ranking { k, method: self.top_k, magnitude, ceiling, frac, rounded: true })
    }
}

/// The policy of one generation.
struct ByScore<E: Select> {
    settings: Scored,
    /// By layer, the known scores of the first tokens that the store holds.
    known: Vec<Option<Scores<E::Tensor>>>,
}

impl<E: Select> ByScore<E> {
    /// Evicts if an eviction is due and all scores are there.
    fn evict_if_due(&mut self, engine: &mut E, layer: usize, store: &mut Store<E>) -> Result<(), Error> {
        let known = self.known[layer].as_ref().map_or(0, Scores::tokens);
        let waits = matches!(self.settings.source, Source::Surprisal { .. }) && known < store.len();
        let piece = store.piece();
        match self.settings.next(piece) {
            Some(Eviction { at, keep }) if at == piece.end && !waits => {
                engine.scope("eviction", |engine| self.evict(engine, layer, keep, store))
            }
            _ => Ok(()),
        }
    }

    /// Evicts all but `keep` tokens.
    fn evict(&mut self, engine: &mut E, layer: usize, keep: usize, store: &mut Store<E>) -> Result<(), Error> {
        let schedule = self.settings.schedule;
        let guard = schedule.guarded(schedule.budget_of(store.piece().prompt));
        let rows = Rows::divide(store, guard, keep, self.settings.recent.min(keep.div_ceil(2)));
        let (tokens, old) = (store.len(), rows.candidates.end);
        let known = match self.known[layer].take() {
            Some(known) if known.tokens() == tokens => Some(known.map(|scores| rows.follow(scores, 1))),
            // Squares of norms are known for the first rows only. If rows moved, they are computed anew.
            known => known.filter(|_| !rows.moved()),
        };
        if rows.stay == 0 {
            rows.keep_no_candidate(store);
            self.known[layer] = known.filter(|known| known.tokens() == tokens).map(|known| rows.spare(&known));
            return Ok(());
        }
        let known = self.complete(engine, layer, known, old, store)?;
        let how = self.settings.ranking(engine, rows.stay, known.ceiling, store)?;
        let candidates = self.candidates(engine, &known.scores, rows.candidates.clone(), keep)?;
        let best = eviction::choose(engine, &candidates, &how)?;
        self.known[layer] = Some(if self.settings.source == Source::Norm {
            // Squares of norms take more bits than keys and values, and are gathered on their own.
            eviction::keep(engine, store, &best, rows.candidates.clone(), PerKv)?;
            let (heads, candidates) = (known.scores.shape()[0], rows.candidates.clone());
            let squares = known.scores.slice(1, candidates.clone()).reshape(&[heads, candidates.len(), 1]);
            let left = engine.gather(&best, Right::Fresh(&squares), how.magnitude)?;
            let left = left.reshape(&[heads, rows.stay]);
            known.map(|all| eviction::replaced(all, 1, candidates.clone(), &left))
        } else {
            eviction::keep_scored(engine, store, &best, rows.candidates, &known, how.magnitude, PerKv)?
        });
        Ok(())
    }

    /// The scores of all tokens that the store holds. If scores follow from the keys, only the scores of the first
    /// `old` tokens of the store.
    fn complete(
        &self,
        engine: &mut E,
        layer: usize,
        known: Option<Scores<E::Tensor>>,
        old: usize,
        store: &Store<E>,
    ) -> Result<Scores<E::Tensor>, Error> {
        let HeadShape { kv_heads, head_dim, .. } = store.heads();
        if self.settings.source != Source::Norm {
            let expected = vec![kv_heads, store.len()];
            let got = known.as_ref().map(|known| known.scores.shape()).unwrap_or_default();
            let tensor = || format!("scores of layer {layer}");
            return known.filter(|_| got == expected).ok_or_else(|| Error::Shape { tensor: tensor(), expected, got });
        }
        let first = known.as_ref().map_or(0, Scores::tokens);
        let keys = store.keys().slice(0, first..old).reshape(&[old - first, kv_heads, head_dim]);
        let squares = engine.sum_squares(&keys.permute(&[1, 0, 2]))?;
        let fresh = engine.negate(&squares)?;
        let scores = match &known {
            Some(known) => E::Tensor::concat(1, &[&known.scores, &fresh]),
            None => fresh,
        };
        let moved = engine.ceiling(Origin::Moved { magnitude: NORM_MAGNITUDE })?;
        Ok(Scores { scores, earlier: None, ceiling: engine.ceiling(Origin::Squares)?.max(moved) })
    }

    /// The scores that rank the rows `range`. `keep` tokens will stay, of these and of the other rows.
    fn candidates(
        &self,
        engine: &mut E,
        scores: &E::Tensor,
        range: Range<usize>,
        keep: usize,
    ) -> Result<E::Tensor, Error> {
        let scores = scores.slice(1, range.clone());
        let Source::Surprisal { sinks } = self.settings.source else { return Ok(scores) };
        // Half of the guarded rows, or all of them, are first tokens already.
        let sinks = sinks.min(keep / 4).saturating_sub(range.start.div_ceil(2));
        let lift = |(_, token)| if token < sinks { SINK } else { 0.0 };
        let lift = engine.public(&Array2::from_shape_fn((scores.shape()[0], range.len()), lift).into_dyn());
        engine.add(&scores, &lift)
    }
}

impl<E: Select> Policy<E> for ByScore<E> {
    fn fork(&self) -> Option<Box<dyn Policy<E>>> {
        Some(Box::new(ByScore { known: self.known.clone(), ..*self }))
    }

    fn observation_window(&self, _layer: usize, piece: Piece) -> usize {
        let noisy = matches!(self.settings.source, Source::Noisy(_));
        if noisy && self.settings.next(piece).is_some() { piece.new } else { 0 }
    }

    fn prefill_chunk(&self) -> Option<usize> {
        self.settings.schedule.prefill
    }

    fn layer_class(&self, _layer: usize) -> usize {
        0
    }

    fn wants_scores(&self) -> Option<ScoreSource> {
        match self.settings.source {
            Source::Head(name) => Some(ScoreSource::ScoringHead(name)),
            Source::Surprisal { .. } => Some(ScoreSource::Surprisal),
            Source::Norm | Source::Noisy(_) => None,
        }
    }

    fn score(&mut self, layer: usize, scores: &E::Tensor, ceiling: Ceiling) {
        let fresh = scores.permute(&[1, 0]);
        self.known[layer] = Some(match self.known[layer].take() {
            Some(known) => {
                let scores = E::Tensor::concat(1, &[&known.scores, &fresh]);
                Scores { scores, earlier: None, ceiling: ceiling.max(known.ceiling) }
            }
            None => Scores { scores: fresh, earlier: None, ceiling },
        });
    }

    fn attend(
        &mut self,
        engine: &mut E,
        layer: usize,
        q: &E::Tensor,
        store: &mut Store<E>,
    ) -> Result<E::Tensor, Error> {
        let piece = store.piece();
        let (noise, eviction) = match (self.settings.source, self.settings.next(piece)) {
            (Source::Noisy(noise), Some(eviction)) => (noise, eviction),
            (source, _) => {
                let output = attention::attend(engine, q, store)?;
                match source {
                    // No eviction comes after this one.
                    Source::Noisy(_) => self.known[layer] = None,
                    _ => self.evict_if_due(engine, layer, store)?,
                }
                return Ok(output);
            }
        };
        // As in `attention::weighted`, but the temperature needs the scores in full precision.
        let (shape, tokens) = (store.heads(), store.len());
        store.record_attended(|_| (0..tokens).collect());
        let logits = store.ranked_scores(engine, &fold_heads(q, shape))?;
        let seen = store.spans(q.shape()[1], tokens);
        let scores = attention::capped(engine, store.soft_cap(), logits.clone())?;
        let weights = attention::softmax(engine, q, &[scores], &[seen], store)?;
        let p = weights.by_part[0].clone();
        let mixed = unfold_heads(&store.mix(engine, &p)?, shape);
        let mixed = weights.with_prefix(engine, mixed, store)?;
        engine.scope("eviction", |engine| {
            let p = noise.softmax(engine, layer, &logits, store)?;
            let before = self.known[layer].take();
            self.known[layer] = Some(eviction::accumulate(engine, before, &p, q.shape()[1], PerKv, shape)?);
            if eviction.at == piece.end { self.evict(engine, layer, eviction.keep, store) } else { Ok(()) }
        })?;
        Ok(mixed)
    }

    fn appended(&mut self, engine: &mut E, layer: usize, store: &mut Store<E>) -> Result<(), Error> {
        self.evict_if_due(engine, layer, store)
    }
}

#[cfg(test)]
mod tests {
    use ndarray::ArrayD;
    use waggle_engine::Float;

    use super::*;
    use crate::{KvCache, Layers};

    const ONE: HeadShape = HeadShape { heads: 1, kv_heads: 1, head_dim: 2 };

    #[test]
    fn a_cut_without_scores_is_refused() {
        let mut cache = KvCache::<Float>::new(&Layers::global(1, ONE), &"kvzap".parse().unwrap());
        assert_eq!(cache.wants_scores(), Some(ScoreSource::ScoringHead("kvzap")));
        let (rows, q) = (ArrayD::zeros(vec![8, 2]), ArrayD::zeros(vec![1, 1, 2]));
        let error = cache.attend(&mut Float::default(), 0, &q, &rows, &rows).unwrap_err();
        assert_eq!(error.to_string(), "tensor `scores of layer 0` has shape [], expected [1, 8]");
    }

    /// A study in the clear runs policies without a scoring head on a model that has one.
    #[test]
    fn scores_that_nobody_wants_change_nothing() {
        let (mut engine, mut cache) =
            (Float::default(), KvCache::<Float>::new(&Layers::global(1, ONE), &"knorm".parse().unwrap()));
        let (rows, q) = (ArrayD::zeros(vec![8, 2]), ArrayD::zeros(vec![1, 1, 2]));
        cache.score(0, &ArrayD::zeros(vec![8, 1]), Ceiling::NONE);
        cache.attend(&mut engine, 0, &q, &rows, &rows).unwrap();
        // Two tokens, each with two words of a key and two of a value.
        assert_eq!((cache.held(0), cache.words()), (2, 8));
    }

    #[test]
    fn what_was_least_expected_stays_beside_the_first_and_the_latest() {
        let surprisal = [0.0, 5.0, 1.0, 7.0, 7.0, 2.0, 0.5, 0.1];
        let (rows, q) = (ArrayD::zeros(vec![8, 2]), ArrayD::zeros(vec![1, 1, 2]));
        for (budget, kept) in
            [(5, &[0, 3, 4, 6, 7][..]), (6, &[0, 1, 3, 4, 6, 7]), (1, &[7]), (8, &[0, 1, 2, 3, 4, 5, 6, 7])]
        {
            let text = format!("sirllm:sinks=1,recent=2,budget={}", budget as f64 / 8.0);
            let (mut engine, mut cache) =
                (Float::default(), KvCache::<Float>::new(&Layers::global(1, ONE), &text.parse().unwrap()));
            cache.attend(&mut engine, 0, &q, &rows, &rows).unwrap();
            assert_eq!(cache.held(0), 8, "what surprised the model is not known yet");
            cache.surprisals(&mut engine, &surprisal).unwrap();
            let next = ArrayD::zeros(vec![1, 2]);
            cache.attend(&mut engine, 0, &q, &next, &next).unwrap();
            assert_eq!(cache.attended(0).unwrap()[0], [kept, &[8]].concat(), "{text}");
        }
    }
}
