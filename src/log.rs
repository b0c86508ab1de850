//! The log of a server: one line for each event, on standard error. Other commands write notes as plain lines.
//!
//! Nothing that happens to standard error may end or stop the server. Lines go to a thread of their own over a
//! bounded queue. If the reader has gone or the disk is full, lines are lost. If the reader stands still, lines that
//! do not fit the queue are lost, and the next line that fits says how many.

use std::io::{self, Write};
use std::panic;
use std::sync::{Mutex, OnceLock, PoisonError};

use clap::ValueEnum;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
pub(super) use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Most lines that wait for standard error.
const QUEUED_LINES: usize = 1024;

/// The levels of the log by name. Events below the chosen level are not logged.
pub(super) const LEVELS: [(&str, LevelFilter); 6] = [
    ("off", LevelFilter::OFF),
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
];

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Format {
    Text,
    Json,
}

/// The writer of log lines.
struct Log {
    lines: NonBlocking,
    lost: ErrorCounter,
    /// Number of lost lines that a notice has counted already.
    told: Mutex<usize>,
}

impl Log {
    /// A log that writes to `out`. The guard waits a moment for the last lines when it is dropped.
    fn new(out: impl Write + Send + 'static, queued: usize) -> (Self, WorkerGuard) {
        let builder = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(queued);
        let (lines, guard) = builder.thread_name("waggle-log").finish(out);
        (Log { lost: lines.error_counter(), lines, told: Mutex::new(0) }, guard)
    }
}

impl MakeWriter<'_> for Log {
    type Writer = NonBlocking;

    fn make_writer(&self) -> NonBlocking {
        let mut lines = self.lines.clone();
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let lost = self.lost.dropped_lines();
        if lost > *told {
            let line = format!("{} lines of the log are lost: nobody read them\n", lost - *told);
            // The queue never blocks. It counts the lines that it drops, perhaps this one.
            let _ = lines.write_all(line.as_bytes());
            *told = if self.lost.dropped_lines() == lost { lost } else { *told + 1 };
        }
        lines
    }
}

/// Starts the log, once in a process. The guard waits a moment for the last lines when it is dropped.
pub(super) fn start(level: LevelFilter, format: Format) -> WorkerGuard {
    let (log, guard) = Log::new(io::stderr(), QUEUED_LINES);
    let builder = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(false)
        .with_target(false)
        .log_internal_errors(false)
        .with_writer(log);
    // A process has one subscriber. A second start is a bug of the caller and has no effect.
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
    guard
}

/// Runs `work`. Each warning of the library in this thread is a line on standard error.
pub(super) fn with_notes<T>(work: impl FnOnce() -> T) -> T {
    let notes = tracing_subscriber::fmt().with_max_level(LevelFilter::WARN).with_writer(io::stderr);
    let notes = notes.with_ansi(false).with_level(false).with_target(false).without_time().finish();
    tracing::subscriber::with_default(notes, work)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    struct Full;

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Err(io::ErrorKind::StorageFull.into())
        }
    }

    /// An output that blocks until the sender is dropped.
    struct Slow(Receiver<()>, Arc<Mutex<Vec<u8>>>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            self.1.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_nobody_takes_are_counted_and_stop_nobody() {
        let (still, wait) = channel();
        let text = Arc::new(Mutex::new(Vec::new()));
        let (log, guard) = Log::new(Slow(wait, text.clone()), 2);
        let mut written = 0;
        let mut write = || {
            log.make_writer().write_all(b"line\n").unwrap();
            written += 1;
        };
        (0..20).for_each(|_| write());
        assert!((16..=40).contains(&log.lost.dropped_lines()));
        drop(still);
        let read = || String::from_utf8(text.lock().unwrap().clone()).unwrap();
        while !read().contains("are lost") {
            write();
            std::thread::yield_now();
        }
        drop(guard);
        let (mut lines, mut lost) = (0, 0);
        for line in read().lines() {
            match line.strip_suffix(" lines of the log are lost: nobody read them") {
                Some(count) => lost += count.parse::<usize>().unwrap(),
                None => lines += 1,
            }
        }
        // Lines that are lost after the last notice are not counted.
        assert!(lost >= 16 && lines >= 2 && lines + lost <= written, "{lines} + {lost} of {written}");
    }

    #[test]
    fn a_full_disk_is_ignored() {
        let (log, guard) = Log::new(Full, 2);
        (0..3).for_each(|_| log.make_writer().write_all(b"line\n").unwrap());
        drop(guard);
    }
}
