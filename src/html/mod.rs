//! Reports as HTML pages, each in one file. The templates define the content of a page, and escape all text.

use std::collections::BTreeSet;

use minijinja::{Environment, UndefinedBehavior, Value, context};
use waggle_report::table::Table;
use waggle_report::{Price, Report, bytes};
use waggle_study::eval::{METRICS, StudyReport};
use waggle_study::sweep::Sweep;

use super::record::Record;
use super::{Error, plot};

/// Number of operations in the table that is always visible. A second table, which is folded, has all of them.
const OPERATIONS: usize = 15;

/// The page of `record`. `json` is the document from which it was read.
pub(super) fn page(name: &str, record: &Record, json: &serde_json::Value) -> Result<String, Error> {
    match record {
        Record::Session(report) => of_session(name, report, json),
        Record::Study(study) => of_study(name, study, json),
        Record::Sweep(sweep) => of_sweep(name, sweep, json),
    }
}

fn of_session(name: &str, report: &Report, json: &serde_json::Value) -> Result<String, Error> {
    let plots = drawings(plot::of_session(report, &plot::Sheet::default())?);
    render(context! {
        body => "session.html", title => report.model.name, name, report, json, plots,
        clock => report.seconds().name(),
        phases => cells(&report.phase_table(&Price::default())),
        operations => cells(&report.operation_table(OPERATIONS, &Price::default())),
        kinds => report.preparation_table(&Price::default()).as_ref().map(cells),
    })
}

/// The page of a study. `json` is its document.
pub(super) fn of_study(name: &str, study: &StudyReport, json: &serde_json::Value) -> Result<String, Error> {
    let plots = drawings(plot::of_study(study, &plot::Sheet::default())?);
    render(context! {
        body => "study.html", title => study.model.name, name, study, json, plots,
        accuracy => cells(&study.table()),
        metrics => METRICS.iter().map(|metric| [metric.short, metric.title]).collect::<Vec<_>>(),
    })
}

fn of_sweep(name: &str, sweep: &Sweep, json: &serde_json::Value) -> Result<String, Error> {
    let plots = drawings(plot::of_sweep(sweep, &plot::Sheet::default())?);
    let models: BTreeSet<&str> = sweep.cells.iter().map(|cell| cell.choice.model.as_str()).collect();
    let title = models.into_iter().collect::<Vec<_>>().join(", ");
    render(context! {
        body => "sweep.html", title, name, json, plots,
        caption => sweep.document(&Price::default()).remark(),
        planned => cells(&sweep.table(&Price::default())),
    })
}

/// The names of plots and their SVG elements.
fn drawings(plots: plot::Plots) -> Value {
    plots.into_iter().map(|(name, drawing)| Value::from(vec![name, drawing.svg])).collect()
}

fn cells(table: &Table) -> Value {
    let (head, rows) = table.read();
    context! { head, rows }
}

fn render(page: Value) -> Result<String, Error> {
    filled(page).map_err(Error::Page)
}

fn filled(page: Value) -> Result<String, minijinja::Error> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::SemiStrict);
    environment.add_filter("bytes", |count: f64| bytes(count as u64));
    environment.add_filter("fixed", |value: f64, digits: usize| format!("{value:.digits$}"));
    environment.add_filter("time", time);
    // The templates' names end in `.html`, which turns on escaping.
    for (name, text) in [
        ("page.html", include_str!("page.html")),
        ("parts.html", include_str!("parts.html")),
        ("session.html", include_str!("session.html")),
        ("study.html", include_str!("study.html")),
        ("sweep.html", include_str!("sweep.html")),
    ] {
        environment.add_template(name, text)?;
    }
    let page = context! { style => include_str!("style.css"), ..page };
    environment.get_template("page.html")?.render(page)
}

fn time(seconds: f64) -> String {
    match seconds {
        s if s < 0.9995e-3 => format!("{:.0} µs", s * 1e6),
        s if s < 0.9995 => format!("{:.0} ms", s * 1e3),
        s if s < 99.95 => format!("{s:.2} s"),
        s => format!("{s:.0} s"),
    }
}
