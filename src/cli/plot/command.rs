//! `waggle plot`: plots of what other commands wrote.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;
use report::Report;

use super::canvas::{Sheet, Width};
use super::style::name_of;
use super::{of_session, of_sessions, of_study, save};
use crate::cli::error::make_dir;
use crate::cli::record::{self, Record, RecordError};
use crate::cli::{Error, out};
use crate::disk::check_writable;

/// Draws plots of documents that other commands wrote with --json, each as SVG and as PDF.
///
/// A study of `eval` gives each metric against the share of the tokens attended to, with the budget beside each
/// point, and accuracy against their number and against bytes. One report of `demo`, `generate`, `serve` or `plan`
/// gives its timeline, its cost by operation as stacked bars, and the cost of each token. Several reports give the
/// cost of a decoded token against the length of the cache, a line for each policy, and bars by operation of each.
#[derive(Args, Debug)]
pub(in crate::cli) struct PlotArgs {
    /// Documents: one study, or any number of reports of sessions and plans.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Write the plots into this directory.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Make figures as wide as a column (240 pt) or a page (504 pt) of a paper, without titles and with the legend
    /// below. Included at this size, their letters have 7.5 to 9 pt.
    #[arg(long, value_enum)]
    width: Option<Width>,
    /// Leave titles out.
    #[arg(long)]
    no_title: bool,
    /// Write these plots alone, by the names of their files without their ending.
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',')]
    metric: Vec<String>,
    /// Write this text for a name of a legend or of a bar. May be repeated.
    #[arg(long, value_name = "NAME=TEXT", value_parser = label)]
    labels: Vec<(String, String)>,
    /// Draw these policies alone, in this order: names, which stand for all of their variants, or whole policies.
    #[arg(long, value_name = "POLICY;POLICY", value_delimiter = ';')]
    policies: Vec<String>,
}

/// A name and its text, for clap.
fn label(text: &str) -> Result<(String, String), String> {
    let (name, text) = text.rsplit_once('=').ok_or("a label is NAME=TEXT")?;
    Ok((name.to_owned(), text.to_owned()))
}

/// Leaves what has one of `policies`, in their order.
fn choose<T>(all: &mut Vec<T>, policies: &[String], policy: impl Fn(&T) -> String) -> Result<(), RecordError> {
    if policies.is_empty() {
        return Ok(());
    }
    let of = |wanted: &String, label: &str| wanted == label || wanted == name_of(label);
    let known: BTreeSet<String> = all.iter().map(&policy).collect();
    if let Some(name) = policies.iter().find(|wanted| !known.iter().any(|label| of(wanted, label))) {
        let known = known.into_iter().collect::<Vec<_>>().join("; ");
        return Err(RecordError::NotDrawn { what: "policy", name: name.clone(), known });
    }
    let place = |one: &T| policies.iter().position(|wanted| of(wanted, &policy(one)));
    all.retain(|one| place(one).is_some());
    all.sort_by_key(place);
    Ok(())
}

pub(in crate::cli) fn run(args: PlotArgs) -> Result<(), Error> {
    let labels = args.labels.iter().cloned().collect();
    let sheet = Sheet { labels, width: args.width, no_title: args.no_title, ..Sheet::default() };
    let mut sessions = Vec::new();
    let mut plots = Vec::new();
    for path in &args.files {
        match record::open(path)?.0 {
            Record::Session(report) => sessions.push((record::name(path), *report)),
            Record::Study(_) if args.files.len() > 1 => {
                return Err(RecordError::StudyBesideOthers(path.clone()).into());
            }
            Record::Study(mut study) => {
                choose(&mut study.rows, &args.policies, |row| row.label.clone())?;
                plots = of_study(&study, &sheet)?;
            }
            Record::Sweep(_) => return Err(RecordError::SweepAlone(path.clone()).into()),
        }
    }
    let policy = |(_, report): &(String, Report)| {
        report.options.get("policy").and_then(|value| value.as_str()).unwrap_or_default().to_owned()
    };
    if !sessions.is_empty() {
        choose(&mut sessions, &args.policies, policy)?;
    }
    match sessions.as_slice() {
        [] => {}
        [(_, report)] => plots = of_session(report, &sheet)?,
        several => plots = of_sessions(several, &sheet)?,
    }
    if plots.is_empty() {
        return Err(RecordError::NothingToPlot.into());
    }
    let known: Vec<&str> = plots.iter().map(|(name, _)| name.as_str()).collect();
    if let Some(name) = args.metric.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(RecordError::NotDrawn { what: "plot", name: name.clone(), known: known.join(", ") }.into());
    }
    let seen = sheet.seen.take();
    if let Some((name, _)) = args.labels.iter().find(|(name, _)| !seen.contains(name)) {
        let known = seen.into_iter().filter(|name| !name.is_empty()).collect::<Vec<_>>().join("; ");
        return Err(RecordError::NotDrawn { what: "name", name: name.clone(), known }.into());
    }
    plots.retain(|(name, _)| args.metric.is_empty() || args.metric.contains(name));
    make_dir(&args.out)?;
    check_writable(Some(&args.out.join("plot.svg")))?;
    for file in save(&plots, &args.out)? {
        out::line(file.display())?;
    }
    Ok(())
}
