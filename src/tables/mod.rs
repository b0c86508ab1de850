//! `waggle tables`: lists the pages of results, makes them again, and checks their planned numbers against the
//! program.
//!
//! A block of a page is made by this program, in a process of its own. [`page`] reads and writes pages. [`store`]
//! keeps the outputs of commands, so that an interrupted run can continue.

mod page;
mod store;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Args, CommandFactory, Subcommand};
use indicatif::{HumanDuration, ProgressBar, ProgressState, ProgressStyle};
use page::{Block, Kind, Page};
use rayon::prelude::*;
use store::Store;
use thiserror::Error;
use waggle_report::provenance::Provenance;
use waggle_report::table::{Cell, Format, Table};

use super::settings::forget_variables;
use super::{Cli, Error, child, machine, out, together};

/// Makes the pages of results again, or says which of their planned numbers are out of date.
#[derive(Args, Debug)]
pub(super) struct TablesArgs {
    #[command(subcommand)]
    command: Pages,
}

#[derive(Subcommand, Debug)]
enum Pages {
    List(ListArgs),
    Run(RunArgs),
    Check(CheckArgs),
}

/// Why a command on pages ended.
#[derive(Debug, Error)]
pub(super) enum TablesError {
    /// A block cannot be made, or its command failed.
    #[error("{}:{line}: {what}", path.display())]
    Block { path: PathBuf, line: usize, what: String },
    #[error("{}: {source}; run this in a checkout of the repository, or name the folder with --pages", dir.display())]
    NoPages { dir: PathBuf, source: std::io::Error },
    #[error("there is no page {name} in {}; `waggle tables list` names them", dir.display())]
    NoPage { name: String, dir: PathBuf },
    #[error("name the pages to make, or give --all; `waggle tables list` names them")]
    NothingNamed,
    /// The program plans some numbers differently now. Their places, with the old and the new line, are written to
    /// standard error.
    #[error(
        "{stale} of {blocks} planned blocks are out of date; `waggle tables run --planned PAGE` makes them again"
    )]
    Stale { stale: usize, blocks: usize },
}

pub(super) fn run(args: TablesArgs) -> Result<(), Error> {
    let text = match &args.command {
        Pages::List(args) => list(args)?,
        Pages::Run(args) => make(args)?,
        Pages::Check(args) => check(args)?,
    };
    out::line(text)
}

/// The folder of pages.
#[derive(Args, Debug)]
struct PagesArgs {
    /// The folder of the pages.
    #[arg(long, value_name = "DIR", default_value = "bench/results")]
    pages: PathBuf,
}

/// Lists the pages, with the number of their generated blocks and how long these took.
#[derive(Args, Debug)]
struct ListArgs {
    #[command(flatten)]
    pages: PagesArgs,
}

/// Makes pages again: runs the commands of their generated blocks and leaves the prose as it is.
///
/// Results are kept, so a run that was interrupted goes on where it was, as long as the program is the same revision
/// without changes. Nothing is fetched: the commands use models and texts that are part of the program.
#[derive(Args, Debug)]
struct RunArgs {
    /// Pages by name, for example `online` or `online.md`.
    #[arg(value_name = "PAGE", conflicts_with = "all")]
    names: Vec<String>,
    /// Every page.
    #[arg(long)]
    all: bool,
    /// Make planned numbers alone: measured ones stay as they are.
    #[arg(long)]
    planned: bool,
    /// Keep what is made in this folder.
    #[arg(long, value_name = "DIR", default_value = "target/waggle-tables")]
    keep: PathBuf,
    #[command(flatten)]
    pages: PagesArgs,
}

/// Plans the planned numbers of every page again, and fails if one differs: it names page, line, old and new.
#[derive(Args, Debug)]
struct CheckArgs {
    /// Pages by name; without, all.
    #[arg(value_name = "PAGE")]
    names: Vec<String>,
    #[command(flatten)]
    pages: PagesArgs,
}

