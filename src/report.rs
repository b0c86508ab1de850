//! `waggle report`: shows a document of another command, in the terminal or as a page.

use std::path::{Path, PathBuf};

use clap::Args;
use waggle_files::{check_writable, write_private};

use super::options::{FormatArgs, OperationsArgs, PriceArgs};
use super::record::{self, Record};
use super::report_tables::{document, verdict};
use super::{Error, html, out};

/// Shows a document that another command wrote with --json: the report of a session or of a plan, a study of `eval`,
/// or a sweep.
#[derive(Args, Debug)]
pub(super) struct ReportArgs {
    /// The document.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Write a page of HTML here instead (`-` for standard output), with tables, plots and the timeline of a session.
    /// It is one file and loads nothing.
    #[arg(long, value_name = "OUT")]
    html: Option<PathBuf>,
    #[command(flatten)]
    format: FormatArgs,
    #[command(flatten)]
    operations: OperationsArgs,
    #[command(flatten)]
    price: PriceArgs,
}

pub(super) fn run(args: ReportArgs) -> Result<(), Error> {
    let to_file = args.html.as_deref().filter(|path| *path != Path::new("-"));
    check_writable(to_file)?;
    let (record, json) = record::open(&args.file)?;
    let name = record::name(&args.file);
    if args.html.is_none() {
        let price = args.price.price();
        return args.format.show(match record {
            Record::Session(report) => {
                let what = if report.predicted { "planned" } else { "session" };
                let notes = [format!("{name}: {what}")].into_iter().chain(verdict(&report)).collect::<Vec<_>>();
                document(&report, &args.operations, &price, &notes)
            }
            Record::Study(study) => study.table().into(),
            Record::Sweep(sweep) => sweep.document(&price),
        });
    }
    let page = html::page(&name, &record, &json)?;
    match to_file {
        Some(path) => Ok(write_private(path, page.as_bytes())?),
        None => out::line(page.trim_end()),
    }
}
