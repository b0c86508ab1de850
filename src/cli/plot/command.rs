//! `waggle plot`: plots of what other commands wrote.

use std::path::PathBuf;

use clap::Args;

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
}

pub(in crate::cli) fn run(args: PlotArgs) -> Result<(), Error> {
    let mut sessions = Vec::new();
    let mut plots = Vec::new();
    for path in &args.files {
        match record::open(path)?.0 {
            Record::Session(report) => sessions.push((record::name(path), *report)),
            Record::Study(_) if args.files.len() > 1 => {
                return Err(RecordError::StudyBesideOthers(path.clone()).into());
            }
            Record::Study(study) => plots = of_study(&study)?,
            Record::Sweep(_) => return Err(RecordError::SweepAlone(path.clone()).into()),
        }
    }
    match sessions.as_slice() {
        [] => {}
        [(_, report)] => plots = of_session(report)?,
        several => plots = of_sessions(several)?,
    }
    if plots.is_empty() {
        return Err(RecordError::NothingToPlot.into());
    }
    make_dir(&args.out)?;
    check_writable(Some(&args.out.join("plot.svg")))?;
    for file in save(&plots, &args.out)? {
        out::line(file.display())?;
    }
    Ok(())
}
