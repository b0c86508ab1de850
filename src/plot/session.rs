//! The plots of one session, measured or planned.

use std::collections::BTreeMap;

use waggle_net::Phase;
use waggle_report::{Cost, Operation, Report, Seconds, any_layer, phase_name};

use super::axis::{Scale, Unit};
use super::bars::Bars;
use super::chart::{Chart, Mark, Quantity, Series};
use super::operations::{Sums, named, stacked};
use super::style::Part;
use super::{Plots, Sheet, add};
use crate::Error;

const PHASES: [Phase; 4] = [Phase::Setup, Phase::Offline, Phase::Prefill, Phase::Decode];

/// A kind of number that operations and phases have.
pub(super) struct Kind {
    pub(super) key: &'static str,
    title: &'static str,
    pub(super) unit: Unit,
    pub(super) of: fn(&Cost) -> f64,
}

pub(super) const KINDS: [Kind; 3] = [
    Kind { key: "bytes", title: "Bytes both ways", unit: Unit::Bytes, of: |cost| cost.bytes() as f64 },
    Kind { key: "flows", title: "Flows", unit: Unit::Number, of: |cost| cost.flows as f64 },
    Kind { key: "seconds", title: "Seconds", unit: Unit::Number, of: |cost| cost.seconds },
];

impl Kind {
    /// The title of the plot. For seconds, it says which `seconds` they are, for example those of the network alone.
    pub(super) fn title(&self, seconds: Seconds) -> String {
        if self.key == "seconds" { format!("Seconds, {}", seconds.name()) } else { self.title.into() }
    }
}

/// The plots of one session.
pub(crate) fn of_session(report: &Report, sheet: &Sheet) -> Result<Plots, Error> {
    let mut plots = Plots::new();
    let all = KINDS.iter().flat_map(|kind| PHASES.map(|phase| sums(report, phase, kind)));
    let named = named(&all.collect::<Vec<_>>());
    add(&mut plots, sheet, "timeline", &timeline(report))?;
    for kind in &KINDS {
        add(&mut plots, sheet, format!("operations-{}", kind.key), &operations(report, kind, &named))?;
    }
    for kind in &KINDS {
        if let Some(tokens) = tokens(report, kind) {
            add(&mut plots, sheet, format!("tokens-{}", kind.key), &tokens)?;
        }
    }
    Ok(plots)
}

/// A short name of an operation: the first two scopes of its path, without the layer.
fn part(op: &Operation) -> String {
    let path = any_layer(&op.path);
    let short: Vec<&str> = path.strip_prefix("layer */").unwrap_or(&path).split('/').take(2).collect();
    if short == [""] { "outside of operations".into() } else { short.join("/") }
}

/// The sum of one kind of cost over the operations of a phase, for each part of a bar.
pub(super) fn sums(report: &Report, phase: Phase, kind: &Kind) -> Sums {
    let mut sums = BTreeMap::new();
    for op in report.operations.iter().filter(|op| op.phase == phase) {
        *sums.entry(part(op)).or_default() += (kind.of)(&op.cost);
    }
    sums
}

/// A bar for each phase, in parts by operation.
fn operations(report: &Report, kind: &Kind, named: &[String]) -> Bars {
    let rows = PHASES.map(|phase| (phase_name(phase).to_owned(), sums(report, phase, kind)));
    stacked(
        rows.to_vec(),
        named,
        kind.unit,
        format!("{} by operation and phase", kind.title(report.seconds())),
        describe(report),
        None,
    )
}

/// A chart of the cost of each decoded token; `None` if there are fewer than two tokens or they cost nothing.
fn tokens(report: &Report, kind: &Kind) -> Option<Chart> {
    let costs = report.phases.decode.per_token.iter().zip(2u32..);
    let mark = |(cost, i)| Mark { x: f64::from(i), y: (kind.of)(cost), ..Mark::default() };
    let marks: Vec<Mark> = costs.map(mark).collect();
    if marks.len() < 2 || marks.iter().all(|mark| mark.y == 0.0) {
        return None;
    }
    let label = kind.title(report.seconds()).to_lowercase();
    Some(Chart {
        title: format!("{} of each decoded token, online", kind.title(report.seconds())),
        note: describe(report),
        x: Quantity { label: "generated token".into(), scale: Scale::Linear, unit: Unit::Number },
        y: Quantity { label: label.clone(), scale: Scale::Linear, unit: kind.unit },
        series: vec![Series { label, marks }],
        plain: true,
        ..Chart::default()
    })
}

/// A bar of the session's seconds. Its parts are set-up, preparation, prompt and tokens, in order.
fn timeline(report: &Report) -> Bars {
    let spans = PHASES.map(|phase| (phase, report.phases.of(phase).seconds));
    Bars {
        title: format!(
            "Timeline: {:.2} s, {}",
            spans.map(|(_, span)| span).iter().sum::<f64>(),
            report.seconds().name()
        ),
        note: describe(report),
        axis: Some("seconds".into()),
        unit: Unit::Number,
        parts: spans.map(|(phase, span)| Part::phase(phase, &format!(", {span:.2} s"))).to_vec(),
        rows: vec![(String::new(), spans.map(|(_, span)| span).to_vec())],
    }
}

/// A description of the run, for the note below a title.
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
