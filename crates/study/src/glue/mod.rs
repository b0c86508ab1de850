//! Studies of encoders on tasks in the form of GLUE (Wang et al., ICLR 2019), on any engine: how many classes or
//! scores are right.
//!
//! | metric | of | definition |
//! |---|---|---|
//! | `accuracy` | classes | share of examples whose class is right |
//! | `f1` | two classes | 2 tp / (2 tp + fp + fn), of true and false positives and negatives of class 1 |
//! | `matthews` | two classes | correlation of found and right classes |
//! | `pearson`, `spearman` | scores | correlation of found and right scores, and of their ranks |
//! | `agreement` | classes | share of examples of which f32 finds the same class |
//! | `largest_error` | | largest difference of a logit or a score from f32 |
//!
//! The first five have a 95 % confidence [`Interval`] over the examples, by the jackknife of [`crate::eval`].

pub(crate) mod metrics;
mod read;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use thiserror::Error;
use waggle_mpcache::PolicySpec;
use waggle_report::ModelInfo;
use waggle_report::provenance::Provenance;
use waggle_report::table::{Cell, Table};
use waggle_tokenizer::Tokenizer;

use crate::eval::{EvalError, Interval, Runner, config_of};
pub use read::{Example, read};

/// Version of the record's schema. It is raised when a field is removed or its meaning changes.
pub const GLUE_VERSION: u32 = 1;

/// Name of the task and of its results.
pub const TASK: &str = "glue";

/// The question that the task asks, for help texts.
pub const ABOUT: &str = "classes or scores of an encoder, on a file in the form of GLUE's tasks";

/// Why a study of an encoder cannot be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GlueError {
    /// A line of the file that cannot be used.
    #[error("line {line}: {what}")]
    Line {
        /// Number of the line or the example, from 1.
        line: usize,
        /// What is wrong with the line.
        what: String,
    },
    /// A file without examples.
    #[error("no line of the file has an example")]
    Empty,
    /// A model that gives neither a class nor a score.
    #[error("the task glue is for encoders with a classifier, and {0} is none")]
    NoEncoder(String),
    /// A model that decides about each class separately, so that a text may have several classes.
    #[error("the task glue asks for one class of several, and {0} finds each by itself (multi_label_classification)")]
    MultiLabel(String),
    /// A run of the model that failed.
    #[error(transparent)]
    Run(#[from] EvalError),
    /// An example that the model cannot read.
    #[error("example {example}: {source}")]
    Example {
        /// Number of the example, from 1.
        example: usize,
        /// The reason.
        source: EvalError,
    },
}

/// A model's answer for one example.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The right class or score.
    pub gold: f64,
    /// The model's logits, or its score.
    pub logits: Vec<f32>,
}

impl Answer {
    /// The number of the class that the model finds, or the model's score.
    fn found(&self) -> f64 {
        class(&self.logits)
    }
}

/// The number of the class with the largest logit; of classes with equal logits, the first. For a model with one
/// output, that output, which is its score.
fn class(logits: &[f32]) -> f64 {
    if let [score] = logits {
        return (*score).into();
    }
    let best = (0..logits.len()).rev().max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
    best.unwrap_or_default() as f64
}

/// A metric and its uncertainty.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scored {
    /// The metric over all examples.
    pub value: f64,
    /// The metric's confidence interval; `None` for a single example.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<Interval>,
}

/// The record of a study.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GlueReport {
    /// [`GLUE_VERSION`].
    pub version: u32,
    /// The origin of the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Provenance>,
    /// The model.
    pub model: ModelInfo,
    /// Every option of the study, by name.
    pub options: BTreeMap<String, Value>,
    /// The names of the classes, or the one name of the score.
    pub labels: Vec<String>,
    /// The metrics by key.
    pub metrics: BTreeMap<String, Scored>,
    /// Share of the examples for which f32 finds the same class.
    pub agreement: f64,
    /// Largest difference of a logit, or of a score, from f32's.
    pub largest_error: f64,
    /// The model's answer for each example.
    pub answers: Vec<Answer>,
}

