//! `knorm`: tokens whose keys have the largest norms go (Devoto et al., arXiv 2406.11430).
//!
//! Keys with small norms receive the most attention, so the choice needs no query. The square of a key's norm is
//! computed once, by the first cut after the token came in, and stays hidden beside the key. Rotary embeddings keep
//! norms, so a token that is repeated has equal norms in the first layer of such a model. Squares are rounded before
//! they are compared, so that the earlier of its copies stays.
//!
//! **Cuts.** Those of `snapkv` ([`Schedule`]): with a share the prompt at its end, with a budget in tokens every full
//! store, with `prefill` every chunk. The latest tokens stay: the authors judge prompts alone, but a token that has
//! just been generated must not go before it was ever looked at. Tokens stay in the order of the text.
//!
//! **Public.** When a layer is cut, and how many tokens it keeps. **Revealed.** Nothing; with
//! [`TopK::ShuffleReveal`] what that method's documentation says. A step without a cut has no exchange more than
//! `full`.

use engine::{Ceiling, Error, Origin, Ranking, Right, Select, Tensor, TopK};

use crate::attention;
use crate::family::shown;
use crate::schedule::{Cut, Later};
use crate::{Granularity, HeadShape, NamedPolicy, Policy, PolicyFamily, Schedule, Setting, Store, eviction};

/// Latest tokens that stay unless told otherwise.
const DEFAULT_RECENT: usize = 32;

/// log2 of a bound on the squares of norms ([`Select::sum_squares`]).
const MAGNITUDE: u32 = 20;

/// Fractional bits to which squares of norms are rounded before they are compared. Rounding moves a square by about
/// 2^-17 times the norm, so that a part of 2^-10 bears norms up to a hundred.
const FRAC: u32 = 6;

/// Keeps the latest tokens and those whose keys have the smallest norms, per key/value head.
///
/// The parties learn how many tokens are kept. With [`TopK::ShuffleReveal`] they also learn what that method's
/// documentation says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KNorm {
    /// How much is kept, of the prompt or of all, and when the rest goes.
    pub schedule: Schedule,
    /// Latest tokens that stay: at most this many, and at most half of what is kept.
    pub recent: usize,
    /// How the smallest norms are found.
    pub top_k: TopK,
}

impl PolicyFamily for KNorm {
    const POLICIES: &'static [NamedPolicy<Self>] = &[NamedPolicy {
        name: "knorm",
        keys: &["budget", "block", "prefill", "recent", "topk"],
        about: "keys with small norms stay",
        read: |options| {
            Ok(KNorm {
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
        shown("how many tokens are kept", self.top_k)
    }

    fn random_traffic(&self) -> bool {
        self.top_k == TopK::ShuffleReveal
    }

    fn prefill(&self) -> Option<usize> {
        self.schedule.prefill
    }

    fn build<E: Select>(&self, layers: usize, _shape: HeadShape) -> Box<dyn Policy<E>> {
        Box::new(ByNorm::<E> { settings: *self, known: (0..layers).map(|_| None).collect() })
    }
}

/// The policy of one generation.
struct ByNorm<E: Select> {
    settings: KNorm,
    /// By layer the scores of the first tokens of the store, those that an earlier cut left: (kv_heads, tokens). A
    /// score is the square of a key's norm, less than zero.
    known: Vec<Option<E::Tensor>>,
}

impl<E: Select> ByNorm<E> {
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
        if keep == recent {
            eviction::keep_latest(store, old);
            self.known[layer] = None;
            return Ok(());
        }
        let scores = self.scores(engine, layer, old, store)?;
        let ranking = Ranking {
            k: keep - recent,
            method: self.settings.top_k,
            magnitude: MAGNITUDE,
            ceiling: ceiling(engine)?,
            frac: FRAC,
            rounded: true,
        };
        let best = eviction::choose(engine, &scores, &ranking)?;
        eviction::keep(engine, store, &best, old, Granularity::PerKv)?;
        let (rows, entries) = (scores.shape()[0], scores.reshape(&[scores.shape()[0], old, 1]));
        let left = engine.gather(&best, Right::Fresh(&entries), MAGNITUDE)?;
        self.known[layer] = Some(left.reshape(&[rows, keep - recent]));
        Ok(())
    }

    /// The scores of the first `old` tokens, (kv_heads, old): those known, and those computed now.
    fn scores(&mut self, engine: &mut E, layer: usize, old: usize, store: &Store<E>) -> Result<E::Tensor, Error> {
        let HeadShape { kv_heads, head_dim, .. } = store.heads();
        let known = self.known[layer].take();
        let first = known.as_ref().map_or(0, |known| known.shape()[1]);
        let keys = store.keys().slice(0, first..old).reshape(&[old - first, kv_heads, head_dim]);
        let squares = engine.sum_squares(&keys.permute(&[1, 0, 2]))?;
        let fresh = engine.negate(&squares)?;
        Ok(match &known {
            Some(known) => E::Tensor::concat(1, &[known, &fresh]),
            None => fresh,
        })
    }
}

/// A bound on scores, computed or moved by an earlier cut, that nothing can exceed.
fn ceiling<E: Select>(engine: &E) -> Result<Ceiling, Error> {
    Ok(engine.ceiling(Origin::Squares)?.max(engine.ceiling(Origin::Moved { magnitude: MAGNITUDE })?))
}

impl<E: Select> Policy<E> for ByNorm<E> {
    fn fork(&self) -> Option<Box<dyn Policy<E>>> {
        Some(Box::new(ByNorm { known: self.known.clone(), ..*self }))
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
    use crate::policies::shown;

    #[test]
    fn options_and_settings() {
        assert_eq!(shown("knorm"), "budget=0.25 prefill=off recent=32 topk=rank");
        let text = "knorm:budget=128,block=16,prefill=64,recent=4,topk=sort";
        assert_eq!(shown(text), "budget=128 block=16 prefill=64 recent=4 topk=sort");
        assert_eq!(shown("knorm:recent=0"), "cache policy `knorm`: recent=0: expected a number from 1");
    }
}
