//! A conversation in a thread of its own, which prepares the next turn while the program does other things.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use clap::Parser;
use session::party::Observer;

use super::{Failure, Options, parse};
use crate::cli::Error;
use crate::cli::chat::{ChatReport, Incoming, Listener, Said, Talk, TalkArgs, TurnReport};

/// Options of a conversation.
#[derive(Parser)]
struct ChatOptions {
    #[command(flatten)]
    talk: TalkArgs,
}

/// A conversation with the model of a server, as `waggle chat` has it. Between turns a thread keeps the session, and
/// with the option `preprocess` makes correlations for the next turn. Dropping it ends the session.
pub struct Chat {
    commands: Sender<Command>,
    state: Arc<Mutex<State>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What is known without asking the thread.
struct State {
    transcript: Vec<Said>,
    prepared: (usize, usize),
    /// Why the session ended while nobody asked for anything.
    failed: Option<Failure>,
}

/// What the thread is to do, and where it answers.
enum Command {
    Say {
        words: String,
        listener: Box<dyn Listener + Send>,
        answer: Sender<Result<TurnReport, Failure>>,
    },
    Reset {
        answer: Sender<Result<(), Failure>>,
    },
    Close {
        answer: Sender<Result<ChatReport, Failure>>,
    },
    /// Nobody can ask any more.
    Leave,
}

impl Chat {
    /// Opens a session with the server whose address is the option `connect`.
    ///
    /// # Errors
    /// Those of the command.
    pub fn open(options: &Options, observer: &mut dyn Observer) -> Result<Self, Failure> {
        let ChatOptions { talk } = parse(options)?;
        let talk = Talk::open(talk, observer)?;
        let state = State { transcript: Vec::new(), prepared: talk.prepared(), failed: None };
        let state = Arc::new(Mutex::new(state));
        let (commands, received) = channel();
        let shared = Arc::clone(&state);
        let thread = thread::Builder::new().name("waggle-chat".into());
        let thread = thread
            .spawn(move || host(talk, &Commands(received), &shared))
            .map_err(|source| Error::Serve { what: "start a thread", source })?;
        Ok(Chat { commands, state, thread: Mutex::new(Some(thread)) })
    }

    /// Says `words` and waits for the answer, which `listener` hears as it comes, in another thread. What a listener
    /// panics with, this panics with, and the session is over.
    ///
    /// # Errors
    /// A refused turn, after which the conversation goes on, and what ends the session.
    pub fn say(&self, words: &str, listener: Box<dyn Listener + Send>) -> Result<TurnReport, Failure> {
        self.ask(|answer| Command::Say { words: words.to_owned(), listener, answer }).unwrap_or_else(|| self.over())
    }

    /// Begins another conversation in the same session.
    ///
    /// # Errors
    /// What ends the session.
    pub fn reset(&self) -> Result<(), Failure> {
        self.ask(|answer| Command::Reset { answer }).unwrap_or_else(|| self.over())
    }

    /// Ends the session; its report, unless it was over before.
    ///
    /// # Errors
    /// What ended the session, if nobody was told.
    pub fn close(&self) -> Result<Option<ChatReport>, Failure> {
        match self.ask(|answer| Command::Close { answer }) {
            Some(report) => report.map(Some),
            None => self.failure().map_or(Ok(None), Err),
        }
    }

    /// For how many tokens of the next turn correlations are there, and for how many there will be. Without the
    /// option `preprocess` there are none.
    pub fn prepared(&self) -> (usize, usize) {
        lock(&self.state).prepared
    }

    /// What was said in this conversation, up to the last turn. It stays when the session is over.
    pub fn transcript(&self) -> Vec<Said> {
        lock(&self.state).transcript.clone()
    }

    /// The answer of the thread; `None` if it has ended.
    fn ask<T>(&self, command: impl FnOnce(Sender<T>) -> Command) -> Option<T> {
        let (answer, answered) = channel();
        // A command that cannot be sent is dropped with the sender in it.
        let _ = self.commands.send(command(answer));
        answered.recv().ok()
    }

    /// Why the thread has ended, if nobody was told.
    fn failure(&self) -> Option<Failure> {
        let thread = lock(&self.thread).take();
        if let Some(Err(panic)) = thread.map(JoinHandle::join) {
            resume_unwind(panic);
        }
        lock(&self.state).failed.take()
    }

    fn over<T>(&self) -> Result<T, Failure> {
        Err(self.failure().unwrap_or_else(|| session::Error::ChatOver.into()))
    }
}

impl Drop for Chat {
    fn drop(&mut self) {
        // Both fail if the thread has ended, and nobody is left to tell.
        let _ = self.commands.send(Command::Leave);
        let _ = lock(&self.thread).take().map(JoinHandle::join);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the thread waits for.
struct Commands(Receiver<Command>);

impl Incoming for Commands {
    type Item = Command;

    fn look(&self) -> Option<Command> {
        match self.0.try_recv() {
            Ok(command) => Some(command),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Command::Leave),
        }
    }

    fn wait(&self, limit: Duration) -> Option<Command> {
        match self.0.recv_timeout(limit) {
            Ok(command) => Some(command),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Command::Leave),
        }
    }
}

/// Does what `commands` say until the session ends. An answer that nobody waits for any more is dropped.
fn host(mut talk: Talk, commands: &Commands, state: &Mutex<State>) {
    loop {
        let command = match next(&mut talk, commands, state) {
            Ok(command) => command,
            Err(error) => {
                lock(state).failed = Some(error.into());
                return;
            }
        };
        match command {
            Command::Say { listener, answer, .. } if listener.abandoned() => {
                let _ = answer.send(Err(model::Error::Abandoned.into()));
            }
            Command::Say { words, mut listener, answer } => {
                let said = catch_unwind(AssertUnwindSafe(|| talk.turn(&words, &mut *listener)));
                // What it holds is let go before anybody hears of the end.
                drop(listener);
                publish(&talk, state);
                let said = said.unwrap_or_else(|panic| resume_unwind(panic));
                let over = said.is_err();
                let _ = answer.send(said.map_err(Failure::from).and_then(|turn| turn.map_err(Failure::from)));
                if over {
                    return;
                }
            }
            Command::Reset { answer } => {
                let reset = talk.reset();
                publish(&talk, state);
                let over = reset.is_err();
                let _ = answer.send(reset.map_err(Failure::from));
                if over {
                    return;
                }
            }
            Command::Close { answer } => {
                let (_, ended) = talk.finish();
                let report = ended.and_then(|ended| ended.report());
                let _ = answer.send(report.map_err(Failure::from));
                return;
            }
            Command::Leave => {
                let _ = talk.finish();
                return;
            }
        }
    }
}

/// The next command. Until it comes, correlations are made.
fn next(talk: &mut Talk, commands: &Commands, state: &Mutex<State>) -> Result<Command, Error> {
    match talk.prepare_until(commands, |prepared| lock(state).prepared = prepared)? {
        Some(command) => Ok(command),
        None => talk.stay_until(commands),
    }
}

/// Shows what a command has changed.
fn publish(talk: &Talk, state: &Mutex<State>) {
    let mut state = lock(state);
    state.transcript = talk.transcript().said();
    state.prepared = talk.prepared();
}
