//! `waggle report`: a document of another command, in the terminal or as a page.

use std::path::PathBuf;

use clap::Args;

use super::files::{check_writable, write_private};
use super::record::{self, Record};
use super::report::{tables, verdict};
use super::{Error, html, out};

/// Shows a document that another command wrote with --json: the report of a session or of a plan, or a study of
/// `eval`.
#[derive(Args, Debug)]
pub(super) struct ReportArgs {
    /// The document.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Write a page of HTML here instead, with tables, plots and the timeline of the session. It is one file and
    /// loads nothing.
    #[arg(long, value_name = "OUT")]
    html: Option<PathBuf>,
}

pub(super) fn run(args: ReportArgs) -> Result<(), Error> {
    check_writable(args.html.as_deref())?;
    let (record, json) = record::open(&args.file)?;
    let name = record::name(&args.file);
    let Some(path) = &args.html else {
        return match record {
            Record::Session(report) => {
                let what = if report.predicted { "planned" } else { "session" };
                out::line(format_args!(
                    "{name}: {what} of {}, prompt of {} tokens",
                    report.model.name, report.prompt_tokens
                ))?;
                out::line(tables(&report))?;
                verdict(&report).map_or(Ok(()), out::line)
            }
            Record::Study(study) => out::line(study.table()),
        };
    };
    let page = match record {
        Record::Session(report) => html::of_session(&name, &report, &json)?,
        Record::Study(study) => html::of_study(&name, &study, &json)?,
    };
    write_private(path, page.as_bytes())
}
