//! `waggle plot`: plots of documents that other commands wrote.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;
use waggle_files::check_writable;

use super::canvas::{Sheet, X};
use super::decoded::{Decoded, of_decoded};
use super::style::name_of;
use super::{of_session, of_study, save};
use crate::error::make_dir;
use crate::record::{self, Record, RecordError};
use crate::{Error, out};

/// Draws plots of documents that other commands wrote with --json, each as SVG and as text for LaTeX.
///
/// A study of `eval` gives each metric against the share of the tokens attended to, with the budget beside each
/// point, and accuracy against their number and against bytes. One report of `demo`, `generate`, `serve` or `plan`
/// gives its timeline, its cost by operation as stacked bars, and the cost of each token. Several reports give the
/// cost of a decoded token against the length of the cache, a line for each policy, and bars by operation of each. A
/// sweep gives these as well, of each of its cells, and the cost of the prompt; without --by operation its bars are
/// what a token takes prepared and online. Several sweeps are drawn as one. A paper takes the file NAME.tex by
/// \\input: pgfplots sets it in the font and the width of the paper.
#[derive(Args, Debug)]
pub(crate) struct PlotArgs {
    /// Documents: one study, any number of sweeps, or any number of reports of sessions and plans.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Write the plots into this directory.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Write these plots alone, by the names of their files without their ending.
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',')]
    metric: Vec<String>,
    /// Write this text for a name of a legend or of a bar. May be repeated.
    #[arg(long, value_name = "NAME=TEXT", value_parser = label)]
    labels: Vec<(String, String)>,
    /// Draw costs against the length of the prompt, the cores or the rate of the links; or all against an option of
    /// the policies, such as `alpha`, `clusters` or `budget`.
    #[arg(long, value_name = "length|cores|links|OPTION")]
    x: Option<X>,
    /// Draw what was planned or run over these links alone.
    #[arg(long, value_name = "LINK;LINK", value_delimiter = ';')]
    links: Vec<String>,
    /// Draw what has these phases alone: `one`, `two`, `three parties`.
    #[arg(long, value_name = "PHASES;PHASES", value_delimiter = ';')]
    phases: Vec<String>,
    /// Draw these policies alone, in this order: names, which stand for all of their variants, or whole policies.
    #[arg(long, value_name = "POLICY;POLICY", value_delimiter = ';')]
    policies: Vec<String>,
}

/// Parses a name and its text, for clap.
fn label(text: &str) -> Result<(String, String), String> {
    let (name, text) = text.rsplit_once('=').ok_or("a label is NAME=TEXT")?;
    Ok((name.to_owned(), text.to_owned()))
}

/// Keeps the entries that have one of `policies`, in the order of `policies`. A policy that no entry has is an error.
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

/// Keeps the entries for which `of` returns one of `wanted`, or all entries if `wanted` is empty. A wanted value that
/// no entry has is an error.
fn leave<T>(
    all: &mut Vec<T>,
    what: &'static str,
    wanted: &[String],
    of: impl Fn(&T) -> &str,
) -> Result<(), RecordError> {
    let known: BTreeSet<&str> = all.iter().map(&of).collect();
    if let Some(name) = wanted.iter().find(|name| !known.contains(name.as_str())) {
        let known = known.into_iter().collect::<Vec<_>>().join("; ");
        return Err(RecordError::NotDrawn { what, name: name.clone(), known });
    }
    all.retain(|one| wanted.is_empty() || wanted.iter().any(|name| name == of(one)));
    Ok(())
}

pub(crate) fn run(args: PlotArgs) -> Result<(), Error> {
    let labels = args.labels.iter().cloned().collect();
    let sheet = Sheet { labels, x: args.x.clone(), ..Sheet::default() };
    let mut sessions = Vec::new();
    let mut decoded = Vec::new();
    let mut plots = Vec::new();
    for path in &args.files {
        let record = record::open(path)?.0;
        let mixed = match &record {
            Record::Study(_) => args.files.len() > 1,
            Record::Sweep(_) => !sessions.is_empty(),
            Record::Session(_) => sessions.len() < decoded.len(),
        };
        if mixed {
            return Err(RecordError::BesideOthers(path.clone()).into());
        }
        match record {
            Record::Session(report) => {
                decoded.push(Decoded::of_session(record::name(path), &report));
                sessions.push(report);
            }
            Record::Study(mut study) => {
                choose(&mut study.rows, &args.policies, |row| row.label.clone())?;
                plots = of_study(&study, &sheet)?;
            }
            Record::Sweep(sweep) => decoded.extend(Decoded::of_sweep(&sweep)),
        }
    }
    if !decoded.is_empty() {
        choose(&mut decoded, &args.policies, |one| one.policy.clone())?;
        leave(&mut decoded, "link", &args.links, |one| &one.link)?;
        leave(&mut decoded, "phases", &args.phases, |one| one.phases)?;
        plots =
            if let [report] = &sessions[..] { of_session(report, &sheet)? } else { of_decoded(&decoded, &sheet)? };
    }
    if plots.is_empty() {
        return Err(RecordError::NothingToPlot.into());
    }
    let known: Vec<&str> = plots.iter().map(|(name, _)| name.as_str()).collect();
    if let Some(name) = args.metric.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(RecordError::NotDrawn { what: "plot", name: name.clone(), known: known.join(", ") }.into());
    }
    let drawn = |name: &String| args.metric.is_empty() || args.metric.contains(name);
    let seen = sheet.seen.take();
    if let Some((name, _)) = args.labels.iter().find(|(name, _)| !seen.contains(name)) {
        let known = seen.into_iter().filter(|name| !name.is_empty()).collect::<Vec<_>>().join("; ");
        return Err(RecordError::NotDrawn { what: "name", name: name.clone(), known }.into());
    }
    plots.retain(|(name, _)| drawn(name));
    make_dir(&args.out)?;
    check_writable(Some(&args.out.join("plot.svg")))?;
    for file in save(&plots, &args.out)? {
        out::line(file.display())?;
    }
    Ok(())
}
