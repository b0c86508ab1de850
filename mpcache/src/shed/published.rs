//! Schedules by the names of the publications that shed rows.
//!
//! The publications choose how many rows stay by the words, which would tell something about the words. Here the
//! numbers are public. They agree with what is published on average, and the division among the layers is ours where
//! none is published.

use super::Step;

/// A schedule named after a publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishedShed {
    /// PyramidInfer (Yang et al., ACL Findings 2024, arXiv 2405.12532) caches 54 % less, and less in every further
    /// layer. The division is ours: three quarters after every eighth of the layers. The publication ranks keys and
    /// values by layer and still computes all rows of the latest words.
    PyramidInfer,
    /// LazyLLM (Fu et al., arXiv 2407.14057) reads prompts 2.34 times faster and keeps what it leaves out for later
    /// tokens to come back to. Nothing comes back here. The division is ours.
    LazyLlm,
    /// SpAtten (Wang et al., HPCA 2021, arXiv 2012.09852) leaves the first 15 % of the layers whole and then sheds
    /// evenly, 1.9 times fewer rows on average. The publication sums attention over all layers so far and prunes
    /// heads as well.
    SpAtten,
    /// The word elimination of BOLT (Pang et al., S&P 2024): half of the words go after the first layer.
    Bolt,
    /// CipherPrune (Zhang et al., ICLR 2025) compares with a learned threshold in every layer, and both parties learn
    /// how many rows are above it. No shares are published. These leave 0.35 of the rows on average.
    CipherPrune,
}

impl PublishedShed {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::PyramidInfer, Self::LazyLlm, Self::SpAtten, Self::Bolt, Self::CipherPrune];

    /// The name, which [`Shed`](super::Shed) reads.
    pub fn name(self) -> &'static str {
        match self {
            Self::PyramidInfer => "pyramidinfer",
            Self::LazyLlm => "lazyllm",
            Self::SpAtten => "spatten",
            Self::Bolt => "bolt",
            Self::CipherPrune => "cipherprune",
        }
    }

    /// Shares of the prompt from a depth on, which is a share of the layers.
    fn shares(self) -> &'static [(f64, f64)] {
        match self {
            Self::PyramidInfer => &[
                (0.125, 0.75),
                (0.25, 0.5625),
                (0.375, 0.42),
                (0.5, 0.316),
                (0.625, 0.237),
                (0.75, 0.178),
                (0.875, 0.1335),
            ],
            Self::LazyLlm => &[(0.25, 0.5), (0.5, 0.15), (0.75, 0.05)],
            Self::SpAtten => &[(0.15, 0.7), (0.32, 0.57), (0.49, 0.44), (0.66, 0.31), (0.83, 0.19)],
            Self::Bolt => &[(0.0, 0.5)],
            Self::CipherPrune => &[(0.0, 0.5), (0.25, 0.35), (0.5, 0.25), (0.75, 0.15)],
        }
    }

    /// The steps in a model of `layers` layers.
    pub(super) fn steps(self, layers: usize) -> Vec<Step> {
        let mut steps: Vec<Step> = Vec::new();
        for &(depth, share) in self.shares() {
            let layer = ((depth * layers as f64).round() as usize).max(1);
            match steps.last_mut().filter(|last| last.layer == layer) {
                // In a shallow model two steps meet.
                Some(last) => last.share = share,
                None => steps.push(Step { layer, share }),
            }
        }
        steps.retain(|step| step.layer < layers);
        steps
    }
}
