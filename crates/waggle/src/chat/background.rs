//! A conversation in a thread of its own. The thread prepares the next turn while the program does other things.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use waggle_session::party::{Event, Flow};

use super::{Chat, ChatReport, Readiness, Said, TurnReport};
use crate::Error;

/// A [`Chat`] in a thread of its own. In two phases the thread makes correlations for the next turn between turns.
/// Dropping this value ends the session.
pub struct BackgroundChat {
    commands: Sender<Command>,
    state: Arc<Mutex<State>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// State that the program reads without asking the thread.
struct State {
    transcript: Vec<Said>,
    prepared: Readiness,
    /// The error that ended the session while no call waited for an answer.
    failed: Option<Error>,
}

/// A command to the thread, with the sender of its answer.
enum Command {
    Say {
        words: String,
        watch: Box<dyn FnMut(Event<'_>) -> Flow + Send>,
        answer: Sender<Result<TurnReport, Error>>,
    },
    Reset {
        answer: Sender<Result<(), Error>>,
    },
    Close {
        answer: Sender<Result<ChatReport, Error>>,
    },
    /// The [`BackgroundChat`] is dropped: the thread ends.
    Leave,
}

impl Chat {
    /// Moves the conversation into a thread of its own.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn in_background(self) -> Result<BackgroundChat, Error> {
        let state = State { transcript: Vec::new(), prepared: self.prepared(), failed: None };
        let state = Arc::new(Mutex::new(state));
        let (commands, received) = channel();
        let shared = Arc::clone(&state);
        let thread = thread::Builder::new().name("waggle-chat".into());
        let log = tracing::dispatcher::get_default(Clone::clone);
        let host = move || tracing::dispatcher::with_default(&log, || host(self, &received, &shared));
        let thread = thread.spawn(host).map_err(|source| Error::System { what: "start a thread", source })?;
        Ok(BackgroundChat { commands, state, thread: Mutex::new(Some(thread)) })
    }
}

impl BackgroundChat {
    /// Says `words` and waits for the answer. `watch` hears the answer as it comes, in the conversation's thread. If
    /// `watch` panics, this call panics with the same payload, and the session is over.
    ///
    /// # Errors
    /// If the turn is refused, after which the conversation goes on. If the session ends.
    pub fn say(&self, words: &str, watch: Box<dyn FnMut(Event<'_>) -> Flow + Send>) -> Result<TurnReport, Error> {
        self.ask(|answer| Command::Say { words: words.to_owned(), watch, answer }).unwrap_or_else(|| self.over())
    }

    /// Begins another conversation in the same session.
    ///
    /// # Errors
    /// The error that ends the session.
    pub fn reset(&self) -> Result<(), Error> {
        self.ask(|answer| Command::Reset { answer }).unwrap_or_else(|| self.over())
    }

    /// Ends the session and returns its report, or `None` if the session was over before.
    ///
    /// # Errors
    /// The error that ended the session, if no call has returned it yet.
    pub fn close(&self) -> Result<Option<ChatReport>, Error> {
        match self.ask(|answer| Command::Close { answer }) {
            Some(report) => report.map(Some),
            None => self.failure().map_or(Ok(None), Err),
        }
    }

    /// Number of tokens of the next turn for which correlations are ready.
    pub fn prepared(&self) -> Readiness {
        lock(&self.state).prepared
    }

    /// The conversation up to its last turn. It can be read after the session too.
    pub fn transcript(&self) -> Vec<Said> {
        lock(&self.state).transcript.clone()
    }

    /// Sends `command` to the thread. Returns the thread's answer, or `None` if the thread has ended.
    fn ask<T>(&self, command: impl FnOnce(Sender<T>) -> Command) -> Option<T> {
        let (answer, answered) = channel();
        // If the command cannot be sent, it is dropped with the sender in it, so `recv` fails.
        let _ = self.commands.send(command(answer));
        answered.recv().ok()
    }

    /// Waits until the thread has ended. Returns the error that ended it, if no call has returned that yet. If the
    /// thread panicked, this call panics too.
    fn failure(&self) -> Option<Error> {
        let thread = lock(&self.thread).take();
        if let Some(Err(panic)) = thread.map(JoinHandle::join) {
            resume_unwind(panic);
        }
        lock(&self.state).failed.take()
    }

    fn over<T>(&self) -> Result<T, Error> {
        Err(self.failure().unwrap_or_else(|| waggle_session::Error::ChatOver.into()))
    }
}

impl Drop for BackgroundChat {
    fn drop(&mut self) {
        // Both calls fail if the thread has ended. There is nobody left to tell.
        let _ = self.commands.send(Command::Leave);
        let _ = lock(&self.thread).take().map(JoinHandle::join);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The next command, if one comes within `limit`.
fn received(commands: &Receiver<Command>, limit: Duration) -> Option<Command> {
    match commands.recv_timeout(limit) {
        Ok(command) => Some(command),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => Some(Command::Leave),
    }
}

/// Carries out `commands` until the session ends. An answer that nobody waits for any more is dropped.
fn host(mut talk: Chat, commands: &Receiver<Command>, state: &Mutex<State>) {
    loop {
        let command = match next(&mut talk, commands, state) {
            Ok(command) => command,
            Err(error) => {
                lock(state).failed = Some(error);
                return;
            }
        };
        match command {
            Command::Say { words, mut watch, answer } => {
                if let Flow::Abandon = watch(Event::GoesOn) {
                    let _ = answer.send(Err(waggle_model::Error::Abandoned.into()));
                    continue;
                }
                let said = catch_unwind(AssertUnwindSafe(|| talk.turn_with(&words, &mut *watch)));
                // The watcher is dropped first: when the caller gets the answer, nothing that the watcher holds is in
                // use.
                drop(watch);
                publish(&talk, state);
                let said = said.unwrap_or_else(|panic| resume_unwind(panic));
                let over = said.as_ref().is_err_and(|error| !error.leaves_the_conversation());
                let _ = answer.send(said);
                if over {
                    return;
                }
            }
            Command::Reset { answer } => {
                let reset = talk.reset();
                publish(&talk, state);
                let over = reset.is_err();
                let _ = answer.send(reset);
                if over {
                    return;
                }
            }
            Command::Close { answer } => {
                let _ = answer.send(talk.finish());
                return;
            }
            Command::Leave => {
                let _ = talk.finish();
                return;
            }
        }
    }
}

/// Waits for the next command, and makes correlations until it comes.
fn next(talk: &mut Chat, commands: &Receiver<Command>, state: &Mutex<State>) -> Result<Command, Error> {
    match talk.prepare_until(|| received(commands, Duration::ZERO), |prepared| lock(state).prepared = prepared)? {
        Some(command) => Ok(command),
        None => talk.stay_until(|limit| received(commands, limit)),
    }
}

fn publish(talk: &Chat, state: &Mutex<State>) {
    let mut state = lock(state);
    state.transcript = talk.transcript().said();
    state.prepared = talk.prepared();
}
