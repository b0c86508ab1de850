//! Policies by name: `NAME` or `NAME:key=value,key=value`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use engine::{Engine, TopK};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use thiserror::Error;

use crate::{
    Clustered, Clusters, Full, Gather, HeadShape, Judge, Policy, Random, Rolling, Select, Similarity, Sizes, SnapKv,
    Streaming,
};

/// A text that names no policy.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PolicyError {
    /// No policy has this name.
    #[error("unknown cache policy `{name}`; known are: {}", .known.join(", "))]
    Name {
        /// The name given.
        name: String,
        /// The names that exist.
        known: Vec<&'static str>,
    },
    /// The policy has no such option.
    #[error("cache policy `{policy}` has no option `{key}`; {}", list(.known))]
    Key {
        /// The policy.
        policy: &'static str,
        /// The key given.
        key: String,
        /// The keys that exist.
        known: &'static [&'static str],
    },
    /// An option that is not `key=value`, or given twice.
    #[error("cache policy option `{option}` is not one `key=value`")]
    Option {
        /// The text.
        option: String,
    },
    /// An option with a value that it does not take.
    #[error("cache policy `{policy}`: {key}={value}: expected {expected}")]
    Value {
        /// The policy.
        policy: &'static str,
        /// The option.
        key: &'static str,
        /// The value given.
        value: String,
        /// What it takes.
        expected: String,
    },
    /// An option that has no effect beside the others.
    #[error("cache policy `{policy}`: {key} has no effect with {with}")]
    NoEffect {
        /// The policy.
        policy: &'static str,
        /// The option.
        key: &'static str,
        /// What makes it idle.
        with: String,
    },
}

fn list(keys: &[&str]) -> String {
    if keys.is_empty() { "it takes none".into() } else { format!("it takes: {}", keys.join(", ")) }
}

/// Option keys of the policies that choose clusters.
const CLUSTERED: &[&str] = &[
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
    "share",
    "dense",
];

/// One line per policy: name, option keys and what it is. Parsing, errors and help are made from this table.
const KNOWN: &[(&str, &[&str], &str)] = &[
    ("full", &[], "every token looks at every token before it"),
    ("mpcache", CLUSTERED, "MPCache, algorithm 3 with the paper's parameters and strategies"),
    ("mpcache-2pc", CLUSTERED, "MPCache with the strategies that cost two parties least"),
    ("streaming", &["budget", "sinks"], "StreamingLLM: the first tokens and the latest"),
    ("h2o", &["budget", "topk"], "H2O: evicts what received the least attention so far"),
    ("tova", &["budget", "topk"], "TOVA: evicts what the latest query attends to least"),
    ("snapkv", &["budget", "window", "kernel", "topk"], "SnapKV: the end of the prompt votes once, smoothed"),
    ("infllm", CLUSTERED, "InfLLM: blocks by representative tokens"),
    ("longcache", CLUSTERED, "LongCache: single tokens by their scores, one choice per layer"),
    ("quest", CLUSTERED, "Quest: blocks by the bound of their box"),
    ("arkvale", CLUSTERED, "ArkVale: blocks by centre and mean deviation"),
    ("random", &["budget", "sinks", "seed"], "sinks, the newest token and a public random choice"),
    ("oracle", &["budget", "select"], "the tokens of the largest scores; only where values are seen"),
];

/// A cache policy and its options, by name: public, part of what two parties agree on. Only valid ones exist.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicySpec {
    name: &'static str,
    options: BTreeMap<&'static str, String>,
    kind: Kind,
}

/// A policy with its settings.
#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Full,
    Clustered(Clusters),
    Rolling { budget: f64, judge: Judge, top_k: TopK },
    SnapKv { budget: f64, window: usize, kernel: usize, top_k: TopK },
    Streaming { budget: f64, sinks: usize },
    Random { budget: f64, sinks: usize, seed: u64 },
}

impl Eq for PolicySpec {}

