//! `mpcache-2pc`, `snapkv`, `pyramid` and `squeeze`: the latest queries vote on the tokens before them.
//!
//! **`mpcache-2pc`** is the policy that pays off between two parties. MPCache (Zeng et al., NeurIPS 2025) begins its
//! algorithm 3 with such a vote, without smoothing. This policy takes only this first step, and keeps fewer tokens by
//! it. The second step, a hidden choice for every query ([`Clusters`](super::Clusters)), sends more between two
//! parties than the full cache does (`bench/results/pruning.md`).
//!
//! **Source of the others.** SnapKV (Li et al., arXiv 2404.14469): the last queries of the prompt vote once.
//! PyramidKV (Cai et al., arXiv 2406.02069): the same votes, with budgets that decrease from layer to layer.
//! SqueezeAttention (Wang et al., arXiv 2404.04793): smaller budgets for the layers whose attention changes the
//! hidden state least. Its authors find these layers for each prompt, which would reveal something about the prompt.
//! Here the layers are a public option. `waggle fit squeeze` finds its value on a text of the server's choice.
//!
//! **Beside the papers.** Query heads that share a key vote together. Votes are rounded before they are compared
//! ([`Received`]), and the earlier of two equal tokens stays. The window takes at most half of a small budget, so
//! that votes count. As in PyramidKV, the layers divide the budget without the window, and no layer gets more tokens
//! than the prompt has: if the budget exceeds the prompt, it is the same for all layers. kvpress divides the window
//! as well, so that its pyramid is steeper at the same `beta` (`bench/peers/README.md`).
//!
//! **Evictions.** With a share the prompt is cut at its end, and generated tokens are kept. With a budget in tokens
//! the store is cut again whenever it is full. The queries since the last eviction vote, at most the latest `window`
//! of them. With `prefill` a prompt is cut after every chunk, and the end of the chunk votes ([`Schedule`]). Tokens
//! stay in the order of the text. A token's neighbours are its neighbours among the kept tokens.
//!
//! **Public.** When a layer evicts, and how many tokens it keeps: the options say so. **Revealed.** Nothing; with
//! [`TopK::ShuffleReveal`] what that method's documentation says. A step without an eviction has no more exchanges
//! than with `full`.

use waggle_engine::{Error, Select, Tensor, TopK};

use crate::Granularity::PerKv;
use crate::attention::{self, Received};
use crate::eviction::{self, Rows};
use crate::layered::{ByLayer, Light};
use crate::schedule::{DEFAULT_BUDGET, Eviction, Later};
use crate::{
    Budget, Facts, HeadShape, NamedPolicy, Piece, Policy, PolicyError, PolicyFamily, PolicyOptions, Schedule, Store,
};

/// The default settings of a policy.
#[derive(Clone, Copy)]
struct Defaults {
    budget: Budget,
    window: usize,
    kernel: usize,
    top_k: TopK,
}

/// SnapKV's defaults: window and kernel are the authors'.
const SNAPKV: Defaults = Defaults { budget: DEFAULT_BUDGET, window: 32, kernel: 5, top_k: TopK::Rank };

/// The window of PyramidKV's authors.
const PYRAMID_WINDOW: usize = 8;

/// With the share 0.15, attention over 1000 tokens is at least 3.4 times cheaper than with the full cache, on fast
/// and on slow links, online and prepared (`bench/results/pruning.md`).
const MPCACHE: Defaults = Defaults { budget: Budget::Share(0.15), kernel: 1, top_k: TopK::ShuffleReveal, ..SNAPKV };

/// The mean budget divided by the budget of the last layer, without the window in both: the authors' number.
const DEFAULT_BETA: usize = 20;

/// The default share of the mean budget that the light layers of `squeeze` get.
const DEFAULT_PART: f64 = 0.35;

/// Keeps the latest tokens, the observation window, and those tokens before it that receive the most attention from
/// its queries. The attention is smoothed over neighbouring tokens first.
///
/// The parties learn how many tokens are kept. With [`TopK::ShuffleReveal`] they also learn what that method's
/// documentation says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Voting {
    /// The budget, out of the prompt or of all tokens, and when the other tokens are evicted.
    pub schedule: Schedule,
    /// The length of the observation window, whose queries vote: at most this many, and at most half of the tokens
    /// kept.
    pub window: usize,
    /// The number of neighbouring entries over which votes are smoothed, an odd number.
    pub kernel: usize,
    /// The method that finds the tokens with the most votes.
    pub top_k: TopK,
    /// The division of the budget among the layers.
    pub layers: ByLayer,
}

