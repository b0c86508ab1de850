//! The record of a sweep. It consists of cells. A cell is the planned cost for one choice of model, work, context,
//! policy, link, phases and cores.

mod table;

use serde::{Deserialize, Serialize};
use waggle_mpcache::PolicySpec;
use waggle_net::LinkShape;
use waggle_report::Seconds;
use waggle_report::provenance::Provenance;

use crate::cost::{OperationCost, Phases, Work, WorkCost};

/// Version of the record's schema. It is raised when a field is removed or its meaning changes.
pub const SWEEP_VERSION: u32 = 4;

/// The choices of one cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// The model's name.
    pub model: String,
    /// Digest of the model's shape and of the scales of its weights.
    pub model_digest: String,
    /// The unit of work.
    pub work: Work,
    /// Tokens of the prompt, or of the pass.
    pub context: usize,
    /// Texts that are read side by side.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub texts: usize,
    /// Public tokens before the prompt.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub public_tokens: usize,
    /// The policy that prunes the public tokens, if there are some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_policy: Option<PolicySpec>,
    /// The policy of the cache.
    pub policy: PolicySpec,
    /// The link, by name or by numbers.
    pub link: String,
    /// When correlations are made.
    pub phases: Phases,
    /// Number of cores of each party, or of the client and of the server.
    pub cores: String,
    /// Number of tokens over which the mean is taken. For 1, the work is a pass, or only the first token after the
    /// prompt.
    pub tokens: u16,
    /// Digest of the calibration that predicts seconds; absent without a calibration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<String>,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

fn one() -> usize {
    1
}

fn is_one(count: &usize) -> bool {
    *count == 1
}

impl Choice {
    /// The cell's choices in words.
    pub fn name(&self) -> String {
        let Choice { model, work, context, policy, link, phases, cores, .. } = self;
        let place = match work {
            Work::Token => "after",
            Work::Pass => "over",
        };
        let (work, phases) = (work.name(), phases.name());
        let public = self.public_policy.as_ref();
        let public = public.map(|policy| format!(" behind {} public ones ({policy})", self.public_tokens));
        let texts = if self.texts == 1 { String::new() } else { format!(" in each of {} texts", self.texts) };
        let tokens = format!("{context} tokens{texts}{}", public.unwrap_or_default());
        format!("{model}, {work} {place} {tokens}, {policy}, {link}, phases: {phases}, {cores} cores")
    }

    /// The choices in which cells that are compared must agree: model, work, context, texts and public tokens, link,
    /// phases and cores.
    pub fn setting(&self) -> (&str, Work, [usize; 3], &str, Phases, &str) {
        let counts = [self.context, self.texts, self.public_tokens];
        (&self.model, self.work, counts, &self.link, self.phases, &self.cores)
    }

    /// The link's rate and delay; `None` if `link` cannot be parsed.
    pub fn shape(&self) -> Option<LinkShape> {
        self.link.parse().ok()
    }
}

/// A cell: its choices and the cost of the work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Planned {
    /// The choices.
    #[serde(flatten)]
    pub choice: Choice,
    /// Whether traffic is random, so that bytes and flows are means.
    pub random: bool,
    /// The cost of the work.
    #[serde(flatten)]
    pub cost: WorkCost,
    /// Bytes that either party holds of keys and values after the work, with their masks and of all texts. Summaries
    /// of clusters do not count.
    #[serde(default)]
    pub cache_bytes: u64,
    /// The costs of the single operations, which add up to `cost`; empty unless they were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub operations: Vec<OperationCost>,
}

/// The record of a sweep.
#[derive(Serialize, Deserialize)]
pub struct Sweep {
    /// [`SWEEP_VERSION`] of the program that wrote the record.
    pub version: u32,
    /// The origin of the record.
    pub provenance: Option<Provenance>,
    /// The cells. Those that differ only in the policy are next to each other.
    pub cells: Vec<Planned>,
}

impl Sweep {
    /// The kind of all seconds in the record.
    pub fn seconds(&self) -> Seconds {
        let predicted = |cell: &Planned| cell.cost.online.predicted_seconds.is_some();
        if self.cells.iter().any(predicted) { Seconds::Predicted } else { Seconds::Network }
    }
}
