//! The plots of sessions, measured or planned.

use std::collections::{BTreeMap, BTreeSet};

use net::Phase;
use report::{Cost, Operation, Report, any_layer, phase_name};

use super::axis::{Scale, Unit};
use super::bars::Bars;
use super::chart::{Chart, Mark, Quantity, Series};
use super::grid::distinct;
use super::{Plots, Sheet, add};
use crate::cli::Error;

/// Operations with a part of their own; the others are one part.
const PARTS: usize = 8;

const PHASES: [Phase; 4] = [Phase::Setup, Phase::Offline, Phase::Prefill, Phase::Decode];

/// A number of an operation or of a phase.
struct Kind {
    key: &'static str,
    title: &'static str,
    unit: Unit,
    of: fn(&Cost) -> f64,
}

const KINDS: [Kind; 3] = [
    Kind { key: "bytes", title: "Bytes both ways", unit: Unit::Bytes, of: |cost| cost.bytes() as f64 },
    Kind { key: "flows", title: "Flows", unit: Unit::Number, of: |cost| cost.flows as f64 },
    Kind { key: "seconds", title: "Seconds", unit: Unit::Number, of: |cost| cost.seconds },
];

impl Kind {
    /// Its title for `report`, whose seconds may be those of the network alone.
    fn title(&self, report: &Report) -> String {
        if self.key == "seconds" { format!("Seconds, {}", report.seconds().name()) } else { self.title.into() }
    }
}

/// The plots of one session.
pub(in crate::cli) fn of_session(report: &Report, sheet: &Sheet) -> Result<Plots, Error> {
    let mut plots = Plots::new();
    let named = named(&[report], &KINDS.each_ref(), &PHASES);
    add(&mut plots, sheet, "timeline", &timeline(report))?;
    for kind in &KINDS {
        add(&mut plots, sheet, format!("operations-{}", kind.key), &operations(report, kind, &named))?;
    }
    for kind in &KINDS {
        add(&mut plots, sheet, format!("tokens-{}", kind.key), &tokens(report, kind))?;
    }
    Ok(plots)
}

/// A short name of an operation: the first two scopes of its path below the layer.
fn part(op: &Operation) -> String {
    let path = any_layer(&op.path);
    let short: Vec<&str> = path.strip_prefix("layer */").unwrap_or(&path).split('/').take(2).collect();
    if short == [""] { "outside of operations".into() } else { short.join("/") }
}

/// The costs of the operations of a phase, by the parts of a bar.
fn sums(report: &Report, phase: Phase, kind: &Kind) -> BTreeMap<String, f64> {
    let mut sums = BTreeMap::new();
    for op in report.operations.iter().filter(|op| op.phase == phase) {
        *sums.entry(part(op)).or_default() += (kind.of)(&op.cost);
    }
    sums
}

/// Each phase as a bar, in parts by operation.
fn operations(report: &Report, kind: &Kind, named: &[String]) -> Bars {
    let rows = PHASES.map(|phase| (phase_name(phase).to_owned(), sums(report, phase, kind)));
    stacked(
        rows.to_vec(),
        named,
        kind,
        format!("{} by operation and phase", kind.title(report)),
        describe(report),
        None,
    )
}

/// The operations that have a part of their own in every chart of a page, in the order of their numbers. An operation
/// counts by its largest share of a bar, whatever the bar is of.
fn named(reports: &[&Report], kinds: &[&Kind], phases: &[Phase]) -> Vec<String> {
    let mut shares: BTreeMap<String, f64> = BTreeMap::new();
    for (report, kind) in reports.iter().flat_map(|report| kinds.iter().map(move |kind| (report, kind))) {
        for phase in phases {
            let sums = sums(report, *phase, kind);
            let total: f64 = sums.values().sum();
            for (name, value) in sums.into_iter().filter(|(_, value)| *value > 0.0) {
                let share = shares.entry(name).or_default();
                *share = share.max(value / total);
            }
        }
    }
    let mut order: Vec<(String, f64)> = shares.into_iter().collect();
    order.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    order.into_iter().take(PARTS).map(|(name, _)| name).collect()
}

