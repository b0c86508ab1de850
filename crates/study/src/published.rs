//! Figures that other systems publish, read from `published.json` beside this file, which says where each figure
//! stands.

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

/// Figures, and what they were read in.
#[derive(Debug, Deserialize)]
pub struct Published {
    /// A remark on what the figures are, and on what they are not.
    pub about: String,
    /// What figures were read in, by the keys that they have in a bibliography.
    works: BTreeMap<String, Reference>,
    /// Every figure.
    pub figures: Vec<Figure>,
}

/// A figure of a paper.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// The paper whose table it stands in, by the name that `waggle reproduce` knows.
    pub paper: String,
    /// The system.
    pub system: String,
    /// The shape that it is of, by the name that `plan --model` knows.
    pub model: String,
    /// What is done.
    pub work: Work,
    /// Whether a token is made without a cache, by a pass over all tokens before it.
    #[serde(default)]
    pub uncached: bool,
    /// Tokens of the input: those before a token, or all of a pass. Not every source names them.
    pub tokens: Option<usize>,
    /// Waggle's policy for the same, in an ablation.
    pub policy: Option<PolicySpec>,
    link: Option<String>,
    /// The part of it that has the figure.
    pub phase: Extent,
    /// The machines that compute.
    pub trust: Trust,
    /// Seconds that the source measured.
    pub measured_seconds: Option<f64>,
    /// Bytes in both directions.
    pub bytes: Option<u64>,
    /// What is sent before the input is known, where that stands apart.
    pub prepared_bytes: Option<u64>,
    /// One-way messages that wait for each other.
    pub flows: Option<u64>,
    /// The factor by which it is faster than what the source compares it with.
    pub faster: Option<f64>,
    /// The factor by which it sends fewer bytes than that.
    pub fewer: Option<f64>,
    /// The machines of the source.
    pub hardware: String,
    /// How it is known.
    pub known: Certainty,
    /// The key of the work it was read in: of what repeats it, where it is second-hand.
    pub cite: String,
    /// Where it stands.
    pub source: String,
    /// The attack that shows that the system does not keep what it promises.
    pub broken: Option<String>,
    remark: Option<String>,
    /// The page that says why our numbers differ, if they do.
    pub reason: Option<String>,
}

/// The machines that compute, and must not collude.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Trust {
    /// A client and a server.
    #[serde(rename = "two parties")]
    Two,
    /// A client, a server and a third machine that deals.
    #[serde(rename = "two parties and a dealer")]
    Dealer,
    /// Three that share the work.
    #[serde(rename = "three parties")]
    Three,
    /// A server that computes on ciphertexts of the client's.
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

/// The part of the work that a figure is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Extent {
    /// All of it.
    All,
    /// All but what does not depend on the input.
    Online,
}

/// All figures.
pub fn published() -> &'static Published {
    &PUBLISHED
}

/// The names of all papers, each with those of the systems that stand there alone.
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
    /// The works that `figures` were read in, each once and by their keys, as a file of BibTeX.
    pub fn bibliography<'a>(&self, figures: impl IntoIterator<Item = &'a Figure>) -> String {
        let keys: BTreeSet<&str> = figures.into_iter().map(|figure| figure.cite.as_str()).collect();
        let entries = keys.iter().filter_map(|key| Some(self.works.get(*key)?.bibtex(key)));
        entries.collect::<Vec<_>>().join("\n")
    }
}

impl Figure {
    /// The work in words.
    pub fn what(&self) -> String {
        let between = match self.work {
            Work::Token => "after",
            Work::Pass => "over",
        };
        let tokens = self.tokens.map(|tokens| format!(" {between} {tokens}")).unwrap_or_default();
        let cache = if self.uncached { " without a cache" } else { "" };
        format!("{}, {}{tokens}{cache}", self.model, self.work.name())
    }

    /// Our work for the same.
    pub fn ours(&self) -> Work {
        if self.uncached { Work::Pass } else { self.work }
    }

    /// The network, where the source names one.
    pub fn link(&self) -> Option<LinkShape> {
        self.link.as_deref().and_then(|name| name.parse().ok())
    }

    /// Whether a third machine deals what is prepared.
    pub fn has_dealer(&self) -> bool {
        self.trust == Trust::Dealer
    }

    /// Whether three parties share the work.
    pub fn has_three_parties(&self) -> bool {
        self.trust == Trust::Three
    }

    /// The network by its name.
    pub fn link_name(&self) -> &str {
        self.link.as_deref().unwrap_or("not stated")
    }

    /// What a reader must know of it: first, whether it is broken.
    pub fn remarks(&self) -> String {
        let broken = self.broken.as_ref().map(|attack| format!("BROKEN: {attack}"));
        // In an ablation the factor has a column.
        let faster = self.faster.filter(|_| self.policy.is_none()).map(|times| format!("{times} times faster"));
        broken.into_iter().chain(faster).chain(self.remark.clone()).collect::<Vec<_>>().join("; ")
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
    fn what_is_broken_says_so_first() {
        let broken = PUBLISHED.figures.iter().find(|figure| figure.paper == "permllm").unwrap();
        assert!(broken.remarks().starts_with("BROKEN: "), "{broken:?}");
    }
}
