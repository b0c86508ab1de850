//! Plots of what a decoded token costs: of several sessions, or of the cells of a sweep.

use net::Phase;
use report::{Report, Seconds};
use serde_json::Value;

use super::axis::{Scale, Unit};
use super::bars::Bars;
use super::chart::{Chart, Mark, Quantity, Series};
use super::grid::distinct;
use super::operations::{Sums, named, stacked};
use super::session::{KINDS, sums};
use super::style::Part;
use super::{Plots, Sheet, add};
use crate::cli::Error;
use crate::cli::mean_token::Cost;
use crate::cli::sweep::{Planned, Sweep};

/// A number of each of [`KINDS`].
type Numbers = [f64; KINDS.len()];

/// What a decoded token costs, the mean of some.
pub(super) struct Decoded {
    /// The session among others.
    name: String,
    pub(super) policy: String,
    model: String,
    link: String,
    phases: &'static str,
    /// Cached tokens.
    context: Option<f64>,
    seconds: Seconds,
    online: Numbers,
    prepared: Numbers,
    /// Of what is sent online, by kind.
    operations: [Sums; KINDS.len()],
}

impl Decoded {
    /// The mean of the tokens that the session `name` decoded.
    pub(super) fn of_session(name: String, report: &Report) -> Self {
        let option = |name: &str| report.options.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let count = report.phases.decode.per_token.len();
        let decoded = count.max(1) as f64;
        let cached = report.options.get("cached").and_then(Value::as_u64);
        let middle = || report.prompt_tokens as f64 + count as f64 / 2.0;
        let numbers = |cost| KINDS.each_ref().map(|kind| (kind.of)(cost) / decoded);
        Decoded {
            name,
            policy: option("policy"),
            model: report.model.name.clone(),
            link: option("link"),
            phases: if report.options.get("preprocess").is_some_and(|two| *two == true) { "two" } else { "one" },
            context: (count > 0).then(|| cached.map_or_else(middle, |cached| cached as f64)),
            seconds: report.seconds(),
            online: numbers(&report.phases.decode.total),
            prepared: numbers(&report.phases.offline),
            operations: KINDS.each_ref().map(|kind| {
                let mut sums = sums(report, Phase::Decode, kind);
                sums.values_mut().for_each(|sum| *sum /= decoded);
                sums
            }),
        }
    }

    /// The cells of a sweep.
    pub(super) fn of_sweep(sweep: &Sweep) -> Vec<Self> {
        sweep.cells.iter().map(|cell| Self::of_cell(cell, sweep.seconds())).collect()
    }

    fn of_cell(cell: &Planned, seconds: Seconds) -> Self {
        let Planned { choice, mean, operations, .. } = cell;
        let numbers = |cost: &Cost| {
            let predicted = cost.predicted_seconds.filter(|_| seconds == Seconds::Predicted);
            [cost.bytes(), cost.flows, predicted.unwrap_or(cost.network_seconds)]
        };
        let sums = |kind: usize| -> Sums {
            operations.iter().map(|one| (one.operation.clone(), numbers(&one.mean.online)[kind])).collect()
        };
        Decoded {
            name: String::new(),
            policy: choice.policy.to_string(),
            model: choice.model.clone(),
            link: choice.link.clone(),
            phases: choice.phases.name(),
            context: Some(choice.context as f64),
            seconds,
            online: numbers(&mean.online),
            prepared: numbers(&mean.prepared_token),
            operations: [0, 1, 2].map(sums),
        }
    }
}

