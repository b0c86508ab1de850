//! `mpcache` and its relatives: for every query they choose clusters of tokens by a summary of their keys.
//!
//! They run algorithm 3 of MPCache (NeurIPS 2025). At the end of the prompt its last queries vote once on which
//! tokens stay: the *static* eviction ([`eviction`](crate::eviction)). Every decoding step then scores the clusters
//! of what is left ([`Similarity`]), on two levels ([`Sizes`]), and attends to the best ones only. Every other layer
//! takes over what the layer below it chose. The first step alone, which pays between two parties, is `mpcache-2pc`
//! ([`Voting`](super::Voting)). The policies here are settings of this one algorithm ([`presets`]).
//!
//! **Clusters** are formed by position over what the store keeps ([`Layout`](layout::Layout)): the sinks, which are
//! the first tokens, then coarse clusters, then the tail, which is 1 to a whole coarse cluster of the latest tokens.
//! Sinks and tail are always attended to and are no candidates. A cluster closes when a token comes in after it, and
//! is summarised then. Clusters and summaries never change afterwards. A session in two phases therefore opens each
//! under its mask once; a step opens the query and the one-hot rows that it gathers by.
//!
//! **Budget.** A step looks at about the share `budget` of all tokens seen: sinks, tail and as many fine clusters as
//! fit, at least one. Where fewer than half of the fine clusters are wanted, half of the coarse ones are dropped
//! first.
//!
//! **What each party sees.** The numbers of tokens kept and of clusters chosen are functions of public lengths. With
//! [`TopK::ShuffleReveal`] the parties also see how the candidates' scores compare after a fresh permutation that
//! neither knows, on each level, layer and step. They see nothing else: which tokens are kept, chosen or attended to
//! stays hidden.

mod attend;
mod choice;
mod layout;
mod presets;
mod summary;

use std::fmt;
use std::str::FromStr;

use waggle_engine::{Select, TopK};

pub use layout::Sizes;
pub use summary::Similarity;

use crate::{Facts, Granularity, HeadShape, NamedPolicy, Policy, PolicyFamily, UnknownValue, budget};

/// Longer prompts vote with a smaller window.
const LONG_PROMPT: usize = 24_000;

/// The method that brings the chosen tokens together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gather {
    /// Keys and values of the chosen clusters, by one-hot rows times the cache: the paper's, algorithm 2.
    #[default]
    OneHot,
    /// Only the attention scores of the chosen clusters. All scores are computed, the chosen ones go through the
    /// softmax, and the probabilities are scattered back before they meet the values. A cluster moves as many words
    /// as it has tokens, instead of 2 head_dim times that.
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

/// Settings of the policies that choose, for every query, clusters of tokens by a summary of their keys.
///
/// The parties learn how many tokens are kept and how many clusters are chosen, which follows from public lengths.
/// With [`TopK::ShuffleReveal`] they also learn what that method's documentation says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clusters {
    /// Share of all tokens seen that a query looks at.
    pub budget: f64,
    /// Tokens per cluster.
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
    /// Share of the prompt that the static eviction keeps; at least the budget is kept, and 1 evicts nothing.
    pub static_share: f64,
    /// Share of the prompt whose queries vote on that; `None` stands for the paper's 20 %, or 10 % of long prompts.
    pub window: Option<f64>,
    /// Whether odd layers take over what the even layer below chose.
    pub sharing: bool,
    /// The number of first layers, which attend to everything.
    pub dense: usize,
    /// Whether engines that do not see their values are refused: the `oracle`.
    pub clear_only: bool,
}

impl Clusters {
    /// Queries of a prompt of `prompt` tokens that vote.
    fn window(&self, prompt: usize) -> usize {
        let share = self.window.unwrap_or(if prompt > LONG_PROMPT { 0.1 } else { 0.2 });
        budget(share, prompt)
    }

    /// Share of the prompt that stays.
    fn kept_share(&self) -> f64 {
        self.static_share.max(self.budget)
    }

    /// Tokens of a prompt of `prompt` tokens that stay.
    fn kept(&self, prompt: usize) -> usize {
        budget(self.kept_share(), prompt)
    }

    /// Whether `layer` evicts a part of a prompt of `prompt` tokens.
    fn evicts(&self, layer: usize, prompt: usize) -> bool {
        layer >= self.dense && self.kept(prompt) < prompt
    }

    /// Whether `layer` takes over what the one below chose.
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
        Facts { side_by_side, ..Facts::selecting(shows, self.top_k) }
    }

    fn build<E: Select>(&self, layers: usize, _shape: HeadShape) -> Box<dyn Policy<E>> {
        Box::new(attend::Clustered::<E>::new(*self, layers))
    }
}
