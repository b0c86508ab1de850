//! The policy `snapkv` (Li et al., arXiv 2404.14469): the end of the prompt votes once on the rest of it.

use engine::{Engine, Error, Tensor, TopK};

use crate::attention::Received;
use crate::positions::Positions;
use crate::{HeadShape, Policy, Store, attention, budget, eviction};

/// What the last `window` queries of a prompt attend to, smoothed over `kernel` neighbours, is kept beside that window;
/// generated tokens are kept too. Nothing is revealed but how many tokens are kept, with any top-k method but
/// [`TopK::ShuffleReveal`], whose documentation says what that shows.
#[derive(Clone, Debug)]
pub struct SnapKv {
    share: f64,
    window: usize,
    kernel: usize,
    method: TopK,
    layers: Vec<Positions>,
}

impl SnapKv {
    /// Keeps the share `share` of the prompt; `kernel` is odd.
    pub fn new<E: Engine>(
        share: f64,
        window: usize,
        kernel: usize,
        method: TopK,
        layers: usize,
        shape: HeadShape,
    ) -> Self {
        SnapKv { share, window, kernel, method, layers: vec![Positions::new(E::CLEAR, shape); layers] }
    }

    /// Tokens of a prompt of `tokens` that are kept, and those of them that vote: at most half.
    fn plan(&self, tokens: usize) -> (usize, usize) {
        let keep = budget(self.share, tokens);
        (keep, self.window.min(keep.div_ceil(2)))
    }
}

impl<E: Engine> Policy<E> for SnapKv {
    fn query_window(&self, _layer: usize, new: usize) -> usize {
        if new > 1 { self.plan(new).1 } else { 1 }
    }

    fn attend(
        &mut self,
        engine: &mut E,
        layer: usize,
        q: &E::Tensor,
        store: &mut Store<E>,
    ) -> Result<E::Tensor, Error> {
        let (tokens, shape) = (store.len(), store.heads());
        let (keep, window) = self.plan(tokens);
        let positions = &mut self.layers[layer];
        positions.extend(store.seen() - store.fresh(), store.seen());
        positions.attend_all(shape);
        let (mixed, p) = attention::causal(engine, q, store)?;
        if store.seen() == store.fresh() && keep < tokens {
            let old = tokens - window;
            engine.scope("eviction", |engine| {
                let received = attention::received(engine, &p, window, false, shape)?.slice(1, 0..old);
                let votes = smooth(engine, &received, self.kernel)?;
                let extra = usize::BITS - self.kernel.leading_zeros();
                let Received { magnitude, ceiling } = Received::new(engine, window, false, shape)?;
                let size = Received { magnitude: magnitude + extra, ceiling: ceiling.times(self.kernel) };
                if keep > window {
                    let chosen = eviction::choose(engine, &votes, keep - window, self.method, size)?;
                    return eviction::keep(engine, store, &chosen, old, false, positions);
                }
                let pairs = store.pairs_by_head(old..tokens);
                store.replace_by_head(&pairs);
                positions.keep(|_| (old..tokens).collect());
                Ok(())
            })?;
        }
        Ok(mixed)
    }

    fn attended(&self, layer: usize) -> Option<&[Vec<usize>]> {
        self.layers[layer].attended()
    }
}

/// Sums over the `kernel` entries around each one, (rows, n) -> (rows, n); fewer at the ends.
fn smooth<E: Engine>(engine: &mut E, x: &E::Tensor, kernel: usize) -> Result<E::Tensor, Error> {
    let n = x.shape()[1];
    let mut sum = x.clone();
    for by in (1..=kernel / 2).filter(|&by| by < n) {
        // Entry i of `sum` gets entry i + by and entry i - by of x.
        let (low, high) = (sum.slice(1, 0..n - by), sum.slice(1, n - by..n));
        sum = E::Tensor::concat(1, &[&engine.add(&low, &x.slice(1, by..n))?, &high]);
        let (low, high) = (sum.slice(1, 0..by), sum.slice(1, by..n));
        sum = E::Tensor::concat(1, &[&low, &engine.add(&high, &x.slice(1, 0..n - by))?]);
    }
    Ok(sum)
}
