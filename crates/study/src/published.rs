//! Figures that papers publish about other systems. They are read from the file `published.json` beside this module,
//! which states the source of each figure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use serde::Deserialize;
use waggle_mpcache::PolicySpec;
use waggle_net::LinkShape;
use waggle_net::papers::Certainty;
use waggle_report::Reference;

use crate::cost::Work;

static PUBLISHED: LazyLock<Published> = LazyLock::new(|| {
    serde_json::from_str(include_str!("published.json")).expect("a part of the program, and tested")
});

/// All figures, with the works that contain them.
#[derive(Debug, Deserialize)]
pub struct Published {
    /// A remark on what the figures mean, and on the limits of comparisons.
    pub about: String,
    /// The works that contain the figures, by their keys in a bibliography.
    works: BTreeMap<String, Reference>,
    /// Every figure.
    pub figures: Vec<Figure>,
}

/// A figure of a paper.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// The paper whose table has the figure, by its name in `waggle reproduce`.
    pub paper: String,
    /// The system.
    pub system: String,
    /// The shape of the model, by its name in `plan --model`.
    pub model: String,
    /// The unit of work.
    pub work: Work,
    /// Whether a token is made without a cache, by a pass over all earlier tokens.
    #[serde(default)]
    pub uncached: bool,
    /// Number of tokens: the input's for a pass, or those before a decoded token. Not every source states it.
    pub tokens: Option<usize>,
    /// What narrows the work, such as `one block of twelve`. Waggle plans nothing beside such a figure.
    pub detail: Option<String>,
    /// In an ablation, Waggle's policy that corresponds to the system.
    pub policy: Option<PolicySpec>,
    link: Option<String>,
    /// The part of the work that the figure covers.
    pub phase: Extent,
    /// The machines that compute, which the system trusts not to collude.
    pub trust: Trust,
    /// Whether the system withstands a party that deviates from the protocol. All others are semi-honest.
    #[serde(default)]
    pub malicious: bool,
    /// Seconds that the source measured.
    pub measured_seconds: Option<f64>,
    /// Bytes in both directions.
    pub bytes: Option<u64>,
    /// Bytes that are sent before the input is known, if the source states them apart.
    pub prepared_bytes: Option<u64>,
    /// One-way messages that wait for each other.
    pub flows: Option<u64>,
    /// How many times faster the system is than the source's baseline.
    pub faster: Option<f64>,
    /// How many times fewer bytes the system sends than the source's baseline.
    pub fewer: Option<f64>,
    /// The machines of the source.
    pub hardware: String,
    /// How certain the figure is.
    pub known: Certainty,
    /// The key of the work from which the figure was read. For a second-hand figure this is the work that repeats it.
    pub cite: String,
    /// The place in the work named by `cite` at which the figure is found.
    pub source: String,
    /// The attack that shows that the system is not secure, if there is one.
    pub broken: Option<String>,
    remark: Option<String>,
    /// The page that explains why Waggle's numbers differ from the figure, if they do.
    pub reason: Option<String>,
}

/// The machines that compute. They must not collude.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Trust {
    /// A client and a server.
    #[serde(rename = "two parties")]
    Two,
    /// A client, a server, and a third machine that deals correlations.
    #[serde(rename = "two parties and a dealer")]
    Dealer,
    /// Three machines that share the work.
    #[serde(rename = "three parties")]
    Three,
    /// A server that computes on the client's ciphertexts.
    #[serde(rename = "one server, encrypted")]
    Server,
}

impl Trust {
    /// The machines in words.
    pub fn name(self) -> &'static str {
        match self {
            Trust::Two => "two parties",
            Trust::Dealer => "two parties and a dealer",
            Trust::Three => "three parties",
            Trust::Server => "one server, encrypted",
        }
    }
}

/// The part of the work that a figure covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Extent {
    /// All of the work.
    All,
    /// All except the part that does not depend on the input.
    Online,
}

/// All figures.
pub fn published() -> &'static Published {
    &PUBLISHED
}

/// The names of all papers. Each comes with the names of those systems in its figures that have no entry as a paper
/// of their own. A system that several papers mention is listed under one of them.
pub fn papers() -> BTreeMap<&'static str, Vec<String>> {
    let mut papers: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for figure in &PUBLISHED.figures {
        papers.entry(&figure.paper).or_default();
    }
    for figure in &PUBLISHED.figures {
        // `BOLT, word elimination` is a form of BOLT.
        let system = figure.system.split(',').next().unwrap_or_default().to_lowercase().replace(' ', "-");
        if !papers.contains_key(&*system) && !papers.values().flatten().any(|known| *known == system) {
            papers.entry(&figure.paper).or_default().push(system);
        }
    }
    papers
}

impl Published {
    /// A BibTeX file of the works from which `figures` were read. Each work occurs once; works are sorted by key.
    pub fn bibliography<'a>(&self, figures: impl IntoIterator<Item = &'a Figure>) -> String {
        let keys: BTreeSet<&str> = figures.into_iter().map(|figure| figure.cite.as_str()).collect();
        let entries = keys.iter().filter_map(|key| Some(self.works.get(*key)?.bibtex(key)));
        entries.collect::<Vec<_>>().join("\n")
    }
}

