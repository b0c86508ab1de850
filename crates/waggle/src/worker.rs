//! A server's tokenizer and chat template, in a process of their own.
//!
//! They are the server's and read the client's words, so another process runs them. It is this program again, called
//! with one word: in a sandbox on Linux, under limits elsewhere.

use std::ffi::OsString;
use std::sync::OnceLock;

use waggle_tokenizer::{Tokenizer, TokenizerError, WorkerCommand, run_worker};

use crate::Error;

/// The word that the program is called with.
const WORD: &str = "tokenizer-worker";

/// The words by which this program is started.
static PROGRAM: OnceLock<Vec<OsString>> = OnceLock::new();

/// Call this first in `main`: a client runs the tokenizer of a server in another process of the same program, and
/// that process does not return from here.
pub fn init() {
    called(std::env::args_os().nth(1).as_ref());
    let _ = PROGRAM.set(std::env::current_exe().map(OsString::from).into_iter().collect());
}

/// [`init`] for a program that is not started by its file alone: `words` start it, an interpreter and the module that
/// it runs, and that module hands its words to [`called`](crate::program::called).
///
/// # Errors
/// [`Error::Cpu`] if the environment names kernels that the processor lacks.
pub fn init_as(words: Vec<OsString>) -> Result<(), Error> {
    // Words that were said before stay.
    let _ = PROGRAM.set(words);
    waggle_bits::cpu::Cpu::choose()?;
    Ok(())
}

/// Does not return if the program was `called` to run a tokenizer.
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

/// The words by which this program is started, an empty one if that is not known.
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
/// A tokenizer that is refused, and a process that cannot be started.
pub fn foreign(bytes: &[u8]) -> Result<Tokenizer, Error> {
    let mut words = words()?.into_iter();
    let program = words.next().unwrap_or_default().into();
    let arguments = words.chain([WORD.into()]).collect();
    let command = WorkerCommand { program, arguments, time_out: WorkerCommand::TIME_OUT };
    Ok(Tokenizer::foreign(bytes, &command)?)
}
