//! Long work that Ctrl-C ends.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;

/// Raised when the user has interrupted the work.
#[derive(Clone)]
pub(crate) struct Flag(Arc<AtomicBool>);

/// The payload that unwinds the threads of work that nobody wants any more.
struct Interrupted;

impl Flag {
    /// Whether the work is to end.
    pub(crate) fn is_up(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Ends this thread's work if it is to end. Every thread that waits for this one passes it on.
    pub(crate) fn check(&self) {
        if self.is_up() {
            resume_unwind(Box::new(Interrupted));
        }
    }
}

/// The interval at which signals are looked for.
const POLL: Duration = Duration::from_millis(50);

/// Runs `work` in a thread of its own, without the interpreter's lock, and looks for signals meanwhile.
///
/// # Errors
/// What a signal raised: `KeyboardInterrupt`, for instance. The work has then ended, which takes it a step at most.
pub(crate) fn interruptible<T: Send>(py: Python<'_>, work: impl FnOnce(Flag) -> T + Send) -> PyResult<T> {
    let flag = Flag(Arc::default());
    let (done, finished) = channel();
    let finished = std::sync::Mutex::new(finished);
    let theirs = flag.clone();
    py.detach(|| {
        thread::scope(|scope| {
            scope.spawn(move || {
                let outcome = catch_unwind(AssertUnwindSafe(|| work(theirs)));
                // Nobody has left: the scope waits for this thread.
                let _ = done.send(outcome);
            });
            let finished = finished.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let mut signal = None;
            loop {
                match finished.recv_timeout(POLL) {
                    Err(RecvTimeoutError::Timeout) => {
                        if signal.is_none() {
                            signal = Python::attach(|py| py.check_signals()).err();
                            flag.0.store(signal.is_some(), Ordering::Relaxed);
                        }
                    }
                    Ok(Ok(outcome)) => return signal.map_or(Ok(outcome), Err),
                    Ok(Err(panic)) => match signal {
                        Some(signal) if panic.is::<Interrupted>() => return Err(signal),
                        _ => resume_unwind(panic),
                    },
                    Err(RecvTimeoutError::Disconnected) => unreachable!("the thread sends before it ends"),
                }
            }
        })
    })
}
