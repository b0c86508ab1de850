//! `streaming`: the first tokens and the latest, after StreamingLLM (Xiao et al., arXiv 2309.17453).

use engine::{Engine, Error, Tensor};

use super::{DEFAULT_BUDGET, DEFAULT_SINKS};
use crate::attention::{self, Attended};
use crate::{HeadShape, NamedPolicy, Policy, PolicyFamily, Setting, Store, budget};

/// Keeps the first tokens and the latest, and evicts all others. Tokens keep the positions at which they were
/// encoded.
///
/// The pattern is public: the policy needs no protocol and reveals nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Streaming {
    /// Share of all tokens seen that is kept.
    pub budget: f64,
    /// How many of them stand at the start of the text.
    pub sinks: usize,
}

impl PolicyFamily for Streaming {
    const POLICIES: &'static [NamedPolicy<Self>] = &[NamedPolicy {
        name: "streaming",
        keys: &["budget", "sinks"],
        about: "StreamingLLM: the first tokens and the latest",
        read: |options| {
            Ok(Streaming {
                budget: options.fraction("budget", DEFAULT_BUDGET)?,
                sinks: options.number("sinks", 0, DEFAULT_SINKS)?,
            })
        },
    }];

    fn settings(&self) -> Vec<Setting> {
        vec![Setting::new("budget", self.budget), Setting::new("sinks", self.sinks)]
    }

    fn random_traffic(&self) -> bool {
        false
    }

    fn build<E: Engine>(&self, _layers: usize, _shape: HeadShape) -> Box<dyn Policy<E>> {
        Box::new(*self)
    }
}

impl<E: Engine> Policy<E> for Streaming {
    fn layer_class(&self, _layer: usize) -> usize {
        0
    }

    fn attend(
        &mut self,
        engine: &mut E,
        _layer: usize,
        q: &E::Tensor,
        store: &mut Store<E>,
    ) -> Result<E::Tensor, Error> {
        // The prompt sees itself whole and is cut afterwards; later tokens see what is kept.
        let piece = store.piece();
        let rows = if piece.in_prompt() { 1 } else { q.shape()[1] };
        let keep = budget(self.budget, store.seen()).max(rows);
        if !piece.in_prompt() {
            cut(store, keep, self.sinks);
        }
        let Attended { output, .. } = attention::causal(engine, q, store)?;
        if piece.ends_prompt() {
            cut(store, keep, self.sinks);
        }
        Ok(output)
    }
}

/// Keeps the first `sinks` tokens and the latest, `keep` in all.
fn cut<E: Engine>(store: &mut Store<E>, keep: usize, sinks: usize) {
    let tokens = store.len();
    if keep >= tokens {
        return;
    }
    let sinks = sinks.min(keep - 1);
    let index: Vec<usize> = (0..sinks).chain(tokens - (keep - sinks)..tokens).collect();
    let (keys, values) = (attention::take(store.keys(), 0, &index), attention::take(store.values(), 0, &index));
    store.replace(keys, values);
    store.record_kept(|_| index.clone());
}

#[cfg(test)]
mod tests {
    use crate::policies::shown;

    #[test]
    fn options_and_settings() {
        assert_eq!(shown("streaming"), "budget=0.25 sinks=4");
        assert_eq!(shown("streaming:budget=0.5,sinks=0"), "budget=0.5 sinks=0");
        assert_eq!(
            shown("streaming:budget=0"),
            "cache policy `streaming`: budget=0: expected a share above 0, up to 1"
        );
        assert_eq!(shown("streaming:sinks=-1"), "cache policy `streaming`: sinks=-1: expected a number from 0");
    }
}
