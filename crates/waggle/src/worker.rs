//! A server's tokenizer and chat template, in a process of their own.
//!
//! They come from the server and read the client's words, so a separate process runs them. It is this program again,
//! called with one word: in a sandbox on Linux, under limits elsewhere.

use std::ffi::OsString;
use std::sync::OnceLock;

use waggle_tokenizer::{Tokenizer, TokenizerError, WorkerCommand, run_worker};

use crate::Error;

/// The argument by which this program becomes a tokenizer's process.
const WORD: &str = "tokenizer-worker";

/// The command line that starts this program.
static PROGRAM: OnceLock<Vec<OsString>> = OnceLock::new();

/// Prepares a program for the tokenizers of servers. Call it first in `main`: a client runs such a tokenizer in
/// another process of the same program, and in that process this function does not return.
pub fn init() {
    called(std::env::args_os().nth(1).as_ref());
    let _ = PROGRAM.set(std::env::current_exe().map(OsString::from).into_iter().collect());
}

/// [`init`] for a program that is not started by its file alone. `words` are the command line that starts it: an
/// interpreter and a module. That module hands its arguments to [`called`](crate::program::called).
///
/// # Errors
/// [`Error::Cpu`] if the environment names kernels that the processor lacks.
pub fn init_as(words: Vec<OsString>) -> Result<(), Error> {
    // Only the first call sets the command line.
    let _ = PROGRAM.set(words);
    waggle_bits::cpu::Cpu::choose()?;
    Ok(())
}

/// If the program's first argument `called` asks for a tokenizer's process, runs the tokenizer and ends the process.
pub fn called(called: Option<&OsString>) {
    if called.is_some_and(|called| called == WORD) {
        let code = match run_worker() {
            Ok(()) => 0,
            Err(error) => {
                eprintln!("error: tokenizer: {error}");
                1
            }
        };
        std::process::exit(code);
    }
}

/// The command line that starts this program. It is empty if the system does not tell the program's path.
///
/// # Errors
/// [`TokenizerError::Spawn`] if the program did not call [`init`] first.
pub fn words() -> Result<Vec<OsString>, TokenizerError> {
    let spawn = |what: &str| TokenizerError::Spawn { what: what.into() };
    PROGRAM.get().cloned().ok_or_else(|| spawn("the program does not call waggle::init() first"))
}

/// Runs the tokenizer `bytes` of a server in another process of this program.
///
/// # Errors
/// If the tokenizer is refused, or the process cannot be started.
pub fn foreign(bytes: &[u8]) -> Result<Tokenizer, Error> {
    let mut words = words()?.into_iter();
    let program = words.next().unwrap_or_default().into();
    let arguments = words.chain([WORD.into()]).collect();
    let command = WorkerCommand { program, arguments, time_out: WorkerCommand::TIME_OUT };
    Ok(Tokenizer::foreign(bytes, &command)?)
}
