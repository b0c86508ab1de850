//! `waggle`: private text generation between two parties, from the command line.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    waggle::run()
}
