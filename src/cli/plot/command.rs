//! `waggle plot`: plots of what other commands wrote.

use std::path::PathBuf;

use clap::Args;

use super::canvas::{Sheet, Width};
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
}

pub(in crate::cli) fn run(args: PlotArgs) -> Result<(), Error> {
    let sheet = Sheet { width: args.width, no_title: args.no_title };
    let mut sessions = Vec::new();
    let mut plots = Vec::new();
    for path in &args.files {
        match record::open(path)?.0 {
            Record::Session(report) => sessions.push((record::name(path), *report)),
            Record::Study(_) if args.files.len() > 1 => {
                return Err(RecordError::StudyBesideOthers(path.clone()).into());
            }
            Record::Study(study) => plots = of_study(&study, &sheet)?,
            Record::Sweep(_) => return Err(RecordError::SweepAlone(path.clone()).into()),
        }
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
        return Err(RecordError::NoPlot { name: name.clone(), known: known.join(", ") }.into());
    }
    plots.retain(|(name, _)| args.metric.is_empty() || args.metric.contains(name));
    make_dir(&args.out)?;
    check_writable(Some(&args.out.join("plot.svg")))?;
    for file in save(&plots, &args.out)? {
        out::line(file.display())?;
    }
    Ok(())
}