impl Default for PolicySpec {
    fn default() -> Self {
        PolicySpec { name: "full", options: BTreeMap::new(), kind: Kind::Full }
    }
}

/// The share of tokens that a policy looks at unless told otherwise.
const DEFAULT_BUDGET: f64 = 0.25;

/// Tokens at the start that policies without clusters protect: StreamingLLM's number.
const SINKS: usize = 4;

/// Window and kernel of SnapKV's authors.
const SNAP: (usize, usize) = (32, 5);

/// The paper's settings of algorithm 3, for short texts (8/4).
const MPCACHE: Clusters = Clusters {
    budget: DEFAULT_BUDGET,
    sizes: Sizes { fine: 4, fan: 2 },
    sinks: 4,
    similarity: Similarity::Linear { alpha: 0.6 },
    top_k: TopK::Rank,
    gather: Gather::OneHot,
    select: Select::PerHead,
    keep: 0.5,
    window: None,
    share: true,
    dense: 0,
    clear_only: false,
};

/// The strategies that cost two parties least at no loss of accuracy (`bench/results`). Where only scores are gathered
/// they are all computed anyway, so single tokens are chosen by their scores, without summaries. One choice for all heads
/// of a layer takes one shuffle and one quickselect, so cheap that no layer need take over another's. Nothing is evicted:
/// what a later query asks for may matter to none of the prompt's; where that is no concern, `static` makes it cheaper.
const MPCACHE_2PC: Clusters = Clusters {
    sizes: Sizes { fine: 1, fan: 1 },
    sinks: SINKS,
    similarity: Similarity::Token,
    top_k: TopK::ShuffleReveal,
    gather: Gather::Scores,
    select: Select::PerLayer,
    keep: 1.0,
    share: false,
    ..MPCACHE
};

/// One level of clusters over the whole cache, nothing evicted, every layer for itself: what the baselines have in common.
const BLOCKS: Clusters =
    Clusters { sizes: Sizes { fine: 16, fan: 1 }, sinks: 16, keep: 1.0, share: false, ..MPCACHE };