impl PagesArgs {
    /// The pages called `names`, in that order, or all pages of the folder, sorted by name.
    fn open(&self, names: &[String]) -> Result<Vec<Page>, Error> {
        let dir = &self.pages;
        let unread = |source| TablesError::NoPages { dir: dir.clone(), source };
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(dir).map_err(unread)? {
            let path = entry.map_err(unread)?.path();
            if path.extension().is_some_and(|end| end == "md") {
                paths.push(path);
            }
        }
        paths.sort();
        let named = |name: &String| {
            let is = |path: &&PathBuf| [path.file_stem(), path.file_name()].contains(&Some(name.as_ref()));
            let found = paths.iter().find(|path| is(path) || path.as_path() == Path::new(name));
            found.cloned().ok_or_else(|| TablesError::NoPage { name: name.clone(), dir: dir.clone() })
        };
        let chosen =
            if names.is_empty() { paths.clone() } else { names.iter().map(named).collect::<Result<_, _>>()? };
        chosen.iter().map(|path| Page::open(path)).collect()
    }
}

fn list(args: &ListArgs) -> Result<String, Error> {
    let mut table =
        Table::new(1, [("page", ""), ("planned blocks", ""), ("measured blocks", ""), ("time", "seconds")]);
    for page in args.pages.open(&[])? {
        let of = |kind| page.blocks().filter(|block| block.kind == kind).count() as u64;
        let seconds: f64 = page.blocks().filter_map(|block| block.seconds).sum();
        let [planned, measured] = [Kind::Planned, Kind::Measured].map(of);
        let time = (planned + measured > 0).then_some(seconds);
        let time = Cell::maybe(time, |seconds| Cell::number(seconds, format!("{seconds:.0}")));
        table.add([Cell::text(page.name()), Cell::count(planned), Cell::count(measured), time]);
    }
    Ok(table.render(Format::Terminal, None))
}

/// Makes pages again. Returns a summary.
fn make(args: &RunArgs) -> Result<String, Error> {
    if args.names.is_empty() && !args.all {
        return Err(TablesError::NothingNamed.into());
    }
    let mut pages = args.pages.open(&args.names)?;
    let provenance = Provenance::current(machine::built());
    let store = Store::new(&args.keep, &provenance);
    let wanted = |block: &Block| block.kind == Kind::Planned || !args.planned;
    let bar = bar(pages.iter().flat_map(Page::blocks).filter(|block| wanted(block)));
    let mut made = Vec::new();
    for page in &mut pages {
        if page.blocks().next().is_none() {
            let skipped =
                format!("{}: skipped, no block of it is generated; its commands are on the page", page.name());
            bar.suspend(|| out::note(&skipped));
            continue;
        }
        let path = page.path.clone();
        let mut count = 0;
        for block in page.blocks_mut().filter(|block| wanted(block)) {
            bar.set_message(format!("{}: waggle {}", path.display(), block.command));
            let expected = weight(block);
            let (output, seconds) = match store.find(&block.command)? {
                Some(kept) => kept,
                None => {
                    let begun = Instant::now();
                    let output = output(block, &path)?;
                    let seconds = begun.elapsed().as_secs_f64();
                    store.keep(&block.command, &output, seconds)?;
                    (output, seconds)
                }
            };
            block.set(&output, &made_by(block.kind, &provenance), seconds);
            bar.inc(expected);
            count += 1;
        }
        page.write()?;
        made.push(format!("{}: {count} blocks", page.path.display()));
    }
    bar.finish_and_clear();
    Ok(made.join("\n"))
}

/// The text about the origin of a block, for its last line. It names no machine for plans, which are the same on
/// every machine.
fn made_by(kind: Kind, provenance: &Provenance) -> String {
    match kind {
        Kind::Planned => provenance.program(),
        Kind::Measured => {
            let day = provenance.date.split('T').next().unwrap_or_default();
            format!("{}, {}, {day}", provenance.program(), provenance.machine())
        }
    }
}

