//! A study as one JSON document, from which tables and plots are made.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use waggle_mpcache::PolicySpec;
use waggle_report::provenance::Provenance;
use waggle_report::table::{Cell, Document, Format, Shown, Table};
use waggle_report::{CONDITIONS, ModelInfo, conditions};

use super::{Candidate, Interval, METRICS, Metric, Metrics, Scores, Sequence};

/// Version of the document's schema. It is raised when a field is removed or its meaning changes.
pub const EVALUATION_VERSION: u32 = 2;

/// The numbers of a study.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StudyReport {
    /// [`EVALUATION_VERSION`].
    pub version: u32,
    /// The origin of the study. Studies that are older than the field have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Provenance>,
    /// The model.
    pub model: ModelInfo,
    /// Every option of the study, by name.
    pub options: BTreeMap<String, Value>,
    /// Number of sequences.
    pub sequences: usize,
    /// Number of scored positions in all sequences together.
    pub scored: usize,
    /// The rows: the full cache, then every policy at every budget.
    pub rows: Vec<Row>,
    /// The facts of each sequence, in the order of [`Row::by_sequence`]; empty in reports older than the field.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub of_sequences: Vec<SequenceInfo>,
}

/// The facts of one sequence of a study.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SequenceInfo {
    /// Tokens of the sequence, the answer's included.
    pub tokens: usize,
    /// Tokens that went through the model at once.
    pub prompt: usize,
    /// Number of scored positions. It is the weight of this sequence in metrics over all sequences.
    pub scored: usize,
    /// Properties that the task gives the sequence, for example the depth of the needle.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, Value>,
}

impl From<&Sequence> for SequenceInfo {
    fn from(sequence: &Sequence) -> Self {
        SequenceInfo {
            tokens: sequence.ids().len(),
            prompt: sequence.prompt(),
            scored: sequence.scored().len(),
            tags: sequence.tags().clone(),
        }
    }
}

/// The results of one policy at one budget.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The policy without its budget, unless the user stated the budget with the policy.
    pub label: String,
    /// The budget: a share of the cache, or a number of tokens if it is 2 or more. Absent for policies without a
    /// budget, such as `full`.
    pub budget: Option<f64>,
    /// The policy with its budget.
    pub policy: PolicySpec,
    /// The policy's metrics over all sequences.
    #[serde(flatten)]
    pub metrics: Metrics,
    /// 95 % confidence intervals of the metrics over the sequences, by key; see [`Interval`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub intervals: BTreeMap<String, Interval>,
    /// The metrics of each sequence alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_sequence: Vec<Metrics>,
    /// The answer that was generated for each sequence, if answers were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub generated: Vec<String>,
    /// The cost of one token to two parties under this policy, if it was planned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<TokenCost>,
}

/// The planned cost of a decoded token for two parties, as the mean of tokens after a prompt. In studies that are
/// older than the field `tokens`, it is the cost of the first token alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TokenCost {
    /// Tokens of the prompt.
    #[serde(alias = "cached")]
    pub prompt: usize,
    /// Tokens over which the mean is taken.
    #[serde(default = "one")]
    pub tokens: usize,
    /// When the correlations of the token are made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phases: Option<String>,
    /// The link by its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    /// Number of cores of each party, or of the client and of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<String>,
    /// Bytes both ways while a token is made.
    pub online_bytes: f64,
    /// Bytes both ways of the preparation of one token.
    pub prepared_bytes: f64,
    /// Bytes both ways of the prompt's preparation, which takes place once. They are known if the mean is taken over
    /// several tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepared_prompt_bytes: Option<f64>,
    /// Flows while a token is made.
    pub flows: f64,
    /// Seconds that the link needs while a token is made, without computation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub online_network_seconds: Option<f64>,
    /// Seconds that the link needs for a token and its preparation, without computation.
    #[serde(alias = "seconds")]
    pub network_seconds: f64,
    /// Seconds as a calibration predicts them: first of a token, then of a token with its preparation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_seconds: Option<[f64; 2]>,
}

fn one() -> usize {
    1
}

impl StudyReport {
    /// The report of a study of `candidates` over `sequences`. `scores` are those that [`evaluate`](super::evaluate)
    /// returned for the full cache and for the candidates.
    pub fn new(
        model: ModelInfo,
        options: BTreeMap<String, Value>,
        sequences: &[Sequence],
        candidates: &[Candidate],
        (full, scores): (Scores, Vec<Scores>),
    ) -> Self {
        let all = std::iter::once((Candidate::full(), full)).chain(candidates.iter().cloned().zip(scores));
        let rows = all.map(|(candidate, scores)| {
            let Candidate { label, budget, policy } = candidate;
            let Scores { metrics, intervals, by_sequence, generated } = scores;
            Row { label, budget, policy, metrics, intervals, by_sequence, generated, cost: None }
        });
        StudyReport {
            version: EVALUATION_VERSION,
            provenance: None,
            model,
            options,
            sequences: sequences.len(),
            scored: sequences.iter().map(|s| s.scored().len()).sum(),
            rows: rows.collect(),
            of_sequences: sequences.iter().map(SequenceInfo::from).collect(),
        }
    }

