//! Long work that Ctrl-C ends within a second, and that tells how far it is.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// How far work is: its step, what is done of it, and all of it.
type Progress = (&'static str, u64, u64);

/// The ties between work and the call that waits for it.
#[derive(Clone)]
pub(crate) struct Flag {
    /// Raised when the user has interrupted the work.
    up: Arc<AtomicBool>,
    /// Where progress goes, if somebody wants to know.
    told: Option<Sender<Progress>>,
}

/// The payload that unwinds the threads of work that nobody wants any more.
struct Interrupted;

impl Flag {
    /// Whether the work is to end.
    pub(crate) fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }

    /// Ends this thread's work if it is to end. Every thread that waits for this one passes it on.
    pub(crate) fn check(&self) {
        if self.is_up() {
            resume_unwind(Box::new(Interrupted));
        }
    }

    /// Says that `done` of `all` of a step are done, and ends this thread's work if it is to end.
    pub(crate) fn tell(&self, step: &'static str, done: u64, all: u64) {
        self.check();
        if let Some(told) = &self.told {
            // Nobody listens to work that was left alone.
            let _ = told.send((step, done, all));
        }
    }
}

/// The interval at which signals are looked for.
const POLL: Duration = Duration::from_millis(50);

/// The time that interrupted work has for its end. One that takes longer is left alone.
const GRACE: Duration = Duration::from_millis(500);

/// Runs `work` in a thread of its own, without the interpreter's lock, and looks for signals meanwhile. `progress` is
/// called in this thread, as widgets of notebooks want.
///
/// # Errors
/// What a signal or `progress` raised: `KeyboardInterrupt`, for instance. Work in the middle of a long step then goes
/// on to the end of this step, and what it holds is dropped there.
pub(crate) fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    progress: Option<Py<PyAny>>,
    work: impl FnOnce(Flag) -> T + Send + 'static,
) -> PyResult<T> {
    let (told, heard) = channel();
    let flag = Flag { up: Arc::default(), told: progress.is_some().then(|| told.clone()) };
    let up = Arc::clone(&flag.up);
    py.detach(move || {
        let thread = thread::Builder::new().name("waggle-work".into()).spawn(move || {
            let outcome = waggle_cli::with_notes(|| work(flag));
            // The call wakes up by this, whoever else still holds a flag.
            drop(told);
            outcome
        })?;
        let mut raised: Option<(PyErr, Instant)> = None;
        let ended = loop {
            let event = heard.recv_timeout(POLL);
            let ended = match event {
                Ok(_) => false,
                Err(RecvTimeoutError::Timeout) => thread.is_finished(),
                Err(RecvTimeoutError::Disconnected) => true,
            };
            if ended {
                break true;
            }
            if let Some((_, at)) = &raised {
                if at.elapsed() > GRACE {
                    break false;
                }
                continue;
            }
            let outcome = Python::attach(|py| {
                py.check_signals()?;
                match (&progress, event) {
                    (Some(progress), Ok(event)) => progress.call1(py, event).map(drop),
                    _ => Ok(()),
                }
            });
            if let Err(error) = outcome {
                up.store(true, Ordering::Relaxed);
                raised = Some((error, Instant::now()));
            }
        };
        match raised {
            None => thread.join().map_err(|panic| resume_unwind(panic)),
            Some((error, _)) if ended => match thread.join() {
                Err(panic) if !panic.is::<Interrupted>() => resume_unwind(panic),
                _ => Err(error),
            },
            Some((error, _)) => Err(error),
        }
    })
}
