//! `cargo xtask`: the daily commands of the repository.
//!
//! Each command is a file: [`cycles`] and [`comments`] read the sources, [`mod@bench`] compares with an older commit,
//! [`hammer`] runs sessions with options drawn at random, and [`mod@cargo`] runs what is a line of cargo.
#![forbid(unsafe_code)]

mod bench;
mod cargo;
mod comments;
mod cycles;
mod error;
mod files;
mod hammer;
mod links;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use error::Error;

/// Daily commands of the repository.
#[derive(Parser)]
#[command(name = "cargo xtask", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Cycles(cycles::CyclesArgs),
    Comments(comments::CommentsArgs),
    Quick(cargo::QuickArgs),
    Test(cargo::TestArgs),
    Bench(bench::BenchArgs),
    Fuzz(cargo::FuzzArgs),
    Hammer(hammer::HammerArgs),
    Docs(cargo::DocsArgs),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Cycles(args) => cycles::run(&args),
        Command::Comments(args) => comments::run(&args),
        Command::Quick(args) => cargo::quick(&args),
        Command::Test(args) => cargo::test(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Fuzz(args) => cargo::fuzz(&args),
        Command::Hammer(args) => hammer::run(&args),
        Command::Docs(args) => cargo::docs(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
