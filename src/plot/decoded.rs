//! Plots of the costs of decoded tokens, from several sessions or from the cells of a sweep.

use std::borrow::Borrow;
use std::collections::BTreeSet;

use serde_json::Value;
use waggle_net::{LinkShape, Phase};
use waggle_protocols::Cores;
use waggle_report::{Report, Seconds};
use waggle_study::cost::{Cost, Work};
use waggle_study::sweep::{Planned, Sweep};

use super::axis::{Scale, Unit};
use super::bars::Bars;
use super::chart::{Chart, Mark, Quantity, Series};
use super::grid::distinct;
use super::operations::{Sums, named, stacked};
use super::session::{KINDS, sums};
use super::style::Part;
use super::{Plots, Sheet, X, add, along, without};
use crate::Error;

/// A number for each of [`KINDS`].
type Numbers = [f64; KINDS.len()];

/// The mean cost of a decoded token, or the cost of a pass.
pub(super) struct Decoded {
    /// The name of the session, which tells it from others.
    name: String,
    pub(super) policy: String,
    model: String,
    pub(super) link: String,
    pub(super) phases: &'static str,
    cores: String,
    /// The unit of work: a decoded token, or a pass.
    work: &'static str,
    /// Tokens in the cache, or tokens of the pass, public ones among them.
    context: Option<f64>,
    /// Private tokens of a prompt behind public ones.
    behind: Option<usize>,
    seconds: Seconds,
    online: Numbers,
    prepared: Numbers,
    /// The cost of the prompt and of its preparation, if it is known.
    prompt: Option<Numbers>,
    /// For each of [`KINDS`], the online cost of each operation.
    operations: [Sums; KINDS.len()],
}

