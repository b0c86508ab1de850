//! Policies whose pattern is public: `streaming` and `random`. They need no protocol and reveal nothing.

use engine::{Engine, Error, Tensor};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::index::sample;

use crate::positions::Positions;
use crate::{HeadShape, Policy, Store, attention, budget};

/// StreamingLLM (Xiao et al., arXiv 2309.17453): the first `sinks` tokens and the latest ones, all others are evicted.
/// Tokens keep the positions at which they were encoded.
#[derive(Clone, Debug)]
pub struct Streaming {
    share: f64,
    sinks: usize,
    layers: Vec<Positions>,
}

impl Streaming {
    /// Keeps the share `share` of all tokens seen, `sinks` of them at the start.
    pub fn new<E: Engine>(share: f64, sinks: usize, layers: usize, shape: HeadShape) -> Self {
        Streaming { share, sinks, layers: vec![Positions::new(E::CLEAR, shape); layers] }
    }
}

impl<E: Engine> Policy<E> for Streaming {
    fn attend(
        &mut self,
        engine: &mut E,
        layer: usize,
        q: &E::Tensor,
        store: &mut Store<E>,
    ) -> Result<E::Tensor, Error> {
        let positions = &mut self.layers[layer];
        positions.extend(store.seen() - store.fresh(), store.seen());
        // The prompt sees itself whole and is cut afterwards; later tokens see what is kept.
        let prompt = store.seen() == store.fresh();
        let rows = if prompt { 1 } else { q.shape()[1] };
        let keep = budget(self.share, store.seen()).max(rows);
        if !prompt {
            cut(store, positions, keep, self.sinks);
        }
        positions.attend_all(store.heads());
        let (mixed, _) = attention::causal(engine, q, store)?;
        if prompt {
            cut(store, positions, keep, self.sinks);
        }
        Ok(mixed)
    }

    fn attended(&self, layer: usize) -> Option<&[Vec<usize>]> {
        self.layers[layer].attended()
    }
}

/// Keeps the first `sinks` tokens and the latest, `keep` in all.
fn cut<E: Engine>(store: &mut Store<E>, positions: &mut Positions, keep: usize, sinks: usize) {
    let tokens = store.len();
    if keep >= tokens {
        return;
    }
    let sinks = sinks.min(keep - 1);
    let index: Vec<usize> = (0..sinks).chain(tokens - (keep - sinks)..tokens).collect();
    let (keys, values) = (attention::take(store.keys(), 0, &index), attention::take(store.values(), 0, &index));
    store.replace(keys, values);
    positions.keep(|_| index.clone());
}

/// The first `sinks` tokens, the newest, and a random choice of the others, another one on every layer and step, by
/// coins that both parties know. Nothing is evicted.
#[derive(Debug)]
pub struct Random {
    share: f64,
    sinks: usize,
    coins: StdRng,
    layers: Vec<Positions>,
}

impl Random {
    /// Looks at the share `share` of all tokens seen. `seed` makes the public coins; no secret depends on them.
    pub fn new<E: Engine>(share: f64, sinks: usize, seed: u64, layers: usize, shape: HeadShape) -> Self {
        let layers = vec![Positions::new(E::CLEAR, shape); layers];
        Random { share, sinks, coins: StdRng::seed_from_u64(seed), layers }
    }
}

impl<E: Engine> Policy<E> for Random {
    fn attend(
        &mut self,
        engine: &mut E,
        layer: usize,
        q: &E::Tensor,
        store: &mut Store<E>,
    ) -> Result<E::Tensor, Error> {
        let positions = &mut self.layers[layer];
        positions.extend(store.seen() - store.fresh(), store.seen());
        let (tokens, rows) = (store.len(), q.shape()[1]);
        let keep = budget(self.share, tokens);
        if rows > 1 || store.seen() == store.fresh() || keep >= tokens {
            positions.attend_all(store.heads());
            return Ok(attention::causal(engine, q, store)?.0);
        }
        // The newest always, then sinks, then the draw.
        let sinks = self.sinks.min(keep - 1);
        let mut index = sample(&mut self.coins, tokens - 1 - sinks, keep - 1 - sinks).into_vec();
        index.iter_mut().for_each(|i| *i += sinks);
        index.extend((0..sinks).chain([tokens - 1]));
        index.sort_unstable();
        positions.attend(store.heads(), |_| index.clone());
        let pairs = attention::take(&store.pairs_by_head(0..tokens), 1, &index);
        attention::sparse(engine, q, &pairs, store.heads())
    }

    fn attended(&self, layer: usize) -> Option<&[Vec<usize>]> {
        self.layers[layer].attended()
    }
}
