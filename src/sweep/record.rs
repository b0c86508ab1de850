//! The record of a sweep: planned cells, each with its choice of model, work, context, policy, link, phases and
//! cores.

use serde::{Deserialize, Serialize};
use waggle_mpcache::PolicySpec;
use waggle_net::LinkShape;
use waggle_report::Seconds;
use waggle_report::provenance::Provenance;

use crate::work::{Operation, Phases, Work, WorkCost};

/// Version of the record's schema; raised when a field changes its meaning or goes.
pub(super) const SWEEP_VERSION: u32 = 4;

/// The subject of one cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Choice {
    pub(crate) model: String,
    /// Of the model's shape and the scales of its weights.
    pub(crate) model_digest: String,
    pub(crate) work: Work,
    /// Tokens of the prompt, or of the pass.
    pub(crate) context: usize,
    pub(crate) policy: PolicySpec,
    pub(crate) link: String,
    pub(crate) phases: Phases,
    /// Of each party, or of client and server.
    pub(crate) cores: String,
    /// Tokens of the mean; 1 is the first one after the prompt, alone, or a pass.
    pub(crate) tokens: u16,
    /// Of the calibration that predicts seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) calibration: Option<String>,
}

impl Choice {
    /// The cell in words.
    pub(crate) fn name(&self) -> String {
        let Choice { model, work, context, policy, link, phases, cores, .. } = self;
        let place = match work {
            Work::Token => "after",
            Work::Pass => "over",
        };
        let (work, phases) = (work.name(), phases.name());
        format!("{model}, {work} {place} {context} tokens, {policy}, {link}, phases: {phases}, {cores} cores")
    }

    /// Everything that its comparison shares, all but the policy.
    pub(super) fn setting(&self) -> (&str, Work, usize, &str, Phases, &str) {
        (&self.model, self.work, self.context, &self.link, self.phases, &self.cores)
    }

    /// The link's rate and delay.
    pub(super) fn shape(&self) -> Option<LinkShape> {
        self.link.parse().ok()
    }
}

/// A cell: what the work costs there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Planned {
    #[serde(flatten)]
    pub(crate) choice: Choice,
    /// Whether bytes and flows are means of random traffic.
    pub(crate) random: bool,
    #[serde(flatten)]
    pub(crate) cost: WorkCost,
    /// The operations that add up to the cost, where they were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) operations: Vec<Operation>,
}

/// The document.
#[derive(Serialize, Deserialize)]
pub(crate) struct Sweep {
    pub(crate) version: u32,
    pub(crate) provenance: Option<Provenance>,
    pub(crate) cells: Vec<Planned>,
}

impl Sweep {
    /// The kind of all its seconds.
    pub(crate) fn seconds(&self) -> Seconds {
        let predicted = |cell: &Planned| cell.cost.online.predicted_seconds.is_some();
        if self.cells.iter().any(predicted) { Seconds::Predicted } else { Seconds::Network }
    }
}
