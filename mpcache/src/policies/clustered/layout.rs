//! Which tokens of a store belong to which cluster.

use std::fmt;
use std::str::FromStr;

use super::Clusters;
use crate::{UnknownValue, budget};

/// Sizes of the clusters. A fine cluster has `fine` tokens, and a coarse cluster has `fan` fine clusters. There is
/// only one level if `fan` is 1.
///
/// As a text the sizes are `FINE`, or `COARSE/FINE`, each a number of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Tokens of a fine cluster, which is attended to as a whole or not at all.
    pub fine: usize,
    /// The number of fine clusters in a coarse one.
    pub fan: usize,
}

impl Sizes {
    /// Every token is a cluster.
    pub(crate) const TOKENS: Sizes = Sizes { fine: 1, fan: 1 };

    /// Tokens of a coarse cluster.
    pub fn coarse(self) -> usize {
        self.fine * self.fan
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Sizes { fine, fan: 1 } => write!(f, "{fine}"),
            sizes => write!(f, "{}/{}", sizes.coarse(), sizes.fine),
        }
    }
}

impl FromStr for Sizes {
    type Err = UnknownValue;

    fn from_str(text: &str) -> Result<Self, UnknownValue> {
        let size = |text: &str| text.parse::<usize>().ok().filter(|n| (1..1 << 16).contains(n));
        let sizes = match text.split_once('/') {
            None => size(text).map(|fine| Sizes { fine, fan: 1 }),
            Some((coarse, fine)) => size(coarse).zip(size(fine)).and_then(|(coarse, fine)| {
                (coarse % fine == 0 && coarse > fine).then(|| Sizes { fine, fan: coarse / fine })
            }),
        };
        sizes.ok_or_else(|| UnknownValue::new("TOKENS or COARSE/FINE with COARSE a multiple of FINE"))
    }
}

/// The division of a store's tokens into sinks, closed clusters and tail. Public.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) tokens: usize,
    pub(super) sinks: usize,
    /// The number of coarse clusters, all of them closed.
    pub(super) clusters: usize,
    pub(super) sizes: Sizes,
    /// The number of fine clusters to attend to.
    pub(super) wanted: usize,
}

impl Layout {
    /// The layout of a store that keeps `tokens` of `seen` tokens.
    pub(super) fn new(c: &Clusters, tokens: usize, seen: usize) -> Self {
        let sinks = c.sinks.min(tokens - 1);
        let clusters = (tokens - sinks - 1) / c.sizes.coarse();
        let tail = tokens - sinks - clusters * c.sizes.coarse();
        let fine = clusters * c.sizes.fan;
        let rest = budget(c.budget, seen).saturating_sub(sinks + tail);
        let wanted = (rest / c.sizes.fine).clamp(1.min(fine), fine);
        Layout { tokens, sinks, clusters, sizes: c.sizes, wanted }
    }

    /// The number of fine clusters.
    pub(super) fn fine(&self) -> usize {
        self.clusters * self.sizes.fan
    }

    /// The token at which the tail begins.
    pub(super) fn tail(&self) -> usize {
        self.sinks + self.clusters * self.sizes.coarse()
    }

    /// The number of coarse clusters that survive the first level, if there are two levels.
    pub(super) fn survivors(&self) -> Option<usize> {
        let half = self.clusters.div_ceil(2);
        (self.sizes.fan > 1 && 2 * self.wanted < self.fine() && half < self.clusters).then_some(half)
    }

    /// Whether every fine cluster is wanted, so that there is nothing to choose.
    pub(super) fn is_dense(&self) -> bool {
        self.wanted == self.fine()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_one_number_or_a_coarse_one_and_a_divisor() {
        for text in ["1", "16", "8/4", "32/16", "65535"] {
            assert_eq!(text.parse::<Sizes>().map(|sizes| sizes.to_string()), Ok(text.to_owned()));
        }
        assert_eq!("8/4".parse(), Ok(Sizes { fine: 4, fan: 2 }));
        for text in ["0", "8/3", "4/4", "4/8", "8/0", "/4", "65536", "-1", "a"] {
            assert!(text.parse::<Sizes>().is_err(), "{text}");
        }
    }

    #[test]
    fn every_token_is_a_sink_or_in_one_cluster_or_in_the_tail() {
        let clusters: Clusters = crate::PolicyFamily::parse("mpcache:clusters=8/4,sinks=3,budget=0.3").unwrap();
        for tokens in 1..100 {
            let layout = Layout::new(&clusters, tokens, tokens);
            let tail = tokens - layout.tail();
            assert_eq!(layout.sinks + layout.clusters * 8 + tail, tokens);
            assert!((1..=8).contains(&tail), "{layout:?}");
            assert!(layout.wanted <= layout.fine() && (layout.wanted > 0 || layout.clusters == 0), "{layout:?}");
        }
    }
}