/// The plots of several decoded tokens beside each other: their costs against the length of the cache, a line for
/// each policy, and bars by operation, or by phase where operations are not known.
pub(super) fn of_decoded(all: &[Decoded], sheet: &Sheet) -> Result<Plots, Error> {
    let mut plots = Plots::new();
    let Some(first) = all.first() else { return Ok(plots) };
    // Seconds of two kinds are not drawn beside each other.
    let same = all.iter().all(|one| one.seconds == first.seconds);
    let kinds: Vec<usize> = (0..KINDS.len()).filter(|kind| same || KINDS[*kind].key != "seconds").collect();
    let bars: Vec<Sums> = all.iter().flat_map(|one| kinds.iter().map(|kind| one.operations[*kind].clone())).collect();
    let named = named(&bars);
    let facts = Facts::new(all);
    for kind in kinds {
        for (online, end) in [(true, ""), (false, "-prepared")] {
            let name = format!("{}-context{end}", KINDS[kind].key);
            add(&mut plots, sheet, name, &against_context(all, &facts, kind, online))?;
        }
        if named.is_empty() {
            add(&mut plots, sheet, format!("phases-{}", KINDS[kind].key), &by_phase(all, &facts, kind))?;
            continue;
        }
        let title = KINDS[kind].title(first.seconds);
        let axis = Some(title.to_lowercase());
        let title = format!("{title} of a decoded token by operation, online");
        let rows = all.iter().map(|one| (facts.name(one), one.operations[kind].clone())).collect();
        let bars = stacked(rows, &named, KINDS[kind].unit, title, facts.note.clone(), axis);
        add(&mut plots, sheet, format!("operations-{}", KINDS[kind].key), &bars)?;
    }
    Ok(plots)
}

/// A fact in the words of a chart.
type Fact = fn(&Decoded) -> String;

/// What tells decoded tokens from each other. Facts that all have in common are told once, in the note.
struct Facts {
    differ: Vec<Fact>,
    note: String,
}

impl Facts {
    fn new(all: &[Decoded]) -> Self {
        let facts: [Fact; 3] = [
            |one| one.model.clone(),
            |one| if one.link.is_empty() { String::new() } else { format!("link {}", one.link) },
            |one| format!("{} phase{}", one.phases, if one.phases == "one" { "" } else { "s" }),
        ];
        let same = |fact: &Fact| all.iter().all(|one| fact(one) == fact(&all[0]));
        let (same, differ): (Vec<Fact>, Vec<Fact>) = facts.into_iter().partition(same);
        let note: Vec<String> = same.iter().map(|fact| fact(&all[0])).filter(|fact| !fact.is_empty()).collect();
        Facts { differ, note: note.join(" · ") }
    }

    /// The line that `one` is a point of. Its policy comes first, from which it has its look.
    fn line(&self, one: &Decoded) -> String {
        let more = self.differ.iter().map(|fact| fact(one));
        [one.policy.clone()].into_iter().chain(more).collect::<Vec<_>>().join(": ")
    }

    /// `one` among all others.
    fn name(&self, one: &Decoded) -> String {
        if !one.name.is_empty() {
            return one.name.clone();
        }
        let context = one.context.map(|tokens| format!("{tokens} tokens"));
        [self.line(one)].into_iter().chain(context).collect::<Vec<_>>().join(", ")
    }
}

/// A bar of what each token takes online and prepared.
fn by_phase(all: &[Decoded], facts: &Facts, kind: usize) -> Bars {
    let title = KINDS[kind].title(all[0].seconds);
    Bars {
        axis: Some(title.to_lowercase()),
        title: format!("{title} of a decoded token, prepared and online"),
        note: facts.note.clone(),
        unit: KINDS[kind].unit,
        parts: [Phase::Offline, Phase::Decode].map(|phase| Part::phase(phase, "")).to_vec(),
        rows: all.iter().map(|one| (facts.name(one), vec![one.prepared[kind], one.online[kind]])).collect(),
    }
}

fn against_context(all: &[Decoded], facts: &Facts, kind: usize, online: bool) -> Option<Chart> {
    let marks = all.iter().filter_map(|one| {
        let y = if online { one.online[kind] } else { one.prepared[kind] };
        Some((facts.line(one), Mark { x: one.context?, y, ..Mark::default() }))
    });
    let series = Series::gather(marks);
    let x_ticks = distinct(series.iter().flat_map(|series| series.marks.iter().map(|mark| mark.x)));
    if x_ticks.len() < 2 || series.iter().flat_map(|series| &series.marks).all(|mark| mark.y <= 0.0) {
        return None;
    }
    let title = KINDS[kind].title(all[0].seconds);
    Some(Chart {
        title: format!("{title} of a decoded token, {}", if online { "online" } else { "prepared" }),
        note: facts.note.clone(),
        x: Quantity { label: "cached tokens".into(), scale: Scale::Log, unit: Unit::Number },
        y: Quantity { label: title.to_lowercase(), scale: Scale::Log, unit: KINDS[kind].unit },
        x_ticks,
        series,
        ..Chart::default()
    })
}
