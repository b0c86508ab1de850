//! `waggle tokenizer-worker`: a server's tokenizer in a process of its own.

use tokenizer::{Tokenizer, TokenizerError, WorkerCommand, run_worker};

use super::{Error, program};

/// The name of the command.
const COMMAND: &str = "tokenizer-worker";

/// Runs the tokenizer `bytes` of a server in another process of this program.
pub(super) fn foreign(bytes: &[u8]) -> Result<Tokenizer, Error> {
    let words = program::words().map_err(|source| TokenizerError::Spawn { what: source.to_string() })?;
    let mut words = words.into_iter();
    let program = words.next().unwrap_or_default().into();
    let arguments = words.chain([COMMAND.into()]).collect();
    let command = WorkerCommand { program, arguments, time_out: WorkerCommand::TIME_OUT };
    Ok(Tokenizer::foreign(bytes, &command)?)
}

/// The other process.
pub(super) fn run() -> Result<(), Error> {
    run_worker(std::io::stdin().lock(), std::io::stdout().lock()).map_err(|source| Error::TokenizerWorker { source })
}
