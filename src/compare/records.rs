//! Compares two records.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;
use waggle_report::provenance::Provenance;
use waggle_report::table::{Cell, Document, Table};
use waggle_report::{Cost, ModelInfo, Report, Seconds, by_operation, phase_name};
use waggle_study::cost::{self, OperationCost, WorkCost};
use waggle_study::eval::{METRICS, StudyReport};
use waggle_study::sweep::{Planned, Sweep};

use super::{differences, ratio};
use crate::Error;
use crate::options::FormatArgs;
use crate::record::{self, Record, RecordError};

pub(super) fn run(paths: [&Path; 2], operations: usize, format: &FormatArgs) -> Result<(), Error> {
    let names = names(paths);
    let [first, second] = paths;
    let document = match (record::open(first)?.0, record::open(second)?.0) {
        (Record::Session(first), Record::Session(second)) => of_runs(names, [&first, &second], operations),
        (Record::Study(first), Record::Study(second)) => of_studies(names, [&first, &second]),
        (Record::Sweep(first), Record::Sweep(second)) => of_sweeps(names, [&first, &second], operations),
        _ => return Err(RecordError::Incomparable(paths.map(Path::to_owned)).into()),
    };
    format.show(document)
}

/// The files' names, or `first` and `second` if they are the same.
fn names(paths: [&Path; 2]) -> [String; 2] {
    let name = |path: &Path| path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let [first, second] = paths.map(name);
    if first == second { ["first".into(), "second".into()] } else { [first, second] }
}

/// The choices of a run, its program and its machine, by name.
type Facts = BTreeMap<String, String>;

/// The program and the machine that made a document.
fn made(provenance: Option<&Provenance>) -> Facts {
    let mut facts = Facts::new();
    if let Some(provenance) = provenance {
        facts.insert("program".into(), provenance.program());
        facts.insert("machine".into(), provenance.machine());
        facts.insert("command".into(), provenance.command.clone());
        facts.insert("date".into(), provenance.date.clone());
    }
    facts
}

fn facts(provenance: Option<&Provenance>, model: &ModelInfo, options: &BTreeMap<String, Value>) -> Facts {
    let mut facts = made(provenance);
    facts.insert("model".into(), format!("{}, {} parameters", model.name, model.parameters));
    for (name, value) in options {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        match value {
            Value::Object(settings) => {
                facts.extend(settings.iter().map(|(key, value)| (format!("option {name}, {key}"), text(value))));
            }
            value => {
                facts.insert(format!("option {name}"), text(value));
            }
        }
    }
    facts
}

fn differing(names: [String; 2], [first, second]: [Facts; 2]) -> Table {
    let all: BTreeSet<&String> = first.keys().chain(second.keys()).collect();
    let pair = |name: &String| (name.clone(), [first.get(name).cloned(), second.get(name).cloned()]);
    differences(names, all.into_iter().map(pair))
}

fn of_runs(names: [String; 2], reports: [&Report; 2], operations: usize) -> Document {
    let facts = reports.map(|report| {
        let mut facts = facts(report.provenance.as_ref(), &report.model, &report.options);
        facts.insert("prompt tokens".into(), report.prompt_tokens.to_string());
        facts.insert("generated tokens".into(), report.tokens.len().to_string());
        facts.insert("numbers".into(), if report.predicted { "planned" } else { "measured" }.into());
        if let Some(kernels) = &report.kernels {
            facts.insert("kernels".into(), kernels.clone());
        }
        facts
    });
    let mut document = begin(names.clone(), facts);
    let phases =
        reports.map(|report| report.phases.named().map(|(name, cost)| (name.to_owned(), cost.into())).to_vec());
    // Heads of columns name the kind of seconds of each report.
    let titles = [0, 1].map(|i| (names[i].as_str(), reports[i].seconds()));
    document.table("phases", costs("phase", titles, aligned(phases)));
    let operations_of = |report: &Report| -> Costs {
        let sums = by_operation(&report.operations).into_iter();
        sums.map(|((phase, path), cost)| (format!("{} {path}", phase_name(phase)), (&cost).into())).collect()
    };
    document.table("operations", costs("operation", titles, largest(reports.map(operations_of), operations)));
    document
}