/// Bars in the parts `named`, with the others together.
fn stacked(
    rows: Vec<(String, BTreeMap<String, f64>)>,
    named: &[String],
    kind: &Kind,
    title: String,
    note: String,
    axis: Option<String>,
) -> Bars {
    let rows: Vec<_> = rows.into_iter().filter(|(_, sums)| sums.values().sum::<f64>() > 0.0).collect();
    let others: BTreeSet<&String> = rows
        .iter()
        .flat_map(|(_, sums)| sums)
        .filter(|(_, sum)| **sum > 0.0)
        .map(|(name, _)| name)
        .filter(|name| !named.contains(name))
        .collect();
    let others = others.len();
    let mut parts = named.to_vec();
    if others > 0 {
        parts.push(format!("{others} other operations"));
    }
    let values = |sums: &BTreeMap<String, f64>| {
        let mut values: Vec<f64> = named.iter().map(|name| sums.get(name).copied().unwrap_or(0.0)).collect();
        if others > 0 {
            values.push((sums.values().sum::<f64>() - values.iter().sum::<f64>()).max(0.0));
        }
        values
    };
    let rows = rows.iter().map(|(name, sums)| (name.clone(), values(sums))).collect();
    Bars { title, note, axis, unit: kind.unit, parts, rows }
}

/// The decoded tokens one by one.
fn tokens(report: &Report, kind: &Kind) -> Option<Chart> {
    let costs = report.phases.decode.per_token.iter().zip(2u32..);
    let mark = |(cost, i)| Mark { x: f64::from(i), y: (kind.of)(cost), ..Mark::default() };
    let marks: Vec<Mark> = costs.map(mark).collect();
    if marks.len() < 2 || marks.iter().all(|mark| mark.y == 0.0) {
        return None;
    }
    let label = kind.title(report).to_lowercase();
    Some(Chart {
        title: format!("{} of each decoded token, online", kind.title(report)),
        note: describe(report),
        x: Quantity { label: "generated token".into(), scale: Scale::Linear, unit: Unit::Number },
        y: Quantity { label: label.clone(), scale: Scale::Linear, unit: kind.unit },
        series: vec![Series { label, marks }],
        plain: true,
        ..Chart::default()
    })
}

/// Setup, preparation, prompt and tokens, one after another, as parts of one bar.
fn timeline(report: &Report) -> Bars {
    let phases = &report.phases;
    let spans = [
        ("setup", &phases.setup),
        ("preparation", &phases.offline),
        ("prompt and first token", &phases.prefill),
        ("tokens", &phases.decode.total),
    ];
    let seconds = spans.map(|(_, cost)| cost.seconds);
    Bars {
        title: format!("Timeline: {:.2} s, {}", seconds.iter().sum::<f64>(), report.seconds().name()),
        note: describe(report),
        axis: Some("seconds".into()),
        unit: Unit::Number,
        parts: spans.map(|(name, cost)| format!("{name} {:.2} s", cost.seconds)).to_vec(),
        rows: vec![(String::new(), seconds.to_vec())],
    }
}

/// The run, described below a title.
fn describe(report: &Report) -> String {
    let option = |name: &str| report.options.get(name).and_then(|value| value.as_str());
    let mut parts = vec![report.model.name.clone()];
    parts.extend(option("policy").map(|policy| format!("policy {policy}")));
    parts.extend(option("link").map(|link| format!("link {link}")));
    parts.push(format!("prompt of {} tokens", report.prompt_tokens));
    if report.predicted {
        parts.push("planned".into());
    }
    parts.join(" · ")
}

