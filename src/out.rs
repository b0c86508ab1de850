//! Standard output and standard error. All output of commands goes through this module.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use super::{Error, advice};

/// Writes `text` to standard output and flushes it.
pub(super) fn print(text: impl Display) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    write!(out, "{text}").and_then(|()| out.flush()).map_err(Error::Output)
}

/// Writes `text` and the end of a line to standard output.
pub(super) fn line(text: impl Display) -> Result<(), Error> {
    print(format_args!("{text}\n"))
}

/// Width in characters of the terminal on standard output; `None` if it is not a terminal.
pub(super) fn width() -> Option<usize> {
    columns(&io::stdout())
}

/// Width in characters of the terminal on standard error; `None` if it is not a terminal.
pub(super) fn error_width() -> Option<usize> {
    columns(&io::stderr())
}

#[cfg(unix)]
fn columns(stream: &impl std::os::fd::AsFd) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(stream).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

#[cfg(not(unix))]
fn columns<T>(_: &T) -> Option<usize> {
    None
}

/// Writes a line to standard error. A failure is ignored, because there is nobody left to tell.
pub(super) fn note(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Writes a line about `error` to standard error, and returns the exit code. A command whose reader has gone ends
/// silently, with the exit code of a program that SIGPIPE ended, as other programs do.
pub(super) fn fail(error: &Error) -> ExitCode {
    match error {
        Error::Output(source) if source.kind() == ErrorKind::BrokenPipe => ExitCode::from(128 + 13),
        _ => {
            note(format_args!("error: {}", advice::told(error)));
            ExitCode::FAILURE
        }
    }
}