impl Decoded {
    /// The mean cost of the tokens that the session `name` decoded.
    pub(super) fn of_session(name: String, report: &Report) -> Self {
        let option = |name: &str| report.options.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let count = report.phases.decode.per_token.len();
        let decoded = count.max(1) as f64;
        let cached = report.options.get("cached").and_then(Value::as_u64);
        let public = report.options.get("public_tokens").and_then(Value::as_u64).unwrap_or(0);
        let middle = || report.prompt_tokens as f64 + count as f64 / 2.0;
        let numbers = |cost| KINDS.each_ref().map(|kind| (kind.of)(cost) / decoded);
        Decoded {
            name,
            policy: option("policy"),
            model: report.model.name.clone(),
            link: option("link"),
            phases: report.phases_of_session(),
            cores: option("cores"),
            work: Work::Token.name(),
            context: (count > 0).then(|| public as f64 + cached.map_or_else(middle, |cached| cached as f64)),
            behind: (public > 0).then_some(report.prompt_tokens),
            seconds: report.seconds(),
            online: numbers(&report.phases.decode.total),
            prepared: numbers(&report.phases.offline),
            prompt: None,
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
        let Planned { choice, cost, operations, .. } = cell;
        let numbers = |cost: &Cost| {
            let predicted = cost.predicted_seconds.filter(|_| seconds == Seconds::Predicted);
            [cost.bytes(), cost.flows, predicted.unwrap_or(cost.network_seconds)]
        };
        let sums = |kind: usize| -> Sums {
            operations.iter().map(|one| (one.operation.clone(), numbers(&one.cost.online)[kind])).collect()
        };
        Decoded {
            name: String::new(),
            policy: choice.policy.to_string(),
            model: choice.model.clone(),
            link: choice.link.clone(),
            phases: choice.phases.name(),
            cores: choice.cores.clone(),
            work: choice.work.name(),
            context: Some((choice.public_tokens + choice.context) as f64),
            behind: (choice.public_tokens > 0).then_some(choice.context),
            seconds,
            online: numbers(&cost.online),
            prepared: numbers(&cost.prepared),
            prompt: cost.whole_prompt().as_ref().map(numbers),
            operations: [0, 1, 2].map(sums),
        }
    }
}

/// A cost that charts draw.
struct Drawn {
    /// The end of the names of their files.
    end: &'static str,
    /// What costs it, if that is not the unit of work.
    what: Option<&'static str>,
    part: &'static str,
    of: fn(&Decoded) -> Option<Numbers>,
}

const DRAWN: [Drawn; 3] = [
    Drawn { end: "", what: None, part: "online", of: |one| Some(one.online) },
    Drawn { end: "-prepared", what: None, part: "prepared", of: |one| Some(one.prepared) },
    Drawn { end: "-prompt", what: Some("the prompt"), part: "prepared and online", of: |one| one.prompt },
];

/// The plots that compare decoded tokens: their costs against the length of the cache, with a line for each policy,
/// and bars by operation, or by phase if operations are not known.
pub(super) fn of_decoded(all: &[Decoded], sheet: &Sheet) -> Result<Plots, Error> {
    let mut plots = Plots::new();
    let Some(first) = all.first() else { return Ok(plots) };
    // Seconds of two kinds are not drawn in one plot.
    let same = all.iter().all(|one| one.seconds == first.seconds);
    let kinds: Vec<usize> = (0..KINDS.len()).filter(|kind| same || KINDS[*kind].key != "seconds").collect();
    let (facts, x) = (Facts::new(all, sheet.x.as_ref()), sheet.x.clone().unwrap_or(X::Length));
    for panel in facts.panels(all) {
        let end = |name: String| if panel.name.is_empty() { name } else { format!("{name}-{}", panel.name) };
        let facts = Facts::new(&panel.all, sheet.x.as_ref());
        for &kind in &kinds {
            for drawn in &DRAWN {
                let name = match &x {
                    X::Length => "context",
                    X::Cores => "cores",
                    X::Links => "links",
                    X::Option(key) => key,
                };
                let name = end(format!("{}-{name}{}", KINDS[kind].key, drawn.end));
                if let Some(chart) = against(&panel.all, &facts, kind, drawn, &x) {
                    add(&mut plots, sheet, name, &chart)?;
                }
            }
            if sheet.x.is_none() {
                let (name, picture) = bars(&panel.all, &facts, kind);
                add(&mut plots, sheet, end(name), &picture)?;
            }
        }
    }
    Ok(plots)
}

/// The bars of `all`, by operation, or by phase if operations are not known.
fn bars(all: &[&Decoded], facts: &Facts, kind: usize) -> (String, Bars) {
    let named = named(&all.iter().map(|one| one.operations[kind].clone()).collect::<Vec<_>>());
    if named.is_empty() {
        return (format!("phases-{}", KINDS[kind].key), by_phase(all, facts, kind));
    }
    let title = KINDS[kind].title(all[0].seconds);
    let axis = Some(title.to_lowercase());
    let title = format!("{title} of {} by operation, online", all[0].work);
    let rows = all.iter().map(|one| (facts.name(one), one.operations[kind].clone())).collect();
    (
        format!("operations-{}", KINDS[kind].key),
        stacked(rows, &named, KINDS[kind].unit, title, facts.note.clone(), axis),
    )
}

/// The function that states a fact of a decoded token in words.
type Fact = fn(&Decoded) -> String;

/// The facts in which decoded tokens differ. Facts that all have in common are stated once, in the note.
struct Facts {
    differ: Vec<Fact>,
    note: String,
    x: Option<X>,
}

/// Most lines of a chart. A chart that would have more is divided: each combination of facts other than the policy,
/// such as a model and a link, then has a chart of its own.
const MOST_LINES: usize = 8;

/// The decoded tokens of one chart, and the end of the names of its files.
struct Panel<'a> {
    name: String,
    all: Vec<&'a Decoded>,
}

impl Facts {
    fn new(all: &[impl Borrow<Decoded>], x: Option<&X>) -> Self {
        let all: Vec<&Decoded> = all.iter().map(Borrow::borrow).collect();
        let mut facts: Vec<Fact> = vec![|one| one.model.clone(), |one| one.work.to_owned(), |one| match one.phases {
            "one" => "one phase".into(),
            "three parties" => "three parties".into(),
            phases => format!("phases: {phases}"),
        }];
        // Public and private tokens are along the axis together.
        facts.push(|one| one.behind.map_or_else(String::new, |private| format!("{private} behind public text")));
        if x != Some(&X::Links) {
            facts.push(|one| if one.link.is_empty() { String::new() } else { format!("link {}", one.link) });
        }
        if x != Some(&X::Cores) {
            facts.push(|one| if one.cores.is_empty() { String::new() } else { format!("{} cores", one.cores) });
        }
        let same = |fact: &Fact| all.iter().all(|one| fact(one) == fact(all[0]));
        let (same, differ): (Vec<Fact>, Vec<Fact>) = facts.into_iter().partition(same);
        let note: Vec<String> = same.iter().map(|fact| fact(all[0])).filter(|fact| !fact.is_empty()).collect();
        Facts { differ, note: note.join(" · "), x: x.cloned() }
    }