/// Joins two lists of costs by name. Returns the `most` rows with the most bytes.
fn largest(both: [Costs; 2], most: usize) -> Vec<(String, [Compared; 2])> {
    let mut rows = aligned(both);
    let bytes = |(_, [a, b]): &(String, [Compared; 2])| a.bytes.max(b.bytes);
    rows.sort_by(|a, b| bytes(b).total_cmp(&bytes(a)));
    rows.truncate(most);
    rows
}

/// Cells with the same choices side by side, and their operations if both cells have them.
fn of_sweeps(names: [String; 2], sweeps: [&Sweep; 2], operations: usize) -> Document {
    let mut document = begin(names.clone(), sweeps.map(|sweep| made(sweep.provenance.as_ref())));
    let titles = [0, 1].map(|i| (names[i].as_str(), sweeps[i].seconds()));
    let compared = |sweep: &Sweep, cost: &cost::Cost| {
        let predicted = cost.predicted_seconds.filter(|_| sweep.seconds() == Seconds::Predicted);
        let seconds = predicted.unwrap_or(cost.network_seconds);
        Compared { bytes: cost.bytes(), flows: cost.flows, seconds }
    };
    let parts = |sweep: &Sweep| -> Costs {
        let of = |cell: &Planned| {
            let WorkCost { online, prepared, .. } = &cell.cost;
            [("online", online), ("prepared", prepared)]
                .map(|(part, cost)| (format!("{}: {part}", cell.choice.name()), compared(sweep, cost)))
        };
        sweep.cells.iter().flat_map(of).collect()
    };
    document.table("work", costs("the work", titles, aligned(sweeps.map(parts))));
    let of_operations = |sweep: &Sweep| -> Costs {
        let of = |cell: &Planned| {
            let named = |one: &OperationCost| {
                (format!("{}: {}", cell.choice.name(), one.operation), compared(sweep, &one.cost.total()))
            };
            cell.operations.iter().map(named).collect::<Vec<_>>()
        };
        sweep.cells.iter().flat_map(of).collect()
    };
    let both = sweeps.map(of_operations);
    if both.iter().all(|costs| !costs.is_empty()) {
        document.table("operations", costs("operation, online and prepared", titles, largest(both, operations)));
    }
    document
}

/// A document that begins with the differences between the runs.
fn begin(names: [String; 2], facts: [Facts; 2]) -> Document {
    let mut document = Document::default();
    let differing = differing(names, facts);
    if differing.is_empty() {
        document.note("the records differ in nothing but their numbers");
    } else {
        document.table("differences", differing);
    }
    document
}

/// The compared numbers of a cost. The numbers have fractions if they are means.
#[derive(Clone, Copy, Default)]
struct Compared {
    bytes: f64,
    flows: f64,
    seconds: f64,
}

impl From<&Cost> for Compared {
    fn from(cost: &Cost) -> Self {
        Compared { bytes: cost.bytes() as f64, flows: cost.flows as f64, seconds: cost.seconds }
    }
}

type Costs = Vec<(String, Compared)>;

/// Joins two lists of costs by name. An entry that one list lacks has zero costs there.
fn aligned([first, second]: [Costs; 2]) -> Vec<(String, [Compared; 2])> {
    let mut rows: Vec<(String, [Compared; 2])> = Vec::new();
    for (name, cost) in first {
        rows.push((name, [cost, Compared::default()]));
    }
    for (name, cost) in second {
        match rows.iter_mut().find(|(known, _)| *known == name) {
            Some((_, pair)) => pair[1] = cost,
            None => rows.push((name, [Compared::default(), cost])),
        }
    }
    rows
}