impl PolicySpec {
    /// Names that exist, for help texts.
    pub fn known() -> impl Iterator<Item = &'static str> {
        KNOWN.iter().map(|(name, ..)| *name)
    }

    /// Names, option keys and a line of description of all policies, for help texts.
    pub fn help() -> impl Iterator<Item = (&'static str, &'static [&'static str], &'static str)> {
        KNOWN.iter().copied()
    }

    /// Name of the policy.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Value of an option, if it was given.
    pub fn option(&self, key: &str) -> Option<&str> {
        self.options.get(key).map(String::as_str)
    }

    /// The same policy with the option `key` set to `value`, in place of what it was.
    pub fn with(&self, key: &str, value: &str) -> Result<Self, PolicyError> {
        let mut options: BTreeMap<String, String> =
            self.options.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect();
        options.insert(key.to_owned(), value.to_owned());
        Self::new(self.name, options)
    }

    /// Whether the policy takes the option `key`.
    pub fn takes(&self, key: &str) -> bool {
        KNOWN.iter().any(|(name, keys, _)| *name == self.name && keys.contains(&key))
    }

    /// Whether only engines that see their values can run the policy.
    pub fn clear_only(&self) -> bool {
        matches!(self.kind, Kind::Clustered(Clusters { clear_only: true, .. }))
    }

    /// Whether the traffic of the policy is random: a plan then states its mean.
    pub fn random_traffic(&self) -> bool {
        let method = match self.kind {
            Kind::Clustered(clusters) => clusters.top_k,
            Kind::Rolling { top_k, .. } | Kind::SnapKv { top_k, .. } => top_k,
            Kind::Full | Kind::Streaming { .. } | Kind::Random { .. } => return false,
        };
        method == TopK::ShuffleReveal
    }

    /// The settings of a policy that chooses clusters.
    pub fn clusters(&self) -> Option<&Clusters> {
        match &self.kind {
            Kind::Clustered(clusters) => Some(clusters),
            _ => None,
        }
    }

    /// Every option with the value in force, given or default: the policy as a report states it.
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        match self.kind {
            Kind::Full => vec![],
            Kind::Clustered(c) if c.clear_only => {
                vec![("budget", c.budget.to_string()), ("select", c.select.to_string())]
            }
            Kind::Clustered(c) => {
                let sizes = match c.sizes {
                    Sizes { fine, fan: 1 } => fine.to_string(),
                    sizes => format!("{}/{}", sizes.coarse(), sizes.fine),
                };
                let detail = match c.similarity {
                    Similarity::Linear { alpha } => Some(("alpha", alpha.to_string())),
                    Similarity::Representatives { count } => Some(("count", count.to_string())),
                    _ => None,
                };
                let evicts = c.keep.max(c.budget) < 1.0;
                let window = c.window.map_or("0.2, or 0.1 of long prompts".to_owned(), |share| share.to_string());
                let gather = if c.gather == Gather::OneHot { "one-hot" } else { "scores" };
                let head = [
                    ("budget", c.budget.to_string()),
                    ("clusters", sizes),
                    ("sinks", c.sinks.to_string()),
                    ("similarity", c.similarity.to_string()),
                ];
                let tail = [
                    ("topk", c.top_k.to_string()),
                    ("gather", gather.to_owned()),
                    ("select", c.select.to_string()),
                    ("static", c.keep.max(c.budget).to_string()),
                    ("share", if c.share { "on" } else { "off" }.to_owned()),
                    ("dense", c.dense.to_string()),
                ];
                let window = evicts.then_some(("window", window));
                head.into_iter().chain(detail).chain(tail).chain(window).collect()
            }
            Kind::Rolling { budget, top_k, .. } => vec![("budget", budget.to_string()), ("topk", top_k.to_string())],
            Kind::SnapKv { budget, window, kernel, top_k } => vec![
                ("budget", budget.to_string()),
                ("window", window.to_string()),
                ("kernel", kernel.to_string()),
                ("topk", top_k.to_string()),
            ],
            Kind::Streaming { budget, sinks } => vec![("budget", budget.to_string()), ("sinks", sinks.to_string())],
            Kind::Random { budget, sinks, seed } => {
                vec![("budget", budget.to_string()), ("sinks", sinks.to_string()), ("seed", seed.to_string())]
            }
        }
    }

    /// A fresh policy for one generation of a model with `layers` layers of heads `shape`.
    pub fn build<E: Engine>(&self, layers: usize, shape: HeadShape) -> Box<dyn Policy<E>> {
        match self.kind {
            Kind::Full => Box::new(Full::new::<E>(layers, shape)),
            Kind::Clustered(settings) => Box::new(Clustered::<E>::new(settings, layers, shape)),
            Kind::Rolling { budget, judge, top_k } => {
                Box::new(Rolling::<E>::new(budget, judge, top_k, layers, shape))
            }
            Kind::SnapKv { budget, window, kernel, top_k } => {
                Box::new(SnapKv::new::<E>(budget, window, kernel, top_k, layers, shape))
            }
            Kind::Streaming { budget, sinks } => Box::new(Streaming::new::<E>(budget, sinks, layers, shape)),
            Kind::Random { budget, sinks, seed } => Box::new(Random::new::<E>(budget, sinks, seed, layers, shape)),
        }
    }

    fn new(name: &str, given: BTreeMap<String, String>) -> Result<Self, PolicyError> {
        let Some(&(name, keys, _)) = KNOWN.iter().find(|(n, ..)| *n == name) else {
            return Err(PolicyError::Name { name: name.into(), known: Self::known().collect() });
        };
        let mut options = BTreeMap::new();
        for (key, value) in given {
            match keys.iter().find(|k| **k == key) {
                Some(key) => options.insert(*key, value),
                None => return Err(PolicyError::Key { policy: name, key, known: keys }),
            };
        }
        let kind = kind(&Options { policy: name, options: &options })?;
        Ok(PolicySpec { name, options, kind })
    }
}

