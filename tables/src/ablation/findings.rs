//! What the ablation finds, as the tables show it.

use mpcache::PolicySpec;
use report::provenance::Provenance;
use serde::{Deserialize, Serialize};

use super::cost::Split;

/// What was chosen for all rows together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Setting {
    /// Share of all tokens that a step looks at.
    pub(crate) budget: f64,
    /// Share of the prompt that look-once eviction keeps.
    pub(crate) keep: f64,
    /// Network between the two parties.
    pub(crate) link: String,
    /// Two phases.
    pub(crate) preprocess: bool,
}

/// What was chosen for one row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Attention {
    /// The name of the configuration.
    pub(crate) name: String,
    /// Its policy.
    pub(crate) policy: PolicySpec,
    /// Tokens in the cache.
    pub(crate) cache: usize,
}

/// Everything that was found.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Findings {
    /// The runs that found it.
    pub(crate) runs: Vec<Provenance>,
    /// What was chosen for all rows.
    pub(crate) setting: Setting,
    /// The rest of the model's step.
    pub(crate) rest: Rest,
    /// Attention, by length of the cache, then by configuration.
    pub(crate) rows: Vec<Row>,
}

/// What a step does besides attention.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rest {
    /// By the plan.
    pub(crate) planned: Split,
    /// Between two parties.
    pub(crate) measured: Option<MeasuredRest>,
}

/// The rest of a step between two parties.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MeasuredRest {
    /// Mean step.
    pub(crate) step: Split,
    /// Largest difference of a logit from f32.
    pub(crate) logit_error: f64,
}

/// What one configuration costs at one length of the cache, all layers together.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    /// Which.
    pub(crate) attention: Attention,
    /// What the paper reports for it.
    pub(crate) paper: Option<Paper>,
    /// Attention of a step, by the plan.
    pub(crate) planned: Split,
    /// The same by operation, largest first.
    pub(crate) operations: Vec<Operation>,
    /// Look-once eviction, once a prompt.
    pub(crate) eviction: Split,
    /// Digests of what the prompt left, once.
    pub(crate) digests: Split,
    /// Attention of a step between two parties.
    pub(crate) measured: Option<Measured>,
}

impl Row {
    /// Whether the traffic is random, and the plan states its mean.
    pub(crate) fn random(&self) -> bool {
        self.attention.policy.random_traffic()
    }
}

/// What the paper reports against the full cache (figure 11).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Paper {
    /// Latency of the full cache, times that of the configuration.
    pub(crate) faster: f64,
    /// The same of bytes.
    pub(crate) less: f64,
}

/// What one operation costs in a step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Operation {
    /// Its scopes, outermost first, separated by `/`.
    pub(crate) path: String,
    /// Mean step.
    pub(crate) step: Split,
}

/// A run between two parties.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Measured {
    /// Mean step.
    pub(crate) step: Split,
    /// Its answers.
    pub(crate) check: Check,
}

/// Outputs of two parties held against the same policy in fixed point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Check {
    /// Largest difference of an entry among the heads with equal choices.
    pub(crate) same: f64,
    /// Largest difference of all.
    pub(crate) largest: f64,
    /// Share of heads and steps whose outputs show another choice.
    pub(crate) tied: f64,
}
