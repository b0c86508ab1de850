//! The record of a sweep: planned cells, each with its choice of model, work, context, policy, link, phases and
//! cores.

mod table;

use serde::{Deserialize, Serialize};
use waggle_mpcache::PolicySpec;
use waggle_net::LinkShape;
use waggle_report::Seconds;
use waggle_report::provenance::Provenance;

use crate::cost::{OperationCost, Phases, Work, WorkCost};

/// Version of the record's schema; raised when a field changes its meaning or goes.
pub const SWEEP_VERSION: u32 = 4;

/// The subject of one cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// The model's name.
    pub model: String,
    /// Digest of the model's shape and of the scales of its weights.
    pub model_digest: String,
    /// What is done.
    pub work: Work,
    /// Tokens of the prompt, or of the pass.
    pub context: usize,
    /// The policy of the cache.
    pub policy: PolicySpec,
    /// A name or numbers.
    pub link: String,
    /// When correlations are made.
    pub phases: Phases,
    /// Cores of each party, or of client and server.
    pub cores: String,
    /// Tokens of the mean; 1 is the first one after the prompt, alone, or a pass.
    pub tokens: u16,
    /// Digest of the calibration that predicts seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<String>,
}

impl Choice {
    /// The cell in words.
    pub fn name(&self) -> String {
        let Choice { model, work, context, policy, link, phases, cores, .. } = self;
        let place = match work {
            Work::Token => "after",
            Work::Pass => "over",
        };
        let (work, phases) = (work.name(), phases.name());
        format!("{model}, {work} {place} {context} tokens, {policy}, {link}, phases: {phases}, {cores} cores")
    }

    /// Everything that its comparison shares, all but the policy.
    pub fn setting(&self) -> (&str, Work, usize, &str, Phases, &str) {
        (&self.model, self.work, self.context, &self.link, self.phases, &self.cores)
    }

    /// The link's rate and delay.
    pub fn shape(&self) -> Option<LinkShape> {
        self.link.parse().ok()
    }
}

/// A cell: what the work costs there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Planned {
    /// What is planned.
    #[serde(flatten)]
    pub choice: Choice,
    /// Whether bytes and flows are means of random traffic.
    pub random: bool,
    /// What it costs.
    #[serde(flatten)]
    pub cost: WorkCost,
    /// The operations that add up to the cost, where they were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub operations: Vec<OperationCost>,
}

/// The document.
#[derive(Serialize, Deserialize)]
pub struct Sweep {
    /// [`SWEEP_VERSION`] of its program.
    pub version: u32,
    /// Who made it.
    pub provenance: Option<Provenance>,
    /// What was planned, with the policies of a comparison next to each other.
    pub cells: Vec<Planned>,
}

impl Sweep {
    /// The kind of all its seconds.
    pub fn seconds(&self) -> Seconds {
        let predicted = |cell: &Planned| cell.cost.online.predicted_seconds.is_some();
        if self.cells.iter().any(predicted) { Seconds::Predicted } else { Seconds::Network }
    }
}
