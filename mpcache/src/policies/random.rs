//! `random`: a public random choice of tokens, the control that every other policy must beat.

use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::index::sample;
use waggle_engine::{Error, Select, Tensor};

use super::{DEFAULT_BUDGET, DEFAULT_SINKS};
use crate::attention;
use crate::{Facts, HeadShape, NamedPolicy, Policy, PolicyFamily, Store, budget};

/// Attends to the first tokens, the newest, and a random choice of the other tokens. Every layer and step has a
/// choice of its own. Nothing is evicted.
///
/// Both parties know the coins: the policy needs no protocol and reveals nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Random {
    /// Share of all tokens seen that a query attends to.
    pub budget: f64,
    /// The number of attended tokens that stand at the start of the text.
    pub sinks: usize,
    /// The seed of the public coins. No secret depends on it.
    pub seed: u64,
}

impl PolicyFamily for Random {
    const POLICIES: &'static [NamedPolicy<Self>] = &[NamedPolicy {
        name: "random",
        keys: &["budget", "sinks", "seed"],
        about: "sinks, the newest token and a public random choice",
        read: |options| {
            Ok(Random {
                budget: options.fraction("budget", DEFAULT_BUDGET)?,
                sinks: options.number("sinks", 0, DEFAULT_SINKS)?,
                seed: options.read_or("seed", "a number", 0, |text| text.parse().ok())?,
            })
        },
    }];

    fn facts(&self) -> Facts {
        Facts::shows("the whole pattern, by a public seed")
    }

    fn build<E: Select>(&self, _layers: usize, _shape: HeadShape) -> Box<dyn Policy<E>> {
        Box::new(Draws { settings: *self, coins: StdRng::seed_from_u64(self.seed) })
    }
}

/// The policy of one generation.
struct Draws {
    settings: Random,
    coins: StdRng,
}

impl<E: Select> Policy<E> for Draws {
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
        let (tokens, rows) = (store.len(), q.shape()[1]);
        let keep = budget(self.settings.budget, tokens);
        if rows > 1 || store.piece().in_prompt() || keep >= tokens {
            return attention::attend(engine, q, store);
        }
        // The newest token comes first, then the sinks, then the draw.
        let sinks = self.settings.sinks.min(keep - 1);
        let mut index = sample(&mut self.coins, tokens - 1 - sinks, keep - 1 - sinks).into_vec();
        index.iter_mut().for_each(|i| *i += sinks);
        index.extend((0..sinks).chain([tokens - 1]));
        index.sort_unstable();
        store.record_attended(|_| index.clone());
        let pairs = attention::take(&store.pairs_by_head(0..tokens), 1, &index);
        attention::sparse(engine, q, &pairs, store)
    }
}
