//! Ablation of MPCache on the shapes of GPT-2 small: what every part of the policy saves of a decoding step.
//!
//! For each configuration a pair of layers decodes over a cache that a prompt filled, as the policy fills it.
//! Look-once eviction is run and not assumed, with the queries of its voting window alone (the other costs of a
//! prompt belong to the model). The steps lie around the stated length. Their mean is taken, which includes summaries
//! of clusters that close among them; the pair counts six times. A table of its own has what a prompt costs once:
//! eviction, and the summaries of what is left. The rest of the model's step is measured apart, since no policy
//! touches it.
//!
//! Bytes and flows come from [`planner::Plan`], on shapes. At the lengths given by `--secure` two parties in this
//! process run the same steps, and the time is taken. Both ledgers must then equal the plan's to the byte, except
//! where quickselect makes traffic random and the plan states its mean. The opened outputs must be those of the same
//! policy in fixed point.
//!
//! With `--preprocess` there are two phases, and a plan of the run prepares all that it takes. The offline cost of a
//! step is a difference, divided by the number of steps: the preparation of the whole run, less that of the prompt
//! and the first step. A run of more steps makes larger batches.
//!
//! From the bottom up: [`cost`] adds traffic, [`data`] makes inputs, [`mod@run`] runs one policy on any engine,
//! [`check`] compares answers and ledgers, [`mod@rest`] and [`rows`] measure, [`cells`] turns what they found into
//! records and back, [`table`] renders it.

mod cells;
mod check;
mod configurations;
mod cost;
mod data;
mod error;
mod findings;
mod rest;
mod rows;
mod run;
mod shapes;
mod table;

use std::path::PathBuf;

use clap::Args;
use net::Shape;
use protocols::Options;
use report::provenance::{Program, Provenance};

pub(crate) use cells::Record;
pub use cells::RecordsError;
pub use error::AblationError;

use crate::records::Book;
use configurations::configurations;
use findings::{Rest, Setting};
use rows::Method;

/// Tells what each part of MPCache saves of a decoding step, on the shapes of GPT-2 small.
///
/// Bytes and flows are planned. At the lengths of --secure two parties in this process run the same steps over a
/// shaped link; what they send must equal the plan, what they compute must be right, and their time is taken. The
/// table goes to the standard output.
#[derive(Args, Debug)]
pub(crate) struct AblationArgs {
    /// Lengths of the cache in tokens.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "512,1024,2048")]
    cache: Vec<usize>,
    /// Lengths that two parties run as well.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "512")]
    secure: Vec<usize>,
    /// Plan on shapes only, which takes seconds for short caches: nothing is run or timed.
    #[arg(long, conflicts_with = "secure")]
    plan_only: bool,
    /// Plan two phases: correlations are made before the prompt is known.
    #[arg(long, requires = "plan_only")]
    preprocess: bool,
    /// Steps over which a plan takes the mean; if clusters have more tokens than that, as many as they have.
    #[arg(long, value_name = "N", default_value_t = 8)]
    plan_steps: usize,
    /// Steps that two parties take.
    #[arg(long, value_name = "N", default_value_t = 8)]
    steps: usize,
    /// Share of all tokens that a step looks at.
    #[arg(long, value_name = "SHARE", default_value_t = 0.25)]
    budget: f64,
    /// Share of the prompt that look-once eviction keeps.
    #[arg(long, value_name = "SHARE", default_value_t = 0.5)]
    keep: f64,
    /// Only the configurations whose names contain one of these texts, besides `full`.
    #[arg(long, value_name = "TEXT,..", value_delimiter = ',')]
    only: Vec<String>,
    /// Network between the two parties; its rate decides what matrix products pack.
    #[arg(long, value_name = "lan|lan-1g|wan|wan-far|RATEmbit,DELAYms", default_value = "lan")]
    link: Shape,
    /// Write the table to this file, and its records beside it, in a file that ends in `.jsonl` instead.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Write the records to this file: one line of JSON for every number. `render` makes the table from it again.
    #[arg(long, alias = "json", value_name = "FILE")]
    records: Option<PathBuf>,
}

impl AblationArgs {
    fn method(&self) -> Method {
        Method {
            options: Options { preprocess: self.preprocess, link: self.link, ..Options::default() },
            link: self.link,
            plan_steps: self.plan_steps,
            steps: self.steps,
            secure: if self.plan_only { Vec::new() } else { self.secure.clone() },
        }
    }

    /// Where records go: beside the table unless the command says otherwise.
    fn records_file(&self) -> Result<Option<PathBuf>, AblationError> {
        let beside = || self.markdown.as_ref().map(|path| path.with_extension("jsonl"));
        let file = self.records.clone().or_else(beside);
        match (&file, &self.markdown) {
            (Some(records), Some(table)) if records == table => Err(AblationError::SameFile(table.clone())),
            _ => Ok(file),
        }
    }
}

/// Measures, keeps the records, and returns the table.
pub(crate) fn run(args: &AblationArgs, program: Program) -> Result<String, AblationError> {
    let configurations = configurations(args.budget, args.keep, &args.only)?;
    let (method, run) = (args.method(), Provenance::current(program));
    let setting =
        Setting { budget: args.budget, keep: args.keep, link: args.link.to_string(), preprocess: args.preprocess };
    let mut book = Book::create(args.records_file()?.as_deref())?;
    eprintln!("the rest of the step");
    // In two phases the correlations of the rest cannot be told from those of attention, so the tables are of
    // attention alone.
    let planned = rest::plan(Options { preprocess: false, ..method.options })?;
    let secure = args.cache.iter().any(|cache| method.secure.contains(cache));
    let measured = secure.then(|| rest::secure(method.link, method.options)).transpose()?;
    book.add(cells::of_rest(&Rest { planned, measured }, &setting, &run))?;
    for &cache in &args.cache {
        for configuration in &configurations {
            eprintln!("{cache} tokens: {}", configuration.name);
            book.add(cells::of_row(&rows::row(configuration, cache, &method)?, &setting, &run))?;
        }
    }
    let table = render(book.records())?;
    if let Some(path) = &args.markdown {
        std::fs::write(path, &table).map_err(|source| AblationError::Write { path: path.clone(), source })?;
    }
    Ok(table)
}

/// The table that `records` make.
pub(crate) fn render(records: &[Record]) -> Result<String, RecordsError> {
    Ok(table::markdown(&cells::findings(records)?))
}
