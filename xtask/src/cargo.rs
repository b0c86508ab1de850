//! Commands that are lines of cargo.

use std::process::Command;

use clap::Args;

use crate::files::{root, succeed};
use crate::{Error, links};

/// Runs the tests that take less than a minute once they are built: all unit tests, and the golden plans.
#[derive(Args)]
pub(crate) struct QuickArgs {
    /// Only tests whose names contain this.
    filter: Option<String>,
}

/// Runs all tests: the second command of the README.
#[derive(Args)]
pub(crate) struct TestArgs {
    /// Only tests of this package, for example `waggle-net`.
    #[arg(long, short, value_name = "NAME")]
    package: Option<String>,
    /// Only tests whose names contain this.
    filter: Option<String>,
}

/// Runs the fuzz targets for longer than the tests do.
#[derive(Args)]
pub(crate) struct FuzzArgs {
    /// Seconds a target.
    #[arg(long, value_name = "S", default_value_t = 60)]
    seconds: u64,
    /// Only targets whose names contain this.
    #[arg(default_value = "fuzz_")]
    target: String,
    /// Spoil every message of whole sessions instead, under every policy and mutation: hours.
    #[arg(long, conflicts_with = "processes")]
    sessions: bool,
    /// Spoil 500 sessions of processes instead, and let 5 of 20 clients be hostile.
    #[arg(long)]
    processes: bool,
}

/// Builds the documentation; a broken link is an error, in Markdown files as well.
#[derive(Args)]
pub(crate) struct DocsArgs {
    /// Open it in a browser.
    #[arg(long)]
    open: bool,
}

/// `cargo` in the root, with the arguments of a line.
fn cargo(line: &str) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).args(line.split_whitespace());
    command
}

pub(crate) fn quick(args: &QuickArgs) -> Result<(), Error> {
    // One command of the whole workspace: cargo builds its crates with the same features as for all tests.
    succeed(cargo("test --release --workspace --lib --bins --test plans").args(&args.filter))
}

pub(crate) fn test(args: &TestArgs) -> Result<(), Error> {
    let mut command = match &args.package {
        Some(package) => cargo(&format!("test --release --package {package}")),
        None => cargo("test --release --workspace"),
    };
    succeed(command.args(&args.filter))
}

pub(crate) fn fuzz(args: &FuzzArgs) -> Result<(), Error> {
    if args.sessions {
        let mut command = cargo("test --release --package waggle-session --test all fuzz_sessions");
        return succeed(command.env("WAGGLE_FUZZ_STRIDE", "1"));
    }
    if args.processes {
        let threads = "-- --ignored --nocapture --test-threads 1";
        return succeed(&mut cargo(&format!("test --release --test fuzz_processes {threads}")));
    }
    let mut command = cargo("test --release --workspace");
    let milliseconds = args.seconds.saturating_mul(1000).to_string();
    succeed(command.arg(&args.target).env("BOLERO_RANDOM_TEST_TIME_MS", milliseconds))
}

pub(crate) fn docs(args: &DocsArgs) -> Result<(), Error> {
    links::check()?;
    let mut command = cargo("doc --workspace --no-deps");
    if args.open {
        command.arg("--open");
    }
    succeed(command.env("RUSTDOCFLAGS", "-D warnings"))
}
