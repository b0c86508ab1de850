//! Lines from a terminal, a pipe or a file.

use std::io::{BufRead, BufReader, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use waggle::program::harmless;
use waggle_files::at;

use crate::{Error, out};

/// Longest line, in bytes. No model takes as many.
const MAX_LINE_BYTES: u64 = 4 << 20;

/// Most lines that are read ahead.
const AHEAD: usize = 16;

pub(super) enum Input {
    /// A line, perhaps with its line end.
    Line(String),
    Bad,
    /// Ctrl-C at a terminal.
    Interrupted,
    /// The end of the input.
    End,
    /// The input cannot be read.
    Failed(Error),
}

/// Lines that a thread reads, so that the session can work meanwhile.
pub(super) struct Lines {
    lines: Receiver<Input>,
    sender: SyncSender<Input>,
    terminal: bool,
}

impl Lines {
    pub(super) fn read(file: Option<&Path>) -> Result<Self, Error> {
        let terminal = file.is_none() && std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
        let (send, lines) = sync_channel(AHEAD);
        let sender = send.clone();
        let path = file.map_or_else(|| PathBuf::from("standard input"), Path::to_owned);
        let from: Box<dyn Read + Send> = match file {
            Some(file) => Box::new(std::fs::File::open(file).map_err(at(file))?),
            None => Box::new(std::io::stdin()),
        };
        let reader = thread::Builder::new().name("waggle-lines".into());
        // The thread ends only with the program, as reading a terminal cannot be interrupted.
        reader
            .spawn(move || {
                let mut from = BufReader::new(from);
                loop {
                    let input = next(&mut from).unwrap_or_else(|source| Input::Failed(at(&path)(source).into()));
                    let last = !matches!(input, Input::Line(_) | Input::Bad);
                    if send.send(input).is_err() || last {
                        return;
                    }
                }
            })
            .map_err(|source| waggle::Error::System { what: "start a thread", source })?;
        Ok(Lines { lines, sender, terminal })
    }

    /// Whether both the input and standard error are terminals.
    pub(super) fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// A function that wakes the session if it waits for a line. If lines are there already, the session does not
    /// wait.
    pub(super) fn interrupter(&self) -> impl Fn() + Send + 'static {
        let sender = self.sender.clone();
        move || drop(sender.try_send(Input::Interrupted))
    }

    /// Shows the input mark at a terminal. The line above is left free for [`Lines::show`].
    pub(super) fn ask(&self) {
        if self.terminal {
            let mut to = std::io::stderr().lock();
            // There is nobody left to tell of a failure.
            let _ = write!(to, "\n> ").and_then(|()| to.flush());
        }
    }

    /// Shows at a terminal a line that was typed before the input mark was shown.
    pub(super) fn echo(&self, input: &Input) {
        if let Input::Line(line) = input {
            out::note(harmless(line.trim_end()));
        }
    }

    /// Shows `text` at a terminal, above the line that is being typed.
    pub(super) fn show(&self, text: &str) {
        if self.terminal {
            let mut to = std::io::stderr().lock();
            // Saves the cursor, goes up a line, clears it, writes the text, and restores the cursor.
            let _ = write!(to, "\x1b7\x1b[1A\r\x1b[2K{text}\x1b8").and_then(|()| to.flush());
        }
    }
}

impl Lines {
    pub(super) fn look(&self) -> Option<Input> {
        self.wait(Duration::ZERO)
    }

    pub(super) fn wait(&self, limit: Duration) -> Option<Input> {
        match self.lines.recv_timeout(limit) {
            Ok(input) => Some(input),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Input::End),
        }
    }
}

fn next(from: &mut impl BufRead) -> std::io::Result<Input> {
    let mut line = Vec::new();
    if from.by_ref().take(MAX_LINE_BYTES + 1).read_until(b'\n', &mut line)? == 0 {
        return Ok(Input::End);
    }
    if line.len() as u64 > MAX_LINE_BYTES {
        let what = format!("a line has more than {MAX_LINE_BYTES} bytes");
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, what));
    }
    Ok(String::from_utf8(line).map_or(Input::Bad, Input::Line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_one_by_one_and_bad_ones_are_errors() {
        let lines = |bytes: &[u8]| {
            let mut from = BufReader::new(bytes);
            let mut all = Vec::new();
            loop {
                match next(&mut from) {
                    Ok(Input::Line(line)) => all.push(Ok(line)),
                    Ok(Input::Bad) => all.push(Ok("bad".into())),
                    Ok(_) => return all,
                    Err(error) => {
                        all.push(Err(error.kind()));
                        return all;
                    }
                }
            }
        };
        assert_eq!(lines(b"a\n\nb"), [Ok("a\n".into()), Ok("\n".into()), Ok("b".into())]);
        assert_eq!(lines(b"caf\xe9\nb"), [Ok("bad".into()), Ok("b".into())]);
        let long = vec![b'a'; MAX_LINE_BYTES as usize + 1];
        assert_eq!(lines(&long), [Err(std::io::ErrorKind::InvalidData)]);
    }
}
