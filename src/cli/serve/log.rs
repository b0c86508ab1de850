//! The log of a server: one line an event, on standard error.
//!
//! Nothing that happens to standard error may end or stop the server. Lines go to a thread of their own over a
//! bounded queue. If the reader has gone or the disk is full, lines are lost. If the reader stands still, lines that
//! do not fit the queue are lost, and the next line that fits says how many.

use std::io::{self, Write};
use std::panic;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use clap::ValueEnum;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::cli::Error;

/// Lines that wait for standard error.
const QUEUED_LINES: usize = 1024;
/// How long the end of the process waits for them.
const FLUSH: Duration = Duration::from_millis(500);

/// The least important events that are logged.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(in crate::cli) enum Level {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// How a line looks.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(in crate::cli) enum Format {
    Text,
    Json,
}

/// What goes to the thread that writes.
enum Item {
    Line(Vec<u8>),
    /// Answered by dropping the sender when all before is written.
    Flush(#[expect(dead_code, reason = "its end is the answer")] SyncSender<()>),
}

/// The way to standard error; waits for the last lines when dropped.
#[derive(Clone)]
pub(super) struct Log {
    queue: SyncSender<Item>,
    lost: Arc<AtomicU64>,
}

/// Waits for the last lines when dropped.
pub(super) struct Flush(Log);

/// Starts the log; once a process.
pub(super) fn start(level: Level, format: Format) -> Result<Flush, Error> {
    let (queue, items) = sync_channel(QUEUED_LINES);
    let log = Log { queue, lost: Arc::default() };
    let lost = log.lost.clone();
    let writing = thread::Builder::new().name("waggle-log".into()).spawn(move || write(&items, &lost, io::stderr()));
    writing.map_err(|source| crate::Error::System { what: "start the log", source })?;
    let level = match level {
        Level::Off => LevelFilter::OFF,
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
        Level::Trace => LevelFilter::TRACE,
    };
    let builder = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(false)
        .with_target(false)
        .log_internal_errors(false)
        .with_writer(log.clone());
    // A process has one subscriber. A second start is a bug of the caller and changes nothing.
    let _ = match format {
        Format::Text => builder.try_init(),
        Format::Json => builder.json().flatten_event(true).with_current_span(true).with_span_list(false).try_init(),
    };
    static HOOK: OnceLock<()> = OnceLock::new();
    HOOK.get_or_init(|| {
        panic::set_hook(Box::new(|info| {
            let place = info.location().map(ToString::to_string).unwrap_or_default();
            let what = info.payload_as_str().unwrap_or("a panic without words");
            tracing::error!(place, what, "a bug: a thread panicked");
        }));
    });
    Ok(Flush(log))
}

/// Writes lines as they come; failures are ignored.
fn write(items: &Receiver<Item>, lost: &AtomicU64, mut out: impl Write) {
    for item in items {
        let Item::Line(line) = item else { continue };
        let missing = lost.swap(0, Ordering::Relaxed);
        if missing > 0 {
            let _ = writeln!(out, "{missing} lines of the log are lost: nobody read them");
        }
        let _ = out.write_all(&line);
        let _ = out.flush();
    }
}

impl Drop for Flush {
    fn drop(&mut self) {
        let (done, wait) = sync_channel(0);
        if self.0.queue.try_send(Item::Flush(done)).is_ok() {
            // Stops waiting for a reader that stands still.
            let ended = wait.recv_timeout(FLUSH);
            debug_assert!(matches!(ended, Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout)));
        }
    }
}

/// One line under way.
pub(super) struct Entry<'a> {
    log: &'a Log,
    line: Vec<u8>,
}

impl Write for Entry<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.line.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        if self.line.is_empty() {
            return;
        }
        let line = Item::Line(std::mem::take(&mut self.line));
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = self.log.queue.try_send(line) {
            self.log.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Entry<'a>;

    fn make_writer(&'a self) -> Entry<'a> {
        Entry { log: self, line: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk that is full.
    struct Full;

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Err(io::ErrorKind::StorageFull.into())
        }
    }

    #[test]
    fn lines_that_nobody_takes_are_counted_and_stop_nobody() {
        let (queue, items) = sync_channel(2);
        let log = Log { queue, lost: Arc::default() };
        for number in 0..5 {
            writeln!(log.make_writer(), "line {number}").unwrap();
        }
        let lost = log.lost.clone();
        assert_eq!(lost.load(Ordering::Relaxed), 3);
        drop(log);
        let mut out = Vec::new();
        write(&items, &lost, &mut out);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "3 lines of the log are lost: nobody read them\nline 0\nline 1\n");
    }

    #[test]
    fn a_full_disk_is_ignored() {
        let (queue, items) = sync_channel(2);
        queue.send(Item::Line(b"line\n".to_vec())).unwrap();
        drop(queue);
        write(&items, &AtomicU64::new(1), Full);
    }
}
