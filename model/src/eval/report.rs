//! A study as one JSON document, from which tables and plots are made.

use std::collections::BTreeMap;

use mpcache::PolicySpec;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Candidate, METRICS, Metrics, Sequence};
use crate::provenance::Provenance;
use crate::report::ModelInfo;
use crate::table::{Cell, Format, Table};

/// Version of the document's schema; raised when a field changes its meaning or goes.
pub const EVALUATION_VERSION: u32 = 1;

/// The numbers of a study.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// [`EVALUATION_VERSION`].
    pub version: u32,
    /// What made the study. Studies that are older than the field have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Provenance>,
    /// The model.
    pub model: ModelInfo,
    /// Everything that was chosen, by name.
    pub options: BTreeMap<String, Value>,
    /// Number of sequences.
    pub sequences: usize,
    /// Scored positions of all sequences.
    pub scored: usize,
    /// The full cache, then every policy at every budget.
    pub rows: Vec<Row>,
}

/// A policy at a budget.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The policy without its budget, unless it came with one.
    pub label: String,
    /// Share of the cache, or tokens from 2 on; absent for `full`.
    pub budget: Option<f64>,
    /// The policy with its budget.
    pub policy: PolicySpec,
    /// Its accuracy.
    #[serde(flatten)]
    pub metrics: Metrics,
}

impl Evaluation {
    /// The study of `candidates` over `sequences`, with what [`evaluate`](super::evaluate) returned for them.
    pub fn new(
        model: ModelInfo,
        options: BTreeMap<String, Value>,
        sequences: &[Sequence],
        candidates: &[Candidate],
        (full, metrics): (Metrics, Vec<Metrics>),
    ) -> Self {
        let all = std::iter::once((Candidate::full(), full)).chain(candidates.iter().cloned().zip(metrics));
        let rows = all.map(|(Candidate { label, budget, policy }, metrics)| Row { label, budget, policy, metrics });
        Evaluation {
            version: EVALUATION_VERSION,
            provenance: None,
            model,
            options,
            sequences: sequences.len(),
            scored: sequences.iter().map(|s| s.scored().len()).sum(),
            rows: rows.collect(),
        }
    }

    /// All numbers. What could not be measured is a dash.
    pub fn table(&self) -> Table {
        let heads = ["policy", "budget"].into_iter().chain(METRICS.iter().map(|metric| metric.short));
        let mut table = Table::new(1, heads.map(|title| (title, "")));
        for row in &self.rows {
            let cell = |value: f64| Cell::number(value, number(value));
            let budget = Cell::maybe(row.budget, |budget| Cell::number(budget, budget.to_string()));
            let numbers = METRICS.iter().map(|metric| Cell::maybe((metric.of)(&row.metrics), cell));
            table.add([Cell::text(row.label.clone()), budget].into_iter().chain(numbers));
        }
        table
    }

    /// The same table in Markdown.
    pub fn markdown(&self) -> String {
        self.table().render(Format::Markdown, None)
    }
}

/// Three digits behind the point, and more significance for large numbers than that is noise.
fn number(value: f64) -> String {
    if value.abs() < 1000.0 { format!("{value:.3}") } else { format!("{value:.2e}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelSpec;

    #[test]
    fn json_comes_back_equal_and_the_table_shows_dashes() {
        let metrics = Metrics {
            perplexity: 12345.0,
            perplexity_ratio: 1.5,
            accuracy: 0.25,
            agreement: 0.5,
            kl: 0.125,
            attention_mass: None,
            output_error: None,
            top_k_recall: None,
            layer_overlap: None,
            attended: None,
        };
        let spec = ModelSpec::from_config_json(br#"{"model_type": "gpt2", "n_layer": 1}"#).unwrap();
        let sequences = Sequence::cut(&[1; 20], 10, 5, 2).unwrap();
        let options = BTreeMap::from([("engine".to_owned(), Value::from("secure"))]);
        let study = Evaluation::new(ModelInfo::new("small", &spec), options, &sequences, &[], (metrics, Vec::new()));
        assert_eq!((study.sequences, study.scored), (2, 8));
        let json = serde_json::to_value(&study).unwrap();
        assert_eq!((&json["rows"][0]["kl"], &json["rows"][0]["policy"]), (&Value::from(0.125), &Value::from("full")));
        assert_eq!(serde_json::from_value::<Evaluation>(json).unwrap(), study);
        let markdown = study.markdown();
        let cells: Vec<&str> = markdown.lines().last().unwrap().split('|').map(str::trim).collect();
        assert_eq!(cells[1..8], ["full", "-", "1.23e4", "1.500", "0.250", "0.500", "0.125"]);
        assert_eq!(cells[8..13], ["-"; 5]);
    }
}