/// The options of one policy while they are read.
struct Options<'a> {
    policy: &'static str,
    options: &'a BTreeMap<&'static str, String>,
}

impl Options<'_> {
    fn given(&self, key: &str) -> bool {
        self.options.contains_key(key)
    }

    /// The value of `key` as `read` understands it, if it is given.
    fn read<T>(
        &self,
        key: &'static str,
        expected: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, PolicyError> {
        let Some(value) = self.options.get(key) else { return Ok(None) };
        let refused =
            || PolicyError::Value { policy: self.policy, key, value: value.clone(), expected: expected.to_owned() };
        read(value).map(Some).ok_or_else(refused)
    }

    fn share(&self, key: &'static str, default: f64) -> Result<f64, PolicyError> {
        let read = |text: &str| text.parse().ok().filter(|share| *share > 0.0 && *share <= 1.0);
        Ok(self.read(key, "a share above 0, up to 1", read)?.unwrap_or(default))
    }

    fn number(&self, key: &'static str, least: usize, default: usize) -> Result<usize, PolicyError> {
        let read = |text: &str| text.parse().ok().filter(|n| (least..1 << 20).contains(n));
        Ok(self.read(key, &format!("a number from {least}"), read)?.unwrap_or(default))
    }

    fn top_k(&self, default: TopK) -> Result<TopK, PolicyError> {
        let names = TopK::ALL.map(|method| method.to_string()).join(", ");
        Ok(self.read("topk", &format!("one of {names}"), |text| text.parse().ok())?.unwrap_or(default))
    }
}

/// Reads the options of the policy, which only has those that it knows.
fn kind(o: &Options) -> Result<Kind, PolicyError> {
    let budget = o.share("budget", DEFAULT_BUDGET)?;
    let rolling = |judge| Ok(Kind::Rolling { budget, judge, top_k: o.top_k(TopK::Rank)? });
    let blocks = |similarity| clusters(o, Clusters { similarity, ..BLOCKS }).map(Kind::Clustered);
    match o.policy {
        "full" => Ok(Kind::Full),
        "mpcache" => clusters(o, MPCACHE).map(Kind::Clustered),
        "mpcache-2pc" => clusters(o, MPCACHE_2PC).map(Kind::Clustered),
        "streaming" => Ok(Kind::Streaming { budget, sinks: o.number("sinks", 0, SINKS)? }),
        "h2o" => rolling(Judge::Accumulated),
        "tova" => rolling(Judge::Latest),
        "snapkv" => {
            let odd = |text: &str| text.parse().ok().filter(|n| n % 2 == 1 && *n < 1000);
            let kernel = o.read("kernel", "an odd number below 1000", odd)?.unwrap_or(SNAP.1);
            Ok(Kind::SnapKv { budget, window: o.number("window", 1, SNAP.0)?, kernel, top_k: o.top_k(TopK::Rank)? })
        }
        "infllm" => blocks(Similarity::Representatives { count: 2 }),
        "longcache" => {
            let tokens = Clusters { sizes: Sizes { fine: 1, fan: 1 }, sinks: SINKS, ..BLOCKS };
            let settings = Clusters { similarity: Similarity::Token, select: Select::PerLayer, ..tokens };
            clusters(o, settings).map(Kind::Clustered)
        }
        "quest" => blocks(Similarity::Box),
        "arkvale" => blocks(Similarity::CuboidMean),
        "random" => {
            let seed = o.read("seed", "a number", |text| text.parse().ok())?.unwrap_or(0);
            Ok(Kind::Random { budget, sinks: o.number("sinks", 0, SINKS)?, seed })
        }
        _ => {
            let tokens = Clusters { sizes: Sizes { fine: 1, fan: 1 }, sinks: 0, clear_only: true, ..BLOCKS };
            let settings = Clusters { similarity: Similarity::Token, gather: Gather::Scores, ..tokens };
            clusters(o, settings).map(Kind::Clustered)
        }
    }
}

