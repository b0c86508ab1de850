//! The named policies, each of which is a value of [`Clusters`], and how their options are read.

use waggle_engine::TopK;

use super::{Clusters, Gather, Similarity, Sizes};
use crate::policies::{DEFAULT_BUDGET, DEFAULT_SINKS};
use crate::schedule::guard;
use crate::{Granularity, NamedPolicy, PolicyError, PolicyOptions};

/// One entry per policy: name, option keys, help line, settings.
pub(super) const POLICIES: &[NamedPolicy<Clusters>] = &[
    NamedPolicy {
        name: "mpcache",
        keys: KEYS,
        about: "MPCache, algorithm 3 with the paper's parameters and strategies",
        read: |options| read(options, MPCACHE),
    },
    NamedPolicy {
        name: "mpcache-scores",
        keys: KEYS,
        about: "MPCache with the strategies that cost two parties least",
        read: |options| read(options, MPCACHE_SCORES),
    },
    NamedPolicy {
        name: "infllm",
        keys: KEYS,
        about: "InfLLM: blocks by representative tokens",
        read: |options| read(options, Clusters { similarity: Similarity::Representatives { count: 2 }, ..BLOCKS }),
    },
    NamedPolicy {
        name: "longcache",
        keys: KEYS,
        about: "LongCache: single tokens by their scores, one choice per layer",
        read: |options| read(options, Clusters { select: Granularity::PerLayer, ..TOKENS }),
    },
    NamedPolicy {
        name: "quest",
        keys: KEYS,
        about: "Quest: blocks by the bound of their box",
        read: |options| read(options, Clusters { similarity: Similarity::Box, ..BLOCKS }),
    },
    NamedPolicy {
        name: "arkvale",
        keys: KEYS,
        about: "ArkVale: blocks by centre and mean deviation",
        read: |options| read(options, Clusters { similarity: Similarity::CuboidMean, ..BLOCKS }),
    },
    NamedPolicy {
        name: "oracle",
        keys: &["budget", "select"],
        about: "the tokens of the largest scores; only where values are seen",
        read: |options| {
            Ok(Clusters {
                budget: options.fraction("budget", DEFAULT_BUDGET)?,
                select: options.value("select", TOKENS.select)?,
                sinks: 0,
                gather: Gather::Scores,
                clear_only: true,
                ..TOKENS
            })
        },
    },
];

/// The option keys that all policies of this file have, except the oracle.
const KEYS: &[&str] = &[
    "budget",
    "clusters",
    "sinks",
    "similarity",
    "alpha",
    "count",
    "topk",
    "gather",
    "select",
    "static",
    "window",
    "guard",
    "share",
    "dense",
];

/// The paper's settings of algorithm 3 for short texts: coarse clusters of 8 tokens and fine clusters of 4.
const MPCACHE: Clusters = Clusters {
    budget: DEFAULT_BUDGET,
    sizes: Sizes { fine: 4, fan: 2 },
    sinks: 4,
    similarity: Similarity::Linear { alpha: 0.6 },
    top_k: TopK::Rank,
    gather: Gather::OneHot,
    select: Granularity::PerHead,
    static_share: 0.5,
    window: None,
    guard: 0.0,
    sharing: true,
    dense: 0,
    clear_only: false,
};

/// The settings that cost two parties least without a loss of accuracy (`bench/results`).
///
/// Gathering scores needs the scores of all tokens anyway, so single tokens are chosen by their own scores, without
/// summaries. One choice per layer takes one shuffle and one quickselect for all heads. That is so cheap that no
/// layer needs to take over another layer's choice. Nothing is evicted, because a later query may ask for a token
/// that no query of the prompt attended to. Where that is no concern, the option `static` makes the policy cheaper.
const MPCACHE_SCORES: Clusters = Clusters {
    sizes: Sizes::TOKENS,
    sinks: DEFAULT_SINKS,
    similarity: Similarity::Token,
    top_k: TopK::ShuffleReveal,
    gather: Gather::Scores,
    select: Granularity::PerLayer,
    static_share: 1.0,
    sharing: false,
    ..MPCACHE
};