    /// A table of the study's numbers. The most important metrics are followed by the larger half of their 95 %
    /// confidence intervals, if there are any. A number that could not be measured is a dash. A metric without a
    /// number in any row has no column. Costs have columns if they were planned.
    pub fn table(&self) -> Table {
        let measured = |metric: &&Metric| self.rows.iter().any(|row| (metric.of)(&row.metrics).is_some());
        let always = METRICS.len() - OPTIONAL;
        let metrics: Vec<&Metric> = METRICS
            .iter()
            .enumerate()
            .filter(|(i, metric)| *i < always || measured(metric))
            .map(|(_, m)| m)
            .collect();
        let costs = self.rows.iter().any(|row| row.cost.is_some());
        let heads = ["policy", "budget"].into_iter().chain(metrics.iter().map(|metric| metric.short));
        let heads = heads.map(|title| (title, ""));
        let cost_heads = [
            ("online", "bytes"),
            ("online flows", ""),
            ("online, network", "seconds"),
            ("online, predicted", "seconds"),
            ("prepared", "bytes"),
            ("total, network", "seconds"),
            ("total, predicted", "seconds"),
            ("prompt, prepared", "bytes"),
            ("prompt", "tokens"),
            ("mean of", "tokens"),
            ("phases", ""),
            ("link", ""),
        ];
        let cost_heads = cost_heads.into_iter().chain(CONDITIONS).filter(|_| costs);
        let settings = ["prompt_tokens", "mean_of_tokens", "phases", "link", "rate_mbit_s", "round_trip_ms", "cores"];
        let mut table = Table::new(1, heads.chain(cost_heads)).showing(Shown::Setting, &settings);
        for row in &self.rows {
            let budget = Cell::maybe(row.budget, |budget| Cell::number(budget, budget.to_string()));
            let numbers = metrics.iter().map(|metric| {
                let spread = WITH_SPREAD.contains(&metric.key) && row.intervals.contains_key(metric.key);
                let cell = |value: f64| {
                    let text = if spread { with_spread(value, row.interval(metric)) } else { number(value) };
                    Cell::number(value, text)
                };
                Cell::maybe((metric.of)(&row.metrics), cell)
            });
            let bytes = |bytes: f64| Cell::bytes(bytes.round() as u64);
            let cost = row.cost.as_ref();
            let seconds = |of: fn(&TokenCost) -> Option<f64>| Cell::maybe(cost.and_then(of), Cell::seconds);
            let words = |of: fn(&TokenCost) -> &Option<String>| {
                Cell::maybe(cost.and_then(|cost| of(cost).clone()), Cell::text)
            };
            let conditions =
                conditions(cost.and_then(|cost| cost.link.as_deref()), cost.and_then(|cost| cost.cores.as_deref()));
            let cost = [
                Cell::maybe(cost, |cost| bytes(cost.online_bytes)),
                Cell::maybe(cost, |cost| Cell::number(cost.flows, format!("{:.0}", cost.flows))),
                seconds(|cost| cost.online_network_seconds),
                seconds(|cost| Some(cost.predicted_seconds?[0])),
                Cell::maybe(cost, |cost| bytes(cost.prepared_bytes)),
                seconds(|cost| Some(cost.network_seconds)),
                seconds(|cost| Some(cost.predicted_seconds?[1])),
                Cell::maybe(cost.and_then(|cost| cost.prepared_prompt_bytes), bytes),
                Cell::maybe(cost, |cost| Cell::count(cost.prompt as u64)),
                Cell::maybe(cost, |cost| Cell::count(cost.tokens as u64)),
                words(|cost| &cost.phases),
                words(|cost| &cost.link),
            ]
            .into_iter()
            .chain(conditions);
            let cost = cost.filter(|_| costs);
            table.add([Cell::text(row.label.clone()), budget].into_iter().chain(numbers).chain(cost));
        }
        table
    }

    /// Each policy that has the same measurements at several budgets, with these budgets. This happens if a text is
    /// too short for a policy's clusters or blocks to leave a choice.
    pub fn alike(&self) -> Vec<(&str, Vec<f64>)> {
        let mut alike: Vec<(&Row, Vec<f64>)> = Vec::new();
        for row in &self.rows {
            let Some(budget) = row.budget else { continue };
            match alike.iter_mut().find(|(first, _)| first.label == row.label && first.metrics == row.metrics) {
                Some((_, budgets)) => budgets.push(budget),
                None => alike.push((row, vec![budget])),
            }
        }
        alike.into_iter().filter(|(_, all)| all.len() > 1).map(|(row, all)| (row.label.as_str(), all)).collect()
    }

