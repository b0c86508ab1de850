//! `mpcache` and its relatives: for every query they choose clusters of tokens by summaries of the clusters' keys.
//!
//! These policies run algorithm 3 of MPCache (NeurIPS 2025). At the end of the prompt, the prompt's last queries vote
//! once on which tokens stay: the *static* eviction ([`eviction`](crate::eviction)). Every decoding step then scores
//! the clusters of the remaining tokens ([`Similarity`]), on two levels ([`Sizes`]), and attends to the best ones
//! only. Odd layers may take over what the layer below them chose. The static eviction alone, which pays off between
//! two parties, is `mpcache-2pc` ([`Voting`](super::Voting)). The policies here are settings of this one algorithm
//! ([`presets`]).
//!
//! **Clusters** are formed by position over the tokens that the store keeps ([`Layout`](layout::Layout)): the sinks,
//! which are the first tokens, then coarse clusters, then the tail, which is 1 to a whole coarse cluster of the
//! latest tokens. Sinks and tail are always attended to and are no candidates. A cluster closes when a token comes in
//! after it, and is summarised then. Clusters and summaries never change afterwards. A session in two phases
//! therefore opens each of them under its mask only once. A step opens the query, and the one-hot rows by which it
//! gathers.
//!
//! **Budget.** A step attends to about the share `budget` of all tokens seen: the sinks, the tail and as many fine
//! clusters as fit, at least one. Where fewer than half of the fine clusters are wanted, half of the coarse ones are
//! dropped first.
//!
//! **What each party sees.** The numbers of tokens kept and of clusters chosen are functions of public lengths. With
//! [`TopK::ShuffleReveal`] the parties also see how the candidates' scores compare after a fresh permutation that
//! neither knows, on each level, layer and step. The parties see nothing else: which tokens are kept, chosen or
//! attended to stays hidden.

mod attend;
mod choice;
mod layout;
mod presets;
mod summary;

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use waggle_engine::{Select, TopK};

pub use layout::Sizes;
pub use summary::Similarity;

use crate::schedule::guarded;
use crate::{Facts, Granularity, HeadShape, NamedPolicy, Policy, PolicyFamily, UnknownValue, budget};

/// Prompts longer than this vote with a smaller window.
const LONG_PROMPT: usize = 24_000;

/// The method that brings the chosen tokens together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gather {
    /// Gathers keys and values of the chosen clusters: one-hot rows times the cache, as in algorithm 2 of the paper.
    #[default]
    OneHot,
    /// Gathers only the attention scores of the chosen clusters. All scores are computed, and the chosen ones go
    /// through the softmax. The probabilities are then scattered back and multiply the values. A cluster moves one
    /// word for each of its tokens, instead of 2 head_dim words.
    Scores,
}

impl fmt::Display for Gather {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Gather::OneHot => "one-hot",
            Gather::Scores => "scores",
        })
    }
}

impl FromStr for Gather {
    type Err = UnknownValue;

    fn from_str(name: &str) -> Result<Self, UnknownValue> {
        match name {
            "one-hot" => Ok(Gather::OneHot),
            "scores" => Ok(Gather::Scores),
            _ => Err(UnknownValue::new("one-hot or scores")),
        }
    }
}

/// Settings of the policies that choose, for every query, clusters of tokens by summaries of the clusters' keys.
///
/// The parties learn how many tokens are kept and how many clusters are chosen; both numbers follow from public
/// lengths. With [`TopK::ShuffleReveal`] they also learn what that method's documentation says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clusters {
    /// Share of all tokens seen that a query looks at.
    pub budget: f64,
    /// Sizes of the clusters, in tokens.
    pub sizes: Sizes,
    /// Tokens at the start that are always attended to.
    pub sinks: usize,
    /// The summary of a cluster that a query is compared with.
    pub similarity: Similarity,
    /// The method that finds the best clusters.
    pub top_k: TopK,
    /// The method that brings the chosen tokens together.
    pub gather: Gather,
    /// Who shares a selection.
    pub select: Granularity,
    /// Share of the prompt that the static eviction keeps, and never less than the budget. 1 evicts nothing.
    pub static_share: f64,
    /// Share of the prompt whose queries vote on the static eviction. `None` stands for the paper's 20 %, or 10 % of
    /// long prompts.
    pub window: Option<f64>,
    /// Share of what the static eviction keeps that is spared at each end of the prompt, below 1/2.
    pub guard: f64,
    /// Whether each odd layer takes over the choice of the even layer below it.
    pub sharing: bool,
    /// The number of first layers, which attend to everything.
    pub dense: usize,
    /// Whether engines that do not see their values are refused, as for the `oracle`.
    pub clear_only: bool,
}

impl Clusters {
    /// The number of queries that vote, of a prompt of `prompt` tokens.
    fn window(&self, prompt: usize) -> usize {
        let share = self.window.unwrap_or(if prompt > LONG_PROMPT { 0.1 } else { 0.2 });
        budget(share, prompt)
    }

    /// Share of the prompt that the static eviction keeps.
    fn kept_share(&self) -> f64 {
        self.static_share.max(self.budget)
    }

    /// The number of tokens that the static eviction keeps of a prompt of `prompt` tokens.
    fn kept(&self, prompt: usize) -> usize {
        budget(self.kept_share(), prompt)
    }

    /// The tokens among which the static eviction of a prompt of `prompt` tokens chooses, and how many of them stay.
    fn candidates(&self, prompt: usize) -> (Range<usize>, usize) {
        let guarded = guarded(self.guard, self.kept(prompt));
        (guarded..prompt - guarded, self.kept(prompt) - 2 * guarded)
    }

    /// Whether `layer` evicts a part of a prompt of `prompt` tokens.
    fn evicts(&self, layer: usize, prompt: usize) -> bool {
        layer >= self.dense && self.kept(prompt) < prompt
    }

    /// Whether `layer` takes over the choice of the layer below it.
    fn follows(&self, layer: usize) -> bool {
        self.sharing && layer % 2 == 1 && layer > self.dense
    }
}

impl PolicyFamily for Clusters {
    const POLICIES: &'static [NamedPolicy<Self>] = presets::POLICIES;

    fn facts(&self) -> Facts {
        if self.clear_only {
            return Facts::in_the_clear();
        }
        let shows = "how many tokens are kept, and how many clusters are chosen";
        let side_by_side = self.select != Granularity::PerLayer;
        Facts { side_by_side, joins_layers: self.sharing, ..Facts::selecting(shows, self.top_k) }
    }

    fn build<E: Select>(&self, layers: usize, _shape: HeadShape) -> Box<dyn Policy<E>> {
        Box::new(attend::Clustered::<E>::new(*self, layers))
    }
}