/// `default` with the given options in place.
fn clusters(o: &Options, default: Clusters) -> Result<Clusters, PolicyError> {
    let mut c = default;
    c.budget = o.share("budget", c.budget)?;
    if let Some(sizes) = o.read("clusters", "TOKENS or COARSE/FINE with COARSE a multiple of FINE", parse_sizes)? {
        c.sizes = sizes;
        // As in the paper, the first cluster is the sink.
        c.sinks = sizes.fine.max(if sizes.fine == 1 { SINKS } else { 1 });
        // Single tokens have scores of their own, larger clusters need a summary.
        let single = sizes == Sizes { fine: 1, fan: 1 };
        match default.similarity {
            Similarity::Token if !single => c.similarity = MPCACHE.similarity,
            _ if single => c.similarity = Similarity::Token,
            _ => {}
        }
    }
    c.sinks = o.number("sinks", 0, c.sinks)?;
    let names = format!("one of {}", Similarity::NAMES.join(", "));
    c.similarity = o.read("similarity", &names, |text| text.parse().ok())?.unwrap_or(c.similarity);
    let idle = |key, with: String| Err(PolicyError::NoEffect { policy: o.policy, key, with });
    let with = format!("similarity={}", c.similarity);
    match &mut c.similarity {
        Similarity::Linear { alpha } => {
            let read = |text: &str| text.parse().ok().filter(|a| (0.0..=1.0).contains(a));
            *alpha = o.read("alpha", "a number from 0 to 1", read)?.unwrap_or(*alpha);
        }
        _ if o.given("alpha") => return idle("alpha", with),
        Similarity::Representatives { count } => *count = o.number("count", 1, *count)?,
        _ => {}
    }
    if o.given("count") && !matches!(c.similarity, Similarity::Representatives { .. }) {
        return idle("count", format!("similarity={}", c.similarity));
    }
    if c.similarity == Similarity::Token && c.sizes != (Sizes { fine: 1, fan: 1 }) {
        let value = c.similarity.to_string();
        let expected = "another similarity: this one is for clusters=1".into();
        return Err(PolicyError::Value { policy: o.policy, key: "similarity", value, expected });
    }
    c.top_k = o.top_k(c.top_k)?;
    let gather = |text: &str| match text {
        "one-hot" => Some(Gather::OneHot),
        "scores" => Some(Gather::Scores),
        _ => None,
    };
    c.gather = o.read("gather", "one-hot or scores", gather)?.unwrap_or(c.gather);
    let select = "one of per-head, per-kv, per-layer";
    c.select = o.read("select", select, |text| text.parse().ok())?.unwrap_or(c.select);
    c.keep = o.share("static", c.keep)?;
    if o.given("window") {
        if c.keep.max(c.budget) == 1.0 {
            return idle("window", "static=1: nothing is evicted".into());
        }
        c.window = Some(o.share("window", 0.2)?);
    }
    let switch = |text: &str| match text {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    };
    c.share = o.read("share", "on or off", switch)?.unwrap_or(c.share);
    c.dense = o.number("dense", 0, c.dense)?;
    Ok(c)
}

fn parse_sizes(text: &str) -> Option<Sizes> {
    let size = |text: &str| text.parse::<usize>().ok().filter(|n| (1..1 << 16).contains(n));
    match text.split_once('/') {
        None => Some(Sizes { fine: size(text)?, fan: 1 }),
        Some((coarse, fine)) => {
            let (coarse, fine) = (size(coarse)?, size(fine)?);
            (coarse % fine == 0 && coarse > fine).then(|| Sizes { fine, fan: coarse / fine })
        }
    }
}