/// Asks `runner` for the class or the score of each of `examples`, under `policy`. `tick` is called after each
/// example.
///
/// # Errors
/// [`GlueError::Example`] for the first example that the model cannot read, before any run. Errors of the runs.
pub fn answers(
    runner: &dyn Runner,
    tokenizer: &Tokenizer,
    examples: &[Example],
    policy: &PolicySpec,
    tick: &(dyn Fn() + Sync),
) -> Result<Vec<Answer>, GlueError> {
    let spec = runner.spec();
    let of = |at: usize| move |source: EvalError| GlueError::Example { example: at + 1, source };
    let mut inputs = Vec::with_capacity(examples.len());
    for (at, Example { text, pair, .. }) in examples.iter().enumerate() {
        let encoded = match pair {
            Some(pair) => tokenizer.encode_pair(text, pair),
            None => tokenizer.encode(text).map(|ids| (ids, None)),
        };
        let (ids, second) = encoded.map_err(|e| of(at)(EvalError::Tokenizer(e.to_string())))?;
        if ids.len() > spec.max_positions() {
            let (context, limit) = (ids.len(), spec.max_positions());
            return Err(of(at)(EvalError::Context { context, limit }));
        }
        inputs.push((ids, second));
    }
    let batches: Vec<_> = inputs.chunks(runner.most_side_by_side()).collect();
    let logits = crate::eval::parallel(batches.len(), runner.most_at_once(), |at| {
        let logits = runner.classify(batches[at], policy)?;
        batches[at].iter().for_each(|_| tick());
        Ok(logits)
    })?;
    Ok(logits
        .into_iter()
        .flatten()
        .zip(examples)
        .map(|(logits, example)| Answer { gold: example.gold, logits })
        .collect())
}

impl GlueReport {
    /// The record of a study with these `answers`. They are compared with the answers that f32 gives to the same
    /// examples.
    pub fn new(
        model: ModelInfo,
        labels: Vec<String>,
        options: BTreeMap<String, Value>,
        answers: Vec<Answer>,
        float: &[Answer],
    ) -> Self {
        let pairs: Vec<(f64, f64)> = answers.iter().map(|answer| (answer.found(), answer.gold)).collect();
        let scored = metrics::metrics(labels.len()).iter().map(|metric| {
            let without = |left: usize| {
                let rest: Vec<_> = pairs[..left].iter().chain(&pairs[left + 1..]).copied().collect();
                (metric.of)(&rest)
            };
            let value = (metric.of)(&pairs);
            let without: Vec<f64> =
                if pairs.len() > 1 { (0..pairs.len()).map(without).collect() } else { Vec::new() };
            (metric.key.to_owned(), Scored { value, interval: Interval::of(value, &without, metric.range) })
        });
        let metrics = scored.collect();
        let same = answers.iter().zip(float).filter(|(answer, float)| class(&answer.logits) == class(&float.logits));
        let agreement = same.count() as f64 / answers.len() as f64;
        let errors = answers.iter().zip(float).flat_map(|(a, b)| a.logits.iter().zip(&b.logits));
        let largest_error = errors.map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max);
        GlueReport {
            version: GLUE_VERSION,
            provenance: None,
            model,
            options,
            labels,
            metrics,
            agreement,
            largest_error,
            answers,
        }
    }

    /// The metrics as a table.
    pub fn table(&self) -> Table {
        let columns = ["model", "engine", "examples", "metric", "value", "95 % from", "to"];
        let mut table = Table::new(2, columns.map(|title| (title, "")));
        let engine = self.options.get("engine").and_then(Value::as_str).unwrap_or_default();
        let number = |value: f64| Cell::number(value, format!("{value:.4}"));
        let mut add = |metric: &str, Scored { value, interval }: Scored| {
            table.add([
                Cell::text(self.model.name.clone()),
                Cell::text(engine),
                Cell::count(self.answers.len() as u64),
                Cell::text(metric),
                number(value),
                Cell::maybe(interval.map(|interval| interval.low), number),
                Cell::maybe(interval.map(|interval| interval.high), number),
            ]);
        };
        self.metrics.iter().for_each(|(key, scored)| add(key, *scored));
        if self.labels.len() > 1 {
            add("agreement", Scored { value: self.agreement, interval: None });
        }
        add("largest error", Scored { value: self.largest_error, interval: None });
        table
    }

    /// The results in the form of lm-evaluation-harness.
    pub fn lm_eval(&self) -> Value {
        let mut numbers = Map::from_iter([("alias".to_owned(), TASK.into())]);
        for (key, Scored { value, interval }) in &self.metrics {
            let error = interval.map_or_else(|| "N/A".into(), |interval| interval.standard_error.into());
            numbers.insert(format!("{key},none"), (*value).into());
            numbers.insert(format!("{key}_stderr,none"), error);
        }
        let higher: Map<String, Value> = self.metrics.keys().map(|key| (key.clone(), true.into())).collect();
        let n = self.answers.len();
        json!({
            "results": { TASK: numbers },
            "configs": { TASK: { "task": TASK, "num_fewshot": 0, "metadata": { "version": 1, "options": self.options } } },
            "versions": { TASK: 1 },
            "n-shot": { TASK: 0 },
            "n-samples": { TASK: { "original": n, "effective": n } },
            "higher_is_better": { TASK: higher },
            "config": config_of(&self.model),
            "model_name": self.model.name,
        })
    }
}
