//! The record of a sweep: planned costs, each for one choice of model, work, context, policy, link, phases and cores,
//! which is called a cell.

mod table;

use serde::{Deserialize, Serialize};
use waggle_mpcache::PolicySpec;
use waggle_net::LinkShape;
use waggle_report::Seconds;
use waggle_report::provenance::Provenance;

use crate::cost::{OperationCost, Phases, Work, WorkCost};

/// Version of the record's schema. It is raised when a field changes its meaning or is removed.
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
    /// The policy of the cache.
    pub policy: PolicySpec,
    /// The link, by name or by numbers.
    pub link: String,
    /// When correlations are made.
    pub phases: Phases,
    /// Cores of each party, or of the client and the server.
    pub cores: String,
    /// Tokens over which the mean is taken. 1 stands for the first token after the prompt alone, or for a pass.
    pub tokens: u16,
    /// Digest of the calibration that predicts seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<String>,
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
        format!("{model}, {work} {place} {context} tokens, {policy}, {link}, phases: {phases}, {cores} cores")
    }

    /// All choices except the policy. Cells with the same setting are compared.
    pub fn setting(&self) -> (&str, Work, usize, &str, Phases, &str) {
        (&self.model, self.work, self.context, &self.link, self.phases, &self.cores)
    }

    /// The link's rate and delay.
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
    /// Whether bytes and flows are means of random traffic.
    pub random: bool,
    /// The cost of the work.
    #[serde(flatten)]
    pub cost: WorkCost,
    /// The operations that add up to the cost, if they were asked for.
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
    /// The cells. Cells that differ only in the policy are next to each other.
    pub cells: Vec<Planned>,
}

impl Sweep {
    /// The kind of all seconds in the record.
    pub fn seconds(&self) -> Seconds {
        let predicted = |cell: &Planned| cell.cost.online.predicted_seconds.is_some();
        if self.cells.iter().any(predicted) { Seconds::Predicted } else { Seconds::Network }
    }
}