impl FromStr for PolicySpec {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let mut options = BTreeMap::new();
        for option in rest.split(',').filter(|o| !o.is_empty()) {
            let malformed = || PolicyError::Option { option: option.into() };
            let (key, value) = option.split_once('=').ok_or_else(malformed)?;
            if value.is_empty() || options.insert(key.to_owned(), value.to_owned()).is_some() {
                return Err(malformed());
            }
        }
        Self::new(name, options)
    }
}

impl Serialize for PolicySpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PolicySpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl fmt::Display for PolicySpec {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name)?;
        for (i, (key, value)) in self.options.iter().enumerate() {
            write!(f, "{}{key}={value}", if i == 0 { ':' } else { ',' })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keys_and_values_are_checked_with_the_valid_ones_listed() {
        assert_eq!("full".parse(), Ok(PolicySpec::default()));
        assert_eq!("full:".parse(), Ok(PolicySpec::default()));
        assert_eq!(PolicySpec::default().to_string(), "full");
        for (name, ..) in KNOWN {
            let spec: PolicySpec = name.parse().unwrap();
            assert_eq!(spec.to_string(), *name);
        }
        let text = "mpcache:budget=0.1,clusters=32/16,gather=scores";
        assert_eq!(text.parse::<PolicySpec>().unwrap().to_string(), text);
        for (text, message) in [
            ("fll:a=1", "unknown cache policy `fll`; known are: full, mpcache, "),
            ("full:budget=3", "cache policy `full` has no option `budget`; it takes none"),
            ("streaming:topk=rank", "cache policy `streaming` has no option `topk`; it takes: budget, sinks"),
            ("full:budget", "cache policy option `budget` is not one `key=value`"),
            ("h2o:budget=0.1,budget=0.2", "cache policy option `budget=0.2` is not one `key=value`"),
            ("mpcache:budget=0", "cache policy `mpcache`: budget=0: expected a share above 0, up to 1"),
            ("mpcache:topk=fast", "topk=fast: expected one of rank, shuffle-reveal, sort"),
            ("mpcache:clusters=8/3", "clusters=8/3: expected TOKENS or COARSE/FINE"),
            ("quest:alpha=0.5", "cache policy `quest`: alpha has no effect with similarity=box"),
            ("quest:count=3", "cache policy `quest`: count has no effect with similarity=box"),
            ("quest:window=0.5", "window has no effect with static=1"),
            ("quest:similarity=token", "similarity=token: expected another similarity"),
            ("snapkv:kernel=4", "kernel=4: expected an odd number"),
        ] {
            let error = text.parse::<PolicySpec>().unwrap_err().to_string();
            assert!(error.contains(message), "{text}: {error}");
        }
    }

    #[test]
    fn settings_name_every_key_of_the_policy() {
        for (name, keys, _) in KNOWN {
            let spec: PolicySpec = name.parse().unwrap();
            for (key, value) in spec.settings() {
                assert!(keys.contains(&key), "{name}: {key}");
                // Written out, they give the same policy; only the default window has no value of its own.
                if !value.contains("long prompts") {
                    assert_eq!(spec.with(key, &value).unwrap().kind, spec.kind, "{name}: {key}={value}");
                }
            }
        }
        let spec: PolicySpec = "mpcache:clusters=32/16,alpha=0.75,static=0.3".parse().unwrap();
        let settings = spec.settings();
        for (key, value) in [("clusters", "32/16"), ("alpha", "0.75"), ("sinks", "16"), ("static", "0.3")] {
            assert!(settings.contains(&(key, value.to_owned())), "{settings:?}");
        }
    }

    #[test]
    fn options_replace_each_other() {
        let spec: PolicySpec = "mpcache:budget=0.5".parse().unwrap();
        assert_eq!(spec.with("budget", "0.1").unwrap().to_string(), "mpcache:budget=0.1");
        assert!(matches!(spec.with("seed", "1"), Err(PolicyError::Key { .. })));
    }
}