const SNAPKV_KEYS: &[&str] = &["budget", "block", "prefill", "guard", "window", "kernel", "topk"];
const PYRAMID_KEYS: &[&str] = &["budget", "block", "prefill", "guard", "window", "kernel", "topk", "beta"];
const SQUEEZE_KEYS: &[&str] = &["budget", "block", "prefill", "guard", "window", "kernel", "topk", "layers", "part"];

impl PolicyFamily for Voting {
    const POLICIES: &'static [NamedPolicy<Self>] = &[
        NamedPolicy {
            name: "snapkv",
            keys: SNAPKV_KEYS,
            about: "SnapKV: the latest queries vote, smoothed",
            read: |options| read(options, SNAPKV, ByLayer::Equal),
        },
        NamedPolicy {
            name: "pyramid",
            keys: PYRAMID_KEYS,
            about: "PyramidKV: as snapkv, with less for every further layer",
            read: |options| {
                let beta = options.number("beta", 1, DEFAULT_BETA)?;
                read(options, Defaults { window: PYRAMID_WINDOW, ..SNAPKV }, ByLayer::Pyramid { beta })
            },
        },
        NamedPolicy {
            name: "squeeze",
            keys: SQUEEZE_KEYS,
            about: "SqueezeAttention: as snapkv, with less for the given layers",
            read: |options| {
                let expected = "layers as in 3-5+7, or half";
                let light = options.read_or("layers", expected, Light::LaterHalf, |text| text.parse().ok())?;
                let share = options.fraction("part", DEFAULT_PART)?;
                read(options, SNAPKV, ByLayer::Squeeze { light, share })
            },
        },
        NamedPolicy {
            name: "mpcache-2pc",
            keys: SNAPKV_KEYS,
            about: "MPCache's look-once eviction alone, which pays between two parties",
            read: |options| read(options, MPCACHE, ByLayer::Equal),
        },
    ];

    fn facts(&self) -> Facts {
        let shows = match self.layers {
            ByLayer::Squeeze { light: Light::Given(_), .. } => {
                "the layers that get less, which follow from a text of the server's"
            }
            _ => "how many tokens are kept",
        };
        // With a share the policy votes and evicts only at the end of the prompt.
        let can_roll_back = self.schedule.budget.tokens().is_none();
        let prefill = self.schedule.prefill;
        Facts { can_roll_back, side_by_side: true, prefill, ..Facts::selecting(shows, self.top_k) }
    }

    fn check(&self, layers: usize, _shape: HeadShape) -> Result<(), PolicyError> {
        let ByLayer::Squeeze { light: Light::Given(light), .. } = self.layers else { return Ok(()) };
        match light.last().filter(|last| *last >= layers) {
            Some(layer) => Err(PolicyError::Layer { policy: "squeeze", key: "layers", layer, layers }),
            None => Ok(()),
        }
    }

    fn build<E: Select>(&self, layers: usize, _shape: HeadShape) -> Box<dyn Policy<E>> {
        Box::new(ByVotes::<E> { settings: *self, votes: (0..layers).map(|_| None).collect() })
    }
}

fn read(options: &mut PolicyOptions, default: Defaults, layers: ByLayer) -> Result<Voting, PolicyError> {
    let odd = |text: &str| text.parse().ok().filter(|n| n % 2 == 1 && *n < 1000);
    Ok(Voting {
        schedule: Schedule::read_or(options, default.budget, Later::Tokens)?,
        window: options.number("window", 1, default.window)?,
        kernel: options.read_or("kernel", "an odd number below 1000", default.kernel, odd)?,
        top_k: options.top_k(default.top_k)?,
        layers,
    })
}

/// The policy of one generation.
struct ByVotes<E: Select> {
    settings: Voting,
    /// By layer, the votes so far in the window of the next eviction.
    votes: Vec<Option<Votes<E::Tensor>>>,
}

/// The attention that tokens received.
#[derive(Clone)]
struct Votes<T> {
    /// The attention that each token received, (kv_heads, tokens).
    received: T,
    /// The number of queries that gave the attention.
    voters: usize,
}

