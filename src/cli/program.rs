//! How this program is started once more, as a process of its own.

use std::ffi::OsString;
use std::io;
use std::process::Command;
use std::sync::OnceLock;

static PROGRAM: OnceLock<Vec<OsString>> = OnceLock::new();

/// Says by which words this program is started, where its file alone is not it: an interpreter and the module that it
/// runs. Words that were said before stay.
pub fn started_by(words: Vec<OsString>) {
    let _ = PROGRAM.set(words);
}

/// The words by which this program is started: its file, and what comes first in its command line.
pub(super) fn words() -> io::Result<Vec<OsString>> {
    match PROGRAM.get() {
        Some(words) => Ok(words.clone()),
        None => Ok(vec![std::env::current_exe()?.into()]),
    }
}

/// This program, to be given a command.
pub(super) fn command() -> io::Result<Command> {
    let mut words = words()?.into_iter();
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    Ok(command)
}
