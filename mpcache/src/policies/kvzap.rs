//! `kvzap`: tokens of which a learned score says that later queries will not look at them go.
//!
//! **Source.** KVzap (NVIDIA, arXiv 2601.07891): a linear function of the hidden state predicts the score of KVzip,
//! the logarithm of the most attention that a token receives while its context is repeated. The authors drop what is
//! below a threshold, whose number would leak, and also take two layers in place of the linear function. Here a fixed
//! number of tokens is kept, and the function is linear.
//!
//! **Scores.** The matrix that gives query, key and value has a further column for each key/value head. The scores of
//! a token come with its keys and cost no exchange. `waggle fit kvzap` finds the columns, on a text in the clear, and
//! the model's loader reads them. A function that is the same for all tokens of a head changes no choice, so there is
//! no bias. Scores are compared within a head alone, so their unit is free, and the fit chooses it so that their size
//! is below 2^`MAGNITUDE` for every hidden state. A hidden state that a norm has made has a length, and Cauchy's
//! inequality bounds the product; the loader refuses columns beyond that. In the first layer of a LLaMA a token that
//! is repeated has equal scores. They are rounded before they are compared, so that the
//! earlier of its copies stays.
//!
//! **Cuts.** Those of `snapkv` ([`Schedule`]). The latest tokens stay. Tokens stay in the order of the text.
//!
//! **Public.** That the model has such columns, when a layer is cut, and how many tokens it keeps. **Revealed.**
//! Nothing: the columns are weights of the server, and scores stay shared; with [`TopK::ShuffleReveal`] what that
//! method's documentation says. A step without a cut has no exchange more than `full`.

use engine::{Ceiling, Error, Origin, Ranking, Select, Tensor, TopK};

use crate::attention;
use crate::family::shown;
use crate::schedule::{Cut, Later};
use crate::{HeadShape, NamedPolicy, Policy, PolicyFamily, Schedule, Setting, Store, eviction};

/// Latest tokens that stay unless told otherwise.
const DEFAULT_RECENT: usize = 32;

/// log2 of a bound on scores, which a model that gives them guarantees.
pub const MAGNITUDE: u32 = 8;

/// Fractional bits to which scores are rounded before they are compared: a 250th of a typical one.
const FRAC: u32 = 6;

/// Keeps the latest tokens and those with the largest learned scores, per key/value head.
///
/// The parties learn how many tokens are kept. With [`TopK::ShuffleReveal`] they also learn what that method's
/// documentation says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KvZap {
    /// How much is kept, of the prompt or of all, and when the rest goes.
    pub schedule: Schedule,
    /// Latest tokens that stay: at most this many, and at most half of what is kept.
    pub recent: usize,
    /// How the largest scores are found.
    pub top_k: TopK,
}

impl PolicyFamily for KvZap {
    const POLICIES: &'static [NamedPolicy<Self>] = &[NamedPolicy {
        name: "kvzap",
        keys: &["budget", "block", "prefill", "recent", "topk"],
        about: "KVzap: tokens with large learned scores stay",
        read: |options| {
            Ok(KvZap {
                schedule: Schedule::read(options, Later::Tokens, true)?,
                recent: options.number("recent", 1, DEFAULT_RECENT)?,
                top_k: options.top_k(TopK::Rank)?,
            })
        },
    }];

    fn settings(&self) -> Vec<Setting> {
        let mut settings = self.schedule.settings(Later::Tokens, true);
        settings.extend([Setting::new("recent", self.recent), Setting::new("topk", self.top_k)]);
        settings
    }

    fn shows(&self) -> String {
        shown("that the model has learned columns, and how many tokens are kept", self.top_k)
    }

    fn random_traffic(&self) -> bool {
        self.top_k == TopK::ShuffleReveal
    }

    fn prefill(&self) -> Option<usize> {
        self.schedule.prefill
    }

    fn needs_columns(&self) -> bool {
        true
    }

    fn build<E: Select>(&self, layers: usize, _shape: HeadShape) -> Box<dyn Policy<E>> {
        Box::new(ByLearned::<E> { settings: *self, known: (0..layers).map(|_| None).collect() })
    }
}

/// The policy of one generation.
struct ByLearned<E: Select> {
    settings: KvZap,
    /// By layer the scores of all tokens that the store holds, and of those that come next: (kv_heads, tokens).
    /// Nothing lifts them beyond the ceiling.
    known: Vec<Option<(E::Tensor, Ceiling)>>,
}

