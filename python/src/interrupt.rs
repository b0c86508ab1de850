//! Runs long work that Ctrl-C ends within a second, and that tells its progress.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// Progress of work: its step, the amount of the step that is done, and the step's whole amount.
type Progress = (&'static str, u64, u64);

/// The state that work shares with the call that waits for it.
#[derive(Clone)]
pub(crate) struct Flag {
    /// Set when the user has interrupted the work.
    up: Arc<AtomicBool>,
    /// The sender of progress, if anybody wants to know it.
    told: Option<Sender<Progress>>,
}

/// The payload of the panic that unwinds the threads of interrupted work.
struct Interrupted;

impl Flag {
    /// Whether the work was interrupted.
    pub(crate) fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }

    /// Unwinds this thread if the work was interrupted. Every thread that waits for this one passes the panic on.
    pub(crate) fn check(&self) {
        if self.is_up() {
            resume_unwind(Box::new(Interrupted));
        }
    }

    /// Tells that the amount `done` of the whole amount `all` of a step is done. Unwinds this thread if the work was
    /// interrupted.
    pub(crate) fn tell(&self, step: &'static str, done: u64, all: u64) {
        self.check();
        if let Some(told) = &self.told {
            // Sending fails if the call no longer waits for the work.
            let _ = told.send((step, done, all));
        }
    }
}

/// Interval at which signals are checked.
const POLL: Duration = Duration::from_millis(50);

/// Time that interrupted work has to end. The call does not wait longer for it.
const GRACE: Duration = Duration::from_millis(500);

/// Runs `work` in a thread of its own, without the interpreter's lock, and checks for signals meanwhile. `progress`
/// is called in the thread of the caller, as widgets of notebooks require.
///
/// # Errors
/// The exception that a signal or `progress` raised, for example `KeyboardInterrupt`. Work in the middle of a long
/// step then goes on until the end of this step, where its data are dropped.
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
            // Dropping the sender wakes up the call, even if other flags are still alive.
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