/// The next eviction of a layer, a function of public lengths.
struct Ballot {
    eviction: Eviction,
    /// The number of queries that vote, the last ones before the eviction. Their tokens stay.
    window: usize,
    /// The number of tokens that are spared at each end of the prompt.
    guard: usize,
}

impl Voting {
    fn next(&self, layer: usize, layers: usize, piece: Piece) -> Option<Ballot> {
        let mean = self.schedule.budget_of(piece.prompt);
        let window = self.window.min(mean.div_ceil(2));
        // As in PyramidKV, no layer gets more tokens than the prompt has. The other layers share the excess.
        let budget = self.layers.budget(mean, window, layer, layers, piece.prompt);
        let eviction = self.schedule.next(budget, piece)?;
        let window = self.window.min(eviction.keep.div_ceil(2));
        Some(Ballot { eviction, window, guard: self.schedule.guarded(budget) })
    }

    /// Evicts all but `ballot.eviction.keep` tokens, by `votes`.
    fn evict<E: Select>(
        &self,
        engine: &mut E,
        votes: &Votes<E::Tensor>,
        ballot: &Ballot,
        store: &mut Store<E>,
    ) -> Result<(), Error> {
        let Ballot { eviction: Eviction { keep, .. }, window, guard } = *ballot;
        let rows = Rows::divide(store, guard, keep, window);
        let received = rows.follow(&votes.received, 1).slice(1, rows.candidates.clone());
        let smoothed = smooth(engine, &received, self.kernel)?;
        let size = Received::new(engine, votes.voters * self.kernel, PerKv, store.heads())?;
        if rows.stay == 0 {
            rows.keep_no_candidate(store);
            return Ok(());
        }
        let how = eviction::by_attention(rows.stay, self.top_k, size);
        let chosen = eviction::choose(engine, &smoothed, &how)?;
        eviction::keep(engine, store, &chosen, rows.candidates, PerKv)
    }
}

impl<E: Select> Policy<E> for ByVotes<E> {
    fn fork(&self) -> Option<Box<dyn Policy<E>>> {
        Some(Box::new(ByVotes { votes: self.votes.clone(), ..*self }))
    }

    fn observation_window(&self, layer: usize, piece: Piece) -> usize {
        let ballot = self.settings.next(layer, self.votes.len(), piece);
        ballot.map_or(0, |Ballot { eviction, window, .. }| piece.among_last_before(eviction.at, window))
    }

    fn prefill_chunk(&self) -> Option<usize> {
        self.settings.schedule.prefill
    }

    fn layer_class(&self, layer: usize) -> usize {
        self.settings.layers.class(layer, self.votes.len())
    }

    fn attend(
        &mut self,
        engine: &mut E,
        layer: usize,
        q: &E::Tensor,
        store: &mut Store<E>,
    ) -> Result<E::Tensor, Error> {
        let piece = store.piece();
        let ballot = self.settings.next(layer, self.votes.len(), piece);
        let voters = ballot.as_ref().map_or(0, |ballot| piece.among_last_before(ballot.eviction.at, ballot.window));
        let Some(ballot) = ballot.filter(|_| voters > 0) else { return attention::attend(engine, q, store) };
        let attended = attention::weighted(engine, q, store)?;
        engine.scope("eviction", |engine| {
            let received = attention::received(engine, attended.probabilities(), voters, PerKv, store.heads())?;
            let (before, known) = self.votes[layer].take().map_or((None, 0), |v| (Some(v.received), v.voters));
            let received = attention::accumulate(engine, before, received)?;
            let votes = Votes { received, voters: known + voters };
            if piece.end == ballot.eviction.at {
                return self.settings.evict(engine, &votes, &ballot, store);
            }
            self.votes[layer] = Some(votes);
            Ok(())
        })?;
        Ok(attended.output)
    }
}

/// For each entry the sum of the `kernel` entries around it, or fewer at the ends: (rows, n) -> (rows, n).
fn smooth<E: Select>(engine: &mut E, x: &E::Tensor, kernel: usize) -> Result<E::Tensor, Error> {
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
    use ndarray::ArrayD;
    use waggle_engine::Float;

    use super::smooth;

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