    /// Divides `all` into panels: one or, if it would have too many lines, several.
    fn panels<'a>(&self, all: &'a [Decoded]) -> Vec<Panel<'a>> {
        let lines: BTreeSet<String> = all.iter().map(|one| self.line(one)).collect();
        if lines.len() <= MOST_LINES {
            return vec![Panel { name: String::new(), all: all.iter().collect() }];
        }
        let mut panels: Vec<Panel> = Vec::new();
        for one in all {
            let words = self.differ.iter().map(|fact| fact(one)).collect::<Vec<_>>().join("-");
            let name: String = words.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
            match panels.iter_mut().find(|panel| panel.name == name) {
                Some(panel) => panel.all.push(one),
                None => panels.push(Panel { name, all: vec![one] }),
            }
        }
        panels
    }

    /// The policy of `one`, without the option that is along the axis.
    fn policy(&self, one: &Decoded) -> String {
        match &self.x {
            Some(X::Option(key)) => without(&one.policy, key),
            _ => one.policy.clone(),
        }
    }

    /// The label of the line to which `one` belongs. It begins with the policy, which determines the line's style.
    fn line(&self, one: &Decoded) -> String {
        let more = self.differ.iter().map(|fact| fact(one)).filter(|fact| !fact.is_empty());
        [self.policy(one)].into_iter().chain(more).collect::<Vec<_>>().join(": ")
    }

    /// The name of `one` among the bars of a chart.
    fn name(&self, one: &Decoded) -> String {
        if !one.name.is_empty() {
            return one.name.clone();
        }
        let context = one.context.map(|tokens| format!("{tokens} tokens"));
        [self.line(one)].into_iter().chain(context).collect::<Vec<_>>().join(", ")
    }
}

/// Bars of each token's online and prepared costs.
fn by_phase(all: &[&Decoded], facts: &Facts, kind: usize) -> Bars {
    let title = KINDS[kind].title(all[0].seconds);
    Bars {
        axis: Some(title.to_lowercase()),
        title: format!("{title} of {}, prepared and online", all[0].work),
        note: facts.note.clone(),
        unit: KINDS[kind].unit,
        parts: [Phase::Offline, Phase::Decode].map(|phase| Part::phase(phase, "")).to_vec(),
        rows: all.iter().map(|one| (facts.name(one), vec![one.prepared[kind], one.online[kind]])).collect(),
    }
}

fn against(all: &[&Decoded], facts: &Facts, kind: usize, drawn: &Drawn, x: &X) -> Option<Chart> {
    let place = |one: &Decoded| match x {
        X::Length => one.context,
        X::Cores => one.cores.parse::<Cores>().ok().map(|cores| f64::from(cores.client.min(cores.server))),
        X::Links => one.link.parse::<LinkShape>().ok().map(|link| link.units()[0]),
        X::Option(key) => along(&one.policy, key).map(|(_, value)| value),
    };
    let marks = all.iter().filter_map(|one| {
        let y = (drawn.of)(one)?[kind];
        Some((facts.line(one), Mark { x: place(one)?, y, ..Mark::default() }))
    });
    let series = Series::gather(marks);
    let x_ticks = distinct(series.iter().flat_map(|series| series.marks.iter().map(|mark| mark.x)));
    if x_ticks.len() < 2 || series.iter().flat_map(|series| &series.marks).all(|mark| mark.y <= 0.0) {
        return None;
    }
    let title = KINDS[kind].title(all[0].seconds);
    let scale = if x_ticks[0] > 0.0 { Scale::Log } else { Scale::Linear };
    Some(Chart {
        title: format!("{title} of {}, {}", drawn.what.unwrap_or(all[0].work), drawn.part),
        note: facts.note.clone(),
        x: Quantity { label: x.label().into(), scale, unit: Unit::Number },
        y: Quantity { label: title.to_lowercase(), scale: Scale::Log, unit: KINDS[kind].unit },
        x_ticks,
        series,
        ..Chart::default()
    })
}
