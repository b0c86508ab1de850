//! The record of a sweep: planned cells, each with its choice of model, context, policy, link and phases.

use clap::ValueEnum;
use mpcache::PolicySpec;
use report::Seconds;
use report::provenance::Provenance;
use serde::{Deserialize, Serialize};

use crate::cli::mean_token::{MeanToken, Operation};

/// Version of the record's schema; raised when a field changes its meaning or goes.
pub(super) const SWEEP_VERSION: u32 = 3;

/// Phases of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::cli) enum Phases {
    One,
    Two,
    /// Three parties, the third of which deals right before each pass.
    #[value(name = "three-parties")]
    #[serde(rename = "three parties")]
    Three,
}

/// The subject of one cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::cli) struct Choice {
    pub(in crate::cli) model: String,
    /// Of the model's shape and the scales of its weights.
    pub(in crate::cli) model_digest: String,
    pub(in crate::cli) context: usize,
    pub(in crate::cli) policy: PolicySpec,
    pub(in crate::cli) link: String,
    pub(in crate::cli) phases: Phases,
    pub(in crate::cli) cores: u32,
    /// Tokens of the mean; 1 is the first one after the prompt, alone.
    pub(in crate::cli) tokens: u16,
    /// Of the calibration that predicts seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) calibration: Option<String>,
}

impl Phases {
    pub(in crate::cli) fn name(self) -> &'static str {
        match self {
            Phases::One => "one",
            Phases::Two => "two",
            Phases::Three => "three parties",
        }
    }
}

impl Choice {
    /// The cell in words.
    pub(in crate::cli) fn name(&self) -> String {
        let Choice { model, context, policy, link, phases, cores, .. } = self;
        let phases = match phases {
            Phases::One | Phases::Two => format!("{} phase(s)", *phases as u8 + 1),
            Phases::Three => phases.name().to_owned(),
        };
        format!("{model}, {context} tokens, {policy}, {link}, {phases}, {cores} cores")
    }

    /// Everything that its comparison shares, all but the policy.
    pub(super) fn setting(&self) -> (&str, usize, &str, Phases) {
        (&self.model, self.context, &self.link, self.phases)
    }
}

/// A cell: what a decoded token costs there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::cli) struct Planned {
    #[serde(flatten)]
    pub(in crate::cli) choice: Choice,
    /// Whether bytes and flows are means of random traffic.
    pub(in crate::cli) random: bool,
    #[serde(flatten)]
    pub(in crate::cli) mean: MeanToken,
    /// The operations that add up to the mean, where they were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(in crate::cli) operations: Vec<Operation>,
}

/// The document.
#[derive(Serialize, Deserialize)]
pub(in crate::cli) struct Sweep {
    pub(in crate::cli) version: u32,
    pub(in crate::cli) provenance: Option<Provenance>,
    pub(in crate::cli) cells: Vec<Planned>,
}

impl Sweep {
    /// The kind of all its seconds.
    pub(in crate::cli) fn seconds(&self) -> Seconds {
        let predicted = |cell: &Planned| cell.mean.online.predicted_seconds.is_some();
        if self.cells.iter().any(predicted) { Seconds::Predicted } else { Seconds::Network }
    }
}
