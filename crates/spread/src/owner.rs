//! The one thread of a process that talks to other ranks.

use std::fmt::Display;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use crate::SpreadError;
use crate::comm::Comm;

type Job = Box<dyn FnOnce(&dyn Comm) + Send>;

/// The queue of the thread that talks to other ranks. Jobs run one after another, whichever threads they come from.
pub(crate) struct Owner {
    /// The sender of jobs; `None` after [`Owner::end`].
    jobs: Mutex<Option<Sender<Job>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Owner {
    /// Starts the thread, which connects. The thread that entered MPI must also leave it, so this thread ends the
    /// connection as well.
    pub(crate) fn start<C: Comm + 'static>(
        connect: impl FnOnce() -> Result<C, SpreadError> + Send + 'static,
    ) -> Result<Self, SpreadError> {
        let (jobs, queue) = channel();
        let (connected, answer) = channel();
        let run = move || {
            let comm = match connect() {
                Ok(comm) => comm,
                Err(error) => return drop(connected.send(Err(error))),
            };
            // The caller waits for the answer.
            let _ = connected.send(Ok(()));
            work_off(&comm, &queue);
        };
        let thread = thread::Builder::new().name("waggle-ranks".into()).spawn(run);
        let thread = thread.map_err(|error| SpreadError::NoThread(error.to_string()))?;
        answer.recv().unwrap_or(Err(SpreadError::Ended))?;
        Ok(Owner { jobs: Mutex::new(Some(jobs)), thread: Mutex::new(Some(thread)) })
    }

    /// Has the thread do `job` after all earlier jobs, and waits for the result.
    ///
    /// # Errors
    /// [`SpreadError::Ended`] after [`Owner::end`].
    pub(crate) fn call<T: Send + 'static>(
        &self,
        job: impl FnOnce(&dyn Comm) -> T + Send + 'static,
    ) -> Result<T, SpreadError> {
        let (done, result) = channel();
        // The caller waits for the result.
        let job: Job = Box::new(move |comm| drop(done.send(job(comm))));
        let queue = self.jobs.lock().unwrap_or_else(PoisonError::into_inner).clone();
        queue.and_then(|queue| queue.send(job).ok()).ok_or(SpreadError::Ended)?;
        result.recv().map_err(|_| SpreadError::Ended)
    }

    /// Lets the thread do the jobs that wait, then ends it and its connection. Later calls of `end` do nothing.
    pub(crate) fn end(&self) {
        drop(self.jobs.lock().unwrap_or_else(PoisonError::into_inner).take());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // Panics of its jobs were caught.
            let _ = thread.join();
        }
    }
}

/// Does one job after another until no more can come. A panic would leave the other ranks waiting for ever, so a
/// panic ends all ranks.
fn work_off(comm: &dyn Comm, jobs: &Receiver<Job>) {
    for job in jobs {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| job(comm))) {
            let words = panic.downcast_ref::<String>().map(String::as_str);
            let words = words.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no words");
            return abort(comm, &format!("a bug: {words}"));
        }
    }
}

/// Ends all ranks, with a line on standard error that says why: there is no time for a log.
pub(crate) fn abort(comm: &dyn Comm, why: &dyn Display) {
    let line = format!("error: rank {} on {}: {why}; all ranks end\n", comm.rank(), comm.host());
    // The ranks end even if nobody reads the line.
    let _ = io::stderr().write_all(line.as_bytes());
    comm.abort();
}