    /// [`StudyReport::table`] in Markdown.
    pub fn markdown(&self) -> String {
        Document::from(self.table()).render(Format::Markdown, None)
    }
}

impl Row {
    /// The confidence interval of `metric`. `None` if the interval reaches to ten times the metric's value or beyond,
    /// because it is then meaningless.
    pub fn interval(&self, metric: &Metric) -> Option<&Interval> {
        let (interval, value) = (self.intervals.get(metric.key)?, (metric.of)(&self.metrics)?);
        (!metric.geometric() || interval.high < MEANINGLESS * value).then_some(interval)
    }
}

/// An interval of a geometric mean is meaningless if it reaches to this many times the value.
const MEANINGLESS: f64 = 10.0;

/// Number of metrics that only some tasks have. They are the last ones of [`METRICS`].
const OPTIONAL: usize = 2;

/// Metrics whose intervals the table shows. The document has the intervals of all metrics.
const WITH_SPREAD: [&str; 6] = ["perplexity_ratio", "accuracy", "agreement", "kl", "exact_match", "score"];

/// A number, followed by the larger half of its interval to two digits, if the interval is not a point. The half is
/// given because an interval need not be symmetric. `?` stands for a meaningless interval.
fn with_spread(value: f64, interval: Option<&Interval>) -> String {
    let Some(interval) = interval else { return format!("{} ±?", number(value)) };
    let spread = match (interval.high - value).max(value - interval.low) {
        r if r < 5e-4 => return number(value),
        r if r < 0.1 => format!("{r:.3}"),
        r if r < 1.0 => format!("{r:.2}"),
        r if r < 100.0 => format!("{r:.1}"),
        r => format!("{r:.0e}"),
    };
    format!("{} ±{spread}", number(value))
}

/// A number to three digits after the point. From 1000 on it is written with an exponent and two digits after the
/// point, because more digits would be noise.
fn number(value: f64) -> String {
    if value.abs() < 1000.0 { format!("{value:.3}") } else { format!("{value:.2e}") }
}

#[cfg(test)]
mod tests {
    use waggle_model::ModelSpec;

    use super::*;

    #[test]
    fn json_comes_back_equal_and_the_table_shows_what_is_known() {
        let metrics = Metrics {
            perplexity: 12345.0,
            perplexity_ratio: 1.5,
            accuracy: 0.25,
            agreement: 0.5,
            kl: 0.125,
            ..Metrics::default()
        };
        let interval = Interval { low: 0.2, high: 0.37, standard_error: 0.03 };
        let scores = Scores {
            metrics,
            intervals: BTreeMap::from([("accuracy".to_owned(), interval)]),
            by_sequence: vec![metrics; 2],
            generated: Vec::new(),
        };
        let spec = ModelSpec::from_config_json(br#"{"model_type": "gpt2", "n_layer": 1}"#).unwrap();
        let sequences = Sequence::cut(&[1; 20], 10, 5, 2).unwrap();
        let options = BTreeMap::from([("engine".to_owned(), Value::from("secure"))]);
        let study = StudyReport::new(ModelInfo::new("small", &spec), options, &sequences, &[], (scores, Vec::new()));
        assert_eq!((study.sequences, study.scored), (2, 8));
        let json = serde_json::to_value(&study).unwrap();
        assert_eq!((&json["rows"][0]["kl"], &json["rows"][0]["policy"]), (&Value::from(0.125), &Value::from("full")));
        assert_eq!(serde_json::from_value::<StudyReport>(json).unwrap(), study);
        let markdown = study.markdown();
        let cells: Vec<&str> = markdown.lines().last().unwrap().split('|').map(str::trim).collect();
        assert_eq!(cells[1..], ["full", "1.23e4", "1.500", "0.250 ±0.12", "0.500", "0.125", ""], "{markdown}");
        let mut study = study;
        // Older studies planned only the first token after a cache.
        let old = r#"{"cached": 9, "online_bytes": 1500, "prepared_bytes": 0, "flows": 7, "seconds": 1.0}"#;
        let cost: TokenCost = serde_json::from_str(old).unwrap();
        assert_eq!((cost.prompt, cost.tokens, cost.prepared_prompt_bytes), (9, 1, None));
        study.rows[0].cost = Some(cost);
        let markdown = study.markdown();
        assert!(markdown.contains("1.50 kB") && markdown.contains("network s"), "{markdown}");
        // An interval by a factor of hundreds either way is meaningless.
        let interval = Interval { low: 1e-3, high: 700.0, standard_error: 9.0 };
        study.rows[0].intervals.insert("perplexity_ratio".into(), interval);
        assert!(study.markdown().contains("| 1.500 ±? |"), "{}", study.markdown());
    }
}
