//! A study in the form of lm-evaluation-harness, for scripts that read its results.

use serde_json::{Map, Value, json};
use waggle_report::ModelInfo;

use super::{Candidate, Metric, Row, StudyReport, Task};

impl StudyReport {
    /// The results in the form of lm-evaluation-harness: `results`, `configs`, `versions`, `n-shot`, `n-samples`,
    /// `higher_is_better` and `config`. The full cache is listed as the task itself, and a policy as `TASK@POLICY`. A
    /// task's numbers are its own metrics and the accuracy of next tokens. A standard error that is not known is
    /// `"N/A"`, as in the harness.
    pub fn lm_eval(&self, task: &Task) -> Value {
        let mut metrics: Vec<&Metric> = task.metrics.iter().filter_map(|key| Metric::named(key)).collect();
        metrics.extend(Metric::named("accuracy").filter(|metric| !task.metrics.contains(&metric.key)));
        let by_name = |of: &dyn Fn(&Row) -> Value| -> Value {
            let entries = self.rows.iter().map(|row| (name(task, row), of(row)));
            entries.collect::<Map<String, Value>>().into()
        };
        let higher = |_: &Row| {
            let entries = metrics.iter().map(|metric| (metric.key.to_owned(), Value::from(!metric.loss)));
            entries.collect::<Map<String, Value>>().into()
        };
        let config = |row: &Row| {
            json!({
                "task": task.name, "description": task.about, "num_fewshot": 0,
                "metadata": { "version": task.version, "policy": row.policy, "options": self.options },
            })
        };
        json!({
            "results": by_name(&|row| numbers(row, &name(task, row), &metrics)),
            "configs": by_name(&config),
            "versions": by_name(&|_| task.version.into()),
            "n-shot": by_name(&|_| 0.into()),
            "n-samples": by_name(&|_| json!({ "original": self.sequences, "effective": self.sequences })),
            "higher_is_better": by_name(&higher),
            "config": config_of(&self.model),
            "model_name": self.model.name,
        })
    }
}

/// The configuration of a run with `model`, as an object in the harness's form.
pub(crate) fn config_of(model: &ModelInfo) -> Value {
    json!({
        "model": "waggle",
        "model_args": format!("pretrained={}", model.name),
        "model_num_parameters": model.parameters,
        "batch_size": 1,
    })
}

fn name(task: &Task, row: &Row) -> String {
    match row.budget {
        None if row.label == Candidate::full().label => task.name.into(),
        None => format!("{}@{}", task.name, row.label),
        Some(_) => format!("{}@{}", task.name, row.policy),
    }
}

fn numbers(row: &Row, alias: &str, metrics: &[&Metric]) -> Value {
    let mut numbers = Map::from_iter([("alias".to_owned(), alias.into())]);
    for metric in metrics {
        let Some(value) = (metric.of)(&row.metrics) else { continue };
        let error = row.interval(metric).map_or_else(|| "N/A".into(), |interval| interval.standard_error.into());
        numbers.insert(format!("{},none", metric.key), value.into());
        numbers.insert(format!("{}_stderr,none", metric.key), error);
    }
    numbers.into()
}
