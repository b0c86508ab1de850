//! `waggle-tables`: makes the tables of measurements.
//!
//! Every number of a table is first a [`Record`](records::Record), a line of JSON that says what was measured, how,
//! and by which command. A table is rendered from records alone, so it can be made again, and differently, without a
//! new measurement. Each table is a module: [`ablation`] is the first.
#![forbid(unsafe_code)]

mod ablation;
mod command;
mod markdown;
mod records;
mod render;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use thiserror::Error;

/// Makes the tables of measurements, and keeps a record of every number.
#[derive(Parser, Debug)]
#[command(name = "waggle-tables", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    table: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Ablation(ablation::AblationArgs),
    Render(render::RenderArgs),
}

/// What ends the program.
#[derive(Debug, Error)]
enum Error {
    /// The ablation.
    #[error("ablation: {0}")]
    Ablation(#[from] ablation::AblationError),
    /// A table from records.
    #[error("render: {0}")]
    Render(#[from] render::RenderError),
}

fn run(cli: &Cli) -> Result<(), Error> {
    match &cli.table {
        Command::Ablation(args) => ablation::run(args)?,
        Command::Render(args) => render::run(args)?,
    }
    Ok(())
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
