//! `waggle compare`: two records side by side, or two programs in one run.

mod binaries;
mod records;

use std::path::PathBuf;

use clap::Args;
use waggle_files::check_writable;
use waggle_report::table::{Cell, Table};

use super::Error;
use super::options::{FormatArgs, OperationsArgs};

/// Shows two reports, two studies or two sweeps side by side: first what differs between the runs, then phases and
/// operations, metrics, or cells with their ratios. A ratio is that of the second to the first.
///
/// With --binaries it runs two programs in turn and shows medians, their spread and the ratio with its own:
/// `waggle compare --binaries old/waggle new/waggle --repeat 5 -- demo --tokens 20 --preprocess`.
#[derive(Args, Debug)]
pub(super) struct CompareArgs {
    /// Two files that `--json` wrote: reports of runs and plans, studies of `eval`, or sweeps.
    #[arg(value_name = "REPORT", num_args = 2, required_unless_present = "binaries", conflicts_with = "binaries")]
    records: Vec<PathBuf>,
    /// Run these two programs with the arguments after `--`, which are those of a command with --json.
    #[arg(long, value_names = ["OLD", "NEW"], num_args = 2, requires = "command")]
    binaries: Vec<PathBuf>,
    /// Runs of each program that are counted.
    #[arg(long, value_name = "N", default_value_t = 5, requires = "binaries", value_parser = clap::value_parser!(u16).range(1..))]
    repeat: u16,
    /// Runs of each program before them, which are not counted.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "binaries")]
    warm_up: u16,
    #[command(flatten)]
    operations: OperationsArgs,
    #[command(flatten)]
    format: FormatArgs,
    /// Write the record here, with every sample of --binaries.
    #[arg(long, value_name = "FILE", requires = "binaries")]
    json: Option<PathBuf>,
    /// Command that the programs of --binaries run.
    #[arg(last = true, value_name = "COMMAND", requires = "binaries")]
    command: Vec<String>,
}

pub(super) fn run(args: CompareArgs) -> Result<(), Error> {
    check_writable(args.json.as_deref())?;
    match (&args.records[..], &args.binaries[..]) {
        ([first, second], _) => records::run([first, second], args.operations.rows, &args.format),
        (_, [old, new]) => binaries::run([old, new], &args),
        // This does not happen, as clap requires two records or two programs.
        _ => Ok(()),
    }
}

/// The factor from `first` to `second`, or a dash if it is meaningless.
fn ratio(first: f64, second: f64) -> Cell {
    if first > 0.0 && second.is_finite() { Cell::times(second / first) } else { Cell::absent() }
}

fn differences(names: [String; 2], rows: impl IntoIterator<Item = (String, [Option<String>; 2])>) -> Table {
    let [first, second] = names;
    let mut table = Table::new(1, [("what", ""), (first.as_str(), ""), (second.as_str(), "")]);
    for (what, [first, second]) in rows {
        if first != second {
            table.add([Cell::text(what), Cell::maybe(first, Cell::text), Cell::maybe(second, Cell::text)]);
        }
    }
    table
}
