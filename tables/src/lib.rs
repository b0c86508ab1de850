//! `waggle tables`: makes the tables of measurements and the pages that show them.
//!
//! Every number of a table is first a `Record`, a line of JSON that says what was measured, how,
//! and by which command. A table is rendered from records alone, so it can be made again, and differently, without a
//! new measurement. Each table is a module: `ablation` is the first.
//!
//! A page of `bench/results` has prose and generated blocks, each with the command that makes it: `pages` makes
//! them again, and tells which of the planned ones are out of date.
#![forbid(unsafe_code)]

mod ablation;
mod markdown;
mod pages;
mod records;
mod render;

use std::io::Write;

use clap::{Args, Subcommand};
use report::provenance::Program;
use thiserror::Error;

pub use ablation::{AblationError, RecordsError};
pub use pages::{PageError, PagesError};
pub use records::FileError;
pub use render::RenderError;

/// Makes the pages of results again, or says which of their planned numbers are out of date.
#[derive(Args, Debug)]
pub struct TablesArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    List(pages::ListArgs),
    Run(pages::RunArgs),
    Check(pages::CheckArgs),
    Ablation(ablation::AblationArgs),
    Render(render::RenderArgs),
}

/// What ends the command.
#[derive(Debug, Error)]
pub enum TablesError {
    /// Standard output takes no more.
    #[error("standard output: {0}")]
    Output(std::io::Error),
    /// The pages.
    #[error(transparent)]
    Pages(#[from] PagesError),
    /// The ablation.
    #[error("ablation: {0}")]
    Ablation(#[from] AblationError),
    /// A table from records.
    #[error("render: {0}")]
    Render(#[from] RenderError),
}

/// Runs the command as `program`; what it finds goes to `out`.
///
/// # Errors
/// [`TablesError`] by the command, and where `out` takes no more.
pub fn run(args: &TablesArgs, program: Program, out: &mut dyn Write) -> Result<(), TablesError> {
    let text = match &args.command {
        Command::List(args) => pages::list(args)?,
        Command::Run(args) => pages::run(args, program)?,
        Command::Check(args) => pages::check(args)?,
        Command::Ablation(args) => ablation::run(args, program)?,
        Command::Render(args) => render::run(args)?,
    };
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(TablesError::Output)
}