/// Compares the numbers of plans that stand in the pages with what the program plans now.
fn check(args: &CheckArgs) -> Result<String, Error> {
    let pages = args.pages.open(&args.names)?;
    let planned =
        |page: &Page| page.blocks().filter(|block| block.kind == Kind::Planned).cloned().collect::<Vec<_>>();
    let blocks: Vec<(&Page, Block)> =
        pages.iter().flat_map(|page| planned(page).into_iter().map(move |block| (page, block))).collect();
    let bar = bar(blocks.iter().map(|(_, block)| block));
    let differing: Result<Vec<Option<String>>, Error> = blocks
        .par_iter()
        .map(|(page, block)| {
            let mut new = block.clone();
            new.set(&output(block, &page.path)?, "", 0.0);
            bar.inc(weight(block));
            Ok(difference(page, block, &new))
        })
        .collect();
    bar.finish_and_clear();
    let stale: Vec<String> = differing?.into_iter().flatten().collect();
    let blocks = blocks.len();
    if stale.is_empty() {
        return Ok(format!("{blocks} planned blocks of {} pages are what this program plans", pages.len()));
    }
    for place in &stale {
        out::note(place);
    }
    Err(TablesError::Stale { stale: stale.len(), blocks }.into())
}

/// The first line in which the numbers of `old` and `new` differ, with its place and both texts; `None` if they do
/// not differ.
fn difference(page: &Page, old: &Block, new: &Block) -> Option<String> {
    let (old_lines, new_lines) = (old.numbers(), new.numbers());
    let longest = old_lines.len().max(new_lines.len());
    let at = (0..longest).find(|&at| old_lines.get(at) != new_lines.get(at))?;
    let line = |lines: &[String]| lines.get(at).cloned().unwrap_or_else(|| "(nothing)".into());
    let place = match &old.file {
        // The first line of data states their origin.
        Some(file) => format!("{}:{}", page.path.with_file_name(file).display(), at + 2),
        // The mark of the block is the line before its first line.
        None => format!("{}:{}", page.path.display(), old.line + 1 + at),
    };
    Some(format!("{place}:\n  old {}\n  new {}", line(old_lines), line(new_lines)))
}

/// The output of the command of `block`.
fn output(block: &Block, path: &Path) -> Result<String, Error> {
    let failed = |what: String| {
        let what = format!("waggle {}: {what}", block.command);
        TablesError::Block { path: path.to_owned(), line: block.line, what }
    };
    let mut command = child::command()?;
    command.args(&block.arguments);
    // Options that the user has set in the environment must not affect pages.
    forget_variables(&mut command, &Cli::command());
    if block.kind == Kind::Planned {
        // A calibration of this machine would add seconds. No file can exist below `path`, which is a file, so none
        // is found.
        command.env("WAGGLE_HOME", path.join("no-calibration"));
    }
    Ok(together::said(&mut command).map_err(failed)?)
}

/// The weight of `block` in the bar: the seconds that it took last time.
fn weight(block: &Block) -> u64 {
    block.seconds.unwrap_or(1.0).max(1.0) as u64
}

/// A bar over blocks, hidden if standard error is no terminal.
fn bar<'a>(blocks: impl Iterator<Item = &'a Block>) -> ProgressBar {
    let total = blocks.map(weight).sum();
    let bar = if std::io::stderr().is_terminal() { ProgressBar::new(total) } else { ProgressBar::hidden() };
    let style = ProgressStyle::with_template("{wide_msg}\n{bar:32} {percent} % {elapsed}{left}");
    // Before the first block is done, the time left is not known.
    let left = |state: &ProgressState, text: &mut dyn std::fmt::Write| {
        let _ = match state.pos() {
            0 => Ok(()),
            _ => write!(text, ", {:#} left", HumanDuration(state.eta())),
        };
    };
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).with_key("left", left));
    bar
}