fn costs(title: &str, [first, second]: [(&str, Seconds); 2], rows: Vec<(String, [Compared; 2])>) -> Table {
    let of = |what: &str, (name, _): (&str, Seconds)| format!("{what}, {name}");
    let clock = |(name, seconds): (&str, Seconds)| format!("{name}, {}", seconds.name());
    let columns = [
        (title.to_owned(), ""),
        (of("sent", first), "bytes"),
        (of("sent", second), "bytes"),
        ("ratio of bytes".into(), ""),
        (of("flows", first), ""),
        (of("flows", second), ""),
        ("ratio of flows".into(), ""),
        (clock(first), "seconds"),
        (clock(second), "seconds"),
        ("ratio of seconds".into(), ""),
    ];
    let flows = |cost: Compared| Cell::number(cost.flows, format!("{:.0}", cost.flows));
    let mut table = Table::new(1, columns);
    for (name, [a, b]) in rows {
        table.add([
            Cell::text(name),
            Cell::bytes(a.bytes.round() as u64),
            Cell::bytes(b.bytes.round() as u64),
            ratio(a.bytes, b.bytes),
            flows(a),
            flows(b),
            ratio(a.flows, b.flows),
            Cell::seconds(a.seconds),
            Cell::seconds(b.seconds),
            ratio(a.seconds, b.seconds),
        ]);
    }
    table
}

fn of_studies(names: [String; 2], studies: [&StudyReport; 2]) -> Document {
    let facts = studies.map(|study| {
        let mut facts = facts(study.provenance.as_ref(), &study.model, &study.options);
        facts.insert("sequences".into(), study.sequences.to_string());
        facts.insert("scored positions".into(), study.scored.to_string());
        facts
    });
    let mut document = begin(names.clone(), facts);
    let [first, second] = names;
    let columns = [("policy", ""), ("budget", ""), ("metric", ""), (&first, ""), (&second, ""), ("ratio", "")];
    let mut table = Table::new(3, columns);
    let [a, b] = studies;
    for row in &a.rows {
        let same = |other: &&waggle_study::eval::Row| other.label == row.label && other.budget == row.budget;
        let Some(other) = b.rows.iter().find(same) else { continue };
        for metric in &METRICS {
            let (Some(x), Some(y)) = ((metric.of)(&row.metrics), (metric.of)(&other.metrics)) else { continue };
            let number = |value: f64| Cell::number(value, format!("{value:.4}"));
            table.add([
                Cell::text(row.label.clone()),
                Cell::maybe(row.budget, |budget| Cell::number(budget, budget.to_string())),
                Cell::text(metric.key),
                number(x),
                number(y),
                ratio(x, y),
            ]);
        }
    }
    let keys = |study: &StudyReport| -> Vec<(String, Option<String>)> {
        study.rows.iter().map(|row| (row.label.clone(), row.budget.map(|budget| budget.to_string()))).collect()
    };
    let (mine, theirs) = (keys(a), keys(b));
    let alone =
        mine.iter().filter(|key| !theirs.contains(key)).chain(theirs.iter().filter(|key| !mine.contains(key)));
    for (label, budget) in alone {
        let budget = budget.as_ref().map_or_else(String::new, |budget| format!(" at {budget}"));
        document.note(format!("only one of them has {label}{budget}"));
    }
    document.table("metrics", table);
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_lacks_costs_nothing() {
        let cost = |flows| Compared { flows, ..Compared::default() };
        let rows = aligned([
            vec![("a".into(), cost(1.0)), ("b".into(), cost(2.0))],
            vec![("b".into(), cost(4.0)), ("c".into(), cost(3.0))],
        ]);
        let flows: Vec<_> = rows.iter().map(|(name, [a, b])| (&name[..], a.flows, b.flows)).collect();
        assert_eq!(flows, [("a", 1.0, 0.0), ("b", 2.0, 4.0), ("c", 0.0, 3.0)]);
    }
}
