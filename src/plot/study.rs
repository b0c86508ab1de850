//! The plots of a study of cache policies.

use waggle_mpcache::PolicySpec;
use waggle_study::eval::{METRICS, Metric, Row, StudyReport};

use super::axis::{Scale, Unit};
use super::canvas::X;
use super::chart::{Chart, Mark, Quantity, Series};
use super::grid::distinct;
use super::{along, without};

/// Beginning of logarithmic axes of values that may be zero.
const FLOOR: f64 = 1e-4;

/// Metrics that are drawn against bytes and against the tokens attended to.
const QUALITIES: [&str; 4] = ["perplexity_ratio", "accuracy", "exact_match", "score"];

/// A quantity that a policy spends.
struct Spent {
    /// The end of a plot's name.
    key: &'static str,
    label: &'static str,
    unit: Unit,
    of: fn(&Row) -> Option<f64>,
}

const SPENT: [Spent; 3] = [
    Spent {
        key: "online-bytes",
        label: "bytes both ways for a decoded token, online",
        unit: Unit::Bytes,
        of: |row| row.cost.as_ref().map(|cost| cost.online_bytes),
    },
    Spent {
        key: "bytes",
        label: "bytes both ways for a decoded token, online and prepared",
        unit: Unit::Bytes,
        of: |row| row.cost.as_ref().map(|cost| cost.online_bytes + cost.prepared_bytes),
    },
    Spent {
        key: "tokens",
        label: "tokens attended to, mean over queries and heads",
        unit: Unit::Number,
        of: |row| row.metrics.attended_tokens,
    },
];

/// Every plot of `study`, by name: each metric against the share of tokens attended to, and the most important
/// metrics against costs. The share itself is drawn against the budget, and so are all metrics if the engine could
/// not see the share. In all other plots the budget is written beside the points, because each policy counts it in
/// its own way.
pub(super) fn charts(study: &StudyReport) -> impl Iterator<Item = (String, Chart)> {
    let seen = study.rows.iter().any(|row| row.metrics.attended.is_some());
    let full = study.rows.iter().find(|row| row.budget.is_none()).and_then(|row| row.metrics.attended);
    let by_share = METRICS.iter().map(move |metric| {
        let (chart, label, x_ticks) = if seen && !metric.key.starts_with("attended") {
            let label = "share of the tokens attended to, measured; numbers at points are budgets".to_owned();
            (chart(study, metric, |row| row.metrics.attended, full), label, Vec::new())
        } else {
            let mut chart = chart(study, metric, |row| row.budget, None);
            chart.series.iter_mut().flat_map(|series| &mut series.marks).for_each(|mark| mark.label = None);
            (chart, budget_label(study), budgets(study))
        };
        let x = Quantity { label, scale: Scale::Log, unit: Unit::Number };
        (metric.key.to_owned(), Chart { x_ticks, x, ..chart })
    });
    let qualities = QUALITIES.iter().filter_map(|key| Metric::named(key));
    let pairs = qualities.flat_map(|metric| SPENT.iter().map(move |spent| (metric, spent)));
    let by_cost = pairs.map(move |(metric, spent)| {
        let full = study.rows.iter().find(|row| row.budget.is_none()).and_then(spent.of);
        let chart = chart(study, metric, spent.of, full);
        let x = Quantity { label: spent.label.into(), scale: Scale::Log, unit: spent.unit };
        (format!("{}-{}", metric.key, spent.key), Chart { x, ..chart })
    });
    by_share.chain(by_cost).filter(|(_, chart)| !chart.series.is_empty())
}