/// The plots of several sessions, by name, beside each other: what a decoded token costs against the length of the
/// cache, a line for each policy, and bars of each session by operation.
pub(in crate::cli) fn of_sessions(reports: &[(String, Report)], sheet: &Sheet) -> Result<Plots, Error> {
    let mut plots = Plots::new();
    let Some((_, first)) = reports.first() else { return Ok(plots) };
    // Seconds of two kinds are not drawn beside each other.
    let same = reports.iter().all(|(_, report)| report.seconds() == first.seconds());
    let kinds: Vec<&Kind> = KINDS.iter().filter(|kind| same || kind.key != "seconds").collect();
    let all: Vec<&Report> = reports.iter().map(|(_, report)| report).collect();
    let named = named(&all, &kinds, &[Phase::Decode]);
    for kind in kinds {
        let title = kind.title(first);
        for (online, end) in [(true, ""), (false, "-prepared")] {
            add(&mut plots, sheet, format!("{}-context{end}", kind.key), &against_context(reports, kind, online))?;
        }
        let rows = reports.iter().map(|(name, report)| {
            let mut sums = sums(report, Phase::Decode, kind);
            let decoded = report.phases.decode.per_token.len().max(1) as f64;
            sums.values_mut().for_each(|sum| *sum /= decoded);
            (name.clone(), sums)
        });
        let axis = Some(title.to_lowercase());
        let title = format!("{title} of a decoded token by operation, online");
        let bars = stacked(rows.collect(), &named, kind, title, String::new(), axis);
        add(&mut plots, sheet, format!("operations-{}", kind.key), &bars)?;
    }
    Ok(plots)
}

/// The number of cached tokens at which a session's decoded tokens stand, on average.
fn context(report: &Report) -> Option<f64> {
    let decoded = report.phases.decode.per_token.len();
    if decoded == 0 {
        return None;
    }
    let cached = report.options.get("cached").and_then(serde_json::Value::as_u64);
    Some(cached.map_or(report.prompt_tokens as f64 + decoded as f64 / 2.0, |cached| cached as f64))
}

fn against_context(reports: &[(String, Report)], kind: &Kind, online: bool) -> Option<Chart> {
    let option = |report: &Report, name: &str| {
        report.options.get(name).and_then(|value| value.as_str()).unwrap_or_default().to_owned()
    };
    // Facts that all have in common are told once; those that differ are in the label.
    let same = |of: &dyn Fn(&Report) -> String| reports.iter().all(|(_, report)| of(report) == of(&reports[0].1));
    let model = |report: &Report| report.model.name.clone();
    let link = |report: &Report| option(report, "link");
    let (same_model, same_link) = (same(&model), same(&link));
    let marks = reports.iter().filter_map(|(_, report)| {
        let decoded = report.phases.decode.per_token.len() as f64;
        let cost = if online { &report.phases.decode.total } else { &report.phases.offline };
        let mark = Mark { x: context(report)?, y: (kind.of)(cost) / decoded, ..Mark::default() };
        let mut label = vec![option(report, "policy")];
        label.extend((!same_model).then(|| model(report)));
        label.extend((!same_link).then(|| link(report)));
        Some((label.join(": "), mark))
    });
    let series = Series::gather(marks);
    let x_ticks = distinct(series.iter().flat_map(|series| series.marks.iter().map(|mark| mark.x)));
    if x_ticks.len() < 2 || series.iter().flat_map(|series| &series.marks).all(|mark| mark.y <= 0.0) {
        return None;
    }
    let (first, when) = (&reports[0].1, if online { "online" } else { "prepared" });
    let mut note: Vec<String> = Vec::new();
    note.extend(same_model.then(|| model(first)));
    note.extend(same_link.then(|| format!("link {}", link(first))));
    Some(Chart {
        title: format!("{} of a decoded token, {when}", kind.title(first)),
        note: note.join(" · "),
        x: Quantity { label: "cached tokens".into(), scale: Scale::Log, unit: Unit::Number },
        y: Quantity { label: kind.title(first).to_lowercase(), scale: Scale::Log, unit: kind.unit },
        x_ticks,
        series,
        ..Chart::default()
    })
}
