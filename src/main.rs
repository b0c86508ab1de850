//! `waggle`: private text generation between two parties, from the command line.
//!
//! One file per command under `cli`; what the parties do lies in [`model::party`].
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}
