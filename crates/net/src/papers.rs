//! Networks on which papers measure, by name.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::LinkShape;

/// A network on which a paper measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaperLink {
    /// The name, made of the paper's system and the network.
    pub name: &'static str,
    /// Rate and round trip.
    pub shape: LinkShape,
    /// What the paper says the delay measures. If it does not say, the delay is taken for a round trip.
    pub delay: Delay,
    /// How the numbers are known.
    pub known: Certainty,
    /// The paper, and the place in the paper or in the source that repeats it.
    pub source: &'static str,
}

/// What a delay measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delay {
    /// To the peer and back.
    RoundTrip,
    /// The source does not say.
    NotStated,
}

/// How a number of a paper is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Certainty {
    /// Read in the paper, or in a quotation of it.
    Read,
    /// Read in a later paper or in a program that repeats it.
    SecondHand,
    /// Remembered, and not found again.
    Remembered,
}

impl Certainty {
    /// The name of the certainty in tables.
    pub fn name(self) -> &'static str {
        match self {
            Certainty::Read => "read",
            Certainty::SecondHand => "second-hand",
            Certainty::Remembered => "remembered",
        }
    }
}

const fn link(
    name: &'static str,
    (megabits, micros): (u64, u64),
    delay: Delay,
    known: Certainty,
    source: &'static str,
) -> PaperLink {
    let shape = LinkShape { bytes_per_second: megabits * 125_000, round_trip: Duration::from_micros(micros) };
    PaperLink { name, shape, delay, known, source }
}

/// The networks of papers by name, beside [`LinkShape::PRESETS`].
pub const PAPERS: [PaperLink; 14] = {
    use Certainty::{Read, Remembered, SecondHand};
    use Delay::{NotStated, RoundTrip};
    const BUMBLEBEE: &str = "BumbleBee (NDSS 2025), as SecMoE (AAAI 2026) repeats its setting";
    const BOLT: &str = "BOLT (S&P 2024), experiments";
    const NIMBUS: &str = "Nimbus (NeurIPS 2024), caption of table 6";
    const CHEETAH: &str = "Cheetah (USENIX Security 2022), experiments";
    const SHAFT: &str = "SHAFT (NDSS 2025), as reports of FuseFSS (ICML 2026) project its times";
    [
        link("bumblebee-lan", (1000, 500), NotStated, SecondHand, BUMBLEBEE),
        link("bumblebee-wan", (400, 4_000), NotStated, SecondHand, BUMBLEBEE),
        link("bolt-lan", (3000, 800), NotStated, Remembered, BOLT),
        link("bolt-wan", (200, 40_000), NotStated, Remembered, BOLT),
        link("bolt-wan-far", (100, 80_000), NotStated, Remembered, BOLT),
        link("nimbus-lan", (3000, 800), NotStated, Read, NIMBUS),
        link("nimbus-wan", (200, 40_000), NotStated, Read, NIMBUS),
        link("cheetah-lan", (3072, 300), NotStated, Remembered, CHEETAH),
        link("cheetah-wan", (352, 40_000), NotStated, Remembered, CHEETAH),
        link("mpcache-lan", (3016, 300), RoundTrip, Read, "MPCache (NeurIPS 2025), appendix: 0.3 ms of echo latency"),
        link("shaft-lan", (8000, 500), NotStated, SecondHand, SHAFT),
        link("shaft-wan", (3200, 4_000), NotStated, SecondHand, SHAFT),
        link("sigma-lan", (9400, 50), NotStated, Remembered, "SIGMA (PoPETs 2024), evaluation"),
        link("permllm", (1000, 10_000), RoundTrip, Read, "PermLLM (arXiv 2405.18744), abstract"),
    ]
};