/// The settings that the baselines have in common: one level of clusters over the whole cache, nothing evicted, and
/// every layer chooses for itself.
const BLOCKS: Clusters =
    Clusters { sizes: Sizes { fine: 16, fan: 1 }, sinks: 16, static_share: 1.0, sharing: false, ..MPCACHE };

/// A baseline that chooses single tokens by their scores.
const TOKENS: Clusters =
    Clusters { sizes: Sizes::TOKENS, sinks: DEFAULT_SINKS, similarity: Similarity::Token, ..BLOCKS };

/// The settings `default`, changed by the given options.
fn read(options: &mut PolicyOptions, default: Clusters) -> Result<Clusters, PolicyError> {
    let mut c = default;
    c.budget = options.fraction("budget", c.budget)?;
    let sizes = options.value("clusters", c.sizes)?;
    if options.given("clusters") {
        c = resized(c, sizes);
    }
    c.sinks = options.number("sinks", 0, c.sinks)?;
    c.similarity = similarity(options, &c)?;
    c.top_k = options.top_k(c.top_k)?;
    c.gather = options.value("gather", c.gather)?;
    c.select = options.value("select", c.select)?;
    c.static_share = options.fraction("static", c.static_share)?;
    options.state("static", &c.kept_share());
    if options.given("window") {
        if c.kept_share() == 1.0 {
            return Err(options.no_effect("window", "static=1: nothing is evicted"));
        }
        c.window = Some(options.fraction("window", 0.2)?);
    } else if c.kept_share() < 1.0 {
        options.state("window", &"0.2, or 0.1 of long prompts");
    }
    if c.kept_share() < 1.0 {
        c.guard = guard(options)?;
    } else if options.given("guard") {
        return Err(options.no_effect("guard", "static=1: nothing is evicted"));
    }
    c.sharing = options.switch("share", c.sharing)?;
    c.dense = options.number("dense", 0, c.dense)?;
    Ok(c)
}

/// `c` with clusters of another size. Settings that depend on the size follow it, unless options set them.
fn resized(c: Clusters, sizes: Sizes) -> Clusters {
    // As in the paper, the first cluster is the sink.
    let sinks = sizes.fine.max(if sizes.fine == 1 { DEFAULT_SINKS } else { 1 });
    // Single tokens have scores of their own; larger clusters need a summary.
    let similarity = match c.similarity {
        _ if sizes == Sizes::TOKENS => Similarity::Token,
        Similarity::Token => MPCACHE.similarity,
        other => other,
    };
    Clusters { sizes, sinks, similarity, ..c }
}

/// The similarity that the options state, or else that of `c`. Its parameter, if it has one, is an option as well.
/// Refuses a parameter of another similarity.
fn similarity(options: &mut PolicyOptions, c: &Clusters) -> Result<Similarity, PolicyError> {
    let mut similarity = options.value("similarity", c.similarity)?;
    let name = similarity.to_string();
    let idle = |key| options.no_effect(key, format!("similarity={name}"));
    if options.given("alpha") && !matches!(similarity, Similarity::Linear { .. }) {
        return Err(idle("alpha"));
    }
    if options.given("count") && !matches!(similarity, Similarity::Representatives { .. }) {
        return Err(idle("count"));
    }
    match &mut similarity {
        Similarity::Linear { alpha } => {
            let parse = |text: &str| text.parse().ok().filter(|a| (0.0..=1.0).contains(a));
            *alpha = options.read_or("alpha", "a number from 0 to 1", *alpha, parse)?;
        }
        Similarity::Representatives { count } => *count = options.number("count", 1, *count)?,
        Similarity::Token if c.sizes != Sizes::TOKENS => {
            return Err(options.refused("similarity", &name, "another similarity: this one is for clusters=1"));
        }
        Similarity::Token | Similarity::Box | Similarity::CuboidMean | Similarity::Centroid => {}
    }
    Ok(similarity)
}
