//! `sirllm`: the tokens that surprised the model most stay.
//!
//! **Source.** SirLLM (Yao et al., arXiv 2405.12528). A token's entropy is -log p, where p is the probability that
//! the model gave it before it was read. The first tokens, the latest, and those with the largest entropies are kept,
//! the same on all layers and heads. The authors also let entropies decay from turn to turn of a conversation; a text
//! has one turn.
//!
//! **In the clear alone.** The entropy of every token of the prompt needs the logits of every position, of which two
//! parties compute those of the last one. To compute the others costs a product with the vocabulary and a logarithm
//! of a sum of exponentials for each token, and to open them would show the client answers that it did not pay for.
//! So this policy runs where values are seen, for studies of what it would keep.
//!
//! **Cuts.** With a share at the end of the prompt; with a budget in tokens whenever the store is full
//! ([`Schedule`]).

use engine::{Error, Select};

use super::DEFAULT_SINKS;
use crate::attention;
use crate::family::CLEAR_ONLY;
use crate::schedule::{Cut, Later};
use crate::{HeadShape, NamedPolicy, Policy, PolicyFamily, Schedule, Setting, Store};

/// Latest tokens that stay unless told otherwise.
const DEFAULT_RECENT: usize = 32;

/// Keeps the first tokens, the latest, and those whose probability was smallest. Runs in the clear alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SirLlm {
    /// How much is kept, of the prompt or of all, and when the rest goes.
    pub schedule: Schedule,
    /// How many of the tokens kept stand at the start of the text: at most this many, and at most a quarter.
    pub sinks: usize,
    /// Latest tokens that stay: at most this many, and at most half of what is kept.
    pub recent: usize,
}

impl PolicyFamily for SirLlm {
    const POLICIES: &'static [NamedPolicy<Self>] = &[NamedPolicy {
        name: "sirllm",
        keys: &["budget", "block", "sinks", "recent"],
        about: "SirLLM: tokens that surprised the model stay; in the clear only",
        read: |options| {
            Ok(SirLlm {
                schedule: Schedule::read(options, Later::Tokens, false)?,
                sinks: options.number("sinks", 0, DEFAULT_SINKS)?,
                recent: options.number("recent", 1, DEFAULT_RECENT)?,
            })
        },
    }];

    fn settings(&self) -> Vec<Setting> {
        let mut settings = self.schedule.settings(Later::Tokens, false);
        settings.extend([Setting::new("sinks", self.sinks), Setting::new("recent", self.recent)]);
        settings
    }

    fn shows(&self) -> String {
        CLEAR_ONLY.into()
    }

    fn random_traffic(&self) -> bool {
        false
    }

    fn clear_only(&self) -> bool {
        true
    }

    fn build<E: Select>(&self, _layers: usize, _shape: HeadShape) -> Box<dyn Policy<E>> {
        Box::new(BySurprise { settings: *self, known: Vec::new() })
    }
}

/// The policy of one generation.
struct BySurprise {
    settings: SirLlm,
    /// How unexpected each token was that the stores hold.
    known: Vec<f32>,
}

impl SirLlm {
    /// Which of the tokens of these surprises are kept, `keep` of them.
    fn kept(&self, surprise: &[f32], keep: usize) -> Vec<usize> {
        let tokens = surprise.len();
        let recent = self.recent.min(keep.div_ceil(2));
        let sinks = self.sinks.min(keep / 4);
        let mut middle: Vec<usize> = (sinks..tokens - recent).collect();
        // The earlier of two equals first.
        middle.sort_by(|a, b| surprise[*b].total_cmp(&surprise[*a]));
        middle.truncate(keep - recent - sinks);
        let mut kept: Vec<usize> = (0..sinks).chain(middle).chain(tokens - recent..tokens).collect();
        kept.sort_unstable();
        kept
    }
}

impl<E: Select> Policy<E> for BySurprise {
    fn layer_class(&self, _layer: usize) -> usize {
        0
    }

    fn wants_surprise(&self) -> bool {
        true
    }

    fn surprised(&mut self, surprise: &[f32], stores: &mut [&mut Store<E>]) {
        self.known.extend_from_slice(surprise);
        let Some(piece) = stores.first().map(|store| store.piece()) else { return };
        let schedule = self.settings.schedule;
        let Some(Cut { at, keep }) = schedule.next(schedule.budget_of(piece.prompt), piece) else { return };
        if at != piece.end {
            return;
        }
        assert_eq!(self.known.len(), piece.held, "every token that was read came with its surprise");
        let kept = self.settings.kept(&self.known, keep);
        for store in stores {
            let pairs = store.pairs_by_head(0..store.len());
            store.replace_by_head(&attention::take(&pairs, 1, &kept));
            store.record_kept(|_| kept.clone());
        }
        self.known = kept.into_iter().map(|token| self.known[token]).collect();
    }

    fn attend(
        &mut self,
        engine: &mut E,
        _layer: usize,
        q: &E::Tensor,
        store: &mut Store<E>,
    ) -> Result<E::Tensor, Error> {
        Ok(attention::causal(engine, q, store)?.output)
    }
}

#[cfg(test)]
mod tests {
    use super::SirLlm;
    use crate::PolicyFamily;
    use crate::policies::shown;

    #[test]
    fn options_and_settings() {
        assert_eq!(shown("sirllm"), "budget=0.25 sinks=4 recent=32");
        assert_eq!(shown("sirllm:budget=64,block=8,sinks=2,recent=9"), "budget=64 block=8 sinks=2 recent=9");
        let unknown = "cache policy `sirllm` has no option `prefill`; it takes: budget, block, sinks, recent";
        assert_eq!(shown("sirllm:prefill=8"), unknown);
    }

    #[test]
    fn what_was_least_expected_stays_beside_the_first_and_the_latest() {
        let settings = SirLlm::parse("sirllm:sinks=1,recent=2").unwrap();
        let surprise = [0.0, 5.0, 1.0, 7.0, 7.0, 2.0, 0.5, 0.1];
        assert_eq!(settings.kept(&surprise, 5), [0, 3, 4, 6, 7]);
        assert_eq!(settings.kept(&surprise, 6), [0, 1, 3, 4, 6, 7]);
        assert_eq!(settings.kept(&surprise, 1), [7]);
        assert_eq!(settings.kept(&surprise, 8), [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}