/// Each metric against the option `x`, for the policies that have this option.
pub(super) fn against(study: &StudyReport, x: &X) -> impl Iterator<Item = (String, Chart)> {
    let X::Option(key) = x else { return Vec::new().into_iter() };
    let of = |metric: &Metric| {
        let marks = study.rows.iter().filter_map(|row| {
            let (line, x) = along(&row.policy.to_string(), key)?;
            Some((line, Mark { x, ..mark(row, metric)? }))
        });
        let series = Series::gather(marks);
        let x_ticks = distinct(series.iter().flat_map(|series| series.marks.iter().map(|mark| mark.x)));
        let full =
            study.rows.iter().find(|row| row.policy == PolicySpec::default()).and_then(|row| mark(row, metric));
        let plain = chart(study, metric, |_| None, None);
        let x = Quantity { label: x.label().into(), scale: Scale::Linear, unit: Unit::Number };
        (metric.key.to_owned(), Chart { x, x_ticks, series, full: full.map(|mark| (None, mark)), ..plain })
    };
    let charts = METRICS.iter().map(of).filter(|(_, chart)| chart.x_ticks.len() > 1);
    charts.collect::<Vec<_>>().into_iter()
}

/// `metric` of every row against `x`, with a line for each policy. The full cache is drawn at `place` or, without a
/// place, as a level alone.
fn chart(study: &StudyReport, metric: &Metric, x: impl Fn(&Row) -> Option<f64>, place: Option<f64>) -> Chart {
    let marks = study.rows.iter().filter(|row| row.budget.is_some()).filter_map(|row| {
        Some((without(&row.label, "budget"), Mark { x: x(row)?, label: row.budget, ..mark(row, metric)? }))
    });
    let series = Series::gather(marks);
    let full = study.rows.iter().find(|row| row.budget.is_none()).and_then(|row| mark(row, metric));
    let count = metric.key == "attended_tokens";
    let y = Quantity {
        label: metric.short_title().into(),
        scale: if metric.share { Scale::Linear } else { Scale::Log },
        unit: if metric.share { Unit::Share } else { Unit::Number },
    };
    Chart {
        title: metric.title.into(),
        note: note(study),
        y,
        series,
        full: full.map(|mark| (place, Mark { x: place.unwrap_or(1.0), ..mark })),
        floor: (!metric.share && !count).then_some(FLOOR),
        ..Chart::default()
    }
}

fn mark(row: &Row, metric: &Metric) -> Option<Mark> {
    let interval = row.interval(metric).map(|interval| (interval.low, interval.high));
    (metric.of)(&row.metrics).map(|y| Mark { y, interval, ..Mark::default() })
}

/// The study's model, task and sequences, below the title.
fn note(study: &StudyReport) -> String {
    let option = |name: &str| {
        let value = study.options.get(name).filter(|value| !value.is_null())?;
        Some(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
    };
    let mut parts = vec![study.model.name.clone()];
    parts.extend(option("task").map(|task| format!("task {task}")));
    parts.push(match study.sequences {
        1 => "one sequence".into(),
        n => format!("{n} sequences"),
    });
    let lengths = || study.of_sequences.iter().map(|sequence| sequence.tokens);
    let same = lengths().min() == lengths().max();
    parts.extend(option("context").map(|most| format!("{}{most} tokens", if same { "" } else { "up to " })));
    let cost = study.rows.iter().find_map(|row| row.cost.as_ref());
    parts.extend(cost.map(|cost| format!("costs: mean of {} tokens after {}", cost.tokens, cost.prompt)));
    if study.rows.iter().any(|row| !row.intervals.is_empty()) {
        parts.push("bars: 95 % confidence over sequences".into());
    }
    parts.join(" · ")
}

fn budgets(study: &StudyReport) -> Vec<f64> {
    distinct(study.rows.iter().filter_map(|row| row.budget))
}

fn budget_label(study: &StudyReport) -> String {
    let budgets = budgets(study);
    let (shares, tokens) = (budgets.iter().any(|b| *b <= 1.0), budgets.iter().any(|b| *b > 1.0));
    match (shares, tokens) {
        (true, true) => "budget: share of the cache, or tokens from 2 on".into(),
        (false, true) => "budget: tokens".into(),
        _ => "budget: share of the cache".into(),
    }
}