impl<E: Select> ByLearned<E> {
    /// Evicts where a cut is due.
    fn cut(&mut self, engine: &mut E, layer: usize, store: &mut Store<E>) -> Result<(), Error> {
        let (piece, schedule) = (store.piece(), self.settings.schedule);
        match schedule.next(schedule.budget_of(piece.prompt), piece) {
            Some(Cut { at, keep }) if at == piece.end => {
                engine.scope("eviction", |engine| self.evict(engine, layer, keep, store))
            }
            _ => Ok(()),
        }
    }

    /// Evicts all but `keep` tokens.
    fn evict(&mut self, engine: &mut E, layer: usize, keep: usize, store: &mut Store<E>) -> Result<(), Error> {
        let tokens = store.len();
        let recent = self.settings.recent.min(keep.div_ceil(2));
        let old = tokens - recent;
        let expected = vec![store.heads().kv_heads, tokens];
        let got = self.known[layer].as_ref().map(|(scores, _)| scores.shape()).unwrap_or_default();
        let Some((scores, ceiling)) = self.known[layer].take().filter(|_| got == expected) else {
            return Err(Error::Shape { tensor: format!("learned scores of layer {layer}"), expected, got });
        };
        if keep == recent {
            eviction::keep_latest(store, old);
            self.known[layer] = Some((scores.slice(1, old..tokens), ceiling));
            return Ok(());
        }
        let k = keep - recent;
        let how =
            Ranking { k, method: self.settings.top_k, magnitude: MAGNITUDE, ceiling, frac: FRAC, rounded: true };
        let best = eviction::choose(engine, &scores.slice(1, 0..old), &how)?;
        let left = eviction::keep_scored(engine, store, &best, old, &scores, MAGNITUDE)?;
        let moved = Origin::Moved { magnitude: eviction::scored_magnitude(MAGNITUDE) };
        self.known[layer] = Some((left, ceiling.max(engine.ceiling(moved)?)));
        Ok(())
    }
}

impl<E: Select> Policy<E> for ByLearned<E> {
    fn fork(&self) -> Option<Box<dyn Policy<E>>> {
        Some(Box::new(ByLearned { known: self.known.clone(), ..*self }))
    }

    fn prefill_chunk(&self) -> Option<usize> {
        self.settings.schedule.prefill
    }

    fn layer_class(&self, _layer: usize) -> usize {
        0
    }

    fn wants_learned(&self) -> bool {
        true
    }

    fn learned(&mut self, layer: usize, scores: &E::Tensor, ceiling: Ceiling) {
        let fresh = scores.permute(&[1, 0]);
        self.known[layer] = Some(match self.known[layer].take() {
            Some((known, before)) => (E::Tensor::concat(1, &[&known, &fresh]), ceiling.max(before)),
            None => (fresh, ceiling),
        });
    }

    fn attend(
        &mut self,
        engine: &mut E,
        layer: usize,
        q: &E::Tensor,
        store: &mut Store<E>,
    ) -> Result<E::Tensor, Error> {
        let output = attention::causal(engine, q, store)?.output;
        self.cut(engine, layer, store)?;
        Ok(output)
    }

    fn appended(&mut self, engine: &mut E, layer: usize, store: &mut Store<E>) -> Result<(), Error> {
        self.cut(engine, layer, store)
    }
}

#[cfg(test)]
mod tests {
    use engine::Float;
    use ndarray::ArrayD;

    use crate::policies::shown;
    use crate::{HeadShape, KvCache};

    #[test]
    fn options_and_settings() {
        assert_eq!(shown("kvzap"), "budget=0.25 prefill=off recent=32 topk=rank");
        let text = "kvzap:budget=128,block=16,prefill=64,recent=4,topk=sort";
        assert_eq!(shown(text), "budget=128 block=16 prefill=64 recent=4 topk=sort");
        assert_eq!(shown("kvzap:recent=0"), "cache policy `kvzap`: recent=0: expected a number from 1");
    }

    #[test]
    fn a_cut_without_scores_is_refused() {
        let heads = HeadShape { heads: 1, kv_heads: 1, head_dim: 2 };
        let mut cache = KvCache::<Float>::new(1, heads, &"kvzap".parse().unwrap());
        assert!(cache.wants_learned());
        let rows = ArrayD::zeros(vec![8, 2]);
        let q = ArrayD::zeros(vec![1, 1, 2]);
        let error = cache.attend(&mut Float::default(), 0, &q, &rows, &rows).unwrap_err();
        assert_eq!(error.to_string(), "tensor `learned scores of layer 0` has shape [], expected [1, 8]");
    }
}