impl Figure {
    /// The figure's work in words: the model, the unit of work and the number of tokens.
    pub fn what(&self) -> String {
        let between = match self.work {
            Work::Token => "after",
            Work::Pass => "over",
        };
        let tokens = self.tokens.map(|tokens| format!(" {between} {tokens}")).unwrap_or_default();
        let cache = if self.uncached { " without a cache" } else { "" };
        let detail = self.detail.as_ref().map(|detail| format!(": {detail}")).unwrap_or_default();
        format!("{}, {}{tokens}{cache}{detail}", self.model, self.work.name())
    }

    /// The unit of work with which Waggle does the same. A token without a cache is a pass.
    pub fn ours(&self) -> Work {
        if self.uncached { Work::Pass } else { self.work }
    }

    /// Whom users trust: the machines, and that they follow the protocol unless the system is secure without that.
    pub fn trusted(&self) -> String {
        let deviation = if self.malicious { ", malicious" } else { "" };
        format!("{}{deviation}", self.trust.name())
    }

    /// The network between the machines, if the source states one that can be parsed.
    pub fn link(&self) -> Option<LinkShape> {
        self.link.as_deref().and_then(|name| name.parse().ok())
    }

    /// Whether a third machine deals prepared correlations.
    pub fn has_dealer(&self) -> bool {
        self.trust == Trust::Dealer
    }

    /// Whether three parties share the work.
    pub fn has_three_parties(&self) -> bool {
        self.trust == Trust::Three
    }

    /// The name of the network, or `not stated`.
    pub fn link_name(&self) -> &str {
        self.link.as_deref().unwrap_or("not stated")
    }

    /// Remarks on the figure for readers. The first says whether the system is broken.
    pub fn remarks(&self) -> String {
        let broken = self.broken.as_ref().map(|attack| format!("BROKEN: {attack}"));
        // In an ablation factors have columns.
        let factor = |times: Option<f64>, what| {
            times.filter(|_| self.policy.is_none()).map(|times| format!("{times} times {what}"))
        };
        let factors = factor(self.faster, "faster").into_iter().chain(factor(self.fewer, "fewer bytes"));
        broken.into_iter().chain(factors).chain(self.remark.clone()).collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_says_something_and_where_it_stands() {
        let Published { about, figures, .. } = &*PUBLISHED;
        assert!(about.contains("none of these was measured here"));
        for figure in figures {
            let Figure { measured_seconds, bytes, faster, fewer, broken, .. } = figure;
            let said = measured_seconds.is_some() || bytes.is_some() || faster.is_some() || fewer.is_some();
            assert!(said || broken.is_some(), "{figure:?}");
            assert!(figure.source.len() > 10 && figure.hardware.len() > 2, "{figure:?}");
            assert_eq!(figure.link.is_some(), figure.link().is_some(), "the link of {figure:?}");
        }
    }

    #[test]
    fn every_figure_cites_a_work_and_every_work_is_cited() {
        let Published { works, figures, .. } = &*PUBLISHED;
        let cited: BTreeSet<&String> = figures.iter().map(|figure| &figure.cite).collect();
        assert_eq!(cited, works.keys().collect());
        // `\cite` takes a key as it is.
        let plain = |key: &&String| key.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        assert!(cited.iter().all(plain), "{cited:?}");
    }

    #[test]
    fn a_bibliography_has_an_entry_for_each_key() {
        let Published { works, figures, .. } = &*PUBLISHED;
        let text = PUBLISHED.bibliography(figures);
        let heads = text.split('@').skip(1).filter_map(|entry| entry.split_once(",\n"));
        let keys: Vec<&str> = heads.filter_map(|(head, _)| Some(head.split_once('{')?.1)).collect();
        assert_eq!(keys, works.keys().collect::<Vec<_>>());
        for entry in text.split("\n\n") {
            let mut open = 0;
            for c in entry.trim_end().chars() {
                open += i32::from(c == '{') - i32::from(c == '}');
                assert!(open >= 0, "{entry}");
            }
            assert!(open == 0 && entry.trim_end().ends_with("\n}"), "{entry}");
            let found = ["booktitle", "journal", "eprint", "howpublished"];
            assert!(found.iter().any(|name| entry.contains(&format!("\n  {name} = {{"))), "{entry}");
        }
        assert!(text.contains(r"ponyyuhan/SUF\_new") && text.contains(r"Bumblebee \& BOLT"), "{text}");
    }

    #[test]
    fn what_is_malicious_narrow_or_relative_says_so() {
        let of = |system| PUBLISHED.figures.iter().find(|figure| figure.system == system).expect(system);
        assert_eq!(of("Mosformer").trusted(), "three parties, malicious");
        assert_eq!(of("Mosformer, semi-honest").trusted(), "three parties");
        assert_eq!(of("CryptoGen").what(), "gpt2, a token after 128");
        let gather = of("MPCache, clusters");
        assert_eq!(gather.what(), "any model, a token: gather alone, T = 1024 in C = 64 clusters");
        assert!(gather.remarks().starts_with("73.5 times faster; 369.8 times fewer bytes; "), "{gather:?}");
    }

    #[test]
    fn what_is_broken_says_so_first() {
        let broken = PUBLISHED.figures.iter().find(|figure| figure.paper == "permllm").unwrap();
        assert!(broken.remarks().starts_with("BROKEN: "), "{broken:?}");
    }
}
