//! `snapkv`: the end of the prompt votes once on the rest of it (Li et al., arXiv 2404.14469).

use engine::{Engine, Error, Tensor, TopK};

use super::DEFAULT_BUDGET;
use crate::attention::{self, Attended, Received};
use crate::{HeadShape, NamedPolicy, Piece, Policy, PolicyFamily, Setting, Store, budget, eviction};

/// Window and kernel of SnapKV's authors.
const DEFAULT_WINDOW: usize = 32;
const DEFAULT_KERNEL: usize = 5;

/// Keeps the last queries of the prompt, the window, and those tokens before it that receive the most attention from
/// the window. What a token receives is smoothed over its neighbours first. Generated tokens are kept too.
///
/// The parties learn how many tokens are kept. With [`TopK::ShuffleReveal`] they also learn what that method's
/// documentation says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SnapKv {
    /// Share of the prompt that is kept.
    pub budget: f64,
    /// Queries that vote: at most this many, and at most half of what is kept.
    pub window: usize,
    /// Tokens that are smoothed over, an odd number.
    pub kernel: usize,
    /// How the tokens with the most votes are found.
    pub top_k: TopK,
}

impl PolicyFamily for SnapKv {
    const POLICIES: &'static [NamedPolicy<Self>] = &[NamedPolicy {
        name: "snapkv",
        keys: &["budget", "window", "kernel", "topk"],
        about: "SnapKV: the end of the prompt votes once, smoothed",
        read: |options| {
            let odd = |text: &str| text.parse().ok().filter(|n| n % 2 == 1 && *n < 1000);
            Ok(SnapKv {
                budget: options.fraction("budget", DEFAULT_BUDGET)?,
                window: options.number("window", 1, DEFAULT_WINDOW)?,
                kernel: options.read("kernel", "an odd number below 1000", odd)?.unwrap_or(DEFAULT_KERNEL),
                top_k: options.top_k(TopK::Rank)?,
            })
        },
    }];

    fn settings(&self) -> Vec<Setting> {
        vec![
            Setting::new("budget", self.budget),
            Setting::new("window", self.window),
            Setting::new("kernel", self.kernel),
            Setting::new("topk", self.top_k),
        ]
    }

    fn random_traffic(&self) -> bool {
        self.top_k == TopK::ShuffleReveal
    }

    fn can_cut(&self) -> bool {
        // It votes and evicts at the end of the prompt alone.
        true
    }

    fn build<E: Engine>(&self, layers: usize, _shape: HeadShape) -> Box<dyn Policy<E>> {
        Box::new(Voting::<E> { settings: *self, votes: (0..layers).map(|_| None).collect() })
    }
}

/// The policy of one generation.
struct Voting<E: Engine> {
    settings: SnapKv,
    /// By layer what the window gave so far, (kv_heads, tokens).
    votes: Vec<Option<E::Tensor>>,
}

/// What becomes of a prompt, a function of its public length.
struct Plan {
    /// Tokens kept.
    keep: usize,
    /// Those of them that vote, the last ones.
    window: usize,
}

impl SnapKv {
    fn plan(&self, tokens: usize) -> Plan {
        let keep = budget(self.budget, tokens);
        Plan { keep, window: self.window.min(keep.div_ceil(2)) }
    }

    /// Evicts all but `plan.keep` tokens of a prompt, of which each `received` as much from the window.
    fn evict<E: Engine>(
        &self,
        engine: &mut E,
        received: &E::Tensor,
        plan: &Plan,
        store: &mut Store<E>,
    ) -> Result<(), Error> {
        let (tokens, shape) = (store.len(), store.heads());
        let Plan { keep, window } = *plan;
        let old = tokens - window;
        let votes = smooth(engine, &received.slice(1, 0..old), self.kernel)?;
        let extra = usize::BITS - self.kernel.leading_zeros();
        let Received { magnitude, ceiling } = Received::new(engine, window, false, shape)?;
        let size = Received { magnitude: magnitude + extra, ceiling: ceiling.times(self.kernel) };
        if keep > window {
            let chosen = eviction::choose(engine, &votes, keep - window, self.top_k, size)?;
            return eviction::keep(engine, store, &chosen, old, false);
        }
        let pairs = store.pairs_by_head(old..tokens);
        store.replace_by_head(&pairs);
        store.record_kept(|_| (old..tokens).collect());
        Ok(())
    }
}

impl<E: Engine> Policy<E> for Voting<E> {
    fn query_window(&self, _layer: usize, piece: Piece) -> usize {
        let Plan { keep, window } = self.settings.plan(piece.prompt);
        if keep < piece.prompt { piece.among_last(window) } else { 0 }
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
        let plan = self.settings.plan(piece.prompt);
        let Attended { output, probabilities } = attention::causal(engine, q, store)?;
        let voters = piece.among_last(plan.window);
        if voters == 0 || plan.keep == piece.prompt {
            return Ok(output);
        }
        engine.scope("eviction", |engine| {
            let received = attention::received(engine, &probabilities, voters, false, store.heads())?;
            let received = attention::accumulate(engine, self.votes[layer].take(), received)?;
            if piece.ends_prompt() {
                return self.settings.evict(engine, &received, &plan, store);
            }
            self.votes[layer] = Some(received);
            Ok(())
        })?;
        Ok(output)
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

#[cfg(test)]
mod tests {
    use engine::Float;
    use ndarray::ArrayD;

    use super::smooth;
    use crate::policies::shown;

    #[test]
    fn options_and_settings() {
        assert_eq!(shown("snapkv"), "budget=0.25 window=32 kernel=5 topk=rank");
        let text = "snapkv:budget=0.5,kernel=7,topk=shuffle-reveal,window=8";
        assert_eq!(shown(text), "budget=0.5 window=8 kernel=7 topk=shuffle-reveal");
        assert_eq!(shown("snapkv:kernel=4"), "cache policy `snapkv`: kernel=4: expected an odd number below 1000");
        assert_eq!(shown("snapkv:window=0"), "cache policy `snapkv`: window=0: expected a number from 1");
    }

    #[test]
    fn smoothing_equals_a_sum_over_the_neighbours() {
        for (n, kernel) in [(1, 5), (2, 5), (3, 3), (9, 1), (9, 5), (9, 7)] {
            let x: Vec<f32> = (0..n).map(|i| ((i * i) % 7) as f32).collect();
            let tensor = ArrayD::from_shape_vec(vec![1, n], x.clone()).unwrap();
            let smoothed = smooth(&mut Float::default(), &tensor, kernel).unwrap();
            let around = |i: usize| i.saturating_sub(kernel / 2)..(i + kernel / 2 + 1).min(n);
            let naive: Vec<f32> = (0..n).map(|i| x[around(i)].iter().sum()).collect();
            assert_eq!(smoothed.into_raw_vec_and_offset().0, naive, "{n} entries, kernel {kernel}");
        }
    }
}
